"""What the run is told of an attempt that could not be made."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import cast

import pytest

pytest.importorskip("temporalio", reason="the extra 'fleet' is not installed")

from temporalio.exceptions import ApplicationError

from sequencer.engine.events import NoticeGiven, RunEvent
from sequencer.engine.worker import Worker
from sequencer.errors import RemoteUnreachable, SequencerError, UnknownName
from sequencer.executors.cancellation import Cancellation
from sequencer.model.head import Head
from sequencer.model.sequence.sequence_kind import SequenceKind
from sequencer.model.step import Step
from sequencer.model.workflow import Workflow
from sequencer.plugins.temporal.client import FleetStore
from sequencer.plugins.temporal.events import Notify
from sequencer.plugins.temporal.wire import Ticket
from sequencer.plugins.temporal.work_orders import MAX_TIMER_S
from sequencer.plugins.temporal.worker import Activities, Workers
from sequencer.plugins.temporal.workflow import LOST, MAX_CALLS, REFUSED, limit_activity
from sequencer.store.protocol import View

WORKFLOW = Workflow("w", (Step(name="a"),))


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RemoteUnreachable("the Temporal server does not answer", where="there:1"), LOST),
        (UnknownName("prompt", "main.md", known=()), REFUSED),
    ],
)
def test_an_unreachable_server_is_not_the_fault_of_the_step(
    error: SequencerError, told: str
) -> None:
    def worker_of(_: str) -> tuple[Worker, Head]:
        raise error

    heard: list[tuple[str | None, RunEvent]] = []
    attempts = Activities(worker_of, lambda *one: heard.append(one))
    with pytest.raises(ApplicationError) as raised:
        attempts._make_attempt("seq/p/nightly", Ticket(1), Cancellation())
    assert raised.value.type == told
    assert raised.value.non_retryable
    said = [("nightly", NoticeGiven(f"not run here: {error}"))] if told == REFUSED else []
    assert heard == said


class Maker:
    """Stands for who makes attempts at a run."""

    def __init__(self, left: list[str], run: str) -> None:
        head = SequenceKind(WORKFLOW).create_head("run-1", at=datetime.now(UTC))
        self.store = SimpleNamespace(view=lambda: View(head))
        self.performer = SimpleNamespace(workflow=WORKFLOW)
        self.close = lambda: left.append(run)


@pytest.mark.parametrize("limit_s", [1e10, 1e308])
def test_a_limit_that_the_server_cannot_keep_is_its_longest(limit_s: float) -> None:
    assert limit_activity(60.0).total_seconds() == MAX_CALLS * 60.0 + 60.0
    assert limit_activity(limit_s).total_seconds() == MAX_TIMER_S


def test_a_long_running_worker_keeps_only_the_makers_it_used_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sequencer.plugins.temporal.worker.MAX_IDLE_RUNS", 3)
    made, left = list[str](), list[str]()

    def made_worker(run: str, notify: Notify) -> Maker:
        assert callable(notify)
        made.append(run)
        return Maker(left, run)

    workers = Workers(cast("FleetStore", SimpleNamespace(make_worker=made_worker)))
    workers.add("own", cast("Worker", Maker(left, "own")))
    workers.in_use = lambda: {"busy"}
    for run in ("own", "busy", "a", "b", "a", "c", "d"):
        workers.find_worker(run)
    assert (made, left) == (["busy", "a", "b", "c", "d"], ["b"])
    workers.find_worker("b")
    assert left == ["b", "a"]
    workers.leave()
    assert sorted(left) == ["a", "b", "b", "busy", "c", "d", "own"]
