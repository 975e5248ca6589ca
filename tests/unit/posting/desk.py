"""A loopback server that keeps what it is sent and answers, or misbehaves, as it is told.

Each of *answers* is for one request, in order; behind them every request gets *usual*.
A test waits for a number of requests, and a server that hangs does so until the test lets it
go. Only a server that is slow by nature sleeps.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WAIT_S = 20.0


@dataclass(frozen=True)
class Reply:
    """One answer: a status with headers and a body, or a way to give none."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    hangs: bool = False
    """Nothing comes before the test lets go."""
    drops: bool = False
    """The connection is reset when the request has arrived."""
    waits: bool = False
    """It is given when the test lets go."""
    after_s: float = 0.0
    """How long the server thinks about it."""


@dataclass(frozen=True)
class Seen:
    """One request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    """Names in lower case."""
    raw: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.raw)


class Desk:
    def __init__(self, usual: Reply) -> None:
        self.usual = usual
        self.answers: deque[Reply] = deque()
        self.seen: list[Seen] = []
        self.let_go = threading.Event()
        self.port = 0
        self._arrived = threading.Condition()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def take(self, seen: Seen) -> Reply:
        with self._arrived:
            self.seen.append(seen)
            self._arrived.notify_all()
            return self.answers.popleft() if self.answers else self.usual

    def wait_for(self, count: int) -> list[Seen]:
        """Return the first *count* requests, when they have arrived."""
        with self._arrived:
            came = self._arrived.wait_for(lambda: len(self.seen) >= count, WAIT_S)
            assert came, f"{len(self.seen)} of {count} requests came"
            return self.seen[:count]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    desk: Desk

    def _answer(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        reply = self.desk.take(Seen(self.command, self.path, headers, raw))
        time.sleep(reply.after_s)
        if reply.hangs or reply.waits:
            self.desk.let_go.wait(WAIT_S)
        if reply.hangs or reply.drops:
            self.close_connection = True
            # A reset, as from a machine that went down: no orderly end.
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.connection.close()
            return
        text = reply.body if isinstance(reply.body, str) else json.dumps(reply.body)
        data = b"" if reply.body is None else text.encode()
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_POST = do_GET = _answer  # noqa: N815 - the names that the base class calls

    def finish(self) -> None:
        try:
            super().finish()
        except (OSError, ValueError):
            self.close_connection = True

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """Say nothing: clients that go away are part of the tests."""


@contextmanager
def open_desk(usual: Reply | None = None, *, port: int = 0) -> Iterator[Desk]:
    """Serve on a free port, or on *port*, until the block ends."""
    desk = Desk(usual or Reply())
    handler = type("Handler", (_Handler,), {"desk": desk})
    server = _Server(("127.0.0.1", port), handler)
    desk.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield desk
    finally:
        desk.let_go.set()
        server.shutdown()
        server.server_close()
        thread.join()
