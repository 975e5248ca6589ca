from __future__ import annotations

import pytest

from sequencer.errors import EditRefused, TransitionRefused
from sequencer.model import by_hand as decisions
from sequencer.model import transitions
from sequencer.model.head import Gate, Head, Status
from sequencer.model.line import gates
from sequencer.model.outcome import Outcome, OutcomeStatus
from sequencer.model.transitions import Place, Transition
from tests.contract.store_cases import STRANGER, new_head

AT = "2026-01-01T00:00:00Z"
ASK, FIX, END = Place(1, "ask", "ask.md"), Place(2, "fix", "fix.md"), Place(2, "", "", is_end=True)
FIRST = Place(0, "reproduce", "reproduce.md")
OPEN = Gate(step="ask", step_index=1, token=3, opened_at=AT)


def at_gate(gate: Gate = OPEN, following: Place = FIX, **update: object) -> Head:
    held = transitions.claim(new_head(step_index=1, token=2), ASK, STRANGER, at=AT, ttl_s=60.0).head
    accepted = transitions.succeed(
        held, 3, Outcome(status=OutcomeStatus.OK), following, at=AT, record={}, gate=gate
    )
    return accepted.head.replace(**update)


def events(transition: Transition) -> list[str]:
    return [str(fact.event) for fact in transition.facts]


def test_approval_behind_the_last_step_completes_the_run() -> None:
    head = at_gate(following=END)
    assert head.status is Status.WAITING_APPROVAL
    approved = gates.approve(head, END, None, at=AT, by="ann")
    assert approved.head.status is Status.COMPLETE
    assert events(approved) == ["approved", "completed"]
    assert not approved.head.was_rejected


def test_rejection_ends_the_run_and_says_so() -> None:
    rejected = gates.reject(at_gate(), "works as designed", at=AT, by="ann")
    assert rejected.head.status is Status.COMPLETE
    assert rejected.head.was_rejected
    assert rejected.head.exit_reason == "rejected at 'ask': works as designed"
    assert events(rejected) == ["rejected", "completed"]
    with pytest.raises(TransitionRefused, match="complete"):
        transitions.ensure_claimable(rejected.head)


@pytest.mark.parametrize("text", ["", "  \n", "x" * (gates.MAX_FEEDBACK_CHARS + 1)])
def test_feedback_that_no_prompt_can_use_is_refused(text: str) -> None:
    with pytest.raises(TransitionRefused, match="feedback"):
        gates.feedback(at_gate(), text, FIRST, at=AT, by="ann")


def test_nothing_is_decided_twice() -> None:
    approved = gates.approve(at_gate(), FIX, None, at=AT, by="ann").head
    rejected = gates.reject(at_gate(), None, at=AT, by="ann").head
    told = gates.feedback(at_gate(), "again", FIRST, at=AT, by="ann").head
    with pytest.raises(TransitionRefused, match="no gate waits"):
        gates.approve(approved, FIX, None, at=AT, by="bob")
    with pytest.raises(TransitionRefused, match=r"rejected at 'ask' already"):
        gates.approve(rejected, FIX, None, at=AT, by="bob")
    with pytest.raises(TransitionRefused, match="feedback was given"):
        gates.reject(told, None, at=AT, by="bob")
    with pytest.raises(TransitionRefused, match="no gate waits"):
        gates.feedback(new_head(), "x", FIRST, at=AT, by="bob")


def test_what_was_read_is_what_is_decided() -> None:
    later = at_gate(OPEN.replace(token=9, step="other"))
    asks = "'other' asks now"
    with pytest.raises(TransitionRefused, match=asks):
        gates.approve(later, FIX, None, at=AT, by="ann", token=3)
    with pytest.raises(TransitionRefused, match=asks):
        gates.reject(later, None, at=AT, by="ann", token=3)
    with pytest.raises(TransitionRefused, match=asks):
        gates.feedback(later, "x", FIRST, at=AT, by="ann", token=3)
    assert gates.approve(later, FIX, None, at=AT, by="ann", token=9).facts


def test_no_way_by_hand_leads_past_a_gate() -> None:
    head = at_gate()
    with pytest.raises(TransitionRefused, match="waits for a decision"):
        decisions.rewind(head, FIX, at=AT)
    end = at_gate(following=END)
    adopted = decisions.adopt(end, "new", "sha256:0", {}, END, at=AT).head
    assert adopted.status is Status.WAITING_APPROVAL
    edited = decisions.edit_field(head, "step_index", 0, at=AT).head
    assert (edited.gate, edited.status) == (None, Status.WAITING_NEXT)
    with pytest.raises(EditRefused, match="gate changed"):
        decisions.edit_field(head, "step_index", head.step_index + 1, at=AT)


def test_who_decides_about_a_step_by_hand_has_to_decide_about_the_gate_first() -> None:
    head = at_gate()
    waits = "waits for a decision about 'ask'"
    with pytest.raises(TransitionRefused, match=waits):
        decisions.skip(head, FIX, None, at=AT)
    with pytest.raises(TransitionRefused, match=waits):
        decisions.stamp_ok(head, FIX, None, at=AT)
    with pytest.raises(TransitionRefused, match=waits):
        decisions.stamp_fail(head, None, at=AT)


def test_going_back_by_hand_leaves_the_gate() -> None:
    rewound = decisions.rewind(at_gate(), FIRST, at=AT).head
    assert (rewound.gate, rewound.step_index) == (None, 0)
    edited = decisions.edit_field(at_gate(), "step_index", 0, at=AT).head
    assert edited.gate is None
