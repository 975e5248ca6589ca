"""From a place in a workflow to an outcome: prompt, router, agent, log.

What can be refused before anything runs is refused in `prepare`, without a claim. What
goes wrong later is an outcome, never an exception, so that every claim ends in a commit,
a failure or a release.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from sequencer.engine.attempt import Attempt, Logs, Observer, StepLog, Tee
from sequencer.errors import ConfigurationError, SequencerError
from sequencer.executors.completion import apply_completion
from sequencer.executors.protocol import (
    EVERY_EXECUTOR,
    Cancellation,
    Executor,
    Kind,
    Listener,
    StepRequest,
)
from sequencer.model.head import Head
from sequencer.model.outcome import Outcome, OutcomeStatus
from sequencer.model.step import Step
from sequencer.model.workflow import Workflow
from sequencer.resolution.resolver import describe, resolve
from sequencer.resolution.routing import (
    RouterMode,
    RouterSettings,
    allowed_prompts,
    parse_answer,
    router_input,
)

ROUTER_TIMEOUT_S = 600.0


class Agents(Protocol):
    """Knows which executor performs a step."""

    def choose(self, step: Step, position: str) -> tuple[str, Executor]:
        """Return the agent's name and its executor for *step*.

        Raises:
            ConfigurationError: no such agent, it can't be built, or it can't honour a
                field of the step.
        """

    def warm_up(self) -> None:
        """Get ready for a step while there is nothing else to do; may do nothing."""

    def close(self) -> None:
        """Undo `warm_up`; the agents may be used again."""


class Prompts(Protocol):
    """Reads prompts by name."""

    def read(self, name: str) -> str:
        """Return the text of prompt *name*; see `resolution.prompts`."""

    def read_for(self, step: Step, executor: Executor) -> str:
        """Return the step's prompt; empty for a command without one."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What is left for an attempt under the limits of the invocation and the run."""

    cost_usd: float | None = None
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A step that can be started: everything it needs was found."""

    step: Step
    position: str
    step_index: int
    agent: str
    executor: Executor
    prompt: str
    """The prompt's text."""
    system_prompt: str | None = None
    append_system_prompt: str | None = None


@dataclass(frozen=True, slots=True)
class _Running:
    """What every part of one attempt needs."""

    attempt: Attempt
    head: Head
    budget: Budget
    listener: Listener
    cancellation: Cancellation


