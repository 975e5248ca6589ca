"""Report the facts of a run to people who follow it in a tracker, a chat or a log.

The keys of posted results depend on it: do not change the order or the number of a fact's results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from msgspec import Struct

from sequencer.history.facts import RecordedFact
from sequencer.model.outcome import format_error
from sequencer.model.transitions import Event

QUESTION = (
    "The run waits for a decision: `sequencer answer approve`, `answer reject` or "
    '`answer "…"` with your feedback.'
)
ASKED = "The run waits for an answer: `sequencer inbox` shows the question and how to answer it."
ResultKind = Literal["response", "error", "elicitation", "thought"]
Words = tuple[ResultKind, str, str]
"""Kind, title and body."""


class FactReport(Struct, frozen=True):
    """The report of one fact."""

    kind: ResultKind
    title: str
    body: str
    question: str | None = None
    """How to answer; None: the fact has no question."""


def build_report(fact: RecordedFact) -> FactReport | None:
    """Return the report of *fact*, or None: most facts have none."""
    format_fact = _FORMATTERS.get(fact.event)
    if format_fact is None:
        if not fact.meaning.title:
            return None
        format_fact = _make_formatter(_THOUGHT, fact.meaning.title, "note", "error", by=True)
    kind, title, body = format_fact(fact.details)
    question = ASKED if fact.event is Event.ASKED else QUESTION
    return FactReport(kind, title, body, question if kind == "elicitation" else None)


def find_text(details: Mapping[str, Any], *names: str) -> str:
    """Return the first value in *details* under *names* that is a text and not empty."""
    return next((text for name in names if isinstance(text := details.get(name), str) and text), "")


def _join_names(details: Mapping[str, Any], name: str) -> str:
    names = details.get(name)
    return ", ".join(map(str, names)) if isinstance(names, list) else ""


def _make_formatter(
    kind: ResultKind, title: str, *names: str, by: bool = False
) -> Callable[[Mapping[str, Any]], Words]:
    """Return a function for *title* (*by*: with the person) and the first text under *names*."""

    def format_fact(details: Mapping[str, Any]) -> Words:
        person = find_text(details, "by") if by else ""
        return kind, f"{title} by {person}" if person else title, find_text(details, *names)

    return format_fact


def _format_success(details: Mapping[str, Any]) -> Words:
    if details.get("gate") is True:
        return "elicitation", "asks for approval", find_text(details, "output")
    return "response", "succeeded", find_text(details, "output", "note")


def _format_failure(details: Mapping[str, Any]) -> Words:
    error = format_error(details) or find_text(details, "reason", "note") or "no reason was given"
    log = find_text(details, "log")
    return "error", "failed", f"{error}\n\nStep log: `{log}`" if log else error


def _format_completion(details: Mapping[str, Any]) -> Words:
    status = find_text(details, "status")
    if status == "rejected":
        return "response", "ended the run, which was rejected", ""
    if status and status != "completed":
        title = f"the run has ended: {status.replace('_', ' ')}"
        return "response", title, find_text(details, "error")
    # The journal names the status only for a run that can end in several ways.
    title = "the run is complete" if status else "was the last step; the run is complete"
    return "response", title, ""


def _make_end_formatter(title: str) -> Callable[[Mapping[str, Any]], Words]:
    def format_fact(details: Mapping[str, Any]) -> Words:
        names = _join_names(details, "cancelled")
        return "error", title, f"Stopped: {names}" if names else ""

    return format_fact


def _format_growth(details: Mapping[str, Any]) -> Words:
    names = _join_names(details, "tasks")
    return "thought", f"added tasks: {names}" if names else "added tasks", ""


_RESPONSE: ResultKind = "response"
_THOUGHT: ResultKind = "thought"
# A step that did not pass and a warning are not errors: the run continues by itself, and a tracker
# would show it as stopped.
_FORMATTERS: Mapping[str, Callable[[Mapping[str, Any]], Words]] = {
    Event.SUCCEEDED: _format_success,
    Event.FAILED: _format_failure,
    Event.INVALID: _make_formatter(_RESPONSE, "did not pass", "reason", "output", "error"),
    Event.FIXED: _make_formatter(_RESPONSE, "was worked on; it is verified again", "output"),
    Event.APPROVED: _make_formatter(_RESPONSE, "was approved", "note", by=True),
    Event.REJECTED: _make_formatter(_RESPONSE, "was rejected", "note", by=True),
    Event.FEEDBACK: _make_formatter(_RESPONSE, "got feedback", "note", by=True),
    Event.COMPLETED: _format_completion,
    Event.ASKED: _make_formatter("elicitation", "asks for an answer", "question"),
    Event.ANSWERED: _make_formatter(_RESPONSE, "was answered", "output", by=True),
    Event.EXPIRED: _make_formatter(_RESPONSE, "was not answered in time"),
    Event.EXHAUSTED: _make_end_formatter("would go back more often than the run allows"),
    Event.TIMED_OUT: _make_end_formatter("the run took longer than it is allowed to"),
    Event.CANCELLED: _make_formatter(_RESPONSE, "the run was canceled", "note", by=True),
    Event.GROWN: _format_growth,
    Event.TOLD: _make_formatter(_THOUGHT, "was sent a message", "output", "note", by=True),
    Event.TAKEN_OVER: _make_formatter(_THOUGHT, "was taken over", "note", "error"),
}
