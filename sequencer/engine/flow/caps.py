"""Budgets of a team, its roles and its tasks, and the circuit breaker.

Decided from the run's own counters, so that they hold over restarts and for all processes
together. What is decided here starts no task; what runs goes on, or is stopped, as
``teams.budget.on_hard`` says.

Looked at in each transition, so it goes by the marking's tally: nothing here may look at
every task, but where a person is told of all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from sequencer.engine.flow.transitions import OpenTransition
from sequencer.errors import TooManyFailures
from sequencer.model.marking import Marking
from sequencer.model.team import Budget, TeamRules
from sequencer.model.team_tally import Used


@dataclass(frozen=True, slots=True)
class BudgetUse:
    """One budget, and what was used of it."""

    what: str
    """``the team``, ``role NAME`` or ``task NAME``."""
    key: str
    """Where the limit is set."""
    budget: Budget
    usd: float
    tokens: float

    @property
    def name(self) -> str:
        """Return what is warned of once: a cap that was raised is another one."""
        most = self.budget
        return f"{self.what}, {most.max_cost_usd or 0:g} USD, {most.max_tokens or 0} tokens"

    @property
    def is_reached(self) -> bool:
        """Return whether nothing is left."""
        return self.budget.is_used_up(self.usd, self.tokens)

    def is_near(self, soft: float) -> bool:
        """Return whether the part *soft* of it is used."""
        return self.budget.is_used_up(self.usd, self.tokens, soft)

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


_NOTHING = Used()
"""What a role has used that has not begun."""


class Caps:
    """What one team may use."""

    def __init__(self, rules: TeamRules) -> None:
        """Hold the team to *rules*."""
        self.rules = rules
        self._has_common = rules.budget.is_limited or bool(rules.role_budgets)

    def _are_set(self, marking: Marking) -> bool:
        """Return whether there is any budget at all; most teams have none."""
        return self._has_common or bool(marking.graph.with_budget)

    def of_team(self, marking: Marking) -> BudgetUse:
        """Return the whole team's budget."""
        used = marking.tally.team
        return BudgetUse("the team", "teams.budget", self.rules.budget, used.usd, used.tokens)

    def of_roles(self, marking: Marking) -> Iterator[tuple[str, BudgetUse]]:
        """Yield the budgets of roles that have one, by the role."""
        for role, budget in self.rules.role_budgets.items():
            used = marking.tally.roles.get(role, _NOTHING)
            key = f"teams.roles.{role}.budget"
            yield role, BudgetUse(f"role {role}", key, budget, used.usd, used.tokens)

    def of_tasks(
        self, marking: Marking, names: Collection[str] | None = None
    ) -> Iterator[tuple[str, BudgetUse]]:
        """Yield the budgets of tasks that have one and have used something, by the task.

        With *names* only those of these tasks.
        """
        graph, spent = marking.graph, marking.team.spent
        for name in graph.with_budget if names is None else names:
            task = graph.by_id[name].task
            if name in spent and task is not None and task.budget.is_limited:
                usd, tokens, _ = spent[name]
                yield name, BudgetUse(f"task {name}", "the task's budget", task.budget, usd, tokens)

    def closed(self, marking: Marking) -> Collection[str]:
        """Return the tasks that must not be begun now."""
        if self.stop(marking) is not None:
            return marking.graph.by_id.keys()
        return self._spent(marking) if self._are_set(marking) else ()

    def _spent(self, marking: Marking) -> Collection[str]:
        """Return the tasks whose own or whose role's budget is at its end."""
        found: Collection[str] = marking.tally.used_up
        for role, cap in self.of_roles(marking):
            if cap.is_reached:
                found = frozenset(found) | marking.graph.by_role.get(role, frozenset())
        return found

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

    def end_of_the_work(self, marking: Marking) -> str | None:
        """Return which budgets keep what could be done from being begun, if any does.

        Raises:
            TooManyFailures: the circuit breaker has opened.
        """
        if (broken := self.broken(marking)) is not None:
            raise TooManyFailures(
                f"{broken}, so no other task is begun",
                hint="look at 'sequencer log', then 'sequencer retry' lets it go on",
            )
        reached = self.reached(marking)
        return "; ".join(reached) + ": nothing more is begun" if reached else None

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
        # Not `closed`: the circuit breaker lets go on what runs.
        return self._spent(marking)

    def left_usd(self, marking: Marking, name: str) -> float | None:
        """Return what an attempt at task *name* may cost; None: no budget says so."""
        if not self._are_set(marking):
            return None
        task = marking.graph.by_id[name].task
        if task is None:
            return self.of_team(marking).left_usd()
        caps = [self.of_team(marking)]
        caps += [cap for role, cap in self.of_roles(marking) if role == task.role]
        usd, tokens, _ = marking.team.spent.get(name, (0.0, 0, 0.0))
        caps.append(BudgetUse("", "", task.budget, usd, tokens))
        return min((left for cap in caps if (left := cap.left_usd()) is not None), default=None)

    def watch(self, step: OpenTransition) -> None:
        """Tell in *step* what has come near its end or to it, each once."""
        marking, soft = step.marking, self.rules.budget.soft
        if (broken := self.broken(marking)) is not None:
            number = marking.team.streak
            self._warn(step, f"breaker: {number}", f"{broken}: nothing more is begun")
        if not self._are_set(marking):
            return
        # Of tasks those that have used something in this transition: no other has come nearer.
        paid = {one[2] for one in step.course.operations if one[:2] == ["team", "spend"]}
        caps = [self.of_team(marking)]
        caps += [cap for _, cap in (*self.of_roles(marking), *self.of_tasks(marking, paid))]
        for cap in caps:
            if cap.is_reached:
                self._warn(step, f"hard: {cap.name}", f"{cap.told(1.0)}: nothing more is begun")
            elif cap.is_near(soft):
                self._warn(step, f"soft: {cap.name}", cap.told(soft))

    @staticmethod
    def _warn(step: OpenTransition, what: str, message: str) -> None:
        if what not in step.marking.team.warned:
            step.warn(what, message)
