"""Facts about a project's runs: the state of each run, and what waits for a person."""

from __future__ import annotations

import getpass
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from sequencer.cli.views.facts import read_journal_end
from sequencer.cli.views.text import age_s, one_line
from sequencer.engine.prompt_context.earlier_outputs import read_earlier_outputs
from sequencer.engine.run import Run
from sequencer.errors import (
    ConfigurationError,
    DefinitionChanged,
    NotTrusted,
    SequencerError,
    StepsMissing,
    quote_words,
    run_option,
)
from sequencer.history.facts import EndState, RecordedFact, read_facts
from sequencer.model.head import Gate, Head, Status
from sequencer.model.kind import Readiness, ReadinessKind, describe_expired_gate, make_end_readiness
from sequencer.model.limits import parse_time
from sequencer.model.outcome import OutcomeStatus
from sequencer.model.workflow import ensure_definition
from sequencer.project.project import Project
from sequencer.project.scheduler import load_scheduler
from sequencer.store.identity import is_inside_agent
from sequencer.store.journal import JournalFile

if TYPE_CHECKING:
    from sequencer.engine.graph_changes import Question

Found = TypeVar("Found")
StartedRun = tuple[Run, Head | SequencerError]
"""A run with its head, or with the error that keeps it from continuing from its files."""
CAUSE_LINES, CAUSE_CHARS = 6, 300
"""How much to show of a failed attempt's last output."""
LONG_PAUSE = timedelta(hours=1, minutes=5)
"""A longer wait is reported: an hour, plus some minutes because a client's clock and a tick's
clock differ."""


def iter_started_runs(project: Project) -> Iterator[StartedRun]:
    """Yield each started run of *project* with its head, or with what is wrong with its files.

    They can't be read, or accepted steps are missing in them.
    """
    for name in (None, *project.run_names()):
        run = project.run(name)
        try:
            head = run.head
            is_over = head is None or head.status is Status.COMPLETE
            lost = None if head is None or is_over else project.find_lost_steps(run, head)
        except SequencerError as error:
            # A damaged run must not hide the others.
            yield run, error
        else:
            if head is not None:
                yield run, lost or head


def visit_runs(
    runs: Iterable[StartedRun], look: Callable[[Run, Head], Found]
) -> Iterator[tuple[Run, Found | SequencerError]]:
    """Yield each of *runs*, from `iter_started_runs`, with the result of *look*, or its error."""
    for run, head in runs:
        try:
            yield run, head if isinstance(head, SequencerError) else look(run, head)
        except SequencerError as error:
            yield run, error


def run_facts(
    project: Project, run: Run, head: Head, known: tuple[str | None, str | None] | None = None
) -> dict[str, Any]:
    """Return what is listed about *run*. *known* is its start date and title, if already read."""
    began_at, title = known or _find_run_start(
        run, head, starts_over=run.name in load_scheduler(project).workflows(project)
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
        "began_at": began_at,
        "age_s": age_s(began_at),
        "last_update": head.last_update,
        "cost_usd": head.usage.known_usd,
        "unpriced": head.usage.unpriced,
        "estimated_usd": head.usage.estimated_usd,
        "seconds": head.usage.seconds,
        "title": title,
        "posts": []
        if posting is None
        else [post.as_json() for post in posting.find_pending(run, head)],
    }


def unread_facts(run: Run, error: SequencerError) -> dict[str, Any]:
    """Return what is listed about a *run* that can't be read."""
    facts: dict[str, Any] = {"run": run.name, "ended": False, "posts": []}
    return {**facts, "status": "unreadable", "error": error.message}


def run_length(run: Run, head: Head) -> int | None:
    """Return the total number of steps; None: the run has no end, or can't be read."""
    try:
        workflow = run.workflow_for(head)
    except SequencerError:
        return None
    return len(workflow.steps) if workflow.has_end else None


