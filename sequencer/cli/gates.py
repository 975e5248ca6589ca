"""`approve`, `reject`, `feedback`, `answer`, `tell` and `gates`: what waits for a person."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import click

from sequencer.cli.change import tell
from sequencer.cli.context import Invocation, is_watched
from sequencer.cli.options import pass_invocation, verb
from sequencer.cli.requests import said
from sequencer.cli.views.runs import (
    Open,
    asked_at,
    decider,
    name_of,
    question_json,
    waiting,
)
from sequencer.cli.views.text import one_line, plain
from sequencer.documents.files import is_inside_agent
from sequencer.engine.attempt import Noticed, RunEvent
from sequencer.engine.run import Run
from sequencer.errors import SequencerError, TransitionRefused, UnknownName, UsageRefused
from sequencer.model.head import Gate, Head, Status

if TYPE_CHECKING:
    from sequencer.engine.markings import Question

GATE_LINES, QUESTION_LINES = 12, 24
VALUES_CHARS = 200
LATER = "later"
_NOTE = click.option("--note", metavar="TEXT", help="Why; it is kept in the history.")


def hidden(invocation: Invocation, text: str) -> str:
    """Return *text* without secrets, as it may stand in a journal and in a prompt."""
    return invocation.project().redaction.hide_text(text)


def _run_at_gate(invocation: Invocation, verb_name: str) -> Run:
    """Return the run that is meant: the named one, or the only one that waits.

    Raises:
        TransitionRefused: several wait, or none does, and none was named.
    """
    if invocation.run_name is not None:
        return invocation.run()
    project = invocation.project()
    found, unread = waiting(project)
    if not found and (unread or project.run(None).head is None):
        why = (f"{name_of(run)} can't be read: {error.message}" for run, error in unread.items())
        raise TransitionRefused(
            "; ".join([f"{verb_name}: no run waits for a decision", *why]),
            hint="'sequencer runs' lists the runs and where each stands",
        )
    return _only(
        invocation,
        [one.run for one in found] or [project.run(None)],
        "is the one that waits",
        f"{verb_name}: {len(found)} runs wait for a decision",
        f"'sequencer --run NAME {verb_name}' decides about one",
    )


def _only(invocation: Invocation, found: list[Run], is_it: str, are_many: str, hint: str) -> Run:
    """Return the run of *found*, and say which it is.

    Raises:
        TransitionRefused: there are several.
    """
    if len(found) > 1:
        names = ", ".join(sorted(run.name or "the default run" for run in found))
        raise TransitionRefused(f"{are_many}: {names}", hint=hint)
    if found[0].name is not None:
        invocation.say(f"run {found[0].name!r} {is_it}")
    return found[0]


@verb("approve")
@_NOTE
@pass_invocation
def approve(invocation: Invocation, note: str | None) -> None:
    """Let a run go on that waits for a decision.

    Without --run the only run that waits is meant.

    \b
    Examples:
      sequencer approve
      sequencer --run debug-login-timeout approve --note "go ahead"
    """
    _decide(invocation, "approve", note, "approved: ")


@verb("reject")
@_NOTE
@pass_invocation
def reject(invocation: Invocation, note: str | None) -> None:
    """End a run that waits for a decision; it is recorded as rejected.

    A flowchart's run that waits for an answer ends as cancelled.

    \b
    Examples:
      sequencer reject --note "works as designed"
    """
    _decide(invocation, "reject", note, "rejected: ")


@verb("feedback")
@click.argument("text")
@pass_invocation
def feedback(invocation: Invocation, text: str) -> None:
    """Send a run that waits for a decision back, with what is to be different.

    The step before the gate runs again with TEXT in its prompt, then the gate comes again.

    \b
    Examples:
      sequencer feedback "It also happens without a proxy; look at the retry."
    """
    _decide(invocation, "feedback", text, "feedback was given to ")


def _decide(invocation: Invocation, verb_name: str, said: str | None, done: str) -> None:
    """Decide about the run that is meant; the decision stands whatever becomes of posting it."""
    run = _run_at_gate(invocation, verb_name)
    head = run.head
    gate = None if head is None else head.gate
    # Of the question that was read: another may be asked meanwhile.
    token = gate.token if gate is not None and gate.is_open else None
    text = None if said is None else hidden(invocation, said)
    if verb_name == "feedback":
        after = run.feedback(text or "", by=decider(), token=token)
    else:

        def notice(event: RunEvent) -> None:
            if isinstance(event, Noticed):
                invocation.say(f"notice: {event.text}")

        act = run.approve if verb_name == "approve" else run.reject
        after = act(text, by=decider(), token=token, on_event=notice)
    try:
        if (posting := invocation.project().posting) is not None:
            posting.deliver(run.name, invocation.say)
    except SequencerError as error:
        invocation.say(f"notice: it was not posted: {error.message}")
    tell(invocation, run, after, f"{done}{'the run' if gate is None else repr(gate.step)}")


@verb("gates")
@pass_invocation
def gates(invocation: Invocation) -> None:
    """List what waits for people: runs at a gate, and questions of flowcharts' nodes.

    With --run only those of that run.

    \b
    Examples:
      sequencer gates
      sequencer gates --json | jq -r '.[].run'
    """
    # An unknown name is an error.
    meant = None if invocation.run_name is None else invocation.run().name
    found, unread = waiting(invocation.project())
    found = [one for one in found if meant in (None, one.run.name)]
    # Nobody must take it for a run that asks nothing.
    _warn(invocation, {run: e for run, e in unread.items() if meant in (None, run.name)})
    at_gates = [(one, one.gate) for one in found if one.gate is not None]
    asked = [(one, question) for one in found for question in one.questions]
    if invocation.is_json:
        rows = [
            {
                "run": one.run.name,
                "workflow": one.workflow,
                **gate.model_dump(mode="json", exclude={"decision"}),
                "question": asked_at(one.run, gate),
            }
            for one, gate in at_gates
        ]
        invocation.print_json(rows + [question_json(one.run, each) for one, each in asked])
        return
    if not found:
        whose = "no run waits for a" if meant is None else f"run {meant!r} waits for no"
        invocation.echo(f"{whose} decision")
        return
    lines = [line for one, question in asked for line in _told_question(one, question)]
    lines += [line for one, gate in at_gates for line in _told_gate(one, gate)]
    for line in lines:
        invocation.echo(line)


def _warn(invocation: Invocation, unread: Mapping[Run, SequencerError]) -> None:
    for run, error in unread.items():
        invocation.say(f"warning: {name_of(run)} is left out: {error}")


def _told_gate(one: Open, gate: Gate) -> list[str]:
    """Return the lines that show a gate and its question."""
    until = f", until {gate.expires_at} (then: {gate.on_timeout})" if gate.expires_at else ""
    times = f", asked for the {gate.round}. time" if gate.round > 1 else ""
    asks = f"{one_line(gate.step)} of {one_line(one.workflow)}"
    return [
        f"{one.name}: {asks} waits since {gate.opened_at}{until}{times}",
        *_quoted(asked_at(one.run, gate), GATE_LINES, f": sequencer {one.option}log"),
        f'  sequencer {one.option}approve | reject | feedback "…"',
    ]


def _told_question(one: Open, question: Question) -> list[str]:
    """Return the lines that show a question."""
    until = f", until {question.expires_at}" if question.expires_at else ""
    node = one_line(question.node.id)
    lines = [f"{one.name}: {node} waits since {question.asked_at}{until}"]
    lines += _quoted(question.text, QUESTION_LINES)
    for each in question.options:
        more = f": {one_line(each.description)}" if each.description else ""
        label = f" ({one_line(each.label)})" if each.label != each.value else ""
        lines.append(f"  - {one_line(each.value)}{label}{more}")
    if question.options and question.node.allows_custom_input:
        fails = ": no edge takes it, so the node would fail" if question.is_dead_end else ""
        lines.append(f"  - any other text{fails}")
    # Not with | between the values: a shell that the line is pasted into would run the second.
    values = " or ".join(shlex.quote(one_line(each.value)) for each in question.options) or "TEXT"
    values = values if len(values) <= VALUES_CHARS else "VALUE"
    return [*lines, f"  sequencer {one.option}answer {shlex.quote(node)} {values}"]


def _quoted(text: str, most: int, where: str = "") -> Iterator[str]:
    """Yield the first lines of *text*, and how many more there are *where*."""
    lines = plain(text).strip().splitlines()
    yield from (f"  | {line}" for line in lines[:most])
    if len(lines) > most:
        yield f"  | … {len(lines) - most} more lines{where}"


def _run_that_asks(invocation: Invocation, node: str) -> Run:
    """Return the run that is meant: the named one, or the only one in which *node* asks.

    Raises:
        UnknownName: nobody asks it.
        TransitionRefused: it asks in several, and none was named.
    """
    if invocation.run_name is not None:
        return invocation.run()
    found, unread = waiting(invocation.project())
    asked = {one.run: {question.node.id for question in one.questions} for one in found}
    meant = [run for run, nodes in asked.items() if node in nodes]
    if not meant:
        # It may be the one that asks.
        _warn(invocation, unread)
        known = sorted(set().union(*asked.values()))
        raise UnknownName("open question", node, known, where="sequencer answer")
    return _only(
        invocation,
        meant,
        "is the one that asks",
        f"answer: {node!r} asks in {len(meant)} runs",
        f"'sequencer --run NAME answer {node} VALUE' answers one",
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
    run = _run_that_asks(invocation, node)
    said = hidden(invocation, value)
    head = run.answer(node, said, by=decider())
    tell(invocation, run, head, f"{node} was answered: {one_line(said)[:80]}")


def ask(invocation: Invocation, run: Run, head: Head) -> bool:
    """Ask whoever sits at the terminal; return whether the run may go on at once.

    Somebody else may answer meanwhile, in another terminal; theirs counts then.
    """
    has_answered = False
    for question in run.flow.questions(head):
        for line in _told_question(Open(run), question)[:-1]:
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


CHOICES = {"a": "approve", "r": "reject", "f": "feedback", "l": "later"}


def decide(invocation: Invocation, run: Run) -> bool:
    """Ask what is to become of the gate of *run*; return whether the run may go on at once.

    Somebody else may decide meanwhile, in another terminal; theirs counts then. It may not
    where nobody is there who could answer.
    """
    if invocation.is_json or invocation.is_quiet or not is_watched() or is_inside_agent():
        return False
    head = run.head
    if head is not None and head.asks:
        return ask(invocation, run, head)
    if head is None or head.gate is None or not head.gate.is_open:
        return head is not None and head.status is not Status.WAITING_APPROVAL
    for line in _told_gate(Open(run, workflow=head.workflow_name), head.gate):
        invocation.say(line)
    try:
        return _answered(invocation, run, head.gate.token)
    except TransitionRefused as error:
        invocation.say(f"notice: {error.message}")
        return True


def _answered(invocation: Invocation, run: Run, token: int) -> bool:
    prompt = "[a]pprove, [r]eject, [f]eedback or [l]ater"
    choices = click.Choice([*CHOICES, *CHOICES.values()], case_sensitive=False)
    word = click.prompt(prompt, type=choices, show_choices=False, err=True)
    chosen = CHOICES.get(word, word)
    if chosen == "approve":
        run.approve(by=decider(), token=token)
        invocation.say("approved")
    elif chosen == "feedback":
        text = click.prompt("What is to be different", err=True)
        run.feedback(hidden(invocation, text), by=decider(), token=token)
        invocation.say("feedback was given")
    elif chosen == "reject":
        note = click.prompt("Why (may be empty)", default="", show_default=False, err=True)
        run.reject(hidden(invocation, note) or None, by=decider(), token=token)
        return True  # the run then says how it ended
    return chosen != "later"


@verb("tell")
@click.argument("words", nargs=-1, metavar="[STEP] TEXT")
@pass_invocation
def tell_(invocation: Invocation, words: tuple[str, ...]) -> None:
    """Send a message to a step, from outside or from another step.

    STEP is a step or position, in a flowchart or a team a node or task; without one whatever
    comes next. The message stands in the prompt of its next attempt, until one is accepted.
    A step that runs goes on without it. TEXT - reads it from standard input.

    \b
    Examples:
      sequencer tell "The API is frozen, change the client only"
      sequencer tell implement "Look at the error handling, too"
      git diff | sequencer --run big-refactoring tell verify -
    """
    if not 1 <= len(words) <= 2:  # noqa: PLR2004 - a name and a text
        raise UsageRefused("expected [STEP] TEXT", hint="quote a text of several words")
    step, text = words[0] if len(words) > 1 else None, words[-1]
    run = invocation.run()
    after = run.control.tell(step, hidden(invocation, said(text)), by=decider())
    runs = any(step in (None, claim.step) for claim in after.claims)
    if invocation.is_json:
        invocation.print_json({"task": step, "is_running": runs, "revision": after.revision})
        return
    when = "it reads it when it begins"
    if runs:
        other = "" if run.kind.has_one_place else " at it"
        when = f"it runs now and does not hear it; another attempt{other} will"
        when += ", or else the tasks that wait for it" if other else ""
    invocation.say(f"told {one_line(step or 'whatever comes next')}: {when}")
