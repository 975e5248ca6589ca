"""What a teammate is told: its task, the request, what others have found out, messages to it.

The prompt's own templates are filled in first; what stands below it is a quotation, and
none of it is looked at again. A long output is cut, and the file is named that has it all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from sequencer.engine.messages import Message, messages_block, messages_to, unread
from sequencer.engine.prompt_context.earlier_outputs import end_of, rounds_in_short
from sequencer.engine.prompt_context.node_values import NodeValues
from sequencer.engine.prompt_context.sequence_prompts import (
    request_block,
    request_value,
    substitute,
)
from sequencer.errors import StorageFailed
from sequencer.model.graph.choices import shortened
from sequencer.model.graph.graph import Node
from sequencer.model.graph.marking import Marking, Reference
from sequencer.model.request import Request
from sequencer.workflows import prompts as templates

ROOTS = (*templates.GRAPH_ROOTS, "request", "validation")
MOST_CHARS = 48_000
"""Of all outputs together that stand in one prompt."""
LEAST_CHARS = 800
"""Of one of them, however many there are."""
_TAG = re.compile(r"<(?=\s*/?\s*result\b)", re.IGNORECASE)
"""What could begin or end a block like those that outputs stand in."""


class Brief(Struct, frozen=True):
    """Everything that goes into the prompt of one attempt at a task, as it was when it began."""

    node: Node
    values: NodeValues
    request: Request | None
    substitutions: Mapping[str, str]
    outputs: tuple[tuple[Node, Reference | None], ...]
    """Of the tasks that were done before it, in order."""
    missed: tuple[tuple[Node, str], ...]
    """The tasks that it has begun without, and why they were not done."""
    added: tuple[Node, ...]
    """The tasks that were added by those that were done before it."""
    messages: tuple[Message, ...]
    late: tuple[tuple[str, Message], ...]
    """Messages to tasks before it that came when nobody could read them any more."""
    note: str | None
    """What its latest attempt failed with."""
    validation: Mapping[str, Any]
    """What the task that judges has said, where this one mends something."""
    path_of: Callable[[str], Path]
    """Where the output at a reference lies."""

    def compose(self, text: str) -> str:
        """Return the whole prompt that the prompt file's *text* makes.

        Raises:
            MissingValue: a template names something that is not there.
        """
        text = substitute(text, self.substitutions)
        asked = {path[0] for path in templates.names(text, ROOTS)}
        own = templates.render(text, self._value, ROOTS)
        return "\n\n".join(filter(None, (own.strip(), *self._blocks(asked)))) + "\n"

    def _value(self, path: tuple[str, ...]) -> Any:
        root, rest = path[0], path[1:]
        if root == "validation":
            is_earlier = self.validation and rest == ("earlier",)
            return self._tried() if is_earlier else templates.look_up(self.validation, rest)
        return request_value(self.request, rest) if root == "request" else self.values.value(path)

    def _blocks(self, asked: set[str]) -> Iterator[str]:
        """Yield what a prompt gets if it does not ask for it by the roots *asked*."""
        task = self.node.task
        yield f"# Your task: {self.node.label or self.node.id}"
        if task is not None and task.description.strip():
            yield task.description.strip()
        if self.validation and "validation" not in asked:
            yield f"# What the check found\n\n{self.validation['reason']}"
        if self.request is not None and "request" not in asked:
            yield request_block(self.request)
        if not asked & {"output", "nodes"}:
            yield from self._earlier()
        if self.missed:
            lines = (
                f"- {one.id}: {_quoted(one.label)}\n  {_inert(why)}" for one, why in self.missed
            )
            yield "# What was not done\n\n" + "\n".join(lines)
        if self.messages:
            yield messages_block(self.messages, self._read)
        if self.late:
            said = [
                f"- to {task}, {by}, {at}:\n\n{self._read(name)}"
                for task, (name, by, at) in self.late
            ]
            yield "# Messages that came too late for others\n\n" + "\n\n".join(said)
        if self.note:
            yield f"# What your last attempt ended with\n\n{self.note}"

    def _tried(self) -> str:
        """Return what those have said that fixed for the same judge before; oldest first."""
        judge = self.node.task.fixes if self.node.task is not None else None
        said = (
            self._read(at)
            for node, at in self.outputs
            if isinstance(at, str) and node.task is not None and node.task.fixes == judge
        )
        return rounds_in_short(
            f"After round {number} this was tried: {_inert(end_of(text))}"
            for number, text in enumerate(said, start=1)
        )

    def _earlier(self) -> Iterator[str]:
        """Yield what the tasks have said that were done before this one."""
        outputs = [(node, at) for node, at in self.outputs if isinstance(at, str)]
        # A list of tasks is for the program; to those that do them it would say all twice.
        said = [(node, at) for node, at in outputs if node.task is None or not node.task.adds]
        if len(said) < len(outputs) and self.added:
            lines = (f"- {one.id}: {_quoted(shortened(one.label))}" for one in self.added)
            listed = shortened("\n".join(lines), MOST_CHARS)
            yield f"# The parts into which the work was cut\n\n{listed}"
        most = max(LEAST_CHARS, MOST_CHARS // max(len(said), 1))
        for node, at in said:
            text = self._read(at)
            more = ""
            if len(text) > most:
                more = f"\n… {len(text) - most} more characters are in {self.path_of(at)}"
            begin = f'<result task="{node.id}" of="{_quoted(node.label)}">'
            yield f"{begin}\n{_inert(text[:most])}{more}\n</result>"

    def _read(self, name: str) -> str:
        try:
            return self.values.read(name)
        except StorageFailed as error:
            return f"(it can't be read here: {error.message}; it is in {self.path_of(name)})"


def _inert(text: str) -> str:
    """Return *text*, which somebody else wrote, unable to end the block that it stands in."""
    return _TAG.sub("&lt;", text)


def _quoted(text: str) -> str:
    return _inert(" ".join(text.split())).replace('"', "'").replace(">", "&gt;")


def brief_of(
    values: NodeValues,
    marking: Marking,
    *,
    request: Request | None,
    substitutions: Mapping[str, str],
    path_of: Callable[[str], Path],
) -> Brief:
    """Return what the task of *values*, which has begun, is told; see `PromptContext`."""
    node, ledger = values.node, marking.ledger
    before = _before(marking, node)
    judge = node.task.fixes if node.task is not None else None
    validation: dict[str, Any] = {}
    if judge is not None:
        found = {"reason": ledger.notes.get(judge, ""), "round": ledger.refusals.get(judge, 1)}
        validation = found
    return Brief(
        node,
        values,
        request,
        substitutions,
        tuple((one, marking.outputs.get(one.id)) for one in before),
        tuple((one, _why(marking, one.id)) for one in before if one.id not in marking.done),
        tuple(_added(marking, before)),
        tuple(messages_to(marking, node.id)),
        tuple((one.id, late) for one in before for late in unread(marking, one.id)),
        ledger.notes.get(node.id),
        validation,
        path_of,
    )


def _why(marking: Marking, name: str) -> str:
    """Return why task *name* was not done."""
    return str(marking.failed.get(name, {}).get("message", "a task that it waits for has failed"))


def _added(marking: Marking, before: list[Node]) -> Iterator[Node]:
    """Yield the tasks that one of those *before* has added."""
    names = {one.id for one in before}
    for growth in marking.growths:
        if growth.added_by in names:
            yield from (one for one in growth.nodes if one.task is None or one.task.fixes is None)


def _before(marking: Marking, node: Node) -> list[Node]:
    """Return the tasks that had to be done before *node*, those that were added included."""
    listed = node.task.blocked_by if node.task is not None else ()
    names = dict.fromkeys((*listed, *marking.graph.incoming[node.id]))
    return [marking.graph.by_id[name] for name in names if name in marking.graph.by_id]
