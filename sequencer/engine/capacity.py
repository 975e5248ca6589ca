"""How much the nodes of a run may still spend: limits on usage, and the share of each attempt.

The run and the invocation have limits; for tasks, a plug-in adds a `CapacityRule`. This code runs
in every transition, so nothing here may loop over all nodes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple, Protocol

from sequencer.engine.attempt import PreparedStep
from sequencer.model.graph.graph import Graph, NodeKind
from sequencer.model.graph.marking import Marking
from sequencer.model.graph.transition import OpenTransition, is_resting
from sequencer.model.head import Claim, Head, Owner
from sequencer.model.limits import RunLimits
from sequencer.model.outcome import Usage

USD, TOKENS = "usd", "tokens"
_MICRO = 1_000_000
FAIR_PART = 2
"""A share that is smaller than an equal share by more than this is not worth an attempt."""


class UsageCap(NamedTuple):
    """The rest of one usage limit, and the nodes that share it."""

    unit: str
    left: float
    nodes: Collection[str] | None = None
    """None: the whole graph."""
    owner: Owner | None = None
    """The process whose attempts count; None: all processes."""

    def covers(self, name: str) -> bool:
        """Return whether the limit applies to node *name*."""
        return self.nodes is None or name in self.nodes

    def select_claims(self, live: Sequence[Claim]) -> list[Claim]:
        """Return the claims in *live* to which the limit applies."""
        return [
            claim for claim in live if self.covers(claim.step) and self.owner in (None, claim.owner)
        ]

    def compute_free(self, held: list[Claim]) -> tuple[float, int]:
        """Return how much no attempt holds, and how many attempts hold an unknown share."""
        shares = [claim.share(self.unit) for claim in held]
        known = [share for share in shares if share is not None]
        return self.left - math.fsum(known), len(shares) - len(known)

    def is_short(self, live: Sequence[Claim]) -> bool:
        """Return whether too little is free to start while others hold the rest.

        When they end, they return what they did not use.
        """
        held = self.select_claims(live)
        if not held:
            return False
        free, unknown = self.compute_free(held)
        return free / (unknown + 1) < self.left / (len(held) + 1) / FAIR_PART


class CapacityRule(Protocol):
    """Limits on the nodes of a run, in addition to ``limits:``. They depend on the marking only."""

    @property
    def kills(self) -> bool:
        """Return whether reaching a limit stops running attempts."""

    def has_caps(self, marking: Marking) -> bool:
        """Return whether there is any limit on usage."""

    def iter_shared_caps(self, marking: Marking) -> Iterator[UsageCap]:
        """Yield the limits on usage that several nodes share."""

    def iter_node_caps(self, marking: Marking, name: str) -> Iterator[UsageCap]:
        """Yield the limits of node *name* alone."""

    def find_closed(self, marking: Marking) -> Collection[str]:
        """Return the nodes that must not start now."""

    def describe_reached(self, marking: Marking) -> list[str]:
        """Return a line for each limit that is reached and keeps ready nodes from starting."""

    def find_stop_reason(self, marking: Marking) -> str | None:
        """Return what keeps ready nodes from starting, if anything does.

        Raises:
            TooManyFailures: so many attempts failed that a person has to continue the run.
        """

    def find_nodes_to_kill(self, marking: Marking, running: Mapping[str, Usage]) -> Collection[str]:
        """Return the nodes whose running attempts must be stopped.

        *running* is what unrecorded attempts have used so far, by node.
        """

    def warn_about_limits(self, step: OpenTransition) -> None:
        """Warn in *step*, once each, about limits that are almost or fully used."""


class Shares:
    """Divides what the run, its tasks and this invocation may still use among the attempts."""

    def __init__(
        self,
        limits: RunLimits,
        rule: CapacityRule | None,
        owner: Owner,
        prepared: Mapping[str, PreparedStep] | None = None,
    ) -> None:
        """Apply *limits* and *rule*; the process is *owner*.

        A step in *prepared*, by node, gets no more than its own limit allows.
        """
        self._limits = limits
        self._rule = rule
        self._owner = owner
        self._prepared = {} if prepared is None else prepared
        self.own_usd: Callable[[], float | None] = lambda: None
        """What this invocation may still spend; None: it has no limit."""

    def apply_limits(self, limits: RunLimits) -> None:
        """Use *limits* from now on."""
        self._limits = limits

    def find_closed(self, head: Head, marking: Marking, expired: frozenset[int]) -> Collection[str]:
        """Return the agents' nodes that must not start now; *expired* may be taken over."""
        closed: Collection[str] = () if self._rule is None else self._rule.find_closed(marking)
        if limited := self._find_limited(marking, closed):
            closed = frozenset(closed) | limited
        live = _select_live(head, expired) if self._has_caps(marking) else ()
        if not live:
            return closed
        for cap in self._iter_shared_caps(head, marking):
            if cap.is_short(live):
                if cap.nodes is None:
                    return marking.graph.by_id.keys()
                closed = frozenset(closed) | frozenset(cap.nodes)
        return closed

    def compute_share(
        self, head: Head, marking: Marking, name: str, places: int, expired: frozenset[int]
    ) -> dict[str, float]:
        """Return the share of an attempt at *name*, by unit; empty: nothing limits it.

        *places* attempts may start now, including this one.
        """
        shares: dict[str, float] = {}
        if not self._has_caps(marking):
            return shares
        live = _select_live(head, expired)
        busy = {claim.step for claim in live}
        caps = [cap for cap in self._iter_shared_caps(head, marking) if cap.covers(name)]
        if self._rule is not None:
            caps += self._rule.iter_node_caps(marking, name)
        for cap in caps:
            free, unknown = cap.compute_free(cap.select_claims(live))
            others = (node for node in iter_parallel_nodes(marking, name, busy) if cap.covers(node))
            divisor = 1 + unknown + sum(1 for _ in islice(others, max(places - 1, 0)))
            share = _round_down(max(free, 0.0) / divisor, cap.unit)
            shares[cap.unit] = min(share, shares.get(cap.unit, share))
        prepared = self._prepared.get(name)
        if USD in shares and prepared is not None and prepared.step.max_cost_usd is not None:
            shares[USD] = min(shares[USD], prepared.step.max_cost_usd)
        return shares

    def _find_limited(self, marking: Marking, closed: Collection[str]) -> frozenset[str]:
        """Return the nodes that must not start until the usage limit of their agent is reset.

        An attempt that rests without a failure has met such a limit. A single limit may be for
        one model only. After two, another node with the same agent would pay only to get the
        same answer.
        """
        active, prepared = marking.active, self._prepared
        met: Counter[str] = Counter()
        for name, execution in active.items():
            has_met = is_resting(execution) and not execution.failures
            if has_met and name in prepared and name not in closed:
                met[prepared[name].agent] += execution.attempt
        return frozenset(
            name
            for name, step in (prepared.items() if met else ())
            if met[step.agent] > 1 and name not in active
        )

    def _has_caps(self, marking: Marking) -> bool:
        """Return whether there is any cap; most runs have none."""
        if self._limits.cost_usd is not None or self.own_usd() is not None:
            return True
        return self._rule is not None and self._rule.has_caps(marking)

    def _iter_shared_caps(self, head: Head, marking: Marking) -> Iterator[UsageCap]:
        """Yield the limits that several nodes share."""
        if (most := self._limits.cost_usd) is not None:
            yield UsageCap(USD, max(most - head.usage.cost_usd, 0.0))
        if (left := self.own_usd()) is not None:
            yield UsageCap(USD, max(left, 0.0), owner=self._owner)
        if self._rule is not None:
            yield from self._rule.iter_shared_caps(marking)


