"""`inbox`, `answer` and `tell`: list what waits for a person, and take what a person says."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import click

from sequencer.cli.change import show_change
from sequencer.cli.context import Invocation, is_interactive
from sequencer.cli.options import pass_invocation, read_argument, verb
from sequencer.cli.views.next_command import InterruptedRun, find_interruption
from sequencer.cli.views.runs import (
    Need,
    Open,
    StartedRun,
    build_need_json,
    build_question_json,
    decider_name,
    find_waiting_runs,
    get_run_name,
    is_single_word,
    iter_needs,
    iter_started_runs,
    read_gate_output,
    untrusted_need,
    visit_runs,
)
from sequencer.cli.views.text import one_line, strip_controls
from sequencer.engine.events import NoticeGiven, RunEvent
from sequencer.engine.run import Run
from sequencer.errors import (
    DefinitionChanged,
    SequencerError,
    TransitionRefused,
    UnknownName,
    UsageRefused,
    format_command,
)
from sequencer.model.commands import AnswerQuestion, Approve, Feedback, Reject, Tell
from sequencer.model.head import Gate, Head, Status
from sequencer.model.kind import ReadinessKind
from sequencer.model.whole_numbers import parse_whole_number
from sequencer.project.project import Project
from sequencer.store.identity import is_inside_agent

if TYPE_CHECKING:
    from sequencer.engine.graph_changes import Question
    from sequencer.engine.tree_state import UnmergedWork

GATE_LINES, QUESTION_LINES = 12, 24
VALUES_CHARS = 200
LATER = "later"


def _find_waiting_run(invocation: Invocation, question: str | None, text: str) -> Run:
    """Return the run that ``--run`` names, or else the only run that asks *question*.

    A run that waits for nothing gets approve and reject too: its refusal says what was decided,
    and reject ends a flow that asks nothing right now.

    Raises:
        UnknownName: runs wait, but none asks this question.
        TransitionRefused: nothing waits, or ``--run`` is missing and several runs wait.
    """
    is_decision = question is None and text.strip().lower() in DECISIONS
    if invocation.run_name is not None:
        run = invocation.run()
        if not (is_decision or _is_waiting(run.head)):
            raise TransitionRefused(
                f"answer: run {run.name!r} waits for no decision",
                hint=f"{format_command(run.name, 'status')} shows what it does",
            )
        return run
    project = invocation.project()
    waits, unread_runs = find_waiting_runs(iter_started_runs(project))
    if not waits:
        # A stopped run is in no list, but takes an answer.
        head = None if unread_runs else project.run(None).head
        if head is not None and (is_decision or _is_waiting(head)):
            return project.run(None)
        raise _build_nothing_waits_error(unread_runs)
    questions_by_run = {item.run: _list_answerable_names(item) for item in waits}
    if question is not None:
        if not any(question in names for names in questions_by_run.values()):
            # A run that can't be read may be the one that asks.
            _warn(invocation, unread_runs)
            known_names = sorted(set().union(*questions_by_run.values()))
            raise UnknownName("open question", question, known_names, where="sequencer answer")
        questions_by_run = {
            run: names for run, names in questions_by_run.items() if question in names
        }
    return _require_single_run(invocation, list(questions_by_run))


def _is_waiting(head: Head | None) -> bool:
    """Return whether the run at *head* takes an answer."""
    return head is not None and (
        bool(head.asks) or (head.is_at_gate and head.status is not Status.COMPLETE)
    )


def _build_nothing_waits_error(unread_runs: Mapping[Run, SequencerError]) -> TransitionRefused:
    """Return the error for an answer that no run waits for; one of *unread_runs* may do so."""
    problems = (
        f"{get_run_name(run)} can't be read: {error.in_one_line}"
        for run, error in unread_runs.items()
    )
    return TransitionRefused(
        "; ".join(["answer: no run waits for a decision", *problems]),
        hint="'sequencer status --all' lists the runs and their status",
    )


def _list_answerable_names(item: Open) -> set[str]:
    """Return the names by which a person may answer the questions of a run: steps and nodes."""
    gate = () if item.gate is None else (item.gate.step,)
    return {*gate, *(question.node.id for question in item.questions)}


def _require_single_run(invocation: Invocation, runs: list[Run]) -> Run:
    """Return the only one of *runs*, and say which run that is.

    Raises:
        TransitionRefused: there are several runs.
    """
    if len(runs) > 1:
        names = ", ".join(sorted(run.name or "default" for run in runs))
        raise TransitionRefused(
            f"answer: {len(runs)} runs wait for a decision: {names}",
            hint="'sequencer --run NAME answer …' answers one of them",
        )
    if runs[0].name is not None:
        invocation.notify(f"this answers run {runs[0].name!r}, the only one that waits")
    return runs[0]


DECISIONS = ("approve", "reject")


@verb("answer")
@click.argument("words", nargs=-1, required=True, metavar="[QUESTION] ANSWER")
@click.option("--note", metavar="TEXT", help="Why. Kept in the history.")
@pass_invocation
def answer(invocation: Invocation, words: tuple[str, ...], note: str | None) -> None:
    """Answer what a run waits for; 'sequencer inbox' shows it.

    At a gate, ANSWER is approve, reject, or your feedback. With feedback, the step before the
    gate runs again with it in its prompt, and the gate asks again. At a node of a flow, ANSWER
    is one of its options, or any text if the node takes one. If no question has reject as an
    option, reject ends the run.

    Without --run, you answer the only run that waits. QUESTION is the step at the gate, or the
    node; you need it if a flow asks several things. The run continues with the next 'run' or
    'tick'. If ANSWER is -, it is read from standard input.

    \b
    Examples:
      sequencer answer approve
      sequencer answer reject --note "works as designed"
      sequencer answer "It also happens without a proxy; look at the retry."
      sequencer --run release answer review approve
    """
    if len(words) > 2:  # noqa: PLR2004 - a question and an answer
        raise UsageRefused(
            "expected [QUESTION] ANSWER", hint="put an answer of several words in quotes"
        )
    question, text = words[0] if len(words) > 1 else None, read_argument(words[-1])
    is_feedback = question == "feedback" and not any(
        question in _list_answerable_names(item)
        for item in find_waiting_runs(iter_started_runs(invocation.project()))[0]
    )
    if is_feedback:
        question = None  # 'answer feedback TEXT': the kind of answer, like 'approve'
    run = _find_waiting_run(invocation, question, text)
    head = run.head
    gate = head.gate if head is not None and head.gate is not None and head.gate.is_open else None
    node = question if gate is None or question != gate.step else None
    if node is None and head is not None and head.asks:
        node = _find_answered_node(run, head, text)
    if node is not None:
        if note is not None:
            raise UsageRefused("works only with approve and reject", where="--note")
        change = run.do(AnswerQuestion(node, text), by=decider_name())
        output = str((change.facts[0].outcome or {}).get("output", ""))
        show_change(invocation, run, change.head, f"{node} was answered: {one_line(output)[:80]}")
        return
    decision = _parse_decision(run, gate, text, note, is_feedback=is_feedback)
    _decide(invocation, run, gate, decision)


def _find_answered_node(run: Run, head: Head, text: str) -> str | None:
    """Return the node that *text* answers; None: it is a decision about the run as a whole.

    Raises:
        TransitionRefused: several nodes ask.
    """
    questions = run.flow.questions(head)
    options = [option for question in questions for option in question.options]
    offered_words = {word.lower() for option in options for word in (option.value, option.label)}
    if text.lower() in DECISIONS and text.lower() not in offered_words:
        return None
    if len(questions) > 1:
        names = ", ".join(question.node.id for question in questions)
        raise TransitionRefused(
            f"answer: the run asks {len(questions)} questions: {names}",
            hint="'sequencer answer QUESTION ANSWER' answers one",
        )
    return questions[0].node.id


def _parse_decision(
    run: Run, gate: Gate | None, text: str, note: str | None, *, is_feedback: bool
) -> Approve | Reject | Feedback:
    """Return the decision that *text* is; with *is_feedback*, any text is feedback.

    Raises:
        UsageRefused: *text* is a word that looks like a decision, but is not one.
    """
    # The token of the question that was read: another question may have been asked since.
    token = None if gate is None else gate.token
    word = text.strip().lower()
    if word in DECISIONS and not is_feedback:
        return (Approve if word == "approve" else Reject)(note, token)
    if note is not None:
        raise UsageRefused("works only with approve and reject", where="--note")
    is_unclear = is_single_word(text) or get_close_matches(word, DECISIONS, cutoff=0.8)
    if is_unclear and not is_feedback:
        raise UsageRefused(
            f"{text!r} is neither 'approve' nor 'reject'",
            where="sequencer answer",
            hint="feedback needs more than one word; "
            f"{format_command(run.name, 'answer feedback', text)} sends this one",
        )
    return Feedback(text, token)


def _decide(
    invocation: Invocation, run: Run, gate: Gate | None, decision: Approve | Reject | Feedback
) -> None:
    """Make *decision* about *run* at its *gate*; it stands even if it can't be posted."""

    def notice(event: RunEvent) -> None:
        if isinstance(event, NoticeGiven):
            invocation.notify(f"notice: {event.text}")

    new_head = run.do(decision, by=decider_name(), on_event=notice).head
    try:
        if (posting := invocation.project().posting) is not None:
            posting.deliver(run.name, invocation.notify)
    except SequencerError as error:
        invocation.notify(f"notice: the decision was not posted: {error.message}")
    outcomes = {"approve": "approved: ", "reject": "rejected: "}
    outcome = outcomes.get(decision.verb, "feedback was given to ")
    show_change(
        invocation, run, new_head, f"{outcome}{'the run' if gate is None else repr(gate.step)}"
    )


