"""The page of one run: its questions, its graph, its steps and a timeline."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from sequencer.cli.views.readiness import Snapshot, add_project_facts, take_snapshot
from sequencer.cli.views.states import INTEREST, STATE_DISPLAYS, StateDisplay, get_node_display
from sequencer.cli.views.text import pluralize
from sequencer.errors import ConfigurationError, SequencerError, UsageRefused, to_one_line
from sequencer.history.story import StepAttempts
from sequencer.history.view import FlowView, NodeState, NodeView
from sequencer.model.graph.graph import Edge, Graph, Node, NodeKind
from sequencer.model.head import Head
from sequencer.model.sequence.order import describe
from sequencer.model.workflow import Workflow
from sequencer.plugins.drawing.gantt import Bar, BarStyle, Gantt, build_gantt, gantt_summary
from sequencer.plugins.drawing.pictures import Link
from sequencer.plugins.web.drawings import (
    RingReview,
    crop_view,
    gantt_page_svg,
    graph_svg,
    ring_svg,
)
from sequencer.plugins.web.pages import (
    Page,
    Query,
    format_step_number,
    list_need_cards,
    parse_number,
    tried_steps,
)
from sequencer.plugins.web.site import RunRow, Site
from sequencer.project.flows import load_current_graph
from sequencer.workflows.mermaid.chart import Chart

STEPS_A_PAGE = 50
MAX_EXECUTIONS = 150
"""How many of a sequence's newest executions its timeline shows; more bars would be unreadable."""
MAX_NODES, MAX_DRAWN, MAX_NEAR = 60, 120, 60
"""Limits of nodes: rows of a large graph's table, picture of a whole graph, picture of a part."""
MAX_FOCUS = 12
"""Nodes around which such a part is drawn."""
MAX_RING = 12
"""Steps of a cycle that fit into a ring."""


def build_run_page(site: Site, query: Query, project: str, run: str) -> Page:
    """Return the page of one run."""
    row = site.project(project).row(run)
    context: dict[str, Any] = {
        "row": row,
        "look": row.look,
        "needs": [*list_need_cards(row)],
        "distrust": row.project.distrust(),
        "step_words": format_step_number(row),
    }
    folders, is_remote = (row.run.store.state_path.parent,), row.project.is_remote
    head = row.head
    if head is None:
        return Page("unread.html", row.name, context, folders, "runs", is_remote=is_remote)
    logs = row.project.project.logs(row.run.name, lambda _: None)
    snapshot = take_snapshot(row.run, logs, row.project.story(row, is_whole=False).facts)
    snapshot = add_project_facts(row.project.project, row.run, snapshot, row.lost)
    view, search = snapshot.graph_view, query.get("at", "")
    context |= {
        "head": head,
        "look": snapshot.state,
        "snapshot": snapshot,
        # A card below already has words and buttons for what it asks.
        "ways": [] if context["needs"] and snapshot.lost is None else snapshot.in_the_way,
        "then": None if context["needs"] and snapshot.lost is None else snapshot.next_command,
        "is_idle": not snapshot.busy and snapshot.is_ready,
        "usage": head.usage,
        "limits": [*snapshot.format_limits(head)],
        "steps": _build_node_table(row, view, search)
        if view
        else _build_sequence_table(row, head, snapshot, query),
        "is_net": view is not None,
        "can": _list_allowed_verbs(head) if row.changed is None else frozenset(),
        # The last notice repeats what the card of the change says.
        "notices": snapshot.notices[: None if row.changed is None else -1],
        **_pictures(row, head, snapshot, query),
    }
    return Page("run.html", row.name, context, folders, "runs", is_remote=is_remote)


def _list_allowed_verbs(head: Head) -> frozenset[str]:
    """Return the verbs of the buttons for a run at *head*."""
    if head.status == "complete":
        return frozenset()
    if head.exit or head.status == "paused" or head.pause_requested:
        return frozenset({"resume"} if head.exit else {"resume", "stop"})
    # A failed run has a card with the same button.
    can_retry = head.failures_in_row and head.status != "failed"
    return frozenset({"pause", "stop", "retry"} if can_retry else {"pause", "stop"})


class StepRow(Struct, frozen=True):
    """A row of the table of steps."""

    key: str
    look: StateDisplay
    name: str
    tried: StepAttempts
    id: str = ""
    agent: str = ""
    line: str = ""


