"""Transitions of a run that moves to another store: closed in the old one, opened in the new one.

The closed head stays as a copy to read. The only change that it still accepts is the note that
the run has arrived.
"""

from __future__ import annotations

from typing import Any

from sequencer.errors import TransitionRefused
from sequencer.model.head import MOVED, Head, Work
from sequencer.model.transitions import Event, Transition, build_fact, claim_held_error, update_head


def ensure_here(head: Head) -> None:
    """Check that *head* is not the closed copy of a run that was moved.

    Raises:
        TransitionRefused: it is one; the message names where the run is now.
    """
    if head.moved_to is not None:
        raise TransitionRefused(
            f"the run was moved to {head.moved_to}, and this is a closed copy of it",
            hint="'store:' in orchestration.yaml names the place of runs; 'sequencer sync "
            "--to' there brings it back",
        )


def close_run(head: Head, where: str, *, at: str) -> Transition:
    """Close the run of *head*, which will continue at *where*.

    Raises:
        ClaimHeld: a process works on it.
        TransitionRefused: it was moved already.
    """
    ensure_here(head)
    for claim in head.claims:
        raise claim_held_error(claim)
    record = {"where": where, "exit": head.exit, "exit_reason": head.exit_reason}
    new_head = update_head(
        _with_move_record(head, record), at, exit=True, exit_reason=f"moved to {where}"
    )
    return Transition(new_head, (build_fact(Event.EDITED, head, f"moved to {where}"),))


def confirm_arrival(head: Head, *, at: str) -> Transition | None:
    """Note in the closed *head* that its run has arrived; None: it says so already."""
    if has_arrived(head):
        return None
    new_head = update_head(
        _with_move_record(head, {**head.model_extra[MOVED], "arrived": True}), at
    )
    return Transition(new_head, (build_fact(Event.EDITED, head, "arrived there"),))


def has_arrived(head: Head) -> bool:
    """Return whether the run of the closed *head* is known to have arrived elsewhere."""
    return bool(head.model_extra[MOVED].get("arrived"))


def reopen_run(head: Head, note: str, work: Work | None, *, at: str) -> Transition:
    """Open the run of the closed *head* as if it had never been closed, with *work* as its code."""
    record = head.model_extra[MOVED]
    fields = {
        "exit": bool(record.get("exit")),
        "exit_reason": record.get("exit_reason"),
        "work": work,
    }
    new_head = update_head(_with_move_record(head, None), at, **fields)
    return Transition(new_head, (build_fact(Event.EDITED, head, note),))


def _with_move_record(head: Head, record: dict[str, Any] | None) -> Head:
    data = {**head.model_dump(), MOVED: record}
    if record is None:
        del data[MOVED]
    return Head.model_validate(data)
