"""The execution rules of graphs: what follows from an event at a node.

Pure except for the marking that it changes: no clock, no files. The caller decides when a node
starts and how long it takes. A real run and a simulation on a virtual clock call the same
methods, so they take the same path. Each method appends its changes to ``operations`` and its
facts to ``facts``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from msgspec import Struct

from sequencer.model.graph.choices import (
    TIMEOUT,
    NoMatchingBranch,
    choose,
    find_edges_to,
    find_required_labels,
    group_edges,
    is_choice,
    shorten,
)
from sequencer.model.graph.graph import Node, NodeKind, TaskExpansion
from sequencer.model.graph.marking import FlowStatus, Marking, Operation, Reference
from sequencer.model.outcome import Decision, Move
from sequencer.model.transitions import Event

_START_EVENTS = {NodeKind.AGENT: Event.CLAIMED, NodeKind.HUMAN: Event.ASKED}
_DONE = {NodeKind.AGENT: Event.SUCCEEDED, NodeKind.HUMAN: Event.ANSWERED}
_AGENT, _CLAIMED, _SUCCEEDED = NodeKind.AGENT, Event.CLAIMED, Event.SUCCEEDED
_RUNNING = FlowStatus.RUNNING
"""Most nodes are agents, and hashing or looking up a member of an enum is slow."""


_cut = partial(shorten, limit=600)
"""Cuts an error for the head, but leaves room for the start of an answer and the labels."""


class FlowFact(Struct, frozen=True):
    """One event at a node."""

    event: Event
    node: str
    details: Mapping[str, Any]


RETRYABLE = ("error", "timeout")
"""Kinds of failures that another attempt could fix."""


class MarkingEditor:
    """Applies events to one marking."""

    def __init__(self, marking: Marking) -> None:
        """Edit *marking*."""
        self.marking = marking
        self.graph = marking.graph
        """The graph with added tasks."""
        self.facts: list[FlowFact] = []
        self.operations: list[Operation] = []

    def do(self, *operation: Any) -> None:
        """Apply one operation and record it without trailing None values."""
        record = list(operation)
        while record[-1] is None:
            del record[-1]
        self.marking.apply(record)
        self.operations.append(record)
        if record[0] == "grow":
            self.graph = self.marking.graph

    def report(self, event: Event, node: str, **details: Any) -> None:
        """Record a fact."""
        self.facts.append(FlowFact(event, node, details))

    # --- the start -----------------------------------------------------------------

    def begin(self) -> None:
        """Put a token on each entry."""
        for name in self.graph.entries:
            self.do("token", name, None)

    def start(self, name: str, token: int | None = None) -> Node:
        """Start *name* with all its tokens, and return the node.

        With *token*, it is also claimed.
        """
        self.do("start", name, token)
        node = self.graph.by_id[name]
        event = _CLAIMED if node.kind is _AGENT else _START_EVENTS.get(node.kind, Event.STARTED)
        details = {"from": list(self.marking.active[name].sources)}
        self.facts.append(FlowFact(event, name, details))
        return node

    # --- how an execution ends -----------------------------------------------------

    def succeed(
        self,
        name: str,
        output: str,
        reference: Reference | None = None,
        event: Event | None = None,
        decision: Decision | None = None,
    ) -> None:
        """Accept *output* of *name*, stored at *reference*, and follow the edges that it selects.

        *event* replaces the usual event; a hook's *decision* selects the edges or ends the run.
        """
        node = self.graph.by_id[name]
        conflict = self._conflicting_key(node)
        if conflict is not None:
            message = f"output.key {node.output_key!r}: {conflict!r} in the state is not a map"
            self.fail(name, "OutputKey", message)
            return
        has_choice = is_choice(self.graph, name)
        choice = {"choice": shorten(output)} if has_choice else {}
        kind = event or (_SUCCEEDED if node.kind is _AGENT else _DONE.get(node.kind, Event.PASSED))
        if decision is not None and decision.move is Move.COMPLETE:
            self.report(kind, name, **choice, **self._cancelled_details(name, ends=True))
            self.do("done", name, reference, node.output_key)
            self.do("end", str(FlowStatus.COMPLETED))
            return
        self.facts.append(FlowFact(kind, name, choice))
        indexes = self.graph.outgoing[name]
        try:
            if decision is not None and decision.target is not None:
                indexes = find_edges_to(self.graph, name, decision.target)
            elif has_choice:
                indexes = choose(self.graph, name, output)
        except NoMatchingBranch as error:
            self.do("done", name, reference, node.output_key)
            self._fail_without_branch(name, str(error))
            return
        if self.graph.back_edges.isdisjoint(indexes):
            targets = [self.graph.edges[index].target for index in indexes]
            if self.graph.has_tasks:
                # An edit of the list may have put this task before a done one, and a task that does
                # not need all its predecessors may have started without this one.
                marking = self.marking
                targets = [target for target in targets if not marking.has_started(target)]
            self.do("step", name, targets, reference, node.output_key)
            self.end_if_done()
            return
        self.do("done", name, reference, node.output_key)
        self._follow(name, indexes)

    def _fail_without_branch(self, name: str, message: str) -> None:
        labels_text = ", ".join(map(repr, find_required_labels(self.graph, name)))
        hint = f"it has to be one of {labels_text}" if labels_text else ""
        self.fail(name, "NoMatchingBranch", message, hint)

    def _conflicting_key(self, node: Node) -> str | None:
        """Return the part of the output key whose value is not a map; None: there is none."""
        if node.output_key is None:
            return None
        parts = node.output_key.split(".")
        value: Any = self.graph.state
        for length in range(1, len(parts)):
            prefix = ".".join(parts[:length])
            if prefix in self.marking.keys:
                return prefix
            value = value.get(parts[length - 1], {}) if isinstance(value, dict) else value
            if value is None:
                value = {}
            if not isinstance(value, dict):
                return prefix
        return None

    def _follow(self, name: str, indexes: tuple[int, ...]) -> None:
        edges = [self.graph.edges[index] for index in indexes]
        back_edges = [
            edge
            for edge, index in zip(edges, indexes, strict=True)
            if index in self.graph.back_edges
        ]
        may_continue = all(self._count_loop(name, edge.target) for edge in back_edges)
        # Even if the run ends here: a `retry` continues after the accepted node.
        self.do("follow", name, [edge.target for edge in edges])
        if may_continue:
            self.end_if_done()
        else:
            self.end(FlowStatus.MAX_ITERATIONS)

    def _count_loop(self, name: str, target: str) -> bool:
        """Count one loop; return whether it is within the limit."""
        limit, number = self.graph.max_iterations, self.marking.iterations + 1
        self.do("loop", number)
        if number <= limit:
            self.report(Event.LOOPED, name, to=target, number=number)
            return True
        other_names = self._list_others(name)
        self.report(Event.EXHAUSTED, name, to=target, limit=limit, cancelled=other_names)
        return False

    def fail_attempt(self, name: str, message: str, due: str | None, kind: str = "error") -> None:
        """Record that an attempt failed; without *due*, the node fails permanently."""
        number = self.marking.active[name].failures + 1
        ends = due is None and self._is_fatal(name)
        details = {"try": number, "error": message, **({} if kind == "error" else {"type": kind})}
        self.report(Event.FAILED, name, **details, **self._cancelled_details(name, ends=ends))
        if due is not None:
            self.do("fail", name, due)
            return
        self._give_up(name, kind, message, number)

    def fail(self, name: str, kind: str, message: str, hint: str = "") -> None:
        """Record a failure that no other attempt could fix; *hint* says what would be correct."""
        cancelled = self._cancelled_details(name, ends=self._is_fatal(name))
        details = {"hint": hint} if hint else {}
        self.report(Event.FAILED, name, error=message, type=kind, **details, **cancelled)
        text = f"{message}; {hint}" if hint else message
        self._give_up(name, kind, text, self.marking.active[name].failures + 1)

    def _is_fatal(self, name: str) -> bool:
        """Return whether the run ends if *name* fails permanently."""
        if self.graph.has_tasks:
            return False
        target = self.graph.on_error
        return target is None or self.marking.error is not None or name == target

    def _cancelled_details(self, name: str, *, ends: bool) -> dict[str, list[str]]:
        """Return the details of a fact about *name*: what is canceled if the run *ends*."""
        other_names = self._list_others(name) if ends else []
        return {"cancelled": other_names} if other_names else {}

    def _give_up(self, name: str, kind: str, message: str, attempts: int) -> None:
        error = {"node": name, "type": kind, "message": _cut(message), "attempts": attempts}
        if self.graph.has_tasks:
            # The other tasks can continue.
            self.do("block", name, error)
            return
        target = self.graph.on_error
        if target is None or self._is_fatal(name):
            self.do("failure", error)
            self.end(FlowStatus.FAILED)
            return
        other_names = self._list_others(name)
        self.do("clear")
        self.do("error", error)
        self.report(Event.DIVERTED, name, to=target, cancelled=other_names)
        self.do("token", target, None)

    def expire(self, name: str) -> None:
        """Expire the question of *name*: go to ``on_timeout``, else treat it as answer "timeout".

        Without labels, the run follows all its edges; without edges, the node fails. An earlier
        answer of the person is no longer the output.
        """
        node = self.graph.by_id[name]
        if node.on_timeout is None:
            if TIMEOUT in group_edges(self.graph, name) or is_choice(self.graph, name):
                self.succeed(name, TIMEOUT)
            elif not self.graph.outgoing[name]:
                self.fail(name, "NoMatchingBranch", f"no matching branch for {TIMEOUT!r}")
            else:
                self.report(Event.EXPIRED, name)
                self.do("done", name)
                self._follow(name, self.graph.outgoing[name])
            return
        self.report(Event.EXPIRED, name, to=node.on_timeout)
        is_back = name in self.graph.back_jumps
        may_continue = not is_back or self._count_loop(name, node.on_timeout)
        self.do("step", name, [node.on_timeout])
        if not may_continue:
            self.end(FlowStatus.MAX_ITERATIONS)

    # --- how the run ends ----------------------------------------------------------

    def time_out(self) -> None:
        """End the run because its agents took longer than its limit."""
        self.report(Event.TIMED_OUT, "", cancelled=self.list_running())
        self.end(FlowStatus.TIMED_OUT)

    def cancel(self) -> None:
        """End the run because a person decided so."""
        self.report(Event.CANCELLED, "", cancelled=self.list_running())
        self.end(FlowStatus.CANCELLED)

    def end(self, status: FlowStatus) -> None:
        """End the run with *status*; the tokens are kept for a `retry`."""
        self.do("halt", str(status))

    def end_if_done(self) -> None:
        """End the run if no token is left, or only tokens that failed tasks block."""
        marking = self.marking
        if marking.graph.has_tasks:
            self._end_if_only_failed()
        if marking.status is _RUNNING and marking.is_over:
            after_error = marking.error is not None
            good_end = FlowStatus.COMPLETED
            self.do("end", str(FlowStatus.COMPLETED_AFTER_ERROR if after_error else good_end))

    def _end_if_only_failed(self) -> None:
        marking = self.marking
        if marking.status is not _RUNNING or not marking.has_only_failed:
            return
        if marking.find_next_startable() is None:
            failures = marking.find_needed_failures()
            if not failures:
                self.do("end", str(FlowStatus.COMPLETED))
                return
            self.do("failure", next(iter(failures.values())))
            self.end(FlowStatus.FAILED)

    # --- tasks ---------------------------------------------------------------------

    def report_expansion(self, expansion: TaskExpansion, author: str) -> None:
        """Record that the tasks of *expansion* were added because of the answer of *author*."""
        self.report(Event.GROWN, author, tasks=[node.id for node in expansion.nodes])

    def refuse(self, name: str, reason: str, fix: TaskExpansion | None) -> None:
        """Record a "no" of task *name*, which judges: *fix* runs before it judges again.

        Without *fix*, it judges again immediately.
        """
        number = self.marking.ledger.refusals.get(name, 0) + 1
        self.report(Event.INVALID, name, reason=shorten(reason), number=number)
        self.do("team", "refused", name, shorten(reason, 2000))
        if fix is None:
            self.do("drop", name)
            return
        self.do("grow", fix.as_json())
        self.report_expansion(fix, name)
        self.do("follow", name, [node.id for node in fix.nodes])

    def _list_others(self, name: str) -> list[str]:
        return [other_name for other_name in self.list_running() if other_name != name]

    def list_running(self) -> list[str]:
        """Return the active nodes, in order."""
        return sorted(self.marking.active, key=self.graph.order.__getitem__)
