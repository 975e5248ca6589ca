"""The prompt of a node: its file, with what the run has for it when its attempt begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from sequencer.engine.attempt import PreparedStep
from sequencer.engine.graph_changes import GraphChanges
from sequencer.engine.messages import messages_block, unread
from sequencer.engine.performing import Performer
from sequencer.engine.prompt_context.node_values import NodeValues, values_of
from sequencer.engine.prompt_context.sequence_prompts import Compose, form_block
from sequencer.engine.records import wanted_form
from sequencer.engine.tasks import TaskExecution
from sequencer.model.graph.marking import Marking
from sequencer.model.head import Head


class NodePrompts:
    """Makes the prompts of the nodes of one run."""

    def __init__(self, changes: GraphChanges, performer: Performer) -> None:
        """Look which outputs the run keeps as JSON."""
        self._changes, self._performer = changes, performer
        self._json_nodes = frozenset(
            step.name
            for step in changes.workflow.steps
            if step.output and step.output.format == "json"
        )

    def of(self, prepared: PreparedStep, name: str, head: Head, marking: Marking) -> Compose | None:
        """Return what makes the prompt of node *name* of its file; None: that is the prompt.

        What it needs of *marking* is taken now.
        """
        graph = marking.graph
        values = values_of(
            graph,
            name,
            marking,
            _texts(prepared, graph.by_id[name].input),
            self._changes.read_output,
            json_nodes=self._json_nodes,
            head=head,
        )
        tasks = self._performer.tasks
        if values is not None and tasks is not None and graph.by_id[name].task:
            return self._context(tasks, values, marking)
        compose = None if values is None else values.compose_prompt
        if marking.active[name].failures:
            form = wanted_form(self._changes.workflow, prepared.step)
            compose = (
                compose if form is None else partial(_with_block, compose or str, form_block(form))
            )
        if told := tuple(unread(marking, name)):
            block = messages_block(told, self._changes.read_output)
            return partial(_with_block, compose or str, block)
        return compose

    def _context(
        self, tasks: TaskExecution, values: NodeValues, marking: Marking
    ) -> Callable[[str], str]:
        made_from = self._performer.definition
        return tasks.context(
            values,
            marking,
            request=made_from.request if made_from else None,
            substitutions=made_from.substitutions if made_from else {},
            path_of=self._changes.output_path,
        )


def _with_block(compose: Callable[[str], str], block: str, text: str) -> str:
    """Return the prompt that *text* makes, with *block* after it."""
    return f"{compose(text).rstrip()}\n\n{block}\n"


def _texts(prepared: PreparedStep, given: Mapping[str, Any]) -> str:
    """Return everything of a node in which a template may stand."""
    return f"{prepared.prompt}\n{given}" if given else prepared.prompt