def _build_sequence_table(
    row: RunRow, head: Head, snapshot: Snapshot, query: Query
) -> dict[str, Any]:
    end_index = parse_number(query.get("before"))
    step_attempts = [*tried_steps(row, is_whole=end_index > 0).values()]
    steps = [
        step for step in reversed(step_attempts) if not end_index or step.step_index < end_index
    ]
    rows = [_tried_row(head, snapshot, step) for step in steps[:STEPS_A_PAGE]]
    # Then the next step was started already, and is in the table.
    has_started = head.status == "failed" or (
        bool(step_attempts) and step_attempts[-1].last.state == "running"
    )
    if snapshot.next is not None and not end_index and not has_started:
        name = snapshot.next.step
        rows.insert(0, StepRow("", STATE_DISPLAYS["next"], name, StepAttempts("", name, 0)))
    next_index = steps[STEPS_A_PAGE - 1].step_index if len(steps) > STEPS_A_PAGE else 0
    return {
        "rows": rows,
        "more": next_index,
        "total": step_attempts[-1].step_index + 1 if step_attempts else 0,
    }


def _tried_row(head: Head, snapshot: Snapshot, step: StepAttempts) -> StepRow:
    attempt, state = step.last, step.last.state
    if state == "running" and not head.find_claim(attempt.token):
        state = "released"
    elif state == "running" and not snapshot.busy:
        state = "interrupted"
    if head.is_at_gate and head.gate and head.gate.token == attempt.token:
        state = "asked"
    line = next(
        (line.strip()[:120] for line in attempt.answer_text.splitlines() if line.strip()), ""
    )
    number_words = str(step.step_index + 1)
    return StepRow(
        step.key, STATE_DISPLAYS[state], step.name, step, number_words, attempt.agent, line
    )


def _build_node_table(row: RunRow, view: FlowView, search: str) -> dict[str, Any]:
    tries = tried_steps(row)
    nodes = [node for node in view.nodes if node.node.works]
    matches = [node for node in nodes if _matches(node, search)]
    if len(nodes) > MAX_DRAWN:
        # People look for active and failed nodes first.
        matches = sorted(matches, key=_rank_interest)[:MAX_NODES]
    rows = [_node_row(node, tries.get(node.node.id)) for node in matches]
    return {"rows": rows, "more": 0, "total": len(nodes)}


def _matches(view: NodeView, search: str) -> bool:
    pattern = search.casefold()
    return pattern in view.node.id.casefold() or pattern in (view.node.label or "").casefold()


def _choose_focus(view: FlowView, search: str) -> list[str]:
    """Return the nodes around which a part of a large graph is drawn."""
    nodes = [node for node in view.nodes if search and _matches(node, search)]
    # An exact id means that node only, and not all nodes whose ids contain it.
    nodes = [node for node in nodes if node.node.id == search] or nodes
    if not nodes:
        active = (node for node in view.nodes if node.state in _ACTIVE)
        nodes = sorted(active, key=_rank_interest)
    names = [node.node.id for node in nodes[:MAX_FOCUS]]
    return names or [*view.graph.entries[:MAX_FOCUS]]


_ACTIVE = INTEREST[: INTEREST.index(NodeState.WAITING)]


def _rank_interest(view: NodeView) -> int:
    return INTEREST.index(view.state)


def _node_row(view: NodeView, tries: StepAttempts | None) -> StepRow:
    node = view.node
    agent = "you" if node.kind is NodeKind.HUMAN else "" if tries is None else tries.last.agent
    look, name = get_node_display(view), node.label or node.id
    tries = tries or StepAttempts(node.id, name, 0)
    return StepRow(node.id, look, name, tries, node.id, agent, view.last_line)


# --- pictures ----------------------------------------------------------------------


def _pictures(row: RunRow, head: Head, snapshot: Snapshot, query: Query) -> dict[str, Any]:
    """Return the pictures of the run of *row*, or the reasons why they can't be drawn."""
    values: dict[str, Any] = dict.fromkeys(("graph", "graph_note", "gantt", "gantt_note"), "")
    values |= {"nodes": 0, "near": MAX_NEAR, "asked": query.get("at", "")}
    workflow = snapshot.workflow
    if workflow is not None:
        is_part = len(workflow.nodes) > MAX_DRAWN and "whole" not in query
        search = values["asked"] if is_part else None
        try:
            values["graph"] = _graph(row, head, snapshot, workflow, search)
            values["nodes"] = len(workflow.nodes) if is_part else 0
        except (UsageRefused, ValueError) as error:
            values["graph_note"] = to_one_line(str(error))
    try:
        chart = _gantt(row, head)
        if chart.rows:
            values["gantt"] = gantt_page_svg(chart)
            path = " → ".join(chart.path)
            values["summary"] = gantt_summary(chart.figures, path, str.strip)
    except (SequencerError, ValueError) as error:
        values["gantt_note"] = to_one_line(str(error))
    return values


