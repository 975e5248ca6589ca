from __future__ import annotations

from typing import Any

import pytest

from sequencer.errors import ClaimHeld, StaleClaim, TransitionRefused, WaitsForPerson
from sequencer.model import transitions
from sequencer.model.head import Head, Session, Status
from sequencer.model.outcome import Outcome, OutcomeStatus, Usage
from sequencer.model.transitions import Place, Transition
from tests.contract.store_cases import STRANGER, make_claim, new_head

AT = "2026-01-01T00:00:00Z"
HERE = Place(0, "supervisor", "supervisor.md")
NEXT = Place(1, "main", "main.md")
END = Place(1, "", "", is_end=True)


def claim(head: Head, place: Place = HERE, **options: Any) -> Transition:
    return transitions.claim(head, place, STRANGER, at=AT, ttl_s=60.0, **options)


def succeed(head: Head, token: int, following: Place = NEXT, **options: Any) -> Transition:
    outcome = options.pop("outcome", Outcome(status=OutcomeStatus.OK))
    return transitions.succeed(
        head, token, outcome, following, at=AT, record={"status": "ok"}, **options
    )


def fail(head: Head, token: int, **options: Any) -> Transition:
    outcome = Outcome(status=OutcomeStatus.FAILED, usage=Usage(cost_usd=0.5, seconds=2))
    return transitions.fail(head, token, outcome, at=AT, record={}, **options)


def events(transition: Transition) -> list[str]:
    return [str(fact.event) for fact in transition.facts]


def test_a_claim_grants_the_next_token_and_counts_the_attempt() -> None:
    waits = {"not_before": "2020-01-01", "not_before_reason": "retry", "not_before_since": AT}
    head = new_head(token=4, attempt=1, **waits)
    transition = claim(head)
    new = transition.head
    assert (new.token, new.attempt, new.status, new.last_prompt) == (5, 2, "running", HERE.prompt)
    assert (new.not_before, new.not_before_reason, new.not_before_since) == (None, None, None)
    assert new.claims[0].token == 5
    assert events(transition) == ["claimed"]
    assert head.claims == ()


def test_a_claim_of_somebody_is_left_alone_unless_it_may_be_taken() -> None:
    held = claim(new_head()).head
    with pytest.raises(ClaimHeld, match=r"process 1 on far.*token 1"):
        claim(held)
    taken = claim(held, may_take_over=True)
    assert events(taken) == ["taken-over", "claimed"]
    assert [c.token for c in taken.head.claims] == [2]
    assert [(f.token, f.attempt) for f in taken.facts] == [(1, 1), (2, 2)]
    with pytest.raises(StaleClaim):
        succeed(taken.head, 1)


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
def test_what_stands_in_the_way_of_a_claim(
    update: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        claim(new_head(**update))


def test_success_moves_on_and_clears_what_was_counted() -> None:
    held = claim(new_head(failures_in_row=2, attempt=2)).head
    usage = Usage(cost_usd=0.25, input_tokens=10, output_tokens=3, seconds=1.5, steps=7)
    outcome = Outcome(status=OutcomeStatus.OK, usage=usage, session_id="s1", prompt="other.md")
    transition = succeed(held, 1, outcome=outcome, executor="claude")
    new = transition.head
    assert (new.step_index, new.iteration, new.expected_step) == (1, 2, "main")
    assert (new.status, new.failures_in_row, new.attempt, new.claims) == ("waiting-next", 0, 0, ())
    assert new.usage == Usage(steps=1, cost_usd=0.25, input_tokens=10, output_tokens=3, seconds=1.5)
    assert new.session == Session(executor="claude", id="s1")
    assert new.last_prompt == "other.md"
    assert (new.token, transition.facts[0].step_index) == (1, 0)


@pytest.mark.parametrize(
    ("following", "status"), [(END, OutcomeStatus.OK), (NEXT, OutcomeStatus.COMPLETE)]
)
def test_the_end_of_a_procedure_or_the_agents_word_completes_the_run(
    following: Place, status: OutcomeStatus
) -> None:
    held = claim(new_head(pause_requested=False)).head
    held = held.replace(pause_requested=True)
    transition = succeed(held, 1, following, outcome=Outcome(status=status))
    assert transition.head.status == "complete"
    assert not transition.head.pause_requested
    assert events(transition) == ["succeeded", "completed"]


def test_failure_stays_and_counts() -> None:
    held = claim(new_head(failures_in_row=1)).head
    new = fail(held, 1, not_before="2026-01-02T00:00:00Z").head
    assert (new.step_index, new.failures_in_row, new.status) == (0, 2, "failed")
    assert (new.attempt, new.token) == (1, 1)
    assert (new.usage.cost_usd, new.usage.steps) == (0.5, 0)
    assert (new.not_before, new.not_before_reason) == ("2026-01-02T00:00:00Z", "retry")
    assert new.not_before_since == AT
    assert fail(held, 1).head.not_before_reason is None
    assert fail(held, 1).head.not_before_since is None


def test_release_is_as_if_nothing_had_been() -> None:
    for before in (new_head(), new_head(failures_in_row=1, status=Status.FAILED)):
        held = claim(before).head
        new = transitions.release(held, 1, at=AT, usage=Usage(seconds=3, steps=1)).head
        assert (new.status, new.failures_in_row) == (before.status, before.failures_in_row)
        assert (new.usage.seconds, new.usage.steps) == (3, 0)
        assert new.attempt == 1


@pytest.mark.parametrize("token", [0, 2, 3])
def test_every_other_token_is_stale(token: int) -> None:
    held = claim(new_head()).head
    with pytest.raises(StaleClaim, match=f"token {token} is stale"):
        succeed(held, token)
    with pytest.raises(StaleClaim):
        fail(held, token)
    with pytest.raises(StaleClaim):
        transitions.release(held, token, at=AT)


def test_claims_of_other_steps_stand() -> None:
    other = make_claim(9, step_index=5)
    head = new_head(token=9, claims=(other,))
    held = claim(head).head
    assert [c.token for c in held.claims] == [9, 10]
    assert succeed(held, 10).head.status == "running"
    assert succeed(held, 10).head.claims == (other,)
