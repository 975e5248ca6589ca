"""Recordings of the real clients, whole and with parts left out, to test their evidence."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from tests.unit.executors.replay import recording

Json = dict[str, Any]
WHOLE = {
    "claude": ("claude-330-edit", "claude-197-edit"),
    "codex": ("codex-edit",),
    "gemini": ("gemini-edit",),
    "opencode": ("opencode-edit",),
}
"""One tool call with its result, and "It is done." at the end."""


def events_of(name: str) -> list[Json]:
    """Return the events of the recording called *name*."""
    return [json.loads(line) for line in recording(name)[2]]


def _blocks(event: Json) -> list[str]:
    message = event.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    return [block["type"] for block in content] if isinstance(content, list) else []


def kind_of(event: Json) -> str:
    """Return what an event of any client is: text, call, result, end, start, or other."""
    kind, item = event["type"], event.get("item", {}).get("type")
    delta = event.get("event", {}).get("delta", {}).get("type", "")
    if "text" in _blocks(event) or delta == "text_delta" or item == "agent_message":
        return "text"
    if kind == "text" or (kind == "message" and event.get("role") == "assistant"):
        return "text"
    if "tool_use" in _blocks(event) or kind in {"tool_use", "item.started"}:
        return "call"
    if "tool_result" in _blocks(event) or kind == "tool_result" or item == "command_execution":
        return "result"
    if kind in {"result", "turn.completed", "step_finish"}:
        return "end"
    return "start" if kind == "step_start" else "other"


def without_text(events: list[Json]) -> Iterator[Json]:
    """Yield *events* of a model that says nothing."""
    for event in events:
        if kind_of(event) != "text":
            yield {**event, "result": ""} if event["type"] == "result" else event


def without_tools(events: list[Json]) -> Iterator[Json]:
    """Yield *events* of a model that calls nothing."""
    yield from (event for event in events if kind_of(event) not in {"call", "result"})


def without_end(events: list[Json]) -> Iterator[Json]:
    """Yield *events* up to the client's last word."""
    places = [place for place, event in enumerate(events) if kind_of(event) == "end"]
    yield from events[: places[-1]]


def ended_in_the_call(events: list[Json]) -> Iterator[Json]:
    """Yield *events* up to the tool call, and the client's last word with no result before it."""
    place = next(n for n, event in enumerate(events) if kind_of(event) == "call")
    for event in events[: place + 1]:
        yield _of_a_server(event) if event["type"] == "item.started" else _still_running(event)
    yield {**events[-1], "result": ""} if events[-1]["type"] == "result" else events[-1]


def _of_a_server(event: Json) -> Json:
    """Return codex's call as one of an MCP server: a command may go on behind a turn."""
    return {**event, "item": {**event["item"], "type": "mcp_tool_call"}}


def _still_running(event: Json) -> Json:
    if "state" not in event.get("part", {}):
        return event
    part = event["part"]
    return {**event, "part": {**part, "state": {**part["state"], "status": "running"}}}


def with_reason(reason: str | None, key: str = "stop_reason") -> Callable[[list[Json]], list[Json]]:
    """Return what gives the last event *reason* instead of its own; None: none at all."""

    def changed(events: list[Json]) -> list[Json]:
        *before, last = (_unreasoned(event) for event in events)
        if last["type"] == "step_finish":
            last = {**last, "part": {**last["part"], "reason": reason}}
        elif reason is not None:
            last = {**last, key: reason}
        return [*before, last]

    return changed


def _unreasoned(event: Json) -> Json:
    raw = event.get("event")
    if isinstance(raw, dict) and "stop_reason" in raw.get("delta", {}):
        return {**event, "event": {**raw, "delta": {**raw["delta"], "stop_reason": None}}}
    if event["type"] == "step_finish":
        part = {key: value for key, value in event["part"].items() if key != "reason"}
        return {**event, "part": part}
    return {key: value for key, value in event.items() if not key.endswith("_reason")}


def stopped_by(message: str, severity: str) -> Callable[[list[Json]], list[Json]]:
    """Return what puts gemini's own word for stopping a model before its result."""
    said = {"type": "error", "severity": severity, "message": message}
    return lambda events: [*events[:-1], said, events[-1]]
