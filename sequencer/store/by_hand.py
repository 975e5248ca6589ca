"""What stands in state.json though this program did not write it, as the transition that it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from sequencer.errors import CorruptState, EditRefused, StateRefused
from sequencer.model.by_hand import Placed, accept_edit
from sequencer.model.head import Head
from sequencer.model.transitions import Transition, initialise
from sequencer.store import headfile
from sequencer.store.recovery import digest

Migrate = Callable[[dict[str, Any]], Head]
"""From another program's state to a head at revision 0."""


def edit(state_path: Path, head: Head, edited: Head, *, at: str, placed: Placed) -> Transition:
    """Return what it means that somebody has made *edited* of *head*; see `accept_edit`.

    Raises:
        EditRefused: it would break the run's order.
    """
    try:
        return accept_edit(head, edited, at=at, placed=placed)
    except EditRefused as refusal:
        raise EditRefused(refusal.message, where=str(state_path), hint=refusal.hint) from None


def migrated(state_path: Path, legacy: dict[str, Any], migrate: Migrate | None) -> Head:
    """Return the head that *legacy* is to *migrate*.

    Raises:
        StateRefused: it is none.
    """
    if migrate is None:
        raise CorruptState("is the state of another program", where=str(state_path))
    try:
        return migrate(legacy)
    except StateRefused as refusal:
        refusal.where = refusal.where or str(state_path)
        raise


def migration(
    state_path: Path, legacy: dict[str, Any], migrate: Migrate | None
) -> tuple[Transition, str]:
    """Return the begin of a run at *legacy*, of which a copy is kept, and what to tell.

    Raises: see `migrated`.
    """
    head = migrated(state_path, legacy, migrate)
    copy = headfile.keep_copy(state_path, "before-migration")
    fact = initialise(head).facts[0]
    # A crash before state.json is replaced must not look like somebody's edit.
    origin = {"note": f"the original is {copy.name}", "migrated_from": digest(legacy)}
    notice = f"{state_path} was migrated; the original is {copy.name}"
    return Transition(head, (replace(fact, outcome=origin),)), notice
