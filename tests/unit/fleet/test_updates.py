"""Whoever has a key of the namespace can ask a run for anything: every door has a guard."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

pytest.importorskip("temporalio", reason="the extra 'fleet' is not installed")

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from sequencer.errors import Interrupted
from sequencer.executors.cancellation import Cancellation, StopReason
from sequencer.plugins.temporal import work_order_end
from sequencer.plugins.temporal.wire import (
    FACTS,
    ensure_change,
    ensure_work_order,
    is_successor_queue,
)
from sequencer.plugins.temporal.work_order_end import wait_for_end
from sequencer.plugins.temporal.workflow import REFUSED, RunWorkflow

DEFINITION = workflow._Definition.must_from_class(RunWorkflow)
OWN = "seq/shop@1/gpu"
JUNK: list[Any] = [None, "", "x", 7, True, -1, 1e999, [], {}, {"id": "x"}, {"facts": None}]


def test_every_update_has_a_validator() -> None:
    assert DEFINITION.updates
    unguarded = [name for name, one in DEFINITION.updates.items() if one.validator is None]
    assert unguarded == []


def test_a_run_accepts_only_updates() -> None:
    """A signal can't be refused; a query could show what is nobody's business."""
    assert not DEFINITION.signals
    assert not DEFINITION.queries
    assert None not in DEFINITION.updates


@pytest.mark.parametrize("name", sorted(map(str, DEFINITION.updates)))
def test_junk_is_refused_by_every_guard(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Info:
        task_queue = OWN

    monkeypatch.setattr(workflow, "info", Info)
    guard = DEFINITION.updates[name].validator
    assert guard is not None
    held = object.__new__(RunWorkflow)
    held._store = None  # type: ignore[assignment]
    for junk in JUNK:
        with pytest.raises(ApplicationError) as refused:
            guard(held, junk)
        assert refused.value.type == REFUSED, junk


@pytest.mark.parametrize(
    "queue",
    ["x", "", None, 7, "seq/other@1/gpu", "seq/shop@1", "seq/shop@1/gpu2", "seq/shop@0/gpu",
     "seq/shop@/gpu", "seq/shop@-1/gpu", "seq/shop@1/gpu\n",
     "seq/shop@\N{ARABIC-INDIC DIGIT ONE}/gpu",
     "seq/shop@9999999999/gpu", "seq/shop", "SEQ/shop@1/gpu", "seq/shop@1@2/gpu"],
)  # fmt: skip
def test_a_run_continues_only_on_a_queue_of_its_project(queue: object) -> None:
    assert not is_successor_queue(queue, OWN)
    assert is_successor_queue(OWN, OWN)
    assert is_successor_queue("seq/shop@2/gpu", OWN)


GOOD = {"id": "0" * 32, "by": "1@host", "ttl_s": 60.0, "places": 2}


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": "x"}, {"id": None}, {"by": 7}, {"kept": {}}, {"ttl_s": 0}, {"ttl_s": True},
        {"ttl_s": float("inf")}, {"ttl_s": float("nan")}, {"ttl_s": "60"}, {"places": 0},
        {"places": True}, {"queue": "x"}, {"queue": "seq/other@1"}, {"queue": 7},
    ],
    ids=str,
)  # fmt: skip
def test_a_work_order_that_would_break_its_run_is_refused(wrong: dict[str, Any]) -> None:
    ensure_work_order(GOOD, OWN)
    ensure_work_order({**GOOD, "queue": f"{OWN}/1"}, OWN)
    with pytest.raises(ValueError, match=r"work order|ttl_s|places|queue"):
        ensure_work_order({**GOOD, **wrong}, OWN)


FACT = {"event": "noted", "step": "a", "step_index": 0, "token": 1, "attempt": 1}


@pytest.mark.parametrize(
    "wrong",
    [
        {FACTS: None}, {FACTS: ["x"]}, {FACTS: [{}]}, {FACTS: [{**FACT, "told": 1, "outcome": 3}]},
        {"outputs": {"a": 1}}, {"outputs": []}, {"documents": {"a": b"x"}}, {"documents": 7},
    ],
    ids=str,
)  # fmt: skip
def test_a_change_that_would_break_its_run_is_refused(wrong: dict[str, Any]) -> None:
    good: dict[str, Any] = {FACTS: [FACT], "outputs": {"0-1": "x"}, "documents": {"a": None}}
    ensure_change(good)
    with pytest.raises((ValueError, KeyError, TypeError, AttributeError)):
        ensure_change({**good, **wrong})


@pytest.mark.parametrize("works_for", [0, 3])
def test_a_worker_that_does_not_serve_the_run_is_not_waited_for(
    works_for: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work_order_end, "LEAVE_S", 0.1)
    monkeypatch.setattr(work_order_end, "LEAVE_LOOK_S", 0.02)
    future: Future[Any] = Future()
    asked, looks = list[str](), list[int]()

    def running() -> list[str]:
        looks.append(1)
        return ["a run"] if len(looks) <= works_for else []

    stop = Cancellation()
    stop.set(StopReason.INTERRUPTED)
    with pytest.raises(Interrupted, match="state is unknown: the server releases"):
        wait_for_end(future, stop, lambda: asked.append("leave"), running)
    stop.close()
    assert asked == ["leave"]
    assert len(looks) > works_for
    assert future.cancelled()


def test_an_answer_ends_the_wait() -> None:
    future: Future[Any] = Future()
    stop = Cancellation()
    stop.set(StopReason.INTERRUPTED)
    wait_for_end(future, stop, lambda: future.set_result({"reason": "x"}), tuple)
    stop.close()
    assert future.result() == {"reason": "x"}
