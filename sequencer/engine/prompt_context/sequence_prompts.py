"""Turns the prompt file of a sequence's step into the prompt that the agent gets.

In order: literal substitutions in the file, templates, then the blocks that the file did
not ask for itself: the request, a person's feedback, the result of a check. Inserted text
is a quotation: templates in it are not filled in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from typing import Any

from msgspec import Struct

from sequencer.engine.prompt_context.earlier_outputs import EarlierOutputs
from sequencer.engine.records import describe_wanted_form
from sequencer.model.head import Head
from sequencer.model.request import Definition, Request
from sequencer.model.sequence.gates import find_read_messages
from sequencer.model.sequence.order import find_current_ref, step_at
from sequencer.model.workflow import Workflow
from sequencer.workflows import prompts as templates

Compose = Callable[[str], str]
"""A function from the text of a prompt file to the prompt."""


def request_block(request: Request) -> str:
    """Return *request* as a prompt shows it."""
    parts = [f"# Request: {request.title}"]
    details = (
        ("Identifier", request.identifier),
        ("Address", request.url),
        ("Priority", request.priority),
        ("Assigned to", ", ".join(request.assignees)),
    )
    if lines := [f"{name}: {value}" for name, value in details if value]:
        parts.append("\n".join(lines))
    if request.text.strip():
        parts.append(request.text.strip())
    if request.labels:
        parts.append(f"Labels: {', '.join(request.labels)}")
    for number, comment in enumerate(request.comments, start=1):
        parts.append(f"## Comment {number}\n\n{comment.strip()}")
    if request.attachments:
        parts.append("Attachments:\n" + "\n".join(f"- {link}" for link in request.attachments))
    return "\n\n".join(parts)


def form_block(form: str) -> str:
    """Return the block that asks for the *form* of an answer after a failed attempt."""
    return f"# How the answer has to end\n\nAn earlier attempt failed. This time, {form}."


def request_value(request: Request | None, path: tuple[str, ...]) -> Any:
    """Return the value at *path* of *request*, for a template; lists become text.

    Raises:
        KeyError: there is no request, or it has no such field.
    """
    if request is None:
        raise KeyError(
            "the run was not made from a request; 'sequencer start' makes runs from requests"
        )
    if not path:
        return request_block(request)
    if path in {("labels",), ("assignees",)}:
        return ", ".join(getattr(request, path[0]))
    if path in {("comments",), ("attachments",)}:
        return "\n\n".join(getattr(request, path[0]))
    return templates.look_up(request.model_dump(mode="json"), path)


def substitute(text: str, substitutions: Mapping[str, str]) -> str:
    """Return *text* with each literal key replaced by its value, in one pass, longest first."""
    if not substitutions:
        return text
    sorted_keys = sorted(substitutions, key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, sorted_keys)))
    return pattern.sub(lambda match: substitutions[match[0]], text)


class Composer(Struct, frozen=True, dict=True):
    """Composes the prompts of one attempt."""

    head: Head
    request: Request | None
    substitutions: Mapping[str, str]
    read_outputs: Callable[[], EarlierOutputs]
    message_ids: Collection[tuple[str, int]] = ()
    """The messages that the attempt reads, see `gates.find_read_messages`."""
    form: str | None = None
    """How the answer has to end; None: no earlier attempt has failed."""

    @cached_property
    def earlier(self) -> EarlierOutputs:
        """Return the earlier outputs of the run; the journal is read on first use."""
        return self.read_outputs()

    def append_blocks(self, text: str) -> str:
        """Return *text*, which has no templates, followed by all blocks of the run."""
        return _join_blocks(text, [block for _, block in self._blocks()])

    def compose(self, text: str) -> str:
        """Return the prompt for the *text* of the file.

        Raises:
            MissingValue: a template names a value that does not exist.
        """
        text = substitute(text, self.substitutions)
        roots = {path[0] for path in templates.iter_template_paths(text)}
        blocks = [block for root, block in self._blocks() if root not in roots]
        return _join_blocks(templates.render(text, self._value), blocks)

    def _blocks(self) -> list[tuple[str, str]]:
        """Return (root, block) for everything that a prompt gets unless it asks for it itself."""
        blocks = []
        if self.request is not None:
            blocks.append(("request", request_block(self.request)))
        if self._is_after_feedback and (feedback := self._format_feedback()):
            block = f"# What a person said about the last result\n\n{feedback}"
            blocks.append(("feedback", block))
        if self.message_ids:
            messages = [
                text
                for recipient, text in self.earlier.recorded.messages
                if recipient in self.message_ids
            ]
            blocks.append(("messages", "# Messages to you\n\n" + "\n\n".join(messages)))
        loop = self.head.loop
        if loop is not None and loop.reason:
            block = f"# What the check found (round {loop.round})\n\n{loop.reason}"
            if earlier_text := self._earlier_rounds():
                block += f"\n\n## What the rounds before found and tried\n\n{earlier_text}"
            blocks.append(("validation", block))
        if self.form is not None:
            blocks.append(("form", form_block(self.form)))
        return blocks

    @property
    def _is_after_feedback(self) -> bool:
        gate = self.head.gate
        return gate is not None and gate.decision == "feedback"

    def _format_feedback(self) -> str:
        """Return what people said in each round of the gate, and of gates before it, in order.

        Empty: the last decision at the gate was not feedback.
        """
        gate = self.head.gate
        if gate is None or not self._is_after_feedback:
            return ""
        names = {gate.step, *(earlier_gate.step for earlier_gate in gate.earlier)}
        notes = [note for note in self.earlier.recorded.feedback if note.gate in names]
        if len(notes) == 1:
            return notes[0].text
        is_one_gate = len({note.gate for note in notes}) == 1
        return "\n\n".join(
            f"{'Round' if is_one_gate else f'{note.gate}, round'} {note.round}: {note.text}"
            for note in notes
        )

    def _earlier_rounds(self) -> str:
        loop = self.head.loop
        # The first round has none, so the journal need not be read.
        has_some = loop is not None and (loop.round > 1 or loop.exhausted)
        return self.earlier.earlier_rounds() if has_some else ""

    def _value(self, path: tuple[str, ...]) -> Any:
        root, subpath = path[0], path[1:]
        return getattr(self, f"_root_{root}")(subpath)

    def _root_request(self, path: tuple[str, ...]) -> Any:
        return request_value(self.request, path)

    def _root_output(self, path: tuple[str, ...]) -> Any:
        return templates.look_up(self.earlier.read_last_output(), path)

    def _root_steps(self, path: tuple[str, ...]) -> Any:
        if len(path) < 2 or path[1] != "output":  # noqa: PLR2004 - a name and "output"
            raise KeyError("write {{steps.NAME.output}}")
        return templates.look_up(self.earlier.output(path[0]), path[2:])

    def _root_feedback(self, path: tuple[str, ...]) -> Any:
        if path:
            raise KeyError("write {{feedback}}")
        return self._format_feedback()

    def _root_validation(self, path: tuple[str, ...]) -> Any:
        loop = self.head.loop
        if path == ("earlier",):
            return self._earlier_rounds()
        values = {
            "reason": loop.reason if loop else "",
            "round": loop.round if loop else 1,
            "earlier": "",
        }
        return templates.look_up(values, path)

    def _root_run(self, path: tuple[str, ...]) -> Any:
        head = self.head
        values = {
            "id": head.run_id,
            "name": head.run_name,
            "workflow": head.workflow_name,
            "step_index": head.step_index,
            "iteration": head.iteration,
        }
        return templates.look_up(values, path)


def make_prompt_composer(
    workflow: Workflow,
    definition: Definition | None,
    head: Head,
    read_outputs: Callable[[], EarlierOutputs],
) -> Compose | None:
    """Return the function that makes the prompt of the step of *head*.

    Return None if the prompt is the text of the file. *read_outputs* reads the journal, and is
    called only if the prompt needs it.
    """
    # Prompts of cycles have no templates.
    is_template = workflow.has_end
    messages, form = head.waiting_messages, None
    if head.failures_in_row:
        place = find_current_ref(workflow, head)
        form = describe_wanted_form(workflow, step_at(workflow, place), place.stage)
    is_plain = head.loop is None and head.gate is None and not messages and form is None
    if is_plain and not is_template:
        return None
    if messages:
        messages = find_read_messages(head, workflow, find_current_ref(workflow, head), head.token)
    request: Request | None = None
    substitutions: dict[str, str] = {}
    if definition is not None:
        request, substitutions = definition.request, dict(definition.substitutions)
    composer = Composer(head, request, substitutions, read_outputs, messages, form)
    return composer.compose if is_template else composer.append_blocks


def _join_blocks(text: str, blocks: list[str]) -> str:
    return "\n\n".join(filter(None, (text.strip(), *blocks))) + "\n"
