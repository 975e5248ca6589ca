"""Report the facts of a run to people who follow it in a tracker, a chat or a log.

The keys of posted results depend on it: do not change the order or the number of a fact's results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from sequencer.history.facts import RecordedFact
from sequencer.model.outcome import error_words
from sequencer.model.transitions import Event

QUESTION = (
    "The run waits for a decision: `sequencer answer approve`, `answer reject` or "
    '`answer "…"` with your feedback.'
)
ASKED = "The run waits for an answer: `sequencer inbox` shows the question and how to answer it."
ResultKind = Literal["response", "error", "elicitation", "thought"]
Words = tuple[ResultKind, str, str]
"""Kind, title and body."""


class FactReport(NamedTuple):
    """The report of one fact."""

    kind: ResultKind
    title: str
    body: str
    question: str | None = None
    """How to answer; None: the fact has no question."""


def result_of(fact: RecordedFact) -> FactReport | None:
    """Return the report of *fact*; None: it has none, like most facts."""
    words = _WORDS.get(fact.event)
    if words is None:
        return None
    kind, title, body = words(fact.details)
    question = ASKED if fact.event is Event.ASKED else QUESTION
    return FactReport(kind, title, body, question if kind == "elicitation" else None)


def text_in(details: Mapping[str, Any], *names: str) -> str:
    """Return the first value in *details* under *names* that is a text and not empty."""
    return next((text for name in names if isinstance(text := details.get(name), str) and text), "")


def _listed(details: Mapping[str, Any], name: str) -> str:
    names = details.get(name)
    return ", ".join(map(str, names)) if isinstance(names, list) else ""


def _words(
    kind: ResultKind, title: str, *names: str, by: bool = False
) -> Callable[[Mapping[str, Any]], Words]:
    """Return a function for *title* (*by*: with the person) and the first text under *names*."""

    def words(details: Mapping[str, Any]) -> Words:
        person = text_in(details, "by") if by else ""
        return kind, f"{title} by {person}" if person else title, text_in(details, *names)

    return words


def _succeeded(details: Mapping[str, Any]) -> Words:
    if details.get("gate") is True:
        return "elicitation", "asks for approval", text_in(details, "output")
    return "response", "succeeded", text_in(details, "output", "note")


def _failed(details: Mapping[str, Any]) -> Words:
    error = error_words(details) or text_in(details, "reason", "note") or "no reason was given"
    log = text_in(details, "log")
    return "error", "failed", f"{error}\n\nStep log: `{log}`" if log else error


def _completed(details: Mapping[str, Any]) -> Words:
    status = text_in(details, "status")
    if status == "rejected":
        return "response", "ended the run, which was rejected", ""
    if status and status != "completed":
        title = f"the run has ended: {status.replace('_', ' ')}"
        return "response", title, text_in(details, "error")
    # The journal names the status only for a run that can end in several ways.
    title = "the run is complete" if status else "was the last step; the run is complete"
    return "response", title, ""


def _ended(title: str) -> Callable[[Mapping[str, Any]], Words]:
    def words(details: Mapping[str, Any]) -> Words:
        stopped = _listed(details, "cancelled")
        return "error", title, f"Stopped: {stopped}" if stopped else ""

    return words


def _grown(details: Mapping[str, Any]) -> Words:
    listed = _listed(details, "tasks")
    return "thought", f"added tasks: {listed}" if listed else "added tasks", ""


_RESPONSE: ResultKind = "response"
_THOUGHT: ResultKind = "thought"
# A step that did not pass and a warning are not errors: the run continues by itself, and a tracker
# would show it as stopped.
_WORDS: Mapping[str, Callable[[Mapping[str, Any]], Words]] = {
    Event.SUCCEEDED: _succeeded,
    Event.FAILED: _failed,
    Event.INVALID: _words(_RESPONSE, "did not pass", "reason", "output", "error"),
    Event.FIXED: _words(_RESPONSE, "was worked on; it is verified again", "output"),
    Event.APPROVED: _words(_RESPONSE, "was approved", "note", by=True),
    Event.REJECTED: _words(_RESPONSE, "was rejected", "note", by=True),
    Event.FEEDBACK: _words(_RESPONSE, "got feedback", "note", by=True),
    Event.COMPLETED: _completed,
    Event.ASKED: _words("elicitation", "asks for an answer", "question"),
    Event.ANSWERED: _words(_RESPONSE, "was answered", "output", by=True),
    Event.EXPIRED: _words(_RESPONSE, "was not answered in time"),
    Event.EXHAUSTED: _ended("would go back more often than the run allows"),
    Event.TIMED_OUT: _ended("the run took longer than it is allowed to"),
    Event.CANCELLED: _words(_RESPONSE, "the run was canceled", "note", by=True),
    Event.GROWN: _grown,
    Event.TOLD: _words(_THOUGHT, "was sent a message", "output", "note", by=True),
    Event.TAKEN_OVER: _words(_THOUGHT, "was taken over", "note", "error"),
    Event.WARNED: _words(_THOUGHT, "warning", "note", "error"),
}
