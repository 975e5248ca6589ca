from __future__ import annotations

from typing import Any

import pytest

from sequencer.errors import StaleClaim, TransitionRefused, WaitsForPerson
from sequencer.model import transitions
from sequencer.model.head import Head, Status
from sequencer.model.outcome import Outcome, OutcomeStatus, Usage
from sequencer.model.transitions import StepRef, Transition
from tests.contract.store_cases import STRANGER, make_claim, new_head

AT = "2026-01-01T00:00:00Z"
HERE = StepRef(0, "supervisor", "supervisor.md")
NEXT = StepRef(1, "main", "main.md")
END = StepRef(1, "", "", is_end=True)


def claim(head: Head, place: StepRef = HERE, **options: Any) -> Transition:
    return transitions.claim(head, place, STRANGER, at=AT, ttl_s=60.0, **options)


def succeed(head: Head, token: int, following: StepRef = NEXT, **options: Any) -> Transition:
    outcome = options.pop("outcome", Outcome(status=OutcomeStatus.OK))
    return transitions.succeed(
        head, token, outcome, following, at=AT, record={"status": "ok"}, **options
    )


def fail(head: Head, token: int, **options: Any) -> Transition:
    outcome = Outcome(status=OutcomeStatus.FAILED, usage=Usage(cost_usd=0.5, seconds=2))
    return transitions.fail(head, token, outcome, at=AT, record={}, **options)


def events(transition: Transition) -> list[str]:
    return [str(fact.event) for fact in transition.facts]


@pytest.mark.parametrize(
    ("update", "error", "words"),
    [
        ({"status": Status.COMPLETE}, TransitionRefused, "complete"),
        ({"exit": True, "exit_reason": "enough"}, TransitionRefused, "stopped: enough"),
        ({"exit": True}, TransitionRefused, "stopped"),
        ({"status": Status.PAUSED}, TransitionRefused, "paused"),
        ({"pause_requested": True}, TransitionRefused, "paused"),
        ({"status": Status.WAITING_APPROVAL}, WaitsForPerson, "approval"),
    ],
)
def test_a_claim_is_refused_with_its_reason(
    update: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        claim(new_head(**update))


@pytest.mark.parametrize(
    ("following", "status"), [(END, OutcomeStatus.OK), (NEXT, OutcomeStatus.COMPLETE)]
)
def test_the_last_step_or_a_complete_outcome_completes_the_run(
    following: StepRef, status: OutcomeStatus
) -> None:
    held = claim(new_head(pause_requested=False)).head
    held = held.replace(pause_requested=True)
    transition = succeed(held, 1, following, outcome=Outcome(status=status))
    assert transition.head.status == "complete"
    assert not transition.head.pause_requested
    assert events(transition) == ["succeeded", "completed"]


@pytest.mark.parametrize("token", [0, 2, 3])
def test_every_other_token_is_stale(token: int) -> None:
    held = claim(new_head()).head
    with pytest.raises(StaleClaim, match=f"token {token} is stale"):
        succeed(held, token)
    with pytest.raises(StaleClaim):
        fail(held, token)
    with pytest.raises(StaleClaim):
        transitions.release(held, token, at=AT)


def test_claims_of_other_steps_stay() -> None:
    other = make_claim(9, step_index=5)
    head = new_head(token=9, claims=(other,))
    held = claim(head).head
    assert [c.token for c in held.claims] == [9, 10]
    assert succeed(held, 10).head.status == "running"
    assert succeed(held, 10).head.claims == (other,)
