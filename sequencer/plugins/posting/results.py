"""Which results a run's journal stands for, and which of them a sink has not taken yet.

Pure, and the same for every process: a result's key is its place in the journal, so the
order of what this returns for an event must not change. For people who look, cursors are
read without their lock, and nothing is posted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from sequencer.errors import SequencerError
from sequencer.history.facts import RecordedFact, meaning_of, read
from sequencer.history.results import result_of, text_in
from sequencer.history.story import story_of
from sequencer.model.graph.marking import FlowStatus
from sequencer.model.head import Head
from sequencer.plugins.metrics.facts import metrics_of
from sequencer.plugins.posting.cursor import (
    Cursor,
    CursorFile,
    CursorUnreadable,
    moved_to_run,
)
from sequencer.plugins.posting.protocol import Activity, ActivityType, Post
from sequencer.project.posting import Pending

History = Callable[[int], Iterable[dict[str, Any]]]
"""As `Store.history`: the facts after a revision."""


def activities_of(fact: RecordedFact) -> list[Activity]:
    """Return the results that *fact* stands for; most have none.

    >>> fact = {"revision": 3, "at": "2027-01-31T08:00:00Z", "event": "succeeded",
    ...         "step": "main", "step_index": 1, "attempt": 1, "outcome": {"output": "done"}}
    >>> [(str(told.type), told.body) for one in read([fact]) for told in activities_of(one)]
    [('response', 'done')]
    >>> [activities_of(one) for one in read([{**fact, "event": "claimed"}])]
    [[]]
    """
    result, details = result_of(fact), fact.details
    usage = details.get("usage")
    if result is None or (isinstance(usage, dict) and usage.get("rehearsed")):
        return []  # of a rehearsal: no agent ran, and no one elsewhere may take it for a result
    told = Activity(
        type=ActivityType(result.kind),
        at=fact.at,
        step=fact.step,
        step_index=fact.step_index,
        attempt=fact.attempt,
        event=str(fact.event),
        title=result.title,
        body=result.body,
        question=result.question,
        output_file=text_in(details, "output_file") or None,
    )
    return [told]


def behind(cursor: Cursor, head: Head, history: History) -> Iterator[Post]:
    """Yield the results that are behind *cursor*, oldest first."""
    is_other = cursor.run_id not in (None, head.run_id)
    was_reset = is_other and any(fact.meaning.resets for fact in read(history(cursor.revision)))
    place = moved_to_run(cursor, head.run_id, head.revision, was_reset=was_reset)
    run_id, revision, index = place.run_id or head.run_id, -1, -1
    for fact in read(history(max(place.revision - 1, 0))):
        if fact.meaning.resets:
            run_id = head.run_id
        if fact.revision != revision:
            revision, index = fact.revision, -1
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
    if not meaning_of(post.activity.event or "").ends_run:
        return post
    raw = [fact for fact in history(0) if fact["revision"] <= (post.revision or 0)]
    facts = [*read(raw)]
    usage = head.usage if head.revision == post.revision else None
    activity = replace(post.activity, metrics=metrics_of(story_of(raw), usage))
    end = facts[-1]
    if has_tasks and end.meaning.ends_run and end.details.get("status") == FlowStatus.COMPLETED:
        answers = (fact for fact in reversed(facts) if fact.meaning.is_output)
        details = next((fact.details for fact in answers), {})
        output, name = details.get("output"), details.get("output_file")
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
