"""Commands of a person for the run of a graph: answers, messages, changes of nodes, adoption.

A node that a process runs can't be changed. A rewind takes back the node and every node after it
along forward edges, and nothing else: tokens from other nodes are put back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Any, Protocol

from msgspec.structs import replace

from sequencer.errors import TransitionRefused, UnknownName
from sequencer.errors import format_command as typed_line
from sequencer.model.command_rules import other_kind_error
from sequencer.model.commands import (
    Accept,
    AnswerQuestion,
    Fail,
    Reject,
    RetryNow,
    Rewind,
    RunCommand,
    Skip,
    StartAt,
    Tell,
)
from sequencer.model.graph import record as flow_record
from sequencer.model.graph.choices import TIMEOUT, NoMatchingBranch, choose, is_choice, normalize
from sequencer.model.graph.graph import Graph, Node, NodeKind, expand_graph
from sequencer.model.graph.marking import FlowStatus, Marking, Reference, read_text
from sequencer.model.graph.record import Chain
from sequencer.model.graph.source import describe_differences
from sequencer.model.graph.transition import OpenTransition, resting_status
from sequencer.model.head import Head
from sequencer.model.sequence.gates import continue_command
from sequencer.model.transitions import Event, Transition
from sequencer.model.workflow import Workflow


class Outputs(Protocol):
    """Stores the outputs of attempts and the answers of people."""

    def read_output(self, name: str) -> str:
        """Return the output of one execution, ``<step_index>-<token>``."""

    def store_output(self, step_index: int, token: int, output: str) -> Reference | None:
        """Store *output* of an execution and return its reference; None: *output* is empty."""


def find_question(marking: Marking, name: str) -> tuple[Node, int]:
    """Return the node *name*, which waits for an answer, and the token of its question.

    Raises:
        UnknownName: no node of this name waits for an answer.
    """
    execution = marking.active.get(name)
    if execution is None or execution.since is None:
        open_names = [node for node, active in marking.active.items() if active.since]
        raise UnknownName("open question", name, open_names, where="sequencer answer")
    return marking.graph.by_id[name], execution.token


def answer_value(node: Node, answer: str) -> str:
    """Return the value of *answer* to the question of *node*.

    Raises:
        UnknownName: it is not one of the options.
    """
    text = answer.strip()
    for option in node.options:
        if normalize(text) in (normalize(option.value), normalize(option.label)):
            return option.value
    if node.options and not node.allows_custom_input:
        known_values = [option.value for option in node.options]
        raise UnknownName("answer", text[:80], known_values, where=f"node {node.id!r}")
    return answer


def _answer(step: OpenTransition, *, command: AnswerQuestion, by: str, outputs: Outputs) -> None:
    name, token = command.node, command.token
    node, question = find_question(step.marking, name)
    if token is not None and question != token:
        raise TransitionRefused(
            f"answer: what you saw was answered in the meantime; {name!r} asks again",
            hint="'sequencer inbox' shows the question",
        )
    expires = step.marking.active[name].due
    if expires is not None and datetime.fromisoformat(expires) <= step.now:
        raise TransitionRefused(
            f"answer: the time to answer {name!r} ended at {expires}",
            hint=f"after {continue_command(step.head)}, the run takes the branch for a missing "
            "answer",
        )
    value = answer_value(node, command.text)
    # Stored under the token of the question: of two answers, only one counts.
    reference = outputs.store_output(step.head.step_index, question, value)
    step.answer(name, value, reference, {"by": by, "output": value[:1000]})


def _tell(step: OpenTransition, *, command: Tell, by: str, outputs: Outputs) -> None:
    marking, text = step.marking, command.text
    if marking.status is not FlowStatus.RUNNING:
        raise TransitionRefused(f"tell: the run has ended as {marking.status}")
    noun = "task" if marking.graph.has_tasks else "node"
    if command.node is None:
        raise TransitionRefused(
            f"tell: several {noun}s may run at once", hint=f"name the {noun} that should read it"
        )
    name = command.node
    if name not in marking.graph.by_id:
        raise UnknownName(noun, name, marking.graph.by_id, where="sequencer tell")
    if marking.graph.by_id[name].kind is not NodeKind.AGENT:
        raise TransitionRefused(f"tell: node {name!r} has no agent to read it")
    if marking.done.get(name) and name not in _find_reachable(marking):
        raise TransitionRefused(
            f"tell: {noun} {name!r} is done, so it would not read it",
            hint="'sequencer status' shows what is still to be done",
        )
    reference = _store_text(step, text, outputs)
    step.tell(name, str(reference), {"by": by, "output": text[:1000]})


def _retry(step: OpenTransition, *, command: RetryNow, **_: Any) -> None:
    name = command.node
    if name is not None:
        _ensure_known(step.marking, name)
        _ensure_not_claimed(step, "retry", (name,))
    step.restore(name)


def _reject(step: OpenTransition, *, command: Reject, by: str, **_: Any) -> None:
    if step.marking.status is not FlowStatus.RUNNING:
        raise TransitionRefused(f"reject: the run has ended as {step.marking.status}")
    note = command.note
    step.cancel({"by": by, **({"note": note} if note else {})})


def _stamp(step: OpenTransition, *, command: Accept, outputs: Outputs, **_: Any) -> None:
    name, text = _start_node(step, command), command.output or ""
    if step.marking.graph.by_id[name].kind is NodeKind.HUMAN:
        raise TransitionRefused(
            f"skip: {name!r} asks a person",
            hint=f"{typed_line(None, 'answer', name, 'VALUE')} answers",
        )
    _ensure_branch(step.marking.graph, name, text, "skip")
    record = _build_note_record("ok", command.note)
    step.complete_node(name, Event.STAMPED, text, _store_text(step, text, outputs), record)


def _fail(step: OpenTransition, *, command: Fail, **_: Any) -> None:
    name, note = _start_node(step, command), command.note
    step.fail_node(name, note or "failed by hand", _build_note_record("fail", note))


def _skip(step: OpenTransition, *, command: Skip, **_: Any) -> None:
    name, note = _start_node(step, command), command.note
    reference = step.hand_on(step.marking, name)[1]
    _ensure_branch(step.marking.graph, name, "", "skip")
    step.complete_node(name, Event.SKIPPED, "", reference, {"note": note} if note else {})


def _has_reached(marking: Marking, name: str) -> bool:
    return any(
        name in names for names in (marking.waiting, marking.active, marking.done, marking.lost)
    )


def _rewind(step: OpenTransition, *, command: Rewind, outputs: Outputs, **_: Any) -> None:
    """Take back a node and all nodes after it."""
    name = _require_node(step.marking, "rewind", command.to)
    if step.marking.ended_at:
        step.restore_tokens()
    marking = step.marking
    graph, error = marking.graph, marking.error or {}
    region, failed_node = _region_after(graph, name), error.get("node")
    if failed_node in region and graph.on_error is not None:
        region |= _region_after(graph, graph.on_error)
    _ensure_not_claimed(step, "rewind", region)
    _ensure_adds_nothing_twice(marking, region)
    if name != failed_node and not _has_reached(marking, name):
        raise TransitionRefused(
            f"rewind: the run has not reached {name!r} yet",
            hint="'sequencer skip NODE' goes forward",
        )
    tokens = [[name, _outside_sources(marking, region, name, outputs)]]
    for other_name in graph.order:
        if other_name in region and other_name != name:
            sources = _outside_sources(marking, region, other_name, outputs)
            tokens += [[other_name, sources]] if sources else []
    repeated_names = [node for node in graph.order if node in region and node in marking.done]
    step.rewind(name, sorted(region, key=graph.order.__getitem__), tokens, repeated_names)


def _start_at(step: OpenTransition, *, command: StartAt, **_: Any) -> None:
    """Start at a node instead of the entries; only this node and what it leads to run."""
    name, marking = _require_node(step.marking, "start", command.node), step.marking
    if marking.done or marking.active or marking.ended_at:
        raise TransitionRefused(
            "start: the run has already started",
            hint="'sequencer rewind NODE' goes back, 'sequencer skip NODE' goes forward",
        )
    order = marking.graph.order
    step.rewind(name, sorted(order, key=order.__getitem__), [[name, []]], [])


def _ensure_adds_nothing_twice(marking: Marking, region: Collection[str]) -> None:
    """Refuse to repeat a node in *region* that has already added tasks to the graph."""
    for expansion in marking.growths:
        author = expansion.added_by
        task = None if author is None else marking.graph.by_id[author].task
        if author in region and task is not None and task.adds is not None:
            raise TransitionRefused(
                f"rewind: {author!r} has added tasks, and would add them again",
                hint="go back to a task after it, or 'sequencer reset' starts over",
            )


# --- the nodes of a command --------------------------------------------------------------


def _require_node(marking: Marking, verb: str, name: str | None) -> str:
    """Return *name*, the node that the command *verb* names.

    Raises:
        TransitionRefused: the command names no node.
        UnknownName: the graph has no such node.
    """
    if name is None:
        raise TransitionRefused(
            f"{verb}: the run follows a graph, and may be at several nodes at once",
            hint=f"name one: 'sequencer {verb} … NODE'; 'sequencer status' shows them",
        )
    _ensure_known(marking, name)
    return name


def _ensure_known(marking: Marking, name: str) -> None:
    if name not in marking.graph.by_id:
        raise UnknownName("node", name, marking.graph.by_id)


def _ensure_not_claimed(step: OpenTransition, verb: str, names: Collection[str]) -> None:
    """Refuse the command *verb* while a process runs one of the nodes *names*."""
    for claim in step.head.claims:
        if claim.step in names:
            raise TransitionRefused(
                f"{verb}: node {claim.step!r} is being run by {claim.owner.words}",
                hint="wait until it ends, stop it, or use 'sequencer takeover --force'",
            )


def _start_node(step: OpenTransition, command: Accept | Fail | Skip) -> str:
    """Return the node of *command* as active; start it if it may start."""
    verb = command.verb
    name = _require_node(step.marking, verb, command.node)
    _ensure_not_claimed(step, verb, (name,))
    if step.marking.ended_at:
        step.restore_tokens()
    marking = step.marking
    if marking.status is not FlowStatus.RUNNING:
        raise TransitionRefused(
            f"{verb}: the run has ended as {marking.status}",
            hint="'sequencer rewind NODE' goes back to a node, 'sequencer reset' starts over",
        )
    if name not in marking.active:
        if not marking.may_start(name):
            raise TransitionRefused(
                f"{verb}: {name!r} can't start now",
                hint="'sequencer plan' shows what can, 'sequencer rewind NODE' goes back",
            )
        step.editor.do("start", name, None)
    return name


def _ensure_branch(graph: Graph, name: str, text: str, verb: str) -> None:
    """Check that *text*, as the output of *name*, selects a branch."""
    try:
        choose(graph, name, text)
    except NoMatchingBranch as error:
        raise TransitionRefused(
            f"{verb}: the output of {name!r} picks the way: {error}",
            hint=f"{typed_line(None, 'skip --as-done --output TEXT', name)} gives it",
        ) from None


def _region_after(graph: Graph, name: str) -> set[str]:
    """Return *name* and every node after it, along forward edges and timeouts that go forward."""
    region, stack = {name}, [name]
    while stack:
        current_name = stack.pop()
        jump = None if current_name in graph.back_jumps else graph.by_id[current_name].on_timeout
        next_names = {*graph.forward[current_name], *([] if jump is None else [jump])} - region
        region |= next_names
        stack += next_names
    return region


def _find_reachable(marking: Marking) -> set[str]:
    """Return the nodes that have a token, and the nodes that these tokens can still reach.

    They can follow loops and timeouts, but not the way to the error handler: no failure is
    expected.
    """
    reachable_names = {*marking.waiting, *marking.active}
    stack = [*reachable_names]
    while stack:
        new_names = {*marking.graph.list_targets(stack.pop())} - reachable_names
        reachable_names |= new_names
        stack += new_names
    return reachable_names


def _outside_sources(
    marking: Marking, region: Collection[str], name: str, outputs: Outputs
) -> list[str]:
    """Return the nodes outside *region* that have sent a token to *name*, used or not."""
    graph, execution = marking.graph, marking.active.get(name)
    sources = dict.fromkeys(
        [*marking.waiting.get(name, ()), *(execution.sources if execution else ())]
    )
    for source in graph.incoming[name]:
        is_past = source in marking.done and not marking.is_live(source)
        if is_past and name in graph.forward[source]:
            sources |= dict.fromkeys(
                [source] if name in _find_last_targets(marking, source, outputs) else []
            )
    return [source for source in sources if source not in region]


def _find_last_targets(marking: Marking, name: str, outputs: Outputs) -> set[str]:
    """Return the nodes that the run went to after *name* was last done."""
    graph, indexes = marking.graph, marking.graph.outgoing[name]
    if is_choice(graph, name):
        output = read_text(marking.outputs.get(name), outputs.read_output)
        if not output and graph.by_id[name].kind is NodeKind.HUMAN:
            output = TIMEOUT
        with contextlib.suppress(NoMatchingBranch):
            indexes = choose(graph, name, output)
    return {graph.edges[index].target for index in indexes}


def _build_note_record(verdict: str, note: str | None) -> dict[str, str]:
    return {"note": f"{verdict}: {note}" if note else verdict}


def _store_text(step: OpenTransition, text: str, outputs: Outputs) -> Reference | None:
    """Store *text* under a new token."""
    token = step.head.token + 1
    step.head = step.head.replace(token=token)
    return outputs.store_output(step.head.step_index, token, text)


CHANGES: Mapping[type[RunCommand], Callable[..., None]] = {
    AnswerQuestion: _answer,
    Tell: _tell,
    RetryNow: _retry,
    Reject: _reject,
    Accept: _stamp,
    Fail: _fail,
    Skip: _skip,
    Rewind: _rewind,
    StartAt: _start_at,
}
"""Command -> the function that applies it to the marking."""


MAX_DIFFERENCES = 20
"""Limit for the differences that the history names."""


def carry_over_marking(
    head: Head, transition: Transition, new: Workflow, started: tuple[Workflow, Marking, Chain]
) -> Transition:
    """Return *transition*, which adopts the workflow *new*, with the marking carried over.

    *started* is what `MarkingReader.read_at_start` returns for *head*.

    Raises:
        TransitionRefused: the run is at nodes that the new workflow does not have.
    """
    old_workflow, marking, chain = started
    if new.graph is None or head.flow is None:
        raise other_kind_error(head)
    graph = _with_expansions(marking, new.graph)
    _ensure_nodes_exist(marking, graph)
    data = (
        _snapshot_with_tokens(marking, graph) if graph.has_tasks else flow_record.snapshot(marking)
    )
    new_marking = flow_record.restore(new.graph, data, marking.status)
    rest = resting_status(new_marking) if graph.has_tasks else head.flow.rest
    record = flow_record.write(new_marking, rest, None, Chain(), ())
    changes = describe_differences(old_workflow, new)
    note = "; ".join(changes[:MAX_DIFFERENCES])
    if len(changes) > MAX_DIFFERENCES:
        note += f"; and {len(changes) - MAX_DIFFERENCES} more"
    facts = tuple(
        replace(fact, outcome={**(fact.outcome or {}), "note": note}) for fact in transition.facts
    )
    flow, kept_names = record.flow.replace(begun_at=head.flow.begun_at), None
    if record.document is not None:
        kept_names = frozenset({record.document[0], *chain.names})
    return Transition(transition.head.replace(flow=flow), facts, record.document, kept_names)


def _snapshot_with_tokens(marking: Marking, graph: Graph) -> dict[str, Any]:
    """Return the snapshot of *marking*, which has tasks, with the tokens that *graph* requires.

    Tasks that have started or ended stay as they are. Each other task gets a token from each done
    task before it; tasks before it that are not done yet bring their tokens later.
    """
    data = flow_record.snapshot(marking)
    if marking.is_over and not marking.ended_at:
        return data
    started_entries = [entry for entry in marking.ended_at if entry[2]]
    started_names = {*marking.done, *marking.active, *(entry[0] for entry in started_entries)}
    tokens = {
        name: [source for source in predecessors if source in marking.done]
        for name, predecessors in graph.incoming.items()
        if name not in started_names
        and (not predecessors or not marking.done.keys().isdisjoint(predecessors))
    }
    if marking.status is FlowStatus.RUNNING:
        return {**data, "waiting": tokens}
    new_entries = [[name, sources, False] for name, sources in tokens.items()]
    return {**data, "ended_at": started_entries + new_entries}


def _with_expansions(marking: Marking, graph: Graph) -> Graph:
    """Return *graph* with the tasks that were added to the run."""
    for expansion in marking.growths:
        try:
            graph = expand_graph(graph, expansion)
        except ValueError as error:
            names = ", ".join(repr(node.id) for node in expansion.nodes)
            raise TransitionRefused(
                f"adopt: the tasks {names} were added during the run, and don't fit the new "
                f"workflow: {error}",
                hint="keep the nodes that they depend on, and give no other node their names",
            ) from None
    return graph


def _ensure_nodes_exist(marking: Marking, graph: Graph) -> None:
    stopped_names = [entry[0] for entry in marking.ended_at]
    position_names = dict.fromkeys([*marking.active, *marking.waiting, *stopped_names])
    missing_names = [name for name in position_names if name not in graph.by_id]
    questions = [name for name, execution in marking.active.items() if execution.since]
    changed_names = [
        name
        for name in marking.active
        if name in graph.by_id and graph.by_id[name].kind != marking.graph.by_id[name].kind
    ]
    if missing_names or changed_names:
        names = ", ".join(map(repr, missing_names or changed_names))
        problem = "are gone" if missing_names else "are of another kind now"
        raise TransitionRefused(
            f"adopt: the run is at {names}, which {problem} in the new workflow",
            hint="answer the open questions first"
            if questions
            else "keep these nodes until they are done",
        )
