from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from sequencer.model.head import Head, Loop
from sequencer.model.kind import AttemptResult
from sequencer.model.outcome import Decision, Move, Outcome, OutcomeStatus, Usage, Verdict
from sequencer.model.sequence.gates import build_gate
from sequencer.model.sequence.order import find_fixer_ref, find_step_ref, step_at
from sequencer.model.sequence.sequence_kind import (
    MAX_ROUNDS,
    ContinuationKind,
    SequenceKind,
    decide_continuation,
)
from sequencer.model.step import Step
from sequencer.model.transitions import StepRef
from sequencer.model.workflow import Review, Workflow
from tests.contract.store_cases import new_head

STEPS = [
    {"name": "plan"},
    {"name": "ask", "requires_approval": True},
    {"name": "build"},
    {"name": "verify", "validation": {"max_attempts": 2, "fixer": {"name": "fix"}}},
    {"name": "tell"},
]
PROCEDURE = Workflow("demo", [Step.model_validate(step) for step in STEPS], kind="procedure")
CYCLE = Workflow("round", [Step(name=name) for name in ("plan", "build", "check")])
OK, FAILED = Outcome(status=OutcomeStatus.OK), Outcome(status=OutcomeStatus.FAILED, error="broke")
NO, YES = Verdict(False, "2 fail", "json"), Verdict(True, "", "json")  # noqa: FBT003
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def made_of(here: StepRef, outcome: Outcome = OK, **made: Any) -> AttemptResult:
    return AttemptResult(outcome, step_at(PROCEDURE, here), here, "canned", **made)


def ending(here: StepRef, outcome: Outcome = OK, head: Head | None = None, **made: Any) -> Any:
    return decide_continuation(
        SequenceKind(PROCEDURE), head or new_head(), made_of(here, outcome, **made), 20
    )


def at(index: int) -> StepRef:
    return find_step_ref(PROCEDURE, index)


def fixer() -> StepRef:
    found = find_fixer_ref(PROCEDURE, 3)
    assert found is not None
    return found


def test_a_no_repeats_the_loop_until_the_rounds_are_used_up() -> None:
    assert ending(at(3), FAILED, verdict=NO).kind is ContinuationKind.NO
    assert ending(at(3), verdict=YES).following == at(4)
    last = new_head(loop=Loop(stage="verify", round=2))
    exhausted = ending(at(3), FAILED, last, verdict=NO)
    assert exhausted.kind is ContinuationKind.FAIL
    assert exhausted.error == "it said no 2 times: 2 fail"


@pytest.mark.parametrize(
    ("decision", "kind", "index", "flags"),
    [
        (Decision(Move.NEXT), ContinuationKind.ACCEPT, 1, (False, False)),
        (Decision(Move.SKIP), ContinuationKind.ACCEPT, 2, (False, False)),
        (Decision(Move.GOTO, "verify"), ContinuationKind.ACCEPT, 3, (False, False)),
        (Decision(Move.GOTO, "plan"), ContinuationKind.ACCEPT, 0, (False, False)),
        (Decision(Move.GATE), ContinuationKind.ACCEPT, 1, (True, False)),
        (Decision(Move.COMPLETE), ContinuationKind.ACCEPT, 1, (False, True)),
        (Decision(Move.RETRY), ContinuationKind.AGAIN, None, (False, False)),
        (Decision(Move.FAIL, reason="too slow"), ContinuationKind.FAIL, None, (False, False)),
    ],
)
@pytest.mark.parametrize("outcome", [OK, FAILED])
def test_a_hook_decides_whatever_the_outcome(
    decision: Decision,
    kind: ContinuationKind,
    index: int | None,
    flags: tuple[bool, bool],
    outcome: Outcome,
) -> None:
    ended = ending(at(0), outcome, decision=decision)
    assert ended.kind is kind
    assert (ended.has_gate, ended.is_done) == flags
    if index is not None:
        assert ended.following == at(index)
    if kind is ContinuationKind.FAIL:
        assert ended.error == "a hook made it fail: too slow"


def test_a_hook_that_skips_what_follows_the_last_step_completes_the_run() -> None:
    ended = ending(at(4), decision=Decision(Move.SKIP))
    assert ended.following is not None
    assert (ended.following.step_index, ended.following.is_end) == (5, True)


