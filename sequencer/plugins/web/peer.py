"""Whether an agent is at the other end of a connection from this machine.

The key of the pages is in files that an agent of this user may read, so the key alone does not
make its sender a person. The kernel says which process has the other end of a connection.

Not promised: an answer where nobody can tell. Behind ``ssh -L``, a proxy or another container
the process belongs to somebody else, and then the key decides alone. So it does if an agent
hands its connection on in such a way that no process has it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

import psutil

from sequencer.store.identity import is_agent

Address = tuple[str, int]
_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_LOCAL, _REMOTE, _USER, _INODE = 1, 2, 7, 9
"""Columns of these tables."""


def is_from_agent(client: Address, server: Address) -> bool:
    """Return whether an agent has the end *client* of the connection to *server*.

    Also if a process of this machine has closed it before it was answered: only programs do,
    and nobody can tell any more which one it was.
    """
    if sys.platform != "linux":
        return any(is_agent(pid) for pid in _owners_elsewhere(client, server))
    tables = [one for one in _TABLES if os.access(one, os.R_OK)]
    if not tables:
        return False
    inode, user = _end(tables, client, server)
    if not inode:
        here = _ip(client[0])
        return here.is_loopback or here == _ip(server[0])
    owners, hidden = _owners(inode)
    # A process of that user which lets nobody look may be the one.
    return any(map(is_agent, owners or (pid for pid in hidden if _user(pid) == user)))


def _ip(host: str) -> IPv4Address | IPv6Address:
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
    """Return the processes that have the socket *inode*, and those that let nobody look."""
    owners, hidden, wanted = list[int](), list[int](), f"socket:[{inode}]"
    for name in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208 - no Path for each
        folder = f"/proc/{name}/fd"
        try:
            with os.scandir(folder) as found:
                if any(_target(one.path) == wanted for one in found):
                    owners.append(int(name))
        except PermissionError:
            hidden.append(int(name))
        except OSError:
            continue  # it has ended
    return owners, hidden


def _user(pid: int) -> str:
    """Return the user of *pid* as the tables write it; nobody's if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_bytes().splitlines()
    except OSError:
        return ""
    return next((line.split()[2].decode() for line in lines if line.startswith(b"Uid:")), "")


def _target(path: str) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115
    except OSError:
        return ""


def _owners_elsewhere(client: Address, server: Address) -> Iterator[int]:
    """Yield the processes of this user that have the end *client*, where there is no /proc."""
    for one in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            for end in one.net_connections("tcp"):
                if end.raddr and (tuple(end.laddr), tuple(end.raddr)) == (client, server):
                    yield one.pid
