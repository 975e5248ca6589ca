"""What a person sees of a graph run: the marking, and what its journal tells of each node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct, field

from sequencer.model.head import Head
from sequencer.model.net.graph import Graph, Node
from sequencer.model.net.marking import Active, FlowStatus, Marking
from sequencer.model.outcome import Usage, error_words, used
from sequencer.model.transitions import Event


class NodeState(StrEnum):
    """Where a node stands."""

    PENDING = "pending"
    """Nothing has reached it yet."""
    WAITING = "waiting"
    """Reached, and it waits for others that can still come, or for a free place."""
    READY = "ready"
    """May start; nobody runs it yet."""
    RUNNING = "running"
    RETRYING = "retrying"
    """An attempt failed; the next one waits for its time."""
    ASKED = "asked"
    """A person has to answer."""
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class NodeView(Struct, frozen=True):
    """One node."""

    node: Node
    state: NodeState = NodeState.PENDING
    attempt: int = 0
    """Of the execution that runs or ran last, from 1; 0: none yet."""
    runs: int = 0
    """How often it was done; more than once in a loop."""
    seconds: float = 0.0
    """Of all attempts that have ended."""
    cost_usd: float = 0.0
    """What is known of it."""
    unpriced: int = 0
    """Attempts whose cost nobody told."""
    estimated_usd: float = 0.0
    """Of ``cost_usd``: from tokens and prices."""
    tokens: int = 0
    """Input and output together, of all attempts that have ended."""
    since: str | None = None
    """ISO 8601 UTC: when it began to run or to wait for a person; None in other states."""
    due: str | None = None
    """ISO 8601 UTC: for ``retrying`` the next attempt, for ``asked`` the end of the wait."""
    last_line: str = ""
    """The last line of its output, or its error; from outside: make it safe before showing it."""


class FlowView(Struct, frozen=True):
    """The whole run."""

    title: str
    graph: Graph
    nodes: tuple[NodeView, ...]
    """In the graph's order."""
    status: str
    """not-started, running, waiting, completed, completed_after_error, failed, timed_out,
    max_iterations or cancelled."""
    iterations: int = 0
    """Back edges followed so far."""
    followed: frozenset[int] = frozenset()
    """Places in ``graph.edges`` of those that were followed at least once."""
    began: str | None = None
    """ISO 8601 UTC: when the first node began; None: none has."""
    latest: str | None = None
    """ISO 8601 UTC: the newest thing that happened."""
    before: Usage = Usage()
    """What making the run has used, which no node has."""


LINE_CHARS = 200
_BEGINNINGS = {Event.INITIALISED, Event.RESET}
_ENDS = {Event.SUCCEEDED, Event.ANSWERED, Event.PASSED, Event.STAMPED, Event.SKIPPED}


class _Told(Struct):
    """What the journal tells of one node."""

    attempt: int = 0
    usage: Usage = field(default=Usage())
    since: str | None = None
    line: str = ""
    end: NodeState = NodeState.PENDING
    """How its latest execution ended; pending: none has."""


class Story(Struct):
    """What the facts of a run tell, node by node; they come oldest first."""

    nodes: dict[str, _Told] = field(default_factory=dict)
    followed: set[tuple[str, str]] = field(default_factory=set)
    """Ends of the edges that were followed."""
    began: str | None = None
    """When the first node began."""
    latest: str | None = None
    before: Usage = field(default=Usage())
    """What making the run has used."""

    def keep(self, fact: Mapping[str, Any]) -> None:
        """Take one fact of the journal."""
        event, name = fact["event"], fact["step"]
        outcome = fact.get("outcome") or {}
        self.latest = fact["at"]
        if event in _BEGINNINGS:
            self.nodes.clear()
            self.followed.clear()
            self.began = None
            self.before = used(outcome.get("usage") or {})
            return
        for name_again in outcome.get("again", ()) if event == Event.REWOUND else ():
            self._told(name_again).end = NodeState.PENDING
        for cancelled in outcome.get("cancelled", ()):
            self._told(cancelled).end = NodeState.CANCELLED
        if not name:
            return
        told = self._told(name)
        if event in {Event.CLAIMED, Event.ASKED, Event.STARTED}:
            told.attempt = fact.get("attempt") or 1
            told.since, told.end = fact["at"], NodeState.PENDING
            self.began = self.began or fact["at"]
            self.followed |= {(source, name) for source in outcome.get("from", ())}
        elif event in _ENDS:
            told.end, told.line = NodeState.DONE, _line(outcome)
        elif event == Event.FAILED:
            told.end, told.line = NodeState.FAILED, error_words(outcome, LINE_CHARS)
        elif event == Event.INVALID:
            told.line = " ".join(str(outcome.get("reason", "")).split())[:LINE_CHARS]
        told.usage = told.usage.plus(used(outcome.get("usage") or {}))

    def ask(self, name: str, question: str) -> None:
        """Let the node's last line be what is asked there now."""
        lines = [line for line in question.splitlines() if line.strip()]
        self._told(name).line = lines[-1].strip()[:LINE_CHARS] if lines else ""

    def _told(self, name: str) -> _Told:
        return self.nodes.setdefault(name, _Told())


