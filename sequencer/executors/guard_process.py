"""Starts the guard process of an agent and talks to it.

Relied on: every descriptor that Python opens is closed on exec. So no other child of the
sequencer holds a control socket open, which would hide the sequencer's end from the guard.

Not promised: protection from a program of the same user that debugs the guard (ptrace).
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

from sequencer.errors import SequencerError, StorageFailed, to_machine_busy
from sequencer.executors.attempt_lock import MARK
from sequencer.executors.launch import Launch, loader_environment, marked_environment

_PROGRAM = Path(__file__).with_name("guard.py")
_LEFT = "left"
"""Argument that asks the guard to report which processes an agent left running."""
_REPORT_S = 7.0
"""Seconds in which a guard without a control socket must end the tree: 1 + 5, plus a margin."""
_WRITE_S = 10.0
_PIPE_BYTES = 2**20
"""The largest capacity of a pipe, unless root raised it."""


class GuardUnreachable(StorageFailed):
    """A guard could not be started, or ended before it got its record: no agent has run."""


class Guard:
    """One guard process; it waits until `run` sends it a record."""

    def __init__(self) -> None:
        """Start the process.

        The prompt's file is opened here although its content comes later, so that the guard
        inherits its descriptor.

        Raises:
            MachineBusy: the system has no more processes or descriptors.
            GuardUnreachable: it can't be started for another reason.
        """
        self.owner_pid = os.getpid()
        self.mark = secrets.token_hex(16)
        ends: list[int] = []
        try:
            self._prompt, prompt_read = _prompt_file(ends)
            control_read, self._control = _open_socket_pair(ends)
            # Sockets: an agent could open a pipe of its guard through /proc and send reports.
            self.status, status_write = _open_socket_pair(ends)
            self.stdout, stdout_write = _open_pipe(ends)
            self.stderr, stderr_write = _open_pipe(ends)
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-I", "-S", _PROGRAM, str(prompt_read), str(stdout_write), _LEFT],
                stdin=control_read,
                stdout=status_write,
                stderr=stderr_write,
                pass_fds=(prompt_read, stdout_write),
                # The mark is not a secret: every process of this user can read it. It identifies
                # a guard that is stopped (SIGSTOP) and whose sequencer has ended.
                env={**loader_environment(), MARK: self.mark},
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            for fd in ends:
                os.close(fd)
            busy_error = to_machine_busy(error)
            if busy_error is not None:
                raise busy_error from error
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
        """Return whether the guard still runs."""
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Return the guard's exit code, negative for a signal; None while it runs."""
        return self._process.returncode

    @property
    def pid(self) -> int:
        """Return the guard's process id."""
        return self._process.pid

    def run(self, launch: Launch) -> None:
        """Ask the guard to start the agent of *launch*.

        The attempt's lock goes with the record: from then on the kernel holds it until both the
        guard and this process have closed it or ended.

        Raises:
            GuardUnreachable: the guard has ended or does not read; nothing was started.
            MachineBusy, StorageFailed: see `AttemptLock.record_mark`; or there is no space for the
                prompt.
        """
        descriptors = []
        if launch.lock is not None and (fd := launch.lock.fd) >= 0:
            launch.lock.record_mark(self.mark)
            descriptors.append(fd)
        try:
            self._discard_foreign_data()
            _write_file(self._prompt, launch.prompt)
            self._close(self._prompt)
            self._send(encode_record(launch, self.mark), descriptors)
        except OSError as error:
            if (busy_error := to_machine_busy(error)) is not None and error.errno != errno.EAGAIN:
                raise busy_error from error
            raise GuardUnreachable(
                f"can't send the launch record to the guard process: {error.strerror}",
                hint="start again; if it fails again, check the disk of the temporary folder",
            ) from error

    def _discard_foreign_data(self) -> None:
        """Empty the prompt and the pipes: another step's agent can write to them through /proc."""
        os.ftruncate(self._prompt, 0)
        for fd in (self.stdout, self.stderr):
            with suppress(BlockingIOError):
                os.read(fd, _PIPE_BYTES)

    def stop(self) -> None:
        """Ask the guard to end the agent and all processes that it started."""
        try:
            os.write(self._control, b"s")
        except OSError:
            return

    def close(self) -> bool:
        """End the guard and free its descriptors; return whether the guard could do its work.

        Without its control socket a guard ends the tree within 6 s. A guard that does not (for
        example after SIGSTOP) is killed, and the kernel kills its agent.
        """
        self._close(self._control)
        if self.owner_pid != os.getpid():
            # After a fork without exec, the guard belongs to the parent.
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
        """Write *record* in at most `_WRITE_S`: a guard may have been stopped with SIGSTOP."""
        deadline = time.monotonic() + _WRITE_S
        poller = select.poll()
        poller.register(self._control, select.POLLOUT)
        # The socket's buffer is empty: the first piece and the descriptors are accepted at once.
        view = memoryview(record)[_send_descriptors(self._control, record, descriptors) :]
        while view:
            try:
                view = view[os.write(self._control, view) :]
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
                poller.poll(1000)


def encode_record(launch: Launch, mark: str) -> bytes:
    """Return the launch record that `guard.read_record` reads.

    Raises:
        SequencerError: an argument or variable contains NUL, which no program can receive.
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


def _open_pipe(ends: list[int]) -> tuple[int, int]:
    pair = os.pipe()
    ends += pair
    return pair


def _open_socket_pair(ends: list[int]) -> tuple[int, int]:
    """Return two connected sockets: they can pass descriptors, and no path leads to them."""
    own_socket, guard_socket = socket.socketpair()
    pair = own_socket.detach(), guard_socket.detach()
    ends += pair
    return pair


def _send_descriptors(fd: int, data: bytes, descriptors: list[int]) -> int:
    """Write as much of *data* as fits, with *descriptors*; return the number of bytes."""
    if not descriptors:
        return os.write(fd, data)
    control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fd)
    try:
        return socket.send_fds(control, [data], descriptors)
    finally:
        control.detach()


def _prompt_file(ends: list[int]) -> tuple[int, int]:
    """Return two descriptors of a file without a name: one to write, one to read.

    It is a file because every client accepts a file as stdin, nothing has to be written while
    output is read, and a client may read it late, twice or not at all.
    """
    if hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir():
        write_fd = os.memfd_create("prompt", os.MFD_CLOEXEC)
        ends.append(write_fd)
        read_fd = os.open(f"/proc/self/fd/{write_fd}", os.O_RDONLY)
        ends.append(read_fd)
        return write_fd, read_fd
    write_fd, name = tempfile.mkstemp(prefix="sequencer-prompt-")
    ends.append(write_fd)
    try:
        read_fd = os.open(name, os.O_RDONLY)
        ends.append(read_fd)
    finally:
        Path(name).unlink()
    return write_fd, read_fd


def _write_file(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
