"""Budgets of a team, its roles and its tasks, and the circuit breaker.

Decided from the run's counters, so that budgets hold over restarts and for all processes
together. A budget that is used up starts no more tasks; running tasks continue or are stopped,
as ``teams.budget.on_hard`` says. To stop them, this process counts what its own attempts use
while they run, if their executor reports it.

Every transition checks this, so it uses the marking's tally: nothing here may look at every
task, except to list all of them for a person.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from sequencer.engine.attempt import Prepared
from sequencer.errors import TooManyFailures
from sequencer.model.head import Claim, Head, Owner
from sequencer.model.limits import RunLimits
from sequencer.model.net.graph import Graph, NodeKind
from sequencer.model.net.marking import Marking
from sequencer.model.net.tally import Used
from sequencer.model.net.transition import OpenTransition, rests
from sequencer.model.outcome import Usage
from sequencer.plugins.teams.team import Budget, TeamRules


class BudgetUse(Struct, frozen=True):
    """One budget, and how much of it was used."""

    what: str
    """``the team``, ``role NAME`` or ``task NAME``."""
    key: str
    """Where the limit is set."""
    budget: Budget
    usd: float
    tokens: float

    @property
    def name(self) -> str:
        """Return the key of a warning that is given once; a raised cap has another key."""
        most = self.budget
        return f"{self.what}, {most.max_cost_usd or 0:g} USD, {most.max_tokens or 0} tokens"

    @property
    def is_reached(self) -> bool:
        """Return whether nothing is left."""
        return self.budget.is_used_up(self.usd, self.tokens)

    def with_more(self, running: Iterable[Usage]) -> BudgetUse:
        """Return it as it will be when attempts end that have used this much so far."""
        usd, tokens = self.usd, self.tokens
        for used in running:
            usd += used.cost_usd
            tokens += used.input_tokens + used.output_tokens
        return replace(self, usd=usd, tokens=tokens)

    def is_near(self, soft: float) -> bool:
        """Return whether the fraction *soft* of it is used."""
        return self.budget.is_used_up(self.usd, self.tokens, soft)

    def left_usd(self) -> float | None:
        """Return what may still be spent; None: no limit."""
        most = self.budget.max_cost_usd
        return None if most is None else max(most - self.usd, 0.0)

    def left_tokens(self) -> float | None:
        """Return how many tokens may still be used; None: no limit."""
        most = self.budget.max_tokens
        return None if most is None else max(most - self.tokens, 0)

    def _parts_from(self, share: float) -> list[str]:
        found, most = [], self.budget
        if most.max_cost_usd is not None and self.usd >= share * most.max_cost_usd:
            found.append(f"{self.usd:.4f} of {most.max_cost_usd:g} USD")
        if most.max_tokens is not None and self.tokens >= share * most.max_tokens:
            found.append(f"{self.tokens:.0f} of {most.max_tokens} tokens")
        return found

    def told(self, share: float) -> str:
        """Return how much is used of the parts that are at *share* or more."""
        return f"{self.what} has used {' and '.join(self._parts_from(share))} ({self.key})"


_NOTHING = Used()
"""The use of a role that has not started."""


class TeamBudgets:
    """What one team may use."""

    def __init__(self, rules: TeamRules) -> None:
        """Hold the team to *rules*."""
        self.rules = rules
        self._has_common = rules.budget.is_limited or bool(rules.role_budgets)

    def are_set(self, marking: Marking) -> bool:
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
        for name in marking.graph.with_budget if names is None else names:
            use = self.of_task(marking, name) if name in marking.team.spent else None
            if use is not None:
                yield name, use

    def of_task(self, marking: Marking, name: str) -> BudgetUse | None:
        """Return the budget of task *name* itself; None: it has none."""
        task = marking.graph.by_id[name].task
        if task is None or not task.budget.is_limited:
            return None
        usd, tokens, _ = marking.team.spent.get(name, (0.0, 0, 0.0))
        return BudgetUse(f"task {name}", "the task's budget", task.budget, usd, tokens)

    def closed(self, marking: Marking) -> Collection[str]:
        """Return the tasks that must not start now."""
        if self.stop(marking) is not None:
            return marking.graph.by_id.keys()
        return self._spent(marking) if self.are_set(marking) else ()

    def _spent(self, marking: Marking) -> Collection[str]:
        """Return the tasks whose budget, or whose role's budget, is used up."""
        found: Collection[str] = marking.tally.used_up
        for role, cap in self.of_roles(marking):
            if cap.is_reached:
                found = frozenset(found) | marking.graph.by_role.get(role, frozenset())
        return found

    def stop(self, marking: Marking) -> str | None:
        """Return why no task at all may start, if so."""
        cap = self.of_team(marking)
        if cap.is_reached:
            return cap.told(1.0)
        return self.broken(marking)

    def broken(self, marking: Marking) -> str | None:
        """Return the message of the circuit breaker, if it has opened."""
        streak, most = marking.team.failures, self.rules.max_failures
        if streak < most:
            return None
        return f"{streak} attempts in a row failed (teams.max_failures: {most})"

    def end_of_the_work(self, marking: Marking) -> str | None:
        """Return which budgets keep ready tasks from starting, if any.

        Raises:
            TooManyFailures: the circuit breaker has opened.
        """
        if (broken := self.broken(marking)) is not None:
            raise TooManyFailures(
                f"{broken}, so no other task starts",
                hint="look at 'sequencer log'; then 'sequencer retry' lets the team continue",
            )
        reached = self.reached(marking)
        return "; ".join(reached) + ": nothing more starts" if reached else None

    def reached(self, marking: Marking) -> list[str]:
        """Return words for every used-up budget; a finished task no longer needs one."""
        team = self.of_team(marking)
        found = [team.told(1.0)] if team.is_reached else []
        tasks = [one for one in self.of_tasks(marking) if not _is_done(marking, one[0])]
        caps = (*self.of_roles(marking), *tasks)
        return found + [cap.told(1.0) for _, cap in caps if cap.is_reached]

    @property
    def kills(self) -> bool:
        """Return whether reaching a cap stops running tasks."""
        return self.rules.budget.on_hard == "kill"

    def to_kill(self, marking: Marking, running: Mapping[str, Usage]) -> Collection[str]:
        """Return the tasks whose running attempts must be stopped.

        *running* is what unrecorded attempts have used so far, by task.
        """
        if not self.kills or not self.are_set(marking):
            return ()
        if self.of_team(marking).with_more(running.values()).is_reached:
            return marking.graph.by_id.keys()
        # Not `closed`: the circuit breaker lets running tasks continue.
        found = self._spent(marking)
        for role, cap in self.of_roles(marking):
            names = marking.graph.by_role.get(role, frozenset())
            if cap.with_more(used for name, used in running.items() if name in names).is_reached:
                found = frozenset(found) | names
        for name, used in running.items():
            own = self.of_task(marking, name)
            if own is not None and own.with_more([used]).is_reached:
                found = frozenset(found) | {name}
        return found

    def watch(self, step: OpenTransition) -> None:
        """Warn in *step*, once each, about budgets that are almost or fully used."""
        marking, soft = step.marking, self.rules.budget.soft
        if (broken := self.broken(marking)) is not None:
            number = marking.team.failures
            if marking.team.broke_at < number:
                step.course.do("team", "broke", number)
            self._warn(step, f"breaker: {number}", f"{broken}: nothing more starts")
        if not self.are_set(marking):
            return
        # Only tasks that used something in this transition: the others are where they were.
        paid = {one[2] for one in step.course.operations if one[:2] == ["team", "spend"]}
        caps = [
            (cap, False) for cap in (self.of_team(marking), *dict(self.of_roles(marking)).values())
        ]
        caps += [(cap, _is_done(marking, name)) for name, cap in self.of_tasks(marking, paid)]
        for cap, is_done in caps:
            if cap.is_reached:
                # A finished task would start nothing more anyway, and blocks no other task.
                what = "" if is_done else ": nothing more starts"
                self._warn(step, f"hard: {cap.name}", f"{cap.told(1.0)}{what}")
            elif cap.is_near(soft):
                self._warn(step, f"soft: {cap.name}", cap.told(soft))

    @staticmethod
    def _warn(step: OpenTransition, what: str, message: str) -> None:
        if what not in step.marking.team.warned:
            step.warn(what, message)


