"""The guard: starts one agent, outlives it, and ends all of its processes.

It is a separate program, ``python -I -S guard.py STDIN_FD STDOUT_FD left``; the sequencer imports
only the kernel's switches from it. Standard input is the control socket: first the launch record
with the lock of the attempt, then a byte to stop, or end of file if the sequencer has ended.
Standard output is the status socket, standard error the agent's. Without ``left`` an older
sequencer started it. The agent starts in a Landlock domain, the guard stays outside: `Domain`.

Not promised: that descendants end if both the guard and the sequencer get SIGKILL (then only the
agent itself ends), and, outside Linux, that the guard finds processes which left the agent's
process group; a sequencer looks for those by their mark.
"""

# pathlib would take longer to import than the rest of the start takes:
# ruff: noqa: PTH110, PTH123, PTH208

from __future__ import annotations

# `signal` would double the start-up time, because it imports enum, re and functools; so
# would `socket`.
import _signal  # type: ignore[import-not-found]
import _socket
import errno
import os
import select
import sys
import time

EOF_GRACE_S = 1.0
"""Seconds between TERM and KILL after the sequencer, which read the output, has ended."""
LEFTOVER_GRACE_S = 0.5
"""The same for processes that an agent left running when it ended by itself."""
KILL_LIMIT_S = 5.0
"""Seconds after which the guard gives up on processes that it can't kill (another user's)."""

COMMAND_BYTES = 600
"""Maximum bytes of a command line in a report."""
EXEC_LOOKS, EXEC_LOOK_S = 50, 0.001
"""How many times, and how far apart, the guard tries to read a command line during an exec."""
_ENDED = (b"Z", b"X")
"""States of processes that have ended."""

_SIGHUP, _SIGINT, _SIGQUIT, _SIGKILL, _SIGPIPE, _SIGTERM = 1, 2, 3, 9, 13, 15
_SIGCHLD, _SIGXFSZ = _signal.SIGCHLD, _signal.SIGXFSZ
_STOPPING = (_SIGHUP, _SIGINT, _SIGTERM)
_CONTROL, _STATUS, _STDERR = 0, 1, 2
_PDEATHSIG, _SUBREAPER, _NO_NEW_PRIVS = 1, 36, 38
DUMPABLE = 4
"""If it is off, only root can read the environment, memory and open files of a process."""
_INT_BYTES = 4
_WALLED = b"walled "
"""What an agent's process reports before exec if it is inside the wall."""

_CREATE_RULESET, _RESTRICT_SELF = 444, 446
"""Numbers of the system calls, the same on every architecture but `_OTHER_NUMBERS`."""
_OTHER_NUMBERS = ("alpha", "ia64", "mips")
_ABSTRACT_SOCKETS, _SIGNALS = 1, 2
DEPTH = 3
"""How many nested domains make the wall: other programs' sandboxes have one or two."""
_NO_WALL = (errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EINVAL, errno.E2BIG)
"""Errors of a system that can't build the wall: it has no Landlock or has it switched off,
a seccomp filter refuses it, its Landlock is older than scopes (ABI 6, Linux 6.12), or
this would be the 17th nested domain."""


_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)


class Prctl:
    """The kernel's per-process switches; does nothing where they don't exist."""

    def __init__(self) -> None:
        """Find the functions; the only use of ctypes, which costs 3 ms."""
        self.is_there = sys.platform == "linux"
        if self.is_there:
            import ctypes  # noqa: PLC0415 - not on other systems

            libc = ctypes.CDLL(None, use_errno=True)
            self._call, self._syscall = libc.prctl, libc.syscall
            self._errno, self._long = ctypes.get_errno, ctypes.c_long

    def set(self, option: int, value: int) -> None:
        """Set *option*; if that fails, the guard still works, with the process group alone."""
        if self.is_there and self._call(option, value, 0, 0, 0) != 0:
            self.is_there = False

    def syscall(self, number: int, *arguments: object) -> int:
        """Make a system call and return its result; integers are passed as C longs.

        Raises:
            OSError: it failed.
        """
        values = (self._long(value) if isinstance(value, int) else value for value in arguments)
        result: int = self._syscall(self._long(number), *values)
        if result < 0:
            code = self._errno()
            raise OSError(code, os.strerror(code))
        return result


