"""Reads and changes the nodes of a graph's run in its store."""

from __future__ import annotations

import itertools
from datetime import datetime
from pathlib import Path

from msgspec import Struct

from sequencer.engine.changes import Changes
from sequencer.engine.flow_source import read_flow_source
from sequencer.engine.prompt_context.earlier_outputs import read_output
from sequencer.engine.prompt_context.node_values import make_node_values
from sequencer.errors import (
    CorruptState,
    SequencerError,
    StorageFailed,
    format_command,
)
from sequencer.model.graph import record as flow_record
from sequencer.model.graph.choices import has_fallback_branch
from sequencer.model.graph.ends import TaskExpander
from sequencer.model.graph.graph import Graph, Node, Option
from sequencer.model.graph.graph_kind import GraphKind
from sequencer.model.graph.marking import Marking, Reference, read_text
from sequencer.model.graph.record import Chain
from sequencer.model.graph.transition import OpenTransition
from sequencer.model.head import MARKINGS, Flow, Head
from sequencer.model.limits import is_past
from sequencer.model.workflow import Workflow, require_graph
from sequencer.store import results
from sequencer.store.documents import is_intact
from sequencer.store.protocol import Store

_LOOKS = 5
"""How often to try to read a head with its documents: other processes may replace them."""


class Question(Struct, frozen=True):
    """A question to a person at a node."""

    node: Node
    text: str
    """With its templates filled in."""
    token: int
    """Token of this question; a later question of the same node has another one."""
    asked_at: str
    expires_at: str | None
    is_dead_end: bool = False
    """Whether an answer that is not an option makes the node fail, because no edge accepts it."""

    @property
    def options(self) -> tuple[Option, ...]:
        """Return the answers to choose from; empty: any text is an answer."""
        return self.node.options

    def describe_expiry(self, now: datetime) -> str:
        """Return the message that the question has expired by *now*; empty: it has not."""
        if not is_past(self.expires_at, now):
            return ""
        return f"no one answered {self.node.named} by {self.expires_at}"


class GraphChanges(Changes):
    """Reads and changes the nodes of the graph's run in one store."""

    def __init__(
        self, store: Store, workflow: Workflow, expander: TaskExpander | None = None
    ) -> None:
        """Use the run of *workflow* in *store*; only a graph of tasks needs an *expander*.

        Raises:
            UsageRefused: the workflow is not a graph.
        """
        self._cache = MarkingCache(store, require_graph(workflow))
        self.graph_kind = GraphKind(workflow, self._cache, self, expander)
        super().__init__(store, self.graph_kind)
        self.workflow = workflow
        """The workflow at the start of the run; see `GraphKind.workflow_at`."""
        self.initial_graph = self.graph_kind.graph
        """The graph at the start of the run; a marking has the graph with its added tasks."""

    # --- reading -------------------------------------------------------------------

    def marking(self, head: Head) -> tuple[Head, Marking]:
        """Return *head* or a newer one, and its marking, which the caller must not change.

        Raises:
            CorruptState: the run has no readable marking.
        """
        return self._cache.read_marking(head)

    def read_text(self, reference: Reference | None) -> str:
        """Return the output at *reference*.

        Raises:
            StorageFailed: it can't be read, or is too large for a prompt.
        """
        return read_text(reference, self.read_output)

    def read_output(self, name: str) -> str:
        """Return the output of one execution, ``<step_index>-<token>``; see `read_text`."""
        return read_output(self.output_path(name))

    def output_path(self, name: str) -> Path:
        """Return the path of the output of one execution; see `read_output`.

        Raises:
            CorruptState: *name* is not the name of an execution.
        """
        return self.store.find_result_folder(name) / results.OUTPUT

    def store_output(self, step_index: int, token: int, output: str) -> Reference | None:
        """Save *output* durably in the folder of its execution; None: it is empty.

        Raises:
            StorageFailed: it can't be written.
        """
        if not output:
            return None
        folder = self.store.result_folder(step_index, token)
        try:
            results.write_output(folder, output.encode("utf-8", "replace"))
        except OSError as error:
            raise StorageFailed(
                f"the output can't be saved: {error.strerror}", where=str(folder)
            ) from error
        return folder.name

    def questions(self, head: Head) -> list[Question]:
        """Return the questions to people in the run of *head*, in order.

        Raises: see `marking`.
        """
        head, marking = self.marking(head)
        names = [name for name, execution in marking.active.items() if execution.since]
        return [
            self._question(name, head, marking)
            for name in sorted(names, key=marking.graph.order.__getitem__)
        ]

    def _question(self, name: str, head: Head, marking: Marking) -> Question:
        node, execution = marking.graph.by_id[name], marking.active[name]
        text = node.question or node.label or name
        template_text = f"{text}\n{node.input}"
        values = make_node_values(
            marking.graph, name, marking, template_text, self.read_output, head=head
        )
        try:
            question_text = text if values is None else values.compose(text)
        except SequencerError as error:
            # You can still answer the question.
            question_text = f"{text}\n\n({error.message})"
        is_dead_end = node.allows_custom_input and not has_fallback_branch(marking.graph, name)
        asked_at = execution.since or ""
        return Question(node, question_text, execution.token, asked_at, execution.due, is_dead_end)

    def _cache_facts(self, change: OpenTransition, head: Head) -> None:
        # Without facts nothing was written, so a marking with operations is not the stored one.
        if change.facts or not change.editor.operations:
            self._cache.cache_marking(head, change.marking, change.chain)


