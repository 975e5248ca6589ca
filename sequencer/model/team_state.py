"""What a team's run knows beside its tokens: what was used, said and refused, task by task.

Part of a marking; changed by its operations only, see `TeamState.apply`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Spent = list[float]
"""USD, tokens (input and output) and seconds of all attempts at one task."""


@dataclass
class TeamState:
    """Changed by `apply` only; plain JSON inside."""

    spent: dict[str, Spent] = field(default_factory=dict)
    """By task."""
    streak: int = 0
    """Attempts that failed in a row, over all tasks."""
    broke_at: int = 0
    """The streak at which the circuit breaker opened; what still ran then can't close it."""
    notes: dict[str, str] = field(default_factory=dict)
    """What a task's latest attempt failed with, for its next one."""
    refusals: dict[str, int] = field(default_factory=dict)
    """How often a task that judges has said no."""
    told: dict[str, list[list[str]]] = field(default_factory=dict)
    """Messages to a task as they came: where the text is, who said it, when."""
    warned: list[str] = field(default_factory=list)
    """What was warned about once."""

    @property
    def failures(self) -> int:
        """Return how many failures in a row the circuit breaker goes by."""
        return max(self.streak, self.broke_at)

    def apply(self, word: str, *arguments: Any) -> None:
        """Change the state; the words are the methods below that begin with ``_do_``."""
        _WORDS[word](self, *arguments)

    def as_json(self) -> dict[str, Any]:
        """Return what is not empty."""
        return {name: value for name, value in vars(self).items() if value}

    def _do_spend(self, task: str, usd: float, tokens: int, seconds: float) -> None:
        before = self.spent.get(task, [0.0, 0, 0.0])
        # Rounded, so that a sum of a thousand parts is still one short number.
        self.spent[task] = [
            round(before[0] + usd, 9),
            before[1] + tokens,
            round(before[2] + seconds, 3),
        ]

    def _do_failed(self, task: str, note: str) -> None:
        self.streak += 1
        self.notes[task] = note

    def _do_refused(self, task: str, note: str) -> None:
        """Count a "no" of a task that judges; nothing has failed."""
        self.refusals[task] = self.refusals.get(task, 0) + 1
        self.notes[task] = note

    def _do_accepted(self, task: str) -> None:
        self.streak = 0
        self.notes.pop(task, None)

    def _do_tell(self, task: str, reference: str, by: str, at: str) -> None:
        self.told.setdefault(task, []).append([reference, by, at])

    def _do_broke(self, streak: int) -> None:
        self.broke_at = streak

    def _do_warn(self, what: str) -> None:
        self.warned.append(what)

    def _do_again(self) -> None:
        """A person lets it go on: what has failed counts no more."""
        self.streak = self.broke_at = 0
        self.refusals.clear()
        self.warned.clear()


_WORDS: dict[str, Callable[..., None]] = {
    name.removeprefix("_do_"): method
    for name, method in vars(TeamState).items()
    if name.startswith("_do_")
}
"""What the first argument of the operation ``team`` means."""
