"""The innermost layer: the agent works."""

from __future__ import annotations

from typing import NoReturn

from sequencer import extensions
from sequencer.engine.allowance import smallest_limit
from sequencer.engine.attempt import Attempt, PreparedStep
from sequencer.engine.performing import Performer
from sequencer.engine.records import (
    adapt_to_executor,
    find_forward_label,
    is_deciding_step,
    mark_budget_used_up,
)
from sequencer.errors import PackageFailed
from sequencer.executors.protocol import EVERY_EXECUTOR, Executor, StepRequest, is_free
from sequencer.model.outcome import Outcome, Usage


def perform_by_agent(
    performer: Performer, attempt: Attempt, question: PreparedStep | None = None, to: str = "agent"
) -> None:
    """Let the agent of *attempt* perform its step, or let another agent answer a *question*.

    *to* names the one that gets the prompt, for the log: ``agent`` or ``router``.
    """
    prepared_step, listener = question or attempt.prepared, attempt.listener
    if performer.workspace.opens:
        # In a worktree, an earlier attempt may have left files that the client reads.
        performer.agents.ensure_folder(prepared_step.agent, attempt.cwd)
    request, executor = _request(attempt, prepared_step, to), prepared_step.executor
    attempt.log.write_request(request, to)
    attempt.agent_usage = None
    try:
        outcome = executor.perform(request, listener, attempt.cancellation)
        match outcome:  # needs no call, unlike isinstance
            case Outcome():
                pass
            case _:
                _refuse_result(outcome, executor)
    except BaseException as error:
        fault = extensions.find_package_fault(error, extensions.EXECUTORS, executor.kind)
        is_of_package = fault is not None or isinstance(error, PackageFailed)
        if (usage := attempt.agent_usage) is None and is_of_package and not is_free(executor):
            usage = Usage(unpriced=1)
        attempt.paid.extend([] if usage is None else [usage])
        if fault is None:
            raise
        raise fault from error
    attempt.paid.append(outcome.usage)
    if outcome.is_over_budget and not attempt.workflow.nodes:
        outcome = mark_budget_used_up(outcome, prepared_step.step, attempt.budget.cost_usd)
    if outcome.session_fault and attempt.session is None:
        outcome = outcome.replace(session_fault=None)
    attempt.outcome = outcome


def _refuse_result(result: object, executor: Executor) -> NoReturn:
    raise extensions.wrong_type_error(Outcome, result, extensions.EXECUTORS, executor.kind)


def _request(attempt: Attempt, prepared_step: PreparedStep, recipient: str) -> StepRequest:
    step, prompt, system_prompt = adapt_to_executor(prepared_step)
    workflow, budget, session = attempt.workflow, attempt.budget, attempt.session
    can_cap = "max_cost_usd" in prepared_step.executor.supported_fields | EVERY_EXECUTOR
    return StepRequest(
        identity=attempt.identity(),
        step=step,
        prompt=prompt,
        cwd=attempt.cwd,
        result_path=attempt.result_path,
        system_prompt=prepared_step.system_prompt,
        append_system_prompt=system_prompt,
        resume_session=None if session is None else session.id,
        timeout_s=smallest_limit(step.timeout_s, budget.timeout_s),
        idle_timeout_s=step.idle_timeout_s,
        is_node=workflow.counts_ms,
        lock=attempt.lock,
        label=find_forward_label(workflow, step) if workflow.nodes else None,
        decides=recipient == "router"
        or is_deciding_step(workflow, step, prepared_step.place.stage),
        max_cost_usd=smallest_limit(step.max_cost_usd, budget.cost_usd) if can_cap else None,
    )
