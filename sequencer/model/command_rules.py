"""Changes that a person makes by hand, each a journalled transition like any other.

They share one rule: a claim that somebody holds is dropped, never silently kept, when the
step that it is about is decided by hand, so that its holder finds itself stale.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sequencer.errors import TransitionRefused, command
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
from sequencer.model.limits import utc
from sequencer.model.outcome import Usage, total
from sequencer.model.sequence.order import present
from sequencer.model.transitions import (
    Event,
    StepRef,
    Transition,
    at_rest,
    at_rest_by_hand,
    changed,
    fact_at,
    moved,
    taken_over,
    with_end,
)
from sequencer.model.workflow import Workflow, changed_params, ensure_definition


def _decided(head: Head, at: str, place: StepRef, **update: Any) -> Head:
    """Return *head* at *place* with nobody at work; a claim on the step that it leaves goes."""
    there = moved(head, at, place, claims=(), gate=None, **update)
    if place.is_end:
        return there.replace(status=Status.COMPLETE)
    return at_rest_by_hand(head, there)


def _ensure_nobody_runs(head: Head, verb: str) -> None:
    if head.claims:
        held = head.claims[0]
        raise TransitionRefused(
            f"{verb}: step {held.step!r} is being run by {held.owner.words}",
            hint="wait until it ends, stop it, or use 'sequencer takeover --force'",
        )


def stop(head: Head, reason: str | None, *, at: str) -> Transition:
    """Let the step that runs end and start no other."""
    # How a complete run has ended stays.
    kept = head.exit_reason if head.status is Status.COMPLETE else reason
    new = changed(head, at, exit=True, exit_reason=kept)
    return Transition(new, (fact_at(Event.EDITED, head, f"stop: {reason or 'by hand'}"),))


def pause(head: Head, *, at: str) -> Transition:
    """Hold the run after the step that runs; waiting processes go on waiting.

    Raises:
        TransitionRefused: the run is complete.
    """
    if head.status is Status.COMPLETE:
        raise TransitionRefused("pause: the run is complete")
    if head.claims:
        new = changed(head, at, pause_requested=True)
    else:
        new = changed(head, at, status=Status.PAUSED, pause_requested=False)
    return Transition(new, (fact_at(Event.PAUSED, head),))


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
    new = changed(head, at, exit=False, exit_reason=None, pause_requested=False)
    if new.status is Status.PAUSED:
        new = at_rest(new)
    return Transition(new, (fact_at(Event.RESUMED, head),))


def retry(head: Head, *, at: str) -> Transition:
    """Forget the failures of the present step, so that it may be tried again at once.

    Raises:
        TransitionRefused: the step has not been tried without an end, and waits for no date.
    """
    was_tried = head.failures_in_row or head.attempt or head.status is Status.FAILED
    if not was_tried and head.not_before is None:
        raise TransitionRefused("retry: the current step has not failed")
    _ensure_nobody_runs(head, "retry")
    waits = {"not_before": None, "not_before_reason": None, "not_before_since": None}
    loop = None if head.loop is None else head.loop.replace(exhausted=0)
    new = changed(head, at, failures_in_row=0, attempt=0, loop=loop, **waits)
    return Transition(at_rest_by_hand(head, new), (fact_at(Event.RESUMED, head, "retry"),))


def stamp_ok(head: Head, following: StepRef, note: str | None, *, at: str) -> Transition:
    """Accept the present step by hand, without an agent.

    Raises:
        TransitionRefused: somebody runs it, or the run is complete.
    """
    _ensure_not_complete(head, "skip")
    _ensure_nobody_runs(head, "skip")
    usage = head.usage.plus(Usage(steps=1))
    new = _decided(head, at, following, usage=usage)
    return Transition(new, with_end(fact_at(Event.STAMPED, head, _noted("ok", note)), new))


def pass_fixer(
    head: Head, judge: StepRef, event: Event, note: str | None, *, at: str
) -> Transition:
    """Go on from a fixer by hand: the step that judges, at *judge*, comes again.

    Raises:
        TransitionRefused: somebody runs the fixer.
    """
    _ensure_nobody_runs(head, "skip")
    loop = head.loop
    number, reason = (loop.round + 1, loop.reason) if loop is not None else (1, "")
    new = changed(
        head,
        at,
        loop=Loop(stage="verify", round=number, reason=reason),
        expected_step=judge.step,
        failures_in_row=0,
        attempt=0,
    )
    return Transition(at_rest_by_hand(head, new), (fact_at(event, head, note),))


def stamp_fail(head: Head, note: str | None, *, at: str) -> Transition:
    """Mark the present step as failed by hand.

    Raises:
        TransitionRefused: somebody runs it, or the run is complete.
    """
    _ensure_not_complete(head, "skip")
    _ensure_nobody_runs(head, "skip")
    new = changed(head, at, failures_in_row=head.failures_in_row + 1)
    new = at_rest_by_hand(head, new)
    return Transition(new, (fact_at(Event.STAMPED, head, _noted("fail", note)),))


def skip(head: Head, following: StepRef, note: str | None, *, at: str) -> Transition:
    """Go on without the present step.

    Raises:
        TransitionRefused: somebody runs it, or the run is complete.
    """
    _ensure_not_complete(head, "skip")
    _ensure_nobody_runs(head, "skip")
    new = _decided(head, at, following)
    return Transition(new, with_end(fact_at(Event.SKIPPED, head, note), new))


def rewind(head: Head, place: StepRef, *, at: str) -> Transition:
    """Go back to *place*, whose step runs next; the steps from there on run again.

    Raises:
        TransitionRefused: *place* lies ahead (that is `skip`'s), or somebody runs a step.
    """
    if place.step_index > head.step_index:
        raise TransitionRefused(
            f"rewind: step_index {place.step_index} is ahead of {head.step_index}",
            hint="'sequencer skip' goes forward",
        )
    _ensure_nobody_runs(head, "rewind")
    if head.is_at_gate and place.step_index >= head.step_index:
        # That would be the way on, without a decision.
        _ensure_not_complete(head, "rewind")
    cleared = {"exit_reason": None} if head.was_rejected else {}
    new = _decided(head, at, place, **cleared)
    return Transition(new, (fact_at(Event.REWOUND, head, f"to step_index {place.step_index}"),))


def reset(head: Head, fresh: Head, *, at: str) -> Transition:
    """Begin again as *fresh*; tokens and revisions go on counting, so that nothing is reused.

    Raises:
        TransitionRefused: somebody runs a step.
    """
    _ensure_nobody_runs(head, "reset")
    new = fresh.replace(token=head.token, last_update=at)
    return Transition(new, (fact_at(Event.RESET, head, f"run {head.run_id} ended"),))


def adopt(
    head: Head,
    name: str,
    digest: str,
    params: Mapping[str, int],
    place: StepRef,
    *,
    at: str,
) -> Transition:
    """Go on under another definition or other parameters, at the same step_index.

    Raises:
        TransitionRefused: somebody runs a step, or nothing changed.
    """
    _ensure_nobody_runs(head, "adopt")
    is_same = (head.workflow_name, head.workflow_digest, head.params) == (name, digest, params)
    if is_same:
        raise TransitionRefused("adopt: the run already has this definition and these parameters")
    note = "; ".join([f"{head.workflow_name} -> {name}", *changed_params(head.params, params)])
    new = changed(
        head,
        at,
        workflow_name=name,
        workflow_digest=digest,
        params=dict(params),
        expected_step=place.step,
    )
    if place.is_end and not head.is_at_gate:
        new = new.replace(status=Status.COMPLETE)
    return Transition(new, (fact_at(Event.ADOPTED, head, note),))


def take_over_by_force(
    head: Head, *, at: str, used: Mapping[int, Usage] | None = None
) -> Transition:
    """Drop every claim; their holders will find themselves stale.

    *used* is what was seen of their use, by token.

    Raises:
        TransitionRefused: nobody holds a claim.
    """
    if not head.claims:
        raise TransitionRefused("takeover: no process holds a step")
    used = used or {}
    facts = tuple(taken_over(one, used.get(one.token), "by force") for one in head.claims)
    spent = head.usage.plus(total(used.values()), steps=0)
    return Transition(at_rest(changed(head, at, claims=(), usage=spent)), facts)


def _noted(verdict: str, note: str | None) -> str:
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


def other_kind(head: Head) -> TransitionRefused:
    """Return that the run of *head* can't continue as one of the other kind."""
    return TransitionRefused(
        "adopt: a graph can't replace a line of steps, nor the other way around",
        hint=f"{command(head.run_name, 'reset')} starts over with the new workflow",
    )


def of_every_kind(
    head: Head, command: RunCommand, workflow: Workflow, here: StepRef, context: CommandContext
) -> Transition:
    """Return the transition of a *command* that means the same for every kind.

    The run of *workflow* is *here*.

    Raises: see the functions above.
    """
    return _EVERY_KIND[type(command)](head, command, workflow, here, context)


def _edit(
    head: Head, command: SetField, workflow: Workflow, _here: StepRef, context: CommandContext
) -> Transition:
    def placed(edited: Head) -> StepRef:
        ensure_definition(edited, workflow)
        return present(workflow, edited)

    return edit_field(head, command.field, command.value, at=utc(context.at), placed=placed)


def _adopt(
    head: Head, _command: Adopt, workflow: Workflow, here: StepRef, context: CommandContext
) -> Transition:
    name, digest, params = workflow.name, workflow.digest(), workflow.params
    return adopt(head, name, digest, params, here, at=utc(context.at))


def _reset(
    head: Head, _command: Reset, workflow: Workflow, here: StepRef, context: CommandContext
) -> Transition:
    del workflow, here
    if context.fresh is None:
        message = "a reset needs the head of the new run"
        raise ValueError(message)
    return reset(head, context.fresh, at=utc(context.at))


def _take_over(
    head: Head, _command: RunCommand, workflow: Workflow, here: StepRef, context: CommandContext
) -> Transition:
    del workflow, here
    return take_over_by_force(head, at=utc(context.at), used=context.used)


_EVERY_KIND: Mapping[type[RunCommand], Callable[..., Transition]] = {
    Stop: lambda head, command, _w, _h, more: stop(head, command.reason, at=utc(more.at)),
    Pause: lambda head, _c, _w, _h, more: pause(head, at=utc(more.at)),
    Resume: lambda head, _c, _w, _h, more: resume(head, at=utc(more.at)),
    TakeOver: _take_over,
    StopNow: _take_over,
    Reset: _reset,
    Adopt: _adopt,
    SetField: _edit,
}
