"""A graph's run as a table: one node or task per line, in as many columns as fit.

If there is no room, columns are left out, the least useful first: columns without a value, then,
for tasks, the role, the cost, the tokens, the blockers and the subject. Lines are not wrapped. A
live table has the size of the terminal at that moment: nodes that a person waits for stay in it,
and the others are only counted.
"""

from __future__ import annotations

import os
import time
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import IO, TYPE_CHECKING, Any

from msgspec import Struct

from sequencer.cli.views.states import (
    ACTIVE,
    INTEREST,
    LAST_LINE_COLUMNS,
    STATE_DISPLAYS,
    WORKING,
    count_done,
    format_state,
    get_node_display,
    get_node_mark,
    node_duration_s,
    sanitize_text,
)
from sequencer.cli.views.tables import fit_widths, format_rows, measure_widths
from sequencer.cli.views.text import can_write, cut, fit_names, format_clock, pluralize, width
from sequencer.history.view import FlowView, NodeState, NodeView
from sequencer.model.limits import parse_time
from sequencer.model.outcome import Usage, format_cost, format_count, format_duration

if TYPE_CHECKING:
    from rich.text import Text

HEAD = (
    *("TASK", "SUBJECT", "ROLE", "STATE", "TIME"),
    *("TOKENS", "COST", "LAST LINE", "BLOCKED BY"),
)
TASK, SUBJECT, ROLE, STATE, TIME, TOKENS, COST, LAST, BLOCKED = range(len(HEAD))


class _Table(Struct, frozen=True):
    """The columns of the table for a kind of graph, and how they share the width of a terminal.

    Columns are numbered from 0; widths are in characters of the terminal.
    """

    head: tuple[str, ...]
    right: frozenset[int]
    """Columns that are aligned right."""
    least: Mapping[int, int]
    """Column -> the smallest width with which it is still useful."""
    most: Mapping[int, int]
    """Column -> the largest width that it may take."""
    goes: Sequence[int]
    """Columns that are left out if there is no room, in this order."""
    last: int
    """The column of the last output, which takes the remaining width."""


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
"""Used if no node has a title that says more than its id."""
NOTHING = "-"
_REACHED = (NodeState.PENDING, NodeState.WAITING)
_COUNTED = {
    "done": (NodeState.DONE,),
    "running": (NodeState.RUNNING,),
    "waiting": (*_REACHED, NodeState.READY, NodeState.RETRYING, NodeState.ASKED),
    "failed": (NodeState.FAILED,),
    "cancelled": (NodeState.CANCELLED,),
}


class NodeProgress(Struct, frozen=True):
    """The last output and the usage so far of a node that runs in this process."""

    last: str = ""
    cost_usd: float = 0.0
    tokens: int = 0


def cost_cell(view: NodeView, more_usd: float = 0.0) -> str:
    """Return a node's cost: ``~`` marks an estimate, ``?`` an unknown part; empty: no cost."""
    cost = view.cost_usd + more_usd
    amount = f"{'~' if view.estimated_usd else ''}{cost:.4f}" if cost else ""
    return f"{amount}+?" if amount and view.unpriced else amount or ("?" if view.unpriced else "")


def total_cost(view: FlowView) -> str:
    """Return the cost of the run of *view*, including its start; empty: no cost."""
    nodes = view.nodes
    usage = Usage(
        cost_usd=sum(node.cost_usd for node in nodes),
        unpriced=sum(node.unpriced for node in nodes),
        estimated_usd=sum(node.estimated_usd for node in nodes),
    )
    return format_cost(usage.plus(view.before))


def titled_summary(view: FlowView, now: datetime, max_width: int) -> str:
    """Return title and summary; a team's leaves out parts that don't fit, the title first."""
    text = f"{sanitize_text(view.title)} · {node_summary(view, now)}"
    has_room = not view.graph.has_tasks or width(text) <= max_width
    return text if has_room else node_summary(view, now, max_width)


def format_state_counts(view: FlowView, nodes: Sequence[NodeView]) -> str:
    """Return how many of *nodes*, which are nodes of *view*, are in which state."""
    if view.graph.has_tasks:
        return format_task_counts(nodes)
    counts = Counter(get_node_display(node).word for node in nodes)
    return ", ".join(f"{count} {state}" for state, count in counts.most_common())


