"""A team's run as a table: a task in a line, in as many columns as there is room for.

What has the least to say goes first: columns without a value, then the role, the cost, the
tokens, who blocks a task, what it is about. Nothing is wrapped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sequencer.cli.views.states import (
    ACTIVE,
    LAST_LINE_COLUMNS,
    amount,
    done,
    seconds,
    shown,
    state_words,
)
from sequencer.cli.views.tables import lines, narrowed, widest
from sequencer.cli.views.text import clock, cut, few, width
from sequencer.engine.view import FlowView, NodeState, NodeView
from sequencer.model.outcome import Usage, cost_words, duration
from sequencer.model.standing import parse_time

HEAD = (
    *("TASK", "SUBJECT", "ROLE", "STATE", "TIME"),
    *("TOKENS", "COST", "LAST LINE", "BLOCKED BY"),
)
TASK, SUBJECT, ROLE, STATE, TIME, TOKENS, COST, LAST, BLOCKED = range(len(HEAD))
FLUSH_RIGHT = frozenset({TIME, TOKENS, COST})
LEAST = {TASK: 18, SUBJECT: 14, LAST: 16, BLOCKED: 14}
"""Columns of the terminal below which a column of the table is not worth having."""
MOST = {TASK: 26, SUBJECT: 40, ROLE: 16, LAST: LAST_LINE_COLUMNS, BLOCKED: 40}
GOES = (ROLE, COST, TOKENS, BLOCKED, SUBJECT, TIME, LAST)
"""What goes where there is no room, one after the other."""
NOTHING = "-"
_REACHED = (NodeState.PENDING, NodeState.WAITING)
_WORKS = (NodeState.RUNNING, NodeState.RETRYING)
_COUNTED = {
    "done": (NodeState.DONE,),
    "running": (NodeState.RUNNING,),
    "waiting": (*_REACHED, NodeState.READY, NodeState.RETRYING, NodeState.ASKED),
    "failed": (NodeState.FAILED,),
    "cancelled": (NodeState.CANCELLED,),
}


class Heard(NamedTuple):
    """What a task that runs has said and used so far, in this process."""

    last: str = ""
    cost_usd: float = 0.0
    tokens: int = 0


def cost_cell(view: NodeView, more_usd: float = 0.0) -> str:
    """Return what a node has cost: ``~`` is estimated, ``?`` what nobody told; empty: nothing."""
    cost = view.cost_usd + more_usd
    known = f"{'~' if view.estimated_usd else ''}{cost:.4f}" if cost else ""
    return f"{known}+?" if known and view.unpriced else known or ("?" if view.unpriced else "")


def total_cost(nodes: Sequence[NodeView]) -> str:
    """Return what *nodes* have cost together; empty: nothing."""
    spent = Usage(
        cost_usd=sum(node.cost_usd for node in nodes),
        unpriced=sum(node.unpriced for node in nodes),
        estimated_usd=sum(node.estimated_usd for node in nodes),
    )
    return cost_words(spent)


def tasks_at_end(view: FlowView, now: datetime) -> list[str]:
    """Return the table of a team's tasks; of another graph its facts have told all."""
    return node_lines(view, view.nodes, now, None, {}) if view.graph.is_team else []


def titled_summary(view: FlowView, now: datetime, room: int) -> str:
    """Return title and summary; a team's leaves out what there is no room for, its title first."""
    whole = f"{shown(view.title)} · {node_summary(view, now)}"
    if not view.graph.is_team or width(whole) <= room:
        return whole
    return team_summary(view, now, room)


def counted(view: FlowView, nodes: Sequence[NodeView]) -> str:
    """Return how many of *nodes*, some of *view*, are how far."""
    if view.graph.is_team:
        return counted_tasks(nodes)
    found = Counter(str(node.state) for node in nodes)
    return ", ".join(f"{count} {state}" for state, count in found.most_common())


def blocked(view: FlowView) -> list[tuple[str, ...]]:
    """Return for each task of *view* those before it that are not done."""
    missing: dict[str, list[str]] = {
        node.node.id: [] for node in view.nodes if node.state in _REACHED
    }
    is_done = {node.node.id for node in view.nodes if node.state is NodeState.DONE}
    for edge in view.graph.edges:
        if edge.target in missing and edge.source not in is_done:
            missing[edge.target].append(edge.source)
    return [tuple(missing.get(node.node.id, ())) for node in view.nodes]