class Domain:
    """Landlock domains with scopes only: nothing inside reaches processes outside.

    The same domain is nested `DEPTH` times. The depth identifies an agent's process even after
    its guard has ended, see `store.identity`.

    The domain denies signals, ptrace, abstract Unix sockets, and what /proc shows only with the
    right to trace (the environment, the memory, the open files; root can still read the
    environment and the memory map). It has no rules for files or the network: with file rules
    an agent could not mount, and protecting files is the sandbox's job.
    """

    def __init__(self, prctl: Prctl) -> None:
        """Create the domain's rules, or no rules if the system does not support domains.

        Raises:
            OSError: this machine has no descriptor or memory for them.
        """
        self._prctl = prctl
        self._rules = -1
        if not prctl.is_there or os.uname().machine.startswith(_OTHER_NUMBERS):
            return
        # handled_access_fs, handled_access_net, scoped: three 64-bit numbers.
        scoped = (_ABSTRACT_SOCKETS | _SIGNALS).to_bytes(8, sys.byteorder)
        try:
            self._rules = prctl.syscall(_CREATE_RULESET, bytes(16) + scoped, 24, 0)
        except OSError as error:
            if error.errno not in _NO_WALL:
                raise

    @property
    def is_there(self) -> bool:
        """Return whether the system has such domains."""
        return self._rules >= 0

    def enter(self) -> bool:
        """Put this process and all that it starts inside the wall; return whether that worked.

        Afterward it can't gain privileges, for example by sudo: the kernel requires that.

        Raises:
            OSError: this machine has no memory for it.
        """
        if not self.is_there:
            return False
        self._prctl.set(_NO_NEW_PRIVS, 1)
        for depth in range(DEPTH):
            try:
                self._prctl.syscall(_RESTRICT_SELF, self._rules, 0)
            except OSError as error:
                if error.errno not in _NO_WALL:
                    raise
                # The outermost domain does all of the work; the others only mark the process.
                return depth > 0
        return True

    def close(self) -> None:
        """Close the descriptor of the rules; processes inside the wall stay inside."""
        if self.is_there:
            os.close(self._rules)
            self._rules = -1


def read_record() -> tuple[list[bytes], int] | None:
    """Return the fields of the launch record, and the descriptor of the lock that came with it.

    The descriptor is -1 if there is no lock. None: the sequencer ended before it sent a record.

    Eight hexadecimal digits give the length; the fields are separated by NUL, which no field
    can contain. Parsing JSON would take as long as the rest of the startup.
    """
    header, lock = _receive(8)
    size = _read_exactly(8, header)
    data = _read_exactly(int(size, 16)) if size is not None else None
    return (data.split(b"\0"), lock) if data is not None else None


def _receive(size: int) -> tuple[bytes, int]:
    """Receive up to *size* bytes and the descriptor of the lock sent with them; -1: none."""
    control = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, _CONTROL)
    data, ancillary, flags, _ = control.recvmsg(size, _socket.CMSG_SPACE(_INT_BYTES))
    control.detach()
    if flags & _socket.MSG_CTRUNC:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    lock = -1
    for _, _, fd in ancillary:
        lock = int.from_bytes(fd[:_INT_BYTES], sys.byteorder)
        os.set_inheritable(lock, False)  # noqa: FBT003 - must not leak to the agent
    return data, lock


def _read_exactly(size: int, data: bytes = b"") -> bytes | None:
    while len(data) < size:
        piece = os.read(_CONTROL, size - len(data))
        if not piece:
            return None
        data += piece
    return data


def report(line: str) -> None:
    """Send *line* to the sequencer, which may have ended."""
    try:
        os.write(_STATUS, line.encode() + b"\n")
    except OSError:
        return


