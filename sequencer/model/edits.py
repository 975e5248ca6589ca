"""What an edit of state.json by hand must not do, because an agent can make it too.

An agent may write to the file of its run. What a person decides there is decided by a
command instead, which is refused inside of an agent.
"""

from __future__ import annotations

from typing import Any

from sequencer.errors import EditRefused
from sequencer.model.head import Head, Status

_OF_THE_DEFINITION = ("workflow_name", "workflow_digest", "params", "has_definition")
_HELD = {
    Status.WAITING_APPROVAL: "approve', 'reject' or 'feedback",
    Status.PAUSED: "resume",
    Status.COMPLETE: "rewind' or 'reset",
}
"""Status that is held -> who lets the run continue."""


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
