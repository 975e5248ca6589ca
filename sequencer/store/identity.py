"""Who this process is, what its clocks say, whether an agent started it, and who is gone.

Proof that another process is gone needs the same boot and the same pid namespace, or the same
machine under another boot; everything else is left to leases. Wall clocks are for people and
are never compared.

Not promised: protection from a program of this user that replaces these functions or writes
a run's files directly. Any code that runs as this user can do both.
"""

from __future__ import annotations

import os
import secrets
import sys
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache, lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from sequencer.errors import DecisionRefused
from sequencer.model.head import Owner

INSIDE_AGENT = "SEQUENCER_TOKEN"
"""The variable that each process of an agent has. Its presence counts, whatever its value."""

_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_STAT_STATE, _STAT_PARENT, _STAT_START = 0, 1, 19
"""Fields of /proc/PID/stat after the command's closing parenthesis."""


def boottime() -> float:
    """Return seconds since the machine's boot, sleep included. This clock can't be set."""
    return time.clock_gettime(_BOOT_CLOCK) - _namespace_offset()


@cache
def _namespace_offset() -> float:
    """Return by how much the clock since boot is ahead here of the machine's own.

    A container may have been given one of its own (a time namespace), so that it goes on
    where it was on another machine; its boot is the machine's all the same.
    """
    try:
        own, of_children = (
            Path(f"/proc/self/ns/{name}").readlink().name.partition(":")[2]
            for name in ("time", "time_for_children")
        )
        told = Path("/proc/self/timens_offsets").read_text()
    except OSError:
        return 0.0
    if own != of_children:
        # What can be read is the offset of the children's clock.
        return 0.0
    lines = (line.split() for line in told.splitlines())
    return sum(int(line[1]) + int(line[2]) / 1e9 for line in lines if line[0] == "boottime")


@cache
def boot_id() -> str:
    """Return the id of this boot."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"boot-{int(_psutil().boot_time())}"


def _psutil() -> Any:
    import psutil  # noqa: PLC0415 (only where there is no /proc)

    return psutil


@cache
def pid_namespace() -> str:
    """Return the id of the pid namespace; empty where the system has none."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


@cache
def machine() -> str:
    """Return a digest of the machine's id; empty where it has none, as in many containers."""
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            found = Path(path).read_text().strip()
        except OSError:
            continue
        if found:
            return sha256(found.encode()).hexdigest()[:12]
    return ""


def process_start(pid: int) -> int | None:
    """Return when *pid* started, in clock ticks since boot; None if it is gone or a zombie."""
    if sys.platform != "linux":
        return _process_start_elsewhere(pid)
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    # A zombie runs no code any more: its claim has no holder.
    if fields[_STAT_STATE] in (b"Z", b"X"):
        return None
    return int(fields[_STAT_START]) - round(_namespace_offset() * os.sysconf("SC_CLK_TCK"))


def _process_start_elsewhere(pid: int) -> int | None:
    psutil = _psutil()
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return int(process.create_time() * 1000)
    except psutil.NoSuchProcess:
        return None


@cache
def _this_process(pid: int) -> Owner:
    return Owner(
        host=os.uname().nodename,
        machine=machine(),
        boot_id=boot_id(),
        pid_ns=pid_namespace(),
        pid=pid,
        pid_start=process_start(pid) or 0,
        nonce=secrets.token_hex(8),
    )


def this_process() -> Owner:
    """Return the owner that claims of this process carry."""
    return _this_process(os.getpid())


def _is_hidden(pid: int) -> bool:
    """Return whether *pid* exists but is another user's, whom /proc may not show (hidepid)."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def is_same_boot(owner: Owner) -> bool:
    """Return whether *owner* lives under the running kernel, perhaps in another container."""
    return owner.boot_id == boot_id()


def is_proven_dead(owner: Owner) -> bool:
    """Return whether *owner* can't be running any more."""
    if is_same_boot(owner):
        if owner.pid_ns != pid_namespace():
            return False
        started = process_start(owner.pid)
        return started != owner.pid_start and not (started is None and _is_hidden(owner.pid))
    is_same_machine = bool(machine()) and owner.machine == machine()
    return is_same_machine and owner.host == os.uname().nodename


