"""A team's run as a table: a task in a line, in as many columns as there is room for.

What has the least to say goes first: columns without a value, then the role, the cost, the
tokens, who blocks a task, what it is about. Nothing is wrapped. Live it is as wide and as high
as the terminal is at that moment: what a person waits for stays in it, the rest is counted.
"""

from __future__ import annotations

import os
import time
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from sequencer.cli.views.states import (
    ACTIVE,
    INTEREST,
    LAST_LINE_COLUMNS,
    LOOKS,
    WORKING,
    done,
    mark_of,
    node_look,
    seconds,
    shown,
    state_words,
)
from sequencer.cli.views.tables import lines, narrowed, widest
from sequencer.cli.views.text import can_write, clock, cut, few, plural, width
from sequencer.history.view import FlowView, NodeState, NodeView
from sequencer.model.limits import parse_time
from sequencer.model.outcome import Usage, amount, cost_words, duration

if TYPE_CHECKING:
    from rich.text import Text

HEAD = (
    *("TASK", "SUBJECT", "ROLE", "STATE", "TIME"),
    *("TOKENS", "COST", "LAST LINE", "BLOCKED BY"),
)
TASK, SUBJECT, ROLE, STATE, TIME, TOKENS, COST, LAST, BLOCKED = range(len(HEAD))


class _Table(NamedTuple):
    """How the lines of a kind of graph share the room of a terminal."""

    head: tuple[str, ...]
    right: frozenset[int]
    least: Mapping[int, int]
    """Columns of the terminal below which a column of the table is not worth having."""
    most: Mapping[int, int]
    goes: Sequence[int]
    """What goes where there is no room, one after the other."""
    last: int
    """The column of what was said last, which takes what is left."""


_TASKS = _Table(
    HEAD,
    frozenset({TIME, TOKENS, COST}),
    {TASK: 18, SUBJECT: 14, LAST: 16, BLOCKED: 14},
    {TASK: 26, SUBJECT: 40, ROLE: 16, LAST: LAST_LINE_COLUMNS, BLOCKED: 40},
    (ROLE, COST, TOKENS, BLOCKED, SUBJECT, TIME, LAST),
    LAST,
)
_NODES = _Table(
    ("NODE", "TITLE", "STATE", "ATTEMPT", "RUNS", "TIME", "COST", "LAST LINE"),
    frozenset({3, 4, 5, 6}),
    {0: 12, 1: 12, 7: 16},
    {0: 32, 1: 40},
    (4, 3, 6, 7, 1),
    7,
)
_UNTITLED = _Table(
    ("NODE", "STATE", "ATTEMPT", "RUNS", "TIME", "COST", "LAST LINE"),
    frozenset({2, 3, 4, 5}),
    {0: 12, 6: 16},
    {0: 32},
    (3, 2, 5, 6),
    6,
)
"""Where no title says more than its node's id."""
NOTHING = "-"
_REACHED = (NodeState.PENDING, NodeState.WAITING)
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


def total_cost(view: FlowView) -> str:
    """Return what the run of *view* has cost, its start included; empty: nothing."""
    nodes = view.nodes
    spent = Usage(
        cost_usd=sum(node.cost_usd for node in nodes),
        unpriced=sum(node.unpriced for node in nodes),
        estimated_usd=sum(node.estimated_usd for node in nodes),
    )
    return cost_words(spent.plus(view.before))


def titled_summary(view: FlowView, now: datetime, room: int) -> str:
    """Return title and summary; a team's leaves out what there is no room for, its title first."""
    whole = f"{shown(view.title)} · {node_summary(view, now)}"
    is_whole = not view.graph.has_tasks or width(whole) <= room
    return whole if is_whole else node_summary(view, now, room)


def counted(view: FlowView, nodes: Sequence[NodeView]) -> str:
    """Return how many of *nodes*, some of *view*, are how far."""
    if view.graph.has_tasks:
        return counted_tasks(nodes)
    found = Counter(node_look(node).word for node in nodes)
    return ", ".join(f"{count} {state}" for state, count in found.most_common())


