"""Sleep until a run that is kept in files has moved, without polling.

Linux tells through inotify; elsewhere the watchdog package asks the system's own service.
Where the system has no notification left to give (inotify instances are counted per user),
a short sleep takes its place. The end of a claim's holder on this machine wakes as well.

Not promised: that every change wakes; the caller looks again by itself now and then. Whether
a lease has run out is not decided here.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from sequencer.model.head import Claim
from sequencer.store.identity import is_proven_dead

SLEEP_S = 0.25
_ALL_EVENTS = 1024 * 1024
"""More bytes than the kernel keeps events for one watch."""


class Watch(Protocol):
    """Wakes when one file name in a folder appears, changes or goes."""

    def wait(self, timeout_s: float, fds: Sequence[int]) -> bool:
        """Sleep until a change or for *timeout_s* seconds; return whether one of *fds* woke."""

    def close(self) -> None:
        """Free what the watch holds."""


class Notifier(Watch, Protocol):
    """A watch that can be slept on together with others."""

    def fileno(self) -> int:
        """Return a descriptor that is readable when there is something to tell."""

    def has_changed(self) -> bool:
        """Take what there is to tell; return whether it is about what is watched."""


def readable(fds: Sequence[int], timeout_s: float) -> set[int]:
    """Wait until some of *fds* can be read, at most *timeout_s* seconds; return which.

    `select` would do, but refuses descriptors above 1023, which a large program may have.
    """
    poller = select.poll()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    return {fd for fd, _ in poller.poll(max(timeout_s, 0.0) * 1000)}


def watch(folder: Path, name: str | None, *more: Path) -> Watch:
    """Start watching *name* in *folder*, or every file there; changes from now on count.

    The same in *more* folders.
    """
    try:
        return notifier(folder, name, *more)
    except OSError:
        return SleepingWatch()


def notifier(folder: Path, name: str | None, *more: Path) -> Notifier:
    """Start watching *name* in *folder*, or every file there; the same in *more* folders.

    All take one of the system's notifications, of which a user has about a hundred.

    Raises:
        OSError: there is no such folder, or the system has no notification left to give.
    """
    if sys.platform == "linux":
        return InotifyWatch(folder, name, *more)
    return WatchdogWatch(folder, name, *more)


class InotifyWatch:
    """The kernel's own notification; a wake-up costs about 0.1 ms."""

    def __init__(self, folder: Path, name: str | None, *more: Path) -> None:
        """Watch *name* in *folder* and *more*; None: whatever is created or written there."""
        # Only who waits needs it.
        from inotify_simple import INotify, flags, parse_events  # noqa: PLC0415

        self._name = name
        self._end_of_name = os.fsencode(name or "") + b"\0"
        """How the events of that name end, and those of few others."""
        self._parse = parse_events
        self._inotify = INotify(nonblocking=True)
        mask = flags.MOVED_TO | flags.CLOSE_WRITE | flags.DELETE | flags.MOVED_FROM
        if name is None:
            mask |= flags.CREATE | flags.MODIFY
        try:
            for one in (folder, *more):
                self._inotify.add_watch(one, mask | flags.DELETE_SELF | flags.MOVE_SELF)
        except OSError:
            self._inotify.close()
            raise

    def wait(self, timeout_s: float, fds: Sequence[int]) -> bool:
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0:
            ready = readable((self._inotify.fileno(), *fds), left)
            if not ready.isdisjoint(fds):
                return True
            if self.has_changed():
                return False
        return False

    def fileno(self) -> int:
        return int(self._inotify.fileno())

    def has_changed(self) -> bool:
        """Read all events; return whether one is about what is watched.

        After a long time there are thousands, so the bytes are searched before they are parsed.
        """
        try:
            data = os.read(self._inotify.fileno(), _ALL_EVENTS)
        except BlockingIOError:
            return False
        if self._name is None or self._end_of_name in data:
            return True
        return any(event.name in (self._name, "") for event in self._parse(data))

    def close(self) -> None:
        self._inotify.close()


class WatchdogWatch:
    """The watchdog package, for systems without inotify."""

    def __init__(self, folder: Path, name: str | None, *more: Path) -> None:
        """Watch *name* in *folder* and *more*; None: every file there."""
        from watchdog.events import FileSystemEvent, FileSystemEventHandler  # noqa: PLC0415
        from watchdog.observers import Observer  # noqa: PLC0415

        self._read_fd, write_fd = os.pipe()
        self._write_fd = write_fd
        os.set_blocking(self._read_fd, False)
        os.set_blocking(write_fd, False)

        class Waker(FileSystemEventHandler):
            def on_any_event(self, event: FileSystemEvent) -> None:
                paths = (event.src_path, event.dest_path)
                names = {os.path.basename(os.fsdecode(path)) for path in paths}  # noqa: PTH119
                is_ours = name is None or name in names
                if is_ours and event.event_type not in ("opened", "closed_no_write"):
                    try:
                        os.write(write_fd, b"x")
                    except (BlockingIOError, OSError):
                        return  # a full pipe wakes as well as a written one

        self._observer = Observer()
        for one in (folder, *more):
            self._observer.schedule(Waker(), str(one))
        self._observer.start()

    def wait(self, timeout_s: float, fds: Sequence[int]) -> bool:
        ready = readable([self._read_fd, *fds], timeout_s)
        if self._read_fd in ready:
            self.has_changed()
        return not ready.isdisjoint(fds)

    def fileno(self) -> int:
        return self._read_fd

    def has_changed(self) -> bool:
        """Empty the pipe; return whether it had a change, as only what is watched writes to it."""
        try:
            return bool(os.read(self._read_fd, 65536))
        except BlockingIOError:
            return False

    def close(self) -> None:
        self._observer.stop()
        self._observer.join()
        os.close(self._read_fd)
        os.close(self._write_fd)


class SleepingWatch:
    """Wakes by itself every quarter of a second."""

    def wait(self, timeout_s: float, fds: Sequence[int]) -> bool:
        return bool(readable(fds, min(timeout_s, SLEEP_S)))

    def close(self) -> None:
        """Do nothing: this watch holds nothing."""


RECHECK_S = 5.0
"""Safety net: how often the head is looked at without a notification."""
LOOKS_PER_LEASE = 8
"""How often a claim is looked at in the time of its lease, if that is more often."""


def pause_s(claim: Claim | None) -> float:
    """Return how long to sleep at most before *claim*, or the head, is to be looked at."""
    return RECHECK_S if claim is None else min(RECHECK_S, claim.ttl_s / LOOKS_PER_LEASE)


def wait_for_another(
    revision: int,
    newest: Callable[[], int],
    watching: Watch,
    timeout_s: float | None,
    *,
    fds: Sequence[int] = (),
    claim: Claim | None = None,
    holder: int | None = None,
) -> bool:
    """Sleep until *newest* gives another revision than *revision*; return whether it does.

    *watching* was begun before, so that no change slips through. One of *fds* ends the
    sleep, and so does *holder*, a descriptor of the process that holds *claim*; for the rest
    see `Store.wait`.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    wakers, is_over = [*fds, *(() if holder is None else (holder,))], False
    pause = pause_s(claim)
    while newest() == revision:
        left = pause if deadline is None else deadline - time.monotonic()
        if is_over or left <= 0:
            return False
        if claim is not None and holder is None and is_proven_dead(claim.owner):
            return False
        # The lease of a claim may run out without any notification.
        is_over = watching.wait(min(left, pause), wakers) or claim is not None
    return True
