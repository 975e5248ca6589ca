"""Which results a fact of the journal stands for.

Pure, and the same for every process: a result's key is its place in the journal, so the
order of what this returns for an event must not change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sequencer.activity.protocol import Activity, ActivityType
from sequencer.model.transitions import Event

QUESTION = (
    "The run waits for a decision: `sequencer approve`, `sequencer reject` or "
    '`sequencer feedback "…"`.'
)
ASKED = "The run waits for an answer: `sequencer gates` shows the question and how it is answered."

Told = tuple[ActivityType, str, str]
"""Type, title and body."""


def activities_of(fact: Mapping[str, Any]) -> list[Activity]:
    """Return the results that *fact*, one of `Store.history`, stands for; most have none.

    >>> fact = {"revision": 3, "at": "2027-01-31T08:00:00Z", "event": "succeeded",
    ...         "step": "main", "step_index": 1, "attempt": 1, "outcome": {"output": "done"}}
    >>> [(str(told.type), told.body) for told in activities_of(fact)]
    [('response', 'done')]
    >>> activities_of({**fact, "event": "claimed"})
    []
    """
    tell = _TOLD.get(str(fact.get("event")))
    if tell is None:
        return []
    outcome = fact.get("outcome")
    kept: Mapping[str, Any] = outcome if isinstance(outcome, dict) else {}
    usage = kept.get("usage")
    if isinstance(usage, dict) and usage.get("rehearsed"):
        return []  # no agent ran: nobody elsewhere is to take it for a result
    kind, title, body = tell(kept)
    output_file = kept.get("output_file")
    told = Activity(
        type=kind,
        at=str(fact.get("at", "")),
        step=str(fact.get("step", "")),
        step_index=_number(fact.get("step_index")),
        attempt=_number(fact.get("attempt")),
        event=str(fact["event"]),
        title=title,
        body=body,
        question=_question(kind, str(fact["event"])),
        output_file=output_file if isinstance(output_file, str) else None,
    )
    return [told]


def _question(kind: ActivityType, event: str) -> str | None:
    if kind is not ActivityType.ELICITATION:
        return None
    return ASKED if event == Event.ASKED else QUESTION


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _text(kept: Mapping[str, Any], *names: str) -> str:
    """Return the first of *names* that says something."""
    return next((text for name in names if isinstance(text := kept.get(name), str) and text), "")


def _succeeded(kept: Mapping[str, Any]) -> Told:
    if kept.get("gate") is True:
        return ActivityType.ELICITATION, "asks for approval", _text(kept, "output")
    return ActivityType.RESPONSE, "succeeded", _text(kept, "output", "note")


def _failed(kept: Mapping[str, Any]) -> Told:
    error = _text(kept, "error", "reason", "note") or "no reason was given"
    log = _text(kept, "log")
    return ActivityType.ERROR, "failed", f"{error}\n\nStep log: `{log}`" if log else error


def _invalid(kept: Mapping[str, Any]) -> Told:
    # No error: the run goes on by itself, and a tracker would show it as stopped.
    return ActivityType.RESPONSE, "did not pass", _text(kept, "reason", "output", "error")


def _fixed(kept: Mapping[str, Any]) -> Told:
    return ActivityType.RESPONSE, "was worked on; it is verified again", _text(kept, "output")


def _decided(title: str) -> Callable[[Mapping[str, Any]], Told]:
    def told(kept: Mapping[str, Any]) -> Told:
        by = _text(kept, "by")
        return ActivityType.RESPONSE, f"{title} by {by}" if by else title, _text(kept, "note")

    return told


def _completed(kept: Mapping[str, Any]) -> Told:
    status = _text(kept, "status")
    if status == "rejected":
        return ActivityType.RESPONSE, "ended the run, which was rejected", ""
    if status and status != "completed":
        title = f"the run has ended: {status.replace('_', ' ')}"
        return ActivityType.RESPONSE, title, _text(kept, "error")
    # Only where there are several ways to the end does the journal say which it was.
    title = "the run is complete" if status else "was the last step; the run is complete"
    return ActivityType.RESPONSE, title, ""


def _asked(kept: Mapping[str, Any]) -> Told:
    return ActivityType.ELICITATION, "asks for an answer", _text(kept, "question")


def _answered(kept: Mapping[str, Any]) -> Told:
    by = _text(kept, "by")
    title = f"was answered by {by}" if by else "was answered"
    return ActivityType.RESPONSE, title, _text(kept, "output")


def _ended(title: str) -> Callable[[Mapping[str, Any]], Told]:
    return lambda kept: (ActivityType.ERROR, title, _stopped(kept))


def _stopped(kept: Mapping[str, Any]) -> str:
    names = kept.get("cancelled")
    return f"Stopped: {', '.join(map(str, names))}" if isinstance(names, list) and names else ""


def _grown(kept: Mapping[str, Any]) -> Told:
    names = kept.get("tasks")
    listed = ", ".join(map(str, names)) if isinstance(names, list) else ""
    return ActivityType.THOUGHT, f"added tasks: {listed}" if listed else "added tasks", ""


def _sent(kept: Mapping[str, Any]) -> Told:
    by = _text(kept, "by")
    title = f"was sent a message by {by}" if by else "was sent a message"
    return ActivityType.THOUGHT, title, _text(kept, "output", "note")


def _taken_over(kept: Mapping[str, Any]) -> Told:
    return ActivityType.THOUGHT, "was taken over", _text(kept, "note", "error")


def _warned(kept: Mapping[str, Any]) -> Told:
    # No error: what runs goes on, and a tracker would show it as stopped.
    return ActivityType.THOUGHT, "warning", _text(kept, "note", "error")


_TOLD: Mapping[str, Callable[[Mapping[str, Any]], Told]] = {
    Event.SUCCEEDED: _succeeded,
    Event.FAILED: _failed,
    Event.INVALID: _invalid,
    Event.FIXED: _fixed,
    Event.APPROVED: _decided("was approved"),
    Event.REJECTED: _decided("was rejected"),
    Event.FEEDBACK: _decided("got feedback"),
    Event.COMPLETED: _completed,
    Event.ASKED: _asked,
    Event.ANSWERED: _answered,
    Event.EXPIRED: lambda _: (ActivityType.RESPONSE, "was not answered in time", ""),
    Event.EXHAUSTED: _ended("would go back more often than the run may"),
    Event.TIMED_OUT: _ended("the run took longer than it may"),
    Event.CANCELLED: _decided("the run was cancelled"),
    Event.GROWN: _grown,
    Event.TOLD: _sent,
    Event.TAKEN_OVER: _taken_over,
    Event.WARNED: _warned,
}
