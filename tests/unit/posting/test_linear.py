from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from sequencer.history.results import QUESTION
from sequencer.plugins.posting.protocol import Post, Refused, Unreachable
from sequencer.plugins.posting.trackers import MUTATION, LinearSink, activity_id
from tests.unit.posting.desk import Desk, Reply, open_desk
from tests.unit.posting.posts import action, error, question, result, thought

CREATED = {"data": {"agentActivityCreate": {"success": True}}}


@pytest.fixture(name="desk")
def fixture_desk() -> Iterator[Desk]:
    with open_desk(Reply(200, CREATED)) as desk:
        yield desk


@pytest.fixture(name="sink")
def fixture_sink(desk: Desk) -> Iterator[LinearSink]:
    sink = LinearSink("linear", "lin_oauth_1", "session-1", f"{desk.url}/graphql")
    yield sink
    sink.close()


def failing(code: str, message: str, **extensions: Any) -> dict[str, Any]:
    return {
        "errors": [{"message": message, "extensions": {"code": code, **extensions}}],
        "data": None,
    }


def test_a_result_is_sent_as_a_mutation(desk: Desk, sink: LinearSink) -> None:
    sink.post(result())
    (seen,) = desk.wait_for(1)
    assert (seen.method, seen.path) == ("POST", "/graphql")
    assert seen.headers["authorization"] == "Bearer lin_oauth_1"
    assert seen.headers["content-type"] == "application/json"
    assert seen.body == {
        "query": MUTATION,
        "variables": {
            "input": {
                "agentSessionId": "session-1",
                "id": activity_id("run-1:3:0"),
                "content": {"type": "response", "body": "**main** succeeded\n\nall green"},
            }
        },
    }
    assert MUTATION.startswith("mutation AgentActivityCreate($input: AgentActivityCreateInput!)")


@pytest.mark.parametrize(
    ("post", "content"),
    [
        (thought("why"), {"type": "thought", "body": "why"}),
        (action(), {"type": "action", "action": "Bash", "parameter": "make", "result": "ok"}),
        (error(), {"type": "error", "body": "**main** failed\n\nit broke"}),
        (
            question(),
            {
                "type": "elicitation",
                "body": f"**main** asks for approval\n\nReproduced.\n\n{QUESTION}",
            },
        ),
    ],
)
def test_each_activity_type_has_its_content(
    desk: Desk, sink: LinearSink, post: Post, content: dict[str, str]
) -> None:
    sink.post(post)
    told = desk.wait_for(1)[0].body["variables"]["input"]
    assert told["content"] == content
    is_ephemeral = content["type"] in ("thought", "action")
    assert told.get("ephemeral", False) is is_ephemeral
    assert ("id" in told) is not is_ephemeral


def test_a_personal_key_is_sent_as_it_is(desk: Desk) -> None:
    sink = LinearSink("linear", "lin_api_2", "s", desk.url)
    sink.post(result())
    sink.close()
    assert desk.wait_for(1)[0].headers["authorization"] == "lin_api_2"


@pytest.mark.parametrize("status", [200, 400])
def test_an_activity_that_already_exists_is_a_success(
    desk: Desk, sink: LinearSink, status: int
) -> None:
    known = activity_id("run-1:3:0")
    said = f"Entity AgentActivity with id {known} already exists."
    body = failing(
        "INPUT_ERROR", "conflict on insert of AgentActivity", userPresentableMessage=said
    )
    desk.answers.append(Reply(status, body))
    sink.post(result(in_doubt=True))


@pytest.mark.parametrize("status", [200, 400, 429])
def test_a_rate_limit_is_an_outage_with_a_wait(desk: Desk, sink: LinearSink, status: int) -> None:
    reset = str(int((time.time() + 90) * 1000))
    headers = {
        "X-RateLimit-Requests-Remaining": "0",
        "X-RateLimit-Requests-Reset": reset,
        "X-RateLimit-Complexity-Remaining": "1000",
        "X-RateLimit-Complexity-Reset": str(int((time.time() + 3000) * 1000)),
    }
    desk.answers.append(Reply(status, failing("RATELIMITED", "slow down"), headers))
    with pytest.raises(Unreachable) as outage:
        sink.post(result())
    assert outage.value.retry_after_s is not None
    assert 80 < outage.value.retry_after_s <= 90


@pytest.mark.parametrize(
    ("headers", "pause"),
    [
        ({}, 60.0),
        ({"Retry-After": "5"}, 5.0),
        ({"X-RateLimit-Requests-Reset": "1"}, 0.0),
        ({"X-RateLimit-Requests-Reset": "9e99"}, 300.0),
        ({"X-RateLimit-Requests-Reset": "soon"}, 60.0),
    ],
)
def test_a_rate_limit_sets_the_pause(
    desk: Desk, sink: LinearSink, headers: dict[str, str], pause: float
) -> None:
    desk.answers.append(Reply(400, failing("RATELIMITED", "slow down"), headers))
    with pytest.raises(Unreachable) as outage:
        sink.post(result())
    assert outage.value.retry_after_s == pause


@pytest.mark.parametrize(
    "reply",
    [
        Reply(200, failing("AUTHENTICATION_ERROR", "not authenticated")),
        Reply(400, failing("AUTHENTICATION_ERROR", "not authenticated")),
        Reply(200, failing("FORBIDDEN", "no scope")),
        Reply(200, failing("INTERNAL_SERVER_ERROR", "oops")),
        Reply(500, failing("OTHER", "oops")),
        Reply(401, failing("OTHER", "who")),
        Reply(503, "<html>"),
        Reply(200, "<html>a portal</html>"),
        Reply(200, "[" * 5000),
        Reply(200, "null"),
        Reply(200, {"data": None}),
        Reply(200, {"data": {"agentActivityCreate": "yes"}}),
        Reply(302, headers={"Location": "http://127.0.0.1:1"}),
        Reply(drops=True),
    ],
)
def test_a_temporary_error_is_an_outage(desk: Desk, sink: LinearSink, reply: Reply) -> None:
    desk.answers.append(reply)
    with pytest.raises(Unreachable):
        sink.post(result())


@pytest.mark.parametrize(
    "reply",
    [
        Reply(200, failing("INVALID_INPUT", "Argument Validation Error")),
        Reply(400, failing("GRAPHQL_VALIDATION_FAILED", "Unknown type")),
        Reply(200, {"errors": [{"message": "no extensions"}]}),
        Reply(200, {"errors": [{"message": "m", "extensions": 7}]}),
        Reply(200, {"data": {"agentActivityCreate": {"success": False}}}),
        Reply(400, "nonsense"),
    ],
)
def test_an_error_with_status_200_is_an_error(desk: Desk, sink: LinearSink, reply: Reply) -> None:
    desk.answers.append(reply)
    with pytest.raises(Refused):
        sink.post(result())
