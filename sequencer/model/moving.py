"""A run that goes to another store: closed where it was, and there it continues.

The closed head stays as a copy to look at. Nothing but its arrival elsewhere follows from it.
"""

from __future__ import annotations

from typing import Any

from sequencer.errors import TransitionRefused
from sequencer.model.head import MOVED, Head, Work
from sequencer.model.transitions import Event, Transition, changed, fact_at, held_by


def ensure_here(head: Head) -> None:
    """Return unless *head* is the closed copy of a run that is elsewhere.

    Raises:
        TransitionRefused: it is; where the run is now is named.
    """
    if head.moved_to is not None:
        raise TransitionRefused(
            f"the run was moved to {head.moved_to}, and this is a closed copy of it",
            hint="'store:' in orchestration.yaml names the place of runs; 'sequencer sync "
            "--to' there brings it back",
        )


def closed(head: Head, where: str, *, at: str) -> Transition:
    """Close the run of *head*, which is to continue at *where*.

    Raises:
        ClaimHeld: somebody works on it.
        TransitionRefused: it is elsewhere already.
    """
    ensure_here(head)
    for claim in head.claims:
        raise held_by(claim)
    kept = {"where": where, "exit": head.exit, "exit_reason": head.exit_reason}
    new = changed(_with(head, kept), at, exit=True, exit_reason=f"moved to {where}")
    return Transition(new, (fact_at(Event.EDITED, head, f"moved to {where}"),))


def confirmed(head: Head, *, at: str) -> Transition | None:
    """Note in the closed *head* that its run has arrived; None: that is noted already."""
    if has_arrived(head):
        return None
    new = changed(_with(head, {**head.model_extra[MOVED], "arrived": True}), at)
    return Transition(new, (fact_at(Event.EDITED, head, "arrived there"),))


def has_arrived(head: Head) -> bool:
    """Return whether the run of the closed *head* is known to have arrived elsewhere."""
    return bool(head.model_extra[MOVED].get("arrived"))


def opened(head: Head, note: str, work: Work | None, *, at: str) -> Transition:
    """Continue the run of the closed *head* as if it had never been closed, with this *work*."""
    kept = head.model_extra[MOVED]
    back = {"exit": bool(kept.get("exit")), "exit_reason": kept.get("exit_reason"), "work": work}
    new = changed(_with(head, None), at, **back)
    return Transition(new, (fact_at(Event.EDITED, head, note),))


def _with(head: Head, kept: dict[str, Any] | None) -> Head:
    data = {**head.model_dump(), MOVED: kept}
    if kept is None:
        del data[MOVED]
    return Head.model_validate(data)
