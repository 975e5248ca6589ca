from __future__ import annotations

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


def test_the_same_result_twice_is_the_same_request(desk: Desk, sink: WebhookSink) -> None:
    sink.post(result())
    sink.post(result(in_doubt=True))
    first, second = desk.wait_for(2)
    assert (first.raw, first.headers["idempotency-key"]) == (
        second.raw,
        second.headers["idempotency-key"],
    )
