"""From a place in a workflow to an outcome: prompt, router, agent, log.

What can be refused before anything runs is refused in `prepare`, without a claim. What
goes wrong later is an outcome, never an exception, so that every claim ends in a commit,
a failure or a release.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from sequencer import extensions
from sequencer.engine.agents import Agents
from sequencer.engine.allowance import Allowance, least
from sequencer.engine.attempt import Attempt, Prepared
from sequencer.engine.carrier import NOTHING_CARRIED, Carrier
from sequencer.engine.composing import Compose
from sequencer.engine.events import AttemptEnded, AttemptStarted, Emit, Noticed, Waiting
from sequencer.engine.evidence import (
    NO_PRIOR,
    OWN_WORD,
    ChangeWatch,
    PriorAttempts,
    judge,
    judge_turn,
)
from sequencer.engine.hooking import HookContext, HookFailed, Hooks
from sequencer.engine.logs import Logs, StepLog
from sequencer.engine.output import AttemptOutput
from sequencer.engine.prompts import Prompts
from sequencer.engine.records import (
    apply_completion,
    as_asked,
    checked,
    continued,
    decides,
    forward_of,
    judged,
    noted,
    overspent,
    route_words,
    verdict_words,
    without_budget,
    without_comments,
    without_secrets,
)
from sequencer.engine.tree_state import KeptTree
from sequencer.errors import (
    AgentMissing,
    ConfigurationError,
    SequencerError,
    UnsafeFolder,
    failed_disk,
    out_of_resources,
)
from sequencer.executors.attempt_lock import AttemptLock
from sequencer.executors.cancellation import Cancellation
from sequencer.executors.protocol import EVERY_EXECUTOR, Listener, Piece, StepRequest
from sequencer.model.head import Head, Status
from sequencer.model.kind import Performed
from sequencer.model.limits import RunLimits, bounded
from sequencer.model.line.order import describe, last_step, position_at, round_of, step_at
from sequencer.model.outcome import PUT_OFF, Outcome, OutcomeStatus, SessionFault, Usage, total
from sequencer.model.request import Definition
from sequencer.model.step import Step
from sequencer.model.transitions import Place
from sequencer.model.workflow import Workflow
from sequencer.store.identity import utc_milliseconds
from sequencer.store.results import another
from sequencer.workflows.prompts import MissingValue
from sequencer.workflows.router import (
    RouterMode,
    RouterSettings,
    allowed_prompts,
    parse_answer,
    router_input,
)

if TYPE_CHECKING:
    from sequencer.engine.run_place import RunPlace
    from sequencer.engine.tasks import TaskExecution


class _Running(Struct, frozen=True):
    """What every part of one attempt needs."""

    attempt: Attempt
    head: Head
    budget: Allowance
    listener: AttemptOutput
    cancellation: Cancellation
    lock: AttemptLock | None
    compose: Compose | None
    paid: list[Usage]
    known: PriorAttempts
    look: ChangeWatch | None
    """Has looked at the files before the agent starts; None: their change is not expected."""
    kept: KeptTree | None
    """What the files were then, where the run has a work tree of its own."""


class Performer(Struct, frozen=True):
    """Prepares and performs the steps of one workflow."""

    workflow: Workflow
    agents: Agents
    prompts: Prompts
    logs: Logs
    emit: Emit
    project: Path
    """Folder in which agents work."""
    with_defaults: Callable[[Step], Step]
    """Fills in the fields that a step leaves to ``step_defaults``."""
    redact: Callable[[str], str]
    router: RouterSettings | None = None
    hooks: Hooks | None = None
    """None: the project has none, and nothing is asked."""
    definition: Definition | None = None
    """Of a run that was made from a request."""
    carrier: Carrier = NOTHING_CARRIED
    """Moves the code with the state."""
    tasks: TaskExecution | None = None
    """Of a graph whose nodes are tasks."""
    place: RunPlace | None = None
    """Where agents work instead, all that belong to the run."""
    comment_tools: tuple[str, ...] = ()
    """With which agents could post comments; a step with ``no_comment`` has none of them."""
    own_folders: tuple[Path, ...] = ()
    """Of the project's runs; what changes there is no agent's work."""
    max_attempts: int = RunLimits().attempts
    """At one step; a usage limit at the last one is a failure."""

    def look(self, here: Place) -> tuple[Step, str]:
        """Return the step at *here*, defaults filled in, and its position's name."""
        step = step_at(self.workflow, here)
        if self.definition is None:
            # Those of a definition were filled in when it was made.
            step = self.with_defaults(step)
        return step, position_at(self.workflow, here.step_index)

    def prepare(self, here: Place) -> Prepared:
        """Return the step at *here*, ready to start.

        Raises:
            ConfigurationError: its prompt or its agent can't be had; nothing was started.
            WorkTreeRefused: see `RunPlace.ready`.
        """
        step, position = self.look(here)
        router = self.router
        if router is not None and router.is_active:
            # It is asked behind the claim, so what it lacks has to be known before.
            self.agents.ready(self._router_step(router), "router")
        if router is None or router.needs_selection:
            is_routed = router is not None and router.enabled and router.mode is RouterMode.ONLY
            if is_routed:
                raise ConfigurationError(
                    "router_only needs a prompt",
                    where="router.prompt",
                    hint="name the router's prompt",
                )
            return self.prepare_step(step, position, here)
        if self.place is not None:
            self.place.ready()
        # The router chooses the prompt, so the workflow's own need not exist.
        agent, executor = self.agents.ready(step, position)
        step = without_comments(step, executor, self.comment_tools)
        return Prepared(step, position, here, agent, executor, prompt="")

    def prepare_step(self, step: Step, position: str, here: Place) -> Prepared:
        """Return *step*, defaults filled in, ready to start; see `prepare`."""
        if self.place is not None:
            self.place.ready()
        agent, executor = self.agents.ready(step, position)
        read, added = self.prompts.read, step.added_system_prompts
        return Prepared(
            step=without_comments(step, executor, self.comment_tools),
            position=position,
            place=here,
            agent=agent,
            executor=executor,
            prompt=self.prompts.read_for(step, executor),
            system_prompt=None if step.system_prompt is None else read(step.system_prompt),
            append_system_prompt="\n\n".join([read(name).strip() for name in added]) or None,
        )

    def perform(
        self,
        prepared: Prepared,
        attempt: Attempt,
        head: Head,
        budget: Allowance,
        *,
        cancellation: Cancellation,
        paid: list[Usage],
        compose: Compose | None = None,
        known: PriorAttempts = NO_PRIOR,
    ) -> Performed:
        """Make *attempt*; return how it ended. *paid* gets the agents' usage, also if it raises."""
        started, began_at = time.monotonic(), utc_milliseconds()
        log = self.logs.open(attempt)
        self.emit(AttemptStarted(attempt, log.path))
        listener = AttemptOutput(attempt, log, self.emit, paid)
        lock, is_final = self._lock(attempt), False
        kept = None if self.place is None else self.place.keep(attempt, known.is_shared, listener)
        look = None if prepared.step.expects != "change" else self._look(prepared, known)
        running = _Running(
            attempt, head, budget, listener, cancellation, lock, compose, paid, known, look, kept
        )
        try:
            outcome, final = self._routed(prepared, running)
        except Exception as error:  # noqa: BLE001 - `_refused` raises what is no failure
            is_final = isinstance(error, MissingValue)
            outcome, final = self._refused(error, log, running), prepared
        finally:
            if lock is not None:
                lock.close()
        outcome = self._finished(outcome, final, running, round(time.monotonic() - started, 6))
        note = noted(final, outcome, listener) if final.step.complete_when else final.note
        made = outcome, final.step, final.place, final.agent
        performed = Performed(
            *made, log=str(log.path), is_final=is_final, began_at=began_at, note=note
        )
        performed = judged(self.workflow, performed, is_command=final.executor.kind == "command")
        if self.hooks is not None:
            performed = self._decided(performed, self.hooks, running)
        if kept is not None and performed.has_failed and not cancellation.is_set():
            kept.set_aside()
        log.close(performed.outcome)
        said = performed.verdict and verdict_words(self.workflow, performed, head)
        self.emit(AttemptEnded(attempt, performed.outcome, said or ""))
        return performed

    def _lock(self, attempt: Attempt) -> AttemptLock | None:
        """Return what the processes of *attempt* hold; nothing is opened before the first."""
        if attempt.lock_path is None:
            return None
        return AttemptLock(attempt.lock_path, lambda text: self.emit(Waiting(text)))

    def _refused(self, error: Exception, log: StepLog, running: _Running) -> Outcome:
        """Return the failure that *error* is.

        Raises:
            MachineBusy: it is none; this machine only lacks something now.
            Exception: *error* itself, an executor's bug, a disk that fails or a folder of the
                run: no fault of the step's, and the claim still has to end in a record.
        """
        found = out_of_resources(error) or failed_disk(error)
        if found is not None or isinstance(error, UnsafeFolder):
            outcome = Outcome(status=OutcomeStatus.INTERRUPTED, error=str(found or error))
            self._close(log, running.attempt, outcome)
            if found is None or found is error:
                raise error
            raise found from error
        if not isinstance(error, SequencerError):
            outcome = Outcome(status=OutcomeStatus.FAILED, error=repr(error))
            if running.kept is not None:
                running.kept.set_aside()
            self._close(log, running.attempt, outcome)
            raise error
        self._write_traceback(error, running.listener)
        # Chosen by the router or a hook, so that nobody could look before the claim.
        is_away = isinstance(error, AgentMissing)
        status = OutcomeStatus.UNAVAILABLE if is_away else OutcomeStatus.FAILED
        return Outcome(status=status, error=str(error), usage=total(running.paid))

    def _decided(self, performed: Performed, hooks: Hooks, running: _Running) -> Performed:
        """Return *performed* with what the project's hook says about the way on."""
        outcome = performed.outcome
        if outcome.is_put_off or outcome.status is OutcomeStatus.INTERRUPTED:
            return performed
        attempt = running.attempt
        context = self.context(performed.step, attempt.step_index, attempt.attempt, running.head)
        try:
            decision = hooks.transition(context, performed.outcome)
            if decision is not None:
                decision = replace(decision, reason=self.redact(decision.reason))
            return replace(performed, decision=decision)
        except HookFailed as error:
            self._write_traceback(error, running.listener)
            message = self.redact(str(error))
            outcome = performed.outcome.replace(status=OutcomeStatus.FAILED, error=message)
            return replace(performed, outcome=outcome, verdict=None)

    def context(self, step: Step, step_index: int, attempt: int, head: Head) -> HookContext:
        """Return what a hook may know about *step*, tried for the *attempt*-th time."""
        return HookContext(
            run_id=head.run_id,
            run_name=head.run_name,
            workflow=self.workflow.name,
            project=self.project,
            step=step,
            step_index=step_index,
            attempt=attempt,
            round=round_of(head),
            request=self.definition.request if self.definition else None,
            steps=self.workflow.names,
            moves=self.workflow.moves,
        )

    def tell_completed(self, step_index: int, head: Head) -> None:
        """Tell who has a part in it that the run of *head* is complete since *step_index*.

        The run stays complete whatever they do; a hook that raises is a notice.

        Raises:
            WorkTreeRefused: see `RunPlace.end`.
        """
        try:
            if self.place is not None and head.status is Status.COMPLETE:
                self.place.end(head)
        finally:
            self._tell_hooks(step_index, head)

    def _tell_hooks(self, step_index: int, head: Head) -> None:
        if self.hooks is None:
            return
        step = last_step(self.workflow, head, step_index)
        try:
            self.hooks.completed(self.context(step, step_index, 1, head), head)
        except HookFailed as error:
            self.emit(Noticed(self.redact(str(error))))

    def _write_traceback(self, error: SequencerError, listener: Listener) -> None:
        if isinstance(error, HookFailed) and error.traceback:
            listener.write(self.redact(error.traceback).encode("utf-8", "replace"), Piece.ERROR)

    def _look(self, prepared: Prepared, known: PriorAttempts) -> ChangeWatch | None:
        """Return what looks at the files, and has by now; None: a command needs none."""
        if prepared.executor.kind in OWN_WORD:
            return None
        look = ChangeWatch(self.cwd, self.own_folders, known)
        look.begin()
        return look

    @property
    def cwd(self) -> Path:
        """Return the folder in which agents work."""
        return self.project if self.place is None else self.place.cwd

    def _finished(
        self, outcome: Outcome, prepared: Prepared, running: _Running, seconds: float
    ) -> Outcome:
        outcome = bounded(outcome, running.attempt.attempt, self.max_attempts)
        if outcome.evidence is not None and prepared.executor.kind not in OWN_WORD:
            look = running.look or ChangeWatch(
                self.cwd, self.own_folders, running.known, began=time.time() - seconds
            )
            outcome = judge(outcome, prepared.step, look, running.listener.notice)
        if prepared.step.max_cost_usd is not None:
            self._tell_overspent(prepared.step, outcome.usage, running.listener)
        completed = checked(prepared.step, apply_completion(prepared.step, outcome))
        usage = completed.usage.replace(seconds=seconds)
        return without_secrets(
            completed, self.redact, usage=usage, prompt=prepared.step.prompt_name
        )

    def _tell_overspent(self, step: Step, usage: Usage, listener: AttemptOutput) -> None:
        """Say so if an attempt has spent more than it may: its client stops too late, or never."""
        if (over := overspent(step, usage)) is not None:
            listener.notice(f"the attempt has spent {over}")
            self.emit(Noticed(f"step {step.name!r} has spent {over}"))

    def _close(self, log: StepLog, attempt: Attempt, outcome: Outcome) -> None:
        log.close(outcome)
        self.emit(AttemptEnded(attempt, outcome))

    def _routed(self, prepared: Prepared, running: _Running) -> tuple[Outcome, Prepared]:
        router = self.router
        if router is None or not router.is_active:
            composed = self._composed(prepared, running)
            return self._or_instead(self._run(composed, running), composed, running)
        asked = self._asked_of_router(router, running)
        answer = self._ask_router(asked, router, running)
        if not answer.is_accepted:
            # The step's own agent was not started, so nothing of this is its.
            return answer, replace(prepared, agent=asked.agent)
        chosen = self._chosen(prepared, answer, router)
        running.listener.write(f"[router] {route_words(prepared, chosen)}\n".encode(), Piece.NOTICE)
        chosen = self._composed(chosen, running)
        running = replace(running, budget=running.budget.after(answer.usage))
        outcome, chosen = self._or_instead(self._run(chosen, running), chosen, running)
        return outcome.replace(usage=outcome.usage.plus(answer.usage)), chosen

    def _chosen(self, prepared: Prepared, answer: Outcome, router: RouterSettings) -> Prepared:
        """Return *prepared* with the prompt that the router's *answer* names.

        Raises:
            RouterRefused: it names nothing that may run.
        """
        step, note = prepared.step, None
        if router.may_be_silent and not answer.output.strip():
            note = answer.error or "the router gave no answer"
        else:
            prompt = parse_answer(answer.output, allowed_prompts(self.workflow, router))
            if prompt != step.prompt_name:
                step = step.replace(prompt=prompt, text=None)
        if step is prepared.step and router.needs_selection:
            return replace(prepared, note=note)
        return replace(self.prepare_step(step, prepared.position, prepared.place), note=note)

    def _composed(self, prepared: Prepared, running: _Running) -> Prepared:
        """Return *prepared* with the texts that the agent is to get.

        Raises:
            MissingValue: a template names something that is not there.
            HookFailed: a hook raised.
        """
        if self.hooks is not None:
            prepared = self._hooked(prepared, self.hooks, running)
        compose = running.compose
        if compose is not None:
            prepared = replace(prepared, prompt=compose(prepared.prompt))
        notes = running.known.notes
        if running.kept is not None and prepared.prompt:
            notes = (*notes, *running.kept.notes)
        if notes:
            whole = "\n\n".join((prepared.prompt.rstrip(), *notes))
            prepared = replace(prepared, prompt=f"{whole}\n")
        return prepared

    def _hooked(self, prepared: Prepared, hooks: Hooks, running: _Running) -> Prepared:
        """Return *prepared* as the project's hooks want it; templates are filled in later.

        Raises:
            HookFailed: a hook raised.
        """
        number = running.attempt.attempt
        context = self.context(prepared.step, prepared.step_index, number, running.head)
        text = hooks.prompt(context, prepared.prompt)
        added = hooks.system_prompt(context, prepared.append_system_prompt)
        model = hooks.model(context, prepared.step.model)
        if model != prepared.step.model:
            # Chosen anew, so that an agent that has no models refuses it.
            step = prepared.step.replace(model=model)
            agent, executor = self.agents.ready(step, prepared.position)
            prepared = replace(prepared, step=step, agent=agent, executor=executor)
        return replace(prepared, prompt=text, append_system_prompt=added)

    def _router_step(self, router: RouterSettings) -> Step:
        """Return the question to the router as a step; its times are its own.

        What steps may take, and the file that ends them, say nothing about one line.
        """
        step = self.with_defaults(Step(name="router", prompt=router.prompt))
        own = {"timeout_s": router.timeout_s, "idle_timeout_s": None, "complete_when": None}
        return step.replace(**own, continue_session=False, expects=None, stagnation=None)

    def _asked_of_router(self, router: RouterSettings, running: _Running) -> Prepared:
        step, step_index = self._router_step(router), running.attempt.step_index
        here = Place(step_index, "router", step.prompt_name)
        asked = self.prepare_step(step, "router", here)
        allowed = allowed_prompts(self.workflow, router)
        state = router_input(running.head, describe(self.workflow, step_index), allowed)
        return replace(asked, prompt=f"{asked.prompt.rstrip()}\n\n{state}")

    def _ask_router(self, asked: Prepared, router: RouterSettings, running: _Running) -> Outcome:
        """Return the router's answer; one that is late is none, where it may give none."""
        started = time.monotonic()
        with another(running.attempt.result_path) as path:
            attempt = replace(running.attempt, result_path=path)
            outcome = judge_turn(self._run(asked, replace(running, attempt=attempt), "router"))
        if outcome.is_put_off:
            return outcome.replace(
                error=f"the router: {outcome.error or 'its usage limit is reached'}"
            )
        if outcome.status is not OutcomeStatus.FAILED:
            return outcome
        # An exit code is the router's, and no verdict of a step that judges by its own.
        failed = outcome.replace(error=f"the router failed: {outcome.error}", exit_code=None)
        if time.monotonic() - started < router.timeout_s:
            return failed
        late = f"the router did not answer within {router.timeout_s:g} s (router.timeout_s)"
        if not router.may_be_silent:
            return failed.replace(error=late)
        return failed.replace(status=OutcomeStatus.OK, output="", error=late)

    def _or_instead(
        self, outcome: Outcome, prepared: Prepared, running: _Running
    ) -> tuple[Outcome, Prepared]:
        """Return how *prepared* ended; while its agent can't be had, others stand in for it.

        Where none of them can be had either, the outcome is of the one that can be soonest.
        """
        ended = [(outcome, prepared)]
        unfit = self._unfit(prepared, running) if outcome.status in PUT_OFF else None
        while (last := ended[-1][0]).status in PUT_OFF:
            now = ended[-1][1]
            other = self.agents.instead(now.step, now.agent, last.not_before)
            if other is None:
                soonest, of = min(ended, key=lambda each: each[0].not_before or "")
                note = "; ".join(filter(None, (of.note, unfit))) or None
                return soonest.replace(usage=last.usage), replace(of, note=note)
            why = (last.error or "its usage limit is reached").partition("\n")[0]
            note = self.redact(f"{other[0]} instead of {now.agent}: {why}")
            running.listener.write(f"[fallback] {note}\n".encode(), Piece.NOTICE)
            step = without_comments(now.step, other[1], self.comment_tools)
            now = replace(now, step=step, agent=other[0], executor=other[1], note=note)
            with another(running.attempt.result_path) as path:
                attempt = replace(running.attempt, result_path=path)
                again = replace(running, attempt=attempt, budget=running.budget.after(last.usage))
                outcome = self._run(now, again)
            ended.append((outcome.replace(usage=outcome.usage.plus(last.usage)), now))
        return ended[-1]

    def _unfit(self, prepared: Prepared, running: _Running) -> str | None:
        """Return who is to stand in for the agent of *prepared* and can't, and tell the log."""
        unfit = self.agents.unfit(prepared.step, prepared.agent)
        told = [self.redact(f"{name} can't stand in: {why.message}") for name, why in unfit]
        for text in told:
            running.listener.write(f"[fallback] {text}\n".encode(), Piece.NOTICE)
        return "; ".join(told) or None

    def _run(self, prepared: Prepared, running: _Running, to: str = "agent") -> Outcome:
        attempt, budget = running.attempt, running.budget
        step, prompt, added = as_asked(prepared)
        session = None
        if step.continue_session and running.head.session is not None:
            session = continued(running.head, prepared, running.listener)
        can_cap = "max_cost_usd" in prepared.executor.supported_fields | EVERY_EXECUTOR
        cwd = self.project if self.place is None else self.place.cwd
        if self.place is not None or self.tasks is not None:
            # A work tree, where an earlier attempt may have left files that the client reads.
            self.agents.ensure_folder(prepared.agent, cwd)
        request = StepRequest(
            identity=attempt.identity(),
            step=step,
            prompt=prompt,
            cwd=cwd,
            result_path=attempt.result_path,
            system_prompt=prepared.system_prompt,
            append_system_prompt=added,
            resume_session=None if session is None else session.id,
            timeout_s=least(step.timeout_s, budget.timeout_s),
            idle_timeout_s=step.idle_timeout_s,
            is_node=self.workflow.counts_ms,
            lock=running.lock,
            label=forward_of(self.workflow, step) if self.workflow.nodes else None,
            decides=to == "router" or decides(self.workflow, step, prepared.place.stage),
            max_cost_usd=least(step.max_cost_usd, budget.cost_usd) if can_cap else None,
        )
        listener, executor = running.listener, prepared.executor
        listener.sent(request, to)
        listener.told = None
        try:
            outcome = executor.perform(request, listener, running.cancellation)
        except BaseException as error:
            running.paid.extend([] if listener.told is None else [listener.told])
            if (fault := extensions.fault_of(error, extensions.EXECUTORS, executor.kind)) is None:
                raise
            raise fault from error
        match outcome:  # costs no call, as isinstance does
            case Outcome():
                running.paid.append(outcome.usage)
            case _:
                raise extensions.wrong_type(Outcome, outcome, extensions.EXECUTORS, executor.kind)
        if outcome.is_over_budget and not self.workflow.nodes:
            outcome = without_budget(outcome, step, budget.cost_usd)
        if session is None:
            return outcome.replace(session_fault=None) if outcome.session_fault else outcome
        if outcome.session_fault is SessionFault.LOST and not running.cancellation.is_set():
            return self._start_over(prepared, running, outcome, to)
        return outcome.replace(session_steps=session.steps + 1)

    def _start_over(self, prepared: Prepared, running: _Running, lost: Outcome, to: str) -> Outcome:
        """Return how the same try ends in a new conversation; *lost* says what became of the old.

        Nothing has failed by that: it says nothing about the step.
        """
        why = self.redact((lost.error or "no reason given").partition("\n")[0])
        running.listener.notice(f"the conversation can't be continued, a new one starts: {why}")
        with another(running.attempt.result_path) as path:
            again = replace(
                running,
                attempt=replace(running.attempt, result_path=path),
                head=running.head.replace(session=None),
                budget=running.budget.rest(prepared.step, lost.usage),
            )
            outcome = self._run(prepared, again, to)
        usage = outcome.usage.plus(lost.usage)
        return outcome.replace(usage=usage, session_fault=SessionFault.LOST)
