"""Whether a graph's run can continue under another workflow, and what its marking is then."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from sequencer.errors import TransitionRefused
from sequencer.model.by_hand import other_kind
from sequencer.model.head import Head
from sequencer.model.net import record as flow_record
from sequencer.model.net.graph import Graph, grown_graph
from sequencer.model.net.marking import FlowStatus, Marking
from sequencer.model.net.record import Chain
from sequencer.model.net.source import differences
from sequencer.model.net.transition import rest_of
from sequencer.model.transitions import Transition
from sequencer.model.workflow import Workflow

MAX_TOLD = 20
"""Differences that the history names."""


def adopted(
    head: Head, made: Transition, new: Workflow, begun: tuple[Workflow, Marking, Chain]
) -> Transition:
    """Return *made*, which adopts the workflow *new*, with the marking carried over.

    *begun* is what the run of *head* was started with, and its marking.

    Raises:
        TransitionRefused: the run stands at nodes that the new workflow does not have.
    """
    before, marking, chain = begun
    if new.graph is None or head.flow is None:
        raise other_kind(head)
    graph = _with_growths(marking, new.graph)
    _ensure_there(marking, graph)
    found = _with_tokens(marking, graph) if graph.is_team else flow_record.snapshot(marking)
    carried = flow_record.restored(new.graph, found, marking.status)
    rest = rest_of(carried) if graph.is_team else head.flow.rest
    written = flow_record.write(carried, rest, None, Chain(), ())
    told = differences(before, new)
    note = "; ".join(told[:MAX_TOLD])
    if len(told) > MAX_TOLD:
        note += f"; and {len(told) - MAX_TOLD} more"
    facts = tuple(
        replace(fact, outcome={**(fact.outcome or {}), "note": note}) for fact in made.facts
    )
    flow, keeps = written.flow.replace(begun_at=head.flow.begun_at), None
    if written.document is not None:
        keeps = frozenset({written.document[0], *chain.names})
    return Transition(made.head.replace(flow=flow), facts, written.document, keeps)


def _with_tokens(marking: Marking, graph: Graph) -> dict[str, Any]:
    """Return the snapshot of *marking*, a team's, with the tokens that *graph* asks for.

    What has begun or has ended stays as it is. Each other task gets a token from each done
    task before it; what is still to come before it brings its own, and they merge.
    """
    found = flow_record.snapshot(marking)
    if marking.is_over and not marking.ended_at:
        return found
    begun = [entry for entry in marking.ended_at if entry[2]]
    passed = {*marking.done, *marking.active, *(entry[0] for entry in begun)}
    tokens = {
        name: [source for source in before if source in marking.done]
        for name, before in graph.incoming.items()
        if name not in passed and (not before or not marking.done.keys().isdisjoint(before))
    }
    if marking.status is FlowStatus.RUNNING:
        return {**found, "waiting": tokens}
    kept = [[name, sources, False] for name, sources in tokens.items()]
    return {**found, "ended_at": begun + kept}


def _with_growths(marking: Marking, graph: Graph) -> Graph:
    """Return *graph* with what was added to the run."""
    for growth in marking.growths:
        try:
            graph = grown_graph(graph, growth)
        except ValueError as error:
            names = ", ".join(repr(node.id) for node in growth.nodes)
            raise TransitionRefused(
                f"adopt: the tasks {names} were added under way, and don't fit to the new "
                f"workflow: {error}",
                hint="keep the nodes that they hang on, and let no other one have their names",
            ) from None
    return graph


def _ensure_there(marking: Marking, graph: Graph) -> None:
    ended = [entry[0] for entry in marking.ended_at]
    standing = dict.fromkeys([*marking.active, *marking.waiting, *ended])
    gone = [name for name in standing if name not in graph.by_id]
    asked = [name for name, active in marking.active.items() if active.since]
    changed = [
        name
        for name in marking.active
        if name in graph.by_id and graph.by_id[name].kind != marking.graph.by_id[name].kind
    ]
    if gone or changed:
        names = ", ".join(map(repr, gone or changed))
        what = "are gone" if gone else "are of another kind now"
        raise TransitionRefused(
            f"adopt: the run stands at {names}, which {what} in the new workflow",
            hint="answer what is asked first" if asked else "keep these nodes until they are done",
        )
