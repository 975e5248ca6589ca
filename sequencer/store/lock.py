"""The kernel lock of one run, held for the milliseconds of a transition.

Who holds it knows whether the file is still the one that everybody locks: somebody may have
deleted it, and then a second writer can hold "the" lock as well.

Between two transitions the descriptor stays open and only the kernel's lock is given back,
because to open and check the file again costs more than all the rest of a transition. The
file is opened in its folder's descriptor, which no library for locks does.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import sys
import threading
import time
from pathlib import Path

from sequencer.errors import ClaimHeld, NetworkFileSystem, StorageFailed
from sequencer.store import folder as folders
from sequencer.store.folder import Folder
from sequencer.store.ownership import refused

TIMEOUT_S = 30.0
"""Whoever waits longer faces a stopped process, since a transition takes milliseconds."""
POLL_S = 0.001
FIRST_POLL_S = 0.000_05
"""Who was woken by the holder's own change finds the lock free in some ten microseconds."""
_HINT = "free disk space or fix the permissions; if the lock is not a regular file, move it away"


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
        self._fd = -1
        self._inode = (0, 0)
        self._pid = 0
        self.folder: Folder | None = None
        """Of the file that is open, as it was reached without a link."""

    def __enter__(self) -> None:
        """Hold the lock for a block; not reentrant.

        Raises:
            ClaimHeld: somebody else has held it for half a minute, or *timeout_s*.
            StorageFailed: the file system does not give it.
            NetworkFileSystem: it would mean nothing there.
        """
        if not self._threads.acquire(timeout=self._timeout_s):
            raise self._held_too_long()
        try:
            self._take()
        except BaseException:
            self._threads.release()
            raise

    def __exit__(self, *_: object) -> None:
        """Give the lock back."""
        try:
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

    def __del__(self) -> None:
        """Close it where nobody did."""
        with contextlib.suppress(OSError, AttributeError):
            self._drop()

    def _take(self) -> None:
        """Lock the file of the last time, or that which everybody locks by now."""
        deadline, pause = 0.0, FIRST_POLL_S
        while True:
            # A child has its parent's descriptor, and with it its parent's lock.
            if self._fd < 0 or self._pid != os.getpid():
                self._open()
            is_free = True
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                is_free = False
            except OSError as error:
                raise self._no_lock(error) from error
            if not self.is_current():
                self._drop()
            elif is_free:
                return
            now = time.monotonic()
            deadline = deadline or now + self._timeout_s
            if now > deadline:
                raise self._held_too_long()
            time.sleep(pause)
            pause = min(2 * pause, POLL_S)

    def _open(self) -> None:
        """Open the lock file, made with its folder where they are missing."""
        self._drop()
        try:
            folder = folders.made(self.path.parent)
        except OSError as error:
            why, hint = refused(error, error.filename or self.path.parent, _HINT)
            message = f"can't be created: {why}"
            raise StorageFailed(message, where=str(self.path.parent), hint=hint) from error
        if not self._is_checked:
            # Once: where somebody deletes the lock file all the time, this is on the way.
            ensure_local(self.path.parent)
            self._is_checked = True
        try:
            fd = folder.open(self.path.name, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise self._no_lock(error) from error
        held = os.fstat(fd)
        self._fd, self._pid, self._inode = fd, os.getpid(), (held.st_dev, held.st_ino)
        self.folder = folder
        if not stat.S_ISREG(held.st_mode):
            self._drop()
            raise self._no_lock(None)

    def _no_lock(self, error: OSError | None) -> StorageFailed:
        why, hint = "it is not a regular file", _HINT
        if error is not None:
            why, hint = refused(error, self.path, _HINT)
        return StorageFailed(f"the lock can't be taken: {why}", where=str(self.path), hint=hint)

    def _give_back(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        except OSError:
            # What was accepted stays accepted; a closed descriptor holds no lock.
            self._drop()

    def _drop(self) -> None:
        # Closed and not unlocked: a child's copy must not give its parent's lock away.
        fd, self._fd, self._inode = self._fd, -1, (0, 0)
        if fd >= 0:
            os.close(fd)

    def _held_too_long(self) -> ClaimHeld:
        return ClaimHeld(
            f"the lock has been held for more than {self._timeout_s:g} s",
            where=str(self.path),
            hint="a stopped process may hold it: 'lslocks' shows who holds that file",
        )


NETWORK_TYPES = frozenset(
    (
        *("9p", "afs", "autofs", "beegfs", "ceph", "cifs", "coda", "davfs", "gfs2", "glusterfs"),
        *("gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "smb3", "smbfs", "virtiofs"),
    )
)

_OCTAL = re.compile(r"\\([0-7]{3})")
"""How mountinfo writes blanks, line ends and backslashes in paths."""


def type_of(folder: Path) -> str:
    """Return the type of the file system that holds *folder*; empty if it can't be told."""
    resolved = os.path.realpath(folder)
    below = f"{resolved.rstrip('/')}/"
    longest, found = -1, ""
    for mount_point, kind in _mounts():
        # Of several mounts on one point the last is the one that is seen.
        if below.startswith(f"{mount_point.rstrip('/')}/") and len(mount_point) >= longest:
            longest, found = len(mount_point), kind
    return found


def _mounts() -> list[tuple[str, str]]:
    """Return each mount's folder and type; as texts, because each store looks at them all."""
    if sys.platform != "linux":
        import psutil  # noqa: PLC0415 (only where there is no /proc)

        return [(p.mountpoint, p.fstype) for p in psutil.disk_partitions(all=True)]
    mounts = []
    for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        before, _, after = line.partition(" - ")
        point = before.split(" ", 5)[4]
        if "\\" in point:
            point = _OCTAL.sub(lambda found: chr(int(found[1], 8)), point)
        mounts.append((point, after.split(" ", 1)[0]))
    return mounts


def is_network(kind: str) -> bool:
    """Return whether file system type *kind* is shared between machines.

    ``fuseblk`` is a local disk driver in user space; every other fuse is not trusted.
    """
    return kind in NETWORK_TYPES or (kind.startswith("fuse") and kind != "fuseblk")


def ensure_local(folder: Path) -> None:
    """Return if *folder* is on a local file system.

    Raises:
        NetworkFileSystem: it is not, so that two machines could both believe to hold the lock.
    """
    kind = type_of(folder)
    if is_network(kind):
        raise NetworkFileSystem(
            f"the file system is {kind}, where locks and renames may not reach other machines",
            where=str(folder),
            hint="use a local folder, or set store.allow_network_fs: true if only one machine "
            "uses it",
        )
