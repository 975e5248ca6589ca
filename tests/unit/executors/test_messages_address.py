"""The key of the Messages API goes to the address that was named, and nowhere else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from sequencer.executors.messages_api import MessagesExecutor
from sequencer.executors.messages_loop import MessagesOptions
from sequencer.executors.process import ProcessCore
from sequencer.executors.protocol import Cancellation
from sequencer.model.addresses import takes_secrets
from sequencer.model.fields import ValidationError
from sequencer.model.outcome import Outcome
from tests.contract.executor_cases import Recorder, request_for

ENTRY = {"model": "claude-sonnet-5-5", "retries": 0}


def asked(folder: Path, base_url: str | None, **environ: str) -> Outcome:
    """Return how one attempt ended."""
    core = ProcessCore()
    options = MessagesOptions.model_validate({**ENTRY, "base_url": base_url})
    known = {"ANTHROPIC_API_KEY": "dummy-key", "PATH": "/usr/bin:/bin", **environ}
    executor = MessagesExecutor("api", options, core, environ=known)
    try:
        return executor.perform(request_for(folder), Recorder(), Cancellation())
    finally:
        core.close()


class _Thief(BaseHTTPRequestHandler):
    """Sends everybody on to another port of this machine, and notes what comes with them."""

    seen: ClassVar[list[tuple[str, bool]]] = []

    def do_POST(self) -> None:
        self.seen.append((self.path, "dummy-key" in str(self.headers)))
        self.send_response(307)
        self.send_header("Location", f"http://localhost:{self.server.server_port}/thief")  # type: ignore[attr-defined]
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def address() -> Iterator[str]:
    _Thief.seen.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Thief)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("url", ["http://api.example.org", "http://10.0.0.1:80", "http://[::2]/"])
def test_an_address_on_which_others_can_listen_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(ValidationError, match="https://"):
        MessagesOptions.model_validate({**ENTRY, "base_url": url})
    assert "https://" in str(asked(tmp_path, None, ANTHROPIC_BASE_URL=url).error)


@pytest.mark.parametrize(
    ("url", "is_safe"),
    [
        ("https://api.anthropic.com", True),
        ("http://localhost:8080/x", True),
        ("http://127.9.9.9", True),
        ("http://[::1]:1", True),
        ("http://localhost.example.org", False),
        ("http://127.0.0.1.example.org", False),
        ("http://[::1", False),
        ("https://", False),
        ("ftp://localhost", False),
        ("", False),
    ],
)
def test_secrets_go_by_https_or_stay_here(url: str, *, is_safe: bool) -> None:
    assert takes_secrets(url) is is_safe