def _is_done(marking: Marking, name: str) -> bool:
    """Return whether task *name* is done and never runs again."""
    return bool(marking.done.get(name)) and not marking.is_live(name)


USD, TOKENS = "usd", "tokens"
_MICRO = 1_000_000
FAIR_PART = 2
"""A share that is smaller than an equal share by more than this is not worth an attempt."""


class _Cap(NamedTuple):
    """One cap, and the nodes under it."""

    unit: str
    left: float
    nodes: Collection[str] | None = None
    """None: the whole graph."""
    owner: Owner | None = None
    """The process whose attempts count; None: all processes."""

    def covers(self, name: str) -> bool:
        return self.nodes is None or name in self.nodes

    def held(self, live: Sequence[Claim]) -> list[Claim]:
        """Return the claims in *live* that are under it."""
        return [one for one in live if self.covers(one.step) and self.owner in (None, one.owner)]

    def free(self, held: list[Claim]) -> tuple[float, int]:
        """Return what is free, and how many attempts hold an unknown part of it."""
        shares = [one.share(self.unit) for one in held]
        known = [share for share in shares if share is not None]
        return self.left - math.fsum(known), len(shares) - len(known)

    def is_short(self, live: Sequence[Claim]) -> bool:
        """Return whether too little is free to start while others hold the rest.

        When they end, they return what they did not use.
        """
        held = self.held(live)
        if not held:
            return False
        free, unknown = self.free(held)
        return free / (unknown + 1) < self.left / (len(held) + 1) / FAIR_PART


