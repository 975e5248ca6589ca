"""Whether an agent is at the other end of a connection from this machine.

An agent of this user may be able to read the key of the pages, so the key alone does not prove
that a person sent a request. The kernel knows which process holds the other end of a connection.

Not promised: an answer where it can't be known. Through ``ssh -L``, a proxy or another container
the socket belongs to another process, and the key alone decides. The same holds if an agent
passes its connection on so that no process holds it, while another process of its user can't be
inspected.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from sequencer.store.identity import is_agent, process_start, sees_all_processes

Address = tuple[str, int]
_Host = IPv4Address | IPv6Address
_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_LOCAL, _REMOTE, _USER, _INODE = 1, 2, 7, 9
"""Columns of these tables."""


def is_from_agent(client: Address, server: Address) -> bool:
    """Return whether an agent has the end *client* of the connection to *server*.

    True as well if a process of this machine closed the connection before the answer, or moved
    it to where no process holds it: only programs do that, and which one did is unknown.
    """
    if sys.platform != "linux":
        return any(is_agent(pid) for pid in _owners_elsewhere(client, server))
    tables = [one for one in _TABLES if os.access(one, os.R_OK)]
    if not tables:
        return False
    inode, user = _end(tables, client, server)
    if not inode:
        return _is_of_this_machine(_ip(client[0]), _ip(server[0]))
    owners, hidden = _owners(inode)
    # A process of that user that can't be inspected may be the one.
    found = owners or [pid for pid in hidden if user in _users(pid)]
    return any(map(is_agent, found)) if found else sees_all_processes()


def _is_of_this_machine(client: _Host, server: _Host) -> bool:
    """Return whether *client* is an address of this machine; a process may choose any of them."""
    if client.is_loopback or client == server:
        return True
    import psutil  # noqa: PLC0415 - few come by another address; it is a part of each start

    entries = (entry for found in psutil.net_if_addrs().values() for entry in found)
    return any(
        client == _ip(entry.address)
        for entry in entries
        if entry.family in (socket.AF_INET, socket.AF_INET6)
    )


def _ip(host: str) -> _Host:
    """Return the address of *host*, an IPv4 one also where IPv6 wraps it.

    >>> _ip("::ffff:127.0.0.1"), _ip("fe80::1%eth0")
    (IPv4Address('127.0.0.1'), IPv6Address('fe80::1'))
    """
    found = ip_address(host.partition("%")[0])
    return getattr(found, "ipv4_mapped", None) or found


def _written(address: Address) -> set[str]:
    """Return how the kernel's tables may write *address*.

    >>> sorted(_written(("127.0.0.1", 80)))[1] if sys.byteorder == "little" else "0100007F:0050"
    '0100007F:0050'
    """
    packed = _ip(address[0]).packed
    forms = (packed, bytes(10) + b"\xff\xff" + packed) if len(packed) == 4 else (packed,)  # noqa: PLR2004
    return {f"{_hexadecimal(form)}:{address[1]:04X}" for form in forms}


def _hexadecimal(packed: bytes) -> str:
    words = (packed[at : at + 4] for at in range(0, len(packed), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)


def _end(tables: Iterable[str], client: Address, server: Address) -> tuple[int, str]:
    """Return the number of the socket at *client* and its user.

    The number is 0 if this machine has none, or it was closed.
    """
    near, far = _written(client), _written(server)
    for table in tables:
        for line in Path(table).read_text("ascii").splitlines()[1:]:
            columns = line.split()
            if columns[_LOCAL] in near and columns[_REMOTE] in far:
                return int(columns[_INODE]), columns[_USER]
    return 0, ""


def _owners(inode: int) -> tuple[list[int], list[int]]:
    """Return the processes that have the socket *inode*, and those that can't be inspected."""
    owners, hidden, wanted = list[int](), list[int](), f"socket:[{inode}]"
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - no Path for each
    for pid in pids:
        try:
            if _has(f"/proc/{pid}/fd", wanted):
                owners.append(pid)
        except PermissionError:
            # One that has ended and waits for its parent has nothing any more.
            if process_start(pid) is not None:
                hidden.append(pid)
        except OSError:
            continue  # it has ended
    if not owners:
        owners = [pid for pid in pids if _has_in_a_thread(pid, wanted)]
    return owners, hidden


def _has(folder: str, wanted: str) -> bool:
    with os.scandir(folder) as found:
        return any(_target(one.path) == wanted for one in found)


def _has_in_a_thread(pid: int, wanted: str) -> bool:
    """Return whether a thread of *pid* has it for itself; a thread may have its own descriptors."""
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - no Path for each
            with suppress(OSError):
                if _has(f"/proc/{pid}/task/{thread}/fd", wanted):
                    return True
    return False


def _users(pid: int) -> list[str]:
    """Return all users that *pid* is, as the tables write them; none if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_bytes().splitlines()
    except OSError:
        return []
    found = next((line.split()[1:] for line in lines if line.startswith(b"Uid:")), [])
    return [one.decode() for one in found]


def _target(path: str) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115
    except OSError:
        return ""


def _owners_elsewhere(client: Address, server: Address) -> Iterator[int]:
    """Yield the processes of this user that have the end *client*, where there is no /proc."""
    import psutil  # noqa: PLC0415 - see above

    for one in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            for end in one.net_connections("tcp"):
                if end.raddr and (tuple(end.laddr), tuple(end.raddr)) == (client, server):
                    yield one.pid
