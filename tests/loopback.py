"""Ports of this machine for servers that tests start."""

from __future__ import annotations

import itertools
import os
import socket

_FIRST, _COUNT = 10_000, 22_000
"""Below what a system gives to whoever asks for any port: 32768 (Linux), 49152 (macOS)."""
_numbers = itertools.count(os.getpid() * 997)


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def free_ports(count: int) -> list[int]:
    """Return so many ports that nobody listens at, and that nobody is given who asks for any.

    A server needs seconds until it listens. Each process of the tests begins elsewhere, and
    takes no port twice.
    """
    ports = (_FIRST + number % _COUNT for number in _numbers)
    return list(itertools.islice(filter(_is_free, ports), count))
