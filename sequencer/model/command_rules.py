"""Transitions for the commands of a person; the journal records them like any other.

They share one rule: a step that is claimed is not decided by a command. Most commands are
refused; a forced takeover drops the claim, so that the result of its holder is refused as stale.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sequencer.errors import TransitionRefused, format_command
from sequencer.model.commands import (
    Adopt,
    Pause,
    Reset,
    Resume,
    RunCommand,
    SetField,
    Stop,
    StopNow,
    TakeOver,
)
from sequencer.model.edits import edit_field
from sequencer.model.head import Head, Loop, Status
from sequencer.model.kind import CommandContext
from sequencer.model.limits import format_utc_s
from sequencer.model.outcome import Usage
from sequencer.model.sequence.order import find_current_ref
from sequencer.model.transitions import (
    NO_DATE,
    Event,
    StepRef,
    Transition,
    build_fact,
    drop_claims,
    move_head,
    refresh_status,
    refresh_status_by_hand,
    update_head,
    with_completion_fact,
)
from sequencer.model.workflow import Workflow, describe_param_changes, ensure_definition


def _move_dropping_claims(head: Head, at: str, target: StepRef, **update: Any) -> Head:
    """Return *head* at *target* with no claims and no gate."""
    new_head = move_head(head, at, target, claims=(), gate=None, **update)
    if target.is_end:
        return new_head.replace(status=Status.COMPLETE)
    return refresh_status_by_hand(head, new_head)


def _ensure_not_claimed(head: Head, verb: str) -> None:
    if head.claims:
        claim = head.claims[0]
        raise TransitionRefused(
            f"{verb}: step {claim.step!r} is being run by {claim.owner.words}",
            hint="wait until it ends, stop it, or use 'sequencer takeover --force'",
        )


def stop(head: Head, reason: str | None, *, at: str) -> Transition:
    """Let the running step end, and start no other."""
    # A complete run keeps the reason with which it ended.
    exit_reason = head.exit_reason if head.status is Status.COMPLETE else reason
    new_head = update_head(head, at, exit=True, exit_reason=exit_reason)
    return Transition(new_head, (build_fact(Event.EDITED, head, f"stop: {reason or 'by hand'}"),))


def pause(head: Head, *, at: str) -> Transition:
    """Pause the run after the running step; waiting processes keep waiting.

    Raises:
        TransitionRefused: the run is complete.
    """
    if head.status is Status.COMPLETE:
        raise TransitionRefused("pause: the run is complete")
    if head.claims:
        new_head = update_head(head, at, pause_requested=True)
    else:
        new_head = update_head(head, at, status=Status.PAUSED, pause_requested=False)
    return Transition(new_head, (build_fact(Event.PAUSED, head),))


def resume(head: Head, *, at: str) -> Transition:
    """Undo `pause` and `stop`.

    Raises:
        TransitionRefused: the run is neither paused nor stopped.
    """
    if not head.is_held_back:
        raise TransitionRefused("resume: the run is neither paused nor stopped")
    if head.status is Status.COMPLETE:
        raise TransitionRefused(
            "resume: the run is complete",
            hint="'sequencer rewind N' goes back to a step, 'sequencer reset' starts over",
        )
    new_head = update_head(head, at, exit=False, exit_reason=None, pause_requested=False)
    if new_head.status is Status.PAUSED:
        new_head = refresh_status(new_head)
    return Transition(new_head, (build_fact(Event.RESUMED, head),))


def retry(head: Head, *, at: str) -> Transition:
    """Forget the failures of the current step, so that it may be tried again immediately.

    Raises:
        TransitionRefused: the step has not failed or been started, and waits for no date; or a
            process runs it.
    """
    has_tried = head.failures_in_row or head.attempt or head.status is Status.FAILED
    if not has_tried and head.not_before is None:
        raise TransitionRefused("retry: the current step has not failed")
    _ensure_not_claimed(head, "retry")
    loop = None if head.loop is None else head.loop.replace(exhausted=0)
    new_head = update_head(head, at, failures_in_row=0, attempt=0, loop=loop, **NO_DATE)
    return Transition(
        refresh_status_by_hand(head, new_head), (build_fact(Event.RESUMED, head, "retry"),)
    )


def stamp_ok(head: Head, following: StepRef, note: str | None, *, at: str) -> Transition:
    """Accept the current step without an agent.

    Raises:
        TransitionRefused: a process runs it, or the run is complete.
    """
    _ensure_not_complete(head, "skip")
    _ensure_not_claimed(head, "skip")
    usage = head.usage.plus(Usage(steps=1))
    new_head = _move_dropping_claims(head, at, following, usage=usage)
    return Transition(
        new_head,
        with_completion_fact(build_fact(Event.STAMPED, head, _format_note("ok", note)), new_head),
    )


def pass_fixer(
    head: Head, judge: StepRef, event: Event, note: str | None, *, at: str
) -> Transition:
    """Continue after a fixer without its result: the step that judges, at *judge*, runs again.

    Raises:
        TransitionRefused: a process runs the fixer, or the run is complete.
    """
    _ensure_not_complete(head, "skip")
    _ensure_not_claimed(head, "skip")
    loop = head.loop
    new_loop = Loop(stage="verify", round=1)
    if loop is not None:
        round_number = loop.round + 1
        new_loop = loop.replace(stage="verify", round=round_number)
    new_head = update_head(
        head,
        at,
        loop=new_loop,
        expected_step=judge.step,
        failures_in_row=0,
        attempt=0,
        **NO_DATE,
    )
    return Transition(refresh_status_by_hand(head, new_head), (build_fact(event, head, note),))


def stamp_fail(head: Head, note: str | None, *, at: str) -> Transition:
    """Mark the current step as failed.

    Raises:
        TransitionRefused: a process runs it, or the run is complete.
    """
    _ensure_not_complete(head, "skip")
    _ensure_not_claimed(head, "skip")
    new_head = update_head(head, at, failures_in_row=head.failures_in_row + 1)
    new_head = refresh_status_by_hand(head, new_head)
    return Transition(new_head, (build_fact(Event.STAMPED, head, _format_note("fail", note)),))


def skip(head: Head, following: StepRef, note: str | None, *, at: str) -> Transition:
    """Continue without the current step.

    Raises:
        TransitionRefused: a process runs it, or the run is complete.
    """
    _ensure_not_complete(head, "skip")
    _ensure_not_claimed(head, "skip")
    new_head = _move_dropping_claims(head, at, following)
    return Transition(
        new_head, with_completion_fact(build_fact(Event.SKIPPED, head, note), new_head)
    )


def rewind(head: Head, target: StepRef, *, at: str) -> Transition:
    """Go back to *target*, whose step runs next; the steps from there on run again.

    Raises:
        TransitionRefused: *target* is ahead (`skip` goes there), or a process runs a step.
    """
    if target.step_index > head.step_index:
        raise TransitionRefused(
            f"rewind: step_index {target.step_index} is ahead of {head.step_index}",
            hint="'sequencer skip' goes forward",
        )
    _ensure_not_claimed(head, "rewind")
    if head.is_at_gate and target.step_index >= head.step_index:
        # Going to the step after the gate would pass the gate without a decision.
        _ensure_not_complete(head, "rewind")
    update = {"exit_reason": None} if head.was_rejected else {}
    new_head = _move_dropping_claims(head, at, target, **update)
    return Transition(
        new_head, (build_fact(Event.REWOUND, head, f"to step_index {target.step_index}"),)
    )


def reset(head: Head, fresh: Head, *, at: str) -> Transition:
    """Start over as *fresh*; tokens and revisions keep counting, so that none is reused.

    Raises:
        TransitionRefused: a process runs a step.
    """
    _ensure_not_claimed(head, "reset")
    new_head = fresh.replace(token=head.token, last_update=at)
    return Transition(new_head, (build_fact(Event.RESET, head, f"run {head.run_id} ended"),))


def adopt(
    head: Head,
    name: str,
    digest: str,
    params: Mapping[str, int],
    current: StepRef,
    *,
    at: str,
) -> Transition:
    """Continue at the same step_index with a different definition or different parameters.

    Raises:
        TransitionRefused: a process runs a step, or nothing changed.
    """
    _ensure_not_claimed(head, "adopt")
    is_same = (head.workflow_name, head.workflow_digest, head.params) == (name, digest, params)
    if is_same:
        raise TransitionRefused("adopt: the run already has this definition and these parameters")
    note = "; ".join(
        [f"{head.workflow_name} -> {name}", *describe_param_changes(head.params, params)]
    )
    new_head = update_head(
        head,
        at,
        workflow_name=name,
        workflow_digest=digest,
        params=dict(params),
        expected_step=current.step,
    )
    if current.is_end and not head.is_at_gate:
        new_head = new_head.replace(status=Status.COMPLETE)
    return Transition(new_head, (build_fact(Event.ADOPTED, head, note),))


def take_over_by_force(
    head: Head, *, at: str, used: Mapping[int, Usage] | None = None
) -> Transition:
    """Drop every claim; the results of their holders are then refused.

    *used* is the usage of their attempts as far as it is known, by token.

    Raises:
        TransitionRefused: no process holds a claim.
    """
    if not head.claims:
        raise TransitionRefused("takeover: no process holds a step")
    new_head, facts = drop_claims(update_head(head, at), used or {}, "by force")
    return Transition(refresh_status(new_head), facts)


def _format_note(verdict: str, note: str | None) -> str:
    return f"{verdict}: {note}" if note else verdict


def _ensure_not_complete(head: Head, verb: str) -> None:
    if head.gate is not None and head.gate.is_open:
        raise TransitionRefused(
            f"{verb}: the run is waiting for a decision about {head.gate.step!r}",
            hint="'sequencer answer' decides; 'rewind N' goes back",
        )
    if head.status is Status.COMPLETE:
        raise TransitionRefused(
            f"{verb}: the run is complete",
            hint="'sequencer rewind N' goes back to a step, 'sequencer reset' starts over",
        )


def other_kind_error(head: Head) -> TransitionRefused:
    """Return the error for a run of *head* that can't continue as a run of the other kind."""
    return TransitionRefused(
        "adopt: a graph can't replace a sequence of steps, or the other way around",
        hint=f"{format_command(head.run_name, 'reset')} starts over with the new workflow",
    )


