from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from sequencer.plugins.posting.protocol import Refused, Unreachable
from sequencer.plugins.posting.trackers import GithubSink, format_mark
from tests.unit.posting.desk import Desk, Reply, open_desk
from tests.unit.posting.posts import action, result, thought

MARK = "<!-- sequencer:run-1:3:0 -->"


@pytest.fixture(name="desk")
def fixture_desk() -> Iterator[Desk]:
    with open_desk(Reply(201, {"id": 1})) as desk:
        yield desk


@pytest.fixture(name="sink")
def fixture_sink(desk: Desk) -> Iterator[GithubSink]:
    sink = GithubSink(
        "issue",
        token="ghp_1",  # noqa: S106 - no real one
        repository="octo-org/the.cat",
        issue=12,
        api_url=f"{desk.url}/api/v3/",
    )
    yield sink
    sink.close()


def comments(*bodies: Any) -> Reply:
    return Reply(200, [{"id": number, "body": body} for number, body in enumerate(bodies)])


def test_thoughts_and_actions_are_not_comments(desk: Desk, sink: GithubSink) -> None:
    assert not sink.takes_thoughts
    sink.post(thought())
    sink.post(action())
    assert desk.seen == []


def test_a_mark_written_by_an_agent_does_not_count(desk: Desk, sink: GithubSink) -> None:
    desk.answers.append(comments(f"look: {MARK}\n\n{format_mark('run-1:2:0')}"))
    sink.post(result(in_doubt=True))
    assert [seen.method for seen in desk.wait_for(2)] == ["GET", "POST"]


def test_marks_are_looked_for_on_every_page_of_comments(desk: Desk, sink: GithubSink) -> None:
    desk.answers += [comments(*["x"] * 100), comments("y", MARK)]
    sink.post(result(in_doubt=True))
    assert [parse_qs(urlsplit(s.path).query)["page"] for s in desk.wait_for(2)] == [["1"], ["2"]]
    assert len(desk.seen) == 2


def test_the_search_for_a_mark_is_limited(desk: Desk, sink: GithubSink) -> None:
    desk.answers += [comments(*["x"] * 100)] * 5
    sink.post(result(in_doubt=True))
    assert [seen.method for seen in desk.wait_for(6)] == ["GET"] * 5 + ["POST"]


@pytest.mark.parametrize("reply", [Reply(200, "<html>"), Reply(200, {"no": "list"}), Reply(502)])
def test_nothing_is_posted_before_the_look_succeeds(
    desk: Desk, sink: GithubSink, reply: Reply
) -> None:
    desk.answers.append(reply)
    with pytest.raises(Unreachable):
        sink.post(result(in_doubt=True))
    assert [seen.method for seen in desk.seen] == ["GET"]


@pytest.mark.parametrize("status", [403, 429])
@pytest.mark.parametrize(
    ("headers", "least", "most"),
    [
        ({"Retry-After": "33"}, 33.0, 33.0),
        ({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "in {90}"}, 80.0, 90.0),
        ({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1"}, 0.0, 0.0),
        ({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "soon"}, 60.0, 60.0),
        ({"X-RateLimit-Remaining": "17"}, 60.0, 60.0),
    ],
)
def test_a_rate_limit_is_an_outage_with_a_wait(
    desk: Desk, sink: GithubSink, *, status: int, headers: dict[str, str], least: float, most: float
) -> None:
    reset = str(int(time.time()) + 90)
    sent = {name: value.replace("in {90}", reset) for name, value in headers.items()}
    body = {"message": "You have exceeded a secondary rate limit."}
    desk.answers.append(Reply(status, body, sent))
    with pytest.raises(Unreachable, match="rate limit is reached") as outage:
        sink.post(result())
    assert outage.value.retry_after_s is not None
    assert least <= outage.value.retry_after_s <= most


def test_a_token_without_permission_is_not_a_rate_limit(desk: Desk, sink: GithubSink) -> None:
    body = {"message": "Resource not accessible by personal access token"}
    desk.answers.append(Reply(403, body, {"X-RateLimit-Remaining": "4999"}))
    with pytest.raises(Unreachable, match="HTTP 403"):
        sink.post(result())


@pytest.mark.parametrize("status", [410, 422])
def test_a_comment_that_will_never_be_accepted_is_refused(
    desk: Desk, sink: GithubSink, status: int
) -> None:
    desk.answers.append(Reply(status, {"message": "Validation Failed"}))
    with pytest.raises(Refused) as refusal:
        sink.post(result())
    assert refusal.value.status == status
