"""`approve`, `reject`, `feedback` and `gates`: what waits for a person, and the answers."""

from __future__ import annotations

import getpass
import os
import shlex
from collections.abc import Callable
from typing import Any, overload

import click

from sequencer.cli.change import tell
from sequencer.cli.context import Invocation
from sequencer.cli.options import pass_invocation, verb
from sequencer.cli.requests import said
from sequencer.cli.trust import is_watched
from sequencer.cli.views.text import one_line, plain
from sequencer.engine.events import Emit, Noticed
from sequencer.engine.markings import Question
from sequencer.engine.recall import recall
from sequencer.engine.run import Run
from sequencer.errors import SequencerError, TransitionRefused, UnknownName
from sequencer.model.head import Head, Status
from sequencer.model.net.marking import FlowStatus
from sequencer.project import Project
from sequencer.settings.location import is_inside_agent

QUESTION_LINES = 12
_NOTE = click.option("--note", metavar="TEXT", help="Why; it is kept in the history.")


def decider() -> str:
    """Return who decides, for the history."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return f"uid {os.getuid()}"


@overload
def hidden(invocation: Invocation, text: str) -> str: ...
@overload
def hidden(invocation: Invocation, text: str | None) -> str | None: ...
def hidden(invocation: Invocation, text: str | None) -> str | None:
    """Return *text* without secrets, as it may stand in a journal and in a prompt."""
    return None if text is None else invocation.project().redaction.hide_text(text)


def _notices(invocation: Invocation) -> Emit:
    """Return who hears notices only, and says them."""
    return lambda event: (
        invocation.say(f"notice: {event.text}") if isinstance(event, Noticed) else None
    )


def waiting(
    project: Project, unread: Callable[[Run, SequencerError], None] = lambda *_: None
) -> list[tuple[Run, Head]]:
    """Return every run at an open gate; *unread* hears which can't be read."""
    found = []
    for name in (None, *project.run_names()):
        run = project.run(name)
        try:
            head = run.head
        except SequencerError as error:
            unread(run, error)
            continue
        if head is not None and head.is_at_gate and head.status != "complete":
            found.append((run, head))
    return found


def question(run: Run, head: Head) -> str:
    """Return what the step before the gate said, which is what is to be decided about."""
    if head.gate is None:
        return ""
    try:
        memory = recall(run.store.state_path.parent, run.history())
        return memory.output(head.gate.step)
    except (KeyError, SequencerError):
        return ""


def _run_at_gate(invocation: Invocation, verb_name: str) -> Run:
    """Return the run that is meant: the named one, or the only one that waits.

    Raises:
        TransitionRefused: several wait, or none does, and none was named.
    """
    if invocation.run_name is not None:
        return invocation.run()
    project, unread = invocation.project(), list[str]()

    def note(run: Run, error: SequencerError) -> None:
        unread.append(f"{run.name or 'default run'} can't be read: {error.message}")

    found = [run for run, _ in waiting(project, note)]
    found += [run for run, _ in asking(project)]
    if not found and (unread or project.run(None).head is None):
        raise TransitionRefused(
            "; ".join([f"{verb_name}: no run waits for a decision", *unread]),
            hint="'sequencer runs' lists the runs and where each stands",
        )
    if len(found) <= 1:
        run = found[0] if found else project.run(None)
        if run.name is not None:
            invocation.say(f"run {run.name!r} is the one that waits")
        return run
    names = ", ".join(sorted(run.name or "the default run" for run in found))
    raise TransitionRefused(
        f"{verb_name}: {len(found)} runs wait for a decision: {names}",
        hint=f"'sequencer --run NAME {verb_name}' decides about one",
    )


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
    run = _run_at_gate(invocation, "approve")
    step, token = _asked_by(run)
    note = hidden(invocation, note)
    head = run.approve(note, by=decider(), token=token, on_event=_notices(invocation))
    _deliver(invocation, run)
    tell(invocation, run, head, f"approved: {step}")


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
    run = _run_at_gate(invocation, "reject")
    step, token = _asked_by(run)
    note = hidden(invocation, note)
    head = run.reject(note, by=decider(), token=token, on_event=_notices(invocation))
    _deliver(invocation, run)
    tell(invocation, run, head, f"rejected: {step}")


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
    run = _run_at_gate(invocation, "feedback")
    step, token = _asked_by(run)
    head = run.feedback(hidden(invocation, text), by=decider(), token=token)
    _deliver(invocation, run)
    tell(invocation, run, head, f"feedback was given to {step}")


def _asked_by(run: Run) -> tuple[str, int | None]:
    """Return which step asks, and the token of its attempt: of the question that was read."""
    head = run.head
    if head is None or head.gate is None:
        return "the run", None
    return repr(head.gate.step), head.gate.token if head.gate.is_open else None