def test_a_hook_cannot_retry_or_go_back_endlessly() -> None:
    tried = new_head(attempt=20)
    assert ending(at(0), head=tried, decision=Decision(Move.RETRY)).kind is ContinuationKind.FAIL
    long = new_head(usage=Usage(steps=MAX_ROUNDS * len(STEPS)))
    back = ending(at(2), head=long, decision=Decision(Move.GOTO, "plan", "again"))
    assert back.error == "a hook sent the run back too often: again"
    assert (
        ending(at(2), head=long, decision=Decision(Move.GOTO, "tell")).kind
        is ContinuationKind.ACCEPT
    )


def test_a_hook_that_names_an_unknown_step_fails_its_own_step() -> None:
    ended = ending(at(0), decision=Decision(Move.GOTO, "nowhere"))
    assert ended.kind is ContinuationKind.FAIL
    assert "known steps: ask, build, plan, tell, verify" in str(ended.error)


def goto(workflow: Workflow, here: int, target: str) -> Any:
    there = find_step_ref(workflow, here)
    decision = Decision(Move.GOTO, target)
    ran = AttemptResult(OK, step_at(workflow, there), there, "canned", decision=decision)
    return decide_continuation(SequenceKind(workflow), new_head(), ran, 20)


def test_goto_in_a_cycle_goes_to_the_next_place_of_the_step() -> None:
    indexes = [goto(CYCLE, 4, name).following.step_index for name in ("plan", "build", "check")]
    assert indexes == [6, 7, 5]


def reviewed(every: int, **approval: Any) -> Workflow:
    """Return plan, build, and a review with a gate in their place in every *every*-th cycle."""
    review = {"name": "reviewer", "requires_approval": True, "approval": approval}
    steps = [Step(name="plan"), Step(name="build")]
    return Workflow("round", steps, Review(every=every, step=Step.model_validate(review)))


@pytest.mark.parametrize(
    ("here", "target", "there"),
    [
        (0, "build", 1),
        (1, "plan", 4),
        (0, "plan", 4),
        (2, "build", 5),
        (3, "plan", 4),
        (4, "plan", 8),
    ],
)
def test_goto_passes_the_reviews_that_are_in_the_way(here: int, target: str, there: int) -> None:
    following = goto(reviewed(2), here, target).following
    assert (following.step, following.step_index) == (target, there)


def test_goto_fails_if_reviews_take_all_places_of_the_step() -> None:
    ended = goto(reviewed(1), 0, "plan")
    assert ended.kind is ContinuationKind.FAIL
    assert ended.error == "a hook sent the run to 'plan', which never runs: every cycle is a review"


@pytest.mark.parametrize(
    ("every", "here", "target", "there"),
    [
        (2, 2, "plan", 0),
        (2, 3, "plan", 0),
        (2, 7, "build", 5),
        (2, 3, "reviewer", 3),
        (3, 4, "plan", 2),
        (1, 1, "plan", 0),
    ],
)
def test_feedback_at_a_review_goes_back_to_where_the_step_has_run(
    every: int, here: int, target: str, there: int
) -> None:
    workflow = reviewed(every, feedback_to=target)
    gate = build_gate(
        workflow, new_head(), step_at(workflow, find_step_ref(workflow, here)), here, NOW
    )
    assert gate.feedback_to == there


def test_feedback_passes_a_review_on_its_way_back() -> None:
    fields = {"requires_approval": True, "approval": {"feedback_to": "build"}}
    step = Step.model_validate({"name": "plan", **fields})
    assert build_gate(reviewed(2), new_head(), step, 4, NOW).feedback_to == 1


def test_a_gate_records_its_feedback_step_and_its_deadline() -> None:
    step = Step.model_validate(
        {
            "name": "ask",
            "requires_approval": True,
            "approval": {"timeout_s": 60, "on_timeout": "approve", "feedback_to": "plan"},
        }
    )
    gate = build_gate(PROCEDURE, new_head(token=7), step, 3, NOW)
    assert (gate.feedback_to, gate.token, gate.round) == (0, 7, 1)
    assert (gate.expires_at, gate.on_timeout) == ("2026-01-01T00:01:00.000Z", "approve")
    plain = build_gate(PROCEDURE, new_head(gate=gate), PROCEDURE.steps[1], 1, NOW)
    assert (plain.feedback_to, plain.round, plain.expires_at) == (0, 2, None)
    first = build_gate(PROCEDURE, new_head(), PROCEDURE.steps[1], 0, NOW)
    assert first.feedback_to == 0
