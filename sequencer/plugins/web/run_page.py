"""The page of one run: what it asks, its graph, its steps and where its time went."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from msgspec.structs import replace

from sequencer.cli.views.readiness import Snapshot, in_project, take
from sequencer.cli.views.states import INTEREST, LOOKS, StateLook, node_look
from sequencer.cli.views.text import plural
from sequencer.errors import ConfigurationError, SequencerError, UsageRefused, in_one_line
from sequencer.history.story import StepTries
from sequencer.history.view import FlowView, NodeState, NodeView
from sequencer.model.graph.graph import Edge, Graph, Node, NodeKind
from sequencer.model.head import Head
from sequencer.model.sequence.order import describe
from sequencer.model.workflow import Workflow
from sequencer.plugins.drawing.gantt import Bar, Gantt, Look, gantt_of, gantt_summary
from sequencer.plugins.drawing.pictures import Link
from sequencer.plugins.web.drawings import (
    RingReview,
    around,
    gantt_page_svg,
    graph_svg,
    ring_svg,
)
from sequencer.plugins.web.pages import (
    Page,
    Query,
    needs_of,
    number,
    step_words,
    tried_steps,
)
from sequencer.plugins.web.site import RunRow, Site
from sequencer.project.flows import written_of
from sequencer.workflows.mermaid.chart import Chart

STEPS_A_PAGE = 50
MOST_EXECUTIONS = 300
"""Facts of a line's run that its timeline is drawn from: the newest, nobody reads more bars."""
MOST_NODES, MOST_DRAWN, MOST_NEAR = 60, 120, 60
"""Nodes of a large graph in the table, in a picture of a whole graph, and in one of a part."""
MOST_FOCUS = 12
"""Nodes that such a part is drawn around."""
MOST_RING = 12
"""Steps of a cycle that a ring has room for."""


def run(site: Site, query: Query, project: str, run: str) -> Page:
    """Return the page of one run."""
    row = site.project(project).row(run)
    context: dict[str, Any] = {
        "row": row,
        "look": row.look,
        "needs": [*needs_of(row)],
        "distrust": row.project.distrust(),
        "step_words": step_words(row),
    }
    folders, is_remote = (row.run.store.state_path.parent,), row.project.is_remote
    head = row.head
    if head is None:
        return Page("unread.html", row.name, context, folders, "runs", is_remote=is_remote)
    logs = row.project.project.logs(row.run.name, lambda _: None)
    snapshot = take(row.run, logs, row.project.story(row, is_whole=False).facts)
    snapshot = in_project(row.project.project, row.run, snapshot)
    view, asked = snapshot.graph_view, query.get("at", "")
    context |= {
        "head": head,
        "look": snapshot.state,
        "snapshot": snapshot,
        # What a card below asks has its own words and buttons.
        "ways": [] if context["needs"] and snapshot.lost is None else snapshot.in_the_way,
        "then": None if context["needs"] and snapshot.lost is None else snapshot.next_command,
        "is_idle": not snapshot.busy and snapshot.is_ready,
        "usage": head.usage,
        "limits": [*snapshot.limit_words(head)],
        "steps": _node_steps(row, view, asked) if view else _line_steps(row, head, snapshot, query),
        "is_net": view is not None,
        "can": _may(head) if row.changed is None else frozenset(),
        # Its last line says what the card of the change says better.
        "notices": snapshot.notices[: None if row.changed is None else -1],
        **_pictures(row, head, snapshot, query),
    }
    return Page("run.html", row.name, context, folders, "runs", is_remote=is_remote)


def _may(head: Head) -> frozenset[str]:
    """Return what can be done with a run at *head*."""
    if head.status == "complete":
        return frozenset()
    if head.exit or head.status == "paused" or head.pause_requested:
        return frozenset({"resume"} if head.exit else {"resume", "stop"})
    # What has failed for good is among the needs, with the same button.
    can_retry = head.failures_in_row and head.status != "failed"
    return frozenset({"pause", "stop", "retry"} if can_retry else {"pause", "stop"})


class StepRow(NamedTuple):
    """A line of the table of steps."""

    key: str
    look: StateLook
    name: str
    tried: StepTries
    id: str = ""
    agent: str = ""
    line: str = ""


