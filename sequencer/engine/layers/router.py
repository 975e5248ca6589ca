"""The layer for the router, an agent that chooses the prompt of a step from an allowlist."""

from __future__ import annotations

import time

from msgspec.structs import replace

from sequencer.engine.attempt import Attempt, PreparedStep
from sequencer.engine.evidence import judge_turn
from sequencer.engine.layers.agent import perform_by_agent
from sequencer.engine.layers.layer import Next
from sequencer.engine.performing import Performer
from sequencer.engine.records import describe_route
from sequencer.executors.protocol import Piece
from sequencer.model.outcome import Outcome, OutcomeStatus
from sequencer.model.sequence.order import describe
from sequencer.model.transitions import StepRef
from sequencer.workflows.router import (
    RouterSettings,
    allowed_prompts,
    parse_answer,
    router_input,
)


def choose_prompt(performer: Performer, attempt: Attempt, proceed: Next) -> None:
    """Ask the router which prompt to run, and run it.

    Raises:
        RouterRefused: its answer names no allowed prompt.
        ConfigurationError: the chosen prompt can't run.
    """
    if (router := performer.router) is None:
        proceed(attempt)
        return
    prepared_step = attempt.prepared
    question = _question(performer, attempt, router)
    answer = _ask_router(performer, attempt, question, router)
    if not answer.is_accepted:
        # The step's own agent was not started, so the record must name the router's agent.
        attempt.outcome, attempt.prepared = answer, replace(prepared_step, agent=question.agent)
        return
    chosen_step = _prepare_chosen(performer, attempt, answer, router)
    words = f"[router] {describe_route(prepared_step, chosen_step)}\n".encode()
    attempt.listener.write(words, Piece.NOTICE)
    attempt.prepared, attempt.budget = chosen_step, attempt.budget.subtract(answer.usage)
    proceed(attempt)
    usage = attempt.outcome.usage.plus(answer.usage)
    attempt.outcome = attempt.outcome.replace(usage=usage)


def _question(performer: Performer, attempt: Attempt, router: RouterSettings) -> PreparedStep:
    """Return the question to the router as a step that is ready to start."""
    step, step_index = performer.router_step(router), attempt.step_index
    place = StepRef(step_index, "router", step.prompt_name)
    question = performer.prepare_step(step, "router", place)
    allowed_names = allowed_prompts(attempt.workflow, router)
    state = router_input(attempt.head, describe(attempt.workflow, step_index), allowed_names)
    return replace(question, prompt=f"{question.prompt.rstrip()}\n\n{state}")


def _ask_router(
    performer: Performer, attempt: Attempt, question: PreparedStep, router: RouterSettings
) -> Outcome:
    """Return the router's answer; if the router may be silent, a late answer counts as empty."""
    start = time.monotonic()
    with attempt.use_separate_result():
        perform_by_agent(performer, attempt, question, "router")
    outcome = judge_turn(attempt.outcome)
    if outcome.is_put_off:
        return outcome.replace(error=f"the router: {outcome.error or 'its usage limit is reached'}")
    if outcome.status is not OutcomeStatus.FAILED:
        return outcome
    # The exit code of the router must not be taken for the verdict of a step that judges.
    failed_outcome = outcome.replace(error=f"the router failed: {outcome.error}", exit_code=None)
    if time.monotonic() - start < router.timeout_s:
        return failed_outcome
    message = f"the router did not answer within {router.timeout_s:g} s (router.timeout_s)"
    if not router.may_be_silent:
        return failed_outcome.replace(error=message)
    return failed_outcome.replace(status=OutcomeStatus.OK, output="", error=message)


def _prepare_chosen(
    performer: Performer, attempt: Attempt, answer: Outcome, router: RouterSettings
) -> PreparedStep:
    """Return the step with the prompt that the router's *answer* names, ready to start."""
    prepared_step, note = attempt.prepared, None
    step = prepared_step.step
    if router.may_be_silent and not answer.output.strip():
        note = answer.error or "the router gave no answer"
    else:
        prompt = parse_answer(answer.output, allowed_prompts(attempt.workflow, router))
        if prompt != step.prompt_name:
            step = step.replace(prompt=prompt, text=None)
    if step is prepared_step.step and router.needs_selection:
        return replace(prepared_step, note=note)
    return replace(
        performer.prepare_step(step, prepared_step.position, prepared_step.place), note=note
    )
