"""A permit lets a run go on for so long, and a run that is decided over so is the same run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from sequencer.errors import Interrupted, StorageFailed
from sequencer.model.head import Work
from sequencer.model.outcome import Outcome, OutcomeStatus
from sequencer.model.sequence.sequence_kind import SequenceKind
from sequencer.model.step import Retry, Step
from sequencer.model.workflow import Workflow
from sequencer.plugins.temporal.memo import MemoGraphChanges, MemoStore
from sequencer.plugins.temporal.wire import (
    FACTS,
    AttemptReport,
    amend_report,
    pack_head,
    unpack_error,
    unpack_head,
)
from sequencer.plugins.temporal.work_orders import (
    GraphWorkOrder,
    SequenceWorkOrder,
    WorkOrder,
    read_work_order,
)
from sequencer.store.protocol import Store
from tests.flows import workflow

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
CYCLE = Workflow("w", (Step(name="a"), Step(name="b")))


class Lab:
    """A run whose attempts are made by the test."""

    def __init__(self, workflow: Workflow) -> None:
        """Begin it."""
        self.workflow, self.now = workflow, NOW
        self.written: list[dict[str, Any]] = []
        head = SequenceKind(workflow).create_head("run-1", at=datetime.now(UTC)).replace(revision=1)
        self.store = MemoStore({**pack_head(head), FACTS: []}, self.written.append)
        self.live: set[int] = set()

    def permit(
        self,
        mode: str = "combined",
        by: str = "1@here",
        untaken: Sequence[int] = (),
        **limits: Any,
    ) -> SequenceWorkOrder:
        """Issue a permit."""
        data = {
            "id": by,
            "by": by,
            "mode": mode,
            "ttl_s": 60.0,
            "places": 2,
            "workflow": self.workflow.model_dump(mode="json", exclude_defaults=True),
            "limits": {"max_steps": None, **limits},
            "untaken": untaken,
        }
        permit = read_work_order(json.loads(json.dumps(data)), self.store)
        assert isinstance(permit, SequenceWorkOrder)
        return permit

    def graph_permit(self, places: int) -> GraphWorkOrder:
        """Issue a permit for a graph, without limits."""
        data = {
            "id": "1",
            "by": "1@here",
            "mode": "combined",
            "ttl_s": 60.0,
            "places": places,
            "workflow": self.workflow.model_dump(mode="json", exclude_defaults=True),
        }
        permit = read_work_order(json.loads(json.dumps(data)), self.store)
        assert isinstance(permit, GraphWorkOrder)
        return permit

    def advance(self, permit: WorkOrder, *, may_claim: bool = True) -> list[int]:
        """Let it do what it can."""
        granted = permit.advance(tuple(self.live), self.now, may_claim=may_claim)
        self.live.update(granted)
        return granted

    def end(
        self, permit: SequenceWorkOrder, token: int, status: str = "ok", **more: Any
    ) -> list[int]:
        """Let the attempt with *token* end."""
        self.live.discard(token)
        index = self.store.head.step_index
        kinds = {"ok": "accept", "failed": "fail", "interrupted": "back"}
        ending = {"kind": kinds[status]} | ({"to": index + 1} if status == "ok" else {})
        record = {"agent": "x", **more.pop("record", {"status": status})}
        report = AttemptReport(record, ending=ending, **more)
        granted = permit.record(
            token, report, tuple(self.live), self.now, jitter=0.0, may_claim=True
        )
        self.live.update(granted)
        return granted

    @property
    def events(self) -> list[str]:
        """Return what has happened."""
        return [fact["event"] for one in self.written for fact in one[FACTS]]


def test_steps_follow_each_other_until_the_work_order_is_used_up() -> None:
    lab = Lab(CYCLE)
    permit = lab.permit(max_steps=2)
    assert lab.advance(permit) == [1]
    assert lab.advance(permit) == []
    assert lab.end(permit, 1) == [2]
    assert lab.end(permit, 2) == []
    assert permit.end is None
    lab.advance(permit)
    assert permit.end is not None
    assert permit.end["reason"] == "2 steps are done (--max-steps)"
    assert lab.store.head.claims == ()
    # The end of a step and the claim of the next one are one record, as in files.
    assert [len(one[FACTS]) for one in lab.written] == [1, 2, 1]
    assert all(unpack_head({**pack_head(lab.store.head), **one}) for one in lab.written)


def test_a_vanished_attempt_is_taken_over_and_its_late_report_is_ignored() -> None:
    lab = Lab(CYCLE)
    permit = lab.permit()
    lab.advance(permit)
    lab.live.clear()
    assert lab.advance(permit) == [2]
    assert lab.events == ["claimed", "taken-over", "claimed"]
    revision = lab.store.head.revision
    assert lab.end(permit, 1) == []
    assert lab.store.head.revision == revision
    assert lab.end(permit, 2) == [3]
    assert lab.store.head.step_index == 1


def test_nothing_is_claimed_where_the_history_is_to_end() -> None:
    lab = Lab(CYCLE)
    permit = lab.permit()
    assert lab.advance(permit, may_claim=False) == []
    assert (lab.store.head.claims, permit.end) == ((), None)


def test_a_failure_ends_the_work_order_with_the_message_of_a_file_run() -> None:
    lab = Lab(CYCLE)
    permit = lab.permit()
    lab.advance(permit)
    assert lab.end(permit, 1, "failed") == []
    assert permit.end is not None
    error = unpack_error(permit.end["error"])
    assert str(error).startswith("None: step 'a' (iteration 1, attempt 1) failed: no reason given")
    assert permit.end["failures"] == 1


def test_a_retry_waits_for_its_time_and_holds_no_claim() -> None:
    retry = Retry(max_attempts=2, initial_delay_s=30)
    lab = Lab(Workflow("w", (Step(name="a", retry=retry), Step(name="b"))))
    permit = lab.permit()
    lab.advance(permit)
    assert lab.end(permit, 1, "failed", retry=retry.model_dump()) == []
    assert lab.advance(permit) == []
    assert permit.end is None
    assert permit.until == NOW + timedelta(seconds=30)
    lab.now += timedelta(seconds=31)
    assert lab.advance(permit) == [2]


def test_a_second_work_order_ends_at_once_unless_it_may_wait() -> None:
    lab = Lab(CYCLE)
    first, second, third = (
        lab.permit(),
        lab.permit(by="2@here"),
        lab.permit(by="3@here", max_wait_s=5.0),
    )
    lab.advance(first)
    for permit in (second, third):
        assert lab.advance(permit) == []
    assert second.end is not None
    assert second.end["error"]["type"] == "ClaimHeld"
    assert (third.end, third.until) == (None, NOW + timedelta(seconds=5))
    lab.now += timedelta(seconds=6)
    lab.advance(third)
    assert third.end is not None


def test_a_wait_that_no_date_can_end_is_waited() -> None:
    lab = Lab(CYCLE)
    lab.advance(lab.permit())
    permit = lab.permit(by="2@here", max_wait_s=1e308)
    assert lab.advance(permit) == []
    assert permit.end is None


def test_an_interrupted_process_ends_only_its_own_work_order() -> None:
    lab = Lab(CYCLE)
    permit = lab.permit()
    lab.advance(permit)
    lab.end(permit, 1, "interrupted", left="2@there")
    assert permit.end is None
    assert lab.advance(permit) == [2]
    assert lab.end(permit, 2, "interrupted", left="1@here") == []
    assert permit.end is not None
    assert permit.end["error"]["type"] == "Interrupted"


@pytest.mark.parametrize("is_suspected", [True, False])
def test_a_suspected_work_order_stays_suspected_in_the_next_execution(is_suspected: bool) -> None:
    lab = Lab(CYCLE)
    order = lab.permit(max_steps=2)
    order.is_suspected = is_suspected
    again = read_work_order(json.loads(json.dumps(order.to_data())), lab.store)
    assert again.is_suspected is is_suspected


def test_a_work_order_continues_elsewhere_with_its_counts() -> None:
    lab = Lab(CYCLE)
    permit = lab.permit(max_steps=2)
    lab.advance(permit)
    lab.end(permit, 1)
    lab.live.clear()
    again = read_work_order(json.loads(json.dumps(permit.to_data())), lab.store)
    assert isinstance(again, SequenceWorkOrder)
    token = lab.advance(again)[0]
    lab.end(again, token)
    lab.advance(again)
    assert again.end is not None
    assert again.end["reason"] == "2 steps are done (--max-steps)"


def test_a_process_takes_what_the_previous_one_left() -> None:
    lab = Lab(CYCLE)
    before = lab.permit(by="1@here", max_steps=2)
    assert lab.advance(before) == [1]
    before.finish("", Interrupted("interrupted"))
    held = lab.permit(by="2@here", max_steps=1)
    lab.advance(held)
    assert held.end is not None
    assert held.end["error"]["type"] == "ClaimHeld"
    permit = lab.permit(by="3@here", mode="tick", max_steps=1, untaken=[1])
    lab.advance(permit)
    assert (permit.end, permit.until) == (None, None)
    assert lab.end(before, 1) == []
    assert lab.advance(permit) == [2]


def test_something_one_machine_lacks_postpones_and_ends_no_work_order() -> None:
    lab = Lab(CYCLE)
    permit = lab.permit()
    lab.advance(permit)
    lab.live.clear()
    permit.postpone(1, "9@there: no such prompt", (), lab.now)
    head = lab.store.head
    assert (permit.end, head.claims, head.failures_in_row) == (None, (), 0)
    assert head.not_before_reason == "9@there: no such prompt"
    assert lab.advance(permit) == []
    lab.now += timedelta(seconds=11)
    assert lab.advance(permit) == [2]
    assert lab.events == ["claimed", "released", "claimed"]


def test_counts_are_handed_on_in_full_and_are_in_the_summary() -> None:
    retry = Retry(max_attempts=3, initial_delay_s=30)
    lab = Lab(Workflow("w", (Step(name="a", retry=retry), Step(name="b"))))
    permit = lab.permit(max_cycles=1)
    lab.advance(permit)
    lab.end(permit, 1, "failed", retry=retry.model_dump())
    lab.now += timedelta(seconds=31)
    lab.end(permit, lab.advance(permit)[0])
    lab.live.clear()
    kept = json.loads(json.dumps(permit.to_data()))
    again = read_work_order(kept, lab.store)
    assert isinstance(again, SequenceWorkOrder)
    assert again.to_data() == kept
    assert kept["kept"]["failures"] == 1
    lab.end(again, lab.advance(again)[0])
    lab.advance(again)
    assert again.end is not None
    assert (again.end["usage"]["steps"], again.end["failures"]) == (2, 1)
    # Cycles are counted from where the first execution began.
    assert again.end["reason"] == "1 cycle is done (--max-cycles)"


def test_a_flow_continues_elsewhere_with_its_counts() -> None:
    lab = Lab(workflow("a --> b --> c"))
    data = {
        "id": "1",
        "by": "1@here",
        "mode": "combined",
        "ttl_s": 60.0,
        "places": 2,
        "workflow": lab.workflow.model_dump(mode="json", exclude_defaults=True),
        "limits": {"max_steps": 2},
    }
    permit = read_work_order(json.loads(json.dumps(data)), lab.store)
    assert isinstance(permit, GraphWorkOrder)
    permit.budget.count_attempt()
    permit.budget.count("a", Outcome(status=OutcomeStatus.OK))
    permit.budget.count_attempt()
    permit.budget.count("b", Outcome(status=OutcomeStatus.FAILED, error="no luck"))
    again = read_work_order(json.loads(json.dumps(permit.to_data())), lab.store)
    assert isinstance(again, GraphWorkOrder)
    assert (permit.budget.slots(0), again.budget.slots(0)) == (1, 1)
    assert again.budget.to_data() == permit.budget.to_data()
    assert again.budget.summary.failures == 1


def test_a_work_order_that_no_process_waits_for_survives_the_workers() -> None:
    lab = Lab(CYCLE)
    permit = lab.permit(by="", max_steps=2)
    assert permit.is_detached
    lab.advance(permit)
    assert lab.end(permit, 1, "interrupted", left="9@there") == []
    assert permit.end is None
    assert lab.advance(permit) == [2]
    assert permit.entry("then", lab.now)["limits"]["max_steps"] == 2
    assert "end" not in permit.entry("then", lab.now)
    lab.end(permit, 2)
    lab.end(permit, 3)
    lab.advance(permit)
    told = permit.entry("then", lab.now)
    assert (told["since"], told["until"]) == ("then", "2026-01-02T03:04:05Z")
    assert told["end"] == "2 steps are done (--max-steps)"


def test_a_new_execution_gets_the_newest_outputs_that_fit() -> None:
    lab = Lab(workflow("a --> b{b}\n b -->|yes| c\n b -->|no| d"))
    many = {f"{number}-{number}": "é" * 100_000 for number in range(1, 9)}
    lab.store.outputs.update(many)
    kept = lab.store.newest_outputs()
    assert list(kept) == ["4-4", "5-5", "6-6", "7-7", "8-8"]
    nodes = MemoGraphChanges(cast("Store", lab.store), lab.workflow)
    lab.store.outputs = kept
    assert nodes.read_output("8-8") == many["8-8"]
    with pytest.raises(StorageFailed, match="not on the server"):
        # Empty, it would pick another branch than what was said.
        nodes.read_output("1-1")


def test_a_run_that_outgrows_a_server_stops_before_its_next_step() -> None:
    lab = Lab(CYCLE)
    permit = lab.permit()
    lab.store.change_documents({"state-1.json": '"' * 500_000})
    assert lab.advance(permit) == [1]
    lab.store.change_documents({"state-2.json": "é" * 10_000})
    lab.end(permit, 1)
    lab.advance(permit)
    assert permit.end is not None
    assert "a Temporal server keeps at most" in permit.end["error"]["message"]
    # What had been done is recorded, and what is removed has no size any more.
    assert lab.events[:2] == ["claimed", "succeeded"]
    lab.store.change_documents({"state-1.json": None})
    assert lab.advance(lab.permit()) != []


def test_work_started_on_older_code_is_merged_before_it_is_accepted() -> None:
    lab = Lab(CYCLE)
    permit = lab.permit()
    lab.advance(permit)
    work = {"branch": "main", "commit": "a" * 40, "ref": "refs/heads/x", "base": None}
    assert permit.make_merge_ticket(1, {}) is None
    assert permit.make_merge_ticket(1, {"work": work}) is None
    other = Work(branch="main", commit="b" * 40)
    lab.store.head = lab.store.head.replace(work=other)
    ticket = permit.make_merge_ticket(1, {"work": work})
    assert ticket is not None
    assert (ticket.token, ticket.merge, ticket.has_code) == (1, work, True)
    assert permit.make_merge_ticket(2, {"work": work}) is None
    merged = {**work, "commit": "c" * 40, "base": other.commit}
    report = amend_report({"record": {"status": "ok", "work": work}}, {"work": merged})
    assert permit.make_merge_ticket(1, report["record"]) is None
    lab.end(permit, 1, record=report["record"])
    assert lab.store.head.work is not None
    assert lab.store.head.work.model_dump() == {k: merged[k] for k in ("branch", "commit", "ref")}
    failed = amend_report(report, {"status": "failed", "error": "conflict", "work": None})
    assert failed["record"] == {"status": "failed", "error": "conflict"}


def test_a_question_expiring_alongside_a_node_costs_no_attempt() -> None:
    """What the expiry grants is being made: the second change must not take it over."""
    node = {"timeout_ms": 1000}
    lab = Lab(workflow("s((S)) --> q{{Q}} & a; q --> b", nodes={"q": node}))
    permit = lab.graph_permit(places=3)
    first = lab.advance(permit)
    lab.now += timedelta(seconds=2)
    second = lab.advance(permit)
    assert [claim.step for claim in lab.store.head.claims] == ["a", "b"]
    assert [claim.attempt for claim in lab.store.head.claims] == [1, 1]
    assert (len(first), len(second)) == (1, 1)
    assert "taken-over" not in lab.events
    assert lab.advance(permit) == []


def test_an_expiry_grants_no_more_than_the_process_has_places() -> None:
    node = {"timeout_ms": 1000}
    lab = Lab(workflow("s((S)) --> q{{Q}} & a; q --> b & c & d", nodes={"q": node}))
    permit = lab.graph_permit(places=2)
    lab.advance(permit)
    lab.now += timedelta(seconds=2)
    lab.advance(permit)
    assert [claim.step for claim in lab.store.head.claims] == ["a", "b"]
