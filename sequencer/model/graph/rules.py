"""The execution rules of graphs: what follows from what happens at a node.

Pure but for the marking that it is given: no clock, no files. Who calls decides when a node
starts and how long it takes; a run in real time and a simulation on a virtual clock go
through the same methods, so they take the same way. Each method appends to ``operations``
what it changed, and to ``facts`` what is worth telling.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from sequencer.model.graph.choices import (
    TIMEOUT,
    NoMatchingBranch,
    choose,
    groups,
    is_choice,
    labels_of,
    shortened,
    ways_to,
)
from sequencer.model.graph.graph import Node, NodeKind, TaskExpansion
from sequencer.model.graph.marking import FlowStatus, Marking, Operation, Reference
from sequencer.model.outcome import Decision, Move
from sequencer.model.transitions import Event

_BEGUN = {NodeKind.AGENT: Event.CLAIMED, NodeKind.HUMAN: Event.ASKED}
_DONE = {NodeKind.AGENT: Event.SUCCEEDED, NodeKind.HUMAN: Event.ANSWERED}
_AGENT, _CLAIMED, _SUCCEEDED = NodeKind.AGENT, Event.CLAIMED, Event.SUCCEEDED
_RUNNING = FlowStatus.RUNNING
"""Most nodes are agents, and to hash a member of an enum, or to look it up, takes a while."""


_cut = partial(shortened, limit=600)
"""Of what a node has failed with, in the head: room for an answer's start and the labels."""


class FlowFact(NamedTuple):
    """One thing that happened at a node."""

    event: Event
    node: str
    details: Mapping[str, Any]


RETRYABLE = ("error", "timeout")
"""Kinds of failures that another attempt could mend."""


