from __future__ import annotations

from typing import Any

import pytest

from sequencer.history.facts import read_facts
from sequencer.history.results import ASKED, QUESTION
from sequencer.model.transitions import Event
from sequencer.plugins.posting.protocol import ActivityType
from sequencer.plugins.posting.results import list_activities


def test_a_rehearsed_outcome_is_not_a_result() -> None:
    outcome = {"output": "no agent ran", "usage": {"rehearsed": 1}}
    assert list_activities(*read_facts([fact("succeeded", outcome)])) == []
    assert (
        len(
            list_activities(
                *read_facts([fact("succeeded", {**outcome, "usage": {"seconds": 1.0}})])
            )
        )
        == 1
    )


def fact(event: str, outcome: Any = None) -> dict[str, Any]:
    return {
        "revision": 7,
        "at": "2027-01-31T08:00:00Z",
        "event": event,
        "step": "fix",
        "step_index": 2,
        "token": 9,
        "attempt": 1,
        "outcome": outcome,
    }


@pytest.mark.parametrize(
    ("event", "outcome", "kind", "title", "body"),
    [
        (Event.SUCCEEDED, {"output": "all green"}, "response", "succeeded", "all green"),
        (Event.SUCCEEDED, {"gate": True, "output": "Ship?"}, "elicitation", "asks for", "Ship?"),
        (Event.SUCCEEDED, {"gate": "yes", "output": "x"}, "response", "succeeded", "x"),
        (Event.SUCCEEDED, {}, "response", "succeeded", ""),
        (Event.FAILED, {"error": "it broke"}, "error", "failed", "it broke"),
        (Event.FAILED, {"error": "e", "log": "logs/a.log"}, "error", "failed", "e\n\nStep log: "),
        (Event.FAILED, None, "error", "failed", "no reason was given"),
        (
            Event.INVALID,
            {"reason": "two tests fail", "output": "{}"},
            "response",
            "not pass",
            "two",
        ),
        (Event.FIXED, {"output": "patched"}, "response", "verified again", "patched"),
        (Event.APPROVED, {"by": "ann", "note": "fine"}, "response", "approved by ann", "fine"),
        (Event.REJECTED, {"by": "ann", "note": "no"}, "response", "was rejected by ann", "no"),
        (Event.FEEDBACK, {"note": "more logs"}, "response", "got feedback", "more logs"),
        (Event.COMPLETED, None, "response", "the run is complete", ""),
        (Event.COMPLETED, {"status": "rejected"}, "response", "which was rejected", ""),
        (Event.COMPLETED, {"status": "completed"}, "response", "the run is complete", ""),
        (Event.COMPLETED, {"status": "timed_out"}, "response", "has ended: timed out", ""),
        (Event.ANSWERED, {"by": "ann", "output": "yes"}, "response", "answered by ann", "yes"),
        (Event.ANSWERED, {"output": "yes"}, "response", "was answered", "yes"),
        (Event.EXPIRED, {}, "response", "not answered in time", ""),
        (Event.EXHAUSTED, {"cancelled": ["a", "b"]}, "error", "more often", "Stopped: a, b"),
        (Event.TIMED_OUT, {"cancelled": []}, "error", "longer than it is allowed to", ""),
        (Event.CANCELLED, {"by": "ann", "note": "no"}, "response", "canceled by ann", "no"),
        (Event.GROWN, {"tasks": ["a", "b"]}, "thought", "added tasks: a, b", ""),
        (Event.GROWN, {"tasks": "a"}, "thought", "added tasks", ""),
        (Event.TOLD, {"by": "ann", "output": "tabs!"}, "thought", "message by ann", "tabs!"),
        (Event.TOLD, {}, "thought", "was sent a message", ""),
        (Event.TAKEN_OVER, {"note": "of process 7"}, "thought", "was taken over", "of process 7"),
        (Event.WARNED, {"note": "80 % is used"}, "thought", "warning", "80 % is used"),
    ],
)
def test_a_fact_becomes_an_activity(
    event: Event, outcome: Any, kind: str, title: str, body: str
) -> None:
    (told,) = list_activities(*read_facts([fact(event, outcome)]))
    assert (told.type, told.step, told.step_index, told.attempt) == (kind, "fix", 2, 1)
    assert (told.at, told.event) == ("2027-01-31T08:00:00Z", str(event))
    assert title in told.title
    assert told.body.startswith(body)
    assert bool(told.body) == bool(body)
    assert told.question == (QUESTION if kind == "elicitation" else None)
    assert not told.is_ephemeral


def test_a_question_of_a_node_states_how_to_answer_it() -> None:
    (told,) = list_activities(*read_facts([fact("asked", {"from": ["a"]})]))
    assert (told.type, told.title, told.question) == ("elicitation", "asks for an answer", ASKED)


@pytest.mark.parametrize("outcome", ["text", 7, [], {"output": 7}, {"output_file": ["x"]}])
def test_an_outcome_of_an_unexpected_shape_does_no_harm(outcome: Any) -> None:
    (told,) = list_activities(*read_facts([fact("succeeded", outcome)]))
    assert (told.type, told.body, told.output_file) == (ActivityType.RESPONSE, "", None)
