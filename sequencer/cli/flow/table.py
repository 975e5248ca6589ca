"""A graph run as a table and as JSON, at rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from sequencer.cli.flow import team_table
from sequencer.cli.flow.team_table import Heard
from sequencer.cli.views.states import ACTIVE, done, last_line, seconds, shown, state_words
from sequencer.cli.views.text import columns
from sequencer.engine.flow.view import FlowView, NodeState, NodeView
from sequencer.model.outcome import duration

HEAD = ("NODE", "STATE", "ATTEMPT", "RUNS", "TIME", "COST", "LAST LINE")
FLUSH_RIGHT = frozenset({2, 3, 4, 5})
GOES = (3, 2)
"""Of the columns, what goes first where there is no room."""


def table(
    view: FlowView,
    now: datetime,
    width: int | None = None,
    heard: Mapping[str, Heard] | None = None,
) -> str:
    """Return every node in a line, and below them the whole run in one.

    A team's table leaves columns out that *width* has no room for; None: it has all. *heard*
    is what the nodes that run have said.
    """
    heard = heard or {}
    if view.graph.is_team:
        return team_table.table(view, now, width, heard)
    rows = [
        (shown(n.node.id), state_words(n, now), *figures(n, now), last_line(_with_heard(n, heard)))
        for n in view.nodes
    ]
    return (
        f"{columns(HEAD, rows, right=FLUSH_RIGHT, room=width, goes=GOES)}\n\n{summary(view, now)}"
    )


def _with_heard(view: NodeView, heard: Mapping[str, Heard]) -> NodeView:
    """Return *view* with what it says while it runs as its last line."""
    found = heard.get(view.node.id)
    if found is None or not found.last or view.state is not NodeState.RUNNING:
        return view
    return replace(view, last_line=found.last)


def figures(view: NodeView, now: datetime, *, more_usd: float = 0.0) -> tuple[str, str, str, str]:
    """Return attempt, runs, time and cost; *more_usd* is of the attempt that runs."""
    spent = seconds(view, now)
    return (
        str(view.attempt) if view.attempt else "-",
        str(view.runs) if view.runs else "-",
        duration(spent) if spent > 0 else "-",
        team_table.cost_cell(view, more_usd) or "-",
    )


def summary(view: FlowView, now: datetime | None = None) -> str:
    """Return the whole run in one line; with *now*, the time of what runs is counted."""
    if view.graph.is_team:
        return team_table.summary(view, now)
    status = shown(view.status).replace("-", " ").replace("_", " ")
    parts = [status, f"{done(view)} of {len(view.nodes)} nodes done"]
    if active := sum(node.state in ACTIVE for node in view.nodes):
        parts.append(f"{active} active")
    if view.iterations or view.graph.back_edges:
        times = "loop" if view.iterations == 1 else "loops"
        most = view.graph.max_iterations
        # The one too many, which ended the run, was counted and not made.
        parts.append(f"{min(view.iterations, most)} {times} of at most {most}")
    spent = sum(
        seconds(n, now) if now and n.state is not NodeState.ASKED else n.seconds for n in view.nodes
    )
    if spent >= 0.05:  # noqa: PLR2004 - what one decimal shows
        parts.append(f"{duration(spent)} of work")
    if cost := team_table.total_cost(view.nodes):
        parts.append(cost)
    return " · ".join(parts)


def as_json(view: FlowView, heard: Mapping[str, Heard] | None = None) -> dict[str, Any]:
    """Return the run for programs; texts as they are, not made safe for a terminal."""
    if heard:
        view = replace(view, nodes=tuple(_with_heard(node, heard) for node in view.nodes))
    return {
        "title": view.title,
        "status": view.status,
        "iterations": view.iterations,
        "max_iterations": view.graph.max_iterations,
        "done": done(view),
        "total": len(view.nodes),
        "nodes": _nodes(view),
        "edges": [
            {
                "from": edge.source,
                "to": edge.target,
                "label": edge.label,
                "is_back": place in view.graph.back_edges,
                "was_followed": place in view.followed,
            }
            for place, edge in enumerate(view.graph.edges)
        ],
    }


def _nodes(view: FlowView) -> list[dict[str, Any]]:
    found = [_node(node) for node in view.nodes]
    for one, node, missing in zip(found, view.nodes, team_table.blocked(view), strict=True):
        if node.node.task is not None:
            one |= {"role": node.node.task.role, "blocked_by": list(missing)}
    return found


def _node(view: NodeView) -> dict[str, Any]:
    return {
        "id": view.node.id,
        "label": view.node.label,
        "kind": str(view.node.kind),
        "state": str(view.state),
        "attempt": view.attempt,
        "runs": view.runs,
        "seconds": round(view.seconds, 6),
        "cost_usd": None if view.unpriced and not view.cost_usd else round(view.cost_usd, 9),
        "unpriced": view.unpriced,
        "estimated_usd": round(view.estimated_usd, 9),
        "tokens": view.tokens,
        "since": view.since,
        "due": view.due,
        "last_line": view.last_line,
    }