class MarkingEditor:
    """Takes one marking from event to event."""

    def __init__(self, marking: Marking) -> None:
        """Change *marking*."""
        self.marking = marking
        self.graph = marking.graph
        """With what was added to it."""
        self.facts: list[FlowFact] = []
        self.operations: list[Operation] = []

    def do(self, *operation: Any) -> None:
        """Apply one operation and keep it, without what is left out at its end."""
        kept = list(operation)
        while kept[-1] is None:
            del kept[-1]
        self.marking.apply(kept)
        self.operations.append(kept)
        if kept[0] == "grow":
            self.graph = self.marking.graph

    def tell(self, event: Event, node: str, **details: Any) -> None:
        """Keep a fact."""
        self.facts.append(FlowFact(event, node, details))

    # --- the beginning -------------------------------------------------------------

    def begin(self) -> None:
        """Put a token on each entry."""
        for name in self.graph.entries:
            self.do("token", name, None)

    def start(self, name: str, token: int | None = None) -> Node:
        """Let *name* begin with all its tokens, and return the node.

        With *token* it is claimed in the same moment.
        """
        self.do("start", name, token)
        node = self.graph.by_id[name]
        begun = _CLAIMED if node.kind is _AGENT else _BEGUN.get(node.kind, Event.STARTED)
        told = {"from": list(self.marking.active[name].sources)}
        self.facts.append(FlowFact(begun, name, told))
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
        """Accept *output* of *name*, kept at *reference*, and follow the edges that it picks.

        *event* is told instead of what is usual; a hook's *decision* picks instead, or ends all.
        """
        node = self.graph.by_id[name]
        blocked = self._in_the_way(node)
        if blocked is not None:
            message = f"output.key {node.output_key!r}: {blocked!r} in the state is no map"
            self.fail(name, "OutputKey", message)
            return
        has_choice = is_choice(self.graph, name)
        chosen = {"choice": shortened(output)} if has_choice else {}
        usual = _SUCCEEDED if node.kind is _AGENT else _DONE.get(node.kind, Event.PASSED)
        done = event or usual
        if decision is not None and decision.move is Move.COMPLETE:
            self.facts.append(FlowFact(done, name, chosen | self._cancelled_by(name, ends=True)))
            self.do("done", name, reference, node.output_key)
            self.do("end", str(FlowStatus.COMPLETED))
            return
        self.facts.append(FlowFact(done, name, chosen))
        places = self.graph.outgoing[name]
        try:
            if decision is not None and decision.target is not None:
                places = ways_to(self.graph, name, decision.target)
            elif has_choice:
                places = choose(self.graph, name, output)
        except NoMatchingBranch as error:
            self.do("done", name, reference, node.output_key)
            self._fail_without_way(name, str(error))
            return
        if self.graph.back_edges.isdisjoint(places):
            targets = [self.graph.edges[place].target for place in places]
            if self.graph.has_tasks:
                # A list that was changed under way may have put this task before a done one; and
                # one that needs not all of those before it may have begun without this one.
                marking = self.marking
                targets = [one for one in targets if not marking.has_begun(one)]
            self.do("step", name, targets, reference, node.output_key)
            self.look_for_the_end()
            return
        self.do("done", name, reference, node.output_key)
        self._follow(name, places)

    def _fail_without_way(self, name: str, message: str) -> None:
        listed = ", ".join(map(repr, labels_of(self.graph, name)))
        hint = f"it has to be one of {listed}" if listed else ""
        self.fail(name, "NoMatchingBranch", message, hint)

    def _in_the_way(self, node: Node) -> str | None:
        """Return the part of the node's output key that is taken by something else than a map."""
        if node.output_key is None:
            return None
        parts = node.output_key.split(".")
        here: Any = self.graph.state
        for length in range(1, len(parts)):
            prefix = ".".join(parts[:length])
            if prefix in self.marking.keys:
                return prefix
            here = here.get(parts[length - 1], {}) if isinstance(here, dict) else here
            if here is None:
                here = {}
            if not isinstance(here, dict):
                return prefix
        return None

    def _follow(self, name: str, places: tuple[int, ...]) -> None:
        edges = [self.graph.edges[place] for place in places]
        backs = [
            e for e, place in zip(edges, places, strict=True) if place in self.graph.back_edges
        ]
        may_go_on = all(self._may_loop(name, edge.target) for edge in backs)
        # Also where the run ends here: a `retry` goes on behind what was accepted.
        self.do("follow", name, [edge.target for edge in edges])
        if may_go_on:
            self.look_for_the_end()
        else:
            self.end(FlowStatus.MAX_ITERATIONS)

    def _may_loop(self, name: str, target: str) -> bool:
        """Count one way back; return whether it is not one too many."""
        limit, number = self.graph.max_iterations, self.marking.iterations + 1
        self.do("loop", number)
        if number <= limit:
            self.tell(Event.LOOPED, name, to=target, number=number)
            return True
        others = self._others(name)
        self.tell(Event.EXHAUSTED, name, to=target, limit=limit, cancelled=others)
        return False

    def fail_attempt(self, name: str, message: str, due: str | None, kind: str = "error") -> None:
        """Record that an attempt failed; with *due* another one follows, else it is for good."""
        number = self.marking.active[name].failures + 1
        ends = due is None and self._ends_with(name)
        told = {"try": number, "error": message, **({} if kind == "error" else {"type": kind})}
        self.tell(Event.FAILED, name, **told, **self._cancelled_by(name, ends=ends))
        if due is not None:
            self.do("fail", name, due)
            return
        self._give_up(name, kind, message, number)

    def fail(self, name: str, kind: str, message: str, hint: str = "") -> None:
        """Record a failure that no other attempt could mend; *hint* says what would have done."""
        cancelled = self._cancelled_by(name, ends=self._ends_with(name))
        instead = {"hint": hint} if hint else {}
        self.tell(Event.FAILED, name, error=message, type=kind, **instead, **cancelled)
        told = f"{message}; {hint}" if hint else message
        self._give_up(name, kind, told, self.marking.active[name].failures + 1)

    def _ends_with(self, name: str) -> bool:
        """Return whether the run ends where *name* fails for good."""
        if self.graph.has_tasks:
            return False
        target = self.graph.on_error
        return target is None or self.marking.error is not None or name == target

    def _cancelled_by(self, name: str, *, ends: bool) -> dict[str, list[str]]:
        """Return, for the fact that *name* has failed, what is cancelled if the run *ends*."""
        others = self._others(name) if ends else []
        return {"cancelled": others} if others else {}

    def _give_up(self, name: str, kind: str, message: str, attempts: int) -> None:
        error = {"node": name, "type": kind, "message": _cut(message), "attempts": attempts}
        if self.graph.has_tasks:
            # Others need not fail with it.
            self.do("block", name, error)
            return
        target = self.graph.on_error
        if target is None or self._ends_with(name):
            self.do("failure", error)
            self.end(FlowStatus.FAILED)
            return
        others = self._others(name)
        self.do("clear")
        self.do("error", error)
        self.tell(Event.DIVERTED, name, to=target, cancelled=others)
        self.do("token", target, None)

    def expire(self, name: str) -> None:
        """Let a person's time be over: to where the node says, else by the label, else as E6.

        What the person said the time before is no output any more.
        """
        node = self.graph.by_id[name]
        if node.on_timeout is None:
            if TIMEOUT in groups(self.graph, name) or is_choice(self.graph, name):
                self.succeed(name, TIMEOUT)
            elif not self.graph.outgoing[name]:
                self.fail(name, "NoMatchingBranch", f"no matching branch for {TIMEOUT!r}")
            else:
                self.tell(Event.EXPIRED, name)
                self.do("done", name)
                self._follow(name, self.graph.outgoing[name])
            return
        self.tell(Event.EXPIRED, name, to=node.on_timeout)
        is_back = name in self.graph.back_jumps
        may_go_on = not is_back or self._may_loop(name, node.on_timeout)
        self.do("step", name, [node.on_timeout])
        if not may_go_on:
            self.end(FlowStatus.MAX_ITERATIONS)

    # --- how the run ends ----------------------------------------------------------

    def time_is_up(self) -> None:
        """End the run because its agents took longer than it may take."""
        self.tell(Event.TIMED_OUT, "", cancelled=self.running())
        self.end(FlowStatus.TIMED_OUT)

    def cancel(self) -> None:
        """End the run because a person says so."""
        self.tell(Event.CANCELLED, "", cancelled=self.running())
        self.end(FlowStatus.CANCELLED)

    def end(self, status: FlowStatus) -> None:
        """Take every token away; what there was is kept for another try."""
        self.do("halt", str(status))

    def look_for_the_end(self) -> None:
        """End the run if no token is left, or only what a failed task holds back."""
        marking = self.marking
        if marking.graph.has_tasks:
            self._look_for_failures()
        if marking.status is _RUNNING and marking.is_over:
            after_error = marking.error is not None
            good = FlowStatus.COMPLETED
            self.do("end", str(FlowStatus.COMPLETED_AFTER_ERROR if after_error else good))

    def _look_for_failures(self) -> None:
        marking = self.marking
        if marking.status is not _RUNNING or not marking.has_only_failed:
            return
        if marking.next_startable() is None:
            needed = marking.needed()
            if not needed:
                self.do("end", str(FlowStatus.COMPLETED))
                return
            self.do("failure", next(iter(needed.values())))
            self.end(FlowStatus.FAILED)

    # --- teams ---------------------------------------------------------------------

    def tell_growth(self, growth: TaskExpansion, by: str) -> None:
        """Tell that the tasks of *growth* were added, because of what *by* has said."""
        self.tell(Event.GROWN, by, tasks=[node.id for node in growth.nodes])

    def refuse(self, name: str, reason: str, fix: TaskExpansion | None) -> None:
        """Take a "no" of task *name*, which judges: *fix* comes before it judges again.

        No fix: it is begun anew.
        """
        number = self.marking.ledger.refusals.get(name, 0) + 1
        self.tell(Event.INVALID, name, reason=shortened(reason), number=number)
        self.do("team", "refused", name, shortened(reason, 2000))
        if fix is None:
            self.do("drop", name)
            return
        self.do("grow", fix.as_json())
        self.tell_growth(fix, name)
        self.do("follow", name, [node.id for node in fix.nodes])

    def _others(self, name: str) -> list[str]:
        return [other for other in self.running() if other != name]

    def running(self) -> list[str]:
        """Return the nodes that have begun and have not ended, in order."""
        return sorted(self.marking.active, key=self.graph.order.__getitem__)