def blocked(view: FlowView) -> dict[str, list[str]]:
    """Return for each task of *view* those before it that are not done."""
    states = {node.node.id: node.state for node in view.nodes}
    missing: dict[str, list[str]] = {name: [] for name in states}
    for edge in view.graph.edges:
        if states[edge.target] in _REACHED and states[edge.source] is not NodeState.DONE:
            missing[edge.target].append(edge.source)
    return missing


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
    name, *_, cost, said = _node_cells(view, now, heard, mark)
    if is_running and not heard.last and task is not None and task.active_form:
        # What was there before is of an attempt that is over.
        said = cut(shown(task.active_form), LAST_LINE_COLUMNS)
    spent, tokens = seconds(view, now), view.tokens + heard.tokens
    return (
        name,
        shown(node.label) or NOTHING,
        (task.role if task is not None else None) or NOTHING,
        _state(view, now),
        clock(spent) if spent > 0 else NOTHING,
        amount(tokens) if tokens else NOTHING,
        cost,
        said,
        ", ".join(map(shown, blocks)) or NOTHING,
    )


def _node_cells(view: NodeView, now: datetime, live: Heard | None, mark: str) -> tuple[str, ...]:
    """Return the cells of one node's line; *live* counts while it runs."""
    heard = live if live is not None and view.state is NodeState.RUNNING else Heard()
    spent = seconds(view, now)
    return (
        f"{mark} {shown(view.node.id)}".lstrip(),
        shown(view.node.title),
        state_words(view, now),
        str(view.attempt or NOTHING),
        str(view.runs or NOTHING),
        duration(spent) if spent > 0 else NOTHING,
        cost_cell(view, heard.cost_usd) or NOTHING,
        cut(shown(heard.last or view.last_line), LAST_LINE_COLUMNS) or NOTHING,
    )


def _state(view: NodeView, now: datetime) -> str:
    if view.state in _REACHED:
        return "waiting"
    due = parse_time(view.due) if view.due else None
    if view.state is NodeState.RETRYING and due is not None:
        return f"retry in {clock(max(0.0, (due - now).total_seconds()))}"
    is_again = view.attempt > 1 and view.state in (NodeState.RUNNING, NodeState.FAILED)
    word = node_look(view).word
    return f"{word} ({view.attempt})" if is_again else word


def table_lines(
    rows: Sequence[Sequence[str]],
    room: int | None = None,
    *,
    are_tasks: bool = True,
    dots: str = "…",
) -> list[str]:
    """Return the head and *rows*, of tasks or nodes, in lines of at most *room* columns."""
    table = _TASKS if are_tasks else _NODES
    if not are_tasks and not any(row[1] for row in rows):
        table, rows = _UNTITLED, [(row[0], *row[2:]) for row in rows]
    natural = widest(table.head, rows)
    if are_tasks or room is not None:
        natural = [min(wide, table.most.get(place, wide)) for place, wide in enumerate(natural)]
    # Lines that get longer, and who blocks whom, must not move what stands beside them.
    natural[table.last] = max(natural[table.last], room or 0)
    if are_tasks:
        natural[BLOCKED] = max(natural[BLOCKED], table.least[BLOCKED])
    wide = narrowed(
        natural, rows, room, goes=table.goes, least=table.least, right=table.right, first=0
    )
    if are_tasks and BLOCKED not in wide and LAST in wide:
        rows = [_with_blockers(row, wide[LAST]) for row in rows]

    def fit(place: int, text: str, most: int) -> str:
        return cut(_few(text, most) if place == BLOCKED else text, most, dots=dots)

    return lines(table.head, rows, wide, right=table.right, fit=fit)


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


def _team_summary(view: FlowView, now: datetime | None, columns: int | None) -> str:
    """Return the whole run in one line; what there is no room for is left out."""
    running = sum(node.state is NodeState.RUNNING for node in view.nodes)
    size, tokens = view.graph.max_parallel, sum(node.tokens for node in view.nodes)
    spent = elapsed(view, now)
    parts = [
        # Each behind how soon it may be left out.
        (1, _words(view.status)),
        (0, counted_tasks(view.nodes)),
        (4, f"{running} of {size} at work" if size and view.status == "running" else ""),
        (5, f"{amount(tokens)} tokens" if tokens else ""),
        (3, total_cost(view)),
        (2, clock(spent) if spent else ""),
    ]
    while True:
        parts = [part for part in parts if part[1]]
        line = " · ".join(text for _, text in parts)
        if columns is None or width(line) <= columns or len(parts) < 2:  # noqa: PLR2004 - the last stays
            return line
        parts.remove(max(parts))


