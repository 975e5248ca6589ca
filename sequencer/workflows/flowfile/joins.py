"""Checks decisions without an agent: one output can pick a way, several outputs can't.

If two ways reach such a node at once, their outputs arrive as one map, which fits no label.

Relied on: the forward edges have no loop. Not promised: to find outputs that meet only because
of a loop, a time limit or a failure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from graphlib import TopologicalSorter
from operator import and_, or_
from typing import NamedTuple

from sequencer.model.answers import DECISION_FIELDS
from sequencer.model.graph.choices import DEFAULT, group_edges, has_fallback_branch, is_choice
from sequencer.model.graph.graph import Graph, NodeKind
from sequencer.workflows.flowfile.problems import Diagnostics
from sequencer.workflows.flowfile.rules import MAX_COMPARED, FlowGraph, find_parallel_pairs

_MAX_NAMED = 5


class _Join(NamedTuple):
    """The nodes whose outputs reach a node without work."""

    sources: tuple[str, ...]
    is_certain: bool
    """True: they always arrive together; False: they may."""


def check_joins(flow: FlowGraph, diagnostics: Diagnostics, *, has_sections: bool) -> None:
    """Report the decisions without an agent that get several outputs at once.

    That is an error, because the run always fails there. It is only a warning if the outputs may
    also arrive separately, if an edge takes all other answers, or in a file with only a chart,
    which has no place for an agent's prompt.
    """
    graph = flow.graph
    for name, join in _find_joins(graph).items():
        if not is_choice(graph, name) or name in flow.incomplete:
            continue
        takes_all = has_fallback_branch(graph, name)
        is_error = join.is_certain and has_sections and not takes_all
        first = join.sources[:_MAX_NAMED]
        listed = f"{', '.join(first[:-1])} and {first[-1]}"
        detail = f"it {'gets' if join.is_certain else 'may get'} the answers of {listed} at once"
        detail += ", and together they fit no label"
        if takes_all:
            has_default = DEFAULT in group_edges(graph, name)
            edge = f"the edge {DEFAULT!r}" if has_default else "the unlabeled edge"
            detail += f", so the run {'takes' if join.is_certain else 'then takes'} {edge}"
        drawn = "" if graph.by_id[name].kind is NodeKind.DECISION else "draw it as {text} and "
        hint = f"{drawn}give it a section '### {name}' with a prompt, so that an agent decides"
        code = "E-JOIN" if is_error else "W-JOIN"
        diagnostics.add(code, name, detail, flow.node_positions[name], hint)


def _find_joins(graph: Graph) -> dict[str, _Join]:
    """Return the nodes without work that more than one output can reach at once."""
    before: dict[str, dict[str, None]] = {name: {} for name in graph.by_id}
    for name, targets in graph.forward.items():
        for target in targets:
            before[target][name] = None
    idle = [name for name, node in graph.by_id.items() if not node.works]
    merging = [name for name in idle if len(before[name]) > 1]
    joins = {
        name: _Join(sources, is_certain=True)
        for name, sources in _find_certain_joins(graph, merging).items()
    }
    # Only nodes that are not certain need the second check.
    uncertain = {name: [*before[name]] for name in merging if name not in joins}
    for name, first, second in find_parallel_pairs(graph, uncertain):
        joins[name] = _Join((first, second), is_certain=False)
    # A node without a choice passes the map on to the next node.
    for name in TopologicalSorter(before).static_order():
        if name in joins and not is_choice(graph, name):
            idle_targets = (n for n in graph.forward[name] if not graph.by_id[n].works)
            for target in idle_targets:
                joins.setdefault(target, joins[name])
    # A node with the name of a decision field makes the map a valid decision.
    return {name: join for name, join in joins.items() if not {*join.sources} & {*DECISION_FIELDS}}


def _find_certain_joins(graph: Graph, merging: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
    """Return the nodes of *merging* that always get several outputs after a run divides."""
    wanted = {*merging}
    edges = [
        index
        for index, edge in enumerate(graph.edges)
        if edge.target in wanted and index not in graph.back_edges
    ][:MAX_COMPARED]
    bits = {index: 1 << number for number, index in enumerate(edges)}
    sure: dict[str, int] = {}
    for name in TopologicalSorter(graph.forward).static_order():
        sure[name] = (
            reduce(and_, ways) if (ways := [*_iter_certain_edges(graph, name, bits, sure)]) else 0
        )
    certain: dict[str, tuple[str, ...]] = {}
    divided = [name for name in graph.by_id if len(graph.forward[name]) > 1]
    starts = reduce(or_, (sure[name] for name in graph.entries))
    later = (sure[name] for name in divided if name in graph.reachable)
    for reached in dict.fromkeys([starts, *later]):
        together: dict[str, dict[str, None]] = {}
        for index, bit in bits.items() if reached else ():
            if reached & bit:
                edge = graph.edges[index]
                together.setdefault(edge.target, {})[edge.source] = None
        for target, sources in together.items():
            if len(sources) > 1:
                certain.setdefault(target, tuple(sources))
    return certain


def _iter_certain_edges(
    graph: Graph, name: str, bits: Mapping[int, int], sure: Mapping[str, int]
) -> Iterator[int]:
    """Yield, for each way that a run may take from *name*, the edges that it certainly follows."""
    outgoing = graph.outgoing[name]
    choices = group_edges(graph, name).values() if is_choice(graph, name) else [outgoing]
    for chosen in choices:
        ahead = [index for index in chosen if index not in graph.back_edges]
        # A way that only leads back returns to this node.
        if ahead or not chosen:
            taken = (bits.get(index, 0) | sure[graph.edges[index].target] for index in ahead)
            yield reduce(or_, taken, 0)
    if graph.by_id[name].on_timeout is not None:
        yield 0
