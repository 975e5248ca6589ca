"""The trace of a graph's run, one line for each fact, as `simulate` and `history` print it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sequencer.history.facts import find_meaning
from sequencer.model.transitions import Event


def trace_line(event: str, node: str, details: Mapping[str, Any]) -> str | None:
    """Return the line of one fact; None: it is not an event of a graph.

    >>> trace_line("claimed", "j", {"from": ["c", "d"]})
    'start j <- c+d'
    >>> trace_line("warned", "", {})
    'warning'
    """
    if (formatter := _LINES.get(event)) is not None:
        return formatter(node, details)
    title = find_meaning(event).title
    return f"{title} {node}".rstrip() if title else None


def _format_start(node: str, details: Mapping[str, Any]) -> str:
    if number := details.get("retry"):
        return f"retry {node} attempt {number}"
    if details.get("again"):
        return f"again {node}"
    sources: Sequence[str] = details.get("from") or ()
    suffix = f" <- {'+'.join(sources)}" if len(sources) > 1 else ""
    return f"start {node}{suffix}"


def _format_cancelled(details: Mapping[str, Any]) -> str:
    names = details.get("cancelled")
    return f"; cancelled {', '.join(names)}" if names else ""


def _format_done(node: str, details: Mapping[str, Any]) -> str:
    choice = details.get("choice")
    return f"done {node}" if choice is None else f"done {node} = {choice}"


def _format_failure(node: str, details: Mapping[str, Any]) -> str:
    number = details.get("try")
    attempt = f" attempt {number}" if number else ""
    return f"fail {node}{attempt}: {details.get('error', '')}{_format_cancelled(details)}"


def _format_expiry(node: str, details: Mapping[str, Any]) -> str:
    target = details.get("to")
    return f"timeout {node} -> {target}" if target else f"timeout {node}"


def _format_exhaustion(node: str, details: Mapping[str, Any]) -> str:
    text = f"maxIterations {details.get('limit')} exceeded at {node} -> {details.get('to')}"
    return f"{text}{_format_cancelled(details)}"


_LINES: Mapping[str, Callable[[str, Mapping[str, Any]], str]] = {
    **dict.fromkeys((Event.CLAIMED, Event.STARTED, Event.ASKED), _format_start),
    **dict.fromkeys((Event.SUCCEEDED, Event.ANSWERED, Event.PASSED), _format_done),
    Event.STAMPED: lambda node, _: f"stamped {node}",
    Event.SKIPPED: lambda node, _: f"skipped {node}",
    Event.REWOUND: lambda node, _: f"back to {node}",
    Event.FAILED: _format_failure,
    Event.LOOPED: lambda node, more: f"loop {node} -> {more.get('to')} #{more.get('number')}",
    Event.EXPIRED: _format_expiry,
    Event.DIVERTED: lambda _, more: f"onError -> {more.get('to')}{_format_cancelled(more)}",
    Event.EXHAUSTED: _format_exhaustion,
    Event.TIMED_OUT: lambda _, more: f"workflow timeout{_format_cancelled(more)}",
    Event.GROWN: lambda node, more: f"add {', '.join(more.get('tasks') or ())} <- {node}",
    Event.INVALID: lambda node, _: f"no {node}",
    Event.TOLD: lambda node, more: f"tell {node}: {more.get('output', '')}",
    Event.CANCELLED: lambda _, more: f"stopped by hand{_format_cancelled(more)}",
}
