"""The sequencer's side of one agent: its guard process, and the loop that moves its output.

One selectors loop in the calling thread, over stdout, stderr, the guard's status socket and
the cancellation; a piece is handed on before the next one is read. It decides when the agent
has to stop, also at the file by which an agent says that it is done. What an agent gets of the
environment is a fixed list, what its client needs, and what its entry names: a variable that
nobody listed does not reach a program that runs with a model's hand on it.

Relied on: every descriptor that Python opens is closed on exec, so that no other child of
the sequencer holds a control pipe open and hides the sequencer's death from the guard.

Not promised: anything against a program of the same user that debugs the guard (ptrace).
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import select
import selectors
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct, field

from sequencer.errors import SequencerError, StorageFailed, out_of_resources
from sequencer.executors.attempt_lock import MARK, AttemptLock
from sequencer.executors.cancellation import Cancellation, StopReason
from sequencer.executors.protocol import Identity, words
from sequencer.executors.wall import Wall

GRACE_S = 5.0
"""Seconds between TERM and KILL; claude 2.1 needs about 1.5 to end its tools."""
_PROGRAM = Path(__file__).with_name("guard.py")
_LEFT = "left"
"""Asks it to tell what an agent has left running."""
_REPORT_S = 7.0
"""Seconds in which a guard without a control pipe must have swept: 1 + 5 and some."""
_WRITE_S = 10.0
_PIPE_BYTES = 2**20
"""What a pipe holds at most, unless root says otherwise."""


class Launch(Struct, frozen=True, kw_only=True):
    """Everything that is needed to start one agent, or one command of the project."""

    identity: Identity | None
    """Whose process it is. None: no model's, but a command that the person wrote (``setup``)."""
    argv: Sequence[str]
    environment: Mapping[str, str]
    """The whole environment but for the identity's variables; nothing is inherited."""
    cwd: Path
    prompt: bytes
    """What the agent reads on its standard input, to the end."""
    timeout_s: float | None = None
    idle_timeout_s: float | None = None
    done_file: str | None = None
    """Below *cwd*: when it appears, the agent has done its work and is ended."""
    is_stuck: Callable[[], bool] | None = None
    """Whether the agent only repeats itself, and is ended for that; None: nobody looks."""
    grace_s: float = GRACE_S
    """Seconds between TERM and KILL."""
    wall: Wall = Wall.SCOPES
    """What keeps it away from other processes of its user."""
    lock: AttemptLock | None = None
    """Of the attempt; None where it has no claim."""
    hint: str = ""
    """What to do where the program is missing."""


# Among them where keys are asked for (they stay in their agents), the only way out of a network
# with a proxy and a certificate of its own, and through what programs are found and linked.
EVERY_AGENT = words(
    "COLORTERM HOME LANG LANGUAGE LC_* LOGNAME NO_COLOR PATH SHELL TERM TERMINFO TMPDIR TZ TZDIR "
    "USER XDG_* DBUS_SESSION_BUS_ADDRESS GPG_TTY SSH_AGENT_PID SSH_AUTH_SOCK ALL_PROXY "
    "HTTPS_PROXY HTTP_PROXY NO_PROXY all_proxy https_proxy http_proxy no_proxy AWS_CA_BUNDLE "
    "CURL_CA_BUNDLE GIT_SSL_CAINFO NODE_EXTRA_CA_CERTS REQUESTS_CA_BUNDLE SSL_CERT_DIR "
    "SSL_CERT_FILE CONDA_PREFIX DYLD_LIBRARY_PATH LD_LIBRARY_PATH NVM_DIR PYENV_ROOT VIRTUAL_ENV"
)
"""Names and prefixes that every agent gets where they are set."""
TRUST = "SEQUENCER_TRUST"
"""Says whose code may run on this machine: never said to an agent, whatever its entry names."""
_IDENTIFYING = frozenset(Identity(step="", token=0, run_id="").variables())
"""Not said to an agent that has no run, whatever its entry names."""


