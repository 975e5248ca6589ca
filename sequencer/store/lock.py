"""The kernel lock of one run, held for the milliseconds of a transition.

Who holds it knows whether the file is still the one that everybody locks: somebody may have
deleted it, and then a second writer can hold "the" lock as well.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from sequencer.errors import ClaimHeld, StorageFailed
from sequencer.store.filesystem import ensure_local

TIMEOUT_S = 30.0
"""Whoever waits longer faces a stopped process, since a transition takes milliseconds."""
POLL_S = 0.001


class RunLock:
    """``state.json.lock``; never deleted, never renamed by this program."""

    def __init__(self, path: Path, *, allow_network_fs: bool) -> None:
        """Use *path*, made with its folder when the lock is first taken."""
        self.path = path
        self._allow_network_fs = allow_network_fs
        self._lock: FileLock | None = None
        self._fd = -1

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock for the block.

        Raises:
            ClaimHeld: another process has held it for half a minute.
            StorageFailed: the file system does not give it.
            NetworkFileSystem: it would mean nothing there.
        """
        lock = self._ensure()
        try:
            lock.acquire(timeout=TIMEOUT_S, poll_interval=POLL_S)
        except Timeout:
            raise ClaimHeld(
                f"the lock is held for more than {TIMEOUT_S:g} s",
                where=str(self.path),
                hint="a stopped process may hold it: 'fuser' on that file names it",
            ) from None
        except OSError as error:
            raise StorageFailed(
                f"the lock can't be taken: {error.strerror or error}", where=str(self.path)
            ) from error
        try:
            yield
        finally:
            try:
                lock.release()
            except OSError:
                # What was accepted stays accepted; filelock keeps the lock for a second try.
                lock.release(force=True)

    def is_current(self) -> bool:
        """Return whether the lock file is still the inode that is locked."""
        try:
            held, there = os.fstat(self._fd), os.stat(self.path)  # noqa: PTH116
        except OSError:
            return False
        return (held.st_dev, held.st_ino) == (there.st_dev, there.st_ino)

    def _ensure(self) -> FileLock:
        folder = self.path.parent
        if self._lock is None or not folder.is_dir():
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise StorageFailed(
                    f"can't be created: {error.strerror}", where=str(folder)
                ) from error
            if not self._allow_network_fs:
                ensure_local(folder)
            # A soft lock stays behind when its holder is killed.
            self._lock = FileLock(self.path, fallback_to_soft=False, on_acquired=self._remember)
        return self._lock

    def _remember(self, fd: int) -> None:
        self._fd = fd
