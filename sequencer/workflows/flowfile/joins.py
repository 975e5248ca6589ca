"""Checks decisions without an agent: one output can pick a branch, several outputs can't.

If two paths reach such a node together, their outputs arrive as one map, which fits no label.

Relied on: the forward edges form no loop. Not promised: to find outputs that meet only because
of a loop, a time limit or a failure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from graphlib import TopologicalSorter
from operator import and_, or_

from msgspec import Struct

from sequencer.model.answers import DECISION_FIELDS
from sequencer.model.graph.choices import DEFAULT, group_edges, has_fallback_branch, is_choice
from sequencer.model.graph.graph import Graph, NodeKind
from sequencer.workflows.flowfile.problems import Diagnostics
from sequencer.workflows.flowfile.rules import MAX_COMPARED, FlowGraph, find_parallel_pairs

_MAX_NAMED = 5


class _Join(Struct, frozen=True):
    """The nodes whose outputs reach a node without work."""

    sources: tuple[str, ...]
    is_certain: bool
    """True: they always arrive together; False: they may."""


def check_joins(flow: FlowGraph, diagnostics: Diagnostics, *, has_sections: bool) -> None:
    """Report the decisions without an agent that get several outputs together.

    That is an error, because the run always fails there. It is only a warning if the outputs may
    also arrive separately, if an edge takes all other answers, or in a file with only a chart,
    which has no place for an agent's prompt.
    """
    graph = flow.graph
    for name, join in _find_joins(graph).items():
        if not is_choice(graph, name) or name in flow.incomplete:
            continue
        has_fallback = has_fallback_branch(graph, name)
        is_error = join.is_certain and has_sections and not has_fallback
        first_sources = join.sources[:_MAX_NAMED]
        sources_text = f"{', '.join(first_sources[:-1])} and {first_sources[-1]}"
        detail = (
            f"it {'gets' if join.is_certain else 'may get'} the answers of {sources_text} at once"
        )
        detail += ", and together they fit no label"
        if has_fallback:
            has_default = DEFAULT in group_edges(graph, name)
            edge = f"the edge {DEFAULT!r}" if has_default else "the unlabeled edge"
            detail += f", so the run {'takes' if join.is_certain else 'then takes'} {edge}"
        shape_hint = "" if graph.by_id[name].kind is NodeKind.DECISION else "draw it as {text} and "
        hint = f"{shape_hint}give it a section '### {name}' with a prompt, so that an agent decides"
        code = "E-JOIN" if is_error else "W-JOIN"
        diagnostics.add(code, name, detail, flow.node_positions[name], hint)


def _find_joins(graph: Graph) -> dict[str, _Join]:
    """Return the nodes without work that several outputs can reach together."""
    sources_of: dict[str, dict[str, None]] = {name: {} for name in graph.by_id}
    for name, targets in graph.forward.items():
        for target in targets:
            sources_of[target][name] = None
    idle_names = [name for name, node in graph.by_id.items() if not node.works]
    merging_names = [name for name in idle_names if len(sources_of[name]) > 1]
    joins = {
        name: _Join(sources, is_certain=True)
        for name, sources in _find_certain_joins(graph, merging_names).items()
    }
    # Only nodes that are not certain need the second check.
    uncertain_sources = {name: [*sources_of[name]] for name in merging_names if name not in joins}
    for name, first, second in find_parallel_pairs(graph, uncertain_sources):
        joins[name] = _Join((first, second), is_certain=False)
    # A node without a choice passes the map on to the next node.
    for name in TopologicalSorter(sources_of).static_order():
        if name in joins and not is_choice(graph, name):
            idle_targets = (
                target_name
                for target_name in graph.forward[name]
                if not graph.by_id[target_name].works
            )
            for target in idle_targets:
                joins.setdefault(target, joins[name])
    # A node with the name of a decision field makes the map a valid decision.
    return {name: join for name, join in joins.items() if not {*join.sources} & {*DECISION_FIELDS}}


def _find_certain_joins(
    graph: Graph, merging_names: Sequence[str]
) -> Mapping[str, tuple[str, ...]]:
    """Return, for nodes of *merging_names*, the nodes whose outputs they certainly get together.

    Each edge to one of these nodes is a bit. `certain_bits` has, for each node, the edges that
    every run follows from there; it is computed backward from the ends. Where a run splits, a
    target of two such edges certainly gets both outputs.
    """
    targets = {*merging_names}
    edges = [
        index
        for index, edge in enumerate(graph.edges)
        if edge.target in targets and index not in graph.back_edges
    ][:MAX_COMPARED]
    bits = {index: 1 << number for number, index in enumerate(edges)}
    certain_bits: dict[str, int] = {}
    for name in TopologicalSorter(graph.forward).static_order():
        certain_bits[name] = (
            reduce(and_, ways)
            if (ways := [*_iter_certain_edges(graph, name, bits, certain_bits)])
            else 0
        )
    certain_joins: dict[str, tuple[str, ...]] = {}
    dividing_names = [name for name in graph.by_id if len(graph.forward[name]) > 1]
    start_bits = reduce(or_, (certain_bits[name] for name in graph.entries))
    later_bits = (certain_bits[name] for name in dividing_names if name in graph.reachable)
    for reached_bits in dict.fromkeys([start_bits, *later_bits]):
        sources_by_target: dict[str, dict[str, None]] = {}
        for index, bit in bits.items() if reached_bits else ():
            if reached_bits & bit:
                edge = graph.edges[index]
                sources_by_target.setdefault(edge.target, {})[edge.source] = None
        for target, sources in sources_by_target.items():
            if len(sources) > 1:
                certain_joins.setdefault(target, tuple(sources))
    return certain_joins


def _iter_certain_edges(
    graph: Graph, name: str, bits: Mapping[int, int], certain_bits: Mapping[str, int]
) -> Iterator[int]:
    """Yield, for each way that a run may take from *name*, the edges that it certainly follows."""
    outgoing = graph.outgoing[name]
    choices = group_edges(graph, name).values() if is_choice(graph, name) else [outgoing]
    for choice in choices:
        forward_edges = [index for index in choice if index not in graph.back_edges]
        # A way that only leads back returns to this node.
        if forward_edges or not choice:
            ways = (
                bits.get(index, 0) | certain_bits[graph.edges[index].target]
                for index in forward_edges
            )
            yield reduce(or_, ways, 0)
    if graph.by_id[name].on_timeout is not None:
        yield 0
