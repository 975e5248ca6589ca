"""What people decide at a gate, as pure transitions.

A gate is in the head, not in a process: whoever looks at the run sees it, and the first
decision counts. A second one is refused, because the run has gone on by then.
"""

from __future__ import annotations

from typing import Any

from sequencer.errors import TransitionRefused
from sequencer.model.head import Gate, Head, Status
from sequencer.model.transitions import (
    Event,
    Fact,
    Place,
    Transition,
    at_rest_by_hand,
    changed,
    moved,
)

MAX_FEEDBACK_CHARS = 20_000
"""Of one feedback; it stands in the journal and in the prompt."""


def open_gate(head: Head, verb: str, token: int | None = None) -> Gate:
    """Return the gate at which the run of *head* waits.

    With *token* it has to be the gate that was opened by that attempt: the one that somebody
    has read before deciding.

    Raises:
        TransitionRefused: it waits at none, or the decision was made already.
    """
    gate = head.gate
    if token is not None and gate is not None and gate.is_open and gate.token != token:
        raise TransitionRefused(
            f"{verb}: what you saw was decided meanwhile; {gate.step!r} asks now",
            hint="'sequencer gates' shows the question",
        )
    if gate is None or (head.status is Status.COMPLETE and gate.is_open):
        raise TransitionRefused(
            f"{verb}: no gate waits for a decision", hint="'sequencer gates' lists what waits"
        )
    if not gate.is_open:
        said = "the run was rejected" if gate.decision == "rejected" else "feedback was given"
        raise TransitionRefused(
            f"{verb}: {said} at {gate.step!r} already; nothing waits",
            hint="'sequencer history' shows who decided what",
        )
    return gate


def _fact(event: Event, head: Head, gate: Gate, note: str | None, by: str) -> Fact:
    outcome: dict[str, Any] = {"by": by, "round": gate.round}
    if note:
        outcome["note"] = note
    return Fact(event, gate.step, gate.step_index, gate.token, head.attempt, outcome)


def approve(
    head: Head, following: Place, note: str | None, *, at: str, by: str, token: int | None = None
) -> Transition:
    """Let the run go on behind the gate, to *following*; at the end it is complete.

    Raises:
        TransitionRefused: see `open_gate`.
    """
    gate = open_gate(head, "approve", token)
    fact = _fact(Event.APPROVED, head, gate, note, by)
    new = changed(head, at, gate=None, expected_step=following.step)
    if following.is_end:
        done = new.replace(status=Status.COMPLETE, pause_requested=False)
        end = Fact(Event.COMPLETED, gate.step, gate.step_index, gate.token)
        return Transition(done, (fact, end))
    return Transition(at_rest_by_hand(head, new), (fact,))


def reject(
    head: Head, note: str | None, *, at: str, by: str, token: int | None = None
) -> Transition:
    """End the run at the gate; it is complete, and recorded as rejected.

    Raises:
        TransitionRefused: see `open_gate`.
    """
    gate = open_gate(head, "reject", token)
    reason = f"rejected at {gate.step!r}" + (f": {note}" if note else "")
    new = changed(
        head,
        at,
        gate=gate.replace(decision="rejected"),
        status=Status.COMPLETE,
        pause_requested=False,
        exit_reason=reason[:500],
    )
    fact = _fact(Event.REJECTED, head, gate, note, by)
    end = Fact(Event.COMPLETED, gate.step, gate.step_index, gate.token, 0, {"status": "rejected"})
    return Transition(new, (fact, end))


def feedback(
    head: Head, text: str, place: Place, *, at: str, by: str, token: int | None = None
) -> Transition:
    """Send the run back to *place*, whose step is told *text*; the gate comes again.

    Raises:
        TransitionRefused: see `open_gate`; or the text is empty or too long for a prompt.
    """
    gate = open_gate(head, "feedback", token)
    if not text.strip():
        raise TransitionRefused("feedback: the text is empty", hint="say what is to change")
    if len(text) > MAX_FEEDBACK_CHARS:
        raise TransitionRefused(
            f"feedback: {len(text)} characters are too many, {MAX_FEEDBACK_CHARS} are allowed",
            hint="write it to a file in the project, and name the file",
        )
    told = head.replace(gate=gate.replace(decision="feedback"))
    new = moved(told, at, place)
    return Transition(at_rest_by_hand(head, new), (_fact(Event.FEEDBACK, head, gate, text, by),))
