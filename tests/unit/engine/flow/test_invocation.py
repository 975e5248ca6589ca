"""One process at work on a graph run: why it goes on, sleeps and ends."""

from __future__ import annotations

import resource
import shutil
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sequencer.engine.due import iso
from sequencer.engine.flow.invocation import FlowInvocation
from sequencer.engine.flow.working import FlowWork
from sequencer.engine.work import Mode
from sequencer.errors import (
    ClaimHeld,
    Interrupted,
    StaleClaim,
    StepFailed,
    StorageFailed,
    TransitionRefused,
    UsageRefused,
    WaitsForPerson,
)
from sequencer.executors.protocol import Cancellation, StepRequest
from sequencer.model.head import Status
from sequencer.model.limits import RunLimits
from sequencer.model.outcome import Outcome, Usage
from sequencer.model.step import Retry
from sequencer.store.memory import MemoryRun
from tests.unit.engine.flow.labs import (
    FREE,
    Hold,
    Said,
    failed,
    lab,
    let_go,
    limited,
    said,
    until,
)
from tests.unit.engine.projects import Recorder

FAN = "s --> a & b & c; a & b & c --> j"
RETRY = Retry(max_attempts=3, initial_delay_s=0.02)
LONG_RETRY = Retry(max_attempts=2, initial_delay_s=3_600.0)


# --- ends ------------------------------------------------------------------------------


def test_it_ends_with_the_flow(tmp_path: Path) -> None:
    made = lab(tmp_path, FAN)
    summary = made.work()
    assert summary.reason == "the run is completed after 5 steps are done"
    assert (summary.usage.steps, summary.failures) == (5, 0)
    assert summary.head is not None
    assert summary.head.status is Status.COMPLETE
    assert made.head.step_index == 5
    again = made.work()
    assert again.usage.steps == 0
    assert again.reason == summary.reason
    assert made.actor.names.count("j") == 1


@pytest.mark.parametrize(
    ("text", "says", "settings", "status", "message"),
    [
        ("a", {"a": failed()}, {}, "failed", "the run ended as failed: a node failed"),
        ("a; h", {"a": failed("pop")}, {"on_error": "h"}, "completed_after_error",
         r"node 'a' failed \(pop\); the error node ran"),
        ("a -->|x| a; a -->|y| b", {"a": "x"}, {"max_iterations": 2}, "max_iterations",
         "it looped more than 2 times"),
        ("a", {"a": Hold()}, {"timeout_ms": 30}, "timed_out", "longer than 30 ms"),
    ],
)  # fmt: skip
def test_a_bad_end_is_an_error_each_time(
    tmp_path: Path,
    *,
    text: str,
    says: dict[str, Said],
    settings: dict[str, Any],
    status: str,
    message: str,
) -> None:
    made = lab(tmp_path, text, says, **settings)
    with pytest.raises(StepFailed, match=message):
        made.work()
    assert made.status == status
    assert made.head.claims == ()
    asked = len(made.actor.asked)
    with pytest.raises(StepFailed, match=f"the run has ended as {status}"):
        made.work()
    assert len(made.actor.asked) == asked


def test_it_ends_where_only_people_are_waited_for(tmp_path: Path) -> None:
    made = lab(tmp_path, "a --> h{{H}} & g{{G}} & b; h & g & b --> j")
    with pytest.raises(WaitsForPerson, match="'h', 'g' wait for an answer"):
        made.work()
    assert made.accepted() == ["a", "b"]
    assert made.head.status is Status.WAITING_APPROVAL
    made.answer("g", "fine")
    with pytest.raises(WaitsForPerson, match="'h' waits for an answer"):
        made.work()
    made.answer("h", "fine")
    assert made.work().usage.steps == 1
    assert made.status == "completed"


def test_a_person_may_answer_while_agents_work(tmp_path: Path) -> None:
    hold = Hold()
    made = lab(tmp_path, "s --> h{{H}} & b; h --> c; b & c --> j", {"b": hold})
    with let_go(hold):
        working = made.works()
        hold.wait()
        until(lambda: made.run().flow.questions(made.head))
        made.answer("h", "go on")
        # Whoever is at work takes what the answer lets start.
        until(lambda: "c" in made.accepted())
        assert working.is_on
    assert working.summary().usage.steps == 4


# --- limits of an invocation -----------------------------------------------------------