def find_blockers(view: FlowView) -> dict[str, list[str]]:
    """Return, for each node of *view*, the nodes before it that are not done and so block it."""
    states = {node.node.id: node.state for node in view.nodes}
    blockers: dict[str, list[str]] = {name: [] for name in states}
    for edge in view.graph.edges:
        if states[edge.target] in _REACHED and states[edge.source] is not NodeState.DONE:
            blockers[edge.target].append(edge.source)
    return blockers


def task_cells(
    view: NodeView,
    blocks: Sequence[str],
    now: datetime,
    live: NodeProgress | None = None,
    mark: str = "",
) -> tuple[str, ...]:
    """Return the cells of one task's line; *live* is used only while the task runs."""
    task, node = view.node.task, view.node
    is_running = view.state is NodeState.RUNNING
    output = live if live is not None and is_running else NodeProgress()
    name, *_, cost, last_line = _node_cells(view, now, output, mark)
    if is_running and not output.last and task is not None and task.active_form:
        # Until the new attempt has output, the last line is from an earlier attempt.
        last_line = cut(sanitize_text(task.active_form), LAST_LINE_COLUMNS)
    duration_s, tokens = node_duration_s(view, now), view.tokens + output.tokens
    return (
        name,
        sanitize_text(node.label) or NOTHING,
        (task.role if task is not None else None) or NOTHING,
        _format_state(view, now),
        format_clock(duration_s) if duration_s > 0 else NOTHING,
        format_count(tokens) if tokens else NOTHING,
        cost,
        last_line,
        ", ".join(map(sanitize_text, blocks)) or NOTHING,
    )


def _node_cells(
    view: NodeView, now: datetime, live_output: NodeProgress | None, mark: str
) -> tuple[str, ...]:
    """Return the cells of one node's line; *live_output* is used only while the node runs."""
    output = (
        live_output
        if live_output is not None and view.state is NodeState.RUNNING
        else NodeProgress()
    )
    duration_s = node_duration_s(view, now)
    return (
        f"{mark} {sanitize_text(view.node.id)}".lstrip(),
        sanitize_text(view.node.title),
        format_state(view, now),
        str(view.attempt or NOTHING),
        str(view.runs or NOTHING),
        format_duration(duration_s) if duration_s > 0 else NOTHING,
        cost_cell(view, output.cost_usd) or NOTHING,
        cut(sanitize_text(output.last or view.last_line), LAST_LINE_COLUMNS) or NOTHING,
    )


def _format_state(view: NodeView, now: datetime) -> str:
    if view.state in _REACHED:
        return "waiting"
    due_date = parse_time(view.due) if view.due else None
    if view.state is NodeState.RETRYING and due_date is not None:
        return f"retry in {format_clock(max(0.0, (due_date - now).total_seconds()))}"
    is_again = view.attempt > 1 and view.state in (NodeState.RUNNING, NodeState.FAILED)
    word = get_node_display(view).word
    return f"{word} ({view.attempt})" if is_again else word


def table_lines(
    rows: Sequence[Sequence[str]],
    max_width: int | None = None,
    *,
    are_tasks: bool = True,
    dots: str = "…",
) -> list[str]:
    """Return the head and the *rows* of tasks or nodes as lines of at most *max_width* columns."""
    table = _TASKS if are_tasks else _NODES
    if not are_tasks and not any(row[1] for row in rows):
        table, rows = _UNTITLED, [(row[0], *row[2:]) for row in rows]
    natural_widths = measure_widths(table.head, rows)
    if are_tasks or max_width is not None:
        natural_widths = [
            min(column_width, table.most.get(column, column_width))
            for column, column_width in enumerate(natural_widths)
        ]
    # The width of the last output and of the blockers must not depend on their changing texts.
    natural_widths[table.last] = max(natural_widths[table.last], max_width or 0)
    if are_tasks:
        natural_widths[BLOCKED] = max(natural_widths[BLOCKED], table.least[BLOCKED])
    widths = fit_widths(
        natural_widths,
        rows,
        max_width,
        goes=table.goes,
        least=table.least,
        right=table.right,
        first=0,
    )
    if are_tasks and BLOCKED not in widths and LAST in widths:
        rows = [_with_blockers(row, widths[LAST]) for row in rows]

    def fit(column: int, text: str, most: int) -> str:
        return cut(_fit_names(text, most) if column == BLOCKED else text, most, dots=dots)

    return format_rows(table.head, rows, widths, right=table.right, fit=fit)


