"""The server as a process of its own: its first line, many connections, slow ones, its end."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import forked
from tests.forked import Forked

IDLE = 300
MAX_CONNECTIONS = 1000
"""The limit of the server; `tests/unit/web/test_connections.py` checks the number."""


class Running(NamedTuple):
    """A server that listens."""

    process: Forked
    port: int
    token: str

    def get(self, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        with contextlib.closing(connection):
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()


@pytest.fixture
def running(made: Path) -> Iterator[Running]:
    command = [sys.executable, "-m", "sequencer", "web", "--port", "0", "--no-browser"]
    environment = {**os.environ, "SEQUENCER_TRUST": "all"}
    environment.pop("SEQUENCER_TOKEN", None)
    with Forked(
        command,
        cwd=made / "shop",
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        address, _, token = process.stdout.readline().strip().partition("/login?token=")
        assert address.startswith("http://sequencer.localhost:")
        yield Running(process, int(address.rpartition(":")[2]), token)
        process.kill()


def test_the_link_logs_in_and_the_process_ends_on_request(running: Running) -> None:
    assert running.get("/")[0] == 401
    _, headers, _ = running.get(f"/login?token={running.token}")
    status, found, body = running.get("/", cookie=headers["set-cookie"].partition(";")[0])
    assert (status, "server" in found) == (200, False)
    assert b"Needs you" in body
    running.process.send_signal(signal.SIGINT)
    assert running.process.wait(timeout=20) in (0, 130, -signal.SIGINT)


def test_the_server_is_reachable_only_from_this_machine(running: Running) -> None:
    with pytest.raises(OSError, match=r"refused|unreachable|assign|timed out"):
        socket.create_connection((own_address(), running.port), timeout=5)


def own_address() -> str:
    """Return an address of this machine that is not the loopback's, or one of nobody."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.2"
        return str(probe.getsockname()[0])


def test_idle_connections_do_not_block_others(running: Running) -> None:
    with contextlib.ExitStack() as stack:
        for number in range(IDLE):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", running.port)))
            if number % 2:
                one.sendall(b"GET / HTTP/1.1\r\nhost: ")
        assert running.get(f"/login?token={running.token}")[0] == 200


def test_too_many_connections_do_not_block_others(running: Running) -> None:
    with contextlib.ExitStack() as stack:
        for number in range(MAX_CONNECTIONS + 50):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", running.port)))
            if number % 2:
                one.sendall(b"GET / HTTP/1.1\r\nhost: ")
        for _ in range(3):
            assert running.get(f"/login?token={running.token}")[0] == 200


def test_a_port_in_use_is_reported(running: Running, made: Path) -> None:
    command = [sys.executable, "-m", "sequencer", "web", "--port", str(running.port)]
    environment = {key: value for key, value in os.environ.items() if key != "SEQUENCER_TOKEN"}
    second = forked.run(
        [*command, "--no-browser"],
        cwd=made / "shop",
        env=environment,
        capture_output=True,
        text=True,
    )
    assert second.returncode == 2
    assert "--port 0 takes a free port" in second.stderr
