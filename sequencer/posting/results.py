"""Which results a run's journal stands for, and which of them a sink has not taken yet.

Pure, and the same for every process: a result's key is its place in the journal, so the
order of what this returns for an event must not change. For people who look, cursors are
read without their lock, and nothing is posted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from sequencer.errors import SequencerError
from sequencer.history.metrics import metrics_of
from sequencer.model.dataclass import dataclass
from sequencer.model.head import Head
from sequencer.model.net.marking import FlowStatus
from sequencer.model.transitions import Event
from sequencer.posting.cursor import (
    FOLDER,
    REFUSED,
    Cursor,
    CursorFile,
    CursorUnreadable,
    moved_to_run,
)
from sequencer.posting.protocol import Activity, ActivityType, Post

QUESTION = (
    "The run waits for a decision: `sequencer approve`, `sequencer reject` or "
    '`sequencer feedback "…"`.'
)
ASKED = "The run waits for an answer: `sequencer gates` shows the question and how it is answered."

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
    metrics = metrics_of(facts, usage, is_graph=head.flow is not None)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """What one sink has not taken."""

    sink: str
    pending: int = 0
    """Results that wait; they are posted later, in order."""
    since: str | None = None
    """When the oldest of them happened."""
    tries: int = 0
    error: str | None = None
    """Why the last try failed; None: it was not tried."""
    refused: int = 0
    """Results that it will never take."""

    @property
    def is_behind(self) -> bool:
        """Return whether a later process has something to post here, or can't know."""
        return bool(self.pending or self.error)

    def as_json(self) -> dict[str, Any]:
        """Return the fields by name."""
        return asdict(self)

    def text(self, words: Callable[[str], str]) -> str:
        """Return it in a line; *words* says for how long something has lasted."""
        name = f"sink {self.sink!r}"
        if self.is_behind:
            waits = "1 post waits" if self.pending == 1 else f"{self.pending} posts wait"
            told = f"{waits} for {name}" if self.pending else name
            told += f" for {words(self.since)}" if self.since else ""
            tries = {0: "", 1: ", tried once"}.get(self.tries, f", tried {self.tries} times")
            return f"{told}: {self.error}{tries}" if self.error else f"{told}: not tried yet"
        return f"{name} refused {self.refused} for good; see {FOLDER}/{REFUSED}, then remove it"


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