def _with_blockers(row: Sequence[str], columns: int) -> Sequence[str]:
    """Return *row* with its blockers in the last column, if it has no output yet."""
    if row[BLOCKED] == NOTHING or row[LAST] != NOTHING:
        return row
    prefix = "after "
    return (*row[:LAST], prefix + _fit_names(row[BLOCKED], columns - len(prefix)), row[BLOCKED])


def _fit_names(names: str, columns: int) -> str:
    """Return as many of *names* as fit into *columns*, and the number of the others.

    >>> _fit_names("plan, search, history", 15), _fit_names("implement-parser, test-it", 10)
    ('plan, search +1', '2 tasks')
    """
    items = names.split(", ")
    text = fit_names(items, columns, more=" +{}")
    return f"{len(items)} tasks" if len(items) > 1 and width(text) > columns else text


def _team_summary(view: FlowView, now: datetime | None, columns: int | None) -> str:
    """Return the state of the whole run in one line; parts that don't fit are left out."""
    running_count = sum(node.state is NodeState.RUNNING for node in view.nodes)
    size, tokens = view.graph.max_parallel, sum(node.tokens for node in view.nodes)
    duration_s = run_duration_s(view, now)
    parts = [
        # (rank, text): the part with the highest rank is left out first.
        (1, _format_status(view.status)),
        (0, format_task_counts(view.nodes)),
        (4, f"{running_count} of {size} at work" if size and view.status == "running" else ""),
        (5, f"{format_count(tokens)} tokens" if tokens else ""),
        (3, total_cost(view)),
        (2, format_clock(duration_s) if duration_s else ""),
    ]
    while True:
        parts = [part for part in parts if part[1]]
        line = " · ".join(text for _, text in parts)
        if columns is None or width(line) <= columns or len(parts) < 2:  # noqa: PLR2004 - the last stays
            return line
        parts.remove(max(parts))


def _format_status(status: str) -> str:
    return sanitize_text(status).replace("-", " ").replace("_", " ")


def format_task_counts(nodes: Sequence[NodeView]) -> str:
    """Return how many tasks are in which state, in the words of the totals.

    >>> format_task_counts([])
    ''
    """
    states = Counter(node.state for node in nodes)
    counts = {word: sum(states[state] for state in group) for word, group in _COUNTED.items()}
    return ", ".join(f"{count} {word}" for word, count in counts.items() if count)


def run_duration_s(view: FlowView, now: datetime | None = None) -> float:
    """Return the seconds from the first task's start to *now* if a task runs, else to the end."""
    start = parse_time(view.began) if view.began else None
    newest_time = parse_time(view.latest) if view.latest else None
    if start is None:
        return 0.0
    is_moving = any(n.state in WORKING and not n.is_interrupted for n in view.nodes)
    end = now if now is not None and is_moving else newest_time
    return max(0.0, (end - start).total_seconds()) if end is not None else 0.0


def node_table(
    view: FlowView,
    now: datetime,
    max_width: int | None = None,
    progress: Mapping[str, NodeProgress] | None = None,
) -> str:
    """Return a table with a line for every node, and below it a line about the whole run.

    Columns that don't fit into *max_width* are left out; None: none is. *progress* has the last
    output of the running nodes.
    """
    table = node_lines(view, view.nodes, now, max_width, progress or {})
    return "\n".join([*table, "", node_summary(view, now, max_width)])


def node_lines(
    view: FlowView,
    nodes: Sequence[NodeView],
    now: datetime,
    max_width: int | None,
    progress: Mapping[str, NodeProgress],
    *,
    mark: Callable[[NodeView], str] = lambda _: "",
    dots: str = "…",
) -> list[str]:
    """Return the head of the table and a line for each of *nodes*, which are nodes of *view*."""
    blockers = find_blockers(view)
    rows = [
        task_cells(node, blockers[node.node.id], now, progress.get(node.node.id), mark(node))
        if view.graph.has_tasks
        else _node_cells(node, now, progress.get(node.node.id), mark(node))
        for node in nodes
    ]
    return table_lines(rows, max_width, are_tasks=view.graph.has_tasks, dots=dots)