def _line(outcome: Mapping[str, Any]) -> str:
    """Return the last line of what was said."""
    lines = [line for line in str(outcome.get("output", "")).splitlines() if line.strip()]
    if lines:
        return lines[-1].strip()[:LINE_CHARS]
    size = outcome.get("output_bytes")
    return f"{size} bytes in {outcome.get('output_file')}" if size else ""


def view_of(
    title: str,
    graph: Graph,
    head: Head | None,
    marking: Marking | None,
    history: Iterable[Mapping[str, Any]],
    *,
    questions: Mapping[str, str] | None = None,
) -> FlowView:
    """Return the run of *head* with its *marking*; without a head one that was never begun.

    With a marking its graph counts, to which nodes may have been added since *graph*.
    *questions* are what people are asked, by node, with their templates filled in.
    """
    story = Story()
    for fact in history:
        story.keep(fact)
    if head is None or marking is None:
        return FlowView(title, graph, tuple(NodeView(node) for node in graph.nodes), "not-started")
    graph = marking.graph
    held = {claim.step for claim in head.claims}
    for name, text in (questions or {}).items():
        story.ask(name, text)
    nodes = tuple(_node(node, marking, story, held) for node in graph.nodes)
    return FlowView(
        title,
        graph,
        nodes,
        _status(marking, nodes),
        marking.iterations,
        _followed(graph, story),
        story.began,
        story.latest,
        story.before,
    )


def _status(marking: Marking, nodes: Iterable[NodeView]) -> str:
    if marking.status is not FlowStatus.RUNNING:
        return str(marking.status)
    works = {NodeState.RUNNING, NodeState.READY, NodeState.RETRYING}
    states = {node.state for node in nodes}
    if NodeState.ASKED in states and not states & works:
        return "waiting"
    return "running"


def _node(node: Node, marking: Marking, story: Story, held: set[str]) -> NodeView:
    told = story.nodes.get(node.id, _Told())
    active = marking.active.get(node.id)
    state = _state(node, active, marking, told, is_held=node.id in held)
    is_on = state in {NodeState.RUNNING, NodeState.ASKED}
    return NodeView(
        node=node,
        state=state,
        attempt=told.attempt,
        runs=marking.done.get(node.id, 0),
        seconds=round(told.usage.seconds, 6),
        cost_usd=round(told.usage.cost_usd, 6),
        unpriced=told.usage.unpriced,
        estimated_usd=round(told.usage.estimated_usd, 6),
        tokens=told.usage.input_tokens + told.usage.output_tokens,
        since=told.since if is_on else None,
        due=active.due if active is not None else None,
        last_line=told.line,
    )


def _state(
    node: Node, active: Active | None, marking: Marking, told: _Told, *, is_held: bool
) -> NodeState:
    if active is not None:
        return _active_state(active, is_held=is_held)
    if node.id in marking.waiting:
        return NodeState.READY if marking.may_start(node.id) else NodeState.WAITING
    if told.end is not NodeState.PENDING:
        return told.end
    return NodeState.DONE if marking.done.get(node.id) else NodeState.PENDING


def _active_state(active: Active, *, is_held: bool) -> NodeState:
    if active.error is not None:
        return NodeState.FAILED
    if active.since is not None:
        return NodeState.ASKED
    if is_held:
        return NodeState.RUNNING
    return NodeState.RETRYING if active.due is not None else NodeState.READY


def _followed(graph: Graph, story: Story) -> frozenset[int]:
    """Return the edges that were followed; of two between the same nodes both."""
    return frozenset(
        place
        for place, edge in enumerate(graph.edges)
        if (edge.source, edge.target) in story.followed
    )
