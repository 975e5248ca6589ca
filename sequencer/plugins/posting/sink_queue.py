"""The queue of results for one sink, and the time of the next try.

Results after the sink's cursor are read from the journal and posted in order. The cursor moves
when the sink has accepted a result or refused it permanently. An unreachable sink costs one try
per pause, and the pauses grow. One notice reports an outage, another one its end. The cause of
an outage is stored with the cursor, for other processes and for people. Nothing in this module
waits.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from sequencer import extensions
from sequencer.errors import PackageFailed, SequencerError
from sequencer.executors.redaction import Redaction
from sequencer.model.head import Head
from sequencer.packages import describe_bug, describe_error
from sequencer.plugins.posting.cursor import (
    ALL,
    Cursor,
    CursorFile,
    CursorUnreadable,
    Pace,
    PostingProblem,
)
from sequencer.plugins.posting.protocol import (
    LONGEST_PAUSE_S,
    Activity,
    Post,
    Refused,
    Sink,
    Unreachable,
)
from sequencer.plugins.posting.results import results_after, with_run_totals
from sequencer.plugins.posting.text import sanitize_activity
from sequencer.store.identity import utc_now
from sequencer.store.protocol import Store

THOUGHT_EVERY_S = 2.0
FIRST_PAUSE_S = 1.0
MAX_ERROR_CHARS = 500
LOCKED_S = 0.5
"""Pause before the next try while another process is posting."""

Clock = Callable[[], float]


class SinkContext(Struct, frozen=True, kw_only=True):
    """The objects that all sink queues of a run share."""

    store: Store
    """Only for the sink queues, which use it from their thread."""
    redaction: Redaction
    notice: Callable[[str], None]
    clock: Clock = time.monotonic
    jitter: Callable[[], float] = random.random
    """Returns a random number from 0 to 1."""
    thought_every_s: float = THOUGHT_EVERY_S
    subjects: Mapping[str, str] = field(default_factory=dict)
    """Id -> subject of a team's tasks; grows when tasks are added."""

    @property
    def folder(self) -> Path:
        """Return the run's folder."""
        return self.store.state_path.parent


