"""Where a run goes behind a step, as a hook or a gate may decide it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Move(StrEnum):
    """The ways on from a step whose attempt has ended."""

    NEXT = "next"
    """Accept it and go to the step behind it."""
    RETRY = "retry"
    """Do not accept it: the same step again."""
    GOTO = "goto"
    """Accept it and go to the step that is named."""
    SKIP = "skip"
    """Accept it and leave out the step behind it."""
    GATE = "gate"
    """Accept it and wait for a person."""
    FAIL = "fail"
    """Do not accept it: the attempt failed."""
    COMPLETE = "complete"
    """Accept it and end the run."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One way on, and why."""

    move: Move
    target: str | None = None
    """For ``goto``: the name of a step of the same workflow."""
    reason: str = ""
    """One line, kept in the journal."""

    @property
    def why(self) -> str:
        """Return the reason in words, also where none was given."""
        return self.reason or "no reason given"