@verb("inbox")
@pass_invocation
def inbox(invocation: Invocation) -> None:
    """List what needs a person in all runs, and what to type.

    Questions come first. Then come runs that failed and are not tried again, runs that can't be
    read, runs at a limit, work in worktrees that is not merged, and changes of the project that
    you have not trusted yet.
    With --run, list only what that run needs.

    \b
    Examples:
      sequencer inbox
      sequencer inbox --json | jq -r '.[].run'
    """
    # `run()` refuses an unknown name.
    run_name = None if invocation.run_name is None else invocation.run().name
    # Each run is opened once: a project may have thousands.
    started_runs = [*iter_started_runs(invocation.project())]
    runs = [(run, head) for run, head in started_runs if run_name in (None, run.name)]
    items = [*_iter_items(invocation, run_name, runs)]
    notices = [result for _, result in visit_runs(runs, lambda run, _: run.view().notices)]
    invocation.show_notices(text for texts in notices if isinstance(texts, tuple) for text in texts)
    if invocation.is_json:
        invocation.print_json([row for row, _ in items])
        return
    if not items:
        subject = "no run waits for a" if run_name is None else f"run {run_name!r} waits for no"
        invocation.echo(f"{subject} decision")
    for _, lines in items:
        for line in lines:
            invocation.echo(line)