@dataclass(frozen=True, slots=True)
class Performer:
    """Prepares and performs the steps of one workflow."""

    workflow: Workflow
    agents: Agents
    prompts: Prompts
    logs: Logs
    observer: Observer
    project: Path
    """Folder in which agents work."""
    with_defaults: Callable[[Step], Step]
    """Fills in the fields that a step leaves to ``step_defaults``."""
    redact: Callable[[str], str]
    router: RouterSettings | None = None

    def look(self, step_index: int) -> tuple[Step, str]:
        """Return the step at *step_index*, defaults filled in, and its position's name."""
        step = self.with_defaults(resolve(self.workflow, step_index))
        return step, describe(self.workflow, step_index)["position"]

    def prepare(self, step_index: int) -> Prepared:
        """Return the step at *step_index*, ready to start.

        Raises:
            ConfigurationError: its prompt or its agent can't be had; nothing was started.
        """
        step, position = self.look(step_index)
        router = self.router
        if router is None or router.needs_selection:
            is_routed = router is not None and router.enabled and router.mode is RouterMode.ONLY
            if is_routed:
                raise ConfigurationError(
                    "router_only has nobody to ask", where="router.prompt", hint="name its prompt"
                )
            return self._prepare(step, position, step_index)
        # The router chooses the prompt, so the workflow's own need not exist.
        agent, executor = self.agents.choose(step, position)
        return Prepared(step, position, step_index, agent, executor, prompt="")

    def _prepare(self, step: Step, position: str, step_index: int) -> Prepared:
        agent, executor = self.agents.choose(step, position)
        return Prepared(
            step=step,
            position=position,
            step_index=step_index,
            agent=agent,
            executor=executor,
            prompt=self.prompts.read_for(step, executor),
            system_prompt=self._optional(step.system_prompt),
            append_system_prompt=self._joined(step.added_system_prompts),
        )

    def _optional(self, name: str | None) -> str | None:
        return None if name is None else self.prompts.read(name)

    def _joined(self, names: tuple[str, ...]) -> str | None:
        return "\n\n".join(self.prompts.read(name).strip() for name in names) or None

    def perform(
        self,
        prepared: Prepared,
        attempt: Attempt,
        head: Head,
        budget: Budget,
        cancellation: Cancellation,
    ) -> tuple[Outcome, Prepared, Path]:
        """Make *attempt* and return how it ended, what was run in the end, and the log."""
        started = time.monotonic()
        log = self.logs.open(attempt)
        self.observer.started(attempt, log.path)
        listener = Tee(log, self.observer, hides_thoughts=prepared.step.suppress_thoughts)
        running = _Running(attempt, head, budget, listener, cancellation)
        try:
            outcome, final = self._routed(prepared, running)
        except SequencerError as error:
            outcome, final = Outcome(status=OutcomeStatus.FAILED, error=str(error)), prepared
        except Exception as error:
            # An executor that raises has a bug; the claim still has to end in a record.
            self._close(log, attempt, Outcome(status=OutcomeStatus.FAILED, error=repr(error)))
            raise
        seconds = round(time.monotonic() - started, 6)
        outcome = self._finished(outcome, final, seconds)
        self._close(log, attempt, outcome)
        return outcome, final, log.path

    def _finished(self, outcome: Outcome, prepared: Prepared, seconds: float) -> Outcome:
        completed = apply_completion(prepared.step, outcome)
        return completed.replace(
            usage=completed.usage.replace(seconds=seconds),
            output=self.redact(completed.output),
            error=self.redact(completed.error) if completed.error else None,
            denials=tuple(map(self.redact, completed.denials)),
            prompt=prepared.step.prompt_name,
        )

    def _close(self, log: StepLog, attempt: Attempt, outcome: Outcome) -> None:
        log.close(outcome)
        self.observer.ended(attempt, outcome)

    def _routed(self, prepared: Prepared, running: _Running) -> tuple[Outcome, Prepared]:
        router = self.router
        if router is None or not router.is_active or router.prompt is None:
            return self._run(prepared, running), prepared
        answer = self._ask_router(router.prompt, running)
        if not answer.is_accepted:
            return answer, prepared
        prompt = parse_answer(answer.output, allowed_prompts(self.workflow, router))
        chosen = prepared
        if prompt != prepared.step.prompt_name or not router.needs_selection:
            step = prepared.step.model_copy(update={"prompt": prompt})
            chosen = self._prepare(step, prepared.position, prepared.step_index)
        note = f"[router] {prompt} instead of {prepared.step.prompt_name}\n"
        if prompt == prepared.step.prompt_name:
            note = f"[router] {prompt}, as the workflow has it\n"
        running.listener.write(note.encode(), Kind.NOTICE)
        outcome = self._run(chosen, running)
        total = outcome.usage.plus(answer.usage)
        return outcome.model_copy(update={"usage": total}), chosen

    def _ask_router(self, prompt: str, running: _Running) -> Outcome:
        step_index, budget = running.attempt.step_index, running.budget
        asked = self._prepare(
            self.with_defaults(Step(name="router", prompt=prompt)), "router", step_index
        )
        allowed = allowed_prompts(self.workflow, self.router or RouterSettings())
        state = router_input(running.head, describe(self.workflow, step_index), allowed)
        question = replace(asked, prompt=f"{asked.prompt.rstrip()}\n\n{state}")
        limited = Budget(budget.cost_usd, _least(budget.timeout_s, ROUTER_TIMEOUT_S))
        outcome = self._run(question, replace(running, budget=limited))
        if outcome.status is OutcomeStatus.FAILED:
            message = f"the router failed: {outcome.error}"
            return outcome.model_copy(update={"error": message})
        return outcome

    def _run(self, prepared: Prepared, running: _Running) -> Outcome:
        attempt, budget = running.attempt, running.budget
        step = prepared.step
        session = running.head.session
        is_same = session is not None and session.executor == prepared.agent
        can_cap = "max_cost_usd" in prepared.executor.supported_fields | EVERY_EXECUTOR
        request = StepRequest(
            step=step,
            prompt=prepared.prompt,
            cwd=self.project,
            result_path=attempt.result_path,
            environment=attempt.environment(),
            system_prompt=prepared.system_prompt,
            append_system_prompt=prepared.append_system_prompt,
            resume_session=session.id if session and is_same and step.continue_session else None,
            timeout_s=_least(step.timeout_s, budget.timeout_s),
            idle_timeout_s=step.idle_timeout_s,
            max_cost_usd=_least(step.max_cost_usd, budget.cost_usd) if can_cap else None,
        )
        return prepared.executor.perform(request, running.listener, running.cancellation)


def _least(*values: float | None) -> float | None:
    present = [value for value in values if value is not None]
    return min(present) if present else None


def journal_record(
    outcome: Outcome, agent: str, log: str | None, output: dict[str, Any]
) -> dict[str, Any]:
    """Return what the journal keeps of *outcome*; *output* is inline or a reference."""
    record: dict[str, Any] = {
        "status": str(outcome.status),
        "agent": agent,
        "prompt": outcome.prompt,
        "log": log,
        **output,
        "usage": {name: value for name, value in vars(outcome.usage).items() if value},
        "error": outcome.error[:4000] if outcome.error else None,
        "denials": [line[:200] for line in outcome.denials[:20]] or None,
        "exit_code": outcome.exit_code,
    }
    return {key: value for key, value in record.items() if value is not None}
