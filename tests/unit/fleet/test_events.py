"""What other processes do with a run is told once each, and what this one does is not."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("temporalio", reason="the extra 'fleet' is not installed")

from sequencer.engine.events import AttemptElsewhere
from sequencer.model.head import Claim, Head
from sequencer.plugins.temporal.events import AttemptReporter, EventReader
from sequencer.plugins.temporal.wire import build_run_owner

HEAD = Head.model_validate(
    {
        "run_id": "r-1",
        "workflow_name": "w",
        "workflow_digest": "sha256:0",
        "expected_step": "main",
        "last_update": "2026-01-02T03:04:05Z",
        "revision": 4,
        "token": 2,
    }
)
HERE, THERE = "1@here", "2@there"


def claimed(token: int) -> Head:
    claim = Claim(
        token=token,
        step="main",
        step_index=token - 1,
        attempt=1,
        owner=build_run_owner("r-1"),
        claimed_at="2026-01-02T03:04:05Z",
        ttl_s=60.0,
    )
    return HEAD.replace(claims=(claim,), token=token)


def fact(revision: int, token: int, event: str, **outcome: Any) -> dict[str, Any]:
    place = {"step": "main", "step_index": token - 1, "token": token, "attempt": 1}
    return {"revision": revision, "event": event, **place, "outcome": outcome or None}


def reader(*records: dict[str, Any], **makers: str) -> EventReader:
    made = EventReader()
    made.records += records
    made.makers |= {int(token[1:]): who for token, who in makers.items()}
    return made


def shown(events: list[AttemptElsewhere]) -> list[tuple[int, str, str]]:
    return [
        (one.step_index, one.by, "" if one.outcome is None else str(one.outcome.status))
        for one in events
    ]


def test_an_attempt_is_reported_once_at_its_start_and_once_at_its_end() -> None:
    news, head = AttemptReporter(HEAD, HERE), claimed(3)
    assert shown(list(news.report_starts(head, {3: ""}))) == []
    assert shown(list(news.report_starts(head, {3: THERE}))) == [(2, THERE, "")]
    assert shown(list(news.report_starts(head, {3: THERE}))) == []
    read = reader(fact(5, 3, "claimed"), fact(6, 3, "succeeded", status="ok"), t3=THERE)
    assert shown(list(news.report_ends(read))) == [(2, THERE, "ok")]
    read.records.append(fact(7, 3, "cancelled"))
    assert shown(list(news.report_ends(read))) == []
    assert news.running == {}


def test_an_attempt_that_ended_between_two_looks_is_reported_in_full() -> None:
    read = reader(fact(5, 3, "claimed"), fact(6, 3, "failed", status="failed"), t3=THERE)
    assert shown(list(AttemptReporter(HEAD, HERE).report_ends(read))) == [
        (2, THERE, ""),
        (2, THERE, "failed"),
    ]


def test_own_attempts_and_earlier_ones_are_not_reported() -> None:
    news = AttemptReporter(HEAD, HERE)
    assert shown(list(news.report_starts(claimed(3), {3: HERE}))) == []
    read = reader(
        fact(4, 2, "succeeded", status="ok"),
        fact(6, 3, "succeeded", status="ok"),
        fact(7, 4, "told", note="hello"),
        t2=THERE,
        t3=HERE,
        t4=THERE,
    )
    assert shown(list(news.report_ends(read))) == []


def test_an_attempt_whose_worker_is_dead_has_ended_too() -> None:
    news = AttemptReporter(HEAD, HERE)
    assert list(news.report_starts(claimed(3), {3: THERE}))
    ended = list(news.report_ends(reader(fact(6, 3, "taken-over", note="token 3 of a worker"))))
    assert shown(ended) == [(2, THERE, "interrupted")]


def test_a_follower_keeps_nothing_about_ended_attempts() -> None:
    read = reader(*(fact(number, number, "succeeded") for number in range(5, 9)), t8=THERE, t9=HERE)
    read.outputs["3-4"] = "what a person has said"
    list(AttemptReporter(HEAD, HERE).report_ends(read))
    assert (read.records, read.outputs, read.makers) == ([], {}, {9: HERE})