def _iter_items(
    invocation: Invocation, run_name: str | None, runs: Sequence[StartedRun]
) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Yield what needs a person in *runs*, as JSON facts and as lines.

    They are all started runs if *run_name* is None, else the run of that name.
    """
    project, (waits, _) = invocation.project(), find_waiting_runs(runs)
    open_questions = [(item, question) for item in waits for question in item.questions]
    for item, question in open_questions:
        lines = [*_question_lines(item, question), *_format_commands(item, question)]
        yield build_question_json(item.run, question), lines
    for item, gate in [(item, item.gate) for item in waits if item.gate is not None]:
        yield _build_gate_json(item, gate), _gate_lines(item, gate)
    for run, interrupted_run in visit_runs(runs, find_interruption):
        if isinstance(interrupted_run, InterruptedRun):
            lines = [
                f"{one_line(get_run_name(run))}: {interrupted_run.words}",
                f"  {interrupted_run.next_command.line}",
            ]
            yield _build_interrupted_json(interrupted_run), lines
    for run, need in iter_needs(runs):
        yield build_need_json(run, need), _need_lines(one_line(get_run_name(run)), need)
    for work in project.find_unmerged_work():
        if run_name in (None, work.run):
            yield work.as_json(), _work_lines(work)
    trust_need = _find_trust_need(project, has_runs=bool(runs)) if run_name is None else None
    if trust_need is not None:
        yield build_need_json(None, trust_need), _need_lines("this project", trust_need)


def _build_gate_json(item: Open, gate: Gate) -> dict[str, Any]:
    """Return a run at a *gate* as ``inbox --json`` prints it."""
    fields = gate.model_dump(mode="json", exclude={"decision", "earlier"})
    run_fields = {"run": item.run.name, "workflow": item.workflow}
    question = read_gate_output(item.run, gate)
    return {**run_fields, **fields, "question": question, "expired": bool(item.describe_timeout())}


def _build_interrupted_json(interrupted_run: InterruptedRun) -> dict[str, Any]:
    """Return a run whose process is gone as ``inbox --json`` prints it."""
    steps, command = (
        [claim.step for claim in interrupted_run.claims],
        interrupted_run.next_command.line,
    )
    return {
        "run": interrupted_run.run.name,
        "interrupted": steps,
        "text": interrupted_run.words,
        "next_command": command,
    }


def _find_trust_need(project: Project, *, has_runs: bool) -> Need | None:
    """Return the need to trust the project before its runs continue; None: there is none."""
    try:
        refusal = project.trust.refusal()
    except SequencerError as error:
        # The records of trust can't be read; that must not hide the questions.
        return Need(ReadinessKind.REFUSED, "trust", one_line(error.in_one_line))
    if refusal is None:
        return None
    return untrusted_need(refusal) if refusal.changed or has_runs else None


def _need_lines(name: str, need: Need) -> list[str]:
    """Return the lines that show why a run does not continue."""
    lines = [f"{name}: {need.text}", *(f"  | {line}" for line in need.cause)]
    lines += [f"  log: {need.log}"] if need.log else []
    lines += [f"  {need.advice}"] if need.advice else []
    return [*lines, *(f"  {command}" for command in need.commands)]


def _warn(invocation: Invocation, unread_runs: Mapping[Run, SequencerError]) -> None:
    for run, error in unread_runs.items():
        invocation.notify(f"warning: {get_run_name(run)} is left out: {error.in_one_line}")


def _gate_lines(item: Open, gate: Gate) -> list[str]:
    """Return the lines that show a gate and its question."""
    if timeout := item.describe_timeout():
        return [f"{item.name}: {one_line(timeout)}", *_format_commands(item)]
    deadline = f", until {gate.expires_at} (then: {gate.on_timeout})" if gate.expires_at else ""
    times = f", asked {gate.round} times" if gate.round > 1 else ""
    end = ", approval completes the run" if gate.completes_run else ""
    step = f"{one_line(gate.step)} of {one_line(item.workflow)}"
    return [
        f"{item.name}: {step} has been waiting since {gate.opened_at}{deadline}{times}{end}",
        *_quote_lines(
            read_gate_output(item.run, gate), GATE_LINES, f": sequencer {item.option}log"
        ),
        *_format_commands(item),
    ]


def _work_lines(work: UnmergedWork) -> list[str]:
    """Return the lines that show work that is not merged, and what to type."""
    name = one_line(work.run or "default run")
    return [f"{name}: {one_line(work.words)}", *(f"  {one_line(text)}" for text in work.commands)]


def _format_commands(item: Open, question: Question | None = None) -> list[str]:
    return [f"  {command}" for command in item.commands(question, VALUES_CHARS)]


def _question_lines(item: Open, question: Question) -> list[str]:
    """Return the lines that show a question and its options."""
    if timeout := item.describe_timeout(question):
        return [f"{item.name}: {one_line(timeout)}"]
    deadline = f", until {question.expires_at}" if question.expires_at else ""
    # A title that only repeats the question would be shown twice.
    is_title = question.text.split() == question.node.title.split()
    node = one_line(question.node.id if is_title else question.node.named)
    lines = [f"{item.name}: {node} has been waiting since {question.asked_at}{deadline}"]
    lines += _quote_lines(question.text, QUESTION_LINES)
    for option in question.options:
        description = f": {one_line(option.description)}" if option.description else ""
        label = f" ({one_line(option.label)})" if option.label != option.value else ""
        lines.append(f"  - {one_line(option.value)}{label}{description}")
    if question.options and question.node.allows_custom_input:
        warning = ": no edge takes it, so the node would fail" if question.is_dead_end else ""
        lines.append(f"  - any other text{warning}")
    return lines


def _quote_lines(text: str, max_lines: int, source: str = "") -> Iterator[str]:
    """Yield the first *max_lines* lines of *text*, then how many more there are, and *source*."""
    lines = strip_controls(text).strip().splitlines()
    yield from (f"  | {line}" for line in lines[:max_lines])
    if len(lines) > max_lines:
        yield f"  | … {len(lines) - max_lines} more lines{source}"


def ask_questions(invocation: Invocation, run: Run, head: Head) -> bool:
    """Ask the person at the terminal each open question; return whether one was answered.

    Another person may answer at the same time, in another terminal; the first answer wins.
    """
    has_answered = False
    for question in run.flow.questions(head):
        for line in _question_lines(Open(run), question):
            invocation.notify(line)
        text = _prompt_for_answer(question)
        if text is None:
            # End the line of the prompt, so that the next output starts on a new line.
            invocation.notify("")
            continue
        if text == LATER and LATER not in {option.value for option in question.options}:
            continue
        try:
            run.do(AnswerQuestion(question.node.id, text, question.token), by=decider_name())
        except UnknownName:
            name = one_line(question.node.id)
            invocation.notify(f"notice: question {name!r} is closed: someone else has answered it")
        except TransitionRefused as error:
            invocation.notify(f"notice: {error.message}")
        has_answered = True
    return has_answered


def _prompt_for_answer(question: Question) -> str | None:
    """Return what the person types; None: the input ended (Ctrl-D), which is not an answer.

    Raises:
        click.Abort: the person pressed Ctrl-C.
    """
    try:
        return _read_answer(question)
    except click.Abort as error:
        if isinstance(error.__context__, EOFError):
            return None
        raise


def _read_answer(question: Question) -> str:
    """Return the person's answer: an option, a text, or ``later``; a number becomes its option."""
    values = [option.value for option in question.options]
    if not values or question.node.allows_custom_input:
        menu = ", ".join(f"{n} {one_line(v)}" for n, v in enumerate(values, start=1))
        prompt = f"Your answer ({menu + ', ' if menu else ''}or {LATER})"
        text: str = click.prompt(prompt, err=True)
        number = parse_whole_number(text) or 0
        return values[number - 1] if 0 < number <= len(values) else text
    numbers = [str(n) for n in range(1, len(values) + 1)]
    prompt = ", ".join(f"[{n}] {one_line(v)}" for n, v in enumerate(values, start=1))
    choices = click.Choice([*numbers, *values, LATER], case_sensitive=False)
    word: str = click.prompt(f"{prompt} or {LATER}", type=choices, show_choices=False, err=True)
    return values[int(word) - 1] if word in numbers and word not in values else word


