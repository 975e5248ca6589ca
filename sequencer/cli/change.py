"""Commands that change a run by hand. Each change is one transition in the journal.

They decide nothing themselves: the model says what is allowed, and its refusal is shown
unchanged. After the change, they show what comes next.
"""

from __future__ import annotations

import json
import shlex
from difflib import get_close_matches
from typing import Any

import click

from sequencer.cli.context import Invocation, is_interactive
from sequencer.cli.options import REVIEW_EVERY, WORKFLOW, pass_invocation, verb
from sequencer.cli.views.next_command import drop_gone_claims, list_holders
from sequencer.cli.views.text import one_line, pluralize
from sequencer.engine.run import Run
from sequencer.errors import (
    ClaimHeld,
    ConfigurationError,
    DefinitionChanged,
    TransitionRefused,
    UsageRefused,
    format_command,
    run_option,
)
from sequencer.model.commands import (
    Accept,
    Adopt,
    Fail,
    Pause,
    Reset,
    Resume,
    RetryNow,
    Rewind,
    RunCommand,
    SetField,
    Skip,
    Stop,
    StopNow,
    TakeOver,
)
from sequencer.model.edits import EDITABLE
from sequencer.model.head import Head
from sequencer.model.workflow import describe_param_changes
from sequencer.store.strictjson import parse_object

MAX_LISTED_STEPS = 12

_note = click.option("--note", metavar="TEXT", help="Why. Kept in the history.")
_node = click.argument("node", required=False)
_workflow = WORKFLOW(help="Use this workflow instead of workflow.name or the named run's workflow.")


def show_change(invocation: Invocation, run: Run, head: Head, done: str, options: str = "") -> None:
    """Print what was *done* and what comes next; with ``--json``, print the *head*.

    *options* are the ones that the default run needs to continue.
    """
    invocation.show_notices(run.store.take_notices())
    if invocation.is_json:
        invocation.print_json(head.model_dump(mode="json"))
        return
    invocation.echo(one_line(done))
    try:
        next_step = _describe_next_step(run, head)
    except (DefinitionChanged, ConfigurationError) as error:
        invocation.echo(f"next: {one_line(f'none: {error.message}')}")
        if error.hint is not None:
            invocation.notify(error.hint)
        return
    invocation.echo(f"next: {one_line(next_step)}")
    is_free = not _drop_gone_claims(run, head).claims
    if head.status in ("waiting-next", "idle", "running") and is_free and not head.exit:
        line = f"sequencer {run_option(run.name)}run"
        # A timer's tick doesn't have the options.
        effect = f" {options}" if options else " (a timer's next tick does, too)"
        invocation.notify(f"to continue: {line}{effect}")


def _format_kept_options(run: Run, workflow: str | None, review_every: int | None) -> str:
    """Return the options that *run* needs to continue; a named run keeps their values itself."""
    values = {"--workflow": workflow, "--review-every": review_every}
    words = [word for name, value in values.items() if value is not None for word in (name, value)]
    return "" if run.name is not None else shlex.join(map(str, words))


def _show_kept_options(invocation: Invocation, options: str) -> None:
    if options:
        invocation.notify(
            f"notice: set the same as {options} in orchestration.yaml, or pass it to run and tick "
            "too; without it they refuse to continue"
        )


def _drop_gone_claims(run: Run, head: Head) -> Head:
    return drop_gone_claims(head, list_holders(run, head))


def _describe_next_step(run: Run, head: Head) -> str:
    """Return the words for the next step of *run*, which is at *head*.

    Raises:
        DefinitionChanged: the run was started with another definition.
        ConfigurationError: its workflow can't be read.
    """
    readiness = run.readiness_at(_drop_gone_claims(run, head), run.workflow)
    place = readiness.place
    if not place.step:
        return readiness.message
    prompt = f" ({place.prompt})" if place.prompt else ""
    step = f"step {place.step!r}{prompt}, step_index {place.step_index}"
    return step if readiness.kind == "ready" else f"{step}; but {readiness.message}"


def _require_started(run: Run, verb_name: str) -> Head:
    """Return the head of *run*, which must have started.

    Raises:
        TransitionRefused: the run has not started, so there is nothing to change.
    """
    head = run.head
    if head is None:
        raise TransitionRefused(
            f"{verb_name}: the run has not started", hint="'sequencer run' starts it"
        )
    return head