def open_process(owner: Owner) -> int | None:
    """Return a descriptor that becomes readable when *owner*'s process ends.

    None where that can't be known: another boot, another pid namespace, a system without
    process descriptors, or a process that is gone already.
    """
    is_visible = is_same_boot(owner) and owner.pid_ns == pid_namespace()
    if not is_visible or not hasattr(os, "pidfd_open"):
        return None
    try:
        fd = os.pidfd_open(owner.pid)
    except OSError:
        return None
    if process_start(owner.pid) != owner.pid_start:
        os.close(fd)
        return None
    return fd


# --- agents ------------------------------------------------------------------------

_GUARD = b"/sequencer/executors/guard.py"
_GUARD_OPTIONS = [b"-I", b"-S"]
"""A guard's command line: its interpreter, these options, the end of its program's path; behind
them numbers of descriptors, and words of its version. Other users and sandboxed processes can read
it, and no agent can change it. Other versions have guards whose command line begins the same."""
_COMMAND_BYTES = 16 * 1024
_MOST_LOOKS = 4096
"""No person's shell has so many ancestors, so what has more counts as an agent's."""
_FIRST_NAMESPACE = "pid:[4026531836]"
"""The pid namespace of the machine itself: a constant of the kernel."""
_UNSEEN = (FileNotFoundError, ProcessLookupError, PermissionError)


def is_inside_agent() -> bool:
    """Return whether an agent started this process, whatever it has done to its variables.

    It did if this process or an ancestor carries the mark or was started with it, if an
    ancestor is a guard, or if this process is inside the wall around agents, which no process
    can leave. An ancestor of another user that can't be read does not count as an agent. If
    the topmost ancestors are hidden (another pid namespace, no /proc), any Landlock domain of
    this kind counts as the mark.

    Raises:
        OSError: this process can't open any more files, so the answer is unknown.
    """
    return INSIDE_AGENT in os.environ or _was_started_by_agent(os.getpid())


def ensure_person(what: str, hint: str) -> None:
    """Return unless an agent asks for *what*, which no setting allows it; *hint* says what to do.

    Raises:
        DecisionRefused: an agent asks.
    """
    if is_inside_agent():
        raise DecisionRefused(what, hint)


@lru_cache(maxsize=1)
def _was_started_by_agent(pid: int) -> bool:
    # Remembered: a process's ancestors end, but none is ever added.
    del pid
    if sys.platform != "linux":
        return _is_below_agent_elsewhere(os.getpid())
    found = _is_below_agent("self")
    # A process that outlives its guard, or sees another /proc, is still inside the wall.
    return found or _depth() >= (1 if found is None else _DEPTH)


def is_agent(pid: int) -> bool:
    """Return whether the process *pid* is provably an agent's; see `is_inside_agent`."""
    if sys.platform != "linux":
        return _is_below_agent_elsewhere(pid)
    return _is_below_agent(pid) is True


def sees_all_processes() -> bool:
    """Return whether /proc shows this process each other one of the machine.

    Not in another pid namespace, and not where it is mounted with ``hidepid``.
    """
    return pid_namespace() == _FIRST_NAMESPACE and os.access("/proc/1/status", os.R_OK)


class _Ancestor(NamedTuple):
    parent: int
    is_marked: bool


def _is_below_agent(first: int | str) -> bool | None:
    """Return whether *first* or a process above it is marked; None: the top can't be seen.

    *first* may be "self": in a new pid namespace, /proc may still show the old numbers.
    """
    line: list[int | str] = [first]
    for _ in range(_MOST_LOOKS):
        found = _ancestor(line[-1])
        if len(line) > 1:
            child = _ancestor(line[-2])
            if child is None:
                line.pop()
                continue
            if child.parent != line[-1]:
                # The parent ended while we looked, so its number may be a stranger's now.
                line[-1] = child.parent
                continue
        if found is None:
            return None
        if found.is_marked:
            return True
        if not found.parent:
            return None if pid_namespace() != _FIRST_NAMESPACE else False
        line.append(found.parent)
    return True


