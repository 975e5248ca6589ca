"""Activities on their way, for tests of one sink."""

from __future__ import annotations

from typing import Any

from sequencer.history.results import QUESTION
from sequencer.plugins.posting.protocol import Activity, ActivityType, Post

AT = "2027-01-31T08:00:00Z"


def activity(kind: ActivityType, **fields: Any) -> Activity:
    usual = {"at": AT, "step": "main", "step_index": 4, "attempt": 1}
    return Activity(type=kind, **{**usual, **fields})


def result(revision: int = 3, *, in_doubt: bool = False, **fields: Any) -> Post:
    usual = {"event": "succeeded", "title": "succeeded", "body": "all green"}
    told = activity(ActivityType.RESPONSE, **{**usual, **fields})
    return Post(activity=told, run_id="run-1", revision=revision, may_be_there=in_doubt)


def error() -> Post:
    told = activity(ActivityType.ERROR, event="failed", title="failed", body="it broke")
    return Post(activity=told, run_id="run-1", revision=5)


def question() -> Post:
    told = activity(
        ActivityType.ELICITATION,
        event="succeeded",
        title="asks for approval",
        body="Reproduced.",
        question=QUESTION,
    )
    return Post(activity=told, run_id="run-1", revision=6, index=1)


def thought(body: str = "hm") -> Post:
    return Post(activity=activity(ActivityType.THOUGHT, body=body), run_id="run-1")


def action() -> Post:
    told = activity(ActivityType.ACTION, action="Bash", parameter="make", result="ok")
    return Post(activity=told, run_id="run-1")