def _graph(
    row: RunRow, head: Head, snapshot: Snapshot, workflow: Workflow, search: str | None
) -> str:
    """Return the graph, or only the part around the nodes of *search*; None: all of it."""
    view = snapshot.graph_view

    def link(key: str) -> str:
        return f"{row.url}/step/{key}"

    if view is not None and search is not None:
        return graph_svg(crop_view(view, _choose_focus(view, search), MAX_NEAR), None, link)
    if view is not None:
        return graph_svg(view, _chart(row, workflow), link)
    # A cycle without an end has no known number of steps.
    is_endless = row.facts["steps"] is None
    states = _list_sequence_states(row, head, snapshot, workflow)
    if is_endless and len(states) <= MAX_RING:
        steps = [(view.node.id, get_node_display(view), link(key)) for view, key in states]
        cycle = head.step_index // len(states)
        return ring_svg(steps, f"cycle {cycle + 1}", _make_ring_review(workflow, cycle, link))
    keys = {step.name: key for step, (_, key) in zip(workflow.steps, states, strict=True)}
    line = _make_sequence_view(workflow, [view for view, _ in states], is_endless=is_endless)
    return graph_svg(line, None, lambda name: link(keys[name]))


def _chart(row: RunRow, workflow: Workflow) -> Chart | None:
    """Return the author's chart as it is now, for its shapes; None: no chart, or it is unreadable.

    Nodes and edges always come from the run. Even a chart that was changed since gives better
    shapes, strokes and groups than none: a decision stays a diamond.
    """
    try:
        graph_file = load_current_graph(row.project.project, row.run, workflow)
    except ConfigurationError:
        return None
    return None if graph_file is None else graph_file.chart


def _list_sequence_states(
    row: RunRow, head: Head, snapshot: Snapshot, workflow: Workflow
) -> list[tuple[NodeView, str]]:
    """Return (step, key) for each step of the present cycle, or of a sequence with an end."""
    count, tries, states = len(workflow.steps), tried_steps(row), []
    is_endless = row.facts["steps"] is None
    first_index = head.step_index // count * count if is_endless else 0
    for index, step in enumerate(workflow.steps, first_index):
        name = describe(workflow, index).step if is_endless else ""
        state = _find_step_state(head, index, was_tried=str(index) in tries)
        is_interrupted = state is NodeState.RUNNING and not snapshot.busy
        node = Node(id=name or step.name, kind=NodeKind.AGENT)
        states.append((NodeView(node, state, is_interrupted=is_interrupted), str(index)))
    return states


def _find_step_state(head: Head, index: int, *, was_tried: bool) -> NodeState:
    if head.is_at_gate and head.gate is not None and head.gate.step_index == index:
        return NodeState.ASKED
    if index != head.step_index:
        return NodeState.DONE if index < head.step_index else NodeState.PENDING
    if head.claims:
        return NodeState.RUNNING
    return NodeState.FAILED if head.status == "failed" and was_tried else NodeState.READY


def _make_ring_review(workflow: Workflow, cycle: int, link: Link) -> RingReview | None:
    """Return the next review, in *cycle* or later; None: the workflow has none."""
    review, period = workflow.review, workflow.review_every
    if review is None or not period:
        return None
    cycles_left = period - 1 - cycle % period
    due_text = f"in {pluralize(cycles_left, 'cycle')}" if cycles_left else "in this cycle"
    cadence = f"every {period} cycles" if period > 1 else "every cycle"
    url = link(str((cycle + cycles_left) * len(workflow.steps)))
    return RingReview(
        review.step.name,
        NodeState.PENDING if cycles_left else NodeState.READY,
        url,
        (due_text, cadence),
    )


def _make_sequence_view(
    workflow: Workflow, steps: Sequence[NodeView], *, is_endless: bool
) -> FlowView:
    """Return a sequence of steps as a graph, so that it can be drawn as one."""
    names = [step.name for step in workflow.steps]
    nodes = tuple(Node(id=name, kind=NodeKind.AGENT) for name in names)
    edges = [Edge(source=source, target=target) for source, target in pairwise(names)]
    if is_endless and len(names) > 1:
        edges.append(Edge(source=names[-1], target=names[0]))
    graph = Graph(nodes=nodes, edges=tuple(edges), entries=(names[0],))
    views = tuple(replace(view, node=node) for node, view in zip(nodes, steps, strict=True))
    reach_flags = (view.state is not NodeState.PENDING for view in views[1:])
    followed_edges = frozenset(edge for edge, is_reached in enumerate(reach_flags) if is_reached)
    return FlowView(workflow.name, graph, views, "running", followed=followed_edges)


def _gantt(row: RunRow, head: Head) -> Gantt:
    story = row.project.story(row, is_whole=False).story
    if head.begun_at is not None:
        return build_gantt(row.run, head, lambda _: None, story)[0]
    chart = build_gantt(row.run, head, lambda _: None, story, MAX_EXECUTIONS)[0]
    # In a sequence, every step is on the critical path, so none is highlighted.
    for row_of_bars in chart.rows:
        row_of_bars.bars = [_remove_highlight(bar) for bar in row_of_bars.bars]
    return replace(chart, critical=())


def _remove_highlight(bar: Bar) -> Bar:
    look = BarStyle.DONE if bar.look is BarStyle.CRITICAL else bar.look
    return replace(bar, look=look, is_critical=False)