def _select_live(head: Head, expired: frozenset[int]) -> list[Claim]:
    return [claim for claim in head.claims if claim.token not in expired]


def _round_down(share: float, unit: str) -> float:
    """Return *share* with few digits, and never more than it is."""
    if unit == TOKENS:
        return int(share)
    return math.floor(share * _MICRO) / _MICRO or share


# --- who may run at the same time ------------------------------------------------------


def iter_parallel_nodes(marking: Marking, name: str, busy: Collection[str]) -> Iterator[str]:
    """Yield the agents' nodes that may start while *name* runs, except those that are *busy*.

    Nodes that may start now come first, because the caller usually stops after those.
    """
    graph, seen = marking.graph, {name, *busy}
    for node in marking.waiting:
        if node not in seen and marking.may_start(node) and _is_agent(graph, node):
            seen.add(node)
            yield node
    followers = _followers(graph, [name], frozenset())
    active = (node for node, execution in marking.active.items() if execution.error is None)
    others = [
        node for node in (*marking.waiting, *active) if node != name and node not in followers
    ]
    for node in (*others, *_followers(graph, others, followers)):
        if node not in seen and _is_agent(graph, node):
            seen.add(node)
            yield node


def _followers(graph: Graph, names: list[str], without: Collection[str]) -> dict[str, None]:
    """Return the nodes that forward edges reach from *names*, except *without*."""
    reached: dict[str, None] = {}
    pending = list(names)
    while pending:
        for target in graph.forward[pending.pop()]:
            if target not in reached and target not in without:
                reached[target] = None
                pending.append(target)
    return reached


def _is_agent(graph: Graph, name: str) -> bool:
    return graph.by_id[name].kind is NodeKind.AGENT
