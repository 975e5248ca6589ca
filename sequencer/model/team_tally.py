"""What a team has used so far, summed up: for budgets, which are looked at in each transition.

Derived from `TeamState.spent` and kept in step with it, because no transition may look at
every task that was ever worked on.
"""

from __future__ import annotations

from typing import Self

from sequencer.model.graph import Graph
from sequencer.model.team import TaskTraits
from sequencer.model.team_state import TeamState

_NO_TRAITS = TaskTraits()


class Used:
    """USD and tokens of several tasks together."""

    __slots__ = ("tokens", "usd")

    def __init__(self) -> None:
        """Begin with nothing."""
        self.usd = 0.0
        self.tokens = 0.0

    def add(self, usd: float, tokens: float) -> None:
        """Count what one attempt has used."""
        # Rounded as each task's own sum is, so that it does not matter in which order.
        self.usd = round(self.usd + usd, 9)
        self.tokens += tokens


class Tally:
    """Sums over the tasks of one marking; `Marking` keeps it."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.team = Used()
        self.roles: dict[str, Used] = {}
        self.used_up: set[str] = set()
        """Tasks that have used all that their own budget allows."""

    @classmethod
    def of(cls, graph: Graph, team: TeamState) -> Self:
        """Return the sums over all that *team* has used."""
        made = cls()
        for name, spent in team.spent.items():
            made.add(graph, team, name, spent[0], spent[1])
        return made

    def add(self, graph: Graph, team: TeamState, name: str, usd: float, tokens: float) -> None:
        """Count what an attempt at task *name* has used, which *team* has counted already."""
        node = graph.by_id.get(name)
        task = _NO_TRAITS if node is None or node.task is None else node.task
        self.team.add(usd, tokens)
        if task.role is not None:
            self.roles.setdefault(task.role, Used()).add(usd, tokens)
        spent, most = team.spent[name], task.budget
        if most.is_used_up(spent[0], spent[1]):
            self.used_up.add(name)
