from __future__ import annotations

import pytest

from sequencer.errors import StaleClaim
from sequencer.model import transitions
from sequencer.model.head import Head, Loop
from sequencer.model.line import order as loops
from sequencer.model.outcome import Outcome, OutcomeStatus, Usage
from sequencer.model.transitions import Place
from tests.contract.store_cases import STRANGER, new_head

AT = "2026-01-01T00:00:00Z"
VERIFY = Place(2, "verify", "verify.md")
FIXER = Place(2, "fix", "fix.md", stage="fix")
NO = Outcome(status=OutcomeStatus.FAILED, error="no", usage=Usage(cost_usd=0.5), prompt="verify.md")
YES = Outcome(status=OutcomeStatus.OK, usage=Usage(cost_usd=0.25), prompt="fix.md")


def claimed(head: Head, place: Place) -> Head:
    return transitions.claim(head, place, STRANGER, at=AT, ttl_s=60.0).head


def judged(head: Head, place: Place = FIXER, reason: str = "2 fail") -> Head:
    held = claimed(head, VERIFY)
    return loops.judged_no(held, held.token, NO, place, reason, at=AT, record={}).head


def test_a_lost_claim_judges_nothing() -> None:
    head = new_head(step_index=2)
    with pytest.raises(StaleClaim):
        loops.judged_no(head, 7, NO, FIXER, "no", at=AT, record={})
    with pytest.raises(StaleClaim):
        loops.fixed(head, 7, YES, VERIFY, at=AT, record={})


def test_without_a_fixer_the_step_itself_comes_again() -> None:
    head = judged(new_head(step_index=2), VERIFY)
    assert head.loop == Loop(stage="verify", round=2, reason="2 fail")
    assert loops.round_of(head) == 2
