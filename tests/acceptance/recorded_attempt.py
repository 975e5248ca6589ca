"""What a run records of one attempt of an agent, after it has been judged."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sequencer import InvocationLimits, Mode
from sequencer.errors import StepFailed
from sequencer.testing import ScratchProject


def record_attempt(
    folder: Path, entry: Mapping[str, Any], prompt: str, step: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the outcome, as in the journal, of the only *step* of a project and its agent."""
    only = {"name": "main", "text": prompt, "retry": {"max_attempts": 1}, **step}
    agents = {"one": dict(entry)}
    run = ScratchProject(folder, {"agent": "one", "agents": agents, "steps": [only]}).run()
    with suppress(StepFailed):
        run.work(Mode.TICK, InvocationLimits(max_steps=1))
    (outcome,) = [fact["outcome"] for fact in run.history() if fact["outcome"] is not None]
    return dict(outcome)
