"""What is still to be posted to one sink, and when the next try is due.

Results are read from the journal behind the sink's cursor and posted in order; the cursor
moves when the sink has taken one, or has said that it never will. A sink that can't be
reached costs one try a pause, and the pauses grow; one notice tells of an outage, one of
its end. What is in the way stands beside the cursor, for other processes and for people.
Nothing here waits.
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
from sequencer.packages import describe_error
from sequencer.plugins.posting.cursor import (
    ALL,
    Cursor,
    CursorFile,
    CursorUnreadable,
    Pace,
    Trouble,
)
from sequencer.plugins.posting.protocol import (
    LONGEST_PAUSE_S,
    Activity,
    Post,
    Refused,
    Sink,
    Unreachable,
)
from sequencer.plugins.posting.results import behind, with_end
from sequencer.plugins.posting.text import polished
from sequencer.store.identity import utc_now
from sequencer.store.protocol import Store

THOUGHT_EVERY_S = 2.0
FIRST_PAUSE_S = 1.0
MAX_ERROR_CHARS = 500
LOCKED_S = 0.5
"""When to look again where another process is posting."""

Clock = Callable[[], float]


class Surroundings(Struct, frozen=True, kw_only=True):
    """What all lanes of a run share."""

    store: Store
    """The lanes' own: used from their thread."""
    redaction: Redaction
    notice: Callable[[str], None]
    clock: Clock = time.monotonic
    jitter: Callable[[], float] = random.random
    """From 0 to 1."""
    thought_every_s: float = THOUGHT_EVERY_S
    subjects: Mapping[str, str] = field(default_factory=dict)
    """Of a team's tasks: what each is about, by its id; grows while the run does."""

    @property
    def folder(self) -> Path:
        """Return the run's folder."""
        return self.store.state_path.parent


