"""An attempt is said to be accepted only when the run's journal has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sequencer.engine.events import AttemptAccepted, AttemptEnded, RunEvent
from sequencer.engine.invocation_budget import Mode
from sequencer.engine.run import Run
from sequencer.errors import StaleClaim, StepFailed
from sequencer.model.commands import TakeOver
from sequencer.model.limits import InvocationLimits
from tests.unit.engine.flow.labs import lab
from tests.unit.engine.projects import FAILED, OK, open_scripted, reopen


def accepted_now(run: Run) -> list[int]:
    return [fact["step_index"] for fact in run.history() if fact["event"] == "succeeded"]


def told_of(looking: Run, *ends: str) -> tuple[list[tuple[str, bool]], Any]:
    """Return a list, and what writes to it which events came and whether the journal had them."""
    seen: list[tuple[str, bool]] = []

    def hear(event: RunEvent) -> None:
        match event:
            case AttemptEnded(attempt) if "ended" in ends:
                seen.append(("ended", attempt.step_index in accepted_now(looking)))
            case AttemptAccepted(attempt):
                seen.append(("accepted", attempt.step_index in accepted_now(looking)))

    return seen, hear


@pytest.mark.parametrize("mode", [Mode.COMBINED, Mode.SYNC, Mode.TICK])
def test_a_step_is_reported_as_accepted_after_its_record(tmp_path: Path, mode: Mode) -> None:
    run = open_scripted(tmp_path)
    seen, hear = told_of(reopen(tmp_path), "ended")
    run.work(mode, InvocationLimits(max_steps=1), on_event=hear)
    assert seen == [("ended", False), ("accepted", True)]


def test_a_failure_is_never_reported_as_accepted(tmp_path: Path) -> None:
    run = open_scripted(tmp_path, FAILED, OK)
    seen, hear = told_of(reopen(tmp_path))
    with pytest.raises(StepFailed):
        run.work(limits=InvocationLimits(max_steps=1), on_event=hear)
    assert seen == []
    run.work(limits=InvocationLimits(max_steps=1), on_event=hear)
    assert seen == [("accepted", True)]


def test_an_attempt_whose_claim_was_taken_is_not_reported_as_accepted(tmp_path: Path) -> None:
    run, other = open_scripted(tmp_path), reopen(tmp_path)
    seen, hear = told_of(other)

    def lose(event: RunEvent) -> None:
        hear(event)
        if isinstance(event, AttemptEnded):
            assert event.outcome.is_accepted
            other.do(TakeOver())

    with pytest.raises(StaleClaim):
        run.work(limits=InvocationLimits(max_steps=1), on_event=lose)
    assert seen == []


def test_a_node_is_reported_as_accepted_after_its_record(tmp_path: Path) -> None:
    made = lab(tmp_path, "a --> b & c")
    heard: list[tuple[str, bool]] = []

    def hear(event: RunEvent) -> None:
        if isinstance(event, AttemptAccepted):
            name = event.attempt.step.name
            done = {f["step"] for f in made.run().history() if f["event"] == "succeeded"}
            heard.append((name, name in done))

    made.work(on_event=hear)
    assert sorted(heard) == [("a", True), ("b", True), ("c", True)]
