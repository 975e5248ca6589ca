"""Who this process is, what its clocks say, and whether another one is provably gone.

Proof needs the same boot and the same pid namespace, or the same machine under another
boot; everything else is left to leases. Wall clocks are for people and are never compared.
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from datetime import UTC, datetime
from functools import cache, lru_cache
from hashlib import sha256
from pathlib import Path

from sequencer.model.head import Owner

_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_STAT_STATE, _STAT_START = 0, 19
"""Fields of /proc/PID/stat behind the command's closing parenthesis."""


def boottime() -> float:
    """Return seconds since the machine's boot, sleep included; nobody can set this clock."""
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
        import psutil  # noqa: PLC0415 (only where there is no /proc)

        return f"boot-{int(psutil.boot_time())}"


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
    import psutil  # noqa: PLC0415 (only where there is no /proc)

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
