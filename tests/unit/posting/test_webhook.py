from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator

import pytest

from sequencer.posting.web import WebhookSink
from tests.unit.posting.desk import Desk, Reply, open_desk
from tests.unit.posting.posts import result


@pytest.fixture(name="desk")
def fixture_desk() -> Iterator[Desk]:
    with open_desk(Reply(204)) as desk:
        yield desk


@pytest.fixture(name="sink")
def fixture_sink(desk: Desk) -> Iterator[WebhookSink]:
    sink = WebhookSink("hook", f"{desk.url}/in?team=a", {"X-Mine": "yes"}, "s3cret")
    yield sink
    sink.close()


def test_a_result(desk: Desk, sink: WebhookSink) -> None:
    sink.post(result(3, body="grün"))
    (seen,) = desk.wait_for(1)
    assert (seen.method, seen.path) == ("POST", "/in?team=a")
    assert seen.headers["content-type"] == "application/json; charset=utf-8"
    assert seen.headers["idempotency-key"] == "run-1:3:0"
    assert seen.headers["x-mine"] == "yes"
    assert seen.body == result(3, body="grün").document()
    assert seen.body["key"] == "run-1:3:0"
    assert seen.body["body"] == "grün"


def test_the_signature_is_that_of_the_body(desk: Desk, sink: WebhookSink) -> None:
    sink.post(result())
    (seen,) = desk.wait_for(1)
    digest = hmac.new(b"s3cret", seen.raw, hashlib.sha256).hexdigest()
    assert seen.headers["x-sequencer-signature"] == f"sha256={digest}"
    assert b"s3cret" not in seen.raw


def test_the_same_result_twice_is_the_same_request(desk: Desk, sink: WebhookSink) -> None:
    sink.post(result())
    sink.post(result(in_doubt=True))
    first, second = desk.wait_for(2)
    assert (first.raw, first.headers["idempotency-key"]) == (
        second.raw,
        second.headers["idempotency-key"],
    )
