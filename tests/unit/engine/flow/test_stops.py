"""Time limits, pauses, ticks, interrupts and vanished runs, as one process meets them."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest

from sequencer.engine.invocation_budget import Mode
from sequencer.errors import (
    ClaimHeld,
    Interrupted,
    StaleClaim,
    StorageFailed,
    TransitionRefused,
    UsageRefused,
)
from sequencer.executors.cancellation import Cancellation
from sequencer.executors.protocol import StepRequest
from sequencer.model.commands import Pause, Reject, Reset, Resume, RetryNow, Stop, TakeOver
from sequencer.model.graph.graph_kind import end_if_overdue, expire_question
from sequencer.model.head import Status
from sequencer.model.outcome import Outcome
from tests.scratch_folders import remove_at_once
from tests.unit.engine.flow.labs import FREE, Hold, lab, let_go, said, until
from tests.unit.engine.projects import Recorder

FAN = "s --> a & b & c; a & b & c --> j"


# --- time ------------------------------------------------------------------------------


def test_a_late_timeout_does_not_undo_an_end_or_a_retry(tmp_path: Path) -> None:
    """Two see that the time is over; what the second does must not undo an end, or a retry."""
    made = lab(tmp_path, "a", {"a": Hold()}, timeout_ms=20)
    made.refused()
    before = made.head
    flow = made.run().flow
    flow.update(end_if_overdue, lambda _: None)
    assert made.head == before
    made.run().do(RetryNow())
    flow.update(end_if_overdue, lambda _: None)
    assert made.status == "running"


def test_unanswered_questions_time_out(tmp_path: Path) -> None:
    nodes = {"h": {"timeout_ms": 60, "on_timeout": "t"}, "g": {"timeout_ms": 90}}
    text = "s --> h{{H}} & g{{G}} & k; h -->|yes| a; g -->|timeout| b; g -->|yes| a; t"
    hold = Hold()
    made = lab(tmp_path, text, {"k": hold}, nodes=nodes)
    with let_go(hold):
        working = made.works()
        until(lambda: {"t", "b"} <= set(made.accepted()))
        assert working.is_on
    working.summary()
    assert [line for line in made.trace() if "h" in line.split() or "g" in line.split()] == [
        "start h", "start g", "timeout h -> t", "done g = timeout",
    ]  # fmt: skip
    assert "a" not in made.accepted()


def test_a_question_asked_again_in_the_meantime_does_not_expire(tmp_path: Path) -> None:
    """Between the look at the first and the turn, somebody has answered it."""
    nodes = {"h": {"timeout_ms": 60_000, "on_timeout": "t"}}
    made = lab(tmp_path, "h{{H}} -->|no| h; h -->|yes| a; t", nodes=nodes)
    made.refused()
    made.answer("h", "no")
    before = made.head
    flow = made.run().flow
    for name in ("h", "a"):
        flow.update(partial(expire_question, name=name), lambda _: None)
    assert made.head == before


def test_a_question_can_time_out_between_invocations(tmp_path: Path) -> None:
    nodes = {"h": {"timeout_ms": 400, "on_timeout": "t"}}
    made = lab(tmp_path, "h{{H}} --> a; t", nodes=nodes)
    made.refused(Mode.TICK)
    time.sleep(0.45)
    assert made.work().usage.steps == 1
    assert made.accepted() == ["t"]


# --- interrupts, pauses, ticks ---------------------------------------------------------


def test_an_interrupt_releases_every_claim(tmp_path: Path) -> None:
    holds = [Hold() for _ in range(3)]
    made = lab(tmp_path, FAN, dict(zip("abc", holds, strict=True)))
    with let_go(*holds):
        working = made.works()
        for hold in holds:
            hold.wait()
        working.interrupt()
        error = working.error()
    assert isinstance(error, Interrupted)
    assert error.exit_code == 130
    assert all(hold.was_stopped for hold in holds)
    assert made.head.claims == ()
    released = made.facts("released")
    assert sorted(fact["step"] for fact in released) == ["a", "b", "c"]
    assert {fact["outcome"]["reason"] for fact in released} == {"interrupted"}
    assert made.head.status is Status.WAITING_NEXT
    for hold in holds:
        assert hold.go.is_set()
    assert made.work().usage.steps == 4
    assert sorted(made.accepted()) == ["a", "b", "c", "j", "s"]
    # Begun again, with another token and the same place in the flow.
    assert [line for line in made.trace() if line.startswith("again")] == [
        "again a", "again b", "again c",
    ]  # fmt: skip


def test_work_finished_during_an_interrupt_counts(tmp_path: Path) -> None:
    def stubborn(request: StepRequest, cancellation: Cancellation) -> Outcome:
        del request
        cancellation.wait(5.0)
        return said("all the same")

    made = lab(tmp_path, "a --> b", {"a": stubborn})
    working = made.works()
    until(lambda: made.actor.asked)
    working.interrupt()
    assert isinstance(working.error(), Interrupted)
    assert made.accepted() == ["a"]
    assert made.actor.names == ["a"]


def test_sync_mode_waits_for_the_end_of_a_pause(tmp_path: Path) -> None:
    made = lab(tmp_path, "a")
    made.begun()
    made.run().do(Pause())
    working = made.works(Mode.SYNC)
    working.ready()
    time.sleep(0.05)
    assert working.is_on, working.end()
    made.run().do(Resume())
    assert working.summary().usage.steps == 1


def test_an_answer_to_a_paused_run_keeps_the_pause(tmp_path: Path) -> None:
    made = lab(tmp_path, "h{{H}} --> a")
    made.refused()
    made.run().do(Pause())
    made.answer("h", "yes")
    assert made.head.status is Status.PAUSED
    assert made.work().usage.steps == 0
    made.run().do(Resume())
    assert made.work().usage.steps == 1


def test_max_wait_limits_how_long_a_process_waits_for_others(tmp_path: Path) -> None:
    hold = Hold()
    made = lab(tmp_path, "a --> b", {"a": hold})
    with let_go(hold):
        working = made.works()
        hold.wait()
        with pytest.raises(ClaimHeld):
            made.work(limits={"max_wait_s": 0.05})
        recorder = Recorder()
        second = made.works(on_event=recorder)
        until(lambda: recorder.waits)
    assert recorder.waits[0] == ("'a' runs in another process; this process waits", None)
    assert working.summary().usage.steps + second.summary().usage.steps == 2


def test_async_mode_is_refused_for_a_graph(tmp_path: Path) -> None:
    made = lab(tmp_path, "a")
    with pytest.raises(UsageRefused, match="mode async keeps no run"):
        made.run().work(Mode.ASYNC, FREE)
    assert not (tmp_path / "sync").exists()


# --- the run is gone -------------------------------------------------------------------


def test_a_deleted_folder_stops_every_agent(tmp_path: Path) -> None:
    holds = [Hold() for _ in range(3)]
    made = lab(tmp_path, FAN, dict(zip("abc", holds, strict=True)))
    with let_go(*holds):
        working = made.works()
        for hold in holds:
            hold.wait()
        remove_at_once(tmp_path / "sync")
        holds[0].go.set()
        error = working.error()
        # Whichever it meets first: a head or a file that is not there.
        assert isinstance(error, (StaleClaim, StorageFailed))
        assert [hold.was_stopped for hold in holds[1:]] == [True, True]
    assert not (tmp_path / "sync" / "state.json").exists()


def test_a_run_started_in_its_place_gets_nothing_from_the_old_one(tmp_path: Path) -> None:
    """Its tokens count from 1 again, and another process holds the same one there."""
    old, new = Hold("old"), Hold("new")
    made = lab(tmp_path, "a --> b", {"a": [old, new]})
    with let_go(old, new):
        first = made.works()
        old.wait()
        remove_at_once(tmp_path / "sync")
        second = made.works()
        new.wait()
        assert [claim.token for claim in made.head.claims] == [1]
        old.go.set()
        assert isinstance(first.error(), StaleClaim)
        assert made.accepted() == []
        new.go.set()
        second.summary()
    flow = made.run().flow
    assert flow.read_text(flow.marking(made.head)[1].outputs["a"]) == "new"
    assert made.head.usage.steps == 2


def test_a_reset_while_agents_work_starts_a_new_run(tmp_path: Path) -> None:
    hold = Hold("late")
    made = lab(tmp_path, "a --> b", {"a": [hold, "new"]})
    with let_go(hold):
        working = made.works()
        hold.wait()
        old = made.head.run_id
        with pytest.raises(TransitionRefused):
            made.run().do(Reset())
        made.run().do(Stop())
        made.run().do(TakeOver())
        made.run().do(Reset())
        until(lambda: hold.was_stopped, 5.0)
    working.end()
    assert made.head.run_id != old
    made.work()
    assert made.accepted()[-2:] == ["a", "b"]
    assert {fact["step"] for fact in made.facts("succeeded")} == {"a", "b"}


def test_a_process_reports_each_node_that_was_taken_from_it(tmp_path: Path) -> None:
    holds = [Hold("late"), Hold("late")]
    made = lab(tmp_path, "s --> a & b", {"a": [holds[0], "new"], "b": [holds[1], "new"]})
    recorder = Recorder()
    with let_go(*holds):
        working = made.works(on_event=recorder)
        for hold in holds:
            hold.wait()
        made.run().do(Pause())
        made.run().do(TakeOver())
        until(lambda: all(hold.was_stopped for hold in holds), 5.0)
    working.end()
    taken = [text for text in recorder.notices if "taken over" in text]
    assert sorted(taken) == [
        f"{name!r} was taken over while it ran here, so its result does not count; "
        "'sequencer history' has the record"
        for name in "ab"
    ]
    made.run().do(Resume())
    made.work()
    assert sorted(made.accepted()) == ["a", "b", "s"]


def test_a_node_that_another_branch_canceled_is_not_reported_as_taken(tmp_path: Path) -> None:
    hold = Hold()
    made = lab(tmp_path, "s --> a & b", {"b": hold})
    recorder = Recorder()
    with let_go(hold):
        working = made.works(on_event=recorder)
        hold.wait()
        made.run().do(Reject("enough"), by="ann")
        until(lambda: hold.was_stopped, 5.0)
    working.end()
    assert not [text for text in recorder.notices if "taken over" in text]