def _line_steps(row: RunRow, head: Head, snapshot: Snapshot, query: Query) -> dict[str, Any]:
    before = number(query.get("before"))
    tried = [*tried_steps(row, is_whole=before > 0).values()]
    shown = [one for one in reversed(tried) if not before or one.step_index < before]
    rows = [_tried_row(head, snapshot, one) for one in shown[:STEPS_A_PAGE]]
    is_begun = head.status == "failed" or (bool(tried) and tried[-1].last.state == "running")
    if snapshot.next is not None and not before and not is_begun:
        name = snapshot.next["step"]
        rows.insert(0, StepRow("", LOOKS["next"], name, StepTries("", name, 0)))
    more = shown[STEPS_A_PAGE - 1].step_index if len(shown) > STEPS_A_PAGE else 0
    return {"rows": rows, "more": more, "total": tried[-1].step_index + 1 if tried else 0}


def _tried_row(head: Head, snapshot: Snapshot, one: StepTries) -> StepRow:
    last, state = one.last, one.last.state
    if state == "running" and not head.claim_with(last.token):
        state = "released"
    elif state == "running" and not snapshot.busy:
        state = "interrupted"
    if head.is_at_gate and head.gate and head.gate.token == last.token:
        state = "asked"
    line = next((line.strip()[:120] for line in last.said.splitlines() if line.strip()), "")
    place = str(one.step_index + 1)
    return StepRow(one.key, LOOKS[state], one.name, one, place, last.agent, line)


def _node_steps(row: RunRow, view: FlowView, asked: str) -> dict[str, Any]:
    tried = tried_steps(row)
    nodes = [one for one in view.nodes if one.node.works]
    shown = [one for one in nodes if _is_asked(one, asked)]
    if len(nodes) > MOST_DRAWN:
        # What a person looks for is what moves and what has failed.
        shown = sorted(shown, key=_interest)[:MOST_NODES]
    rows = [_node_row(one, tried.get(one.node.id)) for one in shown]
    return {"rows": rows, "more": 0, "total": len(nodes)}


def _is_asked(view: NodeView, asked: str) -> bool:
    wanted = asked.casefold()
    return wanted in view.node.id.casefold() or wanted in (view.node.label or "").casefold()


def _focus(view: FlowView, asked: str) -> list[str]:
    """Return the nodes that a part of a large graph is drawn around."""
    found = [one for one in view.nodes if asked and _is_asked(one, asked)]
    # Whoever names one node wants that one, and not all that have its name in theirs.
    found = [one for one in found if one.node.id == asked] or found
    if not found:
        moving = (one for one in view.nodes if one.state in _MOVING)
        found = sorted(moving, key=_interest)
    names = [one.node.id for one in found[:MOST_FOCUS]]
    return names or [*view.graph.entries[:MOST_FOCUS]]


_MOVING = INTEREST[: INTEREST.index(NodeState.WAITING)]


def _interest(view: NodeView) -> int:
    return INTEREST.index(view.state)


def _node_row(view: NodeView, tried: StepTries | None) -> StepRow:
    node = view.node
    agent = "you" if node.kind is NodeKind.HUMAN else "" if tried is None else tried.last.agent
    look, name = node_look(view), node.label or node.id
    tried = tried or StepTries(node.id, name, 0)
    return StepRow(node.id, look, name, tried, node.id, agent, view.last_line)


# --- pictures ----------------------------------------------------------------------


def _pictures(row: RunRow, head: Head, snapshot: Snapshot, query: Query) -> dict[str, Any]:
    """Return the pictures of the run of *row*, and of those that are too large, why."""
    found: dict[str, Any] = dict.fromkeys(("graph", "graph_note", "gantt", "gantt_note"), "")
    found |= {"nodes": 0, "near": MOST_NEAR, "asked": query.get("at", "")}
    workflow = snapshot.workflow
    if workflow is not None:
        is_part = len(workflow.nodes) > MOST_DRAWN and "whole" not in query
        asked = found["asked"] if is_part else None
        try:
            found["graph"] = _graph(row, head, snapshot, workflow, asked)
            found["nodes"] = len(workflow.nodes) if is_part else 0
        except (UsageRefused, ValueError) as error:
            found["graph_note"] = in_one_line(str(error))
    try:
        chart = _gantt(row, head)
        if chart.rows:
            found["gantt"] = gantt_page_svg(chart)
            path = " → ".join(chart.path)
            found["summary"] = gantt_summary(chart.figures, path, str.strip)
    except (SequencerError, ValueError) as error:
        found["gantt_note"] = in_one_line(str(error))
    return found


