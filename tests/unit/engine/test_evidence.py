"""What the facts of an attempt are worth: `engine.evidence`."""

from __future__ import annotations

import pytest

from sequencer.engine.evidence import judge_turn
from sequencer.model.evidence import Evidence, TurnEnd
from sequencer.model.outcome import Outcome, OutcomeStatus

CUT = TurnEnd.CUT_OFF
UNKNOWN = TurnEnd.UNKNOWN


def judged(evidence: Evidence | None, status: OutcomeStatus = OutcomeStatus.OK) -> Outcome:
    return judge_turn(Outcome(status=status, output="half an answer", evidence=evidence))


@pytest.mark.parametrize(
    ("evidence", "told"),
    [
        (
            Evidence(turn_end=CUT, reason="max_tokens", has_text=True),
            "its client says 'max_tokens'",
        ),
        (Evidence(turn_end=CUT), "its client gives no reason"),
        (Evidence(turn_end=CUT, tool_calls=3, open_calls=1), "1 tool call got no result"),
        (Evidence(turn_end=UNKNOWN, reason="new", has_text=True, open_calls=2), "2 tool calls got"),
        (Evidence(turn_end=UNKNOWN, reason="new"), "its client says 'new'"),
    ],
)
def test_a_turn_that_was_cut_off_fails_and_says_why(evidence: Evidence, told: str) -> None:
    outcome = judged(evidence)
    assert outcome.status is OutcomeStatus.FAILED
    assert told in str(outcome.error)
    assert outcome.output == "half an answer"


@pytest.mark.parametrize(
    "evidence",
    [
        None,
        Evidence(),
        Evidence(reason="end_turn", has_text=True, tool_calls=4),
        Evidence(turn_end=UNKNOWN, reason="new", has_text=True),
    ],
)
def test_a_turn_that_ended_by_itself_counts(evidence: Evidence | None) -> None:
    assert judged(evidence).status is OutcomeStatus.OK


def test_an_attempt_that_has_failed_keeps_its_own_reason() -> None:
    limited = judged(Evidence(turn_end=CUT), OutcomeStatus.LIMITED)
    assert (limited.status, limited.error) == (OutcomeStatus.LIMITED, None)
