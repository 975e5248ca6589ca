"""Sleep until the files of a run have changed, without polling.

Linux notifies through inotify; on other systems the watchdog package uses the system's service.
If the system has no notification left (the number of inotify instances per user is limited), a
short sleep takes its place. The end of a claim's holder on this machine also ends the sleep.

Not promised: that every change wakes; the caller checks again from time to time. Whether a lease
has expired is not decided here.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from sequencer.model.head import Claim
from sequencer.store.identity import is_proven_dead
from sequencer.store.wake_up import WakeUp

SLEEP_S = 0.25
LONGEST_POLL_S = 86_400.0
"""No system call waits for longer: poll refuses 2**31 ms, which is less than 25 days."""
_READ_BYTES = 32 * 1024
"""How many bytes of events are read at once. A buffer of 128 KiB or more would be mapped and
unmapped for each read, which costs more than the read."""
_FULL_READ = _READ_BYTES - (16 + 256)
"""After a longer read, there may be more events: one with the longest name did not fit."""


class Watch(Protocol):
    """Wakes when a file name in a folder appears, changes or disappears."""

    def wait(self, timeout_s: float, fds: Sequence[int]) -> bool:
        """Sleep until a change or for *timeout_s* seconds; return whether one of *fds* woke."""

    def close(self) -> None:
        """Release the descriptors and threads of the watch."""


class Notifier(Watch, Protocol):
    """A watch whose descriptor a caller can poll together with others."""

    def fileno(self) -> int:
        """Return a descriptor that is readable when there are events."""

    def has_changed(self) -> bool:
        """Read the events; return whether one is about a watched file."""


def wait_readable(fds: Sequence[int], timeout_s: float) -> set[int]:
    """Wait at most *timeout_s* seconds, and at most a day, for *fds*; return the readable ones.

    Not with `select`: it refuses descriptors above 1023, which a large program may have.
    """
    poller = select.poll()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    return {fd for fd, _ in poller.poll(min(max(timeout_s, 0.0), LONGEST_POLL_S) * 1000)}


def watch(folder: Path, name: str | None, *more: Path) -> Watch:
    """Watch *name* in *folder* and in *more* folders from now on; None: all files in them."""
    try:
        return start_notifier(folder, name, *more)
    except OSError:
        return SleepingWatch()


def start_notifier(folder: Path, name: str | None, *more: Path) -> Notifier:
    """Watch *name* in *folder* and in *more* folders from now on; None: all files in them.

    All folders together use one of the system's notifications; a user has about a hundred.

    Raises:
        OSError: there is no such folder, or the system has no notification left.
    """
    if sys.platform == "linux":
        return InotifyWatch(folder, name, *more)
    return WatchdogWatch(folder, name, *more)


class InotifyWatch:
    """The kernel's own notification; a wake-up costs about 0.1 ms."""

    def __init__(self, folder: Path, name: str | None, *more: Path) -> None:
        """Watch *name* in *folder* and *more*; None: all files that are created or written."""
        # Imported here, because only a process that waits needs it.
        from inotify_simple import INotify, flags, parse_events  # noqa: PLC0415

        self._name = name
        self._end_of_name = os.fsencode(name or "") + b"\0"
        """How the events of that name end, and few other events."""
        self._parse = parse_events
        self._inotify = INotify(nonblocking=True)
        mask = flags.MOVED_TO | flags.CLOSE_WRITE | flags.DELETE | flags.MOVED_FROM
        if name is None:
            mask |= flags.CREATE | flags.MODIFY
        try:
            for path in (folder, *more):
                self._inotify.add_watch(path, mask | flags.DELETE_SELF | flags.MOVE_SELF)
        except OSError:
            self._inotify.close()
            raise

    def wait(self, timeout_s: float, fds: Sequence[int]) -> bool:
        deadline = time.monotonic() + timeout_s
        while (left_s := deadline - time.monotonic()) > 0:
            ready_fds = wait_readable((self._inotify.fileno(), *fds), left_s)
            if not ready_fds.isdisjoint(fds):
                return True
            if self.has_changed():
                return False
        return False

    def fileno(self) -> int:
        return int(self._inotify.fileno())

    def has_changed(self) -> bool:
        """Read all events; return whether one is about a watched file.

        After a long time there are thousands, so this searches the bytes before it parses them.
        """
        data = b""
        with contextlib.suppress(BlockingIOError):
            while len(part := os.read(self._inotify.fileno(), _READ_BYTES)) > _FULL_READ:
                data += part
            data += part
        if not data:
            return False
        if self._name is None or self._end_of_name in data:
            return True
        return any(event.name in (self._name, "") for event in self._parse(data))

    def close(self) -> None:
        self._inotify.close()


