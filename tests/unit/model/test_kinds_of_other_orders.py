"""A kind of a package with an order of its own: skipping goes the same way as accepting."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from sequencer.engine.kinds import make_judge
from sequencer.model.commands import Accept, Approve, RunCommand, Skip
from sequencer.model.head import Head, Status
from sequencer.model.kind import AttemptResult, Capacity, CommandContext, Readiness, ReadinessKind
from sequencer.model.limits import RunLimits
from sequencer.model.outcome import Decision, Move, Outcome, OutcomeStatus
from sequencer.model.sequence.order import find_step_ref
from sequencer.model.sequence.sequence_kind import Continuation, ContinuationKind, SequenceKind
from sequencer.model.step import Step
from sequencer.model.transitions import StepRef
from sequencer.model.workflow import Workflow
from tests.contract.store_cases import make_claim

DECK = Workflow("deck", tuple(Step(name=name) for name in "abcd"), kind="deck")
NOW = datetime(2026, 11, 27, 12, tzinfo=UTC)


class Backwards(SequenceKind):
    """Goes through the steps from the last to the first."""

    def find_following(self, head: Head, step_index: int) -> StepRef:
        del head
        return find_step_ref(self.workflow, step_index + len(self.workflow.steps) - 1)


def _ended(index: int, move: Move) -> AttemptResult:
    """Return the result of an attempt at *index*, where a hook decides *move*."""
    return AttemptResult(
        outcome=Outcome(status=OutcomeStatus.OK),
        step=DECK.steps[index],
        place=find_step_ref(DECK, index),
        agent="tester",
        decision=Decision(move=move, reason="a hook"),
    )


@pytest.mark.parametrize("command", [Accept(note="by hand"), Skip(note="not now")])
@pytest.mark.parametrize(("kind", "then"), [(SequenceKind, "b"), (Backwards, "d")])
def test_a_person_passes_a_step_in_the_order_of_the_kind(
    command: RunCommand, kind: Callable[[Workflow], SequenceKind], then: str
) -> None:
    decides = kind(DECK)
    head = decides.create_head("run-1", at=NOW)
    made = decides.apply(head, command, CommandContext(at=NOW))
    assert made.head.expected_step == then


@pytest.mark.parametrize(
    ("kind", "move", "then"),
    [(SequenceKind, Move.NEXT, "b"), (Backwards, Move.NEXT, "d"), (Backwards, Move.SKIP, "c")],
)
def test_a_hook_continues_in_the_order_of_the_kind(
    kind: Callable[[Workflow], SequenceKind], move: Move, then: str
) -> None:
    decides = kind(DECK)
    head = decides.create_head("run-1", at=NOW)
    following = decides.judge(head, _ended(0, move), 20).ending.following
    assert following.step == then


@pytest.mark.parametrize(("kind", "order"), [(SequenceKind, "abcda"), (Backwards, "adcba")])
def test_a_plan_is_in_the_order_of_the_kind(
    kind: Callable[[Workflow], SequenceKind], order: str
) -> None:
    decides = kind(DECK)
    for head in (None, decides.create_head("run-1", at=NOW)):
        assert "".join(step.step for step in decides.list_upcoming(head, 5)) == order


class Short(SequenceKind):
    """Ends after its second step."""

    def find_following(self, head: Head, step_index: int) -> StepRef:
        del head
        assert step_index < 2
        return StepRef(step_index + 1, "", "", is_end=step_index == 1)


@pytest.mark.parametrize("move", [Move.NEXT, Move.SKIP, Move.COMPLETE])
def test_a_hook_ends_a_run_where_its_kind_ends_it(move: Move) -> None:
    decides = Short(DECK)
    head = decides.create_head("run-1", at=NOW).replace(step_index=1)
    assert decides.judge(head, _ended(1, move), 20).ending.following.is_end


def test_approval_ends_a_run_where_its_kind_ends_it() -> None:
    decides = Short(DECK)
    claim = make_claim(step="b", step_index=1)
    head = decides.create_head("run-1", at=NOW).replace(
        step_index=1, token=claim.token, claims=(claim,)
    )
    asks = DECK.steps[1].replace(requires_approval=True)
    result = AttemptResult(
        outcome=Outcome(status=OutcomeStatus.OK),
        step=asks,
        place=find_step_ref(DECK, 1),
        agent="tester",
        token=claim.token,
    )
    change = decides.open(head, at=NOW)
    decides.apply_result(change, decides.judge(head, result, 20))
    gated = decides.close(change).head
    assert gated.is_at_gate
    assert decides.apply(gated, Approve(), CommandContext(at=NOW)).head.status is Status.COMPLETE


class Lost(SequenceKind):
    """Does not say where the run goes after an accepted step."""

    def judge(self, head: Head, result: AttemptResult, max_attempts: int) -> AttemptResult:
        del head, max_attempts
        return replace(result, ending=Continuation(ContinuationKind.ACCEPT))


def test_a_kind_has_to_say_where_the_run_goes() -> None:
    decides = Lost(DECK)
    head = decides.create_head("run-1", at=NOW)
    with pytest.raises(TypeError, match="did not say where the run goes"):
        make_judge(decides)(head, _ended(0, Move.NEXT), 20)


class Closed(SequenceKind):
    """Never lets a step start."""

    def check_readiness(self, head: Head, limits: RunLimits, *, at: datetime) -> Readiness:
        state = super().check_readiness(head, limits, at=at)
        return replace(state, kind=ReadinessKind.LIMIT, message="closed today")


@pytest.mark.parametrize(("kind", "count"), [(SequenceKind, 1), (Closed, 0)])
def test_a_claim_asks_the_kind_whether_the_step_may_start(
    kind: Callable[[Workflow], SequenceKind], count: int
) -> None:
    decides = kind(DECK)
    change = decides.open(decides.create_head("run-1", at=NOW), at=NOW)
    change.settle(Capacity(owner=make_claim().owner, ttl_s=60.0, boottime=None, slots=1))
    assert len(change.granted) == count
