"""Sleep until a shared run changes, here or on the remote.

The process sleeps on the run's files, so a change by another process of this clone wakes it at
once. It also asks the remote: soon after a change, less and less often while nothing happens, and
whenever the watch of a remote in a local folder fires. The process that asks brings the changes
into the files, and that wakes the others. If the remote does not answer, the sleep continues: a
notice says so, and the remote is asked less often.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from sequencer.errors import ClaimHeld, RemoteUnreachable
from sequencer.model.head import Claim
from sequencer.plugins.git.state.remote import RefWatch
from sequencer.store import folder as folders
from sequencer.store.file import FileStore
from sequencer.store.identity import is_proven_dead
from sequencer.store.watch import pause_s, wait_readable

FAST_S = 0.5
SLOW_S = 15.0
GROWTH = 1.5
JITTER = 0.2
"""Share by which an interval may be longer or shorter, so that machines don't poll in step."""
FIRST_RETRY_S = 1.0
LAST_RETRY_S = 60.0


class PollPace:
    """The intervals at which one process polls one remote."""

    def __init__(
        self,
        remote: str,
        *,
        fast_s: float = FAST_S,
        slow_s: float = SLOW_S,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """Make the first poll due at once; *chance* returns random numbers from 0 to 1."""
        self._remote = remote
        self._fast_s, self._slow_s = min(fast_s, slow_s), slow_s
        self._clock, self._chance = clock, chance
        self._interval_s = self._fast_s
        self._retry_s = 0.0
        """The pause before the next try at a remote that did not answer; 0: it answered."""
        self._is_denied = False
        self._next_at = clock()
        self.is_notified = False
        """Whether a watch reports changes; the slow polls are then only a safety net."""

    @property
    def interval_s(self) -> float:
        """Return the current time from one poll to the next."""
        if self._retry_s:
            return self._retry_s
        return self._slow_s if self.is_notified else self._interval_s

    def seconds_until_due(self) -> float:
        """Return the seconds until the next poll is due; 0: it is due now."""
        return max(self._next_at - self._clock(), 0.0)

    def is_recent_enough(self, age_s: float) -> bool:
        """Return whether another process's poll *age_s* ago makes a new one unnecessary."""
        # Less than the whole interval: jitter may shorten the next one by that share.
        return 0.0 <= age_s < (1 - JITTER) * self.interval_s

    def schedule_soon(self) -> None:
        """Make the next poll due soon: after a change here, another clone may react to it."""
        self._interval_s = self._fast_s
        self._next_at = min(self._next_at, self._jittered_time(self.interval_s))

    def record_success(self, *, has_moved: bool, ago_s: float = 0.0) -> str | None:
        """Record a successful poll, *ago_s* seconds ago; return a notice for people, or None."""
        notice = f"remote {self._remote!r} answers again" if self._retry_s else None
        self._retry_s, self._is_denied = 0.0, False
        next_interval_s = min(self._interval_s * GROWTH, self._slow_s)
        self._interval_s = self._fast_s if has_moved else next_interval_s
        self._next_at = self._jittered_time(self.interval_s) - ago_s
        return notice

    def record_failure(self, error: RemoteUnreachable) -> str | None:
        """Record a poll without an answer; return a notice for people if it is a new one."""
        before_s, was_denied = self._retry_s, self._is_denied
        self._is_denied = error.is_denied
        # Retries don't fix credentials, and some servers lock out clients that try too often.
        retry_s = LAST_RETRY_S if error.is_denied else max(before_s * 2, FIRST_RETRY_S)
        self._retry_s = min(retry_s, LAST_RETRY_S)
        self._next_at = self._jittered_time(self._retry_s)
        if self._retry_s == before_s and self._is_denied == was_denied:
            return None
        hint = f" ({error.hint})" if error.is_denied and error.hint else ""
        return f"{error.message}{hint}; next try in {max(round(self.seconds_until_due()), 1)} s"

    def _jittered_time(self, seconds: float) -> float:
        return self._clock() + seconds * (1 - JITTER + 2 * JITTER * self._chance())


class SharedPollTime:
    """The time of the last poll by any process of this clone: the mtime of an empty file.

    If the clock was changed, at most one poll is made or skipped by mistake.
    """

    def __init__(self, path: Path) -> None:
        """Keep it at *path*, in the run's folder."""
        self._path = path

    def age_s(self) -> float | None:
        """Return how many seconds ago the last poll was, or None if there was none."""
        try:
            return time.time() - os.stat(self._path, follow_symlinks=False).st_mtime  # noqa: PTH116
        except OSError:
            return None

    def record_look(self) -> None:
        """Record that this process has polled the remote and written the changes to the folder."""
        time_ns = time.time_ns()
        # Only the time is set: a write would wake every process that watches the folder.
        with contextlib.suppress(OSError):
            try:
                folder = folders.open_folder(self._path.parent)
                name, fd = self._path.name, folder.fd
                os.utime(name, ns=(time_ns, time_ns), dir_fd=fd, follow_symlinks=False)
            except FileNotFoundError:
                os.close(folders.open_file(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))


class SharedWait(Struct):
    """How one process waits for one run."""

    local: FileStore
    look: Callable[[], bool]
    """Asks the remote, brings its changes, and returns whether the run has moved."""
    pace: PollPace
    shared: SharedPollTime
    refs: RefWatch | None = None
    """Watches a remote on this machine."""
    notify: Callable[[str], None] = lambda _: None
    """Is called when the remote stops answering, at each longer pause, and when it answers again.
    """

    def close(self) -> None:
        """Release the watch; the next wait creates it again."""
        if self.refs is not None:
            self.refs.close()

    def wait(
        self,
        revision: int,
        timeout_s: float | None,
        *,
        wake_fd: int | None = None,
        claim: Claim | None = None,
    ) -> bool:
        """Sleep until the head changes here or on the remote; return whether it did.

        False: it timed out, *wake_fd* became readable, or the holder of *claim* may be dead.
        """
        if self.local.wait(revision, 0.0):
            return True
        start = time.monotonic()
        # The lease of a claim may expire without any notification.
        ends = math.inf if claim is None else start + pause_s(claim)
        if timeout_s is not None:
            ends = min(ends, start + timeout_s)
        while (left_s := ends - time.monotonic()) > 0:
            if wake_fd is not None and wait_readable((wake_fd,), 0.0):
                return False
            if claim is not None and is_proven_dead(claim.owner):
                return False
            self._look_if_due()
            limit = min(left_s, self.pace.seconds_until_due())
            fds = () if self.refs is None else self.refs.fds
            if self.local.wait(revision, limit, wake_fd=wake_fd, claim=claim, fds=fds):
                self.pace.schedule_soon()
                return True
        return False

    def _look_if_due(self) -> None:
        """Poll the remote if the watch has fired or the next poll is due."""
        is_woken = self.refs is not None and self.refs.has_moved()
        if not is_woken and self.pace.seconds_until_due() > 0:
            return
        # Without an armed watch, only a poll by this process sees what moved before it.
        is_blind = self.refs is not None and not self.refs.fds
        age_s = self.shared.age_s()
        if not (is_woken or is_blind) and age_s is not None and self.pace.is_recent_enough(age_s):
            self._send_notice(self.pace.record_success(has_moved=False, ago_s=age_s))
            return
        if self.refs is not None:
            self.refs.arm()
            self.pace.is_notified = bool(self.refs.fds)
        try:
            has_moved = self.look()
        except RemoteUnreachable as error:
            self._send_notice(self.pace.record_failure(error))
        except ClaimHeld:
            # Another process of this clone is pushing, and writes what it finds to the files.
            self._send_notice(self.pace.record_success(has_moved=False))
        else:
            self.shared.record_look()
            self._send_notice(self.pace.record_success(has_moved=has_moved))

    def _send_notice(self, text: str | None) -> None:
        if text is not None:
            self.notify(text)
