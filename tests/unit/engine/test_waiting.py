"""Waiting for a turn: who wakes, who ends, and how soon."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from sequencer.engine.invocation_budget import Mode
from sequencer.errors import ClaimHeld, DefinitionChanged, Interrupted, StepFailed
from sequencer.model import command_rules as decisions
from sequencer.model.commands import Accept, Adopt, Fail, SetField, Stop
from sequencer.model.limits import InvocationLimits
from sequencer.model.transitions import StepRef
from tests.unit.engine.projects import (
    OK,
    events,
    head_of,
    in_background,
    open_scripted,
    reopen,
    until,
    until_queued,
)


def steps(number: int) -> InvocationLimits:
    return InvocationLimits(max_steps=number)


def test_a_failure_of_a_different_step_is_noticed(tmp_path: Path) -> None:
    """The step that had failed was accepted and the next one failed between two looks."""
    run = open_scripted(tmp_path)
    run.commands.begin()
    run.do(Fail())
    thread, answers = in_background(reopen(tmp_path), Mode.SYNC, positions=["main"])
    until_queued(tmp_path, positions=["main"])

    def both(head: Any) -> Any:
        done = decisions.stamp_ok(head, StepRef(1, "main", "main.md"), None, at=head.last_update)
        return done.combine(decisions.stamp_fail(done.head, None, at=head.last_update))

    run.store.update(both)
    thread.join(10)
    assert isinstance(answers[0], StepFailed)
    assert events(run).count("claimed") == 0


@pytest.mark.parametrize(
    ("decide", "words"),
    [
        (lambda run: run.do(Stop("enough")), "stopped: enough"),
        (lambda run: run.do(SetField("status", "complete")), "complete"),
    ],
)
def test_a_waiting_process_ends_when_the_run_does(tmp_path: Path, decide: Any, words: str) -> None:
    run = open_scripted(tmp_path)
    run.commands.begin()
    thread, answers = in_background(reopen(tmp_path), Mode.SYNC, positions=["main"])
    until_queued(tmp_path, positions=["main"])
    decide(run)
    thread.join(5)
    assert words in answers[0].reason


def test_an_interrupt_ends_a_wait_and_a_step(tmp_path: Path) -> None:
    run = open_scripted(tmp_path, {**OK, "delay_s": 30})
    run.commands.begin()
    for positions, words in ((["main"], "no step is running"), ([], "the claim was released")):
        stops: list[Any] = []
        thread, answers = in_background(
            reopen(tmp_path), Mode.SYNC, positions=positions, on_ready=stops.append
        )
        if positions:
            until_queued(tmp_path, positions=positions)
        else:
            until(lambda: events(run)[-1] == "claimed")
        started = time.monotonic()
        stops[0]()
        thread.join(10)
        assert time.monotonic() - started < 2
        assert isinstance(answers[0], Interrupted)
        assert words in answers[0].message
        # A second signal may come when everything is closed.
        stops[0]()
    head = head_of(run)
    assert (head.claims, head.status, head.failures_in_row) == ((), "idle", 0)
    assert events(run) == ["initialised", "claimed", "released"]


def test_a_waiting_worker_stops_when_the_definition_changes(tmp_path: Path) -> None:
    run = open_scripted(tmp_path)
    run.commands.begin()
    thread, answers = in_background(reopen(tmp_path), Mode.SYNC, positions=["main"])
    until_queued(tmp_path, positions=["main"])
    other = open_scripted(tmp_path, workflow={"name": "review_cadence", "review_every_n": 1})
    other.do(Adopt())
    other.do(Accept())
    thread.join(10)
    assert isinstance(answers[0], DefinitionChanged)
    assert events(run).count("claimed") == 0


def test_only_sync_mode_waits_for_a_step_of_another_process(tmp_path: Path) -> None:
    run, other = open_scripted(tmp_path), reopen(tmp_path)
    with run.turn():
        before = (tmp_path / "sync/state.json").read_bytes()
        for mode in (Mode.TICK, Mode.COMBINED):
            with pytest.raises(ClaimHeld, match="is being run by process") as caught:
                other.work(mode)
            assert caught.value.exit_code == 75
        started = time.monotonic()
        with pytest.raises(ClaimHeld):
            other.work(Mode.SYNC, InvocationLimits(max_wait_s=0.3))
        assert 0.25 < time.monotonic() - started < 2
        assert (tmp_path / "sync/state.json").read_bytes() == before
    assert other.work(Mode.TICK).usage.steps == 1
