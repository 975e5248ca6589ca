"""What an edit of state.json by hand must not do, because an agent can make it too.

An agent may write to the file of its run. What a person decides there is decided by a
command instead, which is refused inside of an agent.
"""

from __future__ import annotations

from typing import Any

from sequencer.errors import EditRefused
from sequencer.model.head import Head, Status
from sequencer.model.transitions import at_rest, resting_status

_OF_THE_DEFINITION = ("workflow_name", "workflow_digest", "params", "has_definition")
_BEHIND_A_STATUS = ("status", "step_index", "failures_in_row", "pause_requested")
_HELD = {
    Status.WAITING_APPROVAL: "approve', 'reject' or 'feedback",
    Status.PAUSED: "resume",
    Status.COMPLETE: "rewind' or 'reset",
}
"""Status that is held -> who lets the run continue."""
_BRINGS_ABOUT = {
    Status.IDLE: "reset' starts a new run",
    Status.RUNNING: "run' runs the step",
    Status.WAITING_NEXT: "retry' forgets failures, 'takeover --force' drops a claim",
    Status.WAITING_APPROVAL: "pause' holds the run; 'requires_approval' of a step asks a person",
    Status.FAILED: "stamp fail' marks the step as failed",
    Status.COMPLETE: "stop' ends the run when the step that runs has ended",
}
"""Status that can't be stated -> which command leads to it, or to what was meant."""


def ensure_nothing_decided(head: Head, edited: Head, *, by_command: bool) -> None:
    """Return if *edited* opens no gate of *head*, lowers no counter and changes no definition.

    *by_command*: a person has typed `set`, which may lower the counters of failures.

    Raises:
        EditRefused: it does; the command that decides is named.
    """
    _ensure_still_held(head, edited)
    for name in _OF_THE_DEFINITION:
        if getattr(edited, name) != getattr(head, name):
            _refuse_decision(name, "changed", "adopt")
    if edited.loop != head.loop:
        _refuse_decision("loop", "changed", "skip' or 'stamp ok")
    if edited.work != head.work:
        raise EditRefused(
            "an edit by hand is refused: work changed",
            hint="undo it; 'sequencer sync' shows which code the run is at",
        )
    if not by_command:
        _ensure_not_released(head, edited)
    _ensure_nothing_unused(head, edited)


def _ensure_still_held(head: Head, edited: Head) -> None:
    """Refuse a way past a gate, or out of a status in which a person holds the run."""
    # Back is no way past it: the step that asks runs again, and asks.
    is_past = head.is_at_gate and edited.step_index > head.step_index
    if edited.gate != head.gate or is_past:
        _refuse_decision("gate", "changed", _HELD[Status.WAITING_APPROVAL])
    # A gate that is gone leaves a status behind that means nothing.
    means_nothing = head.status is Status.WAITING_APPROVAL and not head.is_at_gate
    if edited.status != head.status and head.status in _HELD and not means_nothing:
        change = f"went from {head.status} to {edited.status}"
        _refuse_decision("status", change, _HELD[head.status])
    if edited.step_index != head.step_index and head.status is Status.COMPLETE:
        _refuse_decision("step_index", "changed in a complete run", _HELD[Status.COMPLETE])


def settled(head: Head, edited: Head, new: Head, *, is_end: bool) -> Head:
    """Return *new*, which *edited* makes of *head*, with the status that its fields give it.

    A pause and an end can be stated, where a step runs a pause asked for; anything else is
    what has happened, and an edit that says otherwise would be believed by whoever reads the
    file. *is_end*: no step is left.

    Raises:
        EditRefused: *edited* states a status that its other fields contradict.
    """
    if new.claims and edited.status is Status.PAUSED:
        # As `pause` does: the step that runs is not lost for it.
        return new.replace(status=Status.RUNNING, pause_requested=True)
    follows = Status.RUNNING if new.claims else resting_status(new)
    if edited.status not in (head.status, follows):
        can_end = not new.claims and not new.is_at_gate
        can_be = {Status.PAUSED: True, Status.COMPLETE: can_end}
        if not can_be.get(edited.status, False):
            raise EditRefused(
                f"an edit by hand is refused: status went from {head.status} to "
                f"{edited.status}, and the run is {follows} by its other fields",
                hint=f"undo it; 'sequencer {_BRINGS_ABOUT[edited.status]}",
            )
    if is_end or new.status is Status.COMPLETE:
        return new.replace(status=Status.COMPLETE, pause_requested=False)
    if new.status is Status.PAUSED:
        return new.replace(pause_requested=False)
    is_other = any(getattr(new, name) != getattr(head, name) for name in _BEHIND_A_STATUS)
    return at_rest(new) if is_other else new


def _ensure_not_released(head: Head, edited: Head) -> None:
    for name in ("exit", "pause_requested"):
        if getattr(head, name) and not getattr(edited, name):
            _refuse_decision(name, "went from true to false", "resume")
    # Of another step the attempts are counted from 0.
    is_moved = edited.step_index != head.step_index
    for name in ("failures_in_row",) if is_moved else ("failures_in_row", "attempt"):
        if getattr(edited, name) < getattr(head, name):
            change = f"went back from {getattr(head, name)} to {getattr(edited, name)}"
            _refuse_decision(name, change, "retry")


def _ensure_nothing_unused(head: Head, edited: Head) -> None:
    used, told = head.usage.model_dump(), edited.usage.model_dump()
    for name, amount in used.items():
        if _is_lower(told.get(name), amount):
            raise EditRefused(
                f"an edit by hand is refused: usage.{name} went back from {amount} "
                f"to {told.get(name)}",
                hint="undo it; 'sequencer reset' begins a new run, which has used nothing",
            )


def _is_lower(now: Any, before: Any) -> bool:
    return isinstance(before, (int, float)) and not (
        isinstance(now, (int, float)) and now >= before
    )


def _refuse_decision(field: str, change: str, verbs: str) -> None:
    raise EditRefused(
        f"an edit by hand is refused: {field} {change}, which is a decision",
        hint=f"undo it; 'sequencer {verbs}' decides",
    )