def agent_environment(
    *,
    passed: Iterable[str] = (),
    extra: Mapping[str, str] | None = None,
    base: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return an agent's environment, but for its identity; see `Launch`.

    From *base* (this process's, if not given) come `EVERY_AGENT` and what *passed* names:
    the client's own variables and the entry's ``pass_env``. Then *extra*, the entry's ``env``.

    >>> base = {"PATH": "/bin", "LC_ALL": "C", "AWS_SECRET_ACCESS_KEY": "…", "CI": "1"}
    >>> agent_environment(passed=["CI"], extra={"A": "b"}, base=base)
    {'PATH': '/bin', 'LC_ALL': 'C', 'CI': '1', 'A': 'b'}
    """
    source = os.environ if base is None else base
    patterns = (*EVERY_AGENT, *passed)
    exact = {pattern for pattern in patterns if not pattern.endswith("*")}
    prefixes = tuple(pattern[:-1] for pattern in patterns if pattern.endswith("*"))
    chosen = {
        name: value for name, value in source.items() if name in exact or name.startswith(prefixes)
    }
    return {**chosen, **(extra or {})}


def _of_the_loader() -> dict[str, str]:
    """Return the variables without which an interpreter may not start; a guard needs no others."""
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(("DYLD_", "FAKETIME", "LD_"))
    }


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
                env={**_of_the_loader(), MARK: self.mark},
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
    environment = {**_marked(launch), MARK: mark}
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


def _marked(launch: Launch) -> dict[str, str]:
    """Return the environment of *launch* with its identity, which nothing in it can forge."""
    environment = dict(launch.environment)
    environment.pop(TRUST, None)
    if launch.identity is None:
        return environment
    for name in _IDENTIFYING:
        environment.pop(name, None)
    return environment | launch.identity.variables()


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


PIECE = 65_536
"""Bytes read at once: what a pipe holds."""
TAIL = 4_096
DONE = "done"
"""Why an agent is stopped whose file has appeared."""
STUCK = "stuck"
"""Why one is stopped that repeats the same tool call."""
_DRAIN_S = 1.0
"""Seconds to wait for the end of the streams once everything of the agent is gone: only
a process outside the tree (one that was handed the descriptor) can still hold them."""
_OVERDUE_S = 6.5
"""Seconds beyond the grace after which a guard that was told to stop counts as lost."""


class OutputConsumer(Protocol):
    """Who takes an agent's output as it comes; called from the thread that runs the core.

    Each piece is at most 64 KiB. What is returned says whether it shows that the agent makes
    progress: a client that hangs may go on sending events that say nothing.
    """

    def stdout(self, data: bytes) -> bool:
        """Take a piece of standard output."""

    def stderr(self, data: bytes) -> bool:
        """Take a piece of standard error."""


_FIRST_WORD = re.compile(
    rb'\{"event": (?:"started", "pid": \d{1,10}, "is_walled": (?:true|false)|'
    rb'"refused", "errno": \d{1,4}, "stage": "[a-z]+")\}'
)
_LAST_WORD = re.compile(
    rb'\{"event": "ended", "exit_code": (?:null|-?\d{1,3}), "stopped_by": (?:null|"[a-z]+"), '
    rb'"survivors": \d{1,9}(?:, "left": \d{1,9}, "first": "(?:[0-9a-f]{2}){0,600}")?\}'
)


class Pump(Struct):
    """One attempt's loop; the attributes say afterwards what happened."""

    guard: Guard
    """Has been sent its record."""
    launch: Launch
    consumer: OutputConsumer
    cancellation: Cancellation
    selector: selectors.BaseSelector
    """Empty, and made before: nothing that a system may be short of is needed any more."""
    mark: FileWatch | None = None
    """Made before as well: the agent may be quick."""
    report: dict[str, Any] | None = None
    """The guard's last word, or None if it was lost."""
    has_started: bool = False
    """Whether the guard has started the agent."""
    is_walled: bool = False
    """Whether the agent is in a domain of its own."""
    stop_cause: StopReason | str | None = None
    """Why the guard was told to stop, if it was."""
    stderr_tail: bytes = b""
    _status: bytes = b""
    _started: float = field(default_factory=time.monotonic)
    _last_progress: float = field(default_factory=time.monotonic)
    _until: float | None = None

    @property
    def lacks_wall(self) -> bool:
        """Return whether the agent runs without a wall that it should have."""
        return self.has_started and not self.is_walled and self.launch.wall is Wall.SCOPES

    def run(self) -> None:
        """Loop until the guard has reported and the streams have ended."""
        streams = {self.guard.stdout, self.guard.stderr, self.guard.status}
        for fd in streams:
            self.selector.register(fd, selectors.EVENT_READ)
        self.selector.register(self.cancellation, selectors.EVENT_READ)
        while streams:
            ready = self.selector.select(self._wait_s())
            for fd in sorted(key.fd for key, _ in ready):
                if fd == self.cancellation.fileno():
                    self.selector.unregister(fd)
                elif not self._read(fd):
                    self.selector.unregister(fd)
                    streams.discard(fd)
            if self._is_over():
                break

    def _wait_s(self) -> float | None:
        dates = [self._until] if self._until is not None else [date for date, _ in self._limits()]
        wait_s = max(min(dates) - time.monotonic(), 0.0) if dates else None
        if self.mark is None or self._until is not None:
            return wait_s
        look_s = self.mark.wait_s()
        return look_s if wait_s is None else min(wait_s, look_s)

    def _limits(self) -> list[tuple[float, str]]:
        limits = []
        if self.launch.timeout_s is not None:
            limits.append((self._started + self.launch.timeout_s, "timeout"))
        if self.launch.idle_timeout_s is not None:
            limits.append((self._last_progress + self.launch.idle_timeout_s, "idle"))
        return limits

    def _is_over(self) -> bool:
        now = time.monotonic()
        if self._until is not None:
            return now >= self._until
        cause: StopReason | str | None = self.cancellation.reason
        if cause is None:
            cause = next((name for date, name in sorted(self._limits()) if now >= date), None)
        if cause is None and self.mark is not None and self.mark.has_appeared():
            cause = DONE
        if cause is None and self.launch.is_stuck is not None and self.launch.is_stuck():
            cause = STUCK
        if cause is not None:
            self.stop_cause = cause
            self._until = now + self.launch.grace_s + _OVERDUE_S
            self.guard.stop()
        return False

    def _read(self, fd: int) -> bool:
        """Take what is there; return whether more may come."""
        try:
            data = os.read(fd, PIECE)
        except BlockingIOError:
            return True
        if fd == self.guard.status:
            return self._take_status(data)
        if not data:
            return False
        if fd == self.guard.stdout:
            has_progressed = self.consumer.stdout(data)
        else:
            self.stderr_tail = (self.stderr_tail + data)[-TAIL:]
            has_progressed = self.consumer.stderr(data)
        if has_progressed:
            # After the consumer: a terminal that is held with Ctrl-S is not the agent's silence.
            self._last_progress = time.monotonic()
        return True

    def _take_status(self, data: bytes) -> bool:
        """Keep the guard's last word; its silence at the end means that it was killed.

        So does a word that no guard would say now: the guard is as good as lost.
        """
        self._status += data
        *lines, self._status = self._status.split(b"\n")
        is_sane = True
        for line in lines:
            is_sane = (_LAST_WORD if self.has_started else _FIRST_WORD).fullmatch(line) is not None
            event = json.loads(line) if is_sane else {}
            if event.get("event") != "started":
                self.report = event or None
                break
            self.has_started, self.is_walled = True, event["is_walled"]
        if data and is_sane and self.report is None:
            return True
        self._until = time.monotonic() + _DRAIN_S
        return False


LOOK_S = 0.2
"""Seconds between two looks."""
SETTLED_S = 0.5
"""Seconds for which the file has to stay as it is."""

_Seen = tuple[int, int, int, int] | None


class FileWatch:
    """Looks for one file, from now on."""

    def __init__(self, folder: Path, name: str) -> None:
        """Remember what is at *name* below *folder* now."""
        self._folder = folder
        self._parts = name.split("/")
        self._before = self._last = self._look()
        self._since = self._next = time.monotonic()

    def has_appeared(self) -> bool:
        """Return whether the file is there, is not the one of before, and rests."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + LOOK_S
        seen = self._look()
        if seen != self._last:
            self._last, self._since = seen, now
        return seen not in (None, self._before) and now - self._since >= SETTLED_S

    def wait_s(self) -> float:
        """Return the seconds until the next look."""
        return max(self._next - time.monotonic(), 0.0)

    def _look(self) -> _Seen:
        path = str(self._folder)
        try:
            for part in self._parts[:-1]:
                path = os.path.join(path, part)  # noqa: PTH118 - looked at five times a second
                if not stat.S_ISDIR(os.lstat(path).st_mode):
                    return None
            found = os.lstat(os.path.join(path, self._parts[-1]))  # noqa: PTH118 - same
        except OSError:
            return None
        if not stat.S_ISREG(found.st_mode):
            return None
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
