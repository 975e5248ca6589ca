"""Sleep until a run that others share has moved, here or on the remote.

The sleep itself is that of the files: what a process of this clone does wakes at once. Now
and then the remote is asked, at the pace of `polling`, or when the watch of a remote that
is a folder wakes; whoever asked brings what is new into the files, and by that wakes all.
A remote that does not answer is no change and no end: people are told, and the sleep goes on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from sequencer.errors import ClaimHeld, RemoteUnreachable
from sequencer.model.head import Claim
from sequencer.store.file import FileStore
from sequencer.store.git.local_remote import RefWatch
from sequencer.store.git.polling import Pace, SharedLook
from sequencer.store.identity import is_proven_dead
from sequencer.store.waiting import pause_s
from sequencer.store.watch import readable


class SharedWait:
    """The wait of one process for one run."""

    def __init__(
        self,
        local: FileStore,
        look: Callable[[], bool],
        pace: Pace,
        *,
        shared: SharedLook,
        refs: RefWatch | None = None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Sleep on *local*; *look* asks the remote, brings what is new and says whether it moved.

        *refs* watches a remote on this machine. *tell* is called when the remote stops
        answering, at each longer pause, and when it answers again.
        """
        self._local = local
        self._look = look
        self._pace = pace
        self._shared = shared
        self._refs = refs
        self._tell = tell

    def close(self) -> None:
        """Free what is watched; the next wait begins again."""
        if self._refs is not None:
            self._refs.close()

    def wait(
        self,
        revision: int,
        timeout_s: float | None,
        *,
        wake_fd: int | None = None,
        claim: Claim | None = None,
    ) -> bool:
        """See `Store.wait`."""
        if self._local.wait(revision, 0.0):
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
            limit = min(left, self._pace.due_in())
            fds = () if self._refs is None else self._refs.fds
            if self._local.wait(revision, limit, wake_fd=wake_fd, claim=claim, fds=fds):
                self._pace.active()
                return True
        return False

    def _ask(self) -> None:
        """Look at the remote if that is due, by the watch or by the time."""
        is_woken = self._refs is not None and self._refs.has_moved()
        if not is_woken and self._pace.due_in() > 0:
            return
        # What moved before the watch began is seen by one's own look alone.
        is_blind = self._refs is not None and not self._refs.fds
        age_s = self._shared.age_s()
        if not (is_woken or is_blind) and age_s is not None and self._pace.covers(age_s):
            self._say(self._pace.looked(has_moved=False, ago_s=age_s))
            return
        if self._refs is not None:
            self._refs.arm()
            self._pace.is_notified = bool(self._refs.fds)
        try:
            has_moved = self._look()
        except RemoteUnreachable as error:
            self._say(self._pace.failed(error))
        except ClaimHeld:
            # Another process of this clone is pushing, and writes down what it finds.
            self._say(self._pace.looked(has_moved=False))
        else:
            self._shared.note()
            self._say(self._pace.looked(has_moved=has_moved))

    def _say(self, text: str | None) -> None:
        if text is not None:
            self._tell(text)