def _describe_target(run: Run, node: str | None) -> str:
    """Return the words for *node*, or for the current step if there is no *node*."""
    if node is not None:
        return f"node {node!r}"
    head = run.head
    step = head.expected_step if head else run.next(1)[0].step
    return f"step {step!r}, step_index {head.step_index if head else 0}"


@verb("retry")
@_node
@pass_invocation
def retry(invocation: Invocation, node: str | None) -> None:
    """Clear the failures of the current step so that it can be tried again right away.

    In a flowchart or a team, clear the failures of NODE, or of all failed nodes.

    \b
    Examples:
      sequencer retry && sequencer run
      sequencer --run login-timeout retry verify
    """
    run = invocation.run()
    failures = _require_started(run, "retry").failures_in_row
    change = run.do(RetryNow(node))
    # For a graph, the note says which nodes are tried again.
    note = change.note
    summary = f"failures in a row cleared ({failures})"
    show_change(invocation, run, change.head, summary if note in ("", "retry") else note)


@verb("skip")
@_node
@_note
@click.option("--as-done", is_flag=True, help="Accept the step: you did it yourself.")
@click.option("--as-failed", is_flag=True, help="Mark the step as failed instead.")
@click.option("--output", metavar="TEXT", help="The answer of NODE; a choice after it uses it.")
@pass_invocation
def skip(
    invocation: Invocation,
    *,
    node: str | None,
    note: str | None,
    as_done: bool,
    as_failed: bool,
    output: str | None,
) -> None:
    """Skip the current step, or NODE in a flowchart or a team.

    With --as-done the step counts as accepted. Use it for a step that you did yourself, or
    whose agent did the work and failed afterwards.

    \b
    Examples:
      sequencer skip --note "nothing to review this time"
      sequencer skip --as-done --note "finished by hand"
      sequencer --run login-timeout skip verify --as-done --output "it works"
    """
    if as_done and as_failed:
        raise UsageRefused("--as-done and --as-failed can't be used together")
    if output is not None and (node is None or not as_done):
        raise UsageRefused("works only with NODE and --as-done", where="--output")
    run = invocation.run()
    subject = _describe_target(run, node)
    command: RunCommand = Skip(note, node)
    if as_done:
        command = Accept(note, node, output)
    elif as_failed:
        command = Fail(note, node)
    head = run.do(command).head
    verb_phrase = "accepted" if as_done else "marked as failed" if as_failed else "skipped"
    show_change(invocation, run, head, f"{verb_phrase}: {subject}")


@verb("set")
@click.argument("assignment", metavar="FIELD=VALUE")
@pass_invocation
def set_(invocation: Invocation, assignment: str) -> None:
    """Set a field of the run's state.

    VALUE is read as JSON, or as text if it isn't JSON. Fields that the program does not know
    are kept for you. A value that would break the order of the run is refused, and so is a
    status that doesn't match the run.

    \b
    Examples:
      sequencer set step_index=4
      sequencer set exit=true
      sequencer set 'not_before="2027-01-31T08:00:00Z"'
      sequencer set ticket=ABC-12
    """
    field, separator, text = assignment.partition("=")
    if not separator or not field.strip():
        raise UsageRefused(f"{assignment!r} is not FIELD=VALUE", where="sequencer set")
    field = field.strip()
    run = invocation.run()
    head = run.do(SetField(field, _parse_value(text))).head
    value = json.dumps(head.model_dump(mode="json").get(field), ensure_ascii=False)
    show_change(invocation, run, head, f"{field} is {value}")
    nearest_fields = get_close_matches(field, EDITABLE, n=1, cutoff=0.8)
    if field not in Head.model_fields and nearest_fields:
        invocation.notify(
            f"notice: {one_line(field)} is kept as a note of yours; did you mean "
            f"{nearest_fields[0]!r}?"
        )


def _parse_value(text: str) -> Any:
    # The strict reader refuses NaN and infinity, which state.json can't contain.
    try:
        return parse_object(b'{"value":' + text.encode("utf-8", "surrogatepass") + b"}")["value"]
    except (ValueError, KeyError):
        return text