def run_kind(run: Run, head: Head) -> str | None:
    """Return the kind of the workflow of *run*; None: it can't be read."""
    with suppress(SequencerError):
        return run.workflow_for(head).kind
    return None


def _find_run_start(
    run: Run, head: Head, *, starts_over: bool = False
) -> tuple[str | None, str | None]:
    """Return when the run started, as far as its journal goes back, and the title of its request.

    If a schedule *starts_over* the run, its newest start is used, even if it is far back.
    """
    definition = run.definition
    if definition is not None:
        return definition.created_at, definition.request.title
    if (start := head.begun_at or _find_restart_time(run, is_far=starts_over)) is not None:
        return start, None
    try:
        if run.dispatch is not None:
            first_record = next(iter(run.history()), None)
        else:
            first_record = JournalFile(run.store.state_path.parent, 0, 0).read_oldest()
    except SequencerError:
        first_record = None
    return (None if first_record is None else str(first_record["at"])), None


def _find_restart_time(run: Run, *, is_far: bool) -> str | None:
    """Return when the run was last started over; None: never, or not found.

    With *is_far*, the whole journal is searched, otherwise only its end.
    """
    for facts in (read_journal_end, Run.history) if is_far else (read_journal_end,):
        with suppress(SequencerError):
            dates = [fact.at for fact in read_facts(facts(run)) if fact.meaning.starts_over]
            if dates:
                return dates[-1]
    return None


class Open(Struct, frozen=True):
    """A run that waits for a person: at its gate, or for the answers to its questions."""

    run: Run
    gate: Gate | None = None
    workflow: str = ""
    questions: tuple[Question, ...] = ()
    is_on_hold: bool = False
    """Whether a person has stopped or paused it."""
    has_others: bool = False
    """Whether other runs wait too, so that an answer must name even the default run."""

    @property
    def name(self) -> str:
        """Return the run's name as people read it."""
        return one_line(get_run_name(self.run))

    @property
    def option(self) -> str:
        """Return the option that names the run on a command line, with a blank after it."""
        return run_option(one_line(self.run.name) if self.run.name else None)

    def commands(self, question: Question | None = None, most_chars: float = inf) -> list[str]:
        """Return the commands that decide about the gate or answer *question*, ready to paste.

        If the options together are longer than *most_chars*, one command stands for all. If the
        time to answer has run out, it is the command that continues the run.
        """
        if self.describe_timeout(question):
            return [f"sequencer {self.option}{'resume' if self.is_on_hold else 'run'}"]
        if question is None:
            return [f"{self._answer} {word}" for word in ("approve", "reject", '"FEEDBACK"')]
        values = [one_line(option.value) for option in question.options] or ["TEXT"]
        values = values if sum(map(len, map(shlex.quote, values))) <= most_chars else ["VALUE"]
        return [
            f"{self._answer} {quote_words(one_line(question.node.id), value)}" for value in values
        ]

    def describe_timeout(self, question: Question | None = None) -> str:
        """Return in words that the time for *question* or the gate is up; empty: it is not."""
        now = datetime.now(UTC)
        if question is not None:
            return question.describe_expiry(now)
        return "" if self.gate is None else describe_expired_gate(self.gate, now)

    @property
    def _answer(self) -> str:
        is_default = self.run.name is None and self.has_others
        option = run_option("default") if is_default else self.option
        return f"sequencer {option}answer"