def apply_common_command(
    head: Head, command: RunCommand, workflow: Workflow, current: StepRef, context: CommandContext
) -> Transition:
    """Return the transition of a *command* that means the same for every kind.

    *current* is where the run of *workflow* is.

    Raises: see the functions above.
    """
    return _EVERY_KIND[type(command)](head, command, workflow, current, context)


def _edit(
    head: Head, command: SetField, workflow: Workflow, _current: StepRef, context: CommandContext
) -> Transition:
    def locate(edited: Head) -> StepRef:
        ensure_definition(edited, workflow)
        return find_current_ref(workflow, edited)

    field, value, at = command.field, command.value, format_utc_s(context.at)
    return edit_field(head, field, value, at=at, locate=locate, used=context.used)


def _adopt(
    head: Head, _command: Adopt, workflow: Workflow, current_ref: StepRef, context: CommandContext
) -> Transition:
    name, digest, params = workflow.name, workflow.digest(), workflow.params
    return adopt(head, name, digest, params, current_ref, at=format_utc_s(context.at))


def _reset(
    head: Head, _command: Reset, workflow: Workflow, current_ref: StepRef, context: CommandContext
) -> Transition:
    del workflow, current_ref
    if context.fresh is None:
        message = "a reset needs the head of the new run"
        raise ValueError(message)
    return reset(head, context.fresh, at=format_utc_s(context.at))


def _take_over(
    head: Head,
    command: RunCommand,
    workflow: Workflow,
    current_ref: StepRef,
    context: CommandContext,
) -> Transition:
    del workflow, current_ref
    if isinstance(command, StopNow) and not head.claims:
        # The step has ended since the person asked to stop it.
        return Transition(head, ())
    return take_over_by_force(head, at=format_utc_s(context.at), used=context.used)


_EVERY_KIND: Mapping[type[RunCommand], Callable[..., Transition]] = {
    Stop: lambda head, command, _w, _h, more: stop(head, command.reason, at=format_utc_s(more.at)),
    Pause: lambda head, _c, _w, _h, more: pause(head, at=format_utc_s(more.at)),
    Resume: lambda head, _c, _w, _h, more: resume(head, at=format_utc_s(more.at)),
    TakeOver: _take_over,
    StopNow: _take_over,
    Reset: _reset,
    Adopt: _adopt,
    SetField: _edit,
}