@verb("reset")
@click.option("--yes", "is_sure", is_flag=True, help="Do not ask.")
@_workflow
@REVIEW_EVERY
@pass_invocation
def reset(
    invocation: Invocation, is_sure: bool, workflow: str | None, review_every: int | None
) -> None:
    """Start over with the first step, as a new run; the history keeps the old one.

    \b
    Examples:
      sequencer reset
      sequencer reset --yes --workflow review_cadence --review-every 3
    """
    invocation.project({"workflow": workflow, "review_every": review_every})
    run = invocation.run()
    old_head = _require_started(run, "reset")
    step_count = old_head.step_index or old_head.usage.steps
    if step_count and not is_sure:
        question = (
            f"the run of {old_head.workflow_name!r} has "
            f"{pluralize(old_head.usage.steps, 'accepted step')} and is at "
            f"{_describe_position(old_head)}"
        )
        if not is_interactive():
            hint = "add --yes to reset it; nothing is asked unless standard input and standard "
            hint += "error are terminals"
            raise UsageRefused(question, where="sequencer reset", hint=hint)
        if not click.confirm(f"{one_line(question)}; start over?", err=True):
            invocation.notify("nothing was changed")
            return
    head = run.do(Reset()).head
    summary = f"a new run of {head.workflow_name!r}; it was at {_describe_position(old_head)}"
    if old_head.status == "paused" or old_head.exit:
        summary += f", {'stopped' if old_head.exit else 'paused'}, and the new one is not"
    options = _format_kept_options(run, workflow, review_every)
    show_change(invocation, run, head, summary, options)
    _show_kept_options(invocation, options)


def _describe_position(head: Head) -> str:
    """Return the words for the step at which *head* is."""
    step = f"step {head.expected_step!r}, " if head.expected_step else ""
    return f"{step}step_index {head.step_index}"


@verb("rewind")
@click.argument("to", metavar="N|NODE")
@pass_invocation
def rewind(invocation: Invocation, to: str) -> None:
    """Go back to an earlier step: it runs next, and all steps after it run again.

    N is the step's step_index, which counts the steps from 0. In a flowchart or a team, NODE
    and every node after it run again. Results that reached those nodes from other nodes are
    kept.

    \b
    Examples:
      sequencer history          shows which step had which step_index
      sequencer rewind 4
      sequencer --run login-timeout rewind implement
    """
    run = invocation.run()
    old_head = _require_started(run, "rewind")
    change = run.do(Rewind(to))
    head, node_names = change.head, change.details.get("again")
    if node_names is not None:
        names = ", ".join(node_names[:MAX_LISTED_STEPS])
        extra_count = len(node_names) - MAX_LISTED_STEPS
        names += f" and {extra_count} more" if extra_count > 0 else ""
        show_change(invocation, run, head, f"back to {to!r}; these run again: {names or 'none'}")
        return
    old_index = old_head.step_index
    step_count = old_index - head.step_index
    entries = run.next(min(step_count, MAX_LISTED_STEPS)) if step_count else []
    names = ", ".join(f"{entry.step_index} {entry.step}" for entry in entries)
    suffix = f" and {step_count - len(entries)} more" if step_count > len(entries) else ""
    verb_form = "runs" if step_count == 1 else "run"
    steps = f"{pluralize(step_count, 'step')} {verb_form} again: {names}{suffix}"
    steps = steps if step_count else "no step runs again"
    show_change(
        invocation, run, head, f"back from step_index {old_index} to {head.step_index}; {steps}"
    )


@verb("adopt")
@_workflow
@REVIEW_EVERY
@pass_invocation
def adopt(invocation: Invocation, workflow: str | None, review_every: int | None) -> None:
    """Continue at the same step_index after a workflow or a parameter changed.

    A run remembers the definition that it started with. It refuses a changed one until you
    adopt it, because step_index may then mean another step.

    \b
    Examples:
      sequencer adopt
      sequencer adopt --review-every 5
    """
    invocation.project({"workflow": workflow, "review_every": review_every})
    run = invocation.run()
    old_head = _require_started(run, "adopt")
    new_workflow = run.workflow_for(old_head)
    change = run.do(Adopt())
    head = change.head
    changes = [
        f"{name} {old_value} -> {new_value}"
        for name, old_value, new_value in (
            ("workflow", old_head.workflow_name, new_workflow.name),
            ("definition", old_head.workflow_digest[:19], new_workflow.digest()[:19]),
            ("step", old_head.expected_step, head.expected_step),
        )
        if old_value != new_value
    ]
    changes += describe_param_changes(old_head.params, new_workflow.params)
    if new_workflow.nodes and change.note:
        # A digest doesn't say what changed; the note of the change does.
        changes.append(change.note)
    options = _format_kept_options(run, workflow, review_every)
    show_change(invocation, run, head, f"adopted: {'; '.join(changes)}", options)
    _show_kept_options(invocation, options)


