"""The prompt of a team's task: the task, the request, the results of other tasks, and messages.

The templates of the prompt file are filled in first. The text below them is quoted, so templates
in it are never filled in. A long output is cut, and the prompt names the file that has all of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from sequencer.engine.messages import Message, iter_unread, messages_block, messages_to
from sequencer.engine.prompt_context.earlier_outputs import join_rounds, shorten_output
from sequencer.engine.prompt_context.node_values import NodeValues
from sequencer.engine.prompt_context.sequence_prompts import (
    request_block,
    request_value,
    substitute,
)
from sequencer.errors import StorageFailed
from sequencer.model.graph.choices import shorten
from sequencer.model.graph.graph import Node
from sequencer.model.graph.marking import Marking, Reference
from sequencer.model.request import Request
from sequencer.workflows import prompts as templates

ROOTS = (*templates.GRAPH_ROOTS, "request", "validation")
MAX_CHARS = 48_000
"""Maximum length of all outputs in one prompt together."""
MIN_CHARS = 800
"""Each output gets at least this length, even if there are many outputs."""
_TAG = re.compile(r"<(?=\s*/?\s*result\b)", re.IGNORECASE)
"""Matches text that could start or end a block that quotes an output."""


class TaskContext(Struct, frozen=True):
    """All parts of the prompt of one attempt at a task, as they were when the attempt started."""

    node: Node
    values: NodeValues
    request: Request | None
    substitutions: Mapping[str, str]
    outputs: tuple[tuple[Node, Reference | None], ...]
    """The outputs of the tasks before it, in order."""
    missed: tuple[tuple[Node, str], ...]
    """The tasks before it that were not done, with the reasons."""
    added: tuple[Node, ...]
    """The tasks that the tasks before it have added."""
    messages: tuple[Message, ...]
    late: tuple[tuple[str, Message], ...]
    """Messages to tasks before it that came too late for those tasks to read."""
    note: str | None
    """Why its latest attempt failed."""
    validation: Mapping[str, Any]
    """The verdict that this task must fix; empty if it fixes nothing."""
    path_of: Callable[[str], Path]
    """Returns the file of the output at a reference."""

    def compose(self, text: str) -> str:
        """Return the complete prompt from the prompt file's *text*.

        Raises:
            MissingValue: a template names a value that does not exist.
        """
        text = substitute(text, self.substitutions)
        used_roots = {path[0] for path in templates.iter_template_paths(text, ROOTS)}
        prompt_text = templates.render(text, self._value, ROOTS)
        return (
            "\n\n".join(filter(None, (prompt_text.strip(), *self._format_blocks(used_roots))))
            + "\n"
        )

    def _value(self, path: tuple[str, ...]) -> Any:
        root, rest = path[0], path[1:]
        if root == "validation":
            is_earlier = self.validation and rest == ("earlier",)
            return (
                self._describe_earlier_fixes()
                if is_earlier
                else templates.look_up(self.validation, rest)
            )
        return request_value(self.request, rest) if root == "request" else self.values.value(path)

    def _format_blocks(self, used_roots: set[str]) -> Iterator[str]:
        """Yield the blocks below the prompt file's text, except those that its templates use."""
        task = self.node.task
        yield f"# Your task: {self.node.label or self.node.id}"
        if task is not None and task.description.strip():
            yield task.description.strip()
        if self.validation and "validation" not in used_roots:
            yield f"# What the check found\n\n{self.validation['reason']}"
        if self.request is not None and "request" not in used_roots:
            yield request_block(self.request)
        if not used_roots & {"output", "nodes"}:
            yield from self._format_earlier_outputs()
        if self.missed:
            lines = (
                f"- {node.id}: {_quote(node.label)}\n  {_escape_tags(reason)}"
                for node, reason in self.missed
            )
            yield "# What was not done\n\n" + "\n".join(lines)
        if self.messages:
            yield messages_block(self.messages, self._read)
        if self.late:
            late_messages = [
                f"- to {name}, {sender}, {time_text}:\n\n{self._read(reference)}"
                for name, (reference, sender, time_text) in self.late
            ]
            yield "# Messages that came too late for others\n\n" + "\n\n".join(late_messages)
        if self.note:
            yield f"# What your last attempt ended with\n\n{self.note}"

    def _describe_earlier_fixes(self) -> str:
        """Return the ends of earlier fixes for the same judge, the oldest first."""
        judge = self.node.task.fixes if self.node.task is not None else None
        answers = (
            self._read(reference)
            for node, reference in self.outputs
            if isinstance(reference, str) and node.task is not None and node.task.fixes == judge
        )
        return join_rounds(
            f"After round {number} this was tried: {_escape_tags(shorten_output(text))}"
            for number, text in enumerate(answers, start=1)
        )

    def _format_earlier_outputs(self) -> Iterator[str]:
        """Yield the outputs of the tasks that were done before this one."""
        outputs = [
            (node, reference) for node, reference in self.outputs if isinstance(reference, str)
        ]
        # An answer that adds tasks is for the program: its tasks are listed below instead.
        answers = [
            (node, reference)
            for node, reference in outputs
            if node.task is None or not node.task.adds
        ]
        if len(answers) < len(outputs) and self.added:
            lines = (f"- {node.id}: {_quote(shorten(node.label))}" for node in self.added)
            list_text = shorten("\n".join(lines), MAX_CHARS)
            yield f"# The parts into which the work was cut\n\n{list_text}"
        max_chars = max(MIN_CHARS, MAX_CHARS // max(len(answers), 1))
        for node, reference in answers:
            text = self._read(reference)
            note = ""
            if len(text) > max_chars:
                note = (
                    f"\n… {len(text) - max_chars} more characters are in {self.path_of(reference)}"
                )
            start = f'<result task="{node.id}" of="{_quote(node.label)}">'
            yield f"{start}\n{_escape_tags(text[:max_chars])}{note}\n</result>"

    def _read(self, name: str) -> str:
        try:
            return self.values.read(name)
        except StorageFailed as error:
            return f"(it can't be read here: {error.message}; it is in {self.path_of(name)})"


def _escape_tags(text: str) -> str:
    """Return *text*, which another agent wrote, so that it can't end the block around it."""
    return _TAG.sub("&lt;", text)


def _quote(text: str) -> str:
    return _escape_tags(" ".join(text.split())).replace('"', "'").replace(">", "&gt;")


def build_task_context(
    values: NodeValues,
    marking: Marking,
    *,
    request: Request | None,
    substitutions: Mapping[str, str],
    path_of: Callable[[str], Path],
) -> TaskContext:
    """Return the context of the started task of *values*; see `PromptContext`."""
    node, ledger = values.node, marking.ledger
    earlier_tasks = _list_earlier_tasks(marking, node)
    judge = node.task.fixes if node.task is not None else None
    validation: dict[str, Any] = {}
    if judge is not None:
        reason = ledger.notes.get(judge, "")
        validation = {"reason": reason, "round": ledger.refusals.get(judge, 1)}
    return TaskContext(
        node,
        values,
        request,
        substitutions,
        tuple((task, marking.outputs.get(task.id)) for task in earlier_tasks),
        tuple(
            (task, _describe_failure(marking, task.id))
            for task in earlier_tasks
            if task.id not in marking.done
        ),
        tuple(_list_added_tasks(marking, earlier_tasks)),
        tuple(messages_to(marking, node.id)),
        tuple(
            (task.id, message)
            for task in earlier_tasks
            for message in iter_unread(marking, task.id)
        ),
        ledger.notes.get(node.id),
        validation,
        path_of,
    )


def _describe_failure(marking: Marking, name: str) -> str:
    """Return why task *name* was not done."""
    return str(marking.failed.get(name, {}).get("message", "a task that it waits for has failed"))


def _list_added_tasks(marking: Marking, earlier_tasks: list[Node]) -> Iterator[Node]:
    """Yield the tasks that *earlier_tasks* have added, except fixes."""
    names = {node.id for node in earlier_tasks}
    for growth in marking.growths:
        if growth.added_by in names:
            yield from (
                node for node in growth.nodes if node.task is None or node.task.fixes is None
            )


def _list_earlier_tasks(marking: Marking, node: Node) -> list[Node]:
    """Return the tasks that had to be done before *node*, including added ones."""
    blockers = node.task.blocked_by if node.task is not None else ()
    names = dict.fromkeys((*blockers, *marking.graph.incoming[node.id]))
    return [marking.graph.by_id[name] for name in names if name in marking.graph.by_id]