class Shares:
    """Shares out what the run, its team and this invocation may still use."""

    def __init__(
        self,
        limits: RunLimits,
        budgets: TeamBudgets | None,
        owner: Owner,
        prepared: Mapping[str, Prepared] | None = None,
    ) -> None:
        """Keep to *limits* and *budgets*; the process is *owner*.

        Steps that are *prepared* hold no more than their own limit allows.
        """
        self._limits = limits
        self._budgets = budgets
        self._owner = owner
        self._prepared = {} if prepared is None else prepared
        self.own_usd: Callable[[], float | None] = lambda: None
        """What this invocation may still spend; None: it has no limit."""

    def keep_to(self, limits: RunLimits) -> None:
        """Keep to *limits* from now on."""
        self._limits = limits

    def closed(self, head: Head, marking: Marking, gone: frozenset[int]) -> Collection[str]:
        """Return the agents' nodes that must not start now; *gone* are dead claims."""
        budgets = self._budgets
        closed: Collection[str] = () if budgets is None else budgets.closed(marking)
        if limited := self._limited(marking, closed):
            closed = frozenset(closed) | limited
        live = _live(head, gone) if self._are_caps_set(marking) else ()
        if not live:
            return closed
        for cap in self._common(head, marking):
            if cap.is_short(live):
                if cap.nodes is None:
                    return marking.graph.by_id.keys()
                closed = frozenset(closed) | frozenset(cap.nodes)
        return closed

    def of(
        self, head: Head, marking: Marking, name: str, places: int, gone: frozenset[int]
    ) -> dict[str, float]:
        """Return what is held for an attempt at *name*, by unit; empty: nothing limits it.

        *places* attempts may start now, including this one.
        """
        found: dict[str, float] = {}
        if not self._are_caps_set(marking):
            return found
        live = _live(head, gone)
        busy = {one.step for one in live}
        caps = [cap for cap in self._common(head, marking) if cap.covers(name)]
        if self._budgets is not None and (own := self._budgets.of_task(marking, name)):
            caps += _caps_of(own, (name,))
        for cap in caps:
            free, unknown = cap.free(cap.held(live))
            beside = (one for one in beside_of(marking, name, busy) if cap.covers(one))
            at_once = 1 + unknown + sum(1 for _ in islice(beside, max(places - 1, 0)))
            share = _rounded_down(max(free, 0.0) / at_once, cap.unit)
            found[cap.unit] = min(share, found.get(cap.unit, share))
        known = self._prepared.get(name)
        if USD in found and known is not None and known.step.max_cost_usd is not None:
            found[USD] = min(found[USD], known.step.max_cost_usd)
        return found

    def _limited(self, marking: Marking, closed: Collection[str]) -> frozenset[str]:
        """Return the nodes that must not start while their agent waits for its limit.

        An attempt that rests without a failure has met a limit. One limit may be for a single
        model. After two, another node with the same agent would pay only to hear it again.
        """
        active, prepared = marking.active, self._prepared
        met: Counter[str] = Counter()
        for name, one in active.items():
            if rests(one) and not one.failures and name in prepared and name not in closed:
                met[prepared[name].agent] += one.attempt
        return frozenset(
            name
            for name, one in (prepared.items() if met else ())
            if met[one.agent] > 1 and name not in active
        )

    def _are_caps_set(self, marking: Marking) -> bool:
        """Return whether there is any cap at all; most runs have none."""
        if self._limits.cost_usd is not None or self.own_usd() is not None:
            return True
        return self._budgets is not None and self._budgets.are_set(marking)

    def _common(self, head: Head, marking: Marking) -> Iterator[_Cap]:
        """Yield the caps that several nodes share."""
        if (most := self._limits.cost_usd) is not None:
            yield _Cap(USD, max(most - head.usage.cost_usd, 0.0))
        if (left := self.own_usd()) is not None:
            yield _Cap(USD, max(left, 0.0), owner=self._owner)
        if self._budgets is None:
            return
        yield from _caps_of(self._budgets.of_team(marking))
        for role, use in self._budgets.of_roles(marking):
            yield from _caps_of(use, marking.graph.by_role.get(role, ()))


