"""Turns the prompt file of a node into the prompt that the agent gets when an attempt starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from sequencer.engine.attempt import PreparedStep
from sequencer.engine.graph_changes import GraphChanges
from sequencer.engine.messages import iter_unread, messages_block
from sequencer.engine.performing import Performer
from sequencer.engine.prompt_context.node_values import NodeValues, make_node_values
from sequencer.engine.prompt_context.sequence_prompts import Compose, form_block
from sequencer.engine.records import describe_wanted_form
from sequencer.engine.tasks import TaskExecution
from sequencer.model.graph.marking import Marking
from sequencer.model.head import Head


class NodePrompts:
    """Makes the prompts of the nodes of one run."""

    def __init__(self, changes: GraphChanges, performer: Performer) -> None:
        """Find out which nodes have JSON outputs; *changes* reads the outputs."""
        self._changes, self._performer = changes, performer
        self._json_nodes = frozenset(
            step.name
            for step in changes.workflow.steps
            if step.output and step.output.format == "json"
        )

    def make_composer(
        self, prepared: PreparedStep, name: str, head: Head, marking: Marking
    ) -> Compose | None:
        """Return the function that makes the prompt of node *name*.

        None: the prompt is the text of the file. *marking* is read now, not when the function
        is called.
        """
        graph = marking.graph
        values = make_node_values(
            graph,
            name,
            marking,
            _join_texts(prepared, graph.by_id[name].input),
            self._changes.read_output,
            json_nodes=self._json_nodes,
            head=head,
        )
        tasks = self._performer.tasks
        if values is not None and tasks is not None and graph.by_id[name].task:
            return self._make_task_composer(tasks, values, marking)
        compose = None if values is None else values.compose_prompt
        if marking.active[name].failures:
            form = describe_wanted_form(self._changes.workflow, prepared.step)
            compose = (
                compose if form is None else partial(_with_block, compose or str, form_block(form))
            )
        if messages := tuple(iter_unread(marking, name)):
            block = messages_block(messages, self._changes.read_output)
            return partial(_with_block, compose or str, block)
        return compose

    def _make_task_composer(
        self, tasks: TaskExecution, values: NodeValues, marking: Marking
    ) -> Callable[[str], str]:
        definition = self._performer.definition
        return tasks.context(
            values,
            marking,
            request=definition.request if definition else None,
            substitutions=definition.substitutions if definition else {},
            path_of=self._changes.output_path,
        )


def _with_block(compose: Callable[[str], str], block: str, text: str) -> str:
    """Return the prompt that *compose* makes from *text*, followed by *block*."""
    return f"{compose(text).rstrip()}\n\n{block}\n"


def _join_texts(prepared_step: PreparedStep, inputs: Mapping[str, Any]) -> str:
    """Return all texts of a node that may have templates, as one."""
    return f"{prepared_step.prompt}\n{inputs}" if inputs else prepared_step.prompt