def test_max_steps_counts_what_is_accepted_and_starts_no_more(tmp_path: Path) -> None:
    made = lab(tmp_path, FAN)
    summary = made.work(limits={"max_steps": 3})
    assert summary.reason == "3 steps are done (--max-steps)"
    assert summary.usage.steps == 3
    assert len(made.actor.asked) == 3
    assert made.head.claims == ()
    assert made.work(limits={"max_steps": 1}).usage.steps == 1
    assert made.work(limits={"max_steps": 9}).reason.startswith("the run is completed")


def test_max_steps_is_kept_with_failures_between(tmp_path: Path) -> None:
    made = lab(tmp_path, "a --> b", {"a": [failed(), said()]}, retry=RETRY)
    assert made.work(limits={"max_steps": 1}).failures == 1
    assert made.accepted() == ["a"]
    assert made.actor.names == ["a", "a"]


def test_max_cost_starts_no_more(tmp_path: Path) -> None:
    dear = said(usage=Usage(cost_usd=2.0))
    made = lab(tmp_path, "a --> b --> c", {"a": dear, "b": dear})
    assert made.work(limits={"max_cost_usd": 3.0}).reason == "4.0000 USD are spent (--max-cost)"
    # The second was told what was left of it.
    assert [request.max_cost_usd for request in made.actor.asked] == [3.0, 1.0]


def test_the_steps_of_the_run_are_limited_over_all_parallel_ones(tmp_path: Path) -> None:
    made = lab(tmp_path, FAN, limits=RunLimits(max_steps=3))
    assert "limit of 3 steps" in made.work().reason
    assert made.accepted() == ["s", "a", "b"] or len(made.accepted()) == 3
    assert len(made.actor.asked) == 3


def test_a_dead_process_does_not_use_up_the_steps_of_the_run(tmp_path: Path) -> None:
    memory = MemoryRun()
    made = lab(tmp_path, "a --> b", memory=memory, limits=RunLimits(max_steps=1))
    made.died()
    assert made.work(limits={"max_wait_s": 1.0}).usage.steps == 1
    memory.close()


def test_a_node_that_always_dies_with_its_process_is_given_up(tmp_path: Path) -> None:
    memory = MemoryRun()
    made = lab(tmp_path, "a --> b", memory=memory, limits=RunLimits(max_attempts=2))
    made.died()
    made.died()
    with pytest.raises(StepFailed):
        made.work()
    (fact,) = made.facts("failed")
    assert fact["outcome"]["error"].startswith("begun 2 times without an end")
    assert made.actor.asked == []
    memory.close()


# --- several at once -------------------------------------------------------------------


@pytest.mark.parametrize(("most", "places", "expect"), [(2, 8, 2), (None, 1, 1), (None, 3, 3)])
def test_no_more_at_once_than_the_chart_and_the_process_allow(
    tmp_path: Path, most: int | None, places: int, expect: int
) -> None:
    hold = Hold()
    text = "s --> a & b & c & d; a & b & c & d --> j"
    made = lab(tmp_path, text, dict.fromkeys("abcd", hold), max_parallel=most)
    with let_go(hold):
        made.begun()
        working = made.works(places=places)
        until(lambda: len(made.head.claims) == expect)
        time.sleep(0.03)
        assert len(made.head.claims) == expect
        assert made.actor.most == expect
    working.summary()
    assert made.actor.most == expect
    assert made.trace()[1:6] != []
    starts = [fact["step"] for fact in made.facts("claimed")]
    assert starts == ["s", "a", "b", "c", "d", "j"]


def test_max_parallel_is_over_all_processes(tmp_path: Path) -> None:
    hold = Hold()
    made = lab(tmp_path, FAN, dict.fromkeys("abc", hold), max_parallel=2)
    with let_go(hold):
        made.begun()
        workers = [made.works() for _ in range(3)]
        until(lambda: len(made.head.claims) == 2)
        time.sleep(0.05)
        assert len(made.head.claims) == made.actor.most == 2
    assert sum(working.summary().usage.steps for working in workers) == 5
    assert made.actor.most == 2
    assert sorted(made.accepted()) == ["a", "b", "c", "j", "s"]


