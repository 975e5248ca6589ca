"""Servers of repositories on this machine: git's own daemon, and git over http."""

from __future__ import annotations

import base64
import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.loopback import free_ports

SECRET = "somebody:sesame"  # noqa: S105 - of a test


def daemon_argv(folder: Path, host: str, port: int) -> list[str]:
    """Return the command of a `git daemon` that takes pushes to what is in *folder*."""
    options = ("--reuseaddr", "--export-all", "--enable=receive-pack", f"--base-path={folder}")
    return ["git", "daemon", *options, f"--listen={host}", f"--port={port}", str(folder)]


def end(process: subprocess.Popen[bytes]) -> None:
    """End *process* and what it has started in its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def until_open(host: str, port: int) -> None:
    """Return when somebody listens there."""
    deadline = time.monotonic() + 10
    while True:
        with contextlib.suppress(OSError), socket.create_connection((host, port), 1):
            return
        assert time.monotonic() < deadline, "the server does not listen"
        time.sleep(0.02)


@contextlib.contextmanager
def daemon(folder: Path) -> Iterator[str]:
    """Serve the repositories in *folder* by git's own protocol; yield the address of *folder*."""
    port = free_ports(1)[0]
    process = subprocess.Popen(
        daemon_argv(folder, "127.0.0.1", port), stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        until_open("127.0.0.1", port)
        yield f"git://127.0.0.1:{port}"
    finally:
        end(process)


@contextlib.contextmanager
def silent() -> Iterator[str]:
    """Listen and take connections, and never say a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=50) as listening:
        yield f"git://127.0.0.1:{listening.getsockname()[1]}"


@contextlib.contextmanager
def http(folder: Path, *, is_open: bool) -> Iterator[str]:
    """Serve the repositories in *folder* over http; who has no password is sent away."""

    class Handler(BaseHTTPRequestHandler):
        """Hands a request to `git http-backend`."""

        def do_GET(self) -> None:
            self._serve()

        def do_POST(self) -> None:
            self._serve()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - their name
            del format, args

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            told = "Basic " + base64.b64encode(SECRET.encode()).decode()
            if not is_open and self.headers.get("Authorization") != told:
                self.send_response(401)
                self.send_header("WWW-Authenticate", 'Basic realm="x"')
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            path, _, query = self.path.partition("?")
            environment = {
                "PATH": os.environ["PATH"],
                "GIT_PROJECT_ROOT": str(folder),
                "GIT_HTTP_EXPORT_ALL": "1",
                "REMOTE_USER": "somebody",
                "REMOTE_ADDR": "127.0.0.1",
                "REQUEST_METHOD": self.command,
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "CONTENT_TYPE": self.headers.get("Content-Type") or "",
                "CONTENT_LENGTH": str(len(body)),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding") or "",
                "GIT_PROTOCOL": self.headers.get("Git-Protocol") or "",
            }
            argv = ["git", "http-backend"]
            done = subprocess.run(
                argv, input=body, capture_output=True, env=environment, check=False
            )
            head, _, content = done.stdout.partition(b"\r\n\r\n")
            fields = [line.split(": ", 1) for line in head.decode().split("\r\n") if line]
            status = next((text for name, text in fields if name == "Status"), "200 OK")
            self.send_response(int(status.split()[0]))
            for name, text in fields:
                if name != "Status":
                    self.send_header(name, text)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def declining(bare: Path, ref: str) -> Path:
    """Let the repository decline pushes to *ref*, one by one."""
    hook = bare / "hooks" / "update"
    hook.write_text(f'#!/bin/sh\ntest "$1" != {ref}\n')
    hook.chmod(0o755)
    return hook
