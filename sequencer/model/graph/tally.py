"""What a graph run records in addition to its tokens: usage, failures and messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from msgspec import Struct, field
from msgspec.structs import asdict

from sequencer.model.graph.graph import Graph
from sequencer.model.graph.task import TaskTraits

Spent = list[float]
"""USD, tokens (input and output) and seconds of all attempts at one task."""


class Ledger(Struct):
    """Usage, failures and messages of tasks; changed by `apply` only; plain JSON inside."""

    spent: dict[str, Spent] = field(default_factory=dict)
    """By task."""
    streak: int = 0
    """Attempts that failed in a row, over all tasks."""
    broke_at: int = 0
    """The streak at which the circuit breaker opened; attempts that ran then can't close it."""
    notes: dict[str, str] = field(default_factory=dict)
    """The error of a task's latest attempt, for its next one."""
    refusals: dict[str, int] = field(default_factory=dict)
    """How often a task that judges has said no."""
    told: dict[str, list[list[str]]] = field(default_factory=dict)
    """Messages to a task in order: the reference to the text, the sender, the time."""
    warned: list[str] = field(default_factory=list)
    """Warnings that were already given."""

    @property
    def failures(self) -> int:
        """Return the number of failures in a row that the circuit breaker counts."""
        return max(self.streak, self.broke_at)

    def apply(self, word: str, *arguments: Any) -> None:
        """Change the ledger; each method ``_do_WORD`` below is the operation WORD."""
        _WORDS[word](self, *arguments)

    def forget(self, task: str) -> None:
        """Forget the failures and refusals of *task*; its usage stays."""
        self.notes.pop(task, None)
        self.refusals.pop(task, None)

    def as_json(self) -> dict[str, Any]:
        """Return what is not empty."""
        return {name: value for name, value in asdict(self).items() if value}

    def _do_spend(self, task: str, usd: float, tokens: int, seconds: float) -> None:
        totals = self.spent.get(task, [0.0, 0, 0.0])
        # Rounded, so that a sum of a thousand parts is still one short number.
        self.spent[task] = [
            round(totals[0] + usd, 9),
            totals[1] + tokens,
            round(totals[2] + seconds, 3),
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
        """Reset failures, refusals and warnings, because a person continues the run."""
        self.streak = self.broke_at = 0
        self.refusals.clear()
        self.warned.clear()


_WORDS: dict[str, Callable[..., None]] = {
    name.removeprefix("_do_"): method
    for name, method in vars(Ledger).items()
    if name.startswith("_do_")
}
"""First argument of the operation ``team`` -> the method that applies it."""


_NO_TRAITS = TaskTraits()


class Used:
    """USD and tokens of several tasks together."""

    __slots__ = ("tokens", "usd")

    def __init__(self) -> None:
        """Start at 0."""
        self.usd = 0.0
        self.tokens = 0.0

    def add(self, usd: float, tokens: float) -> None:
        """Add the usage of one attempt."""
        # Rounded like the sum of each task, so that the order does not matter.
        self.usd = round(self.usd + usd, 9)
        self.tokens += tokens


class Tally:
    """Sums over the tasks of one marking; `Marking` updates it."""

    def __init__(self) -> None:
        """Start at 0."""
        self.total = Used()
        self.roles: dict[str, Used] = {}
        self.used_up: set[str] = set()
        """Tasks that have used all that their own budget allows."""

    @classmethod
    def from_ledger(cls, graph: Graph, ledger: Ledger) -> Self:
        """Return the sums over all tasks in *ledger*."""
        tally = cls()
        for name, totals in ledger.spent.items():
            tally.add(graph, ledger, name, totals[0], totals[1])
        return tally

    def add(self, graph: Graph, ledger: Ledger, name: str, usd: float, tokens: float) -> None:
        """Add the usage of an attempt at task *name*, which *ledger* already includes."""
        node = graph.by_id.get(name)
        task = _NO_TRAITS if node is None or node.task is None else node.task
        self.total.add(usd, tokens)
        if task.role is not None:
            self.roles.setdefault(task.role, Used()).add(usd, tokens)
        totals, budget = ledger.spent[name], task.budget
        if budget.is_used_up(totals[0], totals[1]):
            self.used_up.add(name)