def report_refused(code: int, stage: str) -> None:
    """Report that no agent was started; *code* is the system's error number."""
    report(f'{{"event": "refused", "errno": {code}, "stage": "{stage}"}}')


class Order:
    """The fields of a launch record: wall, grace, folder, counts, arguments, environment."""

    def __init__(self, fields: list[bytes], lock: int) -> None:
        """Parse the *fields*; *lock* is the descriptor of the attempt's lock, or -1."""
        self.lock = lock
        self.has_wall = fields[0] == b"scopes"
        self.grace_s = float(fields[1])
        self.cwd = fields[2]
        arguments = int(fields[3])
        self.argv = fields[4 : 4 + arguments]
        pairs = (item.partition(b"=") for item in fields[4 + arguments :])
        self.environment = {name: value for name, _, value in pairs}


def start(launch: Order, stdin_fd: int, stdout_fd: int, prctl: Prctl) -> int | None:
    """Start the agent and return its process id; if that fails, report why and return None."""
    domain = Domain(prctl) if launch.has_wall else None
    trouble_r, trouble_w = os.pipe()
    null_fd = os.open(os.devnull, os.O_WRONLY)
    guard = os.getpid()
    pid = os.fork()
    if pid == 0:
        stage = b"folder"
        try:
            os.setsid()
            prctl.set(_PDEATHSIG, _SIGKILL)
            if os.getppid() != guard:
                os._exit(127)
            os.chdir(launch.cwd)
            stage = b"wall"
            if domain is not None and domain.enter():
                os.write(trouble_w, _WALLED)
            stage = b"program"
            _set_up_agent(stdin_fd, stdout_fd)
            os.execvpe(launch.argv[0], launch.argv, launch.environment)  # noqa: S606
        except OSError as error:
            os.write(trouble_w, b"%d %s" % (error.errno or 0, stage))
        finally:
            os._exit(127)
    os.close(trouble_w)
    output = _read_to_end(trouble_r)
    os.close(trouble_r)
    if domain is not None:
        domain.close()
    _close_copies(stdin_fd, stdout_fd, null_fd)
    trouble = output.removeprefix(_WALLED)
    if not trouble:
        is_walled = "true" if output else "false"
        report(f'{{"event": "started", "pid": {pid}, "is_walled": {is_walled}}}')
        return pid
    os.waitpid(pid, 0)
    code, _, stage = trouble.partition(b" ")
    report_refused(int(code), stage.decode())
    return None


def _read_to_end(fd: int) -> bytes:
    """Return the output of the agent's process before exec, which closes its end of the pipe."""
    data = b""
    while piece := os.read(fd, 100):
        data += piece
    return data


def _set_up_agent(stdin_fd: int, stdout_fd: int) -> None:
    """Give the agent its three descriptors and the signal settings of a new login."""
    os.dup2(stdin_fd, 0)
    os.dup2(stdout_fd, 1)
    os.close(stdin_fd)
    os.close(stdout_fd)
    # Python ignores SIGPIPE, a shell ignores SIGQUIT in background jobs, and ignored signals stay
    # ignored across exec: `yes | head` would not end.
    for number in (*_STOPPING, _SIGQUIT, _SIGPIPE, _SIGCHLD, _SIGXFSZ):
        _signal.signal(number, _signal.SIG_DFL)


def _close_copies(stdin_fd: int, stdout_fd: int, null_fd: int) -> None:
    """Close the guard's copies, so that the agent's streams end with the agent."""
    os.close(stdin_fd)
    os.close(stdout_fd)
    os.dup2(null_fd, _STDERR)
    os.close(null_fd)


def list_children(pid: int) -> list[int]:
    """Return the children of all threads of *pid*; none if the process has ended.

    Raises:
        OSError: this process has no free descriptor, so it can't look.
    """
    children: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                children += map(int, file.read().split())
    except OSError as error:
        if error.errno in _NO_DESCRIPTOR:
            raise
    return children


def scan_children() -> dict[int, list[int]]:
    """Return all processes by their parent, for kernels without the ``children`` files."""
    by_parent: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                # The name may have spaces and parentheses; the last parenthesis closes it.
                parent = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, IndexError):
            continue
        by_parent.setdefault(parent, []).append(int(name))
    return by_parent


