"""How much the nodes of a run may still spend: limits on usage, and the share of each attempt.

The run and the invocation have limits; for tasks, a plug-in adds a `CapacityRule`. This code runs
in every transition, so nothing here may loop over all nodes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Protocol

from msgspec import Struct

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
"""An attempt waits if its share would be less than an equal share divided by this."""


class UsageCap(Struct, frozen=True):
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
        """Return how much is unreserved, and how many attempts hold an unknown share."""
        shares = [claim.share(self.unit) for claim in held]
        known_shares = [share for share in shares if share is not None]
        return self.left - math.fsum(known_shares), len(shares) - len(known_shares)

    def is_short(self, live: Sequence[Claim]) -> bool:
        """Return whether too little is free to start while others hold the rest.

        When they end, they return what they did not use.
        """
        held_claims = self.select_claims(live)
        if not held_claims:
            return False
        free_amount, unknown_count = self.compute_free(held_claims)
        return free_amount / (unknown_count + 1) < self.left / (len(held_claims) + 1) / FAIR_PART


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


class BudgetShares:
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
        closed_names: Collection[str] = (
            () if self._rule is None else self._rule.find_closed(marking)
        )
        if limited_names := self._find_limited(marking, closed_names):
            closed_names = frozenset(closed_names) | limited_names
        live_claims = _select_live(head, expired) if self._has_caps(marking) else ()
        if not live_claims:
            return closed_names
        for cap in self._iter_shared_caps(head, marking):
            if cap.is_short(live_claims):
                if cap.nodes is None:
                    return marking.graph.by_id.keys()
                closed_names = frozenset(closed_names) | frozenset(cap.nodes)
        return closed_names

    def compute_share(
        self, head: Head, marking: Marking, name: str, places: int, expired: frozenset[int]
    ) -> dict[str, float]:
        """Return the share of an attempt at *name*, by unit; empty: nothing limits it.

        *places* attempts may start now, including this one.
        """
        shares: dict[str, float] = {}
        if not self._has_caps(marking):
            return shares
        live_claims = _select_live(head, expired)
        busy_names = {claim.step for claim in live_claims}
        caps = [cap for cap in self._iter_shared_caps(head, marking) if cap.covers(name)]
        if self._rule is not None:
            caps += self._rule.iter_node_caps(marking, name)
        for cap in caps:
            free_amount, unknown_count = cap.compute_free(cap.select_claims(live_claims))
            other_nodes = (
                node for node in iter_parallel_nodes(marking, name, busy_names) if cap.covers(node)
            )
            divisor = 1 + unknown_count + sum(1 for _ in islice(other_nodes, max(places - 1, 0)))
            share = _round_down(max(free_amount, 0.0) / divisor, cap.unit)
            shares[cap.unit] = min(share, shares.get(cap.unit, share))
        prepared_step = self._prepared.get(name)
        if (
            USD in shares
            and prepared_step is not None
            and prepared_step.step.max_cost_usd is not None
        ):
            shares[USD] = min(shares[USD], prepared_step.step.max_cost_usd)
        return shares

    def _find_limited(self, marking: Marking, closed_names: Collection[str]) -> frozenset[str]:
        """Return the nodes that must not start until the usage limit of their agent is reset.

        An attempt that waits although it has not failed has hit such a limit. A single hit may
        be for one model only. After two, another node would only pay for the same answer.
        """
        executions, prepared_steps = marking.active, self._prepared
        waiting_names = [
            name
            for name, execution in executions.items()
            if is_resting(execution) and not execution.failures
        ]
        limits_met: Counter[str] = Counter()
        for name in waiting_names:
            if name in prepared_steps and name not in closed_names:
                limits_met[prepared_steps[name].agent] += executions[name].attempt
        return frozenset(
            name
            for name, step in (prepared_steps.items() if limits_met else ())
            if limits_met[step.agent] > 1 and name not in executions
        )

    def _has_caps(self, marking: Marking) -> bool:
        """Return whether there is any cap; most runs have none."""
        if self._limits.cost_usd is not None or self.own_usd() is not None:
            return True
        return self._rule is not None and self._rule.has_caps(marking)

    def _iter_shared_caps(self, head: Head, marking: Marking) -> Iterator[UsageCap]:
        """Yield the limits that several nodes share."""
        if (limit_usd := self._limits.cost_usd) is not None:
            yield UsageCap(USD, max(limit_usd - head.usage.cost_usd, 0.0))
        if (left_usd := self.own_usd()) is not None:
            yield UsageCap(USD, max(left_usd, 0.0), owner=self._owner)
        if self._rule is not None:
            yield from self._rule.iter_shared_caps(marking)


def _select_live(head: Head, expired_tokens: frozenset[int]) -> list[Claim]:
    return [claim for claim in head.claims if claim.token not in expired_tokens]


def _round_down(share: float, unit: str) -> float:
    """Return *share*, rounded down to a few digits."""
    if unit == TOKENS:
        return int(share)
    return math.floor(share * _MICRO) / _MICRO or share


# --- who may run at the same time ------------------------------------------------------


def iter_parallel_nodes(marking: Marking, name: str, busy: Collection[str]) -> Iterator[str]:
    """Yield the agents' nodes that may start while *name* runs, except those that are *busy*.

    Nodes that may start now come first, because the caller usually stops after those.
    """
    graph, seen_names = marking.graph, {name, *busy}
    for node in marking.waiting:
        if node not in seen_names and marking.may_start(node) and _is_agent(graph, node):
            seen_names.add(node)
            yield node
    followers = _followers(graph, [name], frozenset())
    active_names = (node for node, execution in marking.active.items() if execution.error is None)
    other_names = [
        node for node in (*marking.waiting, *active_names) if node != name and node not in followers
    ]
    for node in (*other_names, *_followers(graph, other_names, followers)):
        if node not in seen_names and _is_agent(graph, node):
            seen_names.add(node)
            yield node


def _followers(graph: Graph, names: list[str], excluded: Collection[str]) -> dict[str, None]:
    """Return the nodes that forward edges reach from *names*, except *excluded*."""
    reached_names: dict[str, None] = {}
    stack = list(names)
    while stack:
        for target in graph.forward[stack.pop()]:
            if target not in reached_names and target not in excluded:
                reached_names[target] = None
                stack.append(target)
    return reached_names


def _is_agent(graph: Graph, name: str) -> bool:
    return graph.by_id[name].kind is NodeKind.AGENT