class Need(Struct, frozen=True):
    """What keeps a run from continuing by itself. For most needs, a person has to act."""

    kind: ReadinessKind
    key: str
    """Identifies the need at a later time, even if counts or times in its text have changed."""
    text: str
    commands: tuple[str, ...] = ()
    """Commands to type; one of them is enough."""
    advice: str = ""
    """What to do before typing a command."""
    cause: tuple[str, ...] = ()
    """The last lines of the output that failed."""
    log: str = ""
    """The step log of the failure."""
    until: datetime | None = None
    """When a pause ends; None: unknown."""
    is_asked: bool = False
    """Whether a gate or a node asks; see `Open`."""
    shared: str = ""
    """Identifies a pause that other runs of the project have too; empty: no other run has it."""
    is_unreadable: bool = False
    """Whether a person has to repair the run's files first."""

    @property
    def is_of_a_person(self) -> bool:
        """Return whether nothing happens until a person acts."""
        return self.kind is not ReadinessKind.NOT_YET

    def format_lines(self) -> list[str]:
        """Return the lines that follow `text`: the cause, the log and what to do."""
        lines = ["cause:", *(f"  {line}" for line in self.cause)] if self.cause else []
        lines += [f"log: {self.log}"] if self.log else []
        commands = ", or ".join(c if "'" in c else f"'{c}'" for c in self.commands)
        return [*lines, *([f"to do: {f'{self.advice} {commands}'.strip()}"] if commands else [])]


def find_need(run: Run, head: Head, now: datetime | None = None) -> Need | None:
    """Return why *run*, which is at *head*, does not continue by itself; None: it does.

    Raises:
        DefinitionChanged: it was started under another definition.
    """
    now = datetime.now(UTC) if now is None else now
    readiness = _find_readiness(run, head)
    text, key = one_line(readiness.message.partition("\n")[0]), f"{readiness.kind} {head.run_id}"
    option = run_option(run.name)
    if readiness.kind in (ReadinessKind.REFUSED, ReadinessKind.LIMIT):
        # The rest of the message is advice, which `commands` gives.
        text = text.partition("; ")[0]
    if readiness.kind is ReadinessKind.REFUSED:
        verbs = ("retry", "skip") if run.kind.has_one_place else ("retry",)
        failure = newest_failure(run)
        cause, log = _extract_cause({} if failure is None else failure.details)
        key += f" {head.expected_step} {head.step_index}"
        return Need(readiness.kind, key, text, _format_commands(option, *verbs), "", cause, log)
    if readiness.kind is ReadinessKind.NOT_YET:
        return _find_long_wait(run, head, readiness, now)
    if readiness.kind is ReadinessKind.LIMIT:
        advice = "raise it in orchestration.yaml, then"
        return Need(readiness.kind, key, text, _format_commands(run_option(None), "trust"), advice)
    if (
        readiness.kind is ReadinessKind.PERSON
        and (open_item := find_open_item(run, head)) is not None
    ):
        first_question = open_item.questions[0] if open_item.questions else None
        key += "".join(f" {question.node.id} {question.token}" for question in open_item.questions)
        key += "" if open_item.gate is None else f" {open_item.gate.step} {open_item.gate.token}"
        return Need(
            readiness.kind, key, text, tuple(open_item.commands(first_question)), is_asked=True
        )
    if readiness.kind in (ReadinessKind.PERSON, ReadinessKind.PAUSED, ReadinessKind.STOPPED):
        return Need(readiness.kind, key, text, _format_commands(option, "resume"))
    return None


def _find_readiness(run: Run, head: Head) -> Readiness:
    """Return what may happen next; a complete run needs no workflow for that."""
    if head.status is Status.COMPLETE:
        return make_end_readiness(head)
    workflow = run.workflow_for(head)
    ensure_definition(head, workflow)
    return run.readiness_at(head, workflow)


def _format_commands(option: str, *verbs: str) -> tuple[str, ...]:
    return tuple(f"sequencer {option}{verb}" for verb in verbs)


def iter_needs(runs: Iterable[StartedRun]) -> Iterator[tuple[Run, Need]]:
    """Yield those of *runs* that need a person but ask no question, as after a final failure.

    Runs that can't be read are included, because a person has to repair them.
    """
    for run, need in visit_runs(runs, _need_if_readable):
        if isinstance(need, DefinitionChanged):
            key = f"changed {run.name}"
            commands = _format_commands(run_option(run.name), "adopt", "reset")
            yield run, Need(ReadinessKind.REFUSED, key, one_line(need.message), commands)
        elif isinstance(need, ConfigurationError):
            text = one_line(f"can't continue: {need.in_one_line}")
            yield run, Need(ReadinessKind.REFUSED, f"disabled {run.name} {need.message}", text)
        elif isinstance(need, SequencerError):
            yield run, _unread_need(run, need)
        elif isinstance(need, Need) and need.kind in _OF_A_PERSON and not need.is_asked:
            yield run, need