class Lane:
    """One sink of one run."""

    def __init__(self, sink: Sink, around: Surroundings) -> None:
        """Post to *sink*; nothing is read or written before `begin`."""
        self.sink = sink
        self._around = around
        self._file = CursorFile(around.folder, sink.name)
        self._pace = Pace(self._file.path.with_suffix(".pace"), around.thought_every_s)
        self._first: Cursor | None = None
        """Where to begin without a cursor; None: what has happened could not be read yet."""
        self._has_news = False
        self._is_off = False
        self._trouble: Trouble | None = None
        """As the cursor's file had it last, whoever was in trouble."""
        self.has_tried = False
        """Whether a result was tried since somebody has set this to False."""
        self.is_posting = False
        self._failures = 0
        self._not_before = -1.0
        self._next_thought = -1.0
        self._in_doubt: str | None = ""
        """Key of the result that an earlier try may have delivered; empty: whichever is next,
        because a process that was killed leaves no word. None: none."""

    # --- what is asked from outside ----------------------------------------------

    def begin(self) -> None:
        """Make the cursor of a sink that this run has not seen: it is told what comes next.

        What happened before would flood it: a sink may be new to an old run.
        """
        try:
            head = self._around.store.view().head
            self._first = _at_the_end(head)
            with self._file.held() as is_mine:
                if is_mine and (cursor := self._file.read()) is not None:
                    self._trouble = cursor.trouble
                elif is_mine:
                    self._file.write(self._first)
        except CursorUnreadable as error:
            self._turn_off(str(error))
        except (OSError, SequencerError) as error:
            self._failed(f"its cursor can't be created: {error}")
        self._has_news = True

    def poke(self) -> None:
        """Say that the journal may have gone on."""
        self._has_news = True

    @property
    def is_in_trouble(self) -> bool:
        """Return whether the sink did not take what it was given last, by any process."""
        return self._trouble is not None

    @property
    def due_in_s(self) -> float | None:
        """Return when results can be tried next; None: there is nothing to try."""
        if self._is_off or not self._has_news:
            return None
        return max(self._not_before - self._around.clock(), 0.0)

    @property
    def thought_due_in_s(self) -> float | None:
        """Return when a thought may be posted next; None: never."""
        if self._is_off or not self.sink.takes_thoughts:
            return None
        due = max(self._not_before, self._next_thought)
        return max(due - self._around.clock(), 0.0)

    def takes_thoughts_now(self) -> bool:
        """Return whether a thought may be posted at once; results go first."""
        if self._has_news or self.thought_due_in_s != 0.0:
            return False
        now = self._around.clock()
        # Other processes work on the run as well.
        self._next_thought = now + self._pace.left_s(now)
        return self._next_thought <= now

    def post_thought(self, activity: Activity, run_id: str, run: str | None) -> None:
        """Post a thought or an action; a failure is an outage, and the post is dropped."""
        now = self._around.clock()
        self._next_thought = now + self._around.thought_every_s
        if not self._pace.take(now):
            return
        post = Post(activity=self._polished(activity), run_id=run_id, run=run)
        try:
            self._post(post)
        except Unreachable as error:
            self._failed(error.reason, error.retry_after_s)
        except Refused as error:
            self._around.notice(f"activity sink {self.sink.name!r}: {error.reason}")
        except Exception as error:  # noqa: BLE001 - a sink's bug must not end the others
            self._turn_off(_reason(error))
        else:
            self._recovered()

    def deliver(self, may_go_on: Callable[[], bool]) -> None:
        """Post the results that are due, as long as *may_go_on*."""
        due = self.due_in_s
        if due is None or due > 0:
            return
        # Before the look: what comes during it is looked for again.
        self._has_news = False
        try:
            with self._file.held() as is_mine:
                if is_mine:
                    self._deliver_behind(may_go_on)
                else:
                    self._has_news = True
                    self._not_before = self._around.clock() + LOCKED_S
        except (CursorUnreadable, PackageFailed) as error:
            self._turn_off(str(error))
        except (Unreachable, OSError, SequencerError) as error:
            self._failed(_reason(error), _asked_s(error))
        except Exception as error:  # noqa: BLE001 - a sink's bug must not end the others
            self._turn_off(_reason(error))

    def close(self) -> None:
        """Free the sink's connections; a failure is reported and does not stop the others."""
        try:
            with extensions.package_code(extensions.SINKS, self.sink.kind):
                self.sink.close()
        except Exception as error:  # noqa: BLE001 - a sink's bug must not end the others
            self._around.notice(
                f"activity sink {self.sink.name!r} can't be closed: {_reason(error)}"
            )

    # --- results ------------------------------------------------------------------

    def _deliver_behind(self, may_go_on: Callable[[], bool]) -> None:
        head = self._around.store.view().head
        if head is None:
            return
        # Whoever held the lock at the beginning may have been killed before it wrote one.
        cursor = self._file.read() or self._first
        if cursor is None:
            self._first = cursor = _at_the_end(head)
            self._file.write(cursor)
        if cursor.run_id == head.run_id and cursor.revision > head.revision:
            # It was moved, or the journal repaired: what comes from now on is posted.
            cursor = replace(cursor, revision=head.revision, index=ALL)
            self._file.write(cursor)
        self._tell_of_skipped(cursor, head)
        self._trouble = cursor.trouble
        if self._trouble is not None and (left := self._trouble.left_s(self._around.clock())):
            # The sink has asked for it, whichever process was told.
            self._has_news, self._not_before = True, self._around.clock() + left
            return
        for post in behind(cursor, head, self._around.store.history):
            if not may_go_on():
                self._has_news = True
                return
            self.has_tried = True
            has_tasks, history = bool(self._around.subjects), self._around.store.history
            try:
                self._post_result(with_end(post, head, history, has_tasks=has_tasks))
            except Exception as error:
                self._file.write(replace(cursor, trouble=self._troubled(error)))
                raise
            cursor = Cursor(post.run_id, post.revision or 0, post.index)
            # Before: who is killed in between has skipped nothing.
            self._file.note(cursor)
            self._file.write(cursor)
            self._in_doubt = None
            self._recovered()

    def _tell_of_skipped(self, cursor: Cursor, head: Head) -> None:
        """Say what *cursor* passes over that this user has not posted, and note where it is."""
        noted = self._file.noted()
        is_same = noted is not None and noted.run_id == cursor.run_id
        if noted is not None and is_same and not noted.is_before(cursor.revision, cursor.index):
            return
        posts = () if noted is None else behind(noted, head, self._around.store.history)
        skipped = sum(1 for one in posts if not cursor.is_before(one.revision or 0, one.index))
        if skipped:
            self._around.notice(
                f"activity sink {self.sink.name!r}: results that you did not post count as posted: "
                f"{skipped} in {self._file.path}; if nobody else posts for this run, somebody has "
                "changed that file"
            )
        self._file.note(cursor)

    def _post_result(self, post: Post) -> None:
        may_be_there = self._in_doubt in ("", post.key)
        activity = self._polished(self._about(post.activity))
        self._in_doubt = post.key
        try:
            self._post(replace(post, activity=activity, may_be_there=may_be_there))
        except Refused as error:
            self._note_refusal(post, error)

    def _post(self, post: Post) -> None:
        self.is_posting = True
        kind, expected = self.sink.kind, (Unreachable, Refused, OSError)
        try:
            with extensions.package_code(extensions.SINKS, kind, expected=expected):
                self.sink.post(post)
        except OSError as error:
            # A sink that has opened a connection by itself may raise nothing else.
            raise Unreachable(describe_error(error)) from error
        finally:
            self.is_posting = False

    def _about(self, activity: Activity) -> Activity:
        """Return the result of a team's task with what that is about."""
        subject = self._around.subjects.get(activity.step)
        if subject is None:
            return activity
        return replace(activity, title=f"{activity.title}: {subject}")

    def _note_refusal(self, post: Post, error: Refused) -> None:
        answer = self._around.redaction.hide_text(error.answer)[:500]
        fields: dict[str, Any] = {
            "key": post.key,
            "type": str(post.activity.type),
            "step": post.activity.step,
            "reason": error.reason,
            "status": error.status,
            "answer": answer,
        }
        self._file.note_refusal(fields)
        told = f"{error.reason} for the {post.activity.type} of step {post.activity.step!r}"
        text = f"activity sink {self.sink.name!r}: {told}; see activity/refused.jsonl"
        self._around.notice(self._around.redaction.hide_text(text))

    def _polished(self, activity: Activity) -> Activity:
        around = self._around
        return polished(activity, around.redaction, around.folder, self.sink.max_chars)

    # --- outages ------------------------------------------------------------------

    def _failed(self, reason: str, retry_after_s: float | None = None) -> None:
        self._has_news = True
        self._failures += 1
        pause = min(FIRST_PAUSE_S * 2.0 ** min(self._failures - 1, 20), LONGEST_PAUSE_S)
        # Many runs of a machine lose the same sink at the same moment.
        pause *= 0.5 + self._around.jitter() / 2
        if retry_after_s is not None:
            pause = min(max(retry_after_s, pause), LONGEST_PAUSE_S)
        self._not_before = self._around.clock() + pause
        if self._failures == 1:
            text = f"activity sink {self.sink.name!r}: {reason}; results are kept and posted later"
            self._around.notice(self._around.redaction.hide_text(text))

    def _troubled(self, error: Exception) -> Trouble:
        """Return what is to be known about *error*, which ended a try to post a result."""
        before = self._trouble or Trouble(utc_now(), 0, "")
        self._trouble = Trouble(
            before.since,
            before.tries + 1,
            self._around.redaction.hide_text(_reason(error))[:MAX_ERROR_CHARS],
            min(max(_asked_s(error) or 0.0, 0.0), LONGEST_PAUSE_S),
            self._around.clock(),
        )
        return self._trouble

    def _recovered(self) -> None:
        if self._failures or self._trouble is not None:
            self._failures, self._not_before, self._trouble = 0, -1.0, None
            self._around.notice(f"activity sink {self.sink.name!r} can be reached again")

    def _turn_off(self, reason: str) -> None:
        self._is_off = True
        text = f"activity sink {self.sink.name!r} is not used: {reason}"
        self._around.notice(self._around.redaction.hide_text(text))


def _reason(error: Exception) -> str:
    """Return what ended a try, in one line for people."""
    if isinstance(error, Unreachable):
        return error.reason
    if isinstance(error, PackageFailed):
        return error.in_one_line
    is_ours = isinstance(error, (OSError, SequencerError))
    return f"the run's files: {error}" if is_ours else f"it has a bug: {describe_error(error)}"


def _asked_s(error: Exception) -> float | None:
    return error.retry_after_s if isinstance(error, Unreachable) else None


def _at_the_end(head: Head | None) -> Cursor:
    return Cursor(head.run_id, head.revision, ALL) if head else Cursor(None, 0, ALL)
