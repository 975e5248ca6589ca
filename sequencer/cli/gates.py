"""`approve`, `reject`, `feedback` and `gates`: what waits for a person, and the answers."""

from __future__ import annotations

import getpass
import os
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, overload

import click

from sequencer.cli import answer
from sequencer.cli.change import tell
from sequencer.cli.context import Invocation
from sequencer.cli.options import pass_invocation, verb
from sequencer.cli.views.text import one_line, plain
from sequencer.engine.events import Emit, Noticed
from sequencer.errors import SequencerError, TransitionRefused

if TYPE_CHECKING:
    from sequencer.engine.run import Run
    from sequencer.model.head import Head
    from sequencer.project import Project

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
    from sequencer.engine.recall import recall  # noqa: PLC0415 - `--help` needs no engine

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
    found += [run for run, _ in answer.asking(project)]
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
    asking = [one for one in answer.asking(project, note) if is_meant(one[0].name)]
    asked = [(run, one) for run, many in asking for one in many]
    for name, error in filter(lambda one: is_meant(one[0]), unread.items()):
        # Nobody must take it for a run that asks nothing.
        invocation.say(f"warning: {name or 'default run'} is left out: {error}")
    if invocation.is_json:
        rows = [_as_json(run, head) for run, head in found]
        invocation.print_json(rows + [answer.as_json(run, one) for run, one in asked])
        return
    if not found and not asked:
        name = invocation.run_name
        whose = "no run waits for a" if name is None else f"run {name!r} waits for no"
        invocation.echo(f"{whose} decision")
        return
    for run, one in asked:
        for line in answer.described(run, one):
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