class SinkQueue:
    """One sink of one run, and the state of its tries."""

    def __init__(self, sink: Sink, context: SinkContext) -> None:
        """Prepare posts to *sink*; nothing is read or written before `begin`."""
        self.sink = sink
        self._context = context
        self._file = CursorFile(context.folder, sink.name)
        self._pace = Pace(self._file.path.with_suffix(".pace"), context.thought_every_s)
        self._first: Cursor | None = None
        """Where to start without a cursor; None: the head could not be read yet."""
        self._has_news = False
        self._is_off = False
        self._trouble: PostingProblem | None = None
        """The latest failure in the cursor's file, from any process."""
        self.has_tried = False
        """Whether a result was tried since this was last set to False."""
        self.is_posting = False
        self._failures = 0
        self._not_before = -1.0
        self._asked_until = -1.0
        """When the pause ends that the sink asked for; the present pause may be longer."""
        self._is_pause_of_thought = False
        """Whether the present pause follows a failed thought."""
        self._next_thought = -1.0
        self._in_doubt: str | None = ""
        """Key of the result that an earlier try may have delivered; empty: the next one, because a
        killed process leaves no record of its try. None: no result."""

    # --- public ------------------------------------------------------------------

    def begin(self) -> None:
        """Create the cursor of a sink that is new to this run; it gets only later results.

        All earlier results of an old run would flood the sink.
        """
        try:
            head = self._context.store.view().head
            self._first = _end_cursor(head)
            with self._file.hold_lock() as is_mine:
                if is_mine and (cursor := self._file.read()) is not None:
                    self._trouble = cursor.trouble
                elif is_mine:
                    self._file.write(self._first)
        except CursorUnreadable as error:
            self._turn_off(str(error))
        except (OSError, SequencerError) as error:
            self._record_failure(f"its cursor can't be created: {error}")
        self._has_news = True

    def note_news(self) -> None:
        """Note that the journal may have new records."""
        self._has_news = True

    @property
    def is_in_trouble(self) -> bool:
        """Return whether the latest try, by any process, failed."""
        return self._trouble is not None

    @property
    def due_in_s(self) -> float | None:
        """Return the seconds until results can be tried; None: there is nothing to try."""
        if self._is_off or not self._has_news:
            return None
        return max(self._not_before - self._context.clock(), 0.0)

    @property
    def thought_due_in_s(self) -> float | None:
        """Return the seconds until a thought may be posted; None: never."""
        if self._is_off or not self.sink.takes_thoughts:
            return None
        due_time = max(self._not_before, self._next_thought)
        return max(due_time - self._context.clock(), 0.0)

    def can_post_thought(self) -> bool:
        """Return whether a thought may be posted immediately; results go first."""
        if self._has_news or self.thought_due_in_s != 0.0:
            return False
        now = self._context.clock()
        # Other processes of this run post thoughts too, so check the shared file.
        self._next_thought = now + self._pace.remaining_s(now)
        return self._next_thought <= now

    def post_thought(self, activity: Activity, run_id: str, run: str | None) -> None:
        """Post a thought or an action; a failure counts as an outage, and the post is dropped."""
        now = self._context.clock()
        self._next_thought = now + self._context.thought_every_s
        if not self._pace.record_post(now):
            return
        post = Post(activity=self._sanitize_activity(activity), run_id=run_id, run=run)
        try:
            self._post(post)
        except Unreachable as error:
            self._record_failure(error.reason, error.retry_after_s)
            self._is_pause_of_thought = True
        except Refused as error:
            self._context.notice(f"activity sink {self.sink.name!r}: {error.reason}")
        except Exception as error:  # noqa: BLE001 - a sink's bug must not end the others
            self._turn_off(_describe_failure(error))
        else:
            self._record_recovery()

    def end_pause_of_thought(self) -> None:
        """End a pause that only a failed thought has caused: results need their own try.

        A pause that the sink asked for stays.
        """
        if self._is_pause_of_thought:
            self._is_pause_of_thought, self._not_before = False, self._asked_until

    def deliver(self, may_continue: Callable[[], bool]) -> None:
        """Post the results that are due, as long as *may_continue* returns True."""
        pause_s = self.due_in_s
        if pause_s is None or pause_s > 0:
            return
        # Reset before reading the journal, so that a record written meanwhile is not missed.
        self._has_news = False
        try:
            with self._file.hold_lock() as is_mine:
                if is_mine:
                    self._deliver_pending(may_continue)
                else:
                    self._has_news = True
                    self._not_before = self._context.clock() + LOCKED_S
        except (CursorUnreadable, PackageFailed) as error:
            self._turn_off(str(error))
        except (Unreachable, OSError, SequencerError) as error:
            self._record_failure(_describe_failure(error), _requested_pause_s(error))
        except Exception as error:  # noqa: BLE001 - a sink's bug must not end the others
            self._turn_off(_describe_failure(error))

    def close(self) -> None:
        """Close the sink's connections; a failure is reported and does not stop the others."""
        try:
            with extensions.package_code(extensions.SINKS, self.sink.kind):
                self.sink.close()
        except Exception as error:  # noqa: BLE001 - a sink's bug must not end the others
            self._context.notice(
                f"activity sink {self.sink.name!r} can't be closed: {_describe_failure(error)}"
            )

    # --- results ------------------------------------------------------------------

    def _deliver_pending(self, may_continue: Callable[[], bool]) -> None:
        head = self._context.store.view().head
        if head is None:
            return
        # The process that held the lock in `begin` may have been killed before it wrote one.
        cursor = self._file.read() or self._first
        if cursor is None:
            self._first = cursor = _end_cursor(head)
            self._file.write(cursor)
        if cursor.run_id == head.run_id and cursor.revision > head.revision:
            # The cursor was edited or the journal was repaired: post only later results.
            cursor = replace(cursor, revision=head.revision, index=ALL)
            self._file.write(cursor)
        self._report_skipped(cursor, head)
        self._trouble = cursor.trouble
        if self._trouble is not None and (
            remaining_s := self._trouble.remaining_s(self._context.clock())
        ):
            # The sink asked for this pause, perhaps in its answer to another process.
            self._has_news, self._not_before = True, self._context.clock() + remaining_s
            return
        for post in results_after(cursor, head, self._context.store.history):
            if not may_continue():
                self._has_news = True
                return
            self.has_tried = True
            has_tasks, history = bool(self._context.subjects), self._context.store.history
            try:
                self._post_result(with_run_totals(post, head, history, has_tasks=has_tasks))
            except Exception as error:
                self._file.write(replace(cursor, trouble=self._build_trouble(error)))
                raise
            cursor = Cursor(post.run_id, post.revision or 0, post.index)
            # Note it first: after a kill between the two writes, nothing seems to be skipped.
            self._file.write_note(cursor)
            self._file.write(cursor)
            self._in_doubt = None
            self._record_recovery()

    def _report_skipped(self, cursor: Cursor, head: Head) -> None:
        """Report results before *cursor* that this user has not posted, and note the cursor."""
        old_note = self._file.read_note()
        is_same = old_note is not None and old_note.run_id == cursor.run_id
        if (
            old_note is not None
            and is_same
            and not old_note.is_before(cursor.revision, cursor.index)
        ):
            return
        posts = (
            () if old_note is None else results_after(old_note, head, self._context.store.history)
        )
        skip_count = sum(
            1 for post in posts if not cursor.is_before(post.revision or 0, post.index)
        )
        if skip_count:
            self._context.notice(
                f"activity sink {self.sink.name!r}: results that you did not post count as posted: "
                f"{skip_count} in {self._file.path}; if no one else posts for this run, another "
                "process has changed that file"
            )
        self._file.write_note(cursor)

    def _post_result(self, post: Post) -> None:
        may_be_there = self._in_doubt in ("", post.key)
        activity = self._sanitize_activity(self._add_task_subject(post.activity))
        self._in_doubt = post.key
        try:
            self._post(replace(post, activity=activity, may_be_there=may_be_there))
        except Refused as error:
            self._note_refusal(post, error)

    def _post(self, post: Post) -> None:
        self.is_posting = True
        kind, error_types = self.sink.kind, (Unreachable, Refused, OSError)
        try:
            with extensions.package_code(extensions.SINKS, kind, expected=error_types):
                self.sink.post(post)
        except OSError as error:
            # A sink of a package may let the error of its own connection through.
            raise Unreachable(describe_error(error)) from error
        finally:
            self.is_posting = False

    def _add_task_subject(self, activity: Activity) -> Activity:
        """Return the result of a team's task with the task's subject in its title."""
        subject = self._context.subjects.get(activity.step)
        if subject is None:
            return activity
        return replace(activity, title=f"{activity.title}: {subject}")

    def _note_refusal(self, post: Post, error: Refused) -> None:
        answer = self._context.redaction.hide_text(error.answer)[:500]
        fields: dict[str, Any] = {
            "key": post.key,
            "type": str(post.activity.type),
            "step": post.activity.step,
            "reason": error.reason,
            "status": error.status,
            "answer": answer,
        }
        self._file.note_refusal(fields)
        refusal = f"{error.reason} for the {post.activity.type} of step {post.activity.step!r}"
        text = f"activity sink {self.sink.name!r}: {refusal}; see activity/refused.jsonl"
        self._context.notice(self._context.redaction.hide_text(text))

    def _sanitize_activity(self, activity: Activity) -> Activity:
        context = self._context
        return sanitize_activity(activity, context.redaction, context.folder, self.sink.max_chars)

    # --- outages ------------------------------------------------------------------

    def _record_failure(self, reason: str, retry_after_s: float | None = None) -> None:
        self._has_news, self._is_pause_of_thought = True, False
        is_first, now = not self._failures, self._context.clock()
        # A pause that the sink asked for is not a failed try, so it doesn't make the pauses grow.
        self._failures += int(is_first or retry_after_s is None)
        pause = min(FIRST_PAUSE_S * 2.0 ** min(self._failures - 1, 20), LONGEST_PAUSE_S)
        # Jitter, because many runs of a machine lose the same sink at the same moment.
        pause *= 0.5 + self._context.jitter() / 2
        self._asked_until = now + min(retry_after_s or 0.0, LONGEST_PAUSE_S)
        self._not_before = max(now + pause, self._asked_until)
        if is_first:
            text = f"activity sink {self.sink.name!r}: {reason}; results are kept and posted later"
            self._context.notice(self._context.redaction.hide_text(text))

    def _build_trouble(self, error: Exception) -> PostingProblem:
        """Return the record of *error*, which ended a try to post a result."""
        old_trouble = self._trouble or PostingProblem(utc_now(), 0, "")
        self._trouble = PostingProblem(
            old_trouble.since,
            old_trouble.tries + 1,
            self._context.redaction.hide_text(_describe_failure(error))[:MAX_ERROR_CHARS],
            min(max(_requested_pause_s(error) or 0.0, 0.0), LONGEST_PAUSE_S),
            self._context.clock(),
        )
        return self._trouble

    def _record_recovery(self) -> None:
        if self._failures or self._trouble is not None:
            self._failures, self._not_before, self._trouble = 0, -1.0, None
            self._context.notice(f"activity sink {self.sink.name!r} can be reached again")

    def _turn_off(self, reason: str) -> None:
        self._is_off = True
        text = f"activity sink {self.sink.name!r} is not used: {reason}"
        self._context.notice(self._context.redaction.hide_text(text))


def _describe_failure(error: Exception) -> str:
    """Return the reason of a failed try in one line, for people."""
    if isinstance(error, Unreachable):
        return error.reason
    if isinstance(error, PackageFailed):
        return error.in_one_line
    is_ours = isinstance(error, (OSError, SequencerError))
    return f"the run's files: {error}" if is_ours else f"it has a bug: {describe_bug(error)}"


def _requested_pause_s(error: Exception) -> float | None:
    return error.retry_after_s if isinstance(error, Unreachable) else None


def _end_cursor(head: Head | None) -> Cursor:
    return Cursor(head.run_id, head.revision, ALL) if head else Cursor(None, 0, ALL)
