"""One question to an agent outside of any run: no claim, no log, nothing kept."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from sequencer.engine.prepared import Agents
from sequencer.errors import Interrupted, StepFailed
from sequencer.executors.protocol import Cancellation, Kind, StepRequest
from sequencer.model.outcome import OutcomeStatus, Usage
from sequencer.model.step import Step


class _Deaf:
    """Hears nothing; the answer is all that counts."""

    def write(self, data: bytes, kind: Kind = Kind.OUTPUT) -> None:
        """Ignore it."""

    def used(self, usage: Usage) -> None:
        """Ignore it."""


def ask(agents: Agents, agent: str, prompt: str, *, timeout_s: float, project: Path) -> str:
    """Return what *agent* answers to *prompt*, in one turn and without tools where it can.

    Raises:
        ConfigurationError: the agent can't be had, or is not installed.
        StepFailed: it failed, or took longer than *timeout_s*.
        Interrupted: somebody interrupted it.
    """
    step = Step(name="classifier", executor=agent, timeout_s=timeout_s)
    _, executor = agents.ready(step, "classifier")
    if "single_turn" in executor.supported_fields:
        step = step.model_copy(update={"single_turn": True})
    folder = Path(tempfile.mkdtemp(prefix="sequencer-")).resolve()
    cancellation = Cancellation()
    request = StepRequest(
        step=step,
        prompt=prompt,
        cwd=project,
        result_path=folder / "answer" / "result.json",
        environment={"SEQUENCER_STEP": step.name},
        timeout_s=timeout_s,
    )
    try:
        outcome = executor.perform(request, _Deaf(), cancellation)
    finally:
        cancellation.close()
        shutil.rmtree(folder, ignore_errors=True)
    if outcome.status is OutcomeStatus.INTERRUPTED:
        raise Interrupted("interrupted while an agent was asked; nothing was started")
    if not outcome.is_accepted:
        raise StepFailed(outcome.error or f"the agent's answer is {outcome.status}")
    return outcome.output