class WatchdogWatch:
    """The watchdog package, for systems without inotify."""

    def __init__(self, folder: Path, name: str | None, *more: Path) -> None:
        """Watch *name* in *folder* and *more*; None: all files in them."""
        from watchdog.events import FileSystemEvent, FileSystemEventHandler  # noqa: PLC0415
        from watchdog.observers import Observer  # noqa: PLC0415

        wake_up = self._wake_up = WakeUp()

        class Waker(FileSystemEventHandler):
            def on_any_event(self, event: FileSystemEvent) -> None:
                paths = (event.src_path, event.dest_path)
                names = {os.path.basename(os.fsdecode(path)) for path in paths}  # noqa: PTH119
                is_ours = name is None or name in names
                if is_ours and event.event_type not in ("opened", "closed_no_write"):
                    wake_up.set()

        self._observer = Observer()
        for watched_path in (folder, *more):
            self._observer.schedule(Waker(), str(watched_path))
        self._observer.start()

    def wait(self, timeout_s: float, fds: Sequence[int]) -> bool:
        ready_fds = wait_readable([self.fileno(), *fds], timeout_s)
        if self.fileno() in ready_fds:
            self.has_changed()
        return not ready_fds.isdisjoint(fds)

    def fileno(self) -> int:
        return self._wake_up.fileno()

    def has_changed(self) -> bool:
        """Return whether there was an event since the last call, of watched files only."""
        return self._wake_up.clear()

    def close(self) -> None:
        self._observer.stop()
        self._observer.join()
        self._wake_up.close()


class SleepingWatch:
    """Wakes every quarter of a second."""

    def wait(self, timeout_s: float, fds: Sequence[int]) -> bool:
        return bool(wait_readable(fds, min(timeout_s, SLEEP_S)))

    def close(self) -> None:
        """Do nothing: this watch has no descriptors."""


RECHECK_S = 5.0
"""How often to check the head without a notification, as a safety net."""
LOOKS_PER_LEASE = 8
"""How often to check a claim during its lease, if that is more often."""


def pause_s(claim: Claim | None) -> float:
    """Return the longest sleep before *claim*, or the head, must be checked again."""
    return RECHECK_S if claim is None else min(RECHECK_S, claim.ttl_s / LOOKS_PER_LEASE)


def wait_for_other_revision(
    revision: int,
    newest: Callable[[], int],
    watching: Watch,
    timeout_s: float | None,
    *,
    fds: Sequence[int] = (),
    claim: Claim | None = None,
    holder: int | None = None,
) -> bool:
    """Sleep until *newest* returns a revision other than *revision*; return whether it does.

    *watching* must have started before, so that no change is missed. A readable descriptor in *fds*
    ends the sleep, and so does *holder*, a descriptor of the process that holds *claim*; otherwise
    see `Store.wait`.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    wakers, is_over = [*fds, *(() if holder is None else (holder,))], False
    pause = pause_s(claim)
    while newest() == revision:
        left_s = pause if deadline is None else deadline - time.monotonic()
        if is_over or left_s <= 0:
            return False
        if claim is not None and holder is None and is_proven_dead(claim.owner):
            return False
        # The lease of a claim may expire without any notification.
        is_over = watching.wait(min(left_s, pause), wakers) or claim is not None
    return True
