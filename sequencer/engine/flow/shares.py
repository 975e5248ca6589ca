"""What one attempt may use: its share of what is left under every cap that it stands under.

Attempts that run at once must not each count on all that is left. So a claim says what is
held for it, in words that every process reads, and what is held is not given out again
before the attempt has ended. What is left is divided equally among the attempts that may
run at the same time. A client that keeps to its share thereby keeps to the cap; of another
one only what has been recorded is known.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from sequencer.engine.flow.team_budgets import BudgetUse, TeamBudgets
from sequencer.engine.flow.timing import rests
from sequencer.engine.prepared import Prepared
from sequencer.model.head import Claim, Head, Owner
from sequencer.model.limits import RunLimits
from sequencer.model.net.graph import Graph, NodeKind
from sequencer.model.net.marking import Marking

USD, TOKENS = "usd", "tokens"
_MICRO = 1_000_000
FAIR_PART = 2
"""A share that is smaller than the equal one by more than this is not worth an attempt."""


class _Cap(NamedTuple):
    """One cap, and who is under it."""

    unit: str
    left: float
    nodes: Collection[str] | None = None
    """None: all of the graph."""
    owner: Owner | None = None
    """Whose attempts count; None: those of all processes."""

    def covers(self, name: str) -> bool:
        return self.nodes is None or name in self.nodes

    def held(self, live: Sequence[Claim]) -> list[Claim]:
        """Return the claims of *live* that are under it."""
        return [one for one in live if self.covers(one.step) and self.owner in (None, one.owner)]

    def free(self, held: list[Claim]) -> tuple[float, int]:
        """Return what nobody holds, and how many hold an unknown part of that."""
        shares = [one.share(self.unit) for one in held]
        known = [share for share in shares if share is not None]
        return self.left - math.fsum(known), len(shares) - len(known)

    def is_short(self, live: Sequence[Claim]) -> bool:
        """Return whether what is free is too little to begin with while others hold the rest.

        When they end they leave what they have not used.
        """
        held = self.held(live)
        if not held:
            return False
        free, unknown = self.free(held)
        return free / (unknown + 1) < self.left / (len(held) + 1) / FAIR_PART


class Shares:
    """Gives out what the run, its team and this invocation may still use."""

    def __init__(
        self,
        limits: RunLimits,
        budgets: TeamBudgets | None,
        owner: Owner,
        prepared: Mapping[str, Prepared] | None = None,
    ) -> None:
        """Keep to *limits* and *budgets*; the process is *owner*.

        Steps that are *prepared* hold no more than a limit of their own allows them.
        """
        self._limits = limits
        self._budgets = budgets
        self._owner = owner
        self._prepared = {} if prepared is None else prepared
        self.own_usd: Callable[[], float | None] = lambda: None
        """What this invocation may still spend; None: it has no limit."""

    def closed(self, head: Head, marking: Marking, gone: frozenset[int]) -> Collection[str]:
        """Return the agents' nodes that are not to be begun now; *gone* are dead claims."""
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

        *places* attempts may begin now, this one included.
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
        """Return the nodes that are not to be begun while their agent waits for its limit.

        An attempt that rests without a failure has met one. One may be of a single model;
        behind two, whoever asks the same agent for the first time would pay to hear it again.
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
        if self._limits.max_cost_usd is not None or self.own_usd() is not None:
            return True
        return self._budgets is not None and self._budgets.are_set(marking)

    def _common(self, head: Head, marking: Marking) -> Iterator[_Cap]:
        """Yield the caps that several nodes share."""
        if (most := self._limits.max_cost_usd) is not None:
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
    """Yield the agents' nodes that may begin while *name* runs, but for those that are *busy*.

    Those that may begin at once come first: mostly nobody asks for more.
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
    """Return what can be reached from *names* along forward edges, but for what is *without*."""
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