def _graph(
    row: RunRow, head: Head, snapshot: Snapshot, workflow: Workflow, asked: str | None
) -> str:
    """Return the graph; a part of it around what is *asked*, unless that is None."""
    view = snapshot.graph_view

    def link(key: str) -> str:
        return f"{row.url}/step/{key}"

    if view is not None and asked is not None:
        return graph_svg(around(view, _focus(view, asked), MOST_NEAR), None, link)
    if view is not None:
        return graph_svg(view, _chart(row, workflow), link)
    # Nobody knows how many steps there are: it goes around.
    is_endless = row.facts["steps"] is None
    states = _line_states(row, head, snapshot, workflow)
    if is_endless and len(states) <= MOST_RING:
        places = [(view.node.id, node_look(view), link(key)) for view, key in states]
        cycle = head.step_index // len(states)
        return ring_svg(places, f"cycle {cycle + 1}", _review(workflow, cycle, link))
    keys = {step.name: key for step, (_, key) in zip(workflow.steps, states, strict=True)}
    line = _line_view(workflow, [view for view, _ in states], is_endless=is_endless)
    return graph_svg(line, None, lambda name: link(keys[name]))


def _chart(row: RunRow, workflow: Workflow) -> Chart | None:
    """Return how the author draws the graph now; None: it is no chart, or can't be read.

    Nodes and edges are the run's own. Of a chart that has changed since, shapes, strokes and
    groups are still better than none: a decision stays a diamond.
    """
    try:
        written = written_of(row.project.project, row.run, workflow)
    except ConfigurationError:
        return None
    return None if written is None else written.chart


def _line_states(
    row: RunRow, head: Head, snapshot: Snapshot, workflow: Workflow
) -> list[tuple[NodeView, str]]:
    """Return each step of the present cycle with its key."""
    count, tried, found = len(workflow.steps), tried_steps(row), []
    is_endless = row.facts["steps"] is None
    first = head.step_index // count * count if is_endless else 0
    for index, step in enumerate(workflow.steps, first):
        name = describe(workflow, index)["step"] if is_endless else ""
        state = _line_state(head, index, was_tried=str(index) in tried)
        is_interrupted = state is NodeState.RUNNING and not snapshot.busy
        node = Node(id=name or step.name, kind=NodeKind.AGENT)
        found.append((NodeView(node, state, is_interrupted=is_interrupted), str(index)))
    return found


def _line_state(head: Head, index: int, *, was_tried: bool) -> NodeState:
    if head.is_at_gate and head.gate is not None and head.gate.step_index == index:
        return NodeState.ASKED
    if index != head.step_index:
        return NodeState.DONE if index < head.step_index else NodeState.PENDING
    if head.claims:
        return NodeState.RUNNING
    return NodeState.FAILED if head.status == "failed" and was_tried else NodeState.READY


def _review(workflow: Workflow, cycle: int, link: Link) -> RingReview | None:
    """Return the review that comes next at or after *cycle*; None: there is none."""
    review, every = workflow.review, workflow.review_every
    if review is None or not every:
        return None
    left = every - 1 - cycle % every
    when = f"in {plural(left, 'cycle')}" if left else "in this cycle"
    cadence = f"every {every} cycles" if every > 1 else "every cycle"
    url = link(str((cycle + left) * len(workflow.steps)))
    return RingReview(
        review.step.name, NodeState.PENDING if left else NodeState.READY, url, (when, cadence)
    )


def _line_view(workflow: Workflow, steps: Sequence[NodeView], *, is_endless: bool) -> FlowView:
    """Return a line of steps as a graph, to be drawn as one."""
    names = [step.name for step in workflow.steps]
    nodes = tuple(Node(id=name, kind=NodeKind.AGENT) for name in names)
    edges = [Edge(source=a, target=b) for a, b in pairwise(names)]
    if is_endless and len(names) > 1:
        edges.append(Edge(source=names[-1], target=names[0]))
    graph = Graph(nodes=nodes, edges=tuple(edges), entries=(names[0],))
    views = tuple(replace(view, node=node) for node, view in zip(nodes, steps, strict=True))
    reached = (view.state is not NodeState.PENDING for view in views[1:])
    followed = frozenset(place for place, is_reached in enumerate(reached) if is_reached)
    return FlowView(workflow.name, graph, views, "running", followed=followed)


def _gantt(row: RunRow, head: Head) -> Gantt:
    facts = row.project.story(row, is_whole=False).facts
    if head.begun_at is not None:
        return gantt_of(row.run, head, lambda _: None, facts)[0]
    chart = gantt_of(row.run, head, lambda _: None, facts[-MOST_EXECUTIONS:])[0]
    # One step at a time: all of a line is its critical path, so nothing of it stands out.
    for each in chart.rows:
        each.bars = [_plain_bar(bar) for bar in each.bars]
    return replace(chart, critical=())


def _plain_bar(bar: Bar) -> Bar:
    look = Look.DONE if bar.look is Look.CRITICAL else bar.look
    return replace(bar, look=look, is_critical=False)