def node_summary(view: FlowView, now: datetime | None = None, max_width: int | None = None) -> str:
    """Return the state of the whole run in one line; with *now*, running attempts count.

    For a team, parts that don't fit into *max_width* are left out.
    """
    if view.graph.has_tasks:
        return _team_summary(view, now, max_width)
    parts = [_format_status(view.status), f"{count_done(view)} of {len(view.nodes)} nodes done"]
    if active_count := sum(node.state in ACTIVE for node in view.nodes):
        parts.append(f"{active_count} active")
    if view.iterations or view.graph.back_edges:
        limit = view.graph.max_iterations
        # The iteration over the limit, which ended the run, is counted but did not run.
        parts.append(f"{pluralize(min(view.iterations, limit), 'loop')} of at most {limit}")
    duration_s = sum(
        node_duration_s(n, now) if now and n.state is not NodeState.ASKED else n.seconds
        for n in view.nodes
    )
    if duration_s >= 0.05:  # noqa: PLR2004 - what one decimal shows
        parts.append(f"{format_duration(duration_s)} of work")
    if cost := total_cost(view):
        parts.append(cost)
    return " · ".join(parts)


def nodes_json(
    view: FlowView, progress: Mapping[str, NodeProgress] | None = None
) -> dict[str, Any]:
    """Return the run as JSON for programs; its texts are not made safe for a terminal."""
    blockers, outputs = find_blockers(view), progress or {}
    return {
        "title": view.title,
        "status": view.status,
        "iterations": view.iterations,
        "max_iterations": view.graph.max_iterations,
        "done": count_done(view),
        "total": len(view.nodes),
        "nodes": [_node_json(n, outputs.get(n.node.id), blockers[n.node.id]) for n in view.nodes],
        "edges": [
            {
                "from": edge.source,
                "to": edge.target,
                "label": edge.label,
                "is_back": index in view.graph.back_edges,
                "was_followed": index in view.followed,
            }
            for index, edge in enumerate(view.graph.edges)
        ],
    }


def _node_json(
    view: NodeView, live_output: NodeProgress | None, blockers: list[str]
) -> dict[str, Any]:
    output = live_output.last if live_output is not None and view.state is NodeState.RUNNING else ""
    node = view.node
    names = ("attempt", "runs", "unpriced", "tokens", "since", "due")
    facts = {
        "id": node.id,
        "label": node.label,
        "kind": str(node.kind),
        "state": str(view.state),
        **{name: getattr(view, name) for name in names},
        "seconds": round(view.seconds, 6),
        "cost_usd": None if view.unpriced and not view.cost_usd else round(view.cost_usd, 9),
        "estimated_usd": round(view.estimated_usd, 9),
        "last_line": output or view.last_line,
    }
    return facts if node.task is None else {**facts, "role": node.task.role, "blocked_by": blockers}


USUAL = (80, 24)
SPINNER, ASCII_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "|/-\\"
SPINS_PER_S = 8
SPARE_ROWS = 2
MIN_ROWS = 6
"""If a table has more rows than this, a blank line is put before it."""
Styled = tuple[str, str]
"""A line, and its style for rich."""
_SEEN = INTEREST[: INTEREST.index(NodeState.READY)]
"""States that a person has to see; one node of each is shown before a second of any."""
_SOON = {NodeState.READY: 1, NodeState.WAITING: 2}
_REST = 3