def test_who_has_no_place_sleeps_though_a_try_is_due(tmp_path: Path) -> None:
    hold = Hold()
    made = lab(tmp_path, "s --> a & b", {"a": [failed(), said()], "b": hold}, retry=RETRY)
    with let_go(hold):
        working = made.works(places=1)
        hold.wait()
        time.sleep(0.05)
        before = resource.getrusage(resource.RUSAGE_SELF)
        time.sleep(0.4)
        after = resource.getrusage(resource.RUSAGE_SELF)
    working.summary()
    # The test's own threads poll, 2 ms apart.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.2
    assert made.actor.names == ["s", "a", "b", "a"]


def test_what_another_process_cancels_ends_here_at_once(tmp_path: Path) -> None:
    """The lease is a minute, so nobody's heartbeat could tell as soon."""
    here, there = Hold(), Hold(failed("pop"))
    made = lab(tmp_path, "s --> a & b; h", {"a": here, "b": there}, on_error="h")
    with let_go(here, there):
        first = made.works(places=1)
        here.wait()
        second = made.works(places=1)
        there.wait()
        there.go.set()
        until(lambda: made.status == "completed_after_error")
        until(lambda: here.was_stopped, 3.0)
    assert isinstance(first.error(), StepFailed)
    assert isinstance(second.error(), StepFailed)
    assert made.trace()[-3:] == ["onError -> h; cancelled a", "start h", "done h"]


def test_two_processes_take_nothing_twice(tmp_path: Path) -> None:
    names = [f"n{number}" for number in range(12)]
    made = lab(tmp_path, f"s --> {' & '.join(names)}; {' & '.join(names)} --> j", max_parallel=5)
    workers = [made.works(places=3) for _ in range(3)]
    for working in workers:
        working.summary()
    assert sorted(made.accepted()) == sorted(["s", *names, "j"])
    assert len(made.actor.asked) == 14


# --- tries -----------------------------------------------------------------------------


def test_failures_are_tried_again_after_their_waits(tmp_path: Path) -> None:
    made = lab(tmp_path, "a --> b", {"a": [failed("x"), failed("y"), said("ok")]}, retry=RETRY)
    recorder = Recorder()
    began = time.monotonic()
    summary = made.run().work(observer=recorder)
    assert time.monotonic() - began >= 0.04
    assert (summary.usage.steps, summary.failures) == (2, 2)
    assert made.trace() == [
        "start a", "fail a attempt 1: x", "retry a attempt 2", "fail a attempt 2: y",
        "retry a attempt 3", "done a", "start b", "done b",
    ]  # fmt: skip
    assert [attempt for name, _, attempt in recorder.steps if name == "a"] == [1, 2, 3]
    assert {reason for reason, _ in recorder.waits} == {"the next try comes"}


def test_other_nodes_go_on_while_one_waits_for_its_next_try(tmp_path: Path) -> None:
    made = lab(tmp_path, "s --> a & b; b --> c", {"a": failed()}, retry={"a": LONG_RETRY})
    assert made.work(limits={"max_steps": 3}).usage.steps == 3
    assert made.accepted() == ["s", "b", "c"]
    reason = made.work(Mode.TICK).reason
    assert reason.startswith("nothing due: the next try comes at ")
    assert made.head.status is Status.WAITING_NEXT
    made.run().control.retry()
    with pytest.raises(StepFailed):
        made.work()
    assert made.trace()[-2:] == ["retry a attempt 2", "fail a attempt 2: boom"]


def test_a_usage_limit_is_nobodys_failure(tmp_path: Path) -> None:
    later = iso(datetime.now(UTC) + timedelta(hours=1))
    made = lab(tmp_path, "s --> a & b", {"a": limited(later)}, retry=RETRY)
    assert made.work(limits={"max_steps": 2}).usage.steps == 2
    (fact,) = made.facts("released")
    assert (fact["step"], fact["outcome"]["status"]) == ("a", "limited")
    made.work(Mode.TICK)
    assert made.actor.names.count("a") == 1
    _, marking = made.run().flow.marking(made.head)
    assert (marking.active["a"].due, marking.active["a"].failures) == (later, 0)
    # It did not count as an attempt either.
    assert marking.active["a"].attempt == 0


def test_an_executor_that_raises_has_failed(tmp_path: Path) -> None:
    made = lab(tmp_path, "a --> b", {"a": [RuntimeError("s3cret bug"), said()]}, retry=RETRY)
    assert made.work().usage.steps == 2
    (fact,) = made.facts("failed")
    assert fact["outcome"]["error"] == "RuntimeError('*** bug')"