CHOICES = {"a": "approve", "r": "reject", "f": "feedback", "l": "later"}


def ask_for_decision(invocation: Invocation, run: Run) -> bool:
    """Ask the person at the terminal to decide about *run*; return whether the run may continue.

    It may not if no one is there to answer. Another person may decide at the same time, in
    another terminal; the first decision wins.
    """
    if invocation.is_json or invocation.is_quiet or not is_interactive() or is_inside_agent():
        return False
    head = run.head
    if head is not None and head.asks:
        return ask_questions(invocation, run, head)
    if head is None or head.gate is None or not head.gate.is_open:
        return head is not None and head.status is not Status.WAITING_APPROVAL
    for line in _gate_lines(Open(run, head.gate, head.workflow_name), head.gate):
        invocation.notify(line)
    try:
        return _prompt_for_decision(invocation, run, head.gate.token)
    except TransitionRefused as error:
        invocation.notify(f"notice: {error.message}")
        return True


def _prompt_for_decision(invocation: Invocation, run: Run, token: int) -> bool:
    prompt = "[a]pprove, [r]eject, [f]eedback or [l]ater"
    choices = click.Choice([*CHOICES, *CHOICES.values()], case_sensitive=False)
    word = click.prompt(prompt, type=choices, show_choices=False, err=True)
    decision = CHOICES.get(word, word)
    if decision == "approve":
        run.do(Approve(token=token), by=decider_name())
        invocation.notify("approved")
    elif decision == "feedback":
        text = click.prompt("What should be different", err=True)
        run.do(Feedback(text, token), by=decider_name())
        invocation.notify("feedback was given")
    elif decision == "reject":
        note = click.prompt("Why (may be empty)", default="", show_default=False, err=True)
        run.do(Reject(note or None, token), by=decider_name())
        return True  # the next `Run.work` reports how the run ended
    return decision != "later"


