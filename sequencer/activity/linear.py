"""The sink that is a Linear agent session: ``agentActivityCreate`` over GraphQL.

Thoughts and actions are posted as ephemeral activities, which Linear replaces by the next
one. The id of a result is made from its key, so a second try at one that had arrived is
answered with a conflict instead of a second activity. Source of the shapes: Linear's
published schema and its page "Developing the Agent Interaction".
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from typing import Any, ClassVar

from sequencer.activity.markdown import result_text
from sequencer.activity.protocol import Activity, ActivityType, Post, Refused, Unreachable
from sequencer.activity.web import Answer, Web, bounded, judge, number, retry_after_s

URL = "https://api.linear.app/graphql"
MUTATION = (
    "mutation AgentActivityCreate($input: AgentActivityCreateInput!) "
    "{ agentActivityCreate(input: $input) { success } }"
)
_PERSONAL_KEY = "lin_api_"
"""Such a key is sent as it is; the token of an app is a bearer token."""
_RESETS = ("requests", "complexity", "endpoint-requests")
_PASSING = frozenset({"INTERNAL_SERVER_ERROR", "LOCK_TIMEOUT", "SERVICE_UNAVAILABLE"})
_SAID_IN_THE_BODY = frozenset({200, 400})
_CREDENTIALS = frozenset({"AUTHENTICATION_ERROR", "FORBIDDEN"})


def activity_id(key: str) -> str:
    """Return the UUID of the result with *key*: always the same, and of version 4 as Linear asks.

    >>> activity_id("run:3:0") == activity_id("run:3:0"), uuid.UUID(activity_id("run:3:0")).version
    (True, 4)
    """
    return str(uuid.UUID(bytes=hashlib.sha256(key.encode()).digest()[:16], version=4))


class LinearSink:
    """Posts to one agent session."""

    kind: ClassVar[str] = "linear"
    max_chars: ClassVar[int] = 60_000
    takes_thoughts: ClassVar[bool] = True

    def __init__(
        self, name: str, token: str, session_id: str, url: str = URL, web: Web | None = None
    ) -> None:
        """Post to the agent session *session_id* with an app's *token*."""
        self.name = name
        self._url = url
        self._session_id = session_id
        self._authorization = token if token.startswith(_PERSONAL_KEY) else f"Bearer {token}"
        self._web = web or Web()

    def post(self, post: Post) -> None:
        """See `Sink.post`."""
        told: dict[str, Any] = {
            "agentSessionId": self._session_id,
            "content": content_of(post.activity),
        }
        known_id = None if post.key is None else activity_id(post.key)
        if known_id is None:
            told["ephemeral"] = True
        else:
            told["id"] = known_id
        request = {"query": MUTATION, "variables": {"input": told}}
        headers = {
            "Authorization": self._authorization,
            "Content-Type": "application/json",
            "User-Agent": "sequencer",
        }
        answer = self._web.send("POST", self._url, headers, json.dumps(request).encode())
        judge_answer(answer, known_id)

    def close(self) -> None:
        """See `Sink.close`."""
        self._web.close()


def content_of(activity: Activity) -> dict[str, str]:
    """Return the ``content`` of the mutation's input."""
    kind = str(activity.type)
    if activity.type is ActivityType.ACTION:
        content = {"type": kind, "action": activity.action or "tool"}
        # The schema has a parameter for every action.
        content["parameter"] = activity.parameter or ""
        return content if activity.result is None else {**content, "result": activity.result}
    if activity.type is ActivityType.THOUGHT and activity.is_ephemeral:
        return {"type": kind, "body": activity.body}
    return {"type": kind, "body": result_text(activity)}


def judge_answer(answer: Answer, known_id: str | None) -> None:
    """Return if *answer* says that the activity is there, be it since an earlier try.

    Raises:
        Unreachable, Refused: see `Sink.post`. GraphQL reports errors with status 200 too,
            and limits with status 400.
    """
    document = _object(answer.text)
    found = _errors(document)
    codes = {str(_extensions(error).get("code")) for error in found}
    if "RATELIMITED" in codes:
        raise Unreachable("Linear's rate limit is reached", _pause(answer))
    if known_id is not None and any(_is_conflict(error, known_id) for error in found):
        return
    if codes & _CREDENTIALS:
        raise Unreachable(f"Linear refuses the token: {_message(found)}")
    if codes & _PASSING:
        raise Unreachable(f"Linear: {_message(found)}")
    if not found or answer.status not in _SAID_IN_THE_BODY:
        judge(answer)
    if found:
        raise Refused(f"Linear: {_message(found)}", status=answer.status, answer=answer.text)
    created = _object_in(_object_in(document, "data"), "agentActivityCreate")
    if created.get("success") is False:
        raise Refused("Linear: no success", status=answer.status, answer=answer.text)
    if created.get("success") is not True:
        raise Unreachable("the answer is not Linear's")


def _pause(answer: Answer) -> float:
    """Return how long until the limit that is reached is reset; Linear counts in milliseconds."""
    asked = retry_after_s(answer)
    if asked is not None:
        return asked
    resets = []
    for name in _RESETS:
        left = number(answer.headers.get(f"x-ratelimit-{name}-remaining"))
        reset = number(answer.headers.get(f"x-ratelimit-{name}-reset"))
        if reset is not None and (left is None or left <= 0):
            resets.append(reset / 1000 - time.time())
    return bounded(max(resets, default=60.0))


def _is_conflict(error: dict[str, Any], known_id: str) -> bool:
    is_one = str(error.get("message", "")).lower().startswith("conflict on insert")
    said = f"{error.get('message')} {_extensions(error).get('userPresentableMessage')}"
    return is_one and known_id in said


def _message(errors: list[dict[str, Any]]) -> str:
    texts = [_extensions(e).get("userPresentableMessage") or e.get("message") for e in errors]
    return "; ".join(" ".join(str(text).split())[:200] for text in texts[:3])


def _extensions(error: dict[str, Any]) -> dict[str, Any]:
    return _object_in(error, "extensions")


def _object_in(fields: dict[str, Any], name: str) -> dict[str, Any]:
    found = fields.get(name)
    return found if isinstance(found, dict) else {}


def _errors(document: dict[str, Any]) -> list[dict[str, Any]]:
    errors = document.get("errors")
    return [e for e in errors if isinstance(e, dict)] if isinstance(errors, list) else []


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