def _ancestor(pid: int | str) -> _Ancestor | None:
    """Return what a process tells about itself; None: it is gone, or hidden from this user."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - half the cost of a Path
            fields = file.read().rpartition(b")")[2].split()
        with open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123
            command = file.read(_COMMAND_BYTES).split(b"\0")
    except _UNSEEN:
        return None
    is_marked = _is_guard(command)
    if not is_marked:
        with suppress(*_UNSEEN), open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
            mark = b"%s=" % INSIDE_AGENT.encode()
            is_marked = any(one.startswith(mark) for one in file.read().split(b"\0"))
    return _Ancestor(int(fields[_STAT_PARENT]), is_marked)


def _is_guard(command: list[bytes]) -> bool:
    """Return whether the words of *command* started a guard.

    >>> _is_guard([b"python3", b"-I", b"-S", b"/usr/lib/sequencer/executors/guard.py", b"3", b"5"])
    True
    >>> _is_guard([b"vim", b"/usr/lib/sequencer/executors/guard.py"])
    False
    """
    return command[1:3] == _GUARD_OPTIONS and any(one.endswith(_GUARD) for one in command[3:4])


def _is_below_agent_elsewhere(pid: int) -> bool:
    psutil = _psutil()
    try:
        own = psutil.Process(pid)
        line = [own, *own.parents()]
    except psutil.Error:
        return False
    for one in line:
        with suppress(psutil.Error, OSError):
            if _is_guard([os.fsencode(word) for word in one.cmdline()]):
                return True
        with suppress(psutil.Error, OSError):
            if INSIDE_AGENT in one.environ():
                return True
    return False


_MOST_DOMAINS = 16
"""So many Landlock domains can be inside of each other: a constant of the kernel."""
_DEPTH = 3
"""The wall around agents is so deep: `guard.DEPTH`, which is above this module."""
_SCOPES = 3
"""Landlock's two scopes: abstract sockets and signals."""


def _depth() -> int:
    """Return in how many Landlock domains this process is, none of which it can leave.

    The kernel does not say it. But domains can be inside of each other only so deep, so a thread,
    whose end undoes it, enters as many as it still can.
    """
    entered: list[int] = []

    def enter() -> None:
        import ctypes  # noqa: PLC0415 - only for decisions

        class Ruleset(ctypes.Structure):
            _fields_ = [(name, ctypes.c_uint64) for name in ("files", "net", "scopes")]

        call = ctypes.CDLL(None).syscall
        scopes = Ruleset(0, 0, _SCOPES)
        create, restrict, no_new_privs = 444, 446, 38
        fd = call(create, ctypes.byref(scopes), ctypes.c_size_t(ctypes.sizeof(scopes)), 0)
        if fd < 0:
            # This kernel has no such wall.
            entered.extend(range(_MOST_DOMAINS))
            return
        ctypes.CDLL(None).prctl(no_new_privs, 1, 0, 0, 0)
        while len(entered) < _MOST_DOMAINS and call(restrict, fd, 0) == 0:
            entered.append(fd)
        os.close(fd)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    return _MOST_DOMAINS - len(entered)


def utc_now() -> str:
    """Return the time as state.json, journal and logs have it."""
    return _written(int(time.time()))


def utc_milliseconds() -> str:
    """Return the time as the record of an attempt has it, which says when it began.

    >>> len(utc_milliseconds())
    24
    """
    now = time.time()
    return f"{_written(int(now))[:-1]}.{int(now * 1000) % 1000:03d}Z"


@lru_cache(maxsize=1)
def _written(second: int) -> str:
    """Return a time as text; a step asks for the same one again and again."""
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