def task_cells(
    view: NodeView,
    blocks: Sequence[str],
    now: datetime,
    live: Heard | None = None,
    mark: str = "",
) -> tuple[str, ...]:
    """Return the cells of one task's line; *live* counts while it runs."""
    task, node = view.node.task, view.node
    is_running = view.state is NodeState.RUNNING
    heard = live if live is not None and is_running else Heard()
    spent = seconds(view, now)
    tokens = view.tokens + heard.tokens
    said = heard.last or view.last_line
    if is_running and not heard.last and task is not None and task.active_form:
        # What was there before is of an attempt that is over.
        said = task.active_form
    return (
        f"{mark} {shown(node.id)}".lstrip(),
        shown(node.label) or NOTHING,
        (task.role if task is not None else None) or NOTHING,
        _state(view, now),
        clock(spent) if spent > 0 else NOTHING,
        amount(tokens) if tokens else NOTHING,
        cost_cell(view, heard.cost_usd) or NOTHING,
        cut(shown(said), LAST_LINE_COLUMNS) or NOTHING,
        ", ".join(map(shown, blocks)) or NOTHING,
    )


def _state(view: NodeView, now: datetime) -> str:
    if view.state in _REACHED:
        return "waiting"
    due = parse_time(view.due) if view.due else None
    if view.state is NodeState.RETRYING and due is not None:
        return f"retry in {clock(max(0.0, (due - now).total_seconds()))}"
    is_again = view.attempt > 1 and view.state in (NodeState.RUNNING, NodeState.FAILED)
    return f"{view.state} ({view.attempt})" if is_again else str(view.state)


# --- room ----------------------------------------------------------------------------


def task_lines(
    rows: Sequence[Sequence[str]], room: int | None = None, *, dots: str = "…"
) -> list[str]:
    """Return the head and *rows* in lines of at most *room* columns."""
    natural = [min(wide, MOST.get(place, wide)) for place, wide in enumerate(widest(HEAD, rows))]
    # Lines that get longer, and who blocks whom, must not move what stands beside them.
    natural[LAST] = max(natural[LAST], room or 0)
    natural[BLOCKED] = max(natural[BLOCKED], LEAST[BLOCKED])
    wide = narrowed(natural, rows, room, goes=GOES, least=LEAST, right=FLUSH_RIGHT, first=TASK)
    if BLOCKED not in wide and LAST in wide:
        rows = [_with_blockers(row, wide[LAST]) for row in rows]

    def fit(place: int, text: str, most: int) -> str:
        return cut(_few(text, most) if place == BLOCKED else text, most, dots=dots)

    return lines(HEAD, rows, wide, right=FLUSH_RIGHT, fit=fit)


def _with_blockers(row: Sequence[str], columns: int) -> Sequence[str]:
    """Return *row* with who blocks it as its last line, if it has said nothing."""
    if row[BLOCKED] == NOTHING or row[LAST] != NOTHING:
        return row
    after = "after "
    return (*row[:LAST], after + _few(row[BLOCKED], columns - len(after)), row[BLOCKED])


def _few(names: str, columns: int) -> str:
    """Return as many of *names* as there is room for, and how many there are besides.

    >>> _few("plan, search, history", 15), _few("implement-parser, test-it", 10)
    ('plan, search +1', '2 tasks')
    """
    listed = names.split(", ")
    text = few(listed, columns, more=" +{}")
    return f"{len(listed)} tasks" if len(listed) > 1 and width(text) > columns else text


# --- totals --------------------------------------------------------------------------


def team_summary(view: FlowView, now: datetime | None = None, columns: int | None = None) -> str:
    """Return the whole run in one line; what there is no room for is left out."""
    parts = _totals(view, now)
    while columns is not None and len(parts) > 1:
        if width(" · ".join(text for _, text in parts)) <= columns:
            break
        parts.remove(max(parts))
    return " · ".join(text for _, text in parts)


def _totals(view: FlowView, now: datetime | None) -> list[tuple[int, str]]:
    """Return the totals as they stand, each behind how soon it may be left out."""
    running = sum(node.state is NodeState.RUNNING for node in view.nodes)
    size = view.graph.max_parallel
    at_work = f"{running} of {size} at work" if size else ""
    tokens = sum(node.tokens for node in view.nodes)
    spent = elapsed(view, now)
    found = [
        (1, shown(view.status).replace("-", " ").replace("_", " ")),
        (0, counted_tasks(view.nodes)),
        (4, at_work if view.status == "running" else ""),
        (5, f"{amount(tokens)} tokens" if tokens else ""),
        (3, total_cost(view.nodes)),
        (2, clock(spent) if spent else ""),
    ]
    return [(rank, text) for rank, text in found if text]


def counted_tasks(nodes: Sequence[NodeView]) -> str:
    """Return how many tasks are how far, in the words of the totals.

    >>> counted_tasks([])
    ''
    """
    states = Counter(node.state for node in nodes)
    counts = {word: sum(states[one] for one in group) for word, group in _COUNTED.items()}
    return ", ".join(f"{count} {word}" for word, count in counts.items() if count)


