"""The results in a run's journal, and those that a sink has not accepted yet.

Pure, and the same for every process: a result's key is its position in the journal, so the order
of the results of an event must not change. `find_pending` is for commands that only read: it reads
cursors without their lock, and posts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from sequencer.errors import SequencerError
from sequencer.history.facts import RecordedFact, find_meaning, read_facts
from sequencer.history.results import build_report, find_text
from sequencer.history.story import build_story
from sequencer.model.graph.marking import FlowStatus
from sequencer.model.head import Head
from sequencer.plugins.metrics.facts import compute_metrics
from sequencer.plugins.posting.cursor import (
    Cursor,
    CursorFile,
    CursorUnreadable,
    move_to_run,
)
from sequencer.plugins.posting.protocol import Activity, ActivityType, Post
from sequencer.project.posting import Pending

History = Callable[[int], Iterable[dict[str, Any]]]
"""Returns the facts after a revision; see `Store.history`."""


def list_activities(fact: RecordedFact) -> list[Activity]:
    """Return the results of *fact*; most facts have none.

    >>> fact = {"revision": 3, "at": "2027-01-31T08:00:00Z", "event": "succeeded",
    ...         "step": "main", "step_index": 1, "attempt": 1, "outcome": {"output": "done"}}
    >>> [(str(a.type), a.body) for read in read_facts([fact]) for a in list_activities(read)]
    [('response', 'done')]
    >>> [list_activities(recorded) for recorded in read_facts([{**fact, "event": "claimed"}])]
    [[]]
    """
    result, details = build_report(fact), fact.details
    usage = details.get("usage")
    if result is None or (isinstance(usage, dict) and usage.get("rehearsed")):
        return []  # a rehearsal: no agent ran, so people must not take it for a result
    activity = Activity(
        type=ActivityType(result.kind),
        at=fact.at,
        step=fact.step,
        step_index=fact.step_index,
        attempt=fact.attempt,
        event=str(fact.event),
        title=result.title,
        body=result.body,
        question=result.question,
        output_file=find_text(details, "output_file") or None,
    )
    return [activity]


def results_after(cursor: Cursor, head: Head, history: History) -> Iterator[Post]:
    """Yield the results after *cursor*, the oldest first."""
    is_other = cursor.run_id not in (None, head.run_id)
    was_reset = is_other and any(
        fact.meaning.resets for fact in read_facts(history(cursor.revision))
    )
    place = move_to_run(cursor, head.run_id, head.revision, was_reset=was_reset)
    run_id, revision, index = place.run_id or head.run_id, -1, -1
    for fact in read_facts(history(max(place.revision - 1, 0))):
        if fact.meaning.resets:
            run_id = head.run_id
        if fact.revision != revision:
            revision, index = fact.revision, -1
        for activity in list_activities(fact):
            index += 1
            if place.is_before(revision, index):
                yield Post(
                    activity=activity,
                    run_id=run_id,
                    run=head.run_name,
                    revision=revision,
                    index=index,
                )


def with_run_totals(post: Post, head: Head, history: History, *, has_tasks: bool) -> Post:
    """Return the end of a run with its totals; any other result is returned unchanged.

    A completed run of a team (*has_tasks*) also gets the output of its last task.
    """
    if not find_meaning(post.activity.event or "").ends_run:
        return post
    raw = [fact for fact in history(0) if fact["revision"] <= (post.revision or 0)]
    facts = [*read_facts(raw)]
    usage = head.usage if head.revision == post.revision else None
    activity = replace(post.activity, metrics=compute_metrics(build_story(raw), usage))
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


def find_pending(
    folder: Path,
    sinks: Iterable[str],
    head: Head,
    history: History,
) -> tuple[Pending, ...]:
    """Return the results that the *sinks* of the run in *folder* have not accepted, by sink.

    Sinks that have accepted everything are left out. *head* and *history* are of the same run.
    """
    results = (_read_pending(CursorFile(folder, sink), sink, head, history) for sink in sinks)
    return tuple(pending for pending in results if pending.is_behind or pending.refused)


def _read_pending(
    file: CursorFile,
    sink: str,
    head: Head,
    history: History,
) -> Pending:
    refusal_count = file.count_refusals()
    try:
        cursor = file.read()
        waiting_times = list(_find_waiting_times(cursor, head, history))
    except (CursorUnreadable, OSError, SequencerError) as error:
        return Pending(sink=sink, error=str(error), refused=refusal_count)
    trouble = cursor.trouble if cursor is not None and waiting_times else None
    return Pending(
        sink=sink,
        pending=len(waiting_times),
        since=waiting_times[0] if waiting_times else None,
        tries=trouble.tries if trouble else 0,
        error=trouble.error if trouble else None,
        refused=refusal_count,
    )


def _find_waiting_times(cursor: Cursor | None, head: Head, history: History) -> Iterator[str]:
    """Yield the time of each result after *cursor*."""
    # A sink that is new to the run gets only later results, so nothing waits for it.
    if cursor is None or (cursor.run_id == head.run_id and cursor.revision > head.revision):
        return
    for post in results_after(cursor, head, history):
        yield post.activity.at
