"""Budgets of a team, its roles and its tasks, and the circuit breaker.

Decisions use the run's counters, so budgets hold across restarts and for all processes together.
When a budget is used up, no more tasks start; ``teams.budget.on_hard`` decides whether running
tasks continue or are stopped. To stop them, this process counts the usage of its own attempts
while they run, if their executor reports it.

Every transition checks budgets, so this module uses the marking's tally. It must not go through
every task, except to list all of them for a person.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from sequencer.engine.capacity import TOKENS, USD, UsageCap
from sequencer.errors import TooManyFailures
from sequencer.model.graph.marking import Marking
from sequencer.model.graph.tally import Used
from sequencer.model.graph.task import Budget
from sequencer.model.graph.transition import OpenTransition
from sequencer.model.outcome import Usage
from sequencer.plugins.teams.team import TeamRules


class BudgetUse(Struct, frozen=True):
    """One budget and its usage so far."""

    what: str
    """``the team``, ``role NAME`` or ``task NAME``."""
    key: str
    """The key that sets the limit."""
    budget: Budget
    usd: float
    tokens: float

    @property
    def name(self) -> str:
        """Return the key of a warning that is given once; a raised cap gets a new key."""
        budget = self.budget
        return f"{self.what}, {budget.max_cost_usd or 0:g} USD, {budget.max_tokens or 0} tokens"

    @property
    def is_reached(self) -> bool:
        """Return whether nothing is left."""
        return self.budget.is_used_up(self.usd, self.tokens)

    def with_more(self, running: Iterable[Usage]) -> BudgetUse:
        """Return the use including attempts that are still *running*."""
        usd, tokens = self.usd, self.tokens
        for usage in running:
            usd += usage.cost_usd
            tokens += usage.input_tokens + usage.output_tokens
        return replace(self, usd=usd, tokens=tokens)

    def is_near(self, soft: float) -> bool:
        """Return whether at least the fraction *soft* is used."""
        return self.budget.is_used_up(self.usd, self.tokens, soft)

    def left_usd(self) -> float | None:
        """Return the amount that is left in USD; None: no limit."""
        limit = self.budget.max_cost_usd
        return None if limit is None else max(limit - self.usd, 0.0)

    def left_tokens(self) -> float | None:
        """Return the number of tokens that are left; None: no limit."""
        limit = self.budget.max_tokens
        return None if limit is None else max(limit - self.tokens, 0)

    def _list_used_parts(self, share: float) -> list[str]:
        parts, budget = [], self.budget
        if budget.max_cost_usd is not None and self.usd >= share * budget.max_cost_usd:
            parts.append(f"{self.usd:.4f} of {budget.max_cost_usd:g} USD")
        if budget.max_tokens is not None and self.tokens >= share * budget.max_tokens:
            parts.append(f"{self.tokens:.0f} of {budget.max_tokens} tokens")
        return parts

    def describe_use(self, share: float) -> str:
        """Return a sentence about the parts of which at least the fraction *share* is used."""
        return f"{self.what} has used {' and '.join(self._list_used_parts(share))} ({self.key})"


_NOTHING = Used()
"""The use of a role that has not started."""


class TeamBudgets:
    """The limits of one team; see `engine.capacity.CapacityRule`."""

    def __init__(self, rules: TeamRules) -> None:
        """Apply *rules* to the team."""
        self.rules = rules
        self._has_common = rules.budget.is_limited or bool(rules.role_budgets)

    def has_caps(self, marking: Marking) -> bool:
        """Return whether there is any budget; most teams have none."""
        return self._has_common or bool(marking.graph.with_budget)

    def find_team_use(self, marking: Marking) -> BudgetUse:
        """Return the whole team's budget."""
        total = marking.tally.total
        return BudgetUse("the team", "teams.budget", self.rules.budget, total.usd, total.tokens)

    def list_role_uses(self, marking: Marking) -> Iterator[tuple[str, BudgetUse]]:
        """Yield (role, use) for each role with a budget."""
        for role, budget in self.rules.role_budgets.items():
            total = marking.tally.roles.get(role, _NOTHING)
            key = f"teams.roles.{role}.budget"
            yield role, BudgetUse(f"role {role}", key, budget, total.usd, total.tokens)

    def list_task_uses(
        self, marking: Marking, names: Collection[str] | None = None
    ) -> Iterator[tuple[str, BudgetUse]]:
        """Yield (task, use) for each task with a budget that has used some of it.

        With *names*, only these tasks are checked.
        """
        for name in marking.graph.with_budget if names is None else names:
            use = self.find_task_use(marking, name) if name in marking.ledger.spent else None
            if use is not None:
                yield name, use

    def find_task_use(self, marking: Marking, name: str) -> BudgetUse | None:
        """Return the use of the budget of task *name*; None: the task has no budget."""
        task = marking.graph.by_id[name].task
        if task is None or not task.budget.is_limited:
            return None
        usd, tokens, _ = marking.ledger.spent.get(name, (0.0, 0, 0.0))
        return BudgetUse(f"task {name}", "the task's budget", task.budget, usd, tokens)

    def find_closed(self, marking: Marking) -> Collection[str]:
        """Return the tasks that must not start now."""
        if self.find_start_obstacle(marking) is not None:
            return marking.graph.by_id.keys()
        return self._find_used_up_tasks(marking) if self.has_caps(marking) else ()

    def _find_used_up_tasks(self, marking: Marking) -> Collection[str]:
        """Return the tasks whose budget, or whose role's budget, is used up."""
        names: Collection[str] = marking.tally.used_up
        for role, cap in self.list_role_uses(marking):
            if cap.is_reached:
                names = frozenset(names) | marking.graph.by_role.get(role, frozenset())
        return names

    def find_start_obstacle(self, marking: Marking) -> str | None:
        """Return why no task may start, or None."""
        cap = self.find_team_use(marking)
        if cap.is_reached:
            return cap.describe_use(1.0)
        return self.describe_breaker(marking)

    def describe_breaker(self, marking: Marking) -> str | None:
        """Return the message of the circuit breaker, if it has opened."""
        streak, limit = marking.ledger.failures, self.rules.max_failures
        if streak < limit:
            return None
        return f"{streak} attempts in a row failed (teams.max_failures: {limit})"

    def find_stop_reason(self, marking: Marking) -> str | None:
        """Return the reason if budgets keep ready tasks from starting.

        Raises:
            TooManyFailures: the circuit breaker has opened.
        """
        if (message := self.describe_breaker(marking)) is not None:
            raise TooManyFailures(
                f"{message}, so no other task starts",
                hint="look at 'sequencer log'; then 'sequencer retry' lets the team continue",
            )
        reasons = self.describe_used_up(marking)
        return "; ".join(reasons) + ": nothing more starts" if reasons else None

    def iter_shared_caps(self, marking: Marking) -> Iterator[UsageCap]:
        yield from _make_caps(self.find_team_use(marking))
        for role, use in self.list_role_uses(marking):
            yield from _make_caps(use, marking.graph.by_role.get(role, ()))

    def iter_node_caps(self, marking: Marking, name: str) -> Iterator[UsageCap]:
        if use := self.find_task_use(marking, name):
            yield from _make_caps(use, (name,))

    def describe_reached(self, marking: Marking) -> list[str]:
        message = self.describe_breaker(marking)
        return [*self.describe_used_up(marking), *([] if message is None else [message])]

    def describe_used_up(self, marking: Marking) -> list[str]:
        """Return a sentence for each used-up budget; a finished task no longer needs one."""
        team = self.find_team_use(marking)
        sentences = [team.describe_use(1.0)] if team.is_reached else []
        tasks = (use for use in self.list_task_uses(marking) if not _is_done(marking, use[0]))
        caps = (*self.list_role_uses(marking), *tasks)
        return sentences + [cap.describe_use(1.0) for _, cap in caps if cap.is_reached]

    @property
    def kills(self) -> bool:
        """Return whether reaching a cap stops running tasks."""
        return self.rules.budget.on_hard == "kill"

    def find_nodes_to_kill(self, marking: Marking, running: Mapping[str, Usage]) -> Collection[str]:
        """Return the tasks whose running attempts must be stopped.

        *running* maps each task to the usage of its attempt, which is not recorded yet.
        """
        if not self.kills or not self.has_caps(marking):
            return ()
        if self.find_team_use(marking).with_more(running.values()).is_reached:
            return marking.graph.by_id.keys()
        # Not `find_closed`: the circuit breaker lets running tasks continue.
        nodes = self._find_used_up_tasks(marking)
        for role, cap in self.list_role_uses(marking):
            names = marking.graph.by_role.get(role, frozenset())
            if cap.with_more(usage for name, usage in running.items() if name in names).is_reached:
                nodes = frozenset(nodes) | names
        for name, usage in running.items():
            use = self.find_task_use(marking, name)
            if use is not None and use.with_more([usage]).is_reached:
                nodes = frozenset(nodes) | {name}
        return nodes

    def warn_about_limits(self, step: OpenTransition) -> None:
        """Warn in *step* about each budget that is almost or fully used, once per budget."""
        marking, soft_share = step.marking, self.rules.budget.soft
        if (breaker_message := self.describe_breaker(marking)) is not None:
            number = marking.ledger.failures
            if marking.ledger.broke_at < number:
                step.editor.do("team", "broke", number)
            self._warn(step, f"breaker: {number}", f"{breaker_message}: nothing more starts")
        if not self.has_caps(marking):
            return
        # Check only tasks that used something in this transition: others have not changed.
        paid_names = {
            operation[2]
            for operation in step.editor.operations
            if operation[:2] == ["team", "spend"]
        }
        caps = [
            (cap, False)
            for cap in (self.find_team_use(marking), *dict(self.list_role_uses(marking)).values())
        ]
        caps += [
            (cap, _is_done(marking, name)) for name, cap in self.list_task_uses(marking, paid_names)
        ]
        for cap, is_done in caps:
            if cap.is_reached:
                # A finished task's budget stops no other task.
                consequence = "" if is_done else ": nothing more starts"
                self._warn(step, f"hard: {cap.name}", f"{cap.describe_use(1.0)}{consequence}")
            elif cap.is_near(soft_share):
                self._warn(step, f"soft: {cap.name}", cap.describe_use(soft_share))

    @staticmethod
    def _warn(step: OpenTransition, key: str, message: str) -> None:
        if key not in step.marking.ledger.warned:
            step.warn(key, message)


def _is_done(marking: Marking, name: str) -> bool:
    """Return whether task *name* is done and never runs again."""
    return bool(marking.done.get(name)) and not marking.is_live(name)


def _make_caps(use: BudgetUse, nodes: Collection[str] | None = None) -> Iterator[UsageCap]:
    if (usd := use.left_usd()) is not None:
        yield UsageCap(USD, usd, nodes)
    if (tokens := use.left_tokens()) is not None:
        yield UsageCap(TOKENS, tokens, nodes)
