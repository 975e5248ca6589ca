"""Which nodes may run at the same time, as far as the forward edges say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import or_

from sequencer.model.branching import groups
from sequencer.model.graph import Graph

MAX_COMPARED = 256
"""Nodes that are compared with each other; those that come later in the chart are not."""


def at_once(graph: Graph, shared: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, str, str]]:
    """Yield each key of *shared* of whose nodes two may run at once, with the first two.

    Two nodes may if neither leads to the other and a node with several edges of one label,
    or a beginning of several nodes, leads to both by different edges. Loops may let more
    nodes meet than this says.
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
    for key, name in members:
        if key in found:
            continue
        above = sum(bits[other] for _, other in members if below[other] & bits[name])
        others = _met(splits, bits[name]) & of_key[key] & ~below[name] & ~above
        if others:
            found.add(key)
            first = (others & -others).bit_length() - 1
            yield key, name, members[first][1]


def _met(splits: Sequence[Sequence[int]], bit: int) -> int:
    """Return what is led to by other ways than *bit* is, from the same split."""
    found = 0
    for ways in splits:
        own = sum(1 for way in ways if way & bit)
        if own:
            # A node on several ways meets, on each of them, what the others lead to.
            found |= reduce(or_, (way for way in ways if own > 1 or not way & bit), 0)
    return found


def _splits(graph: Graph, below: Mapping[str, int]) -> Iterator[list[int]]:
    """Yield, for each place where a run divides, which nodes each of its ways leads to."""
    if len(graph.entries) > 1:
        yield [below[name] for name in graph.entries]
    for name in graph.by_id:
        if len(graph.outgoing[name]) < 2:  # noqa: PLR2004 - one edge divides nothing
            continue
        for places in groups(graph, name).values():
            ways = [below[graph.edges[place].target] for place in places]
            if sum(1 for way in ways if way) > 1:
                yield ways


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
