"""The kernel lock of one step's processes: held from an attempt's first to its last.

The sequencer takes it before it starts a process and hands it to the guard, so the kernel
frees it only when both are gone. Agents don't get it: they could close it, or hold it in a
service that they left behind. The file is removed when all of an attempt's processes have
ended; who finds it looks for processes by the marks in it. What descends from a marked process
belongs to it, whatever its environment.

Not promised: that processes on another machine or of a run without claims are known here; nor
those of another user or pid namespace, and orphans with an environment of their own.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from signal import SIGKILL, SIGSTOP
from typing import TYPE_CHECKING

from sequencer.errors import MachineBusy, StorageFailed
from sequencer.executors.cancellation import Cancellation
from sequencer.store import folder as folders
from sequencer.store.identity import pid_namespace
from sequencer.store.ownership import refused

if TYPE_CHECKING:
    import psutil

MARK = "SEQUENCER_GUARD"
"""Environment variable that marks the processes of one attempt."""
WAIT_S = 2.5
"""A guard that lost its sequencer ends what ignores TERM after a second; one that takes
longer is stopped, or has a sequencer that is."""
POLL_S = 0.01
_NOTE = re.compile(rb"([0-9a-f]{32}) (\S*)\n")
_MAX_BYTES = 65_536
_FLAGS = os.O_RDWR | os.O_APPEND


def lock_path(state_path: Path, node: str | None = None) -> Path:
    """Return the file for a line of steps, which has one agent at a time, or for one *node*."""
    name = "line" if node is None else sha256(node.encode()).hexdigest()[:16]
    return state_path.parent / "beats" / f"agents-{name}"


class AttemptLock:
    """Held while processes of one attempt may live; nothing is opened before `take`."""

    def __init__(self, path: Path, tell: Callable[[str], None]) -> None:
        """Use the file *path*; *tell* hears what is waited for."""
        self.path = path
        self._tell = tell
        self._fd = -1
        self.is_clean = True
        """False: some processes could not be ended, and the next attempt looks for them."""

    def take(self, cancellation: Cancellation) -> bool:
        """Hold the lock; return False if *cancellation* came first.

        When it returns, no process of an earlier attempt is alive as far as this machine can
        tell: those that outlast `WAIT_S`, or a guard that was killed, were ended.

        Raises:
            MachineBusy: some could not be ended.
            StorageFailed: the file can't be had.
        """
        if self._fd < 0:
            found = self._taken(cancellation)
            self._fd = -1 if found is None else found
        return self._fd >= 0

    @property
    def fd(self) -> int:
        """Return the descriptor while the lock is held, else -1."""
        return self._fd

    def note(self, mark: str) -> None:
        """Remember that processes with *mark* are about to start.

        Raises:
            MachineBusy: this process was stopped for so long that another one has the step.
            StorageFailed: there is no room for it, so that nothing may start.
        """
        if not os.fstat(self._fd).st_nlink:
            raise MachineBusy("another process has taken over the step in the meantime")
        left = memoryview(f"{mark} {pid_namespace()}\n".encode())
        try:
            # A disk that is nearly full takes a part; the rest then says why.
            while left:
                left = left[os.write(self._fd, left) :]
        except OSError as error:
            raise self._refused(error) from error

    def close(self) -> None:
        """Free the lock, if it was taken; the guards of this attempt have ended."""
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        try:
            # Who took the step over has made a file of its own in this one's place.
            if self.is_clean and os.fstat(fd).st_nlink:
                folders.remove(str(self.path))
            else:
                fcntl.flock(fd, fcntl.LOCK_UN)
        except OSError:
            # Whoever finds the file looks for processes and finds none.
            return
        finally:
            os.close(fd)

    def settle(self, cancellation: Cancellation) -> None:
        """Wait until the processes of earlier attempts are gone, and hold nothing.

        Raises: see `take`.
        """
        self.take(cancellation)
        self.close()

    def _taken(self, cancellation: Cancellation) -> int | None:
        while True:
            fd, is_new = self._opened()
            is_kept = False
            try:
                is_free = _lock(fd) or self._waited(fd, cancellation)
                if cancellation.is_set():
                    return None
                if os.fstat(fd).st_nlink:
                    if not (is_new and is_free):
                        self._end_earlier(fd, is_free=is_free)
                        is_free = is_free or _lock(fd)
                        os.ftruncate(fd, 0)
                    if is_free:
                        is_kept = True
                        return fd
                    # Only a sequencer without any process of its attempt can hold it now: one
                    # that is stopped, or does not know yet that it lost its claim.
                    folders.remove(str(self.path))
            except OSError as error:
                raise self._refused(error) from error
            finally:
                if not is_kept:
                    os.close(fd)

    def _opened(self) -> tuple[int, bool]:
        """Return a descriptor of the file, and whether it was made."""
        while True:
            try:
                folder = folders.made(self.path.parent)
                with contextlib.suppress(FileExistsError):
                    return folder.open(self.path.name, _FLAGS | os.O_CREAT | os.O_EXCL), True
                return folder.open(self.path.name, _FLAGS), False
            except FileNotFoundError:
                # Another one has removed the file meanwhile, or somebody the whole folder.
                continue
            except OSError as error:
                raise self._refused(error) from error

    def _refused(self, error: OSError) -> StorageFailed:
        hint = "free disk space or fix the permissions; move away what is not a regular file"
        why, hint = refused(error, self.path, hint)
        message = f"the lock of the step's processes can't be taken: {why}"
        return StorageFailed(message, where=str(self.path), hint=hint)

    def _waited(self, fd: int, cancellation: Cancellation) -> bool:
        """Return whether the lock was given within `WAIT_S`."""
        self._tell("waiting for the last process of the earlier attempt")
        deadline = time.monotonic() + WAIT_S
        while not cancellation.wait(POLL_S):
            if _lock(fd):
                return True
            if time.monotonic() > deadline:
                return False
        return False

    def _end_earlier(self, fd: int, *, is_free: bool) -> None:
        """End what is left of the attempts that are noted in the file.

        Raises:
            MachineBusy: something is left, or may be.
        """
        notes = _NOTE.findall(os.pread(fd, _MAX_BYTES, 0))
        if not notes:
            return
        left = end_marked(*(mark.decode() for mark, _ in notes))
        here = pid_namespace().encode()
        if left:
            message = f"{left} processes of an earlier attempt at the step could not be ended"
        elif not is_free and any(where != here for _, where in notes):
            message = "processes of an earlier attempt at the step live in another container"
        else:
            return
        raise MachineBusy(
            message,
            where=str(self.path),
            hint="end them, or remove this file if none is left; then start again",
        )


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


_ROUNDS = 100
_PAUSE_S = 0.02
_EMPTY_LOOKS = 2
"""What forks all the time may pass one look by."""


def end_marked(*marks: str) -> int:
    """KILL every process with one of *marks* until none is found; return how many are left.

    Used where a guard was killed or is stopped, and on systems without a subreaper. They are
    stopped first: so nothing forks meanwhile, and no orphan loses its parent, by which it is
    known. This process and those that it descends from are left alone.
    """
    if not marks:
        return 0
    import psutil  # noqa: PLC0415 - few attempts leave anything

    here = psutil.Process()
    spared = {here.pid, *(one.pid for one in here.parents())}
    left: list[psutil.Process] = []
    stopped: set[int] = set()
    empty = 0
    for _ in range(_ROUNDS):
        left = _marked(frozenset(marks))
        ours = [process for process in left if process.pid not in spared]
        if not ours:
            empty += 1
            if empty == _EMPTY_LOOKS:
                break
        else:
            is_still = {process.pid for process in ours} <= stopped
            for process in ours:
                # Looks at the start time too: a number that has a new owner gets nothing.
                with contextlib.suppress(psutil.Error):
                    process.send_signal(SIGKILL if is_still else SIGSTOP)
            if not is_still:
                stopped |= {process.pid for process in ours}
                continue
        time.sleep(_PAUSE_S)
    return len(left)


def _marked(marks: frozenset[str]) -> list[psutil.Process]:
    import psutil  # noqa: PLC0415 - same

    parents: dict[psutil.Process, int] = {}
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        try:
            parents[process] = process.ppid()
            if process.environ().get(MARK) in marks:
                found[process.pid] = process
        except (psutil.Error, OSError):
            continue
    size = -1
    while found and size != len(found):
        size = len(found)
        found |= {one.pid: one for one, parent in parents.items() if parent in found}
    alive = []
    for process in found.values():
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                alive.append(process)
    return alive
