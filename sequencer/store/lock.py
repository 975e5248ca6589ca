"""The kernel lock of one run, held for the milliseconds of a transition.

The holder can check that the file is still the one that other processes lock. If someone deleted
it, a second writer can hold "the" lock too.

Between two transitions the descriptor stays open and only the kernel's lock is released, because
opening and checking the file again costs more than the rest of a transition. The file is opened
relative to its folder's descriptor, which no lock library does.
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
from sequencer.store.ownership import explain_refusal

TIMEOUT_S = 30.0
"""After this time the holder must be a stopped process, because a transition takes milliseconds."""
POLL_S = 0.001
FIRST_POLL_S = 0.000_05
"""A process that the holder's change woke finds the lock free within about ten microseconds."""
_HINT = "free disk space or fix the permissions; if the lock is not a regular file, move it away"


class RunLock:
    """``state.json.lock``; never deleted, never renamed by this program."""

    def __init__(
        self, path: Path, *, allow_network_fs: bool, timeout_s: float | None = None
    ) -> None:
        """Use *path*; the file and its folder are made when the lock is first taken."""
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
        """The folder of the open file, reached without a link."""

    def __enter__(self) -> None:
        """Hold the lock for a block; not reentrant.

        Raises:
            ClaimHeld: another process or thread has held it for `TIMEOUT_S`, or *timeout_s*.
            StorageFailed: the file system does not grant it.
            NetworkFileSystem: a lock has no effect on other machines there.
        """
        if not self._threads.acquire(timeout=self._timeout_s):
            raise self._timeout_error()
        try:
            self._acquire()
        except BaseException:
            self._threads.release()
            raise

    def __exit__(self, *_: object) -> None:
        """Release the lock."""
        try:
            self._release()
        finally:
            self._threads.release()

    def is_current(self) -> bool:
        """Return whether the lock file is still the inode that is locked."""
        try:
            status = os.lstat(self._path)
        except OSError:
            return False
        return self._inode == (status.st_dev, status.st_ino)

    def close(self) -> None:
        """Close the descriptor; the lock may be used again."""
        with self._threads:
            self._drop()

    def __del__(self) -> None:
        """Close the descriptor if `close` was not called."""
        with contextlib.suppress(OSError, AttributeError):
            self._drop()

    def _acquire(self) -> None:
        """Lock the open file; if it is not at the path anymore, lock the file that is."""
        deadline, pause = 0.0, FIRST_POLL_S
        while True:
            # A forked child has its parent's descriptor, and so its parent's lock.
            if self._fd < 0 or self._pid != os.getpid():
                self._open()
            is_free = True
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                is_free = False
            except OSError as error:
                raise self._lock_error(error) from error
            if not self.is_current():
                self._drop()
            elif is_free:
                return
            now = time.monotonic()
            deadline = deadline or now + self._timeout_s
            if now > deadline:
                raise self._timeout_error()
            time.sleep(pause)
            pause = min(2 * pause, POLL_S)

    def _open(self) -> None:
        """Open the lock file; it and its folder are made if they are missing."""
        self._drop()
        try:
            folder = folders.make_folder(self.path.parent)
        except OSError as error:
            reason, hint = explain_refusal(error, error.filename or self.path.parent, _HINT)
            message = f"can't be created: {reason}"
            raise StorageFailed(message, where=str(self.path.parent), hint=hint) from error
        if not self._is_checked:
            # Only once: if something keeps deleting the lock file, each step opens it again.
            ensure_local(self.path.parent)
            self._is_checked = True
        try:
            fd = folder.open(self.path.name, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise self._lock_error(error) from error
        status = os.fstat(fd)
        self._fd, self._pid, self._inode = fd, os.getpid(), (status.st_dev, status.st_ino)
        self.folder = folder
        if not stat.S_ISREG(status.st_mode):
            self._drop()
            raise self._lock_error(None)

    def _lock_error(self, error: OSError | None) -> StorageFailed:
        reason, hint = "it is not a regular file", _HINT
        if error is not None:
            reason, hint = explain_refusal(error, self.path, _HINT)
        return StorageFailed(f"the lock can't be taken: {reason}", where=str(self.path), hint=hint)

    def _release(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        except OSError:
            # The transition is accepted anyway; a closed descriptor holds no lock.
            self._drop()

    def _drop(self) -> None:
        # Close without unlocking: a forked child must not release its parent's lock.
        fd, self._fd, self._inode = self._fd, -1, (0, 0)
        if fd >= 0:
            os.close(fd)

    def _timeout_error(self) -> ClaimHeld:
        return ClaimHeld(
            f"the lock has been held for more than {self._timeout_s:g} s",
            where=str(self.path),
            hint="a stopped process may hold it: 'lslocks' shows which process holds it",
        )


NETWORK_TYPES = frozenset(
    (
        *("9p", "afs", "autofs", "beegfs", "ceph", "cifs", "coda", "davfs", "gfs2", "glusterfs"),
        *("gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "smb3", "smbfs", "virtiofs"),
    )
)

_OCTAL = re.compile(r"\\([0-7]{3})")
"""The escape of spaces, newlines and backslashes in paths of mountinfo."""


def filesystem_type(folder: Path) -> str:
    """Return the type of the file system of *folder*; empty: unknown."""
    real_path = os.path.realpath(folder)
    path = f"{real_path.rstrip('/')}/"
    longest_length, type_name = -1, ""
    for mount_point, mounted_type in _list_mounts():
        # If a mount point has several mounts, the last one hides the others.
        if path.startswith(f"{mount_point.rstrip('/')}/") and len(mount_point) >= longest_length:
            longest_length, type_name = len(mount_point), mounted_type
    return type_name


def _list_mounts() -> list[tuple[str, str]]:
    """Return (folder, type) of each mount; as text, because each store searches all of them."""
    if sys.platform != "linux":
        import psutil  # noqa: PLC0415 (only where there is no /proc)

        return [
            (partition.mountpoint, partition.fstype)
            for partition in psutil.disk_partitions(all=True)
        ]
    mounts = []
    for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        mount_fields, _, type_fields = line.partition(" - ")
        point = mount_fields.split(" ", 5)[4]
        if "\\" in point:
            point = _OCTAL.sub(lambda match: chr(int(match[1], 8)), point)
        mounts.append((point, type_fields.split(" ", 1)[0]))
    return mounts


def is_network(kind: str) -> bool:
    """Return whether file system type *kind* is shared between machines.

    ``fuseblk`` is a local disk driver in user space; all other fuse types count as network.
    """
    return kind in NETWORK_TYPES or (kind.startswith("fuse") and kind != "fuseblk")


def ensure_local(folder: Path) -> None:
    """Check that *folder* is on a local file system.

    Raises:
        NetworkFileSystem: it is not, so two machines could hold the lock at the same time.
    """
    kind = filesystem_type(folder)
    if is_network(kind):
        raise NetworkFileSystem(
            f"the file system is {kind}, where locks and renames may not reach other machines",
            where=str(folder),
            hint="use a local folder, or set store.allow_network_fs: true if only one machine "
            "uses it",
        )