def _need_if_readable(run: Run, head: Head) -> Need | None:
    """Return the need of *run*; without one, read its questions too, so that damage is noticed."""
    need = find_need(run, head)
    if need is None:
        find_open_item(run, head)
    return need


def _unread_need(run: Run, error: SequencerError) -> Need:
    """Return what a person has to do about a *run* that can't be read."""
    place = f"{error.where}: " if error.where else ""
    repair = f"'sequencer {run_option(run.name)}repair"
    problem = "can't continue" if isinstance(error, StepsMissing) else "can't be read"
    return Need(
        ReadinessKind.REFUSED,
        f"unreadable {run.name}",
        one_line(f"{problem}: {place}{error.message}"),
        advice=one_line(error.hint or "").replace("'sequencer repair", repair),
        is_unreadable=True,
    )


def untrusted_need(refused: NotTrusted) -> Need:
    """Return what a person has to do about a project that may not act."""
    changes = tuple(one_line(line)[:CAUSE_CHARS] for line in refused.changed)
    reason = "it is not trusted on this machine"
    if changes:
        reason = "it has changed since you trusted it"
    cause_lines = changes[:CAUSE_LINES]
    if changes[CAUSE_LINES:]:
        cause_lines += (f"and {len(changes) - CAUSE_LINES} more",)
    text = f"{reason}, so nothing starts"
    commands = _format_commands(run_option(None), "trust")
    return Need(ReadinessKind.REFUSED, "trust", text, commands, cause=cause_lines)


def build_need_json(run: Run | None, need: Need) -> dict[str, Any]:
    """Return *need* as ``inbox --json`` prints it; without a *run*, it is a need of the project."""
    kind = "unreadable" if need.is_unreadable else str(need.kind)
    return {
        "run": None if run is None else run.name,
        "need": "untrusted" if run is None else kind,
        "text": need.text,
        "cause": list(need.cause),
        "log": need.log or None,
        "advice": need.advice or None,
        "commands": list(need.commands),
    }


_OF_A_PERSON = frozenset((ReadinessKind.REFUSED, ReadinessKind.LIMIT, ReadinessKind.PERSON))
"""Needs that no person has decided. PAUSED and the kinds in `FINAL` are a person's decisions."""


def _find_long_wait(run: Run, head: Head, readiness: Readiness, now: datetime) -> Need | None:
    """Return the wait for a date if it is long or may become long; None: it is neither."""
    due_date, reason = parse_time(readiness.until or ""), head.not_before_reason or "not due"
    if due_date is None:
        return None
    local_time = f"{due_date.astimezone():%Y-%m-%d %H:%M %Z}"
    if due_date > now + LONG_PAUSE:
        text = (
            f"{one_line(reason)}: nothing starts before {local_time}; then it continues by itself"
        )
        # A usage limit is the agent's, so other runs with this agent wait for the same reason.
        return Need(
            readiness.kind, f"pause {head.run_id}", text, until=due_date, shared=one_line(reason)
        )
    status = (_newest_outcome(run) or {}).get("status")
    if status not in (OutcomeStatus.LIMITED, OutcomeStatus.UNAVAILABLE):
        return None
    text = f"{one_line(reason)}; it is tried again by itself"
    return Need(
        readiness.kind,
        f"{status} {head.run_id}",
        text,
        _format_commands(run_option(run.name), "log"),
    )


