"""The identity of this process, its clocks, whether an agent started it, and dead processes.

Proof that another process has ended needs the same boot and the same pid namespace, or the same
machine under another boot; leases decide all other cases. Wall clocks are for people and are never
compared.

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
from typing import Any

from msgspec import Struct

from sequencer.errors import DecisionRefused
from sequencer.model.head import Owner

INSIDE_AGENT = "SEQUENCER_TOKEN"
"""The environment variable of all processes of an agent. Only its presence counts."""

_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_STAT_STATE, _STAT_PARENT, _STAT_START = 0, 1, 19
"""Fields of /proc/PID/stat after the command's closing parenthesis."""


def boottime() -> float:
    """Return the seconds since the machine's boot, including sleep. No one can set this clock."""
    return time.clock_gettime(_BOOT_CLOCK) - _namespace_offset()


@cache
def _namespace_offset() -> float:
    """Return how far the boot clock of this process is ahead of the machine's, in seconds.

    A container that moved here may have its own clock (a time namespace), which continues from
    the machine before. Its boot is still the boot of this machine.
    """
    try:
        namespace, child_namespace = (
            Path(f"/proc/self/ns/{name}").readlink().name.partition(":")[2]
            for name in ("time", "time_for_children")
        )
        offsets = Path("/proc/self/timens_offsets").read_text()
    except OSError:
        return 0.0
    if namespace != child_namespace:
        # The file has the offset of the children's clock, not of this process's.
        return 0.0
    lines = (line.split() for line in offsets.splitlines())
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
    """Return the id of the pid namespace; empty: the system has none."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


@cache
def machine_digest() -> str:
    """Return a digest of the machine's id; empty: it has none, as in many containers."""
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            text = Path(path).read_text().strip()
        except OSError:
            continue
        if text:
            return sha256(text.encode()).hexdigest()[:12]
    return ""


def process_start(pid: int) -> int | None:
    """Return when *pid* started, in clock ticks since boot; None: it has ended or is a zombie."""
    if sys.platform != "linux":
        return _process_start_by_psutil(pid)
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    # A zombie runs no more code, so its claim has no holder.
    if fields[_STAT_STATE] in (b"Z", b"X"):
        return None
    return int(fields[_STAT_START]) - round(_namespace_offset() * os.sysconf("SC_CLK_TCK"))


def _process_start_by_psutil(pid: int) -> int | None:
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
        machine=machine_digest(),
        boot_id=boot_id(),
        pid_ns=pid_namespace(),
        pid=pid,
        pid_start=process_start(pid) or 0,
        nonce=secrets.token_hex(8),
    )


def this_process() -> Owner:
    """Return the owner that this process writes into its claims."""
    return _this_process(os.getpid())


def _is_hidden(pid: int) -> bool:
    """Return whether *pid* is a process of another user, which /proc may not show (hidepid)."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def is_same_boot(owner: Owner) -> bool:
    """Return whether *owner* runs under the same kernel boot, perhaps in another container."""
    return owner.boot_id == boot_id()


def is_proven_dead(owner: Owner) -> bool:
    """Return whether *owner* can't be running anymore."""
    if is_same_boot(owner):
        if owner.pid_ns != pid_namespace():
            return False
        start = process_start(owner.pid)
        return start != owner.pid_start and not (start is None and _is_hidden(owner.pid))
    is_same_machine = bool(machine_digest()) and owner.machine == machine_digest()
    return is_same_machine and owner.host == os.uname().nodename


def open_process(owner: Owner) -> int | None:
    """Return a descriptor that becomes readable when *owner*'s process ends.

    None if that can't be known: another boot, another pid namespace, a system without process
    descriptors, or a process that has already ended.
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
"""A guard's command line: its interpreter, these options, a path that ends with `_GUARD`, then
descriptor numbers and words that depend on its version. Other users and sandboxed processes can
read it, and no agent can change it. Guards of other versions start with the same words."""
_COMMAND_BYTES = 16 * 1024
_MAX_LOOKS = 4096
"""No person's shell has so many ancestors, so a process with more counts as an agent's."""
_FIRST_NAMESPACE = "pid:[4026531836]"
"""The machine's initial pid namespace: a constant of the kernel."""
_HIDDEN = (FileNotFoundError, ProcessLookupError, PermissionError)


def is_inside_agent() -> bool:
    """Return whether an agent started this process, even if it changed its environment.

    It did if this process or an ancestor has the mark or was started with it, if an ancestor is a
    guard, or if this process is inside the wall around agents, which no process can leave. An
    unreadable ancestor of another user does not count as an agent. If the topmost ancestors are
    hidden (another pid namespace, no /proc), any Landlock domain of this kind counts as the mark.

    Raises:
        OSError: this process can't open any more files, so the answer is unknown.
    """
    return INSIDE_AGENT in os.environ or _was_started_by_agent(os.getpid())


def ensure_person(action: str, hint: str) -> None:
    """Refuse *action* to agents, whatever the settings are; *hint* says what to do instead.

    Raises:
        DecisionRefused: an agent started this process.
    """
    if is_inside_agent():
        raise DecisionRefused(action, hint)


@lru_cache(maxsize=1)
def _was_started_by_agent(pid: int) -> bool:
    # Cached: a process's ancestors may end, but it never gets a new one.
    del pid
    if sys.platform != "linux":
        return _is_below_agent_by_psutil(os.getpid())
    is_below = _is_below_agent("self")
    # A process that outlives its guard, or sees another /proc, is still inside the wall.
    return is_below or _landlock_depth() >= (1 if is_below is None else _DEPTH)


