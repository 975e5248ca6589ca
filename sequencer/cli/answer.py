"""`answer`, and the question on a terminal: what people say at the nodes of a graph."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from sequencer.cli.change import tell
from sequencer.cli.context import Invocation
from sequencer.cli.options import pass_invocation, verb
from sequencer.cli.views.text import one_line, plain
from sequencer.errors import SequencerError, TransitionRefused, UnknownName

if TYPE_CHECKING:
    from collections.abc import Callable

    from sequencer.engine.flow.control import Question
    from sequencer.engine.run import Run
    from sequencer.model.head import Head
    from sequencer.project import Project

QUESTION_LINES = 24
VALUES_CHARS = 200
LATER = "later"


def asking(
    project: Project, unread: Callable[[Run, SequencerError], None] = lambda *_: None
) -> list[tuple[Run, list[Question]]]:
    """Return every graph run that asks people something; *unread* hears which can't be read."""
    found = []
    for name in (None, *project.run_names()):
        run = project.run(name)
        try:
            head = run.head
            if head is None or head.flow is None or not head.flow.asks:
                continue
            questions = run.flow.questions(head)
        except SequencerError as error:
            unread(run, error)
            continue
        if questions:
            found.append((run, questions))
    return found


def described(run: Run, question: Question) -> list[str]:
    """Return the lines that show a question."""
    option = f"--run {shlex.quote(one_line(run.name))} " if run.name else ""
    name = one_line(run.name or "default run")
    until = f", until {question.expires_at}" if question.expires_at else ""
    node = one_line(question.node.id)
    lines = [f"{name}: {node} waits since {question.asked_at}{until}"]
    said = plain(question.text).strip().splitlines()
    lines += [f"  | {line}" for line in said[:QUESTION_LINES]]
    if len(said) > QUESTION_LINES:
        lines.append(f"  | … {len(said) - QUESTION_LINES} more lines")
    for each in question.options:
        more = f": {one_line(each.description)}" if each.description else ""
        label = f" ({one_line(each.label)})" if each.label != each.value else ""
        lines.append(f"  - {one_line(each.value)}{label}{more}")
    if question.options and question.node.allows_custom_input:
        fails = ": no edge takes it, so the node would fail" if question.is_dead_end else ""
        lines.append(f"  - any other text{fails}")
    lines.append(f"  sequencer {option}answer {shlex.quote(node)} {_values(question)}")
    return lines


def _values(question: Question) -> str:
    """Return the answers to choose from, safe to paste into a shell with all the line.

    Not with ``|`` between them: a shell would run the second one.
    """
    words = [shlex.quote(one_line(each.value)) for each in question.options]
    shown = " or ".join(words)
    if len(shown) <= VALUES_CHARS:
        return shown or "TEXT"
    return "VALUE"


def as_json(run: Run, question: Question) -> dict[str, Any]:
    """Return a question as ``gates --json`` prints it."""
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


def _run_that_asks(invocation: Invocation, node: str) -> Run:
    """Return the run that is meant: the named one, or the only one in which *node* asks.

    Raises:
        TransitionRefused: it asks in several, and none was named.
    """
    if invocation.run_name is not None:
        return invocation.run()
    unread: list[tuple[Run, SequencerError]] = []
    found = asking(invocation.project(), lambda run, error: unread.append((run, error)))
    meant = [run for run, questions in found if node in {one.node.id for one in questions}]
    if len(meant) == 1:
        if meant[0].name is not None:
            invocation.say(f"run {meant[0].name!r} is the one that asks")
        return meant[0]
    if not meant:
        for run, error in unread:
            # It may be the one that asks.
            invocation.say(f"warning: {run.name or 'default run'} is left out: {error}")
        known = sorted({one.node.id for _, questions in found for one in questions})
        raise UnknownName("open question", node, known, where="sequencer answer")
    names = ", ".join(sorted(run.name or "the default run" for run in meant))
    raise TransitionRefused(
        f"answer: {node!r} asks in {len(meant)} runs: {names}",
        hint=f"'sequencer --run NAME answer {node} VALUE' answers one",
    )


@verb("answer")
@click.argument("node", metavar="NODE")
@click.argument("value", metavar="VALUE")
@pass_invocation
def answer(invocation: Invocation, node: str, value: str) -> None:
    """Answer the question of NODE, at which a flowchart's run waits.

    VALUE is an option's value or label, or a text where the node takes any. The run goes
    on with the next 'run' or 'tick'.

    \b
    Examples:
      sequencer gates
      sequencer answer review approve
      sequencer --run release answer notes "Say more about the new flag."
    """
    from sequencer.cli.gates import decider, hidden  # noqa: PLC0415 - `--help` needs no engine

    run = _run_that_asks(invocation, node)
    said = hidden(invocation, value)
    head = run.answer(node, said, by=decider())
    tell(invocation, run, head, f"{node} was answered: {one_line(said)[:80]}")


def ask(invocation: Invocation, run: Run, head: Head) -> bool:
    """Ask whoever sits at the terminal; return whether the run may go on at once.

    Somebody else may answer meanwhile, in another terminal; theirs counts then.
    """
    from sequencer.cli.gates import decider, hidden  # noqa: PLC0415 - see `answer`

    has_answered = False
    for question in run.flow.questions(head):
        for line in described(run, question)[:-1]:
            invocation.say(line)
        said = _asked(question)
        if said is None:
            # What is written next begins a line of its own.
            invocation.say("")
            continue
        if said == LATER and LATER not in {one.value for one in question.options}:
            continue
        try:
            text = hidden(invocation, said)
            run.answer(question.node.id, text, by=decider(), token=question.token)
        except (TransitionRefused, UnknownName) as error:
            invocation.say(f"notice: {error.message}")
        has_answered = True
    return has_answered


def _asked(question: Question) -> str | None:
    """Return what the person types; None for an end of the input, which is no answer.

    Raises:
        click.Abort: Ctrl-C.
    """
    try:
        return _typed(question)
    except click.Abort as error:
        if isinstance(error.__context__, EOFError):
            return None
        raise


def _typed(question: Question) -> str:
    """Return what the person types: an option, its number or label, a text, or ``later``."""
    values = [each.value for each in question.options]
    if not values or question.node.allows_custom_input:
        numbered = ", ".join(f"{n} {one_line(v)}" for n, v in enumerate(values, start=1))
        prompt = f"Your answer ({numbered + ', ' if numbered else ''}or {LATER})"
        text: str = click.prompt(prompt, err=True)
        return values[int(text) - 1] if text.isdecimal() and 0 < int(text) <= len(values) else text
    numbers = [str(n) for n in range(1, len(values) + 1)]
    prompt = ", ".join(f"[{n}] {one_line(v)}" for n, v in enumerate(values, start=1))
    choices = click.Choice([*numbers, *values, LATER], case_sensitive=False)
    word: str = click.prompt(f"{prompt} or {LATER}", type=choices, show_choices=False, err=True)
    return values[int(word) - 1] if word in numbers and word not in values else word