@verb("takeover")
@click.option("--force", is_flag=True, help="Take the step away, even from a live process.")
@pass_invocation
def takeover(invocation: Invocation, force: bool) -> None:
    """Show who holds the step; with --force, take it away.

    If the holder is provably gone, you don't need --force: the next run or tick takes over.
    A process that loses its claim can't commit its step anymore. Its output is kept.

    \b
    Examples:
      sequencer takeover             which process holds it, and is it alive
      sequencer takeover --force
    """
    run = invocation.run()
    old_head = _require_started(run, "takeover")
    if old_head.claims and not force:
        holders = [_describe_holder(run, claim) for claim in old_head.claims]
        raise ClaimHeld(
            "; ".join(holders),
            hint="--force takes the step over; the holder's result is then refused",
        )
    head = run.do(TakeOver()).head
    tokens = ", ".join(str(claim.token) for claim in old_head.claims)
    show_change(
        invocation, run, head, f"taken over: results with token {tokens} are refused from now on"
    )


def _describe_holder(run: Run, claim: Any) -> str:
    liveness, workers = run.store.liveness(claim), run.list_attempt_processes()
    holder = claim.owner.words if workers is None else workers.get(claim.token) or "no worker yet"
    state = {
        "alive": "alive, with a fresh heartbeat",
        "unknown": "not provably gone",
        "expired": "no heartbeat for longer than its lease; the next run takes over",
        "dead": "gone; the next run takes over",
    }[str(liveness)]
    return (
        f"step {claim.step!r} (step_index {claim.step_index}) is held by {holder} "
        f"with token {claim.token}, attempt {claim.attempt}, since {claim.claimed_at}: {state}"
    )


@verb("stop")
@click.option("--reason", metavar="TEXT", help="Why. Kept in the state and shown to everyone.")
@click.option("--pause", is_flag=True, help="Only pause: waiting processes keep waiting.")
@click.option("--now", is_flag=True, help="Stop the running step too, and end its agent.")
@pass_invocation
def stop(invocation: Invocation, *, reason: str | None, pause: bool, now: bool) -> None:
    """Stop the run after the running step; waiting processes end too.

    With --now, the process that runs the step loses it, ends the agent within seconds, and
    keeps its output. You or an agent can also stop the run with "exit": true in state.json.

    \b
    Examples:
      sequencer stop --reason "release is out"
      sequencer stop --pause
      sequencer resume                  undoes both
    """
    if pause and reason is not None:
        raise UsageRefused("works only without --pause", where="--reason")
    try:
        invocation.project()
    except ConfigurationError as error:
        # Without a place in a file, there is no project here.
        if any(each.where for each in error.each):
            invocation.notify(
                "notice: the run can't be found without the settings; to stop a process that works "
                'on it, press Ctrl-C in its terminal, or set "exit": true in state.json'
            )
        raise
    run = invocation.run()
    if run.name is None and run.head is None and (names := invocation.project().run_names()):
        # A person who types `stop` means a run that has started.
        raise TransitionRefused(
            "stop: the default run has not started",
            hint=f"{format_command(names[0], 'stop')} stops that one; "
            "'sequencer status --all' lists the runs",
        )
    head = run.do(Pause() if pause else Stop(reason)).head
    # A pause of a stopped run changes nothing that a person sees: the run stays stopped.
    state = "paused" if pause and not head.exit else "stopped"
    suffix = ""
    if now and head.claims:
        change = run.do(StopNow())
        # The step may have ended in the meantime.
        head, suffix = change.head, "; the running step was taken away" if change.facts else ""
    elif _drop_gone_claims(run, head).claims:
        suffix = (
            " as soon as the running step ends" if pause else "; the running step is the last one"
        )
    show_change(invocation, run, head, f"the run is {state}{suffix}")


@verb("resume")
@pass_invocation
def resume(invocation: Invocation) -> None:
    """Continue a run that was paused or stopped.

    \b
    Example:
      sequencer resume && sequencer run
    """
    run = invocation.run()
    head = run.do(Resume()).head
    show_change(invocation, run, head, "the run continues")
