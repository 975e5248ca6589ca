"""Sleep until a run that others share has moved, here or on the remote.

The sleep itself is that of the files: what a process of this clone does wakes at once. Now and
then the remote is asked: soon after something has happened, ever more rarely while nothing does,
and when the watch of a remote that is a folder wakes. Whoever asked brings what is new into the
files, and by that wakes all. A remote that does not answer is no change and no end: people are
told, it is asked more rarely, and the sleep continues.
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
from sequencer.store.watch import pause_s, readable

FAST_S = 0.5
SLOW_S = 15.0
GROWTH = 1.5
JITTER = 0.2
"""Share by which an interval may be longer or shorter, so that machines don't ask in step."""
FIRST_RETRY_S = 1.0
LAST_RETRY_S = 60.0


class PollPace:
    """The intervals at which one process looks at one remote."""

    def __init__(
        self,
        remote: str,
        *,
        fast_s: float = FAST_S,
        slow_s: float = SLOW_S,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """Be due at once; *chance* gives numbers from 0 to 1 that nobody can foresee."""
        self._remote = remote
        self._fast_s, self._slow_s = min(fast_s, slow_s), slow_s
        self._clock, self._chance = clock, chance
        self._interval_s = self._fast_s
        self._retry_s = 0.0
        """How long to wait for a remote that did not answer; 0: it did."""
        self._is_denied = False
        self._next_at = clock()
        self.is_notified = False
        """Whether a change wakes by itself; a slow look is then only the safety net."""

    @property
    def interval_s(self) -> float:
        """Return how long it is at present from one look to the next."""
        if self._retry_s:
            return self._retry_s
        return self._slow_s if self.is_notified else self._interval_s

    def due_in(self) -> float:
        """Return in how many seconds the next look is due; 0: it is."""
        return max(self._next_at - self._clock(), 0.0)

    def covers(self, age_s: float) -> bool:
        """Return whether a look that somebody else made *age_s* ago spares one's own."""
        # Not the whole interval: with its jitter the next look is later than now in any case.
        return 0.0 <= age_s < (1 - JITTER) * self.interval_s

    def active(self) -> None:
        """Look soon: something has happened here, and the other side may answer it."""
        self._interval_s = self._fast_s
        self._next_at = min(self._next_at, self._in(self.interval_s))

    def looked(self, *, has_moved: bool, ago_s: float = 0.0) -> str | None:
        """Note a successful look, *ago_s* seconds ago; return what is to be told to people."""
        told = f"remote {self._remote!r} answers again" if self._retry_s else None
        self._retry_s, self._is_denied = 0.0, False
        longer = min(self._interval_s * GROWTH, self._slow_s)
        self._interval_s = self._fast_s if has_moved else longer
        self._next_at = self._in(self.interval_s) - ago_s
        return told

    def failed(self, error: RemoteUnreachable) -> str | None:
        """Note a look that had no answer; return what is to be told to people, if it is new."""
        before, was_denied = self._retry_s, self._is_denied
        self._is_denied = error.is_denied
        # Asking again mends no credentials, and some servers lock out who asks too often.
        longer = LAST_RETRY_S if error.is_denied else max(before * 2, FIRST_RETRY_S)
        self._retry_s = min(longer, LAST_RETRY_S)
        self._next_at = self._in(self._retry_s)
        if self._retry_s == before and self._is_denied == was_denied:
            return None
        hint = f" ({error.hint})" if error.is_denied and error.hint else ""
        return f"{error.message}{hint}; next try in {max(round(self.due_in()), 1)} s"

    def _in(self, seconds: float) -> float:
        return self._clock() + seconds * (1 - JITTER + 2 * JITTER * self._chance())


class SharedLook:
    """When some process of this clone looked last: the time of an empty file.

    Wrong times (a clock that was set) cost or spare one look and no more.
    """

    def __init__(self, path: Path) -> None:
        """Keep it at *path*, in the run's folder."""
        self._path = path

    def age_s(self) -> float | None:
        """Return how many seconds ago that was, or None if nobody has."""
        try:
            return time.time() - os.stat(self._path, follow_symlinks=False).st_mtime  # noqa: PTH116
        except OSError:
            return None

    def note(self) -> None:
        """Say that this process has looked, and that what it found is in the folder."""
        now = time.time_ns()
        # Not by writing, which wakes everybody who watches the folder.
        with contextlib.suppress(OSError):
            try:
                folder = folders.opened(self._path.parent)
                name, fd = self._path.name, folder.fd
                os.utime(name, ns=(now, now), dir_fd=fd, follow_symlinks=False)
            except FileNotFoundError:
                os.close(folders.open_file(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))


class SharedWait(Struct):
    """The wait of one process for one run."""

    local: FileStore
    look: Callable[[], bool]
    """Asks the remote, brings what is new and says whether it moved."""
    pace: PollPace
    shared: SharedLook
    refs: RefWatch | None = None
    """Watches a remote on this machine."""
    tell: Callable[[str], None] = lambda _: None
    """Hears when the remote stops answering, at each longer pause, and when it answers again."""

    def close(self) -> None:
        """Free what is watched; the next wait begins again."""
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
        """Sleep until the head changes here or on the remote; return whether it does.

        False: the time is over, *wake_fd* became readable, or the holder of *claim* may be gone.
        """
        if self.local.wait(revision, 0.0):
            return True
        now = time.monotonic()
        # The lease of a claim may run out without any notification.
        ends = math.inf if claim is None else now + pause_s(claim)
        if timeout_s is not None:
            ends = min(ends, now + timeout_s)
        while (left := ends - time.monotonic()) > 0:
            if wake_fd is not None and readable((wake_fd,), 0.0):
                return False
            if claim is not None and is_proven_dead(claim.owner):
                return False
            self._ask()
            limit = min(left, self.pace.due_in())
            fds = () if self.refs is None else self.refs.fds
            if self.local.wait(revision, limit, wake_fd=wake_fd, claim=claim, fds=fds):
                self.pace.active()
                return True
        return False

    def _ask(self) -> None:
        """Look at the remote if that is due, by the watch or by the time."""
        is_woken = self.refs is not None and self.refs.has_moved()
        if not is_woken and self.pace.due_in() > 0:
            return
        # What moved before the watch began is seen by one's own look alone.
        is_blind = self.refs is not None and not self.refs.fds
        age_s = self.shared.age_s()
        if not (is_woken or is_blind) and age_s is not None and self.pace.covers(age_s):
            self._say(self.pace.looked(has_moved=False, ago_s=age_s))
            return
        if self.refs is not None:
            self.refs.arm()
            self.pace.is_notified = bool(self.refs.fds)
        try:
            has_moved = self.look()
        except RemoteUnreachable as error:
            self._say(self.pace.failed(error))
        except ClaimHeld:
            # Another process of this clone is pushing, and writes down what it finds.
            self._say(self.pace.looked(has_moved=False))
        else:
            self.shared.note()
            self._say(self.pace.looked(has_moved=has_moved))

    def _say(self, text: str | None) -> None:
        if text is not None:
            self.tell(text)