def test_who_ends_a_thread_ends_the_process(tmp_path: Path) -> None:
    hold = Hold()
    made = lab(tmp_path, "s --> a & b", {"a": hold, "b": KeyboardInterrupt()})
    with let_go(hold), pytest.raises(KeyboardInterrupt):
        made.work()
    assert hold.was_stopped
    assert made.head.claims == ()
    assert [fact["step"] for fact in made.facts("released")] == ["b", "a"]


def test_an_output_that_can_not_be_kept_ends_the_work_after_one_agent(tmp_path: Path) -> None:
    made = lab(tmp_path, "a --> b", {"a": "much work"})
    made.begun()
    (tmp_path / "sync" / "results").write_text("no folder")
    with pytest.raises(StorageFailed, match="the output can't be kept"):
        made.work()
    assert made.actor.names == ["a"]
    assert made.head.claims == ()
    (tmp_path / "sync" / "results").unlink()
    assert made.work().usage.steps == 2


# --- time ------------------------------------------------------------------------------


def test_a_time_limit_cancels_everybody_and_passes_the_error_node(tmp_path: Path) -> None:
    a, b = Hold(), Hold()
    made = lab(tmp_path, "s --> a & b; h", {"a": a, "b": b}, on_error="h", timeout_ms=80)
    with let_go(a, b), pytest.raises(StepFailed, match="timed_out"):
        made.work()
    assert (a.was_stopped, b.was_stopped) == (True, True)
    assert made.trace()[-1] == "workflow timeout; cancelled a, b"
    made.run().control.retry()
    assert made.status == "running"


def test_time_for_people_is_free(tmp_path: Path) -> None:
    made = lab(tmp_path, "a --> h{{H}} --> b", timeout_ms=250)
    made.refused()
    time.sleep(0.3)
    made.answer("h", "yes")
    made.work()
    assert made.status == "completed"


def test_time_between_short_nodes_is_not_rounded_up(tmp_path: Path) -> None:
    names = " --> ".join(f"n{number}" for number in range(12))
    made = lab(tmp_path, names, timeout_ms=2_500)
    made.work()
    _, marking = made.run().flow.marking(made.head)
    assert 0 < marking.busy_ms < 1_500


def test_time_after_a_death_is_not_the_agents(tmp_path: Path) -> None:
    memory = MemoryRun()
    made = lab(tmp_path, "a --> b", memory=memory, timeout_ms=150, ttl_s=0.05)
    made.died()
    time.sleep(0.2)
    assert made.work().usage.steps == 2
    assert made.status == "completed"
    memory.close()


def test_the_end_of_the_time_of_a_run_that_was_over_by_then(tmp_path: Path) -> None:
    """Two see that the time is over; what the second does must not undo an end, or a retry."""
    made = lab(tmp_path, "a", {"a": Hold()}, timeout_ms=20)
    made.refused()
    before = made.head
    late = FlowInvocation(made.worker(), Mode.COMBINED, FREE, before)
    flow = made.run().flow
    flow.update(late._end_in_time, lambda _: None)
    assert made.head == before
    made.run().control.retry()
    flow.update(late._end_in_time, lambda _: None)
    assert made.status == "running"


def test_nobody_answers_in_time(tmp_path: Path) -> None:
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


def test_a_time_for_people_ends_between_invocations(tmp_path: Path) -> None:
    nodes = {"h": {"timeout_ms": 30, "on_timeout": "t"}}
    made = lab(tmp_path, "h{{H}} --> a; t", nodes=nodes)
    made.refused(Mode.TICK)
    time.sleep(0.04)
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


def test_what_is_done_while_it_is_interrupted_counts(tmp_path: Path) -> None:
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


def test_an_interrupt_before_the_first_claim(tmp_path: Path) -> None:
    made = lab(tmp_path, "a")
    with pytest.raises(Interrupted):
        made.run().work(on_ready=lambda interrupt: interrupt())
    assert made.actor.asked == []


def test_a_pause_holds_it_after_what_runs(tmp_path: Path) -> None:
    hold = Hold()
    made = lab(tmp_path, "s --> a & b; a & b --> j", {"a": hold})
    with let_go(hold):
        working = made.works()
        until(lambda: made.accepted() == ["s", "b"])
        made.run().control.pause()
    assert working.summary().reason.startswith("the run is paused")
    assert made.head.status is Status.PAUSED
    assert made.work().usage.steps == 0
    made.run().control.resume()
    assert made.work().usage.steps == 1