def _newest_outcome(run: Run) -> Mapping[str, Any] | None:
    """Return the outcome of the newest attempt; None: it can't be found."""
    outcome = None
    with suppress(SequencerError):
        for fact in read_facts(read_journal_end(run)):
            outcome = fact.details if fact.meaning.by_holder else outcome
    return outcome


def newest_failure(run: Run) -> RecordedFact | None:
    """Return the fact about the attempt that last failed; None: it can't be found."""
    for facts in (read_journal_end, Run.history):
        with suppress(SequencerError):
            for fact in reversed([*read_facts(facts(run))]):
                if fact.meaning.ends is EndState.FAILED and not fact.meaning.by_hand:
                    return fact
    return None


def _extract_cause(outcome: Mapping[str, Any]) -> tuple[tuple[str, ...], str]:
    """Return the first line and the last lines of the error in *outcome*, and its log."""
    error = str(outcome.get("error") or "").splitlines()
    lines = [one_line(line)[:CAUSE_CHARS] for line in error if line.strip()]
    return (*lines[:1], *lines[1:][1 - CAUSE_LINES :]), one_line(outcome.get("log") or "")


def get_run_name(run: Run) -> str:
    """Return the name by which people know *run*."""
    return run.name or "default run"


def find_waiting_runs(
    runs: Iterable[StartedRun],
) -> tuple[list[Open], dict[Run, SequencerError]]:
    """Return those of *runs* that wait for a person, and the errors of those that can't be read."""
    results = dict(visit_runs(runs, find_open_item))
    unread_runs = {
        run: error for run, error in results.items() if isinstance(error, SequencerError)
    }
    items = [result for result in results.values() if isinstance(result, Open)]
    return [replace(item, has_others=len(items) > 1) for item in items], unread_runs


def find_open_item(run: Run, head: Head) -> Open | None:
    """Return the gate or questions of *run*, which is at *head*; None: none, or it was stopped."""
    if head.exit:
        return None
    if head.is_at_gate and head.status != "complete":
        return Open(run, head.gate, head.workflow_name, is_on_hold=head.is_on_hold)
    questions = tuple(run.flow.questions(head)) if head.asks else ()
    return Open(run, None, "", questions, head.is_on_hold) if questions else None


def read_gate_output(run: Run, gate: Gate) -> str:
    """Return the output of the step before the gate; this is what a person decides about."""
    for facts in (read_journal_end, Run.history):
        with suppress(KeyError, SequencerError):
            return read_earlier_outputs(run.store.state_path.parent, facts(run)).output(gate.step)
    return ""


def build_question_json(run: Run, question: Question) -> dict[str, Any]:
    """Return a question as ``inbox --json`` prints it."""
    return {
        "run": run.name,
        "node": question.node.id,
        "question": question.text,
        "options": [option.model_dump(mode="json") for option in question.options],
        "free_text": not question.options or question.node.allows_custom_input,
        "free_text_fails": question.is_dead_end,
        "token": question.token,
        "opened_at": question.asked_at,
        "expires_at": question.expires_at,
        "expired": bool(question.describe_expiry(datetime.now(UTC))),
    }


_UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")
"""A letter of Thai, Lao, Burmese, Khmer, Japanese or Chinese, which need no spaces."""
_UNSPACED_WORD_CHARS = 8


def is_single_word(text: str) -> bool:
    """Return whether *text* is a single word.

    At a gate, one word is more likely a decision than feedback, and feedback makes a step run
    again, which costs money.

    >>> is_single_word(" LGTM! "), is_single_word("shorter please"), is_single_word("")
    (True, False, False)
    """
    words = text.split()
    is_sentence = len(text) > _UNSPACED_WORD_CHARS and _UNSPACED.search(text) is not None
    return len(words) == 1 and not is_sentence


def decider_name() -> str:
    """Return the name of the user who decides, for the history; an agent is called one."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):
        name = f"uid {os.getuid()}"
    return f"an agent of {name}" if is_inside_agent() else name
