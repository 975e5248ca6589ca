"""Go on with a graph run under a workflow that was changed meanwhile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from sequencer.engine.flow.keeping import Keeper
from sequencer.engine.flow.resulting import rest_of
from sequencer.errors import CorruptState, TransitionRefused
from sequencer.model.head import FLOW_DOCUMENT, Head
from sequencer.model.names import command
from sequencer.model.net import record as flow_record
from sequencer.model.net.graph import Graph, grown_graph
from sequencer.model.net.marking import FlowStatus, Marking
from sequencer.model.net.record import Chain
from sequencer.model.net.source import FlowSource, differences
from sequencer.model.transitions import Transition
from sequencer.model.workflow import Workflow
from sequencer.store.protocol import Store

MAX_TOLD = 20


def adopted(store: Store, head: Head, made: Transition, source: FlowSource) -> Transition:
    """Return *made*, which adopts the workflow of *source*, with the marking carried over.

    To be called under the store's lock: the run's copy of its workflow is replaced.

    Raises:
        TransitionRefused: the run stands at nodes that the new workflow does not have, or
            one of the two workflows is no graph.
        CorruptState: what the run was begun with can't be read.
    """
    new = source.workflow.graph
    before = _begun_with(store, head)
    if new is None or head.flow is None or before.graph is None:
        raise TransitionRefused(
            "adopt: a graph can't take the place of a line of steps, nor the other way round",
            hint=f"{command(head.run_name, 'reset')} begins again with the new workflow",
        )
    marking, chain = Keeper(store, before.graph).take(head)
    graph = _with_growths(marking, new)
    _ensure_there(marking, graph)
    found = _with_tokens(marking, graph) if new.is_team else flow_record.snapshot(marking)
    carried = flow_record.restored(new, found, marking.status)
    rest = rest_of(carried) if new.is_team else head.flow.rest
    written = flow_record.write(carried, rest, None, Chain(), ())
    if written.document is not None:
        store.forget_documents(flow_record.PREFIX, {written.document[0], *chain.names})
        store.keep_document(*written.document)
    # Both, because a crash may leave the head that has the one or the head that has the other.
    both = source.model_copy(update={"previous": before})
    store.keep_document(FLOW_DOCUMENT, both.to_json())
    told = differences(before, source.workflow)
    note = "; ".join(told[:MAX_TOLD])
    if len(told) > MAX_TOLD:
        note += f"; and {len(told) - MAX_TOLD} more"
    facts = tuple(
        replace(fact, outcome={**(fact.outcome or {}), "note": note}) for fact in made.facts
    )
    flow = written.flow.replace(begun_at=head.flow.begun_at)
    return Transition(made.head.replace(flow=flow), facts)


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


def _begun_with(store: Store, head: Head) -> Workflow:
    data = store.document(FLOW_DOCUMENT)
    where = str(store.state_path.with_name(FLOW_DOCUMENT))
    if data is None:
        raise CorruptState("what the run was begun with is missing", where=where)
    try:
        return FlowSource.model_validate_json(data).as_of(head.workflow_digest)
    except ValidationError:
        raise CorruptState("can't be read for what the run was begun with", where=where) from None


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
