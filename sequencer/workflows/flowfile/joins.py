"""Decisions that no agent makes, and what reaches them: one output picks a way, several can't.

Where two ways come to such a node at once, their outputs arrive as one map, which fits no
label. It relies on the forward edges having no loop. Not promised: what only a loop, a time
limit or a failure brings together is not found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from graphlib import TopologicalSorter
from operator import and_, or_
from typing import NamedTuple

from sequencer.model.answers import DECISION_FIELDS
from sequencer.model.graph.choices import DEFAULT, groups, is_choice, takes_other_answers
from sequencer.model.graph.graph import Graph, NodeKind
from sequencer.workflows.flowfile.problems import Diagnostics
from sequencer.workflows.flowfile.rules import MAX_COMPARED, FlowGraph, at_once

_MAX_NAMED = 5


class _Join(NamedTuple):
    """What reaches a node that does no work."""

    sources: tuple[str, ...]
    is_certain: bool
    """They arrive together each time; else they may."""


def check_joins(flow: FlowGraph, findings: Diagnostics, *, has_sections: bool) -> None:
    """Tell the decisions without an agent that get several outputs at once.

    That is an error, because the run fails there each time. It is a warning where they only
    may arrive together, where an edge takes all other answers, and in a chart alone, which has
    no place to write the prompt of an agent.
    """
    graph = flow.graph
    for name, join in _joins(graph).items():
        if not is_choice(graph, name) or name in flow.incomplete:
            continue
        takes_all = takes_other_answers(graph, name)
        is_error = join.is_certain and has_sections and not takes_all
        first = join.sources[:_MAX_NAMED]
        listed = f"{', '.join(first[:-1])} and {first[-1]}"
        detail = f"it {'gets' if join.is_certain else 'may get'} the answers of {listed} at once"
        detail += ", and together they fit no label"
        if takes_all:
            has_default = DEFAULT in groups(graph, name)
            edge = f"the edge {DEFAULT!r}" if has_default else "the unlabelled edge"
            detail += f", so the run {'takes' if join.is_certain else 'then takes'} {edge}"
        drawn = "" if graph.by_id[name].kind is NodeKind.DECISION else "draw it as {text} and "
        hint = f"{drawn}give it a section '### {name}' with a prompt, so that an agent decides"
        code = "E-JOIN" if is_error else "W-JOIN"
        findings.tell(code, name, detail, flow.node_positions[name], hint)


def _joins(graph: Graph) -> dict[str, _Join]:
    """Return the nodes without work that more than one output reaches at once."""
    before: dict[str, dict[str, None]] = {name: {} for name in graph.by_id}
    for name, targets in graph.forward.items():
        for target in targets:
            before[target][name] = None
    idle = [name for name, node in graph.by_id.items() if not node.works]
    merging = [name for name in idle if len(before[name]) > 1]
    found = {
        name: _Join(sources, is_certain=True) for name, sources in _certain(graph, merging).items()
    }
    # Nobody is called twice: what is certain is no guess any more.
    asked = {name: [*before[name]] for name in merging if name not in found}
    for name, one, other in at_once(graph, asked):
        found[name] = _Join((one, other), is_certain=False)
    # A node that hands the map on to the next one makes no choice of its own.
    for name in TopologicalSorter(before).static_order():
        if name in found and not is_choice(graph, name):
            handed = (one for one in graph.forward[name] if not graph.by_id[one].works)
            for target in handed:
                found.setdefault(target, found[name])
    # One called as the field of a decision would be is what the map then decides.
    return {name: join for name, join in found.items() if not {*join.sources} & {*DECISION_FIELDS}}


def _certain(graph: Graph, merging: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
    """Return which of *merging* get several outputs each time that a run divides somewhere."""
    wanted = {*merging}
    edges = [
        place
        for place, edge in enumerate(graph.edges)
        if edge.target in wanted and place not in graph.back_edges
    ][:MAX_COMPARED]
    bits = {place: 1 << number for number, place in enumerate(edges)}
    sure: dict[str, int] = {}
    for name in TopologicalSorter(graph.forward).static_order():
        sure[name] = reduce(and_, ways) if (ways := [*_ways(graph, name, bits, sure)]) else 0
    found: dict[str, tuple[str, ...]] = {}
    divided = [name for name in graph.by_id if len(graph.forward[name]) > 1]
    starts = reduce(or_, (sure[name] for name in graph.entries))
    later = (sure[name] for name in divided if name in graph.reachable)
    for reached in dict.fromkeys([starts, *later]):
        together: dict[str, dict[str, None]] = {}
        for place, bit in bits.items() if reached else ():
            if reached & bit:
                edge = graph.edges[place]
                together.setdefault(edge.target, {})[edge.source] = None
        for target, sources in together.items():
            if len(sources) > 1:
                found.setdefault(target, tuple(sources))
    return found


def _ways(
    graph: Graph, name: str, bits: Mapping[int, int], sure: Mapping[str, int]
) -> Iterator[int]:
    """Yield, for each way that a run may go on from *name*, the edges that it then follows."""
    places = graph.outgoing[name]
    choices = groups(graph, name).values() if is_choice(graph, name) else [places]
    for chosen in choices:
        ahead = [place for place in chosen if place not in graph.back_edges]
        # What only leads back comes here again.
        if ahead or not chosen:
            taken = (bits.get(place, 0) | sure[graph.edges[place].target] for place in ahead)
            yield reduce(or_, taken, 0)
    if graph.by_id[name].on_timeout is not None:
        yield 0