@verb("tell")
@click.argument("words", nargs=-1, metavar="[STEP] TEXT")
@pass_invocation
def tell_(invocation: Invocation, words: tuple[str, ...]) -> None:
    """Send a message to a step, from outside or from another step.

    STEP is a step or position; in a flowchart or a team, a node or task. Without STEP, the
    message goes to the step that comes next. It is in the prompt of each attempt until one is
    accepted. A step that is already running does not see it. If TEXT is -, it is read from
    standard input.

    \b
    Examples:
      sequencer tell "The API is frozen, change the client only"
      sequencer tell implement "Look at the error handling, too"
      git diff | sequencer --run big-refactoring tell verify -
    """
    if not 1 <= len(words) <= 2:  # noqa: PLR2004 - a name and a text
        raise UsageRefused("expected [STEP] TEXT", hint="put a text of several words in quotes")
    step, text = words[0] if len(words) > 1 else None, words[-1]
    run = invocation.run()
    new_head = run.do(Tell(read_argument(text), step), by=decider_name()).head
    runs = any(step in (None, claim.step) for claim in new_head.claims)
    if invocation.is_json:
        invocation.print_json({"step": step, "is_running": runs, "revision": new_head.revision})
        return
    effect = "it will read this when it starts"
    if runs:
        place_suffix = ""
        # The message is recorded: a definition that has changed must not make it look refused.
        with contextlib.suppress(DefinitionChanged):
            place_suffix = "" if run.kind.has_one_place else " at it"
        effect = f"it is running and does not see this; another attempt{place_suffix} will"
        effect += ", or the tasks that wait for it" if place_suffix else ""
    invocation.notify(f"message sent to {one_line(step or 'the step that comes next')}: {effect}")
