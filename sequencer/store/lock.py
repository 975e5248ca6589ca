"""The kernel lock of one run, held for the milliseconds of a transition.

Who holds it knows whether the file is still the one that everybody locks: somebody may have
deleted it, and then a second writer can hold "the" lock as well.

`filelock` opens the file, refuses what is no plain file or has no kernel lock, and waits.
Between two transitions its descriptor stays open and only the kernel's lock is given back,
because to open and check the file again costs more than all the rest of a transition.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from sequencer.errors import ClaimHeld, StorageFailed
from sequencer.store.filesystem import ensure_local

TIMEOUT_S = 30.0
"""Whoever waits longer faces a stopped process, since a transition takes milliseconds."""
POLL_S = 0.001
FIRST_POLL_S = 0.000_05
"""Who was woken by the holder's own change finds the lock free in some ten microseconds."""
_HINT = "make room or mend the permissions; a lock that is no plain file is to be moved away"


class RunLock:
    """``state.json.lock``; never deleted, never renamed by this program."""

    def __init__(
        self, path: Path, *, allow_network_fs: bool, timeout_s: float | None = None
    ) -> None:
        """Use *path*, made with its folder when the lock is first taken."""
        self._timeout_s = TIMEOUT_S if timeout_s is None else timeout_s
        self.path = path
        self._path = str(path)
        self._is_checked = allow_network_fs
        self._threads = threading.Lock()
        """A kernel lock belongs to the descriptor, which the threads of a process share."""
        self._lock: FileLock | None = None
        self._fd = -1
        self._inode = (0, 0)
        self._pid = 0

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock for the block; not reentrant.

        Raises:
            ClaimHeld: somebody else has held it for half a minute, or *timeout_s*.
            StorageFailed: the file system does not give it.
            NetworkFileSystem: it would mean nothing there.
        """
        if not self._threads.acquire(timeout=self._timeout_s):
            raise self._held_too_long()
        try:
            if not self._take_again():
                self._take()
            try:
                yield
            finally:
                self._give_back()
        finally:
            self._threads.release()

    def is_current(self) -> bool:
        """Return whether the lock file is still the inode that is locked."""
        try:
            there = os.lstat(self._path)
        except OSError:
            return False
        return self._inode == (there.st_dev, there.st_ino)

    def close(self) -> None:
        """Free the descriptor; the lock may be used again."""
        with self._threads:
            self._drop()

    def _take_again(self) -> bool:
        """Lock the file of the last time, if it is still the one that everybody locks."""
        deadline, pause = 0.0, FIRST_POLL_S
        # A child has its parent's descriptor, and with it its parent's lock.
        while self._lock is not None and self._pid == os.getpid() and self.is_current():
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                now = time.monotonic()
                deadline = deadline or now + self._timeout_s
                if now > deadline:
                    raise self._held_too_long() from None
                time.sleep(pause)
                pause = min(2 * pause, POLL_S)
            except OSError:
                return False
            else:
                return True
        return False

    def _take(self) -> None:
        self._drop()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            message = f"can't be created: {error.strerror}"
            raise StorageFailed(message, where=str(self.path.parent), hint=_HINT) from error
        if not self._is_checked:
            # Once: where somebody deletes the lock file all the time, this is on the way.
            ensure_local(self.path.parent)
            self._is_checked = True
        fds: list[int] = []
        # A soft lock stays behind when its holder is killed. The hook is no method of ours:
        # the two would keep each other, and the descriptor, alive.
        lock = FileLock(
            self.path, thread_local=False, fallback_to_soft=False, on_acquired=fds.append
        )
        try:
            lock.acquire(timeout=self._timeout_s, poll_interval=POLL_S)
        except Timeout:
            raise self._held_too_long() from None
        except OSError as error:
            message = f"the lock can't be taken: {error.strerror or error}"
            raise StorageFailed(message, where=str(self.path), hint=_HINT) from error
        held = os.fstat(fds[-1])
        self._lock, self._fd, self._pid = lock, fds[-1], os.getpid()
        self._inode = (held.st_dev, held.st_ino)

    def _give_back(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        except OSError:
            # What was accepted stays accepted; a closed descriptor holds no lock.
            self._drop()

    def _drop(self) -> None:
        lock, self._lock, self._fd, self._inode = self._lock, None, -1, (0, 0)
        if lock is not None and self._pid == os.getpid():
            try:
                lock.release(force=True)
            except OSError:
                # filelock keeps the lock for a second try.
                lock.release(force=True)

    def _held_too_long(self) -> ClaimHeld:
        return ClaimHeld(
            f"the lock is held for more than {self._timeout_s:g} s",
            where=str(self.path),
            hint="a stopped process may hold it: 'lslocks' names who holds that file",
        )
