"""The page of one run: what it asks, its graph, its steps and where its time went."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from sequencer.assembly.flows import written_of
from sequencer.cli.views.gantt import Bar, Gantt, Look, gantt_of, gantt_summary
from sequencer.cli.views.standing import Snapshot, take
from sequencer.cli.views.text import plural
from sequencer.engine.view import FlowView, NodeState, NodeView
from sequencer.errors import ConfigurationError, SequencerError, UsageRefused
from sequencer.model.head import Head
from sequencer.model.line.order import describe
from sequencer.model.net.graph import Edge, Graph, Node, NodeKind
from sequencer.model.outcome import Usage
from sequencer.model.workflow import Workflow
from sequencer.web.drawings import (
    CLASSES,
    Link,
    RingReview,
    around,
    gantt_page_svg,
    graph_svg,
    ring_svg,
)
from sequencer.web.pages import (
    STEP_LOOKS,
    Page,
    Query,
    StateLook,
    look_of,
    needs_of,
    number,
    step_words,
    tried_steps,
)
from sequencer.web.records import Tried
from sequencer.web.site import RunRow, ShownProject, Site
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
    shown = site.project(project)
    row = shown.row(run)
    context: dict[str, Any] = {
        "row": row,
        "look": look_of(row),
        "needs": [*needs_of(row)],
        "distrust": shown.distrust(),
        "step_words": step_words(row),
    }
    folders = (row.run.store.state_path.parent,)
    is_remote = shown.is_remote
    if row.head is None:
        return Page("unread.html", row.name, context, folders, "runs", is_remote=is_remote)
    facts = shown.story(row, is_whole=False).facts
    logs = shown.project.logs(row.run.name, lambda _: None)
    snapshot = take(row.run, logs, facts)
    view, asked = snapshot.graph_view, query.get("at", "")
    context |= {
        "head": row.head,
        "snapshot": snapshot,
        "usage": row.head.usage,
        "limits": [*snapshot.limit_words(row.head)],
        "steps": _node_steps(row, view, asked) if view else _line_steps(row, snapshot, query),
        "is_net": view is not None,
        "can": _may(row),
        **_pictures(shown, row, snapshot, query),
    }
    return Page("run.html", row.name, context, folders, "runs", is_remote=is_remote)


def _may(row: RunRow) -> frozenset[str]:
    """Return what can be done with the run as it stands."""
    head = row.head
    if head is None or head.status == "complete":
        return frozenset()
    if head.exit or head.status == "paused" or head.pause_requested:
        return frozenset({"resume"} if head.exit else {"resume", "stop"})
    found = {"pause", "stop"}
    if head.status == "failed" or head.failures_in_row:
        found.add("retry")
    return frozenset(found)


class StepRow(Struct):
    """A line of the table of steps."""

    key: str
    look: StateLook
    name: str
    id: str = ""
    agent: str = ""
    tries: int = 0
    usage: Usage = Usage()
    at: str = ""
    line: str = ""


def _line_steps(row: RunRow, snapshot: Snapshot, query: Query) -> dict[str, Any]:
    before = number(query.get("before"))
    tried = [*tried_steps(row, is_whole=before > 0).values()]
    shown = [one for one in reversed(tried) if not before or one.step_index < before]
    rows = [_tried_row(row, one) for one in shown[:STEPS_A_PAGE]]
    is_begun = bool(tried) and tried[-1].last.state == "running"
    if snapshot.next is not None and not before and not is_begun:
        step = snapshot.next
        rows.insert(0, StepRow("", STEP_LOOKS["next"], step["step"]))
    more = shown[STEPS_A_PAGE - 1].step_index if len(shown) > STEPS_A_PAGE else 0
    return {"rows": rows, "more": more, "total": tried[-1].step_index + 1 if tried else 0}


def _tried_row(row: RunRow, one: Tried) -> StepRow:
    last, state = one.last, one.last.state
    head = row.head
    if state == "running" and head is not None and not head.claim_with(last.token):
        state = "released"
    if head is not None and head.is_at_gate and head.gate and head.gate.token == last.token:
        state = "waiting"
    return StepRow(
        one.key,
        STEP_LOOKS[state],
        one.name,
        str(one.step_index + 1),
        last.agent,
        len(one.tries),
        one.usage,
        last.ended or last.began,
        _last_line(last.said),
    )


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[0].strip()[:120] if lines else ""


def _node_steps(row: RunRow, view: FlowView, asked: str) -> dict[str, Any]:
    tried = tried_steps(row)
    nodes = [one for one in view.nodes if one.node.works]
    shown = [one for one in nodes if _is_asked(one, asked)]
    if len(nodes) > MOST_DRAWN:
        # What a person looks for is what moves and what has failed.
        shown = sorted(shown, key=lambda one: _INTEREST.get(one.state, len(_INTEREST)))
        shown = shown[:MOST_NODES]
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
        found = sorted(view.nodes, key=lambda one: _INTEREST.get(one.state, len(_INTEREST)))
        found = [one for one in found if _INTEREST.get(one.state, len(_INTEREST)) < _AT_REST]
    names = [one.node.id for one in found[:MOST_FOCUS]]
    return names or [*view.graph.entries[:MOST_FOCUS]]


_INTEREST = {
    state: place
    for place, state in enumerate(
        (
            NodeState.ASKED,
            NodeState.FAILED,
            NodeState.RUNNING,
            NodeState.RETRYING,
            NodeState.READY,
            NodeState.WAITING,
            NodeState.DONE,
        )
    )
}
"""Which nodes of a large graph are listed first."""
_AT_REST = _INTEREST[NodeState.WAITING]
"""From here on nothing moves."""


def _node_row(view: NodeView, tried: Tried | None) -> StepRow:
    node = view.node
    usage = Usage() if tried is None else tried.usage
    agent = "you" if node.kind is NodeKind.HUMAN else "" if tried is None else tried.last.agent
    return StepRow(
        node.id,
        STEP_LOOKS[CLASSES[view.state]],
        node.label or node.id,
        node.id,
        agent,
        len(tried.tries) if tried else 0,
        usage,
        "" if tried is None else tried.last.ended or tried.last.began,
        view.last_line,
    )


# --- pictures ----------------------------------------------------------------------


def _pictures(shown: ShownProject, row: RunRow, snapshot: Snapshot, query: Query) -> dict[str, Any]:
    """Return the pictures of the run of *row*, and of those that are too large, why."""
    found: dict[str, Any] = {
        "graph": "",
        "graph_note": "",
        "gantt": "",
        "gantt_note": "",
        "nodes": 0,
        "near": MOST_NEAR,
        "asked": query.get("at", ""),
    }
    workflow = snapshot.workflow
    if workflow is not None:
        try:
            is_part = len(workflow.nodes) > MOST_DRAWN and "whole" not in query
            asked = query.get("at", "") if is_part else None
            found["graph"] = _graph(shown, row, snapshot, workflow, asked)
            found["nodes"] = len(workflow.nodes) if is_part else 0
        except (UsageRefused, ValueError) as error:
            found["graph_note"] = str(error)
    try:
        chart = _gantt(shown, row)
        if chart.rows:
            found["gantt"] = gantt_page_svg(chart)
            path = " → ".join(chart.critical)
            found["summary"] = gantt_summary(chart.figures, path, str.strip)
    except (SequencerError, ValueError) as error:
        found["gantt_note"] = str(error)
    return found


def _graph(
    shown: ShownProject,
    row: RunRow,
    snapshot: Snapshot,
    workflow: Workflow,
    asked: str | None,
) -> str:
    """Return the graph; a part of it around what is *asked*, unless that is None."""

    def link(key: str) -> str:
        return f"{row.url}/step/{key}"

    if snapshot.graph_view is not None and asked is not None:
        whole = snapshot.graph_view
        return graph_svg(around(whole, _focus(whole, asked), MOST_NEAR), None, link)
    if snapshot.graph_view is not None:
        return graph_svg(snapshot.graph_view, _chart(shown, row, workflow), link)
    states = _line_states(row, workflow)
    if _is_endless(row) and len(workflow.steps) <= MOST_RING and row.head is not None:
        places = [(name, state, f"{row.url}/step/{key}") for name, state, key in states]
        cycle = row.head.step_index // len(workflow.steps)
        return ring_svg(places, f"cycle {cycle + 1}", _review(workflow, cycle, link))
    view = _line_view(workflow, states, is_endless=_is_endless(row))
    return graph_svg(view, None, lambda node: link(_key_of(states, node)))


def _is_endless(row: RunRow) -> bool:
    """Return whether nobody knows how many steps there are: it goes around."""
    return row.facts["steps"] is None


def _key_of(states: Sequence[tuple[str, str, str]], name: str) -> str:
    return next(key for step, _, key in states if step == name)


def _chart(shown: ShownProject, row: RunRow, workflow: Workflow) -> Chart | None:
    """Return how the author drew the graph; None: it was no chart, or it has changed since."""
    try:
        written = written_of(shown.project, row.run, workflow)
    except ConfigurationError:
        return None
    if written is None or written.workflow.digest() != workflow.digest():
        return None
    return written.chart


def _line_states(row: RunRow, workflow: Workflow) -> list[tuple[str, str, str]]:
    """Return of each step of the present cycle its name, its state and its key."""
    head = row.head
    if head is None:
        return [(step.name, "pending", "0") for step in workflow.steps]
    count = len(workflow.steps)
    first = head.step_index // count * count if _is_endless(row) else 0
    tried = tried_steps(row)
    found = []
    for place in range(count):
        index = first + place
        name = describe(workflow, index)["step"] if _is_endless(row) else ""
        state = _line_state(row, head, tried.get(str(index)), index)
        found.append((name or workflow.steps[place].name, state, str(index)))
    return found


def _line_state(row: RunRow, head: Head, tried: Tried | None, index: int) -> str:
    if head.is_at_gate and head.gate is not None and head.gate.step_index == index:
        return "waiting"
    if index < head.step_index:
        return "done"
    if index > head.step_index:
        return "pending"
    if head.claims:
        return "waiting" if row.is_stale else "running"
    if head.status == "failed" and tried is not None:
        return "failed"
    return "ready"


def _review(workflow: Workflow, cycle: int, link: Link) -> RingReview | None:
    """Return the review that comes next at or after *cycle*; None: there is none."""
    review, every = workflow.review, workflow.review_every
    if review is None or not every:
        return None
    left = every - 1 - cycle % every
    when = f"in {plural(left, 'cycle')}" if left else "in this cycle"
    cadence = f"every {every} cycles" if every > 1 else "every cycle"
    url = link(str((cycle + left) * len(workflow.steps)))
    return RingReview(review.step.name, "pending" if left else "ready", url, (when, cadence))


_STATES = {
    "done": NodeState.DONE,
    "running": NodeState.RUNNING,
    "waiting": NodeState.ASKED,
    "failed": NodeState.FAILED,
    "ready": NodeState.READY,
}


def _line_view(
    workflow: Workflow, states: Sequence[tuple[str, str, str]], *, is_endless: bool
) -> FlowView:
    """Return a line of steps as a graph, to be drawn as one."""
    names = [step.name for step in workflow.steps]
    nodes = tuple(Node(id=name, kind=NodeKind.AGENT) for name in names)
    edges = [Edge(source=a, target=b) for a, b in pairwise(names)]
    if is_endless and len(names) > 1:
        edges.append(Edge(source=names[-1], target=names[0]))
    graph = Graph(nodes=nodes, edges=tuple(edges), entries=(names[0],))
    views = tuple(
        NodeView(node, _STATES.get(state, NodeState.PENDING))
        for node, (_, state, _) in zip(nodes, states, strict=True)
    )
    followed = frozenset(
        place for place, edge in enumerate(edges[: len(names) - 1]) if _is_past(states, edge.target)
    )
    return FlowView(workflow.name, graph, views, "running", followed=followed)


def _is_past(states: Sequence[tuple[str, str, str]], name: str) -> bool:
    return next(state for step, state, _ in states if step == name) != "pending"


def _gantt(shown: ShownProject, row: RunRow) -> Gantt:
    facts = shown.story(row, is_whole=False).facts
    if row.head is None or row.head.begun_at is not None:
        return gantt_of(row.run, row.head, lambda _: None, facts)[0]
    chart = gantt_of(row.run, row.head, lambda _: None, facts[-MOST_EXECUTIONS:])[0]
    # One step at a time: all of a line is its critical path, so nothing of it stands out.
    for each in chart.rows:
        each.bars = [_plain_bar(bar) for bar in each.bars]
    return replace(chart, critical=())


def _plain_bar(bar: Bar) -> Bar:
    look = Look.DONE if bar.look is Look.CRITICAL else bar.look
    return replace(bar, look=look, is_critical=False)