def descendants() -> list[int]:
    """Return every process below the guard, parents before their children."""
    guard = os.getpid()
    if os.path.exists(f"/proc/{guard}/task/{guard}/children"):
        look_up = list_children
    else:
        by_parent = scan_children()

        def look_up(pid: int) -> list[int]:
            return by_parent.get(pid, [])

    pids = list(look_up(guard))
    for pid in pids:
        # The list grows while it is read, so that every generation is visited.
        pids += look_up(pid)
    return pids


def command_line(pid: int) -> bytes:
    """Return the beginning of the command line of *pid*; empty if the process has ended.

    During an exec a process has no command line for a moment, and a process may clear its own.
    In both cases this is its short name.
    """
    name = b""
    for _ in range(EXEC_LOOKS):
        try:
            with open(f"/proc/{pid}/cmdline", "rb", buffering=0) as file:
                line = file.read(COMMAND_BYTES)
            with open(f"/proc/{pid}/stat", "rb") as file:
                # The name may have spaces and parentheses; the last parenthesis closes it.
                head, _, tail = file.read().rpartition(b")")
        except OSError:
            return b""
        if line:
            return line
        if tail.split()[0] in _ENDED:
            return b""
        name = head.partition(b"(")[2]
        time.sleep(EXEC_LOOK_S)
    return name


def describe_leftovers() -> str:
    """Return the fields of the final report that say which processes the agent left running."""
    lines = [line for line in map(command_line, descendants()) if line]
    first_line = lines[0].hex() if lines else ""
    return f', "left": {len(lines)}, "first": "{first_line}"'


def clear_lock_file(lock: int) -> None:
    """Empty the lock file, so that the next attempt need not look for leftover processes.

    The guard does it too because the sequencer may end first.
    """
    if lock >= 0:
        try:
            os.ftruncate(lock, 0)
        except OSError:
            # Harmless: the next attempt looks for leftover processes and finds none.
            return


class Tree:
    """The agent and everything that it started."""

    def __init__(self, agent: int, prctl: Prctl) -> None:
        """Take *agent* as the root of the tree."""
        self.agent = agent
        self.exit_code: int | None = None
        self.has_ended = False
        self._is_subreaper = prctl.is_there
        self._has_children = True

    def reap(self) -> None:
        """Collect processes that have ended; a subreaper gets orphans as its own children."""
        while self._has_children:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._has_children = False
                return
            if pid == 0:
                return
            if pid == self.agent:
                self.has_ended = True
                self.exit_code = os.waitstatus_to_exitcode(status)

    def is_empty(self) -> bool:
        """Return whether no process is left: a subreaper without children has no descendants."""
        self.reap()
        if self._has_children or self._is_subreaper:
            return not self._has_children
        return not self._signal_group(0)

    def signal(self, number: int) -> None:
        """Send a signal to each process once; a second TERM makes some clients panic."""
        if self._is_subreaper:
            for pid in descendants():
                _send(os.kill, pid, number)
        else:
            self._signal_group(number)

    def _signal_group(self, number: int) -> bool:
        return _send(os.killpg, self.agent, number)

    def count(self) -> int:
        """Return how many processes are left."""
        if self.is_empty():
            return 0
        return len(descendants()) if self._is_subreaper else 1


def _send(kill: object, pid: int, number: int) -> bool:
    try:
        kill(pid, number)  # type: ignore[operator]
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


