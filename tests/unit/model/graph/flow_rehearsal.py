"""A flow through the transitions of real runs, with a clock that is told the time.

Each event is one transition. Its marking is written down and read back before the next one,
so whatever a crash could lose or change would show as another way through the graph.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import assume

from sequencer import Fact, Head, NodeKind, Outcome, OutcomeStatus, RunLimits
from sequencer.history.trace import trace_line
from sequencer.model.graph import record as flow_record
from sequencer.model.graph.marking import (
    FlowStatus,
    Marking,
    Reference,
    find_incoming_output,
    read_text,
)
from sequencer.model.graph.record import Chain, StoredMarking
from sequencer.model.graph.transition import (
    OpenTransition,
    build_transition,
    busy_ms,
    resting_status,
)
from sequencer.model.head import Flow
from sequencer.model.kind import Capacity
from tests.contract.store_cases import STRANGER, new_head
from tests.unit.model.graph.random_flows import Case

START = datetime(2026, 1, 1, tzinfo=UTC)


def date(milliseconds: int) -> str:
    moment = START + timedelta(milliseconds=milliseconds)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _wait(_: OpenTransition) -> None:
    """Let nothing happen but what is due."""


def ensure_same(one: Marking, other: Marking) -> None:
    """Fail if the two differ in what they hold or in what may start."""
    assert flow_record.snapshot(one) == flow_record.snapshot(other)
    assert one.status == other.status
    startable = [{name for name in each.waiting if each.may_start(name)} for each in (one, other)]
    assert startable[0] == startable[1]
    for agents in (True, False):
        assert one.find_next_startable(agents=agents) == other.find_next_startable(agents=agents)
    live = [{name for name in each.graph.by_id if each.is_live(name)} for each in (one, other)]
    assert live[0] == live[1]


def with_document(
    documents: dict[str, bytes], written: StoredMarking, chain: Chain
) -> dict[str, bytes]:
    """Return *documents* after what was *written*: a whole one replaces the older ones."""
    if written.document is None:
        return documents
    name, data = written.document
    if written.is_whole:
        documents = {k: v for k, v in documents.items() if k in {name, *chain.names}}
    return {**documents, name: data}


def split_records(monkeypatch: pytest.MonkeyPatch, inline: int, since: int, shortest: int) -> None:
    """Let markings be stored in parts of these sizes, in bytes and operations."""
    monkeypatch.setattr(flow_record, "INLINE_BYTES", inline)
    monkeypatch.setattr(flow_record, "SINCE_BYTES", since)
    monkeypatch.setattr(flow_record, "SHORTEST_CHAIN", shortest)


class Rehearsal:
    """One run of a case."""

    def __init__(self, case: Case) -> None:
        self.case, self.graph = case, case.graph
        self.head: Head = new_head(flow=Flow(marking={}))
        self.documents: dict[str, bytes] = {}
        self.outputs: dict[str, str] = {}
        self.facts: list[tuple[int, Fact]] = []
        self.attempts: dict[str, int] = {}
        self.written: list[StoredMarking] = []
        self.now = 0
        self._ends: list[tuple[int, int, int, str]] = []
        """When, the order of the node, the token (0: the next try is due), the node."""
        self.marking, self.chain = self.read()

    # --- a transition --------------------------------------------------------------

    def read(self) -> tuple[Marking, Chain]:
        assert self.head.flow is not None
        return flow_record.read(self.graph, self.head.flow, self.documents.__getitem__)

    def update(self, act: Callable[[OpenTransition], None]) -> None:
        """Make one transition, write it down, read it back and start what was claimed."""
        marking, chain = self.read()
        moment = START + timedelta(milliseconds=self.now)
        step = OpenTransition(self.head, marking, moment, self._hand_on)
        act(step)
        step.settle(Capacity(STRANGER, 60.0, 0.0, slots=100, limits=RunLimits(attempts=1000)))
        made = build_transition(step)
        written = flow_record.write(
            marking, resting_status(step.marking), self.head.flow, chain, step.editor.operations
        )
        self.documents = with_document(self.documents, written, chain)
        # What is read is what any other process would read.
        text = made.head.replace(flow=written.flow).model_dump_json()
        self.head = Head.model_validate_json(text)
        self.facts += [(self.now, fact) for fact in made.facts]
        self.marking, self.chain = self.read()
        ensure_same(self.marking, marking)
        read, kept_chain = self.chain, written.chain
        assert (read.names, read.operations) == (kept_chain.names, kept_chain.operations)
        self.written.append(written)
        self._start(made.facts)

    def _hand_on(self, marking: Marking, name: str) -> tuple[str, Reference | None]:
        reference = find_incoming_output(marking, name)
        return read_text(reference, self.outputs.__getitem__), reference

    # --- the clock -----------------------------------------------------------------

    def run(self) -> Rehearsal:
        def begin(step: OpenTransition) -> None:
            step.editor.begin()

        self.update(begin)
        while self.marking.status is FlowStatus.RUNNING:
            due, _, token, name = heapq.heappop(self._ends)
            if not self._is_live((due, 0, token, name)):
                continue
            # What does no work takes no time at all here, so who ended first would matter.
            assume(not any(self._is_live(end) for end in self._ends if end[0] == due))
            if self._is_up(due):
                break
            self.now = due
            self.update(self._event(name, token))
        return self

    def _is_live(self, end: tuple[int, int, int, str]) -> bool:
        active = self.marking.active.get(end[3])
        return active is not None and active.token == end[2]

    def _is_up(self, due: int) -> bool:
        limit, since = self.graph.timeout_ms, self.marking.busy_since
        if limit is None or since is None:
            return False
        spent = busy_ms(self.head, self.marking, START + timedelta(milliseconds=due))
        if spent <= limit:
            return False
        self.now = due - (spent - limit)
        self.update(OpenTransition.time_out)
        return True

    def _start(self, facts: tuple[Fact, ...]) -> None:
        """Let what has begun end when the script says so."""
        order = self.graph.order
        for fact in facts:
            if fact.event not in ("claimed", "asked"):
                continue
            # Counted as well where it was cancelled in the same moment, as the script counts.
            self.attempts[fact.step] = number = self.attempts.get(fact.step, 0) + 1
            active = self.marking.active.get(fact.step)
            if active and active.token == fact.token:
                length, limit = self._length(fact.step, number)
                due = self.now + (length if limit is None else min(length, limit))
                heapq.heappush(self._ends, (due, order[fact.step], fact.token, fact.step))

    def _length(self, name: str, number: int) -> tuple[int, int | None]:
        _, lengths = self.case.script[name]
        node, step = self.graph.by_id[name], self.case.workflow.steps_by_name.get(name)
        limit = node.timeout_ms
        if step is not None and step.timeout_s is not None:
            limit = round(step.timeout_s * 1000)
        return (lengths[min(number, len(lengths)) - 1] if lengths else 10), limit

    def _event(self, name: str, token: int) -> Callable[[OpenTransition], None]:
        """Return what happens when the time of *name* has come."""
        if token == 0:
            return _wait
        out, _ = self.case.script[name]
        number = self.attempts[name]
        length, limit = self._length(name, number)
        is_late = limit is not None and length > limit
        said: Any = {"error": "timeout"} if is_late else out[min(number, len(out)) - 1]
        is_human = self.graph.by_id[name].kind is NodeKind.HUMAN
        if is_human and is_late:
            return lambda step: step.expire(name)
        if isinstance(said, dict):
            return lambda step: self._fail(step, name, token, said["error"])
        reference = f"{self.head.step_index}-{token}"
        self.outputs[reference] = said
        if is_human:
            return lambda step: step.answer(name, said, reference, {})
        outcome = Outcome(status=OutcomeStatus.OK, output=said)
        return lambda step: step.accept(token, outcome, reference, {})

    def _fail(self, step: OpenTransition, name: str, token: int, message: str) -> None:
        retry = self.case.workflow.steps_by_name[name].retry
        assert retry is not None
        failures = step.marking.active[name].failures + 1
        due = None
        if failures < retry.max_attempts:
            at = self.now + round(retry.delay_s(failures) * 1000)
            heapq.heappush(self._ends, (at, self.graph.order[name], 0, name))
            due = date(at)
        outcome = Outcome(status=OutcomeStatus.FAILED, error=message)
        step.fail(token, outcome, {}, due=due, kind="error")

    @property
    def trace(self) -> list[str]:
        """Return the lines of everything that happened."""
        told = [
            (at, trace_line(fact.event, fact.step, fact.outcome or {})) for at, fact in self.facts
        ]
        return [f"{at} {line}" for at, line in told if line is not None]