def _caps_of(use: BudgetUse, nodes: Collection[str] | None = None) -> Iterator[_Cap]:
    if (usd := use.left_usd()) is not None:
        yield _Cap(USD, usd, nodes)
    if (tokens := use.left_tokens()) is not None:
        yield _Cap(TOKENS, tokens, nodes)


def _live(head: Head, gone: frozenset[int]) -> list[Claim]:
    return [one for one in head.claims if one.token not in gone]


def _rounded_down(share: float, unit: str) -> float:
    """Return *share* as a short number, and never as more than it is."""
    if unit == TOKENS:
        return int(share)
    return math.floor(share * _MICRO) / _MICRO or share


# --- who may run at the same time ------------------------------------------------------


def beside_of(marking: Marking, name: str, busy: Collection[str]) -> Iterator[str]:
    """Yield the agents' nodes that may start while *name* runs, except those that are *busy*.

    Those that may start at once come first: usually nobody asks for more.
    """
    graph, told = marking.graph, {name, *busy}
    for one in marking.waiting:
        if one not in told and marking.may_start(one) and _works(graph, one):
            told.add(one)
            yield one
    below = _behind(graph, [name], frozenset())
    standing = [*marking.waiting, *(n for n, one in marking.active.items() if one.error is None)]
    others = [one for one in standing if one != name and one not in below]
    for one in (*others, *_behind(graph, others, below)):
        if one not in told and _works(graph, one):
            told.add(one)
            yield one


def _behind(graph: Graph, names: list[str], without: Collection[str]) -> dict[str, None]:
    """Return what can be reached from *names* along forward edges, except *without*."""
    found: dict[str, None] = {}
    pending = list(names)
    while pending:
        for target in graph.forward[pending.pop()]:
            if target not in found and target not in without:
                found[target] = None
                pending.append(target)
    return found


def _works(graph: Graph, name: str) -> bool:
    return graph.by_id[name].kind is NodeKind.AGENT