class AgentWatch:
    """Waits until the agent ends or there is a reason to end it."""

    def __init__(self) -> None:
        """Listen to the control socket and to signals."""
        self._signals, wake = os.pipe()
        os.set_blocking(self._signals, False)
        os.set_blocking(wake, False)
        _signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in (*_STOPPING, _SIGCHLD):
            _signal.signal(number, _ignore_signal)
        self._poll = select.poll()
        self._poll.register(self._signals, select.POLLIN)
        self._poll.register(_CONTROL, select.POLLIN)
        self.stopped_by: str | None = None
        self.is_orphan = False

    def wait(self, seconds: float | None) -> None:
        """Sleep until something happens, at most *seconds*."""
        timeout_ms = None if seconds is None else max(int(seconds * 1000) + 1, 0)
        for fd, _ in self._poll.poll(timeout_ms):
            if fd == _CONTROL:
                self._read_control()
            elif any(number in _STOPPING for number in os.read(self._signals, 4096)):
                self.stopped_by = self.stopped_by or "signal"

    def _read_control(self) -> None:
        if os.read(_CONTROL, 64):
            self.stopped_by = self.stopped_by or "control"
            return
        self.is_orphan = True
        self._poll.unregister(_CONTROL)
        self.stopped_by = self.stopped_by or "eof"


def _ignore_signal(*_: object) -> None:
    """Handle a signal by doing nothing: the wake-up pipe reports it."""


def end_tree(tree: Tree, watch: AgentWatch, grace_s: float) -> None:
    """TERM everything, wait, then KILL until nothing is left."""
    tree.signal(_SIGTERM)
    start = time.monotonic()
    while not tree.is_empty():
        allowed_s = min(grace_s, EOF_GRACE_S) if watch.is_orphan else grace_s
        left_s = start + allowed_s - time.monotonic()
        if left_s <= 0:
            break
        watch.wait(left_s)
    give_up = time.monotonic() + KILL_LIMIT_S
    # In rounds: a process that forks while it is killed shows up in the next round.
    while not tree.is_empty() and time.monotonic() < give_up:
        tree.signal(_SIGKILL)
        watch.wait(0.005)


def main() -> None:
    """Wait for a launch record, run its agent, report, and exit."""
    stdin_fd, stdout_fd = int(sys.argv[1]), int(sys.argv[2])
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
    try:
        prctl = Prctl()
        prctl.set(_SUBREAPER, 1)
        record = read_record()
        if record is None:
            return
        launch = Order(*record)
        watch = AgentWatch()
        agent = start(launch, stdin_fd, stdout_fd, prctl)
    except OSError as error:
        # No process or descriptor was free for the work before the agent's start.
        report_refused(error.errno or 0, "guard")
        return
    if agent is None:
        return
    try:
        guard_agent(agent, launch, watch, prctl)
    except OSError:
        wait_for_sequencer()


def wait_for_sequencer() -> None:
    """Stop reporting, and stay while processes are left: their parent identifies them.

    An agent can starve its guard of descriptors with a resource limit. Then the guard can't find
    the processes that it should end; its sequencer ends them, and the guard too.
    """
    os.close(_STATUS)
    give_up = time.monotonic() + 2 * KILL_LIMIT_S
    while time.monotonic() < give_up:
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        time.sleep(0.05)


def guard_agent(agent: int, launch: Order, watch: AgentWatch, prctl: Prctl) -> None:
    """Wait for the end of *agent* or a reason to end it, end all its processes, and report."""
    tree = Tree(agent, prctl)
    tree.reap()
    while not tree.has_ended and watch.stopped_by is None:
        watch.wait(None)
        tree.reap()
    stopped_by = None if tree.has_ended else watch.stopped_by
    leftovers = ""
    if not tree.is_empty():
        if stopped_by is None and sys.argv[3:] == ["left"] and prctl.is_there:
            leftovers = describe_leftovers()
        end_tree(tree, watch, launch.grace_s if stopped_by else LEFTOVER_GRACE_S)
    survivors = tree.count()
    if prctl.is_there and not survivors:
        clear_lock_file(launch.lock)
    code = "null" if tree.exit_code is None else str(tree.exit_code)
    reason = f'"{stopped_by}"' if stopped_by else "null"
    report(
        f'{{"event": "ended", "exit_code": {code}, "stopped_by": {reason}, '
        f'"survivors": {survivors}{leftovers}}}'
    )


if __name__ == "__main__":
    main()
    # Skip the interpreter's shutdown, which would cost every step milliseconds.
    os._exit(0)
