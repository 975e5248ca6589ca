"""A wire between a process and the server that somebody cuts, before or after a certain word."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import zlib
from typing import Self

READ_BYTES = 65_536
_PACKED = b"\x1f\x8b\x08"
"""So begins what the client library has compressed."""


class Wire:
    """A port of this machine that leads to the server's, for as long as the block lasts."""

    def __init__(self, address: str) -> None:
        """Lead to *address*."""
        host, _, port = address.rpartition(":")
        self._target = (host, int(port))
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._lock = threading.Lock()
        self._trap: tuple[bytes, bool, float] | None = None
        self._down_until = 0.0
        self.cuts = 0
        """How often a trap has cut it."""

    def trap(self, word: bytes, *, passes: bool, down_s: float) -> None:
        """Cut it when *word* is asked for the next time; that *passes* first, or is lost.

        No answer comes back, and nobody gets through for *down_s*.
        """
        self._trap = (word, passes, down_s)

    def cut(self, down_s: float) -> None:
        """Cut it; nobody gets through for *down_s*."""
        self._down_until = time.monotonic() + down_s
        with self._lock:
            pairs, self._pairs = self._pairs, set()
        for pair in pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.close()
        self.cut(0.0)

    def _accept(self) -> None:
        while True:
            try:
                near = self._listening.accept()[0]
            except OSError:
                return
            if time.monotonic() < self._down_until:
                near.close()
                continue
            try:
                far = socket.create_connection(self._target)
            except OSError:
                near.close()
                continue
            with self._lock:
                self._pairs.add((near, far))
            for pair in ((near, far), (far, near)):
                is_asking = pair[0] is near
                threading.Thread(
                    target=self._carry, args=(*pair,), kwargs={"is_asking": is_asking}, daemon=True
                ).start()

    def _carry(self, source: socket.socket, sink: socket.socket, *, is_asking: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(READ_BYTES):
                trap = self._trap
                if is_asking and trap is not None and _says(data, trap[0]):
                    self._trap = None
                    self.cuts += 1
                    self._spring(sink, data, *trap[1:])
                    return
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _spring(self, sink: socket.socket, data: bytes, passes: bool, down_s: float) -> None:
        with self._lock:
            near = next(one[0] for one in self._pairs if one[1] is sink)
        # Whatever the server answers is lost.
        near.shutdown(socket.SHUT_WR)
        if passes:
            sink.sendall(data)
            time.sleep(0.3)
        self.cut(down_s)


def _says(data: bytes, word: bytes) -> bool:
    """Return whether *word* stands in the requests of *data*."""
    parts = data.split(_PACKED)
    for part in parts[1:]:
        with contextlib.suppress(zlib.error):
            if word in zlib.decompressobj(31).decompress(_PACKED + part):
                return True
    return word in parts[0]
