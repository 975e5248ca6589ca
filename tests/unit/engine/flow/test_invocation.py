"""One process at work on a graph run: why it goes on, sleeps and ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sequencer.engine.invocation_budget import Mode
from sequencer.errors import StepFailed, StorageFailed
from sequencer.model.commands import RetryNow
from sequencer.model.head import Status
from sequencer.model.limits import RunLimits
from sequencer.model.outcome import Usage
from sequencer.model.step import Retry
from tests.unit.engine.flow.labs import Hold, Said, failed, lab, let_go, said

FAN = "s --> a & b & c; a & b & c --> j"
RETRY = Retry(max_attempts=3, initial_delay_s=0.25)
"""Longer than it takes a busy machine to look whether it is over."""
LONG_RETRY = Retry(max_attempts=2, initial_delay_s=3_600.0)


# --- ends ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says", "settings", "status", "message"),
    [
        ("a", {"a": failed()}, {}, "failed", "the run ended as failed: node 'a' failed: "),
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
    with pytest.raises(StepFailed, match=f"the run ended as {status}"):
        made.work()
    assert len(made.actor.asked) == asked


# --- limits of an invocation -----------------------------------------------------------


def test_nothing_starts_after_max_cost_is_spent(tmp_path: Path) -> None:
    dear = said(usage=Usage(cost_usd=2.0))
    made = lab(tmp_path, "a --> b --> c", {"a": dear, "b": dear})
    assert made.work(limits={"max_cost_usd": 3.0}).reason == "4.0000 USD is spent (--max-cost)"
    # The second was told what was left of it.
    assert [request.max_cost_usd for request in made.actor.asked] == [3.0, 1.0]


def test_the_step_limit_of_a_run_covers_parallel_nodes(tmp_path: Path) -> None:
    made = lab(tmp_path, FAN, limits=RunLimits(steps=3))
    assert "limit of 3 steps" in made.work().reason
    assert len(made.accepted()) == len(made.actor.asked) == 3


def test_a_dead_process_does_not_use_up_the_steps_of_the_run(tmp_path: Path) -> None:
    made = lab(tmp_path, "a --> b", limits=RunLimits(steps=1))
    made.died()
    assert made.work(limits={"max_wait_s": 1.0}).usage.steps == 1


# --- several at once -------------------------------------------------------------------


def test_parallel_processes_run_no_node_twice(tmp_path: Path) -> None:
    names = [f"n{number}" for number in range(12)]
    made = lab(tmp_path, f"s --> {' & '.join(names)}; {' & '.join(names)} --> j", max_parallel=5)
    workers = [made.works(places=3) for _ in range(3)]
    for working in workers:
        working.summary()
    assert sorted(made.accepted()) == sorted(["s", *names, "j"])
    assert len(made.actor.asked) == 14


# --- tries -----------------------------------------------------------------------------


def test_other_nodes_continue_while_one_waits_for_its_next_try(tmp_path: Path) -> None:
    made = lab(tmp_path, "s --> a & b; b --> c", {"a": failed()}, retry={"a": LONG_RETRY})
    assert made.work(limits={"max_steps": 3}).usage.steps == 3
    assert made.accepted() == ["s", "b", "c"]
    reason = made.work(Mode.TICK).reason
    assert reason.startswith("nothing due: the next try is at ")
    assert made.head.status is Status.WAITING_NEXT
    made.run().do(RetryNow())
    with pytest.raises(StepFailed):
        made.work()
    assert made.trace()[-2:] == ["retry a attempt 2", "fail a attempt 2: boom"]


def test_an_interrupt_in_one_thread_ends_the_process(tmp_path: Path) -> None:
    hold = Hold()
    made = lab(tmp_path, "s --> a & b", {"a": hold, "b": KeyboardInterrupt()})
    with let_go(hold), pytest.raises(KeyboardInterrupt):
        made.work()
    assert hold.was_stopped
    assert made.head.claims == ()
    assert [fact["step"] for fact in made.facts("released")] == ["b", "a"]


def test_an_output_that_cannot_be_saved_ends_the_work_after_one_agent(tmp_path: Path) -> None:
    made = lab(tmp_path, "a --> b", {"a": "much work"})
    made.begun()
    (tmp_path / "sync" / "results").write_text("no folder")
    with pytest.raises(StorageFailed, match="the output can't be saved"):
        made.work()
    assert made.actor.names == ["a"]
    assert made.head.claims == ()
    (tmp_path / "sync" / "results").unlink()
    assert made.work().usage.steps == 2
