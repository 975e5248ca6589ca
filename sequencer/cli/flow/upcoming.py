"""What of a graph may start now, told for `next`: what each node is about, and who does it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sequencer.cli.flow.cells import state_words
from sequencer.cli.flow.marks import shown
from sequencer.cli.flow.watching import look
from sequencer.cli.tables import columns, cut
from sequencer.errors import SequencerError
from sequencer.model.flow_view import NodeState, NodeView
from sequencer.model.graph import NodeKind
from sequencer.resolution.registry import with_defaults
from sequencer.resolution.resolver import describe_node
from sequencer.settings.agents import choose_agent

if TYPE_CHECKING:
    from sequencer.assembly import Project
    from sequencer.engine.run import Run
    from sequencer.model.step import Step
    from sequencer.model.workflow import Workflow
    from sequencer.resolution.resolver import Description

MOST_SUBJECT_COLUMNS = 50
NOTHING = "-"


def nodes(project: Project, run: Run, workflow: Workflow, count: int) -> list[dict[str, Any]]:
    """Return at most *count* nodes of *workflow*, a graph, that may start in *run*.

    Where the run is one of another workflow they are those that the graph begins with.

    Raises:
        SequencerError: see `Run.next`.
    """
    head, graph = run.head, workflow.graph
    if graph is not None and head is not None and head.workflow_name != workflow.name:
        steps = [describe_node(workflow, name, 0) for name in graph.entries[:count]]
        views = {node.id: NodeView(node) for node in graph.nodes}
    else:
        steps = run.next(count)
        views = {one.node.id: one for one in look(run, workflow.name).nodes} if steps else {}
        if head is not None and steps:
            workflow = run.flow.workflow_of(head)
    now = datetime.now(UTC)
    return [_node(project, workflow, step, views[step["step"]], now) for step in steps]


def _node(
    project: Project, workflow: Workflow, said: Description, view: NodeView, now: datetime
) -> dict[str, Any]:
    node, step = view.node, workflow.steps_by_name.get(said["step"])
    is_begun = view.state is not NodeState.PENDING
    return {
        **said,
        "label": node.label,
        "kind": str(node.kind),
        "role": node.task.role if node.task is not None else None,
        "agent": None if step is None else _agent(project, step),
        "state": state_words(view, now) if is_begun else str(NodeState.READY),
    }


def _agent(project: Project, step: Step) -> str | None:
    whole = with_defaults(step, project.settings.step_defaults)
    try:
        return choose_agent(project.settings, whole, step.name, project.agents.overrides).name
    except SequencerError:
        # `check` says what is wrong with it.
        return None


def table(found: Sequence[dict[str, Any]], *, is_team: bool, room: int | None = None) -> str:
    """Return the nodes as people read them, in *room* columns."""
    head = ("TASK" if is_team else "NODE", "STATE", "SUBJECT", "ROLE", "BY")
    rows = [
        (
            shown(one["step"]),
            one["state"],
            cut(shown(one["label"]), MOST_SUBJECT_COLUMNS) or NOTHING,
            one["role"] or NOTHING,
            _by(one),
        )
        for one in found
    ]
    kept = [place for place in range(len(head)) if is_team or head[place] != "ROLE"]
    return columns([head[n] for n in kept], [[row[n] for n in kept] for row in rows], room=room)


def _by(one: dict[str, Any]) -> str:
    if one["kind"] == NodeKind.HUMAN:
        return "a person"
    return shown(one["agent"] or "") or NOTHING