def _words(status: str) -> str:
    return shown(status).replace("-", " ").replace("_", " ")


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
    is_moving = any(n.state in WORKING and not n.is_interrupted for n in view.nodes)
    end = now if now is not None and is_moving else latest
    return max(0.0, (end - began).total_seconds()) if end is not None else 0.0


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
    mark: Callable[[NodeView], str] = lambda _: "",
    dots: str = "…",
) -> list[str]:
    """Return *nodes*, some of those of *view*, in a line each below the head of the table."""
    missing = blocked(view)
    rows = [
        task_cells(one, missing[one.node.id], now, heard.get(one.node.id), mark(one))
        if view.graph.has_tasks
        else _node_cells(one, now, heard.get(one.node.id), mark(one))
        for one in nodes
    ]
    return table_lines(rows, room, are_tasks=view.graph.has_tasks, dots=dots)


def node_summary(view: FlowView, now: datetime | None = None, room: int | None = None) -> str:
    """Return the whole run in one line; with *now*, the time of what runs is counted.

    Of a team's what there is no *room* for is left out.
    """
    if view.graph.has_tasks:
        return _team_summary(view, now, room)
    parts = [_words(view.status), f"{done(view)} of {len(view.nodes)} nodes done"]
    if active := sum(node.state in ACTIVE for node in view.nodes):
        parts.append(f"{active} active")
    if view.iterations or view.graph.back_edges:
        most = view.graph.max_iterations
        # The one too many, which ended the run, was counted and not made.
        parts.append(f"{plural(min(view.iterations, most), 'loop')} of at most {most}")
    spent = sum(
        seconds(n, now) if now and n.state is not NodeState.ASKED else n.seconds for n in view.nodes
    )
    if spent >= 0.05:  # noqa: PLR2004 - what one decimal shows
        parts.append(f"{duration(spent)} of work")
    if cost := total_cost(view):
        parts.append(cost)
    return " · ".join(parts)


