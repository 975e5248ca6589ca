"""A scriptable model server on the loopback address, for tests of real clients.

The prompt carries the script, so that the server keeps no state but retry counters:

    any text <<fake [{"tool": "Write", "input": {…}}, {"text": "done"}]>>

Turn number i answers the request that has i assistant turns after the message with the
script. Keys of a turn: text; tool + input, or tools; thinking; stop_reason; model_usage;
error (HTTP status) with times, retry_after, type, message, details; hang (seconds before any
byte); slow (seconds between chunks); stall (seconds in mid-stream); drop; sse_error.
Replies are in `fake_model_replies`, one function a protocol.
"""

from __future__ import annotations

import hashlib
import json
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests import fake_model_replies as replies

Json = dict[str, Any]
MAX_HANG_S = 60.0
_DECODER = json.JSONDecoder(strict=False)
_OPENING = "<<fake "
_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


@dataclass
class Seen:
    """One request as it arrived, and what became of it."""

    path: str
    body: Json
    is_authorized: bool
    turn: Json = field(default_factory=dict)
    is_client_gone: bool = False


@dataclass
class FakeModel:
    """A running server: where it listens and what it was asked."""

    port: int
    requests: list[Seen] = field(default_factory=list)
    counts: dict[tuple[str, int], int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    unscripted: Json | None = None
    """The turn for prompts without a script; without it they are echoed."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def bodies(self, path_part: str = "") -> list[Json]:
        """Return the bodies of the requests so far, in order."""
        return [seen.body for seen in self.requests if path_part in seen.path]

    def wait_for_requests(self, number: int, timeout_s: float = 20.0) -> None:
        """Return once *number* requests have arrived."""
        end = time.monotonic() + timeout_s
        while len(self.requests) < number:
            assert time.monotonic() < end, f"{len(self.requests)} of {number} requests"
            time.sleep(0.02)

    def pick(self, messages: list[tuple[str, str]]) -> Json:
        """Return the turn that answers *messages*, which are (role, text) pairs."""
        for place in range(len(messages) - 1, -1, -1):
            role, text = messages[place]
            scripts = _scripts(text) if role == "user" else []
            if scripts:
                turn = sum(1 for later, _ in messages[place + 1 :] if later == "assistant")
                return self._turn(scripts[-1], turn)
        if self.unscripted is not None:
            return self.unscripted
        last = next((text for role, text in reversed(messages) if role == "user"), "")
        return {"text": f"echo: {last.strip()[-200:]}"}

    def _turn(self, script: list[Json], turn: int) -> Json:
        """Return turn number *turn*; errors with `times` fail so often, then are skipped."""
        digest = hashlib.sha256(json.dumps([script, turn]).encode()).hexdigest()
        left = turn
        for place, step in enumerate(script):
            if "times" in step:
                with self.lock:
                    used = self.counts.get((digest, place), 0)
                    self.counts[digest, place] = used + 1
                if used < step["times"]:
                    return step
                continue
            if left == 0:
                return step
            left -= 1
        return script[-1] if "text" in script[-1] else {"text": "(end of script)"}


def _scripts(text: str) -> list[list[Json]]:
    found = []
    start = text.find(_OPENING)
    while start >= 0:
        try:
            value, end = _DECODER.raw_decode(text, start + len(_OPENING))
            found.append(value if isinstance(value, list) else [value])
        except ValueError:
            end = start + len(_OPENING)
            found.append([{"error": 400, "message": "fake model: bad script"}])
        start = text.find(_OPENING, end)
    return found


class Handler(BaseHTTPRequestHandler):
    """Answers one connection; `replies` decides what a protocol looks like."""

    protocol_version = "HTTP/1.1"
    model: FakeModel
    seen: Seen

    def log_message(self, *_: object) -> None:
        """Say nothing: a test's output is its own."""

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        self._note({})
        if "/models" in self.path:
            self.send_json(200, {"data": [], "has_more": False})
        else:
            self.send_json(404, {"error": {"type": "not_found_error", "message": self.path}})

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        try:
            body = json.loads(raw or b"{}")
        except ValueError:
            body = {"raw": raw[:400].decode("utf-8", "replace")}
        self._note(body)
        try:
            self._answer(self.path.partition("?")[0], body)
        except (BrokenPipeError, ConnectionResetError):
            self.seen.is_client_gone = True
            self.close_connection = True

    def _note(self, body: Json) -> None:
        names = ("x-api-key", "authorization", "x-goog-api-key")
        is_authorized = any(self.headers.get(name) for name in names)
        self.seen = Seen(self.path, body, is_authorized)
        with self.model.lock:
            self.model.requests.append(self.seen)

    def _answer(self, path: str, body: Json) -> None:
        if path.endswith("/count_tokens"):
            self.send_json(200, {"input_tokens": replies.tokens(body.get("messages", ""))})
        elif path.endswith("/messages"):
            self._reply(replies.anthropic_messages(body), replies.answer_anthropic, body)
        elif path.endswith("/responses"):
            self._reply(replies.responses_messages(body), replies.answer_responses, body)
        elif path.endswith("/chat/completions"):
            self._reply(replies.chat_messages(body), replies.answer_chat, body)
        elif "enerateContent" in path:
            self._reply(replies.gemini_messages(body), replies.answer_gemini, body)
        else:
            self.send_json(404, {"error": {"type": "not_found_error", "message": path}})

    def _reply(self, messages: list[tuple[str, str]], answer: replies.Answer, body: Json) -> None:
        turn = self.model.pick(messages)
        self.seen.turn = turn
        if "hang" in turn:
            self.nap(turn["hang"])
        if "error" in turn:
            self._send_error(turn)
        else:
            answer(self, turn, body)

    def _send_error(self, turn: Json) -> None:
        status = turn["error"]
        kind = turn.get("type") or _ERROR_TYPES.get(status, "api_error")
        message = turn.get("message") or f"fake {kind}"
        # One body that every protocol's client can read.
        error = {"type": kind, "message": message, "code": status, "status": kind.upper()}
        error |= {"details": turn["details"]} if "details" in turn else {}
        names = {"retry_after": "retry-after", "should_retry": "x-should-retry"}
        headers = {header: str(turn[key]) for key, header in names.items() if key in turn}
        self.send_json(status, {"type": "error", "error": error}, headers)

    def send_json(self, status: int, value: Json, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.send_header("request-id", new_id("req_"))
        for name, text in (headers or {}).items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(data)

    def start_stream(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.send_header("request-id", new_id("req_"))
        self.end_headers()

    def send_event(self, value: Json | str, name: str | None = None) -> None:
        text = value if isinstance(value, str) else json.dumps(value)
        head = f"event: {name}\n" if name else ""
        data = f"{head}data: {text}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def end_stream(self) -> None:
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()

    def drop(self) -> None:
        """Close in mid-stream, without the last chunk."""
        self.close_connection = True

    def nap(self, seconds: float) -> None:
        """Sleep, but end with the client, so that no thread outlives its test."""
        end = time.monotonic() + min(float(seconds), MAX_HANG_S)
        while time.monotonic() < end:
            self.connection.settimeout(min(0.2, max(0.01, end - time.monotonic())))
            try:
                if self.connection.recv(1, socket.MSG_PEEK) == b"":
                    raise BrokenPipeError
                time.sleep(0.05)
            except TimeoutError:
                pass
            finally:
                self.connection.settimeout(None)


def new_id(prefix: str) -> str:
    return prefix + uuid.uuid4().hex[:24]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in mid-request is what some tests are about."""


@contextmanager
def fake_model() -> Iterator[FakeModel]:
    """Serve on a free port of the loopback address until the block ends."""
    model = FakeModel(0)
    handler = type("BoundHandler", (Handler,), {"model": model})
    with _Server(("127.0.0.1", 0), handler) as server:
        model.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield model
        finally:
            server.shutdown()
            thread.join()
