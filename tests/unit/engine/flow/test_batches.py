"""Attempts that have ended by the same moment: one transition, and the same run as one by one."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sequencer.engine.attempt import Attempt
from sequencer.engine.graph_worker import GraphWorker
from sequencer.model.commands import Reject, Reset, Stop, TakeOver
from sequencer.store.protocol import Store
from tests.unit.engine.flow.labs import LIMIT_S, Lab, Said, failed, lab, limited, slots_of
from tests.unit.engine.flow.team_costs import paid

FAN = "s --> a & b & c & d & e; a & b & c & d & e --> j"
FLOWS: list[tuple[str, dict[str, Said | list[Said]], dict[str, Any]]] = [
    (FAN, {}, {}),
    ("s --> a & b; a --> x; b --> j; x --> j", {}, {}),
    ("s --> q & b; q -->|yes| x --> j; q -->|no| j; b --> j", {"q": "no"}, {}),
    ("s --> a & b; a -->|again| s; a -->|on| j; b --> j", {"a": ["again", "on"]}, {}),
    (FAN, {"b": failed()}, {}),
    (f"{FAN}; h --> z", {"b": failed()}, {"on_error": "h"}),
    (f"{FAN}; h --> z", {"e": failed()}, {"on_error": "h"}),
    (FAN, {"c": limited("2099-01-01T00:00:00Z")}, {}),
]


@contextmanager
def at_work(made: Lab, places: int, store: Store | None = None) -> Iterator[GraphWorker]:
    """Yield a process that has claimed what it can at first; it records what a test says."""
    worker = made.worker(store, places)
    head = made.begun()
    worker.update(None, slots_of(worker), head.run_id)
    try:
        yield worker
    finally:
        taken(worker, len(worker.attempts.running))
        worker.close()


def taken(worker: GraphWorker, count: int) -> list[Attempt]:
    """Return *count* attempts that have ended, in the order of their claims."""
    found: list[Attempt] = []
    deadline = time.monotonic() + LIMIT_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"only {len(found)} of {count} have ended"
        ended = worker.attempts.pop_ended()
        if ended is None:
            time.sleep(0.001)
        else:
            found.append(ended)
    return sorted(found, key=lambda one: one.claim.token)


def go_to_the_end(made: Lab, places: int, *, at_once: bool) -> int:
    """Work with *places* until nothing runs; return the most claims that a head has had."""
    most = 0
    with at_work(made, places) as worker:
        while worker.attempts.running:
            ended = taken(worker, len(worker.attempts.running))
            # Who waits for a record has a place still.
            worker.attempts.running |= {one.claim.token: one for one in ended}
            batches: Sequence[list[Attempt]] = [ended] if at_once else [[one] for one in ended]
            for batch in batches:
                for one in batch:
                    del worker.attempts.running[one.claim.token]
                head = worker.record(batch, slots_of(worker))
                most = max(most, 0 if head is None else len(head.claims))
    return most


@pytest.mark.parametrize("places", [1, 2, 3, 8])
@pytest.mark.parametrize(("text", "says", "settings"), FLOWS)
def test_recording_in_batches_gives_the_same_run_as_one_by_one(
    tmp_path: Path,
    text: str,
    says: dict[str, Said | list[Said]],
    settings: dict[str, Any],
    places: int,
) -> None:
    together = lab(tmp_path / "together", text, says, **settings)
    single = lab(tmp_path / "single", text, says, **settings)
    assert go_to_the_end(together, places, at_once=True) <= places
    assert go_to_the_end(single, places, at_once=False) <= places
    assert together.status == single.status
    assert together.trace() == single.trace()
    assert together.accepted() == single.accepted()
    assert together.head.step_index == single.head.step_index
    assert together.head.usage.steps == single.head.usage.steps


def test_nothing_is_written_if_no_claim_remains(tmp_path: Path) -> None:
    made = lab(tmp_path, FAN)
    with at_work(made, 3) as worker:
        worker.record(taken(worker, 1), slots_of(worker))
        ended = taken(worker, 3)
        worker.record(ended, slots_of(worker))
        before = made.head
        assert worker.record(ended, slots_of(worker)) is None
        assert made.head == before


def test_a_paid_attempt_that_others_cancel_is_counted_once(tmp_path: Path) -> None:
    """Whether it was cancelled by an end in its own transition, or by a person before."""
    made = lab(tmp_path, "s --> a & b; a & b --> j", {"a": failed(), "b": paid(0.5)})
    with at_work(made, 2) as worker:
        worker.record(taken(worker, 1), slots_of(worker))
        ended = taken(worker, 2)
        worker.record(ended, slots_of(worker))
        assert made.head.usage.cost_usd == 0.5
        assert worker.record(ended, slots_of(worker)) is None
    assert made.head.usage.cost_usd == 0.5
    other = lab(tmp_path / "other", "s --> a", {"s": paid(0.25)})
    with at_work(other, 1) as worker:
        ended = taken(worker, 1)
        other.run().do(Reject("enough"), by="ann")
        worker.record(ended, slots_of(worker))
    assert other.head.usage.cost_usd == 0.25


@pytest.mark.parametrize("in_order", [True, False])
def test_an_attempt_from_before_a_reset_does_not_affect_new_ones(
    tmp_path: Path, in_order: bool
) -> None:
    made = lab(tmp_path, "s --> a")
    with at_work(made, 1) as worker:
        old = taken(worker, 1)
        made.run().do(Stop())
        made.run().do(TakeOver())
        made.run().do(Reset())
        head = made.begun()
        worker.update(None, slots_of(worker), head.run_id)
        new = taken(worker, 1)
        assert old[0].head.run_id != new[0].head.run_id
        recorded = worker.record([*old, *new] if in_order else [*new, *old], slots_of(worker))
        assert recorded is not None
        assert [claim.step for claim in recorded.claims] == ["a"]
    assert made.accepted()[-1:] == ["s"]