def nodes_json(view: FlowView, heard: Mapping[str, Heard] | None = None) -> dict[str, Any]:
    """Return the run for programs; texts as they are, not made safe for a terminal."""
    missing, live = blocked(view), heard or {}
    return {
        "title": view.title,
        "status": view.status,
        "iterations": view.iterations,
        "max_iterations": view.graph.max_iterations,
        "done": done(view),
        "total": len(view.nodes),
        "nodes": [_node(n, live.get(n.node.id), missing[n.node.id]) for n in view.nodes],
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


def _node(view: NodeView, live: Heard | None, missing: list[str]) -> dict[str, Any]:
    said = live.last if live is not None and view.state is NodeState.RUNNING else ""
    node = view.node
    names = ("attempt", "runs", "unpriced", "tokens", "since", "due")
    found = {
        "id": node.id,
        "label": node.label,
        "kind": str(node.kind),
        "state": str(view.state),
        **{name: getattr(view, name) for name in names},
        "seconds": round(view.seconds, 6),
        "cost_usd": None if view.unpriced and not view.cost_usd else round(view.cost_usd, 9),
        "estimated_usd": round(view.estimated_usd, 9),
        "last_line": said or view.last_line,
    }
    return found if node.task is None else {**found, "role": node.task.role, "blocked_by": missing}


USUAL = (80, 24)
SPINNER, ASCII_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "|/-\\"
SPINS_PER_S = 8
SPARE_ROWS = 2
LEAST_ROWS = 6
"""Of a table that leaves room for a blank line before it."""
Styled = tuple[str, str]
"""A line, and how it looks."""
_SEEN = INTEREST[: INTEREST.index(NodeState.READY)]
"""What a person has to see; of each something before there is more of another."""
_SOON = {NodeState.READY: 1, NodeState.WAITING: 2}
_REST = 3


class Frame:
    """Draws the table, and knows what the terminal has made of the last one."""

    def __init__(self, stream: IO[str]) -> None:
        """Draw for the terminal at the end of *stream*."""
        self._stream = stream
        self._size = USUAL
        self._was: tuple[int, ...] = ()
        """Columns that each line took when it was drawn."""
        self._is_ascii = not can_write(
            stream, SPINNER + "".join(LOOKS[one].mark for one in NodeState) + "…·"
        )

    def measure(self) -> tuple[int, int]:
        """Return columns and rows of the terminal, looked up again."""
        try:
            size = os.get_terminal_size(self._stream.fileno())
        except (OSError, ValueError):
            size = os.terminal_size(USUAL)
        # 0 by 0 is what a terminal says that nobody told its size.
        self._size = (size.columns or USUAL[0], size.lines or USUAL[1])
        return self._size

    def rows_gone_astray(self) -> int:
        """Return how many rows more the last table takes since the terminal is narrower."""
        columns = self._size[0]
        return sum(max(0, -(-was // columns) - 1) for was in self._was)

    def erase_astray(self) -> None:
        """Take away what a narrower terminal has broken of the last table, before the next."""
        # It lies above where rich looks for its lines.
        self._stream.write("\r\x1b[2K\x1b[1A" * self.rows_gone_astray())

    def drawn(
        self,
        view: FlowView | None,
        heard: Mapping[str, Heard],
        now: datetime,
        *,
        above: Sequence[Styled] = (),
        below: Sequence[Styled] = (),
    ) -> Text:
        """Return the table of *view* at this size, between lines that are shown in any case.

        They take rows from the table; the last of *above* go where less than half is left.
        """
        from rich.text import Text  # noqa: PLC0415 - loaded with the console

        # The last column stays free: some terminals go to the next line behind it.
        columns, rows = self._size[0] - 1, self._size[1] - SPARE_ROWS - len(below)
        lines = [*above[: max(0, rows // 2 if view is not None else rows)]]
        if view is not None:
            lines += [("", "")] if lines and rows - len(lines) > LEAST_ROWS else []
            lines += self._run(view, heard, now, columns, rows - len(lines))
        lines = [(cut(self._plain(text), columns, dots=self._dots), s) for text, s in lines]
        lines += [(cut(text, columns, dots=self._dots), style) for text, style in below]
        self._was = tuple(width(text) for text, _ in lines)
        text = Text(no_wrap=True, overflow="crop", end="")
        for number, (line, style) in enumerate(lines):
            text.append(f"{line}\n" if number < len(lines) - 1 else line, style=style)
        return text

    @property
    def _dots(self) -> str:
        return "..." if self._is_ascii else "…"

    def _plain(self, text: str) -> str:
        return text.replace("·", "-") if self._is_ascii else text

    def _run(
        self,
        view: FlowView,
        heard: Mapping[str, Heard],
        now: datetime,
        columns: int,
        rows: int,
    ) -> list[Styled]:
        """Return the head, nodes, the count of those that there is no room for, the totals."""
        nodes, rest = chosen(view.nodes, max(0, rows - 2))
        lines: list[Styled] = []
        if nodes:
            found = node_lines(view, nodes, now, columns, heard, mark=self._mark, dots=self._dots)
            styles = ["dim", *(node_look(node).style for node in nodes)]
            lines = list(zip(found, styles, strict=True))
        if rest:
            lines.append((f"and {len(rest)} more: {counted(view, rest)}", "dim"))
        return [*lines, (titled_summary(view, now, columns), "bold")]

    def _mark(self, view: NodeView) -> str:
        if view.state is NodeState.RUNNING and not view.is_interrupted:
            spinner = ASCII_SPINNER if self._is_ascii else SPINNER
            return spinner[int(time.monotonic() * SPINS_PER_S) % len(spinner)]
        return mark_of(view, is_ascii=self._is_ascii)


def chosen(nodes: Sequence[NodeView], room: int) -> tuple[list[NodeView], list[NodeView]]:
    """Return those that fit into *room* lines, in their order, and the rest.

    What a person has to see comes first: of what is asked, runs, is tried again or failed
    something of each. Then what is next, then what stands nearest to those in the list.
    """
    if len(nodes) <= room:
        return list(nodes), []
    numbers: Counter[NodeState] = Counter()
    ranks: list[tuple[int, int, int]] = []
    places = [place for place, node in enumerate(nodes) if node.state in _SEEN]
    for place, node in enumerate(nodes):
        if node.state in _SEEN:
            ranks.append((0, numbers[node.state], _SEEN.index(node.state)))
            numbers[node.state] += 1
        else:
            ranks.append((_SOON.get(node.state, _REST), _distance(place, places), 0))
    by_rank = sorted(range(len(nodes)), key=ranks.__getitem__)
    # One line says how many there are besides.
    kept = set(by_rank[: max(0, room - 1)])
    return (
        [node for place, node in enumerate(nodes) if place in kept],
        [node for place, node in enumerate(nodes) if place not in kept],
    )


def _distance(place: int, places: Sequence[int]) -> int:
    """Return how far *place* is from the nearest of *places*, which are in order."""
    after = bisect(places, place)
    return min((abs(place - one) for one in places[max(0, after - 1) : after + 1]), default=0)
