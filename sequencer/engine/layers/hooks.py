"""The layers for the project's hooks: they change the prompt, and decide what follows a step."""

from __future__ import annotations

from msgspec.structs import replace

from sequencer.engine.attempt import Attempt, PreparedStep
from sequencer.engine.hooking import HookContext, HookFailed, Hooks
from sequencer.engine.layers.layer import Next
from sequencer.engine.performing import Performer
from sequencer.executors.protocol import Piece
from sequencer.model.kind import AttemptResult
from sequencer.model.outcome import OutcomeStatus


def decide_by_hook(performer: Performer, attempt: Attempt, proceed: Next) -> None:
    """After the attempt has ended, ask the project's hook where the run continues."""
    proceed(attempt)
    result, hooks = attempt.ended, performer.hooks
    if result is None or hooks is None:
        return
    outcome = result.outcome
    if not outcome.is_put_off and outcome.status is not OutcomeStatus.INTERRUPTED:
        attempt.ended = _apply_decision(performer, attempt, result, hooks)


def _apply_decision(
    performer: Performer, attempt: Attempt, result: AttemptResult, hooks: Hooks
) -> AttemptResult:
    """Return *result* with the hook's decision."""
    try:
        decision = hooks.transition(_context(performer, attempt), result.outcome)
        if decision is not None:
            decision = replace(decision, reason=performer.redact(decision.reason))
            attempt.write_notice(f"a hook decides {decision.move}: {decision.why}")
        return replace(result, decision=decision)
    except HookFailed as error:
        _write_traceback(performer, attempt, error)
        message = performer.redact(str(error))
        outcome = result.outcome.replace(status=OutcomeStatus.FAILED, error=message)
        return replace(result, outcome=outcome, verdict=None)


def apply_hooks(performer: Performer, attempt: Attempt, proceed: Next) -> None:
    """Let the project's hooks change the prompt and the model, before templates are filled in.

    Raises:
        HookFailed: a hook raised; the log says where.
    """
    if (hooks := performer.hooks) is not None:
        try:
            attempt.prepared = _change_step(performer, attempt, hooks)
        except HookFailed as error:
            _write_traceback(performer, attempt, error)
            raise
    proceed(attempt)


def _change_step(performer: Performer, attempt: Attempt, hooks: Hooks) -> PreparedStep:
    prepared_step, context = attempt.prepared, _context(performer, attempt)
    text = hooks.prompt(context, prepared_step.prompt)
    system_prompt = hooks.system_prompt(context, prepared_step.append_system_prompt)
    model = hooks.model(context, prepared_step.step.model)
    if model != prepared_step.step.model:
        # The agent is chosen again, so that one without models refuses the change.
        step = prepared_step.step.replace(model=model)
        agent, executor, replacement = performer.agents.choose_installed(
            step, prepared_step.position
        )
        prepared_step = replace(
            prepared_step, step=step, agent=agent, executor=executor, instead=replacement
        )
    return replace(prepared_step, prompt=text, append_system_prompt=system_prompt)


def _context(performer: Performer, attempt: Attempt) -> HookContext:
    number, head = attempt.number, attempt.head
    return performer.make_hook_context(
        attempt.workflow, attempt.step, attempt.step_index, number, head
    )


def _write_traceback(performer: Performer, attempt: Attempt, error: HookFailed) -> None:
    """Write to the log where *error* comes from in the project's code."""
    if error.traceback:
        text = performer.redact(error.traceback).encode("utf-8", "replace")
        attempt.listener.write(text, Piece.ERROR)
