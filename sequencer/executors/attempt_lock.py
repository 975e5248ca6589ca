"""The kernel lock of one step's processes, held while any process of an attempt runs.

The sequencer takes it before it starts a process and passes it to the guard, so the kernel
frees it only after both have ended. Agents don't get it: they could close it, or hold it in a
service that keeps running. The file is removed when all of an attempt's processes have ended;
a process that finds it looks for processes with the marks in it. Descendants of a marked process
belong to the attempt, whatever their environment is.

Not promised: processes on another machine, of a run without claims, of another user or pid
namespace, and orphans with another environment are not found.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from signal import SIGKILL, SIGSTOP
from typing import TYPE_CHECKING

from sequencer.errors import MachineBusy, StateRefused, StorageFailed
from sequencer.executors.cancellation import Cancellation
from sequencer.store import folder as folders
from sequencer.store.identity import pid_namespace
from sequencer.store.ownership import explain_refusal

if TYPE_CHECKING:
    import psutil

MARK = "SEQUENCER_GUARD"
"""Environment variable that marks the processes of one attempt."""
WAIT_S = 2.5
"""A guard whose sequencer has ended kills the tree one second after TERM. A guard that takes
longer is stopped (SIGSTOP), or its sequencer is stopped."""
POLL_S = 0.01
_NOTE = re.compile(rb"([0-9a-f]{32}) (\S*)\n")
_MAX_BYTES = 65_536
_FLAGS = os.O_RDWR | os.O_APPEND


_PREFIX = "agents-"


def lock_path(state_path: Path, node: str | None = None) -> Path:
    """Return the lock file of a sequence, which has one agent at a time, or of one *node*."""
    name = "line" if node is None else sha256(node.encode()).hexdigest()[:16]
    return state_path.parent / f"beats/{_PREFIX}{name}"


class AttemptLock:
    """Held while processes of one attempt may run; nothing is opened before `acquire`."""

    def __init__(self, path: Path, notify: Callable[[str], None]) -> None:
        """Use the file *path*; *notify* gets a message when `acquire` has to wait."""
        self.path = path
        self._notify = notify
        self._fd = -1
        self.is_clean = True
        """False: some processes could not be ended, and the next attempt looks for them."""

    def acquire(self, cancellation: Cancellation) -> bool:
        """Take the lock; return False if *cancellation* came first.

        Afterward no process of an earlier attempt runs, as far as this machine can see:
        processes that outlive `WAIT_S` or a killed guard were ended.

        Raises:
            MachineBusy: some processes could not be ended.
            StorageFailed: the file can't be opened or locked.
        """
        if self._fd < 0:
            fd = self._acquire_fd(cancellation)
            self._fd = -1 if fd is None else fd
        return self._fd >= 0

    @property
    def fd(self) -> int:
        """Return the descriptor while the lock is held, else -1."""
        return self._fd

    def record_mark(self, mark: str) -> None:
        """Record in the file that processes with *mark* are about to start.

        Raises:
            MachineBusy: this process was stopped for so long that another one took the step over.
            StorageFailed: there is no space for the record, so nothing may start.
        """
        if not os.fstat(self._fd).st_nlink:
            raise MachineBusy("another process has taken over the step in the meantime")
        rest = memoryview(f"{mark} {pid_namespace()}\n".encode())
        try:
            # A disk that is nearly full accepts a part; writing the rest raises the reason.
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError as error:
            raise self._build_storage_error(error) from error

    def close(self) -> None:
        """Free the lock, if it was taken; the guards of this attempt have ended."""
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        try:
            # A process that took the step over has created its own file at this path.
            if self.is_clean and os.fstat(fd).st_nlink:
                folders.remove(str(self.path))
            else:
                fcntl.flock(fd, fcntl.LOCK_UN)
        except OSError:
            # Harmless: the process that finds the file looks for processes and finds none.
            return
        finally:
            os.close(fd)

    def wait_for_earlier(self, cancellation: Cancellation) -> None:
        """Wait until the processes of earlier attempts have ended; do not keep the lock.

        Raises: see `acquire`.
        """
        self.acquire(cancellation)
        self.close()

    def _acquire_fd(self, cancellation: Cancellation) -> int | None:
        while True:
            fd, is_new = self._open()
            is_acquired = False
            try:
                is_free = _try_lock(fd) or self._wait_for_lock(fd, cancellation)
                if cancellation.is_set():
                    return None
                if os.fstat(fd).st_nlink:
                    if not (is_new and is_free):
                        self._end_earlier(fd, is_free=is_free)
                        is_free = is_free or _try_lock(fd)
                        os.ftruncate(fd, 0)
                    if is_free:
                        is_acquired = True
                        return fd
                    # All processes of the attempt were ended, so only its sequencer can hold
                    # the lock: it is stopped, or does not know yet that it lost its claim.
                    folders.remove(str(self.path))
            except OSError as error:
                raise self._build_storage_error(error) from error
            finally:
                if not is_acquired:
                    os.close(fd)

    def _open(self) -> tuple[int, bool]:
        """Return a descriptor of the file, and whether the file is new."""
        while True:
            try:
                folder = folders.make_folder(self.path.parent)
                with contextlib.suppress(FileExistsError):
                    return folder.open(self.path.name, _FLAGS | os.O_CREAT | os.O_EXCL), True
                return folder.open(self.path.name, _FLAGS), False
            except FileNotFoundError:
                # Another process removed the file in the meantime, or the whole folder.
                continue
            except OSError as error:
                raise self._build_storage_error(error) from error

    def _build_storage_error(self, error: OSError) -> StorageFailed:
        hint = "free disk space or fix the permissions; move away what is not a regular file"
        reason, hint = explain_refusal(error, self.path, hint)
        message = f"the lock of the step's processes can't be taken: {reason}"
        return StorageFailed(message, where=str(self.path), hint=hint)

    def _wait_for_lock(self, fd: int, cancellation: Cancellation) -> bool:
        """Return whether the lock became free within `WAIT_S`."""
        self._notify("waiting for the last process of the earlier attempt")
        deadline = time.monotonic() + WAIT_S
        while not cancellation.wait(POLL_S):
            if _try_lock(fd):
                return True
            if time.monotonic() > deadline:
                return False
        return False

    def _end_earlier(self, fd: int, *, is_free: bool) -> None:
        """End the remaining processes of the attempts that are recorded in the file.

        Raises:
            MachineBusy: processes are left, or may be.
        """
        notes = _NOTE.findall(os.pread(fd, _MAX_BYTES, 0))
        if not notes:
            return
        pids = end_marked(*(mark.decode() for mark, _ in notes))
        namespace = pid_namespace().encode()
        if pids:
            message = f"{format_pids(pids)} of an earlier attempt at the step could not be ended"
        elif not is_free and any(other_namespace != namespace for _, other_namespace in notes):
            message = "processes of an earlier attempt at the step run in another container"
        else:
            return
        raise MachineBusy(
            message,
            where=str(self.path),
            hint="end them, or remove this file if no such process is left; then start again",
        )


def find_left_processes(state_path: Path) -> dict[Path, list[int]]:
    """Return the processes that attempts of the run at *state_path* have left, by lock file.

    An attempt that is at work holds its lock, so its processes are not among them.
    """
    folder, left_pids = lock_path(state_path).parent, {}
    names = sorted(folders.list_names_if_safe(folder))
    for path in (folder / name for name in names if name.startswith(_PREFIX)):
        with contextlib.suppress(OSError, StateRefused):
            fd = folders.open_folder(folder).open(path.name, os.O_RDONLY)
            try:
                notes = _NOTE.findall(os.pread(fd, _MAX_BYTES, 0)) if _try_lock(fd) else []
            finally:
                os.close(fd)
            marks = frozenset(mark.decode() for mark, _ in notes)
            if marks and (processes := _find_marked(marks)):
                left_pids[path] = [process.pid for process in processes]
    return left_pids


_MAX_PIDS = 5


def format_pids(pids: Sequence[int]) -> str:
    """Return *pids* as a subject, for example to end them.

    >>> format_pids([7]), format_pids([7, 9])
    ('process 7', 'processes 7, 9')
    """
    names = ", ".join(map(str, pids[:_MAX_PIDS]))
    rest = f" and {len(pids) - _MAX_PIDS} more" if len(pids) > _MAX_PIDS else ""
    return f"process{'es' * (len(pids) != 1)} {names}{rest}"


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


_ROUNDS = 100
_PAUSE_S = 0.02
_EMPTY_LOOKS = 2
"""One pass is not enough: it may miss a process that keeps forking."""


def end_marked(*marks: str) -> list[int]:
    """KILL every process with one of *marks* until none is found; return the ids of those left.

    Used if a guard was killed or is stopped, and on systems without a subreaper. All processes
    get SIGSTOP first, so that none forks in the meantime and none loses the parent that
    identifies it. This process and its ancestors are left alone.
    """
    if not marks:
        return []
    import psutil  # noqa: PLC0415 - few attempts leave anything

    this_process = psutil.Process()
    spared_pids = {this_process.pid, *(ancestor.pid for ancestor in this_process.parents())}
    marked_processes: list[psutil.Process] = []
    stopped: set[int] = set()
    empty_looks = 0
    for _ in range(_ROUNDS):
        marked_processes = _find_marked(frozenset(marks))
        processes = [process for process in marked_processes if process.pid not in spared_pids]
        if not processes:
            empty_looks += 1
            if empty_looks == _EMPTY_LOOKS:
                break
        else:
            is_still = {process.pid for process in processes} <= stopped
            for process in processes:
                # psutil checks the start time too: a new process with this number gets no signal.
                with contextlib.suppress(psutil.Error):
                    process.send_signal(SIGKILL if is_still else SIGSTOP)
            if not is_still:
                stopped |= {process.pid for process in processes}
                continue
        time.sleep(_PAUSE_S)
    return [process.pid for process in marked_processes]


def _find_marked(marks: frozenset[str]) -> list[psutil.Process]:
    import psutil  # noqa: PLC0415 - same

    parents: dict[psutil.Process, int] = {}
    marked_processes: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        try:
            parents[process] = process.ppid()
            if process.environ().get(MARK) in marks:
                marked_processes[process.pid] = process
        except (psutil.Error, OSError):
            continue
    size = -1
    while marked_processes and size != len(marked_processes):
        size = len(marked_processes)
        marked_processes |= {
            child.pid: child for child, parent in parents.items() if parent in marked_processes
        }
    live_processes = []
    for process in marked_processes.values():
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                live_processes.append(process)
    return live_processes
