"""Which nodes may run at the same time, as far as the forward edges say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import or_

from sequencer.model.net.graph import Graph
from sequencer.model.net.rules import groups

MAX_COMPARED = 256
"""Nodes that are compared with each other; those that come later in the chart are not."""
_MAX_EXACT = 200
"""Splits that are looked at closely; of all others the worst is believed."""


def at_once(graph: Graph, shared: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, str, str]]:
    """Yield each key of *shared* of whose nodes two may run at once, with the first two.

    Two nodes may if neither leads to the other, and a run divides somewhere (several edges
    of one label, or a beginning of several nodes) into ways that come to the two without
    meeting before. Loops may let more nodes meet than this says.
    """
    members = [(key, name) for key, names in shared.items() for name in names][:MAX_COMPARED]
    if not members:
        return
    bits = {name: 1 << place for place, (_, name) in enumerate(members)}
    below = _below(graph, bits)
    of_key: dict[str, int] = {}
    for key, name in members:
        of_key[key] = of_key.get(key, 0) | bits[name]
    splits = list(_splits(graph, below))
    found: set[str] = set()
    looked_at: set[int] = set()
    for key, name in members:
        if key in found:
            continue
        above = sum(bits[other] for _, other in members if below[other] & bits[name])
        strangers = of_key[key] & ~below[name] & ~above
        for place, split in enumerate(splits):
            others = split.met(bits[name]) & strangers if strangers else 0
            met = [other for one, other in members if one == key and others & bits[other]]
            if met and (place in looked_at or len(looked_at) < _MAX_EXACT):
                looked_at.add(place)
                met = [other for other in met if split.keeps_apart(name, other)]
            if met:
                found.add(key)
                yield key, name, met[0]
                break


@dataclass
class _Split:
    """A place where a run divides."""

    graph: Graph
    targets: Sequence[str]
    ways: Sequence[int]
    """Which of the compared nodes each target leads to."""

    def met(self, bit: int) -> int:
        """Return what is led to by other ways than *bit* is."""
        own = sum(1 for way in self.ways if way & bit)
        if not own:
            return 0
        # A node on several ways meets, on each of them, what the others lead to.
        return reduce(or_, (way for way in self.ways if own > 1 or not way & bit), 0)

    def keeps_apart(self, one: str, other: str) -> bool:
        """Return whether there are ways to both that have no node in common.

        What passes a common node merges there into one token, so the two have to be on
        different branches of the tree of dominators.
        """
        return self._branch[one] != self._branch[other]

    @cached_property
    def _branch(self) -> dict[str, str]:
        """Return, for each node, the node next to the split that all ways to it pass.

        A node that can be reached past each other one is such a node itself.
        """
        graph, order = self.graph, self._order
        before: dict[str, set[str]] = {}
        for name in order:
            for place in graph.outgoing[name]:
                if place not in graph.back_edges:
                    before.setdefault(graph.edges[place].target, set()).add(name)
        found: dict[str, str] = {}
        for name in order:
            passed = {found[source] for source in before.get(name, ())}
            is_first = name in self.targets or len(passed) > 1
            found[name] = name if is_first else passed.pop()
        return found

    @cached_property
    def _order(self) -> list[str]:
        """Return what the split leads to, each node after all that lead to it."""
        graph, done = self.graph, dict[str, None]()
        seen: set[str] = set()
        pending = [(target, False) for target in self.targets]
        while pending:
            name, is_left = pending.pop()
            if is_left:
                done[name] = None
            elif name not in seen:
                seen.add(name)
                pending.append((name, True))
                places = (place for place in graph.outgoing[name] if place not in graph.back_edges)
                pending += [(graph.edges[place].target, False) for place in places]
        return list(reversed(done))


def _splits(graph: Graph, below: Mapping[str, int]) -> Iterator[_Split]:
    if len(graph.entries) > 1:
        yield _Split(graph, graph.entries, [below[name] for name in graph.entries])
    for name in graph.by_id:
        if len(graph.outgoing[name]) < 2:  # noqa: PLR2004 - one edge divides nothing
            continue
        for places in groups(graph, name).values():
            forward = [place for place in places if place not in graph.back_edges]
            targets = [graph.edges[place].target for place in forward]
            ways = [below[target] for target in targets]
            if sum(1 for way in ways if way) > 1:
                yield _Split(graph, targets, ways)


def _below(graph: Graph, bits: Mapping[str, int]) -> dict[str, int]:
    """Return which of the nodes with *bits* each node leads to, itself included."""
    found = {name: bits.get(name, 0) for name in graph.by_id}
    before: dict[str, list[str]] = {name: [] for name in graph.by_id}
    waits_for = dict.fromkeys(graph.by_id, 0)
    for place, edge in enumerate(graph.edges):
        if place not in graph.back_edges:
            before[edge.target].append(edge.source)
            waits_for[edge.source] += 1
    # From the ends: a node is done when all that it leads to is.
    done = [name for name, count in waits_for.items() if not count]
    while done:
        name = done.pop()
        for source in before[name]:
            found[source] |= found[name]
            waits_for[source] -= 1
            if not waits_for[source]:
                done.append(source)
    return found
