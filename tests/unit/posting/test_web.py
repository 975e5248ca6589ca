from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from sequencer.plugins.posting.protocol import Refused, Unreachable
from sequencer.plugins.posting.web import (
    MAX_ANSWER_BYTES,
    Answer,
    Web,
    WebhookSink,
    judge,
    retry_after_s,
)
from tests.unit.posting.desk import Desk, Reply, open_desk
from tests.unit.posting.posts import result


def answer(status: int, text: str = "", **headers: str) -> Answer:
    return Answer(status, {name.replace("_", "-"): v for name, v in headers.items()}, text)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed_and_its_target_is_named(status: int) -> None:
    with pytest.raises(Unreachable, match="redirects to https://new"):
        judge(answer(status, location="https://new"))


@pytest.mark.parametrize(
    "status", [401, 403, 404, 405, 407, 408, 425, 429, 500, 501, 502, 503, 504, 529]
)
def test_an_error_that_can_be_fixed_is_an_outage(status: int) -> None:
    with pytest.raises(Unreachable, match=f"HTTP {status}"):
        judge(answer(status))


@pytest.mark.parametrize("status", [400, 402, 406, 409, 410, 411, 413, 414, 415, 422, 431, 451])
def test_a_permanent_error_is_a_refusal(status: int) -> None:
    with pytest.raises(Refused) as refusal:
        judge(answer(status, "too long"))
    assert (refusal.value.status, refusal.value.answer) == (status, "too long")


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("17", 17.0),
        ("0", 0.0),
        ("-5", 0.0),
        ("86400", 300.0),
        ("Thu, 01 Jan 1970 00:17:10 GMT", 30.0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        ("Fri, 01 Jan 2100 00:00:00 GMT", 300.0),
        ("nan", None),
        ("inf", None),
        (f"Thu, 01 Jan {'9' * 30} 00:00:00 GMT", None),
        (f"Thu, 01 Jan 1970 00:00:00 +{'9' * 30}", None),
        ("soon", None),
        ("", None),
    ],
)
def test_the_retry_after_header_is_understood(written: str, seconds: float | None) -> None:
    assert retry_after_s(answer(503, retry_after=written), lambda: 1000.0) == seconds


def test_no_answer_in_time_is_an_outage() -> None:
    with open_desk(Reply(hangs=True)) as desk, pytest.raises(Unreachable, match="no answer within"):
        Web(0.2).send("POST", desk.url, {}, b"")


def test_an_answer_without_end_is_cut() -> None:
    with open_desk(Reply(200, "x" * (MAX_ANSWER_BYTES * 4))) as desk:
        web = Web()
        assert len(web.send("GET", desk.url, {}).text) == MAX_ANSWER_BYTES
        web.close()


def test_a_proxy_that_can_not_be_used_is_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "gopher://127.0.0.1:1")
    with open_desk() as desk:
        web = Web()
        with pytest.raises(Unreachable, match="can't connect"):
            web.send("POST", desk.url, {}, b"")
        monkeypatch.delenv("ALL_PROXY")
        assert web.send("POST", desk.url, {}, b"").status == 200
        web.close()


def test_the_http_library_is_not_loaded_before_a_request() -> None:
    code = (
        "import sys; import sequencer.plugins.posting.poster, sequencer.plugins.posting.sinks;"
        "import sequencer.plugins.posting.trackers;"
        "import sequencer.plugins.posting.web;"
        "print('httpx2' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"


@pytest.fixture(name="desk")
def fixture_desk() -> Iterator[Desk]:
    with open_desk(Reply(204)) as desk:
        yield desk


@pytest.fixture(name="sink")
def fixture_sink(desk: Desk) -> Iterator[WebhookSink]:
    sink = WebhookSink("hook", f"{desk.url}/in?team=a", {"X-Mine": "yes"}, "s3cret")
    yield sink
    sink.close()


def test_the_same_result_twice_is_the_same_request(desk: Desk, sink: WebhookSink) -> None:
    sink.post(result())
    sink.post(result(in_doubt=True))
    first, second = desk.wait_for(2)
    assert (first.raw, first.headers["idempotency-key"]) == (
        second.raw,
        second.headers["idempotency-key"],
    )
