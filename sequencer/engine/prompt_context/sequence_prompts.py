"""From a prompt file to the text that an agent gets.

In order: literal substitutions in the file, templates, then the blocks that the file did
not ask for itself: the request, a person's feedback, what a judgement found. Everything
that is inserted is a quotation; none of it is looked at again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from typing import Any

from msgspec import Struct

from sequencer.engine.prompt_context.earlier_outputs import EarlierOutputs
from sequencer.engine.records import wanted_form
from sequencer.model.head import Head
from sequencer.model.request import Definition, Request
from sequencer.model.sequence.gates import read_by
from sequencer.model.sequence.order import present, step_at
from sequencer.model.workflow import Workflow
from sequencer.workflows import prompts as templates

Compose = Callable[[str], str]
"""Makes a prompt out of what its file says."""


def request_block(request: Request) -> str:
    """Return *request* as it stands in a prompt."""
    parts = [f"# Request: {request.title}"]
    known = (
        ("Identifier", request.identifier),
        ("Address", request.url),
        ("Priority", request.priority),
        ("Assigned to", ", ".join(request.assignees)),
    )
    if facts := [f"{name}: {value}" for name, value in known if value]:
        parts.append("\n".join(facts))
    if request.text.strip():
        parts.append(request.text.strip())
    if request.labels:
        parts.append(f"Labels: {', '.join(request.labels)}")
    for number, comment in enumerate(request.comments, start=1):
        parts.append(f"## Comment {number}\n\n{comment.strip()}")
    if request.attachments:
        parts.append("Attachments:\n" + "\n".join(f"- {one}" for one in request.attachments))
    return "\n\n".join(parts)


def form_block(form: str) -> str:
    """Return what a prompt says of the *form* of an answer, after an attempt that has failed."""
    return f"# How the answer has to end\n\nAn earlier attempt failed. This time, {form}."


def request_value(request: Request | None, path: tuple[str, ...]) -> Any:
    """Return what a prompt gets that asks for *path* of *request*; lists as people write them.

    Raises:
        KeyError: there is no request, or nothing of that name in it.
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
    longest_first = sorted(substitutions, key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, longest_first)))
    return pattern.sub(lambda found: substitutions[found[0]], text)


class Composer(Struct, frozen=True, dict=True):
    """Composes the prompts of one attempt."""

    head: Head
    request: Request | None
    substitutions: Mapping[str, str]
    recall: Callable[[], EarlierOutputs]
    told: Collection[tuple[str, int]] = ()
    """Which messages the attempt reads, see `gates.read_by`."""
    form: str | None = None
    """What the answer has to end with, where an earlier attempt has failed."""

    @cached_property
    def memory(self) -> EarlierOutputs:
        """Return what the run has said; read when it is first asked for."""
        return self.recall()

    def with_blocks(self, text: str) -> str:
        """Return *text*, which has no templates, with what the run has to say about it."""
        return _joined(text, [block for _, block in self._blocks()])

    def compose(self, text: str) -> str:
        """Return the prompt that the file's *text* makes.

        Raises:
            MissingValue: a template names something that is not there.
        """
        text = substitute(text, self.substitutions)
        asked = {path[0] for path in templates.names(text)}
        more = [block for root, block in self._blocks() if root not in asked]
        return _joined(templates.render(text, self._value), more)

    def _blocks(self) -> list[tuple[str, str]]:
        """Return what a prompt gets if it does not ask for it, by root."""
        found = []
        if self.request is not None:
            found.append(("request", request_block(self.request)))
        if self._is_after_feedback and (said := self._feedback()):
            found.append(("feedback", f"# What a person said about the last result\n\n{said}"))
        if self.told:
            messages = [text for to, text in self.memory.said.messages if to in self.told]
            found.append(("messages", "# Messages to you\n\n" + "\n\n".join(messages)))
        loop = self.head.loop
        if loop is not None and loop.reason:
            block = f"# What the check found (round {loop.round})\n\n{loop.reason}"
            if earlier := self._earlier_rounds():
                block += f"\n\n## What the rounds before found and tried\n\n{earlier}"
            found.append(("validation", block))
        if self.form is not None:
            found.append(("form", form_block(self.form)))
        return found

    @property
    def _is_after_feedback(self) -> bool:
        gate = self.head.gate
        return gate is not None and gate.decision == "feedback"

    def _feedback(self) -> str:
        gate = self.head.gate
        if gate is None or not self._is_after_feedback:
            return ""
        said = [note for note in self.memory.said.feedback if note.gate == gate.step]
        if len(said) == 1:
            return said[0].text
        return "\n\n".join(f"Round {note.round}: {note.text}" for note in said)

    def _earlier_rounds(self) -> str:
        loop = self.head.loop
        # In the first round there is nothing to read the journal for.
        has_some = loop is not None and (loop.round > 1 or loop.exhausted)
        return self.memory.earlier_rounds() if has_some else ""

    def _value(self, path: tuple[str, ...]) -> Any:
        root, rest = path[0], path[1:]
        return getattr(self, f"_root_{root}")(rest)

    def _root_request(self, path: tuple[str, ...]) -> Any:
        return request_value(self.request, path)

    def _root_output(self, path: tuple[str, ...]) -> Any:
        return templates.look_up(self.memory.last(), path)

    def _root_steps(self, path: tuple[str, ...]) -> Any:
        if len(path) < 2 or path[1] != "output":  # noqa: PLR2004 - a name and "output"
            raise KeyError("write {{steps.NAME.output}}")
        return templates.look_up(self.memory.output(path[0]), path[2:])

    def _root_feedback(self, path: tuple[str, ...]) -> Any:
        if path:
            raise KeyError("write {{feedback}}")
        return self._feedback()

    def _root_validation(self, path: tuple[str, ...]) -> Any:
        loop = self.head.loop
        if path == ("earlier",):
            return self._earlier_rounds()
        known = {
            "reason": loop.reason if loop else "",
            "round": loop.round if loop else 1,
            "earlier": "",
        }
        return templates.look_up(known, path)

    def _root_run(self, path: tuple[str, ...]) -> Any:
        head = self.head
        known = {
            "id": head.run_id,
            "name": head.run_name,
            "workflow": head.workflow_name,
            "step_index": head.step_index,
            "iteration": head.iteration,
        }
        return templates.look_up(known, path)


def prompt_composer(
    workflow: Workflow,
    definition: Definition | None,
    head: Head,
    recall: Callable[[], EarlierOutputs],
) -> Compose | None:
    """Return what makes the prompt of the step of *head* out of its file; None: nothing to add.

    *recall* reads what the run has said.
    """
    is_template = workflow.kind == "procedure"
    told, form = head.told, None
    if head.failures_in_row:
        here = present(workflow, head)
        form = wanted_form(workflow, step_at(workflow, here), here.stage)
    if not is_template and head.loop is None and head.gate is None and not told and form is None:
        return None
    if told:
        told = read_by(head, workflow, present(workflow, head), head.token)
    made_from, substitutions = None, dict[str, str]()
    if definition is not None:
        made_from, substitutions = definition.request, dict(definition.substitutions)
    composer = Composer(head, made_from, substitutions, recall, told, form)
    return composer.compose if is_template else composer.with_blocks


def _joined(text: str, blocks: list[str]) -> str:
    return "\n\n".join(filter(None, (text.strip(), *blocks))) + "\n"