def is_agent(pid: int) -> bool:
    """Return whether an agent provably started the process *pid*; see `is_inside_agent`."""
    if sys.platform != "linux":
        return _is_below_agent_by_psutil(pid)
    return _is_below_agent(pid) is True


def can_see_all_processes() -> bool:
    """Return whether /proc shows this process all processes of the machine.

    It does not in another pid namespace, or if it is mounted with ``hidepid``.
    """
    return pid_namespace() == _FIRST_NAMESPACE and os.access("/proc/1/status", os.R_OK)


class _Ancestor(Struct, frozen=True):
    parent: int
    is_marked: bool


def _is_below_agent(pid: int | str) -> bool | None:
    """Return whether *pid* or an ancestor is marked; None: the topmost ones are hidden.

    *pid* may be "self": in a new pid namespace, /proc may still show the old numbers.
    """
    chain: list[int | str] = [pid]
    for _ in range(_MAX_LOOKS):
        ancestor = _read_ancestor(chain[-1])
        if len(chain) > 1:
            child = _read_ancestor(chain[-2])
            if child is None:
                chain.pop()
                continue
            if child.parent != chain[-1]:
                # The parent ended in the meantime, so its pid may belong to another process now.
                chain[-1] = child.parent
                continue
        if ancestor is None:
            return None
        if ancestor.is_marked:
            return True
        if not ancestor.parent:
            return None if pid_namespace() != _FIRST_NAMESPACE else False
        chain.append(ancestor.parent)
    return True


def _read_ancestor(pid: int | str) -> _Ancestor | None:
    """Return the parent of *pid*, and whether it is marked; None: it has ended or is hidden."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - half the cost of a Path
            fields = file.read().rpartition(b")")[2].split()
        with open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123
            command = file.read(_COMMAND_BYTES).split(b"\0")
    except _HIDDEN:
        return None
    is_marked = _is_guard(command)
    if not is_marked:
        with suppress(*_HIDDEN), open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
            mark = b"%s=" % INSIDE_AGENT.encode()
            is_marked = any(variable.startswith(mark) for variable in file.read().split(b"\0"))
    return _Ancestor(int(fields[_STAT_PARENT]), is_marked)


def _is_guard(command: list[bytes]) -> bool:
    """Return whether the words of *command* started a guard.

    >>> _is_guard([b"python3", b"-I", b"-S", b"/usr/lib/sequencer/executors/guard.py", b"3", b"5"])
    True
    >>> _is_guard([b"vim", b"/usr/lib/sequencer/executors/guard.py"])
    False
    """
    return command[1:3] == _GUARD_OPTIONS and any(word.endswith(_GUARD) for word in command[3:4])


def _is_below_agent_by_psutil(pid: int) -> bool:
    psutil = _psutil()
    try:
        process = psutil.Process(pid)
        chain = [process, *process.parents()]
    except psutil.Error:
        return False
    for ancestor in chain:
        with suppress(psutil.Error, OSError):
            if _is_guard([os.fsencode(word) for word in ancestor.cmdline()]):
                return True
        with suppress(psutil.Error, OSError):
            if INSIDE_AGENT in ancestor.environ():
                return True
    return False


_MAX_DOMAINS = 16
"""How deep Landlock domains can be nested: a constant of the kernel."""
_DEPTH = 3
"""How deep the wall around agents is: `guard.DEPTH`, in a higher layer than this module."""
_SCOPES = 3
"""Landlock's two scopes: abstract sockets and signals."""


def _landlock_depth() -> int:
    """Return how many nested Landlock domains this process is in; it can't leave any of them.

    The kernel does not report it. So a thread enters as many more as the limit allows, and the
    difference is the answer. The end of the thread undoes that.
    """
    depths: list[int] = []

    def enter() -> None:
        import ctypes  # noqa: PLC0415 - only for decisions

        class Ruleset(ctypes.Structure):
            _fields_ = [(name, ctypes.c_uint64) for name in ("files", "net", "scopes")]

        call = ctypes.CDLL(None).syscall
        scopes = Ruleset(0, 0, _SCOPES)
        create_call, restrict_call, no_new_privs_option = 444, 446, 38
        fd = call(create_call, ctypes.byref(scopes), ctypes.c_size_t(ctypes.sizeof(scopes)), 0)
        if fd < 0:
            # This kernel has no Landlock scopes, so no process is in such a domain.
            depths.extend(range(_MAX_DOMAINS))
            return
        ctypes.CDLL(None).prctl(no_new_privs_option, 1, 0, 0, 0)
        while len(depths) < _MAX_DOMAINS and call(restrict_call, fd, 0) == 0:
            depths.append(fd)
        os.close(fd)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    return _MAX_DOMAINS - len(depths)


def utc_now() -> str:
    """Return the time in the format of state.json, journal and logs."""
    return _format_utc(int(time.time()))


def utc_milliseconds() -> str:
    """Return the time in the format of an attempt's start in its record.

    >>> len(utc_milliseconds())
    24
    """
    now = time.time()
    return f"{_format_utc(int(now))[:-1]}.{int(now * 1000) % 1000:03d}Z"


@lru_cache(maxsize=1)
def _format_utc(second: int) -> str:
    """Return a time as text; cached, because a step needs the same one many times."""
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
