"""Questions to an agent outside of any run: no claim, no log, nothing kept.

All questions of one `Questions` share its time, the start of the agent and its end by force
included: a person waits for the answer.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

from sequencer.engine.attempt import Agents
from sequencer.errors import Interrupted, StepFailed
from sequencer.executors.protocol import Cancellation, Piece, StepRequest
from sequencer.model.outcome import Outcome, OutcomeStatus, Usage
from sequencer.model.step import Step


class _Deaf:
    """Hears nothing; the answer is all that counts."""

    def write(self, data: bytes, kind: Piece = Piece.OUTPUT) -> None:
        """Ignore it."""

    def used(self, usage: Usage) -> None:
        """Ignore it."""


MOST_GRACE_S = 0.5
"""Between TERM and KILL: what only answers has nothing to save."""
LEAST_S = 1.0
"""For another question; in less time nobody answers."""


class Questions:
    """What *agent* is asked, in one turn each and without tools where it can."""

    def __init__(self, agents: Agents, agent: str, *, within_s: float, project: Path) -> None:
        """Ask nobody yet; the clock starts with the first question."""
        self._agents = agents
        self._agent = agent
        self._within_s = within_s
        self._project = project
        self._until: float | None = None

    def ask(self, prompt: str) -> str:
        """Return the answer to *prompt*.

        Raises:
            ConfigurationError: the agent can't be had, or is not installed.
            StepFailed: it failed, did not answer in time, or had no time left to be asked.
            Interrupted: somebody interrupted it.
        """
        if self._until is None:
            self._until, left_s = time.monotonic() + self._within_s, self._within_s
        else:
            left_s = self._until - time.monotonic()
            if left_s < LEAST_S:
                raise StepFailed(f"no time is left of {self._within_s:g} s to ask again")
        # Its end by force has to fit in as well, and so has the start.
        grace_s = min(MOST_GRACE_S, left_s / 10)
        outcome = self._outcome(prompt, left_s - 2 * grace_s, grace_s)
        if outcome.status is OutcomeStatus.INTERRUPTED:
            raise Interrupted("interrupted while an agent was asked; nothing was started")
        if outcome.is_accepted:
            return outcome.output
        if self._until - time.monotonic() <= 2 * grace_s:
            raise StepFailed(f"no answer within {self._within_s:g} s")
        raise StepFailed(outcome.error or f"the agent's answer is {outcome.status}")

    def _outcome(self, prompt: str, timeout_s: float, grace_s: float) -> Outcome:
        step = Step(name="classifier", executor=self._agent, timeout_s=timeout_s)
        _, executor = self._agents.ready(step, "classifier")
        if "single_turn" in executor.supported_fields:
            step = step.replace(single_turn=True)
        folder = Path(tempfile.mkdtemp(prefix="sequencer-")).resolve()
        cancellation = Cancellation()
        request = StepRequest(
            step=step,
            prompt=prompt,
            cwd=self._project,
            result_path=folder / "answer" / "result.json",
            environment={"SEQUENCER_STEP": step.name},
            timeout_s=timeout_s,
            grace_s=grace_s,
        )
        try:
            return executor.perform(request, _Deaf(), cancellation)
        finally:
            cancellation.close()
            shutil.rmtree(folder, ignore_errors=True)