def test_sync_mode_waits_for_the_end_of_a_pause(tmp_path: Path) -> None:
    made = lab(tmp_path, "a")
    made.begun()
    made.run().control.pause()
    working = made.works(Mode.SYNC)
    working.ready()
    time.sleep(0.05)
    assert working.is_on, working.end()
    made.run().control.resume()
    assert working.summary().usage.steps == 1


def test_a_stop_and_a_resume(tmp_path: Path) -> None:
    made = lab(tmp_path, "a --> b")
    made.work(limits={"max_steps": 1})
    made.run().control.stop("lunch")
    assert "the run was stopped: lunch" in made.work().reason
    assert made.accepted() == ["a"]
    made.run().control.resume()
    assert made.work().usage.steps == 1


def test_an_answer_to_a_paused_run_keeps_the_pause(tmp_path: Path) -> None:
    made = lab(tmp_path, "h{{H}} --> a")
    made.refused()
    made.run().control.pause()
    made.answer("h", "yes")
    assert made.head.status is Status.PAUSED
    assert made.work().usage.steps == 0
    made.run().control.resume()
    assert made.work().usage.steps == 1


def test_a_tick_does_one_step_and_waits_for_nobody(tmp_path: Path) -> None:
    made = lab(tmp_path, FAN)
    for expect in (["s"], ["s", "a"], ["s", "a", "b"]):
        summary = made.work(Mode.TICK)
        assert (summary.usage.steps, summary.reason) == (1, "the step that was due is done")
        assert made.accepted() == expect
    assert len(made.actor.asked) == 3


def test_a_tick_beside_a_worker(tmp_path: Path) -> None:
    hold = Hold()
    made = lab(tmp_path, "a --> b", {"a": hold})
    with let_go(hold):
        working = made.works()
        hold.wait()
        before = (tmp_path / "sync" / "state.json").read_bytes()
        with pytest.raises(ClaimHeld, match="'a' run in another process"):
            made.work(Mode.TICK)
        assert (tmp_path / "sync" / "state.json").read_bytes() == before
    working.summary()


def test_who_waits_for_others_only_so_long(tmp_path: Path) -> None:
    hold = Hold()
    made = lab(tmp_path, "a --> b", {"a": hold})
    with let_go(hold):
        working = made.works()
        hold.wait()
        with pytest.raises(ClaimHeld):
            made.work(limits={"max_wait_s": 0.05})
        recorder = Recorder()
        second = made.works(observer=recorder)
        until(lambda: recorder.waits)
    assert recorder.waits[0] == ("'a' run in another process", None)
    assert working.summary().usage.steps + second.summary().usage.steps == 2


def test_async_mode_keeps_no_run(tmp_path: Path) -> None:
    made = lab(tmp_path, "a")
    worker = made.worker()
    work = FlowWork(made.run().control, worker.control, worker.performer, made.limits)
    with pytest.raises(UsageRefused, match="mode async keeps no run"):
        work.work(Mode.ASYNC, FREE)
    assert not (tmp_path / "sync").exists()


# --- the run is gone -------------------------------------------------------------------


def test_a_folder_that_vanishes_ends_every_agent(tmp_path: Path) -> None:
    holds = [Hold() for _ in range(3)]
    made = lab(tmp_path, FAN, dict(zip("abc", holds, strict=True)))
    with let_go(*holds):
        working = made.works()
        for hold in holds:
            hold.wait()
        shutil.rmtree(tmp_path / "sync")
        holds[0].go.set()
        error = working.error()
        # Whichever it meets first: a head or a file that is not there.
        assert isinstance(error, (StaleClaim, StorageFailed))
        assert [hold.was_stopped for hold in holds[1:]] == [True, True]
    assert not (tmp_path / "sync" / "state.json").exists()


def test_a_reset_while_agents_work(tmp_path: Path) -> None:
    hold = Hold("late")
    made = lab(tmp_path, "a --> b", {"a": [hold, "new"]})
    with let_go(hold):
        working = made.works()
        hold.wait()
        old = made.head.run_id
        with pytest.raises(TransitionRefused):
            made.run().control.reset()
        made.run().control.stop()
        made.run().control.take_over()
        made.run().control.reset()
        until(lambda: hold.was_stopped, 5.0)
    working.end()
    assert made.head.run_id != old
    made.work()
    assert made.accepted()[-2:] == ["a", "b"]
    assert {fact["step"] for fact in made.facts("succeeded")} == {"a", "b"}
