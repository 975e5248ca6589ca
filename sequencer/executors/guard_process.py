"""Starts the guard process of an agent and talks to it.

Relied on: every descriptor that Python opens is closed on exec, so that no other child of
the sequencer holds a control pipe open and hides the sequencer's death from the guard.

Not promised: anything against a program of the same user that debugs the guard (ptrace).
"""

from __future__ import annotations

import errno
import os
import secrets
import select
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from sequencer.errors import SequencerError, StorageFailed, out_of_resources
from sequencer.executors.attempt_lock import MARK
from sequencer.executors.launch import Launch, loader_environment, marked_environment

_PROGRAM = Path(__file__).with_name("guard.py")
_LEFT = "left"
"""Asks it to tell what an agent has left running."""
_REPORT_S = 7.0
"""Seconds in which a guard without a control pipe must have swept: 1 + 5 and some."""
_WRITE_S = 10.0
_PIPE_BYTES = 2**20
"""What a pipe holds at most, unless root says otherwise."""


class GuardUnreachable(StorageFailed):
    """A guard could not be started, or ended before its record was sent: no agent has run."""


class Guard:
    """One guard process, idle until `run` sends it a record."""

    def __init__(self) -> None:
        """Start the process.

        The prompt's file is opened here although its content comes later: a descriptor
        can't be handed over to a process that already runs.

        Raises:
            MachineBusy: the system refuses another process or descriptor.
            GuardUnreachable: it can't be started for another reason.
        """
        self.owner_pid = os.getpid()
        self.mark = secrets.token_hex(16)
        ends: list[int] = []
        try:
            self._prompt, prompt_read = _prompt_file(ends)
            control_read, self._control = _pair(ends)
            # An agent could open a pipe of its guard by way of /proc, and speak as the guard.
            self.status, status_write = _pair(ends)
            self.stdout, stdout_write = _pipe(ends)
            self.stderr, stderr_write = _pipe(ends)
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-I", "-S", _PROGRAM, str(prompt_read), str(stdout_write), _LEFT],
                stdin=control_read,
                stdout=status_write,
                stderr=stderr_write,
                pass_fds=(prompt_read, stdout_write),
                # No secret: every process of this user can read it. With the mark it is found
                # when it is stopped and its sequencer is gone.
                env={**loader_environment(), MARK: self.mark},
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            for fd in ends:
                os.close(fd)
            busy = out_of_resources(error)
            if busy is not None:
                raise busy from error
            raise GuardUnreachable(
                f"can't start a guard process: {error.strerror}",
                hint=f"make sure that '{sys.executable} -I -S -c pass' works for this user",
            ) from error
        for fd in (prompt_read, control_read, status_write, stdout_write, stderr_write):
            os.close(fd)
        self._open = {self._prompt, self._control, self.status, self.stdout, self.stderr}
        os.set_blocking(self._control, False)
        os.set_blocking(self.stdout, False)
        os.set_blocking(self.stderr, False)

    @property
    def is_alive(self) -> bool:
        """Return whether it still runs."""
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Return how it ended, negative for a signal; None while it runs."""
        return self._process.returncode

    @property
    def pid(self) -> int:
        """Return the guard's own process id."""
        return self._process.pid

    def run(self, launch: Launch) -> None:
        """Have the agent of *launch* started.

        The lock of the attempt goes with the record: from then on it is held until the guard
        and this process are done with it, whatever becomes of either.

        Raises:
            GuardUnreachable: the guard is gone or does not read; nothing was started.
            MachineBusy, StorageFailed: see `AttemptLock.note`; or there is no room for the
                prompt.
        """
        held = []
        if launch.lock is not None and (fd := launch.lock.fd) >= 0:
            launch.lock.note(self.mark)
            held.append(fd)
        try:
            self._forget()
            _write_file(self._prompt, launch.prompt)
            self._close(self._prompt)
            self._send(record_of(launch, self.mark), held)
        except OSError as error:
            if (busy := out_of_resources(error)) is not None and error.errno != errno.EAGAIN:
                raise busy from error
            raise GuardUnreachable(
                f"can't send the order to the guard process: {error.strerror}",
                hint="start again; if it stays so, look at the disk of the temporary folder",
            ) from error

    def _forget(self) -> None:
        """Empty what an agent of another step could fill through /proc while this one waited."""
        os.ftruncate(self._prompt, 0)
        for fd in (self.stdout, self.stderr):
            with suppress(BlockingIOError):
                os.read(fd, _PIPE_BYTES)

    def stop(self) -> None:
        """Ask for the end of the agent and of all that it started."""
        try:
            os.write(self._control, b"s")
        except OSError:
            return

    def close(self) -> bool:
        """End what runs, free everything; return whether the guard could do its work.

        Without its control pipe a guard ends the tree by itself within 6 s; one that does
        not (stopped with SIGSTOP, say) is killed, and the kernel kills its agent.
        """
        self._close(self._control)
        if self.owner_pid != os.getpid():
            # After a fork without exec the guard is the parent's.
            self._close(*self._open)
            return True
        try:
            self._process.wait(_REPORT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._close(*self._open)
        return self._process.returncode == 0

    def _close(self, *descriptors: int) -> None:
        for fd in descriptors:
            if fd in self._open:
                self._open.discard(fd)
                os.close(fd)

    def _send(self, record: bytes, descriptors: list[int]) -> None:
        """Write without blocking for ever: a guard may have been stopped with SIGSTOP."""
        deadline = time.monotonic() + _WRITE_S
        writable = select.poll()
        writable.register(self._control, select.POLLOUT)
        # Its buffer is empty: the first piece, and what goes with it, is taken at once.
        view = memoryview(record)[_send_with(self._control, record, descriptors) :]
        while view:
            try:
                view = view[os.write(self._control, view) :]
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
                writable.poll(1000)


def record_of(launch: Launch, mark: str) -> bytes:
    """Return the launch record that `guard.read_record` reads.

    Raises:
        SequencerError: an argument or variable holds a NUL, which no program can be given.
    """
    environment = {**marked_environment(launch), MARK: mark}
    fields = [launch.wall, str(launch.grace_s), str(launch.cwd)]
    fields += [str(len(launch.argv)), *launch.argv]
    fields += [f"{name}={value}" for name, value in environment.items()]
    if any("\0" in field for field in fields):
        raise SequencerError(
            "an argument or an environment variable of an agent contains a NUL character",
            hint="check argv and env of the agent, and the step's model and system_prompt",
        )
    data = b"\0".join(map(os.fsencode, fields))
    return b"%08x" % len(data) + data


def _pipe(ends: list[int]) -> tuple[int, int]:
    pair = os.pipe()
    ends += pair
    return pair


def _pair(ends: list[int]) -> tuple[int, int]:
    """Return two connected sockets: they carry descriptors, and nobody opens them by a path."""
    ours, theirs = socket.socketpair()
    pair = ours.detach(), theirs.detach()
    ends += pair
    return pair


def _send_with(fd: int, data: bytes, descriptors: list[int]) -> int:
    """Write as much of *data* as is taken at once, with *descriptors*; return how much."""
    if not descriptors:
        return os.write(fd, data)
    control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fd)
    try:
        return socket.send_fds(control, [data], descriptors)
    finally:
        control.detach()


def _prompt_file(ends: list[int]) -> tuple[int, int]:
    """Return a nameless file, open for writing and for reading.

    A file, because every client takes one on stdin, nothing has to be fed while output is
    read, and a client that reads late, twice or not at all does no harm.
    """
    if hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir():
        write = os.memfd_create("prompt", os.MFD_CLOEXEC)
        ends.append(write)
        read = os.open(f"/proc/self/fd/{write}", os.O_RDONLY)
        ends.append(read)
        return write, read
    write, name = tempfile.mkstemp(prefix="sequencer-prompt-")
    ends.append(write)
    try:
        read = os.open(name, os.O_RDONLY)
        ends.append(read)
    finally:
        Path(name).unlink()
    return write, read


def _write_file(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
