"""What is listed of a project's runs: where each stands, and what waits for a person."""

from __future__ import annotations

import getpass
import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from sequencer.cli.views.text import age_s, one_line
from sequencer.engine.recall import recall
from sequencer.engine.run import Dispatching, Run
from sequencer.errors import SequencerError, run_option, typed
from sequencer.history.timeline import BEGINNINGS
from sequencer.model.head import Gate, Head
from sequencer.project.project import Project
from sequencer.store.journal import JournalFile, facts_of

if TYPE_CHECKING:
    from sequencer.engine.markings import Question

Found = TypeVar("Found")
END_BYTES = 64 * 1024
"""Of a journal, in which the newest facts are looked for first."""


def each_run(
    project: Project, look: Callable[[Run, Head], Found]
) -> Iterator[tuple[Run, Found | SequencerError]]:
    """Yield every run of *project* that has begun with what *look* finds, or why it can't."""
    for name in (None, *project.run_names()):
        run = project.run(name)
        try:
            if (head := run.head) is not None:
                yield run, look(run, head)
        except SequencerError as error:
            # One that is damaged must not hide the others.
            yield run, error


def run_facts(
    project: Project, run: Run, head: Head, known: tuple[str | None, str | None] | None = None
) -> dict[str, Any]:
    """Return what is shown about *run*; when it began and its title are read if not *known*."""
    begun, title = known or _run_began(
        run, head, starts_over=run.name in project.settings.schedules
    )
    posting = project.posting
    return {
        "run": run.name,
        "ended": head.status == "complete",
        "workflow": head.workflow_name,
        "kind": run_kind(run, head),
        "step": head.expected_step,
        "step_index": head.step_index,
        "steps": run_length(run, head),
        "status": head.ended_as or str(head.status),
        "began_at": begun,
        "age_s": age_s(begun),
        "last_update": head.last_update,
        "cost_usd": head.usage.known_usd,
        "unpriced": head.usage.unpriced,
        "estimated_usd": head.usage.estimated_usd,
        "seconds": head.usage.seconds,
        "title": title,
        "posts": [] if posting is None else [one.as_json() for one in posting.pending(run, head)],
    }


def unread_facts(run: Run, error: SequencerError) -> dict[str, Any]:
    """Return what is shown about *run*, which can't be read."""
    facts: dict[str, Any] = {"run": run.name, "ended": False, "posts": []}
    return {**facts, "status": "unreadable", "error": error.message}


def run_length(run: Run, head: Head) -> int | None:
    """Return how many steps there are in all; None for a run without an end."""
    try:
        workflow = run.workflow_for(head)
    except SequencerError:
        return None
    return len(workflow.steps) if workflow.kind == "procedure" else None


def run_kind(run: Run, head: Head) -> str | None:
    """Return the kind of workflow that *run* works on; None: it can't be read."""
    with suppress(SequencerError):
        return run.workflow_for(head).kind
    return None


def _run_began(run: Run, head: Head, *, starts_over: bool = False) -> tuple[str | None, str | None]:
    """Return when the run began, as far as its journal goes back, and its request's title.

    If it *starts_over* by itself, its newest start counts, however far back.
    """
    definition = run.definition
    if definition is not None:
        return definition.created_at, definition.request.title
    if (begun := head.begun_at or _started_over(run, is_far=starts_over)) is not None:
        return begun, None
    try:
        if isinstance(run.store, Dispatching):
            first = next(iter(run.history()), None)
        else:
            first = JournalFile(run.store.state_path.parent, 0, 0).oldest()
    except SequencerError:
        first = None
    return (None if first is None else str(first["at"])), None


def _started_over(run: Run, *, is_far: bool) -> str | None:
    """Return when the run was started over last, looked for in all of its journal if *is_far*."""
    for facts in (_newest_facts, Run.history) if is_far else (_newest_facts,):
        with suppress(SequencerError):
            found = [str(one["at"]) for one in facts(run) if one["event"] in BEGINNINGS]
            if found:
                return found[-1]
    return None


class Open(NamedTuple):
    """A run that waits for a person: at its gate, or for the answers to its questions."""

    run: Run
    gate: Gate | None = None
    workflow: str = ""
    questions: tuple[Question, ...] = ()

    @property
    def name(self) -> str:
        """Return the run's name as people read it."""
        return one_line(name_of(self.run))

    @property
    def option(self) -> str:
        """Return what names the run on a command line, with a blank after it."""
        return run_option(one_line(self.run.name) if self.run.name else None)

    def commands(self, question: Question | None = None, most_chars: float = inf) -> list[str]:
        """Return the commands that decide about the gate, or answer *question*, to be pasted.

        One stands for all where the options together have more than *most_chars*.
        """
        if question is None:
            return [f"{self._answer} {word}" for word in ("approve", "reject", '"FEEDBACK"')]
        values = [one_line(each.value) for each in question.options] or ["TEXT"]
        values = values if sum(map(len, map(shlex.quote, values))) <= most_chars else ["VALUE"]
        return [f"{self._answer} {typed(one_line(question.node.id), value)}" for value in values]

    @property
    def _answer(self) -> str:
        return f"sequencer {self.option}answer"


def name_of(run: Run) -> str:
    """Return what people call *run*."""
    return run.name or "default run"


def waiting(project: Project) -> tuple[list[Open], dict[Run, SequencerError]]:
    """Return every run that waits for a person, and those that can't be read."""
    found = dict(each_run(project, open_at))
    unread = {run: one for run, one in found.items() if isinstance(one, SequencerError)}
    return [one for one in found.values() if isinstance(one, Open)], unread


def open_at(run: Run, head: Head) -> Open | None:
    """Return what *run*, which is at *head*, asks people; None: nothing, or it was stopped."""
    if head.exit:
        return None
    if head.is_at_gate and head.status != "complete":
        return Open(run, head.gate, head.workflow_name)
    questions = run.flow.questions(head) if head.asks else ()
    return Open(run, questions=tuple(questions)) if questions else None


def asked_at(run: Run, gate: Gate) -> str:
    """Return what the step before the gate said, which is what is to be decided about."""
    for facts in (_newest_facts, Run.history):
        with suppress(KeyError, SequencerError):
            return recall(run.store.state_path.parent, facts(run)).output(gate.step)
    return ""


def _newest_facts(run: Run) -> Iterator[dict[str, Any]]:
    """Yield the facts at the end of the journal: of a long run all of it takes seconds."""
    if not isinstance(run.store, Dispatching):
        for record in JournalFile(run.store.state_path.parent, 0, 0).newest(END_BYTES):
            yield from facts_of(record.data)


def question_json(run: Run, question: Question) -> dict[str, Any]:
    """Return a question as ``inbox --json`` prints it."""
    return {
        "run": run.name,
        "node": question.node.id,
        "question": question.text,
        "options": [each.model_dump(mode="json") for each in question.options],
        "free_text": not question.options or question.node.allows_custom_input,
        "free_text_fails": question.is_dead_end,
        "token": question.token,
        "opened_at": question.asked_at,
        "expires_at": question.expires_at,
    }


def decider() -> str:
    """Return who decides, for the history."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return f"uid {os.getuid()}"
