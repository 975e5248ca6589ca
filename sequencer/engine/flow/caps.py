"""Budgets of a team, its roles and its tasks, and the circuit breaker.

Decided from the run's own counters, so that they hold over restarts and for all processes
together. What is decided here starts no task; what runs goes on, or is stopped, as
``teams.budget.on_hard`` says.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from sequencer.engine.flow.transitions import OpenTransition
from sequencer.model.graph import Node
from sequencer.model.marking import Marking
from sequencer.model.team import Budget, TeamRules
from sequencer.model.team_state import Spent


@dataclass(frozen=True, slots=True)
class Cap:
    """One budget, and what was used of it."""

    what: str
    """``the team``, ``role NAME`` or ``task NAME``."""
    key: str
    """Where the limit is set."""
    budget: Budget
    usd: float
    tokens: float

    @property
    def is_reached(self) -> bool:
        """Return whether nothing is left."""
        return bool(self._parts_from(1.0))

    def is_near(self, soft: float) -> bool:
        """Return whether the part *soft* of it is used."""
        return bool(self._parts_from(soft))

    def left_usd(self) -> float | None:
        """Return what may still be spent; None: there is no limit on it."""
        most = self.budget.max_cost_usd
        return None if most is None else max(most - self.usd, 0.0)

    def _parts_from(self, share: float) -> list[str]:
        found, most = [], self.budget
        if most.max_cost_usd is not None and self.usd >= share * most.max_cost_usd:
            found.append(f"{self.usd:.4f} of {most.max_cost_usd:g} USD")
        if most.max_tokens is not None and self.tokens >= share * most.max_tokens:
            found.append(f"{self.tokens:.0f} of {most.max_tokens} tokens")
        return found

    def told(self, share: float) -> str:
        """Return how much is used, where that is *share* of it or more."""
        return f"{self.what} has used {' and '.join(self._parts_from(share))} ({self.key})"


class Caps:
    """What one team may use."""

    def __init__(self, rules: TeamRules) -> None:
        """Hold the team to *rules*."""
        self.rules = rules

    def of_team(self, marking: Marking) -> Cap:
        """Return the whole team's budget."""
        spent = marking.team.spent.values()
        usd, tokens = sum(one[0] for one in spent), sum(one[1] for one in spent)
        return Cap("the team", "teams.budget", self.rules.budget, usd, tokens)

    def of_roles(self, marking: Marking) -> Iterator[tuple[str, Cap]]:
        """Yield the budgets of roles that have one, by the role."""
        budgets = self.rules.role_budgets
        if not budgets:
            return
        used: defaultdict[str, Spent] = defaultdict(lambda: [0.0, 0, 0.0])
        for name, spent in marking.team.spent.items():
            role = _role(marking.graph.by_id[name])
            if role in budgets:
                used[role] = [sum(pair) for pair in zip(used[role], spent, strict=True)]
        for role, budget in budgets.items():
            key = f"teams.roles.{role}.budget"
            yield role, Cap(f"role {role}", key, budget, used[role][0], used[role][1])

    def of_tasks(self, marking: Marking) -> Iterator[tuple[str, Cap]]:
        """Yield the budgets of tasks that have one and have used something, by the task."""
        for name, spent in marking.team.spent.items():
            task = marking.graph.by_id[name].task
            if task is not None and task.budget != Budget():
                yield name, Cap(f"task {name}", "the task's budget", task.budget, *spent[:2])

    def closed(self, marking: Marking) -> Collection[str]:
        """Return the tasks that must not be begun now."""
        names = marking.graph.by_id
        if self.stop(marking) is not None:
            return names.keys()
        roles = {role for role, cap in self.of_roles(marking) if cap.is_reached}
        found = {name for name, cap in self.of_tasks(marking) if cap.is_reached}
        return found | {name for name, node in names.items() if roles and _role(node) in roles}

    def stop(self, marking: Marking) -> str | None:
        """Return why no task at all may be begun, if that is so."""
        cap = self.of_team(marking)
        if cap.is_reached:
            return cap.told(1.0)
        return self.broken(marking)

    def broken(self, marking: Marking) -> str | None:
        """Return what the circuit breaker says, if it has opened."""
        streak, most = marking.team.streak, self.rules.max_failures
        if streak < most:
            return None
        return f"{streak} attempts in a row have failed (teams.max_failures: {most})"

    def reached(self, marking: Marking) -> list[str]:
        """Return every budget that is at its end, in words."""
        team = self.of_team(marking)
        found = [team.told(1.0)] if team.is_reached else []
        caps = (*self.of_roles(marking), *self.of_tasks(marking))
        return found + [cap.told(1.0) for _, cap in caps if cap.is_reached]

    def to_kill(self, marking: Marking) -> Collection[str]:
        """Return the tasks whose running attempts are to be stopped."""
        if self.rules.budget.on_hard != "kill":
            return ()
        if self.of_team(marking).is_reached:
            return marking.graph.by_id.keys()
        return () if not self.reached(marking) else self.closed(marking)

    def left_usd(self, marking: Marking, name: str) -> float | None:
        """Return what an attempt at task *name* may cost; None: no budget says so."""
        role = _role(marking.graph.by_id[name])
        left = [self.of_team(marking).left_usd()]
        left += [cap.left_usd() for known, cap in self.of_roles(marking) if known == role]
        own = [cap for known, cap in self.of_tasks(marking) if known == name]
        task = marking.graph.by_id[name].task
        left += [cap.left_usd() for cap in own]
        if not own and task is not None:
            left.append(task.budget.max_cost_usd)
        present = [value for value in left if value is not None]
        return min(present) if present else None

    def watch(self, step: OpenTransition) -> None:
        """Tell in *step* what has come near its end or to it, each once."""
        marking, soft = step.marking, self.rules.budget.soft
        caps = [self.of_team(marking)]
        caps += [cap for _, cap in (*self.of_roles(marking), *self.of_tasks(marking))]
        for cap in caps:
            if cap.is_reached:
                self._warn(step, f"hard: {cap.what}", f"{cap.told(1.0)}: nothing more is begun")
            elif cap.is_near(soft):
                self._warn(step, f"soft: {cap.what}", cap.told(soft))
        if (broken := self.broken(marking)) is not None:
            number = marking.team.streak
            self._warn(step, f"breaker: {number}", f"{broken}: nothing more is begun")

    @staticmethod
    def _warn(step: OpenTransition, what: str, message: str) -> None:
        if what not in step.marking.team.warned:
            step.warn(what, message)


def _role(node: Node) -> str:
    return node.task.role or "" if node.task is not None else ""
