"""Which results a run's journal stands for, and which of them a sink has not taken yet.

Pure, and the same for every process: a result's key is its place in the journal, so the
order of what this returns for an event must not change. For people who look, cursors are
read without their lock, and nothing is posted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from sequencer.errors import SequencerError
from sequencer.model.head import Head
from sequencer.model.net.marking import FlowStatus
from sequencer.model.outcome import error_words
from sequencer.model.transitions import Event
from sequencer.plugins.metrics.facts import metrics_of
from sequencer.plugins.posting.cursor import (
    Cursor,
    CursorFile,
    CursorUnreadable,
    moved_to_run,
)
from sequencer.plugins.posting.protocol import Activity, ActivityType, Post
from sequencer.project.posting import Pending

QUESTION = (
    "The run waits for a decision: `sequencer answer approve`, `answer reject` or "
    '`answer "…"` with your feedback.'
)
ASKED = "The run waits for an answer: `sequencer inbox` shows the question and how to answer it."

Told = tuple[ActivityType, str, str]
"""Type, title and body."""
History = Callable[[int], Iterable[dict[str, Any]]]
"""As `Store.history`: the facts after a revision."""


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
    question = ASKED if fact["event"] == Event.ASKED else QUESTION
    told = Activity(
        type=kind,
        at=str(fact.get("at", "")),
        step=str(fact.get("step", "")),
        step_index=_number(fact.get("step_index")),
        attempt=_number(fact.get("attempt")),
        event=str(fact["event"]),
        title=title,
        body=body,
        question=question if kind is ActivityType.ELICITATION else None,
        output_file=_text(kept, "output_file") or None,
    )
    return [told]


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _text(kept: Mapping[str, Any], *names: str) -> str:
    """Return the first of *names* that says something."""
    return next((text for name in names if isinstance(text := kept.get(name), str) and text), "")


def _listed(kept: Mapping[str, Any], name: str) -> str:
    names = kept.get(name)
    return ", ".join(map(str, names)) if isinstance(names, list) else ""


def _told(
    kind: ActivityType, title: str, *names: str, by: bool = False
) -> Callable[[Mapping[str, Any]], Told]:
    """Return what tells *title*, *by* whom, and the first of *names* that says something."""

    def told(kept: Mapping[str, Any]) -> Told:
        who = _text(kept, "by") if by else ""
        return kind, f"{title} by {who}" if who else title, _text(kept, *names)

    return told


def _succeeded(kept: Mapping[str, Any]) -> Told:
    if kept.get("gate") is True:
        return ActivityType.ELICITATION, "asks for approval", _text(kept, "output")
    return ActivityType.RESPONSE, "succeeded", _text(kept, "output", "note")


def _failed(kept: Mapping[str, Any]) -> Told:
    error = error_words(kept) or _text(kept, "reason", "note") or "no reason was given"
    log = _text(kept, "log")
    return ActivityType.ERROR, "failed", f"{error}\n\nStep log: `{log}`" if log else error


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


def _ended(title: str) -> Callable[[Mapping[str, Any]], Told]:
    def told(kept: Mapping[str, Any]) -> Told:
        stopped = _listed(kept, "cancelled")
        return ActivityType.ERROR, title, f"Stopped: {stopped}" if stopped else ""

    return told


def _grown(kept: Mapping[str, Any]) -> Told:
    listed = _listed(kept, "tasks")
    return ActivityType.THOUGHT, f"added tasks: {listed}" if listed else "added tasks", ""


_SAID, _ASIDE = ActivityType.RESPONSE, ActivityType.THOUGHT
# What did not pass and what warns are no errors: the run goes on by itself, and a tracker would
# show it as stopped.
_TOLD: Mapping[str, Callable[[Mapping[str, Any]], Told]] = {
    Event.SUCCEEDED: _succeeded,
    Event.FAILED: _failed,
    Event.INVALID: _told(_SAID, "did not pass", "reason", "output", "error"),
    Event.FIXED: _told(_SAID, "was worked on; it is verified again", "output"),
    Event.APPROVED: _told(_SAID, "was approved", "note", by=True),
    Event.REJECTED: _told(_SAID, "was rejected", "note", by=True),
    Event.FEEDBACK: _told(_SAID, "got feedback", "note", by=True),
    Event.COMPLETED: _completed,
    Event.ASKED: _told(ActivityType.ELICITATION, "asks for an answer", "question"),
    Event.ANSWERED: _told(_SAID, "was answered", "output", by=True),
    Event.EXPIRED: _told(_SAID, "was not answered in time"),
    Event.EXHAUSTED: _ended("would go back more often than the run allows"),
    Event.TIMED_OUT: _ended("the run took longer than it is allowed to"),
    Event.CANCELLED: _told(_SAID, "the run was cancelled", "note", by=True),
    Event.GROWN: _grown,
    Event.TOLD: _told(_ASIDE, "was sent a message", "output", "note", by=True),
    Event.TAKEN_OVER: _told(_ASIDE, "was taken over", "note", "error"),
    Event.WARNED: _told(_ASIDE, "warning", "note", "error"),
}


def behind(cursor: Cursor, head: Head, history: History) -> Iterator[Post]:
    """Yield the results that are behind *cursor*, oldest first."""
    is_other = cursor.run_id not in (None, head.run_id)
    was_reset = is_other and any(one["event"] == Event.RESET for one in history(cursor.revision))
    place = moved_to_run(cursor, head.run_id, head.revision, was_reset=was_reset)
    run_id, revision, index = place.run_id or head.run_id, -1, -1
    for fact in history(max(place.revision - 1, 0)):
        if fact["event"] == Event.RESET:
            run_id = head.run_id
        if fact["revision"] != revision:
            revision, index = fact["revision"], -1
        for activity in activities_of(fact):
            index += 1
            if place.is_before(revision, index):
                yield Post(
                    activity=activity,
                    run_id=run_id,
                    run=head.run_name,
                    revision=revision,
                    index=index,
                )


def with_end(post: Post, head: Head, history: History, *, has_tasks: bool) -> Post:
    """Return the end of a run with what all of it came to; any other result as it is.

    The good end of a team's run (*has_tasks*) carries what its last task said.
    """
    if post.activity.event != Event.COMPLETED:
        return post
    facts = [fact for fact in history(0) if fact["revision"] <= (post.revision or 0)]
    usage = head.usage if head.revision == post.revision else None
    metrics = metrics_of(facts, usage)
    activity = replace(post.activity, metrics=metrics)
    end, status = facts[-1], (facts[-1].get("outcome") or {}).get("status")
    if has_tasks and end["event"] == Event.COMPLETED and status == FlowStatus.COMPLETED:
        outcomes = [fact.get("outcome") for fact in facts if fact["event"] == Event.SUCCEEDED]
        kept = (outcomes[-1] if outcomes else None) or {}
        output, name = kept.get("output"), kept.get("output_file")
        activity = replace(
            activity,
            body=output if isinstance(output, str) else "",
            output_file=name if isinstance(name, str) else None,
        )
    return replace(post, activity=activity)


def pending(
    folder: Path,
    sinks: Iterable[str],
    head: Head,
    history: History,
) -> tuple[Pending, ...]:
    """Return what the *sinks* of the run in *folder* have not taken, without those that took all.

    *history* is of the run that *head* is of.
    """
    found = (_pending_of(CursorFile(folder, sink), sink, head, history) for sink in sinks)
    return tuple(one for one in found if one.is_behind or one.refused)


def _pending_of(
    file: CursorFile,
    sink: str,
    head: Head,
    history: History,
) -> Pending:
    refused = file.refusals()
    try:
        cursor = file.read()
        waiting = list(_waiting(cursor, head, history))
    except (CursorUnreadable, OSError, SequencerError) as error:
        return Pending(sink=sink, error=str(error), refused=refused)
    trouble = cursor.trouble if cursor is not None and waiting else None
    return Pending(
        sink=sink,
        pending=len(waiting),
        since=waiting[0] if waiting else None,
        tries=trouble.tries if trouble else 0,
        error=trouble.error if trouble else None,
        refused=refused,
    )


def _waiting(cursor: Cursor | None, head: Head, history: History) -> Iterator[str]:
    """Yield when each of the results behind *cursor* happened."""
    # A sink that the run has not seen is told what comes next, so nothing waits for it.
    if cursor is None or (cursor.run_id == head.run_id and cursor.revision > head.revision):
        return
    for post in behind(cursor, head, history):
        yield post.activity.at
