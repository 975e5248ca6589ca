"""Facts of a journal, written down in short."""

from __future__ import annotations

from typing import Any

from sequencer.model.transitions import Event

AT = "2026-11-22T12:03:04Z"


def fact(event: Event, step: str = "", revision: int = 1, **more: Any) -> dict[str, Any]:
    """Return one fact as a history has it; *more* but ``attempt`` and ``at`` is its outcome."""
    found: dict[str, Any] = {"revision": revision, "at": more.pop("at", AT), "event": str(event)}
    found |= {"step": step, "step_index": 0, "token": 1, "attempt": more.pop("attempt", 0)}
    return found | ({"outcome": more} if more else {})
