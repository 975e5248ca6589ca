"""Faults, limits and stops of calls, with the real package and a server that misbehaves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from sequencer.executors.cancellation import Cancellation, StopReason
from sequencer.executors.messages_api import MessagesExecutor
from sequencer.executors.messages_loop import MessagesOptions
from sequencer.executors.process import ProcessCore
from sequencer.executors.protocol import Piece
from sequencer.frozen.fields import ValidationError
from sequencer.model.addresses import may_receive_secrets
from sequencer.model.outcome import Outcome, OutcomeStatus
from tests.contract.executor_cases import Recorder, request_for
from tests.fake_model_server import fake_model
from tests.unit.executors.messages_desk import USAGE, Desk


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with fake_model() as model, ProcessCore() as core:
        made = Desk(model, tmp_path, core)
        yield made
        made.cancellation.close()


@pytest.mark.parametrize(
    "fault",
    [
        {"error": 529},
        {"error": 500},
        {"error": 429, "retry_after": 1},
        {"error": 500, "retry_after": "inf"},
        {"error": 500, "retry_after": "nan"},
        {"text": "half an answer", "drop": True},
        {"text": "half an answer", "sse_error": "overloaded_error"},
        {"text": "half an answer", "stall": 30},
        {"hang": 30, "text": "never"},
    ],
    ids=["529", "500", "429", "inf", "nan", "dropped", "error-event", "stalled", "hung"],
)
def test_a_temporary_fault_is_retried(desk: Desk, fault: dict[str, Any]) -> None:
    entry = {"stall_timeout_s": 0.5}
    script = [{**fault, "times": 1}, {"text": "It is done."}]
    outcome = desk.ask(script, entry=entry, timeout_s=60.0)
    assert (outcome.status, outcome.output) == (OutcomeStatus.OK, "It is done.")
    assert "retrying in 1.0 s, 1 of 4" in desk.heard.text(Piece.NOTICE)
    assert len(desk.model.requests) == 2


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"error": 529}, "HTTP 529 overloaded_error"),
        ({"text": "half an answer", "drop": True}, "broke off"),
        ({"text": "half an answer", "sse_error": "api_error"}, "broke off: api_error"),
        ({"text": "half an answer", "stall": 30}, "silent for too long"),
    ],
    ids=["529", "dropped", "error-event", "stalled"],
)
def test_a_lasting_fault_is_unavailability_after_the_retries(
    desk: Desk, fault: dict[str, Any], said: str
) -> None:
    outcome = desk.ask([fault], entry={"stall_timeout_s": 0.4, "retries": 1})
    assert outcome.status is OutcomeStatus.UNAVAILABLE
    assert outcome.error is not None
    assert said in outcome.error
    assert "2 tries" in outcome.error
    assert len(desk.model.requests) == 2


def test_a_broken_off_answer_is_charged_too(desk: Desk) -> None:
    fault = {"text": "half", "drop": True, "times": 1, "model_usage": {"input_tokens": 500_000}}
    outcome = desk.ask([fault, {"text": "x", "model_usage": {"input_tokens": 500_000}}])
    assert outcome.usage.input_tokens == 1_000_000


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"error": 400, "message": "prompt is too long"}, "prompt is too long"),
        ({"error": 401}, "check the key in ANTHROPIC_API_KEY"),
        ({"error": 403}, "HTTP 403"),
        ({"error": 404, "message": "model: m1"}, "model: m1"),
        ({"error": 529, "should_retry": "false"}, "HTTP 529"),
        ({"text": "half", "sse_error": "invalid_request_error"}, "invalid_request_error"),
    ],
    ids=["400", "401", "403", "404", "told-not-to", "error-event"],
)
def test_a_permanent_error_is_not_retried(desk: Desk, fault: dict[str, Any], said: str) -> None:
    outcome = desk.ask([fault])
    assert outcome.status is OutcomeStatus.FAILED
    assert outcome.error is not None
    assert said in outcome.error
    assert "dummy-key" not in outcome.error
    assert len(desk.model.requests) == 1


@pytest.mark.parametrize(
    ("fault", "entry", "reset", "calls"),
    [
        ({"error": 429, "retry_after": 3600}, {}, "2026-11-21T13:00:00Z", 1),
        (
            {"error": 429, "retry_after": "Sat, 21 Nov 2026 15:00:00 GMT"},
            {},
            "2026-11-21T15:00:00Z",
            1,
        ),
        ({"error": 429, "retry_after": 1}, {"retries": 1}, "2026-11-21T12:00:01Z", 2),
        ({"error": 429}, {"retries": 0, "limit_wait_s": 60}, "2026-11-21T12:01:00Z", 1),
    ],
    ids=["long", "a-date", "tries-spent", "no-header"],
)
def test_a_limit_is_not_a_failure(
    desk: Desk, fault: dict[str, Any], entry: dict[str, Any], reset: str, calls: int
) -> None:
    outcome = desk.ask([fault], entry=entry)
    assert (outcome.status, outcome.not_before) == (OutcomeStatus.LIMITED, reset)
    assert len(desk.model.requests) == calls


def test_a_limit_that_outlasts_the_deadline_is_not_waited_for(desk: Desk) -> None:
    started = time.monotonic()
    outcome = desk.ask([{"error": 429, "retry_after": 30}], timeout_s=5.0)
    assert outcome.status is OutcomeStatus.LIMITED
    assert outcome.not_before == "2026-11-21T12:00:30Z"
    assert time.monotonic() - started < 20, "it waited for what the server asked"


@pytest.mark.parametrize(
    ("status", "pause"),
    [(503, 86_400), (529, 61), (408, 3600), (500, "Sun, 22 Nov 2026 12:00:00 GMT")],
)
def test_an_outage_that_asks_for_a_long_pause_is_unavailability_at_once(
    desk: Desk, status: int, pause: int | str
) -> None:
    outcome = desk.ask([{"error": status, "retry_after": pause}], timeout_s=None)
    assert outcome.status is OutcomeStatus.UNAVAILABLE
    assert outcome.error is not None
    assert "it asks for a pause of" in outcome.error
    assert len(desk.model.requests) == 1


@pytest.mark.parametrize(
    "pause", ["inf", "nan", "-inf", "-5", "1e999", f"Sat, 21 Nov {'9' * 30} 12:00:00 GMT"]
)
def test_a_pause_that_is_no_number_of_seconds_is_ignored(desk: Desk, pause: str) -> None:
    fault = {"error": 503, "retry_after": pause, "times": 1}
    outcome = desk.ask([fault, {"text": "It is done."}], timeout_s=20.0)
    assert outcome.status is OutcomeStatus.OK
    assert "retrying in 1.0 s, 1 of 4" in desk.heard.text(Piece.NOTICE)


def test_a_limit_without_a_valid_end_waits_as_long_as_configured(desk: Desk) -> None:
    fault = {"error": 429, "retry_after": "inf"}
    outcome = desk.ask([fault], entry={"retries": 0, "limit_wait_s": 60})
    assert (outcome.status, outcome.not_before) == (OutcomeStatus.LIMITED, "2026-11-21T12:01:00Z")


SHORTEST_S = 20


@pytest.mark.parametrize(
    "script",
    [
        [{"hang": 30, "text": "never"}],
        [{"text": "word " * 100, "slow": 0.2}],
        [{"tool": "bash", "input": {"command": "sleep 60"}}, {"text": "x"}],
        [{"error": 529}],
    ],
    ids=["before-the-headers", "in-the-stream", "in-a-command", "between-tries"],
)
class TestStops:
    """Deadline and cancellation reach a conversation wherever it is.

    The shortest of them would last `SHORTEST_S` by itself; how busy the machine is decides nothing.
    """

    def test_the_deadline_ends_the_attempt(self, desk: Desk, script: list[dict[str, Any]]) -> None:
        started = time.monotonic()
        outcome = desk.ask(script, entry={"tools": ["bash"]}, timeout_s=1.2)
        assert outcome.error is not None
        if "HTTP 529" in outcome.error:
            assert outcome.status is OutcomeStatus.UNAVAILABLE
        else:
            assert "timed out after 1.2 s" in outcome.error
            assert outcome.status is OutcomeStatus.FAILED
        assert time.monotonic() - started < SHORTEST_S

    def test_a_cancellation_ends_the_attempt(
        self, desk: Desk, script: list[dict[str, Any]]
    ) -> None:
        started = time.monotonic()

        def stop() -> None:
            desk.model.wait_for_requests(1)
            time.sleep(0.3)
            desk.cancellation.set(StopReason.CLAIM_LOST)

        thread = threading.Thread(target=stop)
        thread.start()
        outcome = desk.ask(script, entry={"tools": ["bash"]})
        thread.join()
        assert outcome.status is OutcomeStatus.INTERRUPTED
        assert outcome.error == "stopped: claim-lost"
        assert time.monotonic() - started < SHORTEST_S
        _wait(lambda: not _hears(desk))


def test_a_cancelled_call_is_disconnected_and_charged(desk: Desk) -> None:
    def stop() -> None:
        desk.model.wait_for_requests(1)
        time.sleep(0.5)
        desk.cancellation.set(StopReason.INTERRUPTED)

    thread = threading.Thread(target=stop)
    thread.start()
    outcome = desk.ask([{"text": "word " * 200, "slow": 0.2, "model_usage": USAGE}])
    thread.join()
    assert outcome.status is OutcomeStatus.INTERRUPTED
    assert outcome.usage.input_tokens == 100_000
    _wait(lambda: desk.model.requests[0].is_client_gone)


def test_a_call_ended_by_the_idle_timeout_is_not_retried(desk: Desk) -> None:
    entry = {"stall_timeout_s": 0.2}
    outcome = desk.ask([{"text": "half", "stall": 30}], entry=entry, idle_timeout_s=1.0)
    assert outcome.status is OutcomeStatus.FAILED
    assert outcome.error is not None
    assert "no progress for 1 s" in outcome.error
    assert len(desk.model.requests) == 1


def test_a_port_with_no_listener_is_reported(desk: Desk) -> None:
    outcome = desk.ask([], entry={"base_url": "http://127.0.0.1:9", "retries": 0})
    assert outcome.status is OutcomeStatus.UNAVAILABLE
    assert outcome.error is not None
    assert "can't be reached" in outcome.error


def _hears(desk: Desk) -> bool:
    """Return whether the server is still talking to somebody."""
    seen = desk.model.requests[-1]
    return bool(seen.turn.get("hang") or seen.turn.get("slow")) and not seen.is_client_gone


def _wait(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


# --- the key of the Messages API goes to the address that was named, and nowhere else ---------

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
    assert may_receive_secrets(url) is is_safe


# --- answers of an unexpected form ---------------------------------------------------------------


def test_a_tool_input_that_is_not_valid_json_fails_the_step(desk: Desk) -> None:
    outcome = desk.ask([{"tool": "read", "input": {"path": "a\ud83d"}}])
    assert outcome.status is OutcomeStatus.FAILED
    assert outcome.error is not None
    assert outcome.error.startswith("the API's answer can't be read: ")


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_counts_that_are_none_count_as_nothing(desk: Desk) -> None:
    counts = {"input_tokens": "many", "output_tokens": 2**60, "cache_read_input_tokens": []}
    outcome = desk.ask([{"text": "It is done.", "model_usage": counts}])
    assert (outcome.status, outcome.usage.input_tokens) == (OutcomeStatus.OK, 0)
    assert outcome.usage.output_tokens < 2**53


def test_the_sum_over_all_calls_stops_at_the_largest_count(desk: Desk) -> None:
    counts = {"input_tokens": 2**53 - 1, "output_tokens": 2**53 - 1}
    turn = {"tool": "read", "input": {"path": "x"}, "model_usage": counts}
    usage = desk.ask([turn, turn, {"text": "It is done."}]).usage
    assert (usage.input_tokens, usage.output_tokens) == (2**53 - 1, 2**53 - 1)
