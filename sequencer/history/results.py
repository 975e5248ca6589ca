"""What a fact of a run says to people who follow it elsewhere: in a tracker, a chat, a log.

The keys of posted results depend on it: the order and the number of results of a fact stay.
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
    """What one fact says."""

    kind: ResultKind
    title: str
    body: str
    question: str | None = None
    """How to answer; None: nothing is asked."""


def result_of(fact: RecordedFact) -> FactReport | None:
    """Return what *fact* says; None: nothing, as most do."""
    words = _WORDS.get(fact.event)
    if words is None:
        return None
    kind, title, body = words(fact.details)
    question = ASKED if fact.event is Event.ASKED else QUESTION
    return FactReport(kind, title, body, question if kind == "elicitation" else None)


def text_in(details: Mapping[str, Any], *names: str) -> str:
    """Return the first text in *details* among *names* that is not empty."""
    return next((text for name in names if isinstance(text := details.get(name), str) and text), "")


def _listed(kept: Mapping[str, Any], name: str) -> str:
    names = kept.get(name)
    return ", ".join(map(str, names)) if isinstance(names, list) else ""


def _words(
    kind: ResultKind, title: str, *names: str, by: bool = False
) -> Callable[[Mapping[str, Any]], Words]:
    """Return a function for *title*, by whom, and the first of *names* that says something."""

    def words(kept: Mapping[str, Any]) -> Words:
        who = text_in(kept, "by") if by else ""
        return kind, f"{title} by {who}" if who else title, text_in(kept, *names)

    return words


def _succeeded(kept: Mapping[str, Any]) -> Words:
    if kept.get("gate") is True:
        return "elicitation", "asks for approval", text_in(kept, "output")
    return "response", "succeeded", text_in(kept, "output", "note")


def _failed(kept: Mapping[str, Any]) -> Words:
    error = error_words(kept) or text_in(kept, "reason", "note") or "no reason was given"
    log = text_in(kept, "log")
    return "error", "failed", f"{error}\n\nStep log: `{log}`" if log else error


def _completed(kept: Mapping[str, Any]) -> Words:
    status = text_in(kept, "status")
    if status == "rejected":
        return "response", "ended the run, which was rejected", ""
    if status and status != "completed":
        title = f"the run has ended: {status.replace('_', ' ')}"
        return "response", title, text_in(kept, "error")
    # Only where there are several ways to the end does the journal say which it was.
    title = "the run is complete" if status else "was the last step; the run is complete"
    return "response", title, ""


def _ended(title: str) -> Callable[[Mapping[str, Any]], Words]:
    def words(kept: Mapping[str, Any]) -> Words:
        stopped = _listed(kept, "cancelled")
        return "error", title, f"Stopped: {stopped}" if stopped else ""

    return words


def _grown(kept: Mapping[str, Any]) -> Words:
    listed = _listed(kept, "tasks")
    return "thought", f"added tasks: {listed}" if listed else "added tasks", ""


_SAID: ResultKind = "response"
_ASIDE: ResultKind = "thought"
# What did not pass and what warns are no errors: the run goes on by itself, and a tracker would
# show it as stopped.
_WORDS: Mapping[str, Callable[[Mapping[str, Any]], Words]] = {
    Event.SUCCEEDED: _succeeded,
    Event.FAILED: _failed,
    Event.INVALID: _words(_SAID, "did not pass", "reason", "output", "error"),
    Event.FIXED: _words(_SAID, "was worked on; it is verified again", "output"),
    Event.APPROVED: _words(_SAID, "was approved", "note", by=True),
    Event.REJECTED: _words(_SAID, "was rejected", "note", by=True),
    Event.FEEDBACK: _words(_SAID, "got feedback", "note", by=True),
    Event.COMPLETED: _completed,
    Event.ASKED: _words("elicitation", "asks for an answer", "question"),
    Event.ANSWERED: _words(_SAID, "was answered", "output", by=True),
    Event.EXPIRED: _words(_SAID, "was not answered in time"),
    Event.EXHAUSTED: _ended("would go back more often than the run allows"),
    Event.TIMED_OUT: _ended("the run took longer than it is allowed to"),
    Event.CANCELLED: _words(_SAID, "the run was cancelled", "note", by=True),
    Event.GROWN: _grown,
    Event.TOLD: _words(_ASIDE, "was sent a message", "output", "note", by=True),
    Event.TAKEN_OVER: _words(_ASIDE, "was taken over", "note", "error"),
    Event.WARNED: _words(_ASIDE, "warning", "note", "error"),
}
