"""Decisions at a gate and messages to the steps of a sequence, as pure transitions.

A gate is in the head, not in a process: every process that reads the run sees it, and the first
decision counts. A second one is refused, because the run has continued by then. A message changes
nothing else: it waits until an attempt that has read it is accepted.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from sequencer.errors import TransitionRefused, UnknownName, format_command
from sequencer.model.head import Gate, Head, Status
from sequencer.model.limits import format_utc_ms, is_past
from sequencer.model.sequence.order import find_step_ref, newest_index, position_at
from sequencer.model.step import Step
from sequencer.model.transitions import (
    Event,
    Fact,
    StepRef,
    Transition,
    move_head,
    refresh_status_by_hand,
    update_head,
)
from sequencer.model.workflow import Workflow

MAX_EARLIER = 3
"""Limit for the gates with feedback that another gate keeps, so that the head stays small."""
MAX_WAITING = 20
"""Limit for entries of waiting messages, so that the head stays small."""


def build_gate(
    workflow: Workflow,
    head: Head,
    step: Step,
    step_index: int,
    now: datetime,
    *,
    completes_run: bool = False,
) -> Gate:
    """Return the gate after *step* at *step_index*, whose claim is in *head*."""
    approval = step.approval
    target = approval.feedback_to if approval else None
    index = None if target is None else newest_index(workflow, step_index, target)
    timeout = approval.timeout_s if approval else None
    prior_gates = () if head.gate is None else (head.gate, *head.gate.earlier)
    rounds = (gate.round for gate in prior_gates if gate.step == step.name)
    extra_fields: dict[str, Any] = {"completes_run": True} if completes_run else {}
    new_gate = Gate(
        step=step.name,
        step_index=step_index,
        token=head.token,
        opened_at=format_utc_ms(now),
        round=next(rounds, 0) + 1,
        feedback_to=max(step_index - 1, 0) if index is None else index,
        expires_at=format_utc_ms(now + timedelta(seconds=timeout)) if timeout else None,
        on_timeout=approval.on_timeout if approval else "reject",
        **extra_fields,
    )
    # The run will return to the gates after this one. Those that it has passed won't ask again.
    ahead = [
        gate for gate in prior_gates if gate.decision == "feedback" and gate.step_index > step_index
    ]
    return new_gate.with_earlier(ahead[:MAX_EARLIER]) if ahead else new_gate


def list_feedback_targets(workflow: Workflow) -> list[tuple[Step, tuple[str, ...]]]:
    """Return each step that may open a gate, with the steps that always run before the gate.

    `build_gate` finds each of these. It can't be sure of any other step, so feedback would go to
    the step before the gate instead: before the first review, for example, no review has run.
    """
    names = [step.name for step in workflow.steps]
    gates = [(step, tuple(names[: index + 1])) for index, step in enumerate(workflow.steps)]
    review = workflow.review
    if review is not None:
        # If each cycle is a review, its steps never run.
        earlier_names = () if review.every == 1 else tuple(names)
        gates.append((review.step, (*earlier_names, review.step.name)))
    return gates


def ends_early(workflow: Workflow, following: StepRef) -> bool:
    """Return whether *following* is the end although *workflow* has a step at its step_index.

    Only a kind from a package ends a run there. The gate has to store that, because an approval
    reads the workflow's own order.
    """
    return following.is_end and not find_step_ref(workflow, following.step_index).is_end


def open_gate(head: Head, verb: str, token: int | None = None) -> Gate:
    """Return the gate at which the run of *head* waits.

    With *token*, it has to be the gate that the attempt with this token opened: the one that the
    person has seen.

    Raises:
        TransitionRefused: it waits at no gate, or the decision was made already.
    """
    gate = head.gate
    if token is not None and gate is not None and gate.is_open and gate.token != token:
        raise TransitionRefused(
            f"{verb}: what you saw was decided in the meantime; {gate.step!r} asks now",
            hint="'sequencer inbox' shows the question",
        )
    if gate is None or (head.status is Status.COMPLETE and gate.is_open):
        raise TransitionRefused(
            f"{verb}: no gate waits for a decision", hint="'sequencer inbox' lists what waits"
        )
    if not gate.is_open:
        decision_text = (
            "the run was rejected" if gate.decision == "rejected" else "feedback was given"
        )
        raise TransitionRefused(
            f"{verb}: {decision_text} at {gate.step!r} already; nothing waits",
            hint="'sequencer history' shows who decided what",
        )
    return gate


def _build_fact(event: Event, head: Head, gate: Gate, note: str | None, author: str) -> Fact:
    outcome: dict[str, Any] = {"by": author, "round": gate.round}
    if note:
        outcome["note"] = note
    return Fact(event, gate.step, gate.step_index, gate.token, head.attempt, outcome)


def continue_command(head: Head) -> str:
    """Return the command that makes the run of *head* continue."""
    return format_command(head.run_name, "resume" if head.is_on_hold else "run")


def ensure_in_time(head: Head, verb: str, at: datetime) -> None:
    """Check that there is still time to decide at the gate of *head*.

    Raises:
        TransitionRefused: its time is up.
    """
    gate = head.gate
    if gate is not None and gate.is_open and is_past(gate.expires_at, at):
        raise TransitionRefused(
            f"{verb}: the time to decide about {gate.step!r} ended at {gate.expires_at}",
            hint=f"{continue_command(head)} records the decision for that case: {gate.on_timeout}",
        )


def approve(
    head: Head, following: StepRef, note: str | None, *, at: str, by: str, token: int | None = None
) -> Transition:
    """Let the run continue after the gate, at *following*.

    It is complete if that is the end, or if the step that asks has said so. Otherwise, the next
    gate that got feedback and has yet to ask again takes the place of this one.

    Raises:
        TransitionRefused: see `open_gate`.
    """
    gate = open_gate(head, "approve", token)
    fact = _build_fact(Event.APPROVED, head, gate, note, by)
    new_head = update_head(head, at, gate=None, expected_step=following.step)
    if following.is_end or gate.completes_run:
        complete_head = new_head.replace(status=Status.COMPLETE, pause_requested=False)
        end = Fact(Event.COMPLETED, gate.step, gate.step_index, gate.token)
        return Transition(complete_head, (fact, end))
    if gate.earlier:
        new_head = new_head.replace(gate=gate.earlier[0].with_earlier(gate.earlier[1:]))
    return Transition(refresh_status_by_hand(head, new_head), (fact,))


def reject(
    head: Head, note: str | None, *, at: str, by: str, token: int | None = None
) -> Transition:
    """End the run at the gate; it is complete, and recorded as rejected.

    Raises:
        TransitionRefused: see `open_gate`.
    """
    gate = open_gate(head, "reject", token)
    reason = f"rejected at {gate.step!r}" + (f": {note}" if note else "")
    new_head = update_head(
        head,
        at,
        gate=gate.replace(decision="rejected"),
        status=Status.COMPLETE,
        pause_requested=False,
        exit_reason=reason[:500],
    )
    fact = _build_fact(Event.REJECTED, head, gate, note, by)
    end = Fact(Event.COMPLETED, gate.step, gate.step_index, gate.token, 0, {"status": "rejected"})
    return Transition(new_head, (fact, end))


def send_feedback(
    head: Head, text: str, target: StepRef, *, at: str, by: str, token: int | None = None
) -> Transition:
    """Send the run back to *target*, whose step gets *text*; later, the gate opens again.

    Raises:
        TransitionRefused: see `open_gate`.
    """
    gate = open_gate(head, "feedback", token)
    answered = head.replace(gate=gate.replace(decision="feedback"))
    new_head = move_head(answered, at, target)
    return Transition(
        refresh_status_by_hand(head, new_head), (_build_fact(Event.FEEDBACK, head, gate, text, by),)
    )


def tell(
    head: Head, workflow: Workflow, name: str | None, text: str, *, at: str, by: str
) -> Transition:
    """Send *text* to the next attempt at the step or position *name*; None: at any step.

    Raises:
        TransitionRefused: no step would read it, or too many messages wait.
        UnknownName: the workflow has no such step.
    """
    if head.status is Status.COMPLETE:
        raise TransitionRefused(
            "tell: the run is complete, so no step would read it",
            hint="'sequencer rewind N' goes back to a step, 'sequencer reset' starts over",
        )
    known_names = _remaining_steps(workflow, 0)
    if name is not None and name not in known_names:
        raise UnknownName("step", name, known_names, where="sequencer tell")
    if name is not None and name not in _remaining_steps(workflow, head.step_index):
        raise TransitionRefused(
            f"tell: step {name!r} is done, so it would not read it",
            hint="leave the name out; then the next step reads it",
        )
    messages = dict.fromkeys((*head.waiting_messages, (name or "", head.token)))
    if len(messages) > MAX_WAITING:
        raise TransitionRefused(
            f"tell: {MAX_WAITING} messages wait already",
            hint="after 'sequencer run', their steps have read them",
        )
    record = {"by": by, "to": name, "note": text}
    step = name or head.expected_step
    fact = Fact(Event.TOLD, step, head.step_index, head.token, head.attempt, record)
    return Transition(update_head(head, at).with_messages(messages), (fact,))


def find_read_messages(
    head: Head, workflow: Workflow, ref: StepRef, token: int
) -> tuple[tuple[str, int], ...]:
    """Return the waiting messages of *head* that the attempt with *token* at *ref* has read.

    It also reads messages to steps that don't run again.
    """
    names = ("", ref.step, position_at(workflow, ref.step_index))
    remaining_names = _remaining_steps(workflow, ref.step_index)
    return tuple(
        (recipient, sent_at)
        for recipient, sent_at in head.waiting_messages
        if sent_at < token and (recipient in names or recipient not in remaining_names)
    )


def _remaining_steps(workflow: Workflow, step_index: int) -> set[str]:
    """Return the names of the steps that run from *step_index* on, including fixers."""
    steps = workflow.steps[step_index if workflow.has_end else 0 :]
    return {step.name for step in workflow.replace(steps=steps).every_step}