def _deliver(invocation: Invocation, run: Run) -> None:
    """Post what was decided; the decision stands whatever becomes of that."""
    try:
        invocation.project().deliver(run.name, invocation.say)
    except SequencerError as error:
        invocation.say(f"notice: it was not posted: {error.message}")


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
    project, unread = invocation.project(), dict[str | None, SequencerError]()

    def note(run: Run, error: SequencerError) -> None:
        unread[run.name] = error

    is_meant = _is_meant(invocation)
    found = [(run, head) for run, head in waiting(project, note) if is_meant(run.name)]
    asked = [
        (run, one) for run, many in asking(project, note) if is_meant(run.name) for one in many
    ]
    for name, error in filter(lambda one: is_meant(one[0]), unread.items()):
        # Nobody must take it for a run that asks nothing.
        invocation.say(f"warning: {name or 'default run'} is left out: {error}")
    if invocation.is_json:
        rows = [_as_json(run, head) for run, head in found]
        invocation.print_json(rows + [question_json(run, one) for run, one in asked])
        return
    if not found and not asked:
        name = invocation.run_name
        whose = "no run waits for a" if name is None else f"run {name!r} waits for no"
        invocation.echo(f"{whose} decision")
        return
    for run, one in asked:
        for line in described_question(run, one):
            invocation.echo(line)
    for run, head in found:
        for line in described(run, head):
            invocation.echo(line)


def _is_meant(invocation: Invocation) -> Callable[[str | None], bool]:
    """Return what says whether the run of a name is to be shown: all are, or the one of --run.

    Raises:
        UnknownName: there is no run of that name.
    """
    if invocation.run_name is None:
        return lambda _: True
    meant = invocation.run().name
    return lambda name: name == meant


def _as_json(run: Run, head: Head) -> dict[str, Any]:
    gate = head.gate
    facts = gate.model_dump(mode="json") if gate is not None else {}
    facts.pop("decision", None)
    return {
        "run": run.name,
        "workflow": head.workflow_name,
        **facts,
        "question": question(run, head),
    }


def described(run: Run, head: Head) -> list[str]:
    """Return the lines that show a gate and its question."""
    gate = head.gate
    if gate is None:
        return []
    option = f"--run {shlex.quote(one_line(run.name))} " if run.name else ""
    until = f", until {gate.expires_at} (then: {gate.on_timeout})" if gate.expires_at else ""
    times = f", asked for the {gate.round}. time" if gate.round > 1 else ""
    name = one_line(run.name or "default run")
    asks = f"{one_line(gate.step)} of {one_line(head.workflow_name)}"
    lines = [f"{name}: {asks} waits since {gate.opened_at}{until}{times}"]
    said = plain(question(run, head)).strip().splitlines()
    lines += [f"  | {line}" for line in said[:QUESTION_LINES]]
    if len(said) > QUESTION_LINES:
        lines.append(f"  | … {len(said) - QUESTION_LINES} more lines: sequencer {option}log")
    lines.append(f'  sequencer {option}approve | reject | feedback "…"')
    return lines


NODE_QUESTION_LINES = 24
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


def described_question(run: Run, question: Question) -> list[str]:
    """Return the lines that show a question."""
    option = f"--run {shlex.quote(one_line(run.name))} " if run.name else ""
    name = one_line(run.name or "default run")
    until = f", until {question.expires_at}" if question.expires_at else ""
    node = one_line(question.node.id)
    lines = [f"{name}: {node} waits since {question.asked_at}{until}"]
    said = plain(question.text).strip().splitlines()
    lines += [f"  | {line}" for line in said[:NODE_QUESTION_LINES]]
    if len(said) > NODE_QUESTION_LINES:
        lines.append(f"  | … {len(said) - NODE_QUESTION_LINES} more lines")
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


def question_json(run: Run, question: Question) -> dict[str, Any]:
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
        for line in described_question(run, question)[:-1]:
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


def can_ask(invocation: Invocation) -> bool:
    """Return whether somebody is there who could answer."""
    is_asked_quietly = invocation.is_json or invocation.is_quiet
    return is_watched() and not is_asked_quietly and not is_inside_agent()


def decide(invocation: Invocation, run: Run) -> bool:
    """Ask what is to become of the gate of *run*; return whether the run may go on at once.

    Somebody else may decide meanwhile, in another terminal; theirs counts then.
    """
    head = run.head
    if head is not None and head.flow is not None:
        return ask(invocation, run, head)
    if head is None or head.gate is None or not head.gate.is_open:
        return head is not None and head.status is not Status.WAITING_APPROVAL
    for line in described(run, head):
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
@click.argument("task")
@click.argument("text")
@pass_invocation
def tell_(invocation: Invocation, task: str, text: str) -> None:
    """Send a message to a task of a team, from outside or from another task.

    It stands in the prompt of the task's next attempt. TEXT - reads it from standard input.
    A task that runs goes on without it. If it needs no other attempt, the tasks that wait
    for it read the message in its place.

    \b
    Examples:
      sequencer tell implement "The API is frozen, change the client only"
      git diff | sequencer --run big-refactoring tell verify -
    """
    run = invocation.run()
    head = run.head
    if head is None:
        raise TransitionRefused(
            "tell: the run was never begun, so nobody would read it",
            hint="'sequencer run' begins it; 'sequencer runs' lists the others, --run names one",
        )
    if head.flow is None:
        raise TransitionRefused(
            "tell: the run is no team's, so it has no tasks",
            hint="'sequencer runs' lists the runs, --run names one",
        )
    if head.flow.status != FlowStatus.RUNNING:
        raise TransitionRefused(f"tell: the run has ended as {head.flow.status}")
    after = run.control.tell(task, hidden(invocation, said(text)), by=decider())
    runs = any(claim.step == task for claim in after.claims)
    if invocation.is_json:
        invocation.print_json({"task": task, "is_running": runs, "revision": after.revision})
        return
    when = "it reads it when it begins"
    if runs:
        when = (
            "it runs now and does not hear it; another attempt at it will, or else the tasks "
            "that wait for it"
        )
    invocation.say(f"told {one_line(task)}: {when}")