class MarkingCache:
    """Keeps the newest marking of the run in one store in memory."""

    def __init__(self, store: Store, graph: Graph) -> None:
        """Start without a marking; *graph* is the graph at the start of the run."""
        self._store = store
        self._graph = graph
        self._cached: tuple[str, Flow, Marking, Chain] | None = None

    def pop_marking(self, head: Head) -> tuple[Marking, Chain]:
        """Return the marking of *head* and remove it from the cache; the caller may change it.

        Raises:
            CorruptState: the run has no readable marking.
        """
        cache_entry, self._cached = self._cached, None
        flow = self._read_flow(head)
        if cache_entry is not None and cache_entry[0] == head.run_id:
            _, known_head, marking, chain = cache_entry
            if known_head == flow:
                return marking, chain
            if _is_continuation(flow, known_head):
                for operation in flow.since[len(known_head.since) :]:
                    marking.apply(operation)
                return marking, chain
        return self._read(head, flow)

    def read_marking(self, head: Head) -> tuple[Head, Marking]:
        """Return *head* or a newer one, and its marking, which the caller must not change.

        Raises: see `pop_marking`.
        """
        for looks in itertools.count(1):
            try:
                marking, chain = self.pop_marking(head)
            except CorruptState:
                newer_head = self._store.view().head if looks <= _LOOKS else None
                if newer_head is None or newer_head.revision == head.revision:
                    raise
                head = newer_head
            else:
                break
        self.cache_marking(head, marking, chain)
        return head, marking

    def cache_marking(self, head: Head, marking: Marking, chain: Chain) -> None:
        """Keep *marking*, which belongs to the accepted *head*."""
        self._cached = (head.run_id, self._read_flow(head), marking, chain)

    def read_at_start(self, head: Head) -> tuple[Workflow, Marking, Chain]:
        workflow = read_flow_source(self._store).find_workflow(head.workflow_digest)
        return workflow, *MarkingCache(self._store, require_graph(workflow)).pop_marking(head)

    def _read_flow(self, head: Head) -> Flow:
        return flow_record.require_flow(head, str(self._store.state_path))

    def _read(self, head: Head, flow: Flow) -> tuple[Marking, Chain]:
        try:
            return flow_record.read(self._graph, flow, self._document)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            way_out = "restore the file, or " if flow.base is not None else ""
            raise CorruptState(
                f"the marking of the run can't be read: {error}",
                where=str(self._store.state_path),
                hint=f"{way_out}start over with {format_command(head.run_name, 'reset')}",
            ) from error

    def _document(self, name: str) -> bytes:
        if not name.startswith(MARKINGS) or "/" in name:
            raise ValueError(f"{name!r} is not a document of a marking")
        data = self._store.read_document(name)
        if data is None:
            raise ValueError(f"{name} is gone")
        if not is_intact(name, data):
            raise ValueError(f"{name} was changed after it was written")
        return data


def _is_continuation(flow: Flow, known_flow: Flow) -> bool:
    """Return whether *flow* continues *known_flow* on the same base."""
    if flow.base is None or flow.base != known_flow.base:
        return False
    return flow.since[: len(known_flow.since)] == known_flow.since


def load_as_started(store: Store, head: Head) -> GraphChanges:
    """Return the `GraphChanges` of *head* with the workflow that the run started with.

    Use it only for reading, such as when the workflow's file is missing. To change the run, use
    the workflow that the file has now.

    Raises:
        CorruptState: see `get_source`.
    """
    return GraphChanges(store, read_flow_source(store).find_workflow(head.workflow_digest))
