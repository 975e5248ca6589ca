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

from sequencer.store.identity import can_see_all_processes, is_agent, process_start

Address = tuple[str, int]
_Host = IPv4Address | IPv6Address
_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_LOCAL, _REMOTE, _USER, _INODE = 1, 2, 7, 9
"""Columns of these tables."""


def is_from_agent(client: Address, server: Address) -> bool:
    """Return whether an agent holds the *client* end of the connection to *server*.

    Also True if a process of this machine closed the connection before the answer, or put it
    where no process holds it: only programs do that, and it is unknown which one did.
    """
    if sys.platform != "linux":
        return any(is_agent(pid) for pid in _find_owners_without_proc(client, server))
    tables = [table for table in _TABLES if os.access(table, os.R_OK)]
    if not tables:
        return False
    inode, user = _find_socket(tables, client, server)
    if not inode:
        return _is_local_address(_ip(client[0]), _ip(server[0]))
    owners, hidden_pids = _owners(inode)
    # Otherwise a process of that user that can't be inspected may hold it.
    suspects = owners or [pid for pid in hidden_pids if user in _users(pid)]
    return any(map(is_agent, suspects)) if suspects else can_see_all_processes()


def _is_local_address(client: _Host, server: _Host) -> bool:
    """Return whether *client* is an address of this machine; a process may use any of them."""
    if client.is_loopback or client == server:
        return True
    import psutil  # noqa: PLC0415 - other addresses are rare, and it would slow down each start

    entries = (entry for addresses in psutil.net_if_addrs().values() for entry in addresses)
    return any(
        client == _ip(entry.address)
        for entry in entries
        if entry.family in (socket.AF_INET, socket.AF_INET6)
    )


def _ip(host: str) -> _Host:
    """Return the address of *host*; an IPv4 address inside an IPv6 one is unwrapped.

    >>> _ip("::ffff:127.0.0.1"), _ip("fe80::1%eth0")
    (IPv4Address('127.0.0.1'), IPv6Address('fe80::1'))
    """
    address = ip_address(host.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address


def _spellings(address: Address) -> set[str]:
    """Return the spellings of *address* in the kernel's tables.

    >>> sorted(_spellings(("127.0.0.1", 80)))[1] if sys.byteorder == "little" else "0100007F:0050"
    '0100007F:0050'
    """
    octets = _ip(address[0]).packed
    forms = (octets, bytes(10) + b"\xff\xff" + octets) if len(octets) == 4 else (octets,)  # noqa: PLR2004
    return {f"{_to_hexadecimal(form)}:{address[1]:04X}" for form in forms}


def _to_hexadecimal(octets: bytes) -> str:
    words = (octets[offset : offset + 4] for offset in range(0, len(octets), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)


def _find_socket(tables: Iterable[str], client: Address, server: Address) -> tuple[int, str]:
    """Return the inode and the user of the socket at *client*.

    The inode is 0 if this machine has no such socket, or it was closed.
    """
    client_forms, server_forms = _spellings(client), _spellings(server)
    for table in tables:
        for line in Path(table).read_text("ascii").splitlines()[1:]:
            columns = line.split()
            if columns[_LOCAL] in client_forms and columns[_REMOTE] in server_forms:
                return int(columns[_INODE]), columns[_USER]
    return 0, ""


def _owners(inode: int) -> tuple[list[int], list[int]]:
    """Return the processes that have the socket *inode*, and those that can't be inspected."""
    owners, hidden_pids, target = list[int](), list[int](), f"socket:[{inode}]"
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - no Path for each
    for pid in pids:
        try:
            if _has_link(f"/proc/{pid}/fd", target):
                owners.append(pid)
        except PermissionError:
            # A process that has ended and only waits for its parent holds nothing.
            if process_start(pid) is not None:
                hidden_pids.append(pid)
        except OSError:
            continue  # it has ended
    if not owners:
        owners = [pid for pid in pids if _has_link_in_thread(pid, target)]
    return owners, hidden_pids


def _has_link(folder: str, target: str) -> bool:
    with os.scandir(folder) as entries:
        return any(_read_link(entry.path) == target for entry in entries)


def _has_link_in_thread(pid: int, target: str) -> bool:
    """Return whether a thread of *pid* has *target*: a thread may have descriptors of its own."""
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - no Path for each
            with suppress(OSError):
                if _has_link(f"/proc/{pid}/task/{thread}/fd", target):
                    return True
    return False


def _users(pid: int) -> list[str]:
    """Return the user ids of *pid* as the kernel's tables write them; none if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_bytes().splitlines()
    except OSError:
        return []
    ids = next((line.split()[1:] for line in lines if line.startswith(b"Uid:")), [])
    return [user.decode() for user in ids]


def _read_link(path: str) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115
    except OSError:
        return ""


def _find_owners_without_proc(client: Address, server: Address) -> Iterator[int]:
    """Yield this user's processes that hold the *client* end, on systems without /proc."""
    import psutil  # noqa: PLC0415 - see above

    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            for connection in process.net_connections("tcp"):
                if connection.raddr and (tuple(connection.laddr), tuple(connection.raddr)) == (
                    client,
                    server,
                ):
                    yield process.pid