class Frame:
    """Draws the live table, and cleans up when a narrower terminal has wrapped the last one."""

    def __init__(self, stream: IO[str]) -> None:
        """Draw for the terminal at the end of *stream*."""
        self._stream = stream
        self._size = USUAL
        self._widths: tuple[int, ...] = ()
        """The width of each line when it was drawn."""
        self._is_ascii = not can_write(
            stream, SPINNER + "".join(STATE_DISPLAYS[state].mark for state in NodeState) + "…·"
        )

    def measure(self) -> tuple[int, int]:
        """Read the size of the terminal again, and return its columns and rows."""
        try:
            size = os.get_terminal_size(self._stream.fileno())
        except (OSError, ValueError):
            size = os.terminal_size(USUAL)
        # A terminal whose size was never set reports 0 by 0.
        self._size = (size.columns or USUAL[0], size.lines or USUAL[1])
        return self._size

    def count_stray_rows(self) -> int:
        """Return how many rows the last table has gained because the terminal became narrower."""
        columns = self._size[0]
        return sum(max(0, -(-old_width // columns) - 1) for old_width in self._widths)

    def erase_stray_rows(self) -> None:
        """Erase the rows that a narrower terminal has added to the last table by wrapping it."""
        # They are above the lines that rich erases itself.
        self._stream.write("\r\x1b[2K\x1b[1A" * self.count_stray_rows())

    def render(
        self,
        view: FlowView | None,
        progress: Mapping[str, NodeProgress],
        now: datetime,
        *,
        above: Sequence[Styled] = (),
        below: Sequence[Styled] = (),
    ) -> Text:
        """Return the table of *view* in the measured size, between the lines *above* and *below*.

        Those lines take rows from the table. *above* takes at most half of the rows; its last
        lines are left out.
        """
        from rich.text import Text  # noqa: PLC0415 - loaded with the console

        # The last column stays free: some terminals move to the next line after writing in it.
        columns, rows = self._size[0] - 1, self._size[1] - SPARE_ROWS - len(below)
        lines = [*above[: max(0, rows // 2 if view is not None else rows)]]
        if view is not None:
            lines += [("", "")] if lines and rows - len(lines) > MIN_ROWS else []
            lines += self._render_run(view, progress, now, columns, rows - len(lines))
        lines = [
            (cut(self._replace_symbols(text), columns, dots=self._dots), s) for text, s in lines
        ]
        lines += [(cut(text, columns, dots=self._dots), style) for text, style in below]
        self._widths = tuple(width(text) for text, _ in lines)
        text = Text(no_wrap=True, overflow="crop", end="")
        for number, (line, style) in enumerate(lines):
            text.append(f"{line}\n" if number < len(lines) - 1 else line, style=style)
        return text

    @property
    def _dots(self) -> str:
        return "..." if self._is_ascii else "…"

    def _replace_symbols(self, text: str) -> str:
        return text.replace("·", "-") if self._is_ascii else text

    def _render_run(
        self,
        view: FlowView,
        outputs: Mapping[str, NodeProgress],
        now: datetime,
        columns: int,
        rows: int,
    ) -> list[Styled]:
        """Return the head, the nodes that fit, the number of the others, and the totals."""
        nodes, hidden_nodes = select_nodes(view.nodes, max(0, rows - 2))
        lines: list[Styled] = []
        if nodes:
            texts = node_lines(
                view, nodes, now, columns, outputs, mark=self._choose_mark, dots=self._dots
            )
            styles = ["dim", *(get_node_display(node).style for node in nodes)]
            lines = list(zip(texts, styles, strict=True))
        if hidden_nodes:
            lines.append(
                (f"and {len(hidden_nodes)} more: {format_state_counts(view, hidden_nodes)}", "dim")
            )
        return [*lines, (titled_summary(view, now, columns), "bold")]

    def _choose_mark(self, view: NodeView) -> str:
        if view.state is NodeState.RUNNING and not view.is_interrupted:
            spinner = ASCII_SPINNER if self._is_ascii else SPINNER
            return spinner[int(time.monotonic() * SPINS_PER_S) % len(spinner)]
        return get_node_mark(view, is_ascii=self._is_ascii)


def select_nodes(nodes: Sequence[NodeView], max_rows: int) -> tuple[list[NodeView], list[NodeView]]:
    """Return the nodes that fit into *max_rows* lines, in their order, and the others.

    Nodes that a person has to see are chosen first: some of those that ask, run, failed or are
    tried again. Then come nodes that are next, then nodes that are near the first ones in the list.
    """
    if len(nodes) <= max_rows:
        return list(nodes), []
    numbers: Counter[NodeState] = Counter()
    ranks: list[tuple[int, int, int]] = []
    seen_indexes = [index for index, node in enumerate(nodes) if node.state in _SEEN]
    for index, node in enumerate(nodes):
        if node.state in _SEEN:
            ranks.append((0, numbers[node.state], _SEEN.index(node.state)))
            numbers[node.state] += 1
        else:
            ranks.append((_SOON.get(node.state, _REST), _distance(index, seen_indexes), 0))
    by_rank = sorted(range(len(nodes)), key=ranks.__getitem__)
    # One line is needed for the number of the others.
    chosen_indexes = set(by_rank[: max(0, max_rows - 1)])
    return (
        [node for index, node in enumerate(nodes) if index in chosen_indexes],
        [node for index, node in enumerate(nodes) if index not in chosen_indexes],
    )


def _distance(index: int, indexes: Sequence[int]) -> int:
    """Return the distance from *index* to the nearest of the sorted *indexes*; 0: no others."""
    position = bisect(indexes, index)
    neighbors = indexes[max(0, position - 1) : position + 1]
    return min((abs(index - neighbor) for neighbor in neighbors), default=0)
