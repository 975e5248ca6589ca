"""What a line makes of decisions that no recorded run has made."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from sequencer.errors import EditRefused, StaleClaim, TransitionRefused, UsageRefused
from sequencer.model import command_rules as decisions
from sequencer.model import edits, transitions
from sequencer.model.commands import Accept, RunCommand, Skip
from sequencer.model.head import Gate, Head, Loop, Owner, Status
from sequencer.model.kind import Capacity, CommandContext, ReadinessKind
from sequencer.model.limits import RunLimits
from sequencer.model.outcome import Outcome, OutcomeStatus, Usage
from sequencer.model.sequence import gates
from sequencer.model.sequence import order as loops
from sequencer.model.sequence.order import describe, find_step_ref, resolve
from sequencer.model.sequence.sequence_kind import SequenceKind
from sequencer.model.step import Step
from sequencer.model.transitions import Event, StepRef, Transition
from sequencer.model.workflow import Review, Workflow
from tests.contract.store_cases import HEAD_LIMIT, STRANGER, new_head

CHECK = Step.model_validate({"name": "check", "validation": {"fixer": {"name": "fix"}}})
LINE = SequenceKind(Workflow("w", (CHECK, Step(name="end")), kind="procedure"))
NOW = datetime(2026, 1, 2, tzinfo=UTC)
RUN = LINE.create_head("r", at=NOW)


@pytest.mark.parametrize(("command", "event"), [(Skip(), Event.SKIPPED), (Accept(), Event.STAMPED)])
def test_the_judge_runs_again_after_a_fixer_was_passed_by_hand(
    command: RunCommand, event: Event
) -> None:
    head = RUN.replace(loop=Loop(stage="fix", round=2), expected_step="fix")
    made = LINE.apply(head, command, CommandContext(at=NOW, by="me"))
    assert made.facts[0].event is event
    assert (made.head.step_index, made.head.expected_step) == (0, "check")


@pytest.mark.parametrize("command", [Skip(), Accept()])
@pytest.mark.parametrize(
    ("gate", "why"),
    [(None, "the run is complete"), ("end", "is waiting for a decision about 'end'")],
)
def test_a_step_after_the_last_one_is_not_passed_by_hand(
    command: RunCommand, gate: str | None, why: str
) -> None:
    head = RUN.replace(step_index=2, expected_step="", status=Status.COMPLETE)
    if gate is not None:
        asks = Gate(step=gate, step_index=1, token=1, opened_at="2026-01-01T00:00:00Z")
        head = head.replace(status=Status.WAITING_APPROVAL, gate=asks)
    with pytest.raises(TransitionRefused, match=why):
        LINE.apply(head, command, CommandContext(at=NOW, by="me"))


@pytest.mark.parametrize("command", [Skip(), Accept()])
def test_the_judge_does_not_wait_for_the_retry_of_a_fixer_that_was_passed(
    command: RunCommand,
) -> None:
    date = "2026-01-02T01:00:00Z"
    head = RUN.replace(
        loop=Loop(stage="fix", round=2, exhausted=1, reason="it leaks"),
        expected_step="fix",
        status=Status.FAILED,
        failures_in_row=1,
        not_before=date,
        not_before_reason="retry",
        not_before_since=date,
    )
    after = LINE.apply(head, command, CommandContext(at=NOW, by="me")).head
    assert LINE.check_readiness(after, RunLimits(), at=NOW).kind is ReadinessKind.READY
    assert (after.not_before_reason, after.not_before_since) == (None, None)
    assert after.loop == Loop(stage="verify", round=3, exhausted=1, reason="it leaks")


def test_a_fixer_of_a_complete_run_cannot_be_passed() -> None:
    head = RUN.replace(loop=Loop(stage="fix", round=1), status=Status.COMPLETE)
    with pytest.raises(TransitionRefused, match="the run is complete"):
        LINE.apply(head, Skip(), CommandContext(at=NOW, by="me"))


@pytest.mark.parametrize(
    ("expires", "on_timeout", "status"),
    [
        ("2026-01-01T23:59:59Z", "approve", Status.IDLE),
        ("2026-01-01T23:59:59Z", "reject", Status.COMPLETE),
        ("2026-01-02T00:00:01Z", "reject", None),
        (None, "reject", None),
    ],
)
def test_a_gate_expires_when_its_time_is_over(
    expires: str | None, on_timeout: str, status: Status | None
) -> None:
    gate = Gate.model_validate(
        {
            "step": "check",
            "step_index": 0,
            "token": 1,
            "opened_at": "2026-01-01T00:00:00Z",
            "expires_at": expires,
            "on_timeout": on_timeout,
        }
    )
    made = LINE.expire_waits(RUN.replace(gate=gate), at=NOW)
    assert (None if made is None else made.head.status) == status


def test_an_attempt_that_vanished_is_not_counted_as_a_failure() -> None:
    owner = Owner(host="h", boot_id="b", pid_ns="n", pid=1, pid_start=1, nonce="x")
    change = LINE.open(RUN, at=NOW)
    change.settle(Capacity(owner, 60, None, slots=1))
    begun = LINE.close(change).head
    made = LINE.expire(begun, begun.token, "its machine is gone", at=NOW)
    assert (made.head.claims, made.head.failures_in_row, made.head.attempt) == ((), 0, 1)
    assert made.facts[0].outcome == {"reason": "its machine is gone"}


AT = "2026-01-01T00:00:00Z"
VERIFY = StepRef(2, "verify", "verify.md")
FIXER = StepRef(2, "fix", "fix.md", stage="fix")
NO = Outcome(status=OutcomeStatus.FAILED, error="no", usage=Usage(cost_usd=0.5), prompt="verify.md")
YES = Outcome(status=OutcomeStatus.OK, usage=Usage(cost_usd=0.25), prompt="fix.md")


def claimed(head: Head, place: StepRef) -> Head:
    return transitions.claim(head, place, STRANGER, at=AT, ttl_s=60.0).head


def judged(head: Head, place: StepRef = FIXER, reason: str = "2 fail") -> Head:
    held = claimed(head, VERIFY)
    return loops.record_judgment(
        held, held.token, Event.INVALID, NO, place, reason=reason, at=AT, record={}
    ).head


def test_a_lost_claim_cannot_record_a_judgment() -> None:
    head = new_head(step_index=2)
    with pytest.raises(StaleClaim):
        loops.record_judgment(head, 7, Event.INVALID, NO, FIXER, reason="no", at=AT, record={})
    with pytest.raises(StaleClaim):
        loops.record_judgment(head, 7, Event.FIXED, YES, VERIFY, reason="no", at=AT, record={})


def test_without_a_fixer_the_step_itself_runs_again() -> None:
    head = judged(new_head(step_index=2), VERIFY)
    assert head.loop == Loop(stage="verify", round=2, reason="2 fail")
    assert loops.current_round(head) == 2
    assert head.usage.steps == 0


def test_a_fix_is_a_step_and_the_judge_comes_again() -> None:
    head = claimed(judged(new_head(step_index=2)), FIXER)
    made = loops.record_judgment(
        head, head.token, Event.FIXED, YES, VERIFY, reason="2 fail", at=AT, record={}
    ).head
    assert (made.usage.steps, made.step_index, made.expected_step) == (1, 2, "verify")
    assert made.loop == Loop(stage="verify", round=2, reason="2 fail")


PLAN, BUILD, CHECK = Step(name="plan"), Step(name="build", prompt="b.md"), Step(name="check")
REVIEWED = Workflow("demo", (PLAN, BUILD), Review(every=2, step=CHECK))
ONCE = Workflow("once", (PLAN, BUILD), kind="procedure")


@pytest.mark.parametrize("index", [2, 3, 10**15])
def test_a_procedure_has_no_step_after_its_last(index: int) -> None:
    with pytest.raises(UsageRefused, match="procedure 'once' has 2 steps") as refused:
        resolve(ONCE, index)
    assert refused.value.hint == "its step_index goes from 0 to 1"
    with pytest.raises(UsageRefused):
        describe(ONCE, index)


def test_a_negative_step_index_is_refused() -> None:
    with pytest.raises(ValueError, match="-1"):
        resolve(REVIEWED, -1)
    with pytest.raises(ValueError, match="-1"):
        find_step_ref(ONCE, -1)


ASK, FIX, END = (
    StepRef(1, "ask", "ask.md"),
    StepRef(2, "fix", "fix.md"),
    StepRef(2, "", "", is_end=True),
)
FIRST = StepRef(0, "reproduce", "reproduce.md")
OPEN = Gate(step="ask", step_index=1, token=3, opened_at=AT)


def at_gate(gate: Gate = OPEN, following: StepRef = FIX, **update: object) -> Head:
    held = transitions.claim(new_head(step_index=1, token=2), ASK, STRANGER, at=AT, ttl_s=60.0).head
    accepted = transitions.succeed(
        held, 3, Outcome(status=OutcomeStatus.OK), following, at=AT, record={}, gate=gate
    )
    return accepted.head.replace(**update)


def events(transition: Transition) -> list[str]:
    return [str(fact.event) for fact in transition.facts]


def test_approval_after_the_last_step_completes_the_run() -> None:
    head = at_gate(following=END)
    assert head.status is Status.WAITING_APPROVAL
    approved = gates.approve(head, END, None, at=AT, by="ann")
    assert approved.head.status is Status.COMPLETE
    assert events(approved) == ["approved", "completed"]
    assert not approved.head.was_rejected


def test_rejection_ends_the_run_and_records_the_reason() -> None:
    rejected = gates.reject(at_gate(), "works as designed", at=AT, by="ann")
    assert rejected.head.status is Status.COMPLETE
    assert rejected.head.was_rejected
    assert rejected.head.exit_reason == "rejected at 'ask': works as designed"
    assert events(rejected) == ["rejected", "completed"]
    with pytest.raises(TransitionRefused, match="complete"):
        transitions.ensure_claimable(rejected.head)


def test_nothing_is_decided_twice() -> None:
    approved = gates.approve(at_gate(), FIX, None, at=AT, by="ann").head
    rejected = gates.reject(at_gate(), None, at=AT, by="ann").head
    told = gates.send_feedback(at_gate(), "again", FIRST, at=AT, by="ann").head
    with pytest.raises(TransitionRefused, match="no gate waits"):
        gates.approve(approved, FIX, None, at=AT, by="bob")
    with pytest.raises(TransitionRefused, match=r"rejected at 'ask' already"):
        gates.approve(rejected, FIX, None, at=AT, by="bob")
    with pytest.raises(TransitionRefused, match="feedback was given"):
        gates.reject(told, None, at=AT, by="bob")
    with pytest.raises(TransitionRefused, match="no gate waits"):
        gates.send_feedback(new_head(), "x", FIRST, at=AT, by="bob")


def test_a_decision_about_an_older_gate_is_refused() -> None:
    later = at_gate(OPEN.replace(token=9, step="other"))
    asks = "'other' asks now"
    with pytest.raises(TransitionRefused, match=asks):
        gates.approve(later, FIX, None, at=AT, by="ann", token=3)
    with pytest.raises(TransitionRefused, match=asks):
        gates.reject(later, None, at=AT, by="ann", token=3)
    with pytest.raises(TransitionRefused, match=asks):
        gates.send_feedback(later, "x", FIRST, at=AT, by="ann", token=3)
    assert gates.approve(later, FIX, None, at=AT, by="ann", token=9).facts


def test_no_command_or_edit_leads_past_a_gate() -> None:
    head = at_gate()
    with pytest.raises(TransitionRefused, match="is waiting for a decision"):
        decisions.rewind(head, FIX, at=AT)
    end = at_gate(following=END)
    adopted = decisions.adopt(end, "new", "sha256:0", {}, END, at=AT).head
    assert adopted.status is Status.WAITING_APPROVAL
    edited = edits.edit_field(head, "step_index", 0, at=AT).head
    assert (edited.gate, edited.status) == (None, Status.WAITING_NEXT)
    with pytest.raises(EditRefused, match="gate changed"):
        edits.edit_field(head, "step_index", head.step_index + 1, at=AT)


def test_a_gate_has_to_be_decided_before_a_step_is_decided_by_hand() -> None:
    head = at_gate()
    waits = "is waiting for a decision about 'ask'"
    with pytest.raises(TransitionRefused, match=waits):
        decisions.skip(head, FIX, None, at=AT)
    with pytest.raises(TransitionRefused, match=waits):
        decisions.stamp_ok(head, FIX, None, at=AT)
    with pytest.raises(TransitionRefused, match=waits):
        decisions.stamp_fail(head, None, at=AT)


def test_going_back_by_hand_leaves_the_gate() -> None:
    rewound = decisions.rewind(at_gate(), FIRST, at=AT).head
    assert (rewound.gate, rewound.step_index) == (None, 0)
    edited = edits.edit_field(at_gate(), "step_index", 0, at=AT).head
    assert edited.gate is None


def fed_back(step: str, index: int, *earlier: Gate) -> Gate:
    answered = OPEN.replace(step=step, step_index=index, decision="feedback")
    return answered.with_earlier(earlier)


MANY = Workflow("many", tuple(Step(name=name) for name in "abcdefgh"), kind="procedure")


@pytest.mark.parametrize(
    ("prior", "index", "kept", "number"),
    [
        (None, 0, [], 1),
        (fed_back("c", 2), 0, ["c"], 1),
        (fed_back("c", 2), 2, [], 2),
        (fed_back("c", 2), 3, [], 1),
        (fed_back("b", 1, fed_back("c", 2)), 0, ["b", "c"], 1),
        (fed_back("b", 1, fed_back("c", 2)), 1, ["c"], 2),
        (fed_back("b", 1, fed_back("c", 2)), 2, [], 2),
        (fed_back("b", 1, *(fed_back(name, 2) for name in "cdefgh")), 0, ["b", "c", "d"], 1),
    ],
)
def test_a_gate_keeps_the_gates_with_feedback_that_the_run_has_yet_to_reach(
    prior: Gate | None, index: int, kept: list[str], number: int
) -> None:
    head = RUN.replace(gate=prior, token=9)
    gate = gates.build_gate(MANY, head, MANY.steps[index], index, NOW)
    assert ([one.step for one in gate.earlier], gate.round) == (kept, number)
    stored = Head.model_validate_json(RUN.replace(gate=gate).model_dump_json())
    assert stored.gate == gate
    assert ("earlier" in gate.model_dump()) == bool(kept)


def test_a_head_with_as_many_gates_as_it_keeps_stays_small() -> None:
    long = [fed_back("n" * 100, 1000 + index).replace(expires_at=AT) for index in range(20)]
    head = RUN.replace(gate=long[0].with_earlier(long))
    gate = gates.build_gate(MANY, head, MANY.steps[0], 0, NOW)
    assert len(head.replace(gate=gate).model_dump_json()) < HEAD_LIMIT


def test_what_is_no_gate_is_not_brought_back() -> None:
    damaged = Gate.model_validate({**OPEN.model_dump(), "earlier": [1, {"step": 2}, None]})
    assert gates.approve(at_gate(damaged), FIX, None, at=AT, by="ann").head.gate is None
