"""The view of a graph run for people: its marking, and each node's story from the journal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from sequencer.history.facts import EndState
from sequencer.history.story import StepStory, Story, last_line
from sequencer.model.graph.graph import Graph, Node
from sequencer.model.graph.marking import Active, FlowStatus, Marking
from sequencer.model.head import Head
from sequencer.model.outcome import Usage


class NodeState(StrEnum):
    """The state of a node."""

    PENDING = "pending"
    """The run has not reached it yet."""
    WAITING = "waiting"
    """Reached; it waits for other paths that can still arrive, or for a free slot."""
    READY = "ready"
    """May start; no process runs it yet."""
    RUNNING = "running"
    RETRYING = "retrying"
    """An attempt failed; the next one has a later start time."""
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
    """Number of the latest attempt in the latest execution, from 1; 0: none yet."""
    runs: int = 0
    """How often it was done; more than once in a loop."""
    seconds: float = 0.0
    """The sum of all attempts that have ended."""
    cost_usd: float = 0.0
    """The known part of the cost."""
    unpriced: int = 0
    """Number of attempts whose cost was not reported."""
    estimated_usd: float = 0.0
    """The part of ``cost_usd`` that was estimated from tokens and prices."""
    tokens: int = 0
    """Input and output together, of all attempts that have ended."""
    since: str | None = None
    """ISO 8601 UTC: when it started to run or to wait for a person; None in other states."""
    due: str | None = None
    """ISO 8601 UTC: for ``retrying`` the next attempt, for ``asked`` the end of the wait."""
    last_line: str = ""
    """The last line of its output, or its error. Untrusted: make it safe before you show it."""
    is_interrupted: bool = False
    """Whether the process that ran it has ended; set only by a caller that checked the holders."""


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
    """Indexes in ``graph.edges`` of the edges that were followed at least once."""
    began: str | None = None
    """ISO 8601 UTC: when the first node started; None: none has."""
    latest: str | None = None
    """ISO 8601 UTC: when the newest fact was recorded."""
    before: Usage = Usage()
    """The usage of making the run, which belongs to no node."""


_ENDED = {EndState.FAILED: NodeState.FAILED, EndState.CANCELLED: NodeState.CANCELLED}
"""The state of a node by its ending; after any other ending it is done."""


def build_view(
    title: str,
    graph: Graph,
    head: Head | None,
    marking: Marking | None,
    story: Story,
    *,
    questions: Mapping[str, str] | None = None,
) -> FlowView:
    """Return the view of the run of *head* and *marking*; without a head, of one not yet started.

    A marking has its own graph, which may have more nodes than *graph*. *questions* are the
    questions to people, by node, with their templates filled in.
    """
    if head is None or marking is None:
        return FlowView(title, graph, tuple(NodeView(node) for node in graph.nodes), "not-started")
    graph = marking.graph
    held_names = {claim.step for claim in head.claims}
    texts, usage = questions or {}, story.totals.sum_by_step()
    no_story = StepStory()
    nodes = []
    for node in graph.nodes:
        step, activity = story.nodes.get(node.id, no_story), marking.active.get(node.id)
        state = _derive_state(node, activity, marking, step.ending, is_held=node.id in held_names)
        question = texts.get(node.id)
        view = NodeView(
            node,
            state,
            step.attempt,
            marking.done.get(node.id, 0),
            since=step.since if state in (NodeState.RUNNING, NodeState.ASKED) else None,
            due=None if activity is None else activity.due,
            last_line=step.line if question is None else last_line(question),
        )
        nodes.append(_add_usage(view, usage[node.id]) if node.id in usage else view)
    return FlowView(
        title,
        graph,
        tuple(nodes),
        _derive_status(marking, nodes),
        marking.iterations,
        _find_followed_edges(graph, story),
        story.began,
        story.latest,
        story.before,
    )


def _derive_status(marking: Marking, nodes: Iterable[NodeView]) -> str:
    if marking.status is not FlowStatus.RUNNING:
        return str(marking.status)
    working_states = {NodeState.RUNNING, NodeState.READY, NodeState.RETRYING}
    states = {node.state for node in nodes}
    if NodeState.ASKED in states and not states & working_states:
        return "waiting"
    return "running"


def _add_usage(view: NodeView, usage: Usage) -> NodeView:
    return replace(
        view,
        seconds=round(usage.seconds, 6),
        cost_usd=round(usage.cost_usd, 6),
        unpriced=usage.unpriced,
        estimated_usd=round(usage.estimated_usd, 6),
        tokens=usage.input_tokens + usage.output_tokens,
    )


def _derive_state(
    node: Node, activity: Active | None, marking: Marking, ending: EndState | None, *, is_held: bool
) -> NodeState:
    if activity is not None:
        return _derive_active_state(activity, is_held=is_held)
    if node.id in marking.waiting:
        return NodeState.READY if marking.may_start(node.id) else NodeState.WAITING
    if ending is not None:
        return _ENDED.get(ending, NodeState.DONE)
    return NodeState.DONE if marking.done.get(node.id) else NodeState.PENDING


def _derive_active_state(activity: Active, *, is_held: bool) -> NodeState:
    if activity.error is not None:
        return NodeState.FAILED
    if activity.since is not None:
        return NodeState.ASKED
    if is_held:
        return NodeState.RUNNING
    return NodeState.RETRYING if activity.due is not None else NodeState.READY


def _find_followed_edges(graph: Graph, story: Story) -> frozenset[int]:
    """Return the indexes of the edges that were followed; two between the same nodes count both."""
    return frozenset(
        index
        for index, edge in enumerate(graph.edges)
        if (edge.source, edge.target) in story.followed
    )