def elapsed(view: FlowView, now: datetime | None = None) -> float:
    """Return the seconds since the first task began: up to *now* while one runs."""
    began = parse_time(view.began) if view.began else None
    latest = parse_time(view.latest) if view.latest else None
    if began is None:
        return 0.0
    is_moving = any(node.state in _WORKS for node in view.nodes)
    end = now if now is not None and is_moving else latest
    return max(0.0, (end - began).total_seconds()) if end is not None else 0.0


NODE_HEAD = ("NODE", "STATE", "ATTEMPT", "RUNS", "TIME", "COST", "LAST LINE")
NODE_RIGHT = frozenset({2, 3, 4, 5})
NODE_LEAST, NODE_MOST = {0: 12, 6: 16}, {0: 32}
NODE_GOES = (3, 2, 5, 6)
"""Of the columns, what goes where there is no room, one after the other."""


def node_table(
    view: FlowView,
    now: datetime,
    room: int | None = None,
    heard: Mapping[str, Heard] | None = None,
) -> str:
    """Return every node in a line, and below them the whole run in one.

    The table leaves columns out that *room* has no place for; None: it has all. *heard*
    is what the nodes that run have said.
    """
    found = node_lines(view, view.nodes, now, room, heard or {})
    return "\n".join([*found, "", node_summary(view, now, room)])


def node_lines(
    view: FlowView,
    nodes: Sequence[NodeView],
    now: datetime,
    room: int | None,
    heard: Mapping[str, Heard],
    *,
    mark: Callable[[NodeState], str] = lambda _: "",
    dots: str = "…",
) -> list[str]:
    """Return *nodes*, some of those of *view*, in a line each below the head of the table."""
    if view.graph.is_team:
        missing = dict(zip((n.node.id for n in view.nodes), blocked(view), strict=True))
        tasks = [
            task_cells(n, missing[n.node.id], now, heard.get(n.node.id), mark(n.state))
            for n in nodes
        ]
        return task_lines(tasks, room, dots=dots)
    rows = [_node_cells(n, now, heard.get(n.node.id), mark(n.state)) for n in nodes]
    natural = widest(NODE_HEAD, rows)
    if room is not None:
        natural = [min(wide, NODE_MOST.get(n, wide)) for n, wide in enumerate(natural)]
        # Lines that get longer must not move what stands beside them.
        natural[-1] = max(natural[-1], room)
    wide = narrowed(
        natural, rows, room, goes=NODE_GOES, least=NODE_LEAST, right=NODE_RIGHT, first=0
    )
    return lines(
        NODE_HEAD,
        rows,
        wide,
        right=NODE_RIGHT,
        fit=lambda _, text, most: cut(text, most, dots=dots),
    )


def _node_cells(view: NodeView, now: datetime, live: Heard | None, mark: str) -> tuple[str, ...]:
    """Return the cells of one node's line; *live* counts while it runs."""
    heard = live if live is not None and view.state is NodeState.RUNNING else Heard()
    spent = seconds(view, now)
    return (
        f"{mark} {shown(view.node.id)}".lstrip(),
        state_words(view, now),
        str(view.attempt or NOTHING),
        str(view.runs or NOTHING),
        duration(spent) if spent > 0 else NOTHING,
        cost_cell(view, heard.cost_usd) or NOTHING,
        cut(shown(heard.last or view.last_line), LAST_LINE_COLUMNS) or NOTHING,
    )


def node_summary(view: FlowView, now: datetime | None = None, room: int | None = None) -> str:
    """Return the whole run in one line; with *now*, the time of what runs is counted.

    Of a team's what there is no *room* for is left out.
    """
    if view.graph.is_team:
        return team_summary(view, now, room)
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
    if cost := total_cost(view.nodes):
        parts.append(cost)
    return " · ".join(parts)


def nodes_json(view: FlowView, heard: Mapping[str, Heard] | None = None) -> dict[str, Any]:
    """Return the run for programs; texts as they are, not made safe for a terminal."""
    return {
        "title": view.title,
        "status": view.status,
        "iterations": view.iterations,
        "max_iterations": view.graph.max_iterations,
        "done": done(view),
        "total": len(view.nodes),
        "nodes": _nodes(view, heard or {}),
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


def _nodes(view: FlowView, heard: Mapping[str, Heard]) -> list[dict[str, Any]]:
    found = [_node(node, heard.get(node.node.id)) for node in view.nodes]
    for one, node, missing in zip(found, view.nodes, blocked(view), strict=True):
        if node.node.task is not None:
            one |= {"role": node.node.task.role, "blocked_by": list(missing)}
    return found


def _node(view: NodeView, live: Heard | None) -> dict[str, Any]:
    said = live.last if live is not None and view.state is NodeState.RUNNING else ""
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
        "last_line": said or view.last_line,
    }
