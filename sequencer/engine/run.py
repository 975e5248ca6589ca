"""`Run`: reads one run, works on it and changes it, for programs and for the command line."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from msgspec.structs import replace

from sequencer.engine.async_mode import run_async_mode
from sequencer.engine.dispatch import Dispatcher, find_dispatcher
from sequencer.engine.events import Emit, NoticeGiven, ignore
from sequencer.engine.flow_source import find_flow_source
from sequencer.engine.inline import InlineLoop
from sequencer.engine.invocation_budget import Mode, Summary
from sequencer.engine.kinds import make_readable_kind
from sequencer.engine.loop import WorkLoop
from sequencer.engine.performing import Performer
from sequencer.engine.run_commands import RunCommands
from sequencer.engine.sequence_worker import SequenceWorker
from sequencer.engine.turn import OpenTurn, claim_turn, perform_by_caller
from sequencer.engine.worker import NewestLimits, Worker
from sequencer.errors import ConfigurationError, SequencerError, UsageRefused
from sequencer.history.facts import find_end_index
from sequencer.model.commands import (
    Approve,
    CommandResult,
    Pause,
    Reject,
    RunCommand,
    Stop,
    StopNow,
)
from sequencer.model.head import Head, Status
from sequencer.model.kind import Kind, Readiness, ReadinessKind, describe_expired_gate
from sequencer.model.limits import InvocationLimits, RunLimits
from sequencer.model.request import Definition
from sequencer.model.sequence.gates import continue_command
from sequencer.model.sequence.order import Description
from sequencer.model.step import Step
from sequencer.model.store_move import ensure_here
from sequencer.model.workflow import Workflow, ensure_definition
from sequencer.store.protocol import Store, View

if TYPE_CHECKING:
    from sequencer.engine.capacity import CapacityRule
    from sequencer.engine.graph_changes import GraphChanges
    from sequencer.model.graph.source import FlowSource


class Resolution(Protocol):
    """The parts of a run, resolved for one head."""

    @property
    def definition(self) -> Definition | None:
        """Return the definition that the run was made from; None: it has no request."""
        ...

    @property
    def source(self) -> FlowSource | None:
        """Return the source that a graph's run started with; None: it is not a graph."""
        ...

    @property
    def workflow(self) -> Workflow:
        """Return the workflow of the run, or the one that it would start with."""
        ...

    @property
    def capacity_rule(self) -> CapacityRule | None:
        """Return the additional limits on the nodes of its graph; None: there are none."""
        ...

    @property
    def is_current(self) -> bool:
        """Return whether the chart of the workflow is unchanged since it was read."""
        ...

    def performer(self, emit: Emit) -> Performer:
        """Return the performer of its steps, which emits events to *emit*."""
        ...

    def may_agents_use(self, verb: str) -> bool:
        """Return whether agents may use *verb*, according to the trusted settings."""
        ...


class Run:
    """One run of a project, whether it has started or not; `open_run` returns it."""

    def __init__(
        self,
        name: str | None,
        store: Store,
        limits: RunLimits,
        resolve: Callable[[Head | None], Resolution],
        live_limits: Callable[[], NewestLimits] | None = None,
        *,
        redact: Callable[[str], str] = str,
    ) -> None:
        """Combine the parts; `Project.run` makes them.

        Without *live_limits*, *limits* never change. *redact* removes secrets from the texts that
        people write.
        """
        self.name = name
        self.store = store
        self.limits = limits
        self._resolve, self._live_limits = resolve, live_limits
        self._redact = redact
        self._resolved: tuple[object, Resolution] | None = None

    @cached_property
    def dispatch(self) -> Dispatcher | None:
        """Return its store if the store hands out the attempts itself; otherwise None."""
        return find_dispatcher(self.store)

    def __repr__(self) -> str:
        """Return its name and its store, without reading a file."""
        return f"<Run {self.name or 'default'!r} in {self.store!r}>"

    def _resolve_at(self, head: Head | None) -> Resolution:
        """Return the parts of the run with *head*, resolved once.

        It is resolved again only if another process starts the run over or adopts another
        definition, or if you edit the chart.
        """
        key = None if head is None else _identity(head)
        entry = self._resolved
        if entry is None or entry[0] != key or not entry[1].is_current:
            self._resolved = entry = key, self._resolve(head)
        return entry[1]

    # --- reading -------------------------------------------------------------------

    @property
    def head(self) -> Head | None:
        """Return the newest accepted head; None before the run starts."""
        return self.store.view().head

    def view(self) -> View:
        """Return the head, and the notices that came up while reading it."""
        return self.store.view()

    def history(self) -> Iterator[dict[str, Any]]:
        """Yield the accepted facts, oldest first."""
        return self.store.history()

    @property
    def definition(self) -> Definition | None:
        """Return the definition that the run was made from; None: it was not made from a request.

        Raises:
            CorruptState: its file can't be read.
        """
        resolution = self._resolve(None) if self._resolved is None else self._resolved[1]
        return resolution.definition

    @property
    def workflow(self) -> Workflow:
        """Return the workflow of the run, or the one that it would start with.

        Raises:
            DefinitionChanged: the configuration differs from what the run started with.
        """
        return self._resolve_current().workflow

    def _resolve_current(self) -> Resolution:
        head = self.head
        resolution = self._resolve_at(head)
        if head is not None:
            ensure_definition(head, resolution.workflow)
        return resolution

    def workflow_for(self, head: Head | None) -> Workflow:
        """Return the configured workflow of the run of *head*, even if it started with another."""
        return self._resolve_at(head).workflow

    def next(self, count: int = 1, step_index: int | None = None) -> list[Description]:
        """Return the next steps, at most *count*; changes nothing.

        If the definition has changed, these are the steps after an `adopt`.

        Raises:
            PackageFailed: the kind comes from a package, and returned something else.
        """
        head = self.head
        if step_index is None and head is not None and head.status is Status.COMPLETE:
            return []
        return self._build_commands(self._resolve_at(head)).kind.list_upcoming(
            head, count, step_index
        )

    def readiness(self) -> Readiness | None:
        """Return what may happen next; None before the run starts."""
        head = self.head
        return None if head is None else self.readiness_at(head, self.workflow)

    def readiness_at(self, head: Head, workflow: Workflow) -> Readiness:
        """Return what may happen next at *head*; a gate or question may have expired.

        Raises: see `flow`.
        """
        now = datetime.now(UTC)
        kind = make_readable_kind(self.store, workflow)
        state = kind.check_readiness(head, self.limits, at=now)
        if state.kind not in (ReadinessKind.PERSON, ReadinessKind.PAUSED, ReadinessKind.STOPPED):
            return state
        if not (expired_text := self._describe_expired(head, now)):
            return state
        if head.is_on_hold:
            return replace(state, message=f"{state.message}; {expired_text}")
        message = (
            f"{expired_text}; {continue_command(head)} goes the way that the flow has for that"
        )
        return replace(state, kind=ReadinessKind.EXPIRED, message=message)

    def _describe_expired(self, head: Head, now: datetime) -> str:
        """Return a text about the gate or the questions that have expired; empty: none."""
        if head.gate is not None and head.gate.is_open:
            return describe_expired_gate(head.gate, now)
        questions = self.flow.questions(head) if head.asks else []
        return "; ".join(filter(None, (question.describe_expiry(now) for question in questions)))

    @property
    def kind(self) -> Kind:
        """Return the kind of the run, which decides what may happen in it.

        Raises: see `workflow`.
        """
        return self._build_commands(self._resolve_current()).kind

    # --- graphs --------------------------------------------------------------------

    @property
    def flow(self) -> GraphChanges:
        """Return the `GraphChanges` of a graph's run, which read its nodes and questions.

        Raises:
            UsageRefused: the run has no graph.
            DefinitionChanged: see `workflow`.
        """
        return self._build_commands(self._resolve_current()).nodes

    def describe_blockers(self, head: Head) -> list[str]:
        """Return a line for each budget or failure that keeps its tasks from starting."""
        if not self.workflow.tasks or (rule := self._resolve_at(head).capacity_rule) is None:
            return []
        return rule.describe_reached(self.flow.marking(head)[1])

    # --- commands ------------------------------------------------------------------

    @property
    def commands(self) -> RunCommands:
        """Return the commands for people: stamp, skip, rewind, stop and the rest."""
        return self._build_commands(self._resolve_at(self.head))

    def _build_commands(self, resolution: Resolution) -> RunCommands:
        workflow, source = resolution.workflow, resolution.source
        return RunCommands(
            self.store,
            workflow,
            self.name,
            source=source,
            agents_may=resolution.may_agents_use,
            redact=self._redact,
        )

    def do(self, command: RunCommand, *, by: str = "", on_event: Emit = ignore) -> CommandResult:
        """Do *command* and return its result; *by* is the person who decides.

        If a decision at a gate ends the run, the hooks are called; the decision counts even if
        they fail.

        Raises: see `RunCommands.do`.
        """
        try:
            commands = self.commands
            _ = commands.kind
        except ConfigurationError:
            # A person must be able to stop the run even if its workflow is missing.
            if not isinstance(command, (Stop, StopNow, Pause)):
                raise
            commands = self._commands_as_started()
        result = commands.do(command, by)
        end_index = find_end_index(result.facts)
        if end_index is not None and isinstance(command, (Approve, Reject)):
            try:
                performer = self._resolve_current().performer(on_event)
                performer.report_completed(end_index, result.head)
            except SequencerError as error:
                on_event(NoticeGiven(f"the run is complete, but: {error.in_one_line}"))
        return result

    def _commands_as_started(self) -> RunCommands:
        """Return the commands with the workflow that the run itself records, to stop it.

        Raises:
            CorruptState: its file can't be read.
            ConfigurationError: it has not started.
        """
        head, source = self.head, find_flow_source(self.store)
        if source is not None:
            workflow = source.find_workflow("" if head is None else head.workflow_digest)
        elif head is not None:
            # To stop a run, only its present step is needed.
            workflow = Workflow(head.workflow_name, (Step(name=head.expected_step),))
        else:
            workflow = self._resolve_current().workflow
        return RunCommands(self.store, workflow, self.name, source=source, redact=self._redact)

    # --- working -------------------------------------------------------------------

    def work(
        self,
        mode: Mode = Mode.COMBINED,
        limits: InvocationLimits | None = None,
        *,
        positions: Collection[str] = (),
        on_event: Emit = ignore,
        on_ready: Callable[[Callable[[], None]], None] | None = None,
        step_index: int = 0,
        places: int = 4,
        is_detached: bool = False,
    ) -> Summary:
        """Work on the run in *mode* until a limit, an end or an error.

        *positions* are names, or numbers in the cycle from 0; none means every position.
        *on_ready* gets a function that asks this call to end, for a signal handler. *on_event*
        gets all events, objects of `sequencer.events`. *step_index* is where mode async starts.
        *places*, for graphs, is how many agents this process runs at once. If it *is_detached*,
        the project's workers do the work, and this call returns immediately.

        Raises: see `WorkLoop.work` and `RunCommands.begin`; each class of error has an exit code.
        """
        self._ensure_others_work(mode, is_detached=is_detached)
        head = None if mode is Mode.ASYNC else self.head
        resolution = self._resolve_at(head)
        commands = self._build_commands(resolution)
        commands.ensure_may_begin(head)
        commands.kind.ensure_supported(mode)
        names = commands.kind.resolve_positions(positions)
        if limits is None:
            limits = InvocationLimits(max_steps=resolution.workflow.default_max_steps)
        performer = resolution.performer(on_event)
        if mode is Mode.ASYNC:
            return run_async_mode(performer, limits, step_index, self.store.state_path, on_ready)
        worker, loop = self._make_worker_and_loop(commands.kind, performer, names, places)
        worker.live_limits, dispatcher = self._live_limits, self.dispatch
        try:
            worker.ensure_startable(head)
            if dispatcher is not None:
                dispatcher.ensure_served(worker)
            ensure_here(head := commands.begin())
            # Another program's state has no run before its first transition.
            head = head if head.revision else self.head or head
            if on_ready is not None:
                on_ready(worker.interrupt)
            if dispatcher is not None:
                return dispatcher.work(worker, mode, limits, head, places, is_detached=is_detached)
            return loop(worker, mode, limits, head).work()
        finally:
            worker.close()

    def _ensure_others_work(self, mode: Mode, *, is_detached: bool) -> None:
        if is_detached and (mode is Mode.ASYNC or self.dispatch is None):
            hint = "leave it out; only runs on Temporal ('store: {kind: temporal}') have workers"
            message = "this run has no workers to do its steps"
            raise UsageRefused(message, where="--detach", hint=hint)

    def list_attempt_processes(self) -> Mapping[int, str] | None:
        """Return the processes that run its attempts, by token; None: the claims have them."""
        return None if self.dispatch is None else self.dispatch.list_attempt_processes()

    def find_worker_location(self) -> str:
        """Return where the workers that run its attempts are; empty: on this machine too."""
        return "" if self.dispatch is None else self.dispatch.find_worker_location()

    def list_detached_orders(self) -> list[dict[str, Any]]:
        """Return its detached work orders, which no process waits for."""
        return [] if self.dispatch is None else self.dispatch.list_detached_orders()

    def worker(self, on_event: Emit = ignore) -> Worker:
        """Return a worker that runs attempts of the run while a server decides about it.

        Raises: see `workflow`.
        """
        resolution = self._resolve_current()
        kind, performer = self._build_commands(resolution).kind, resolution.performer(on_event)
        return self._make_worker_and_loop(kind, performer, (), 1)[0]

    def _make_worker_and_loop(
        self, kind: Kind, performer: Performer, positions: Collection[str], places: int
    ) -> tuple[Worker, Callable[..., WorkLoop[Any, Any, Any]]]:
        """Return the worker and the loop for a run of *kind*."""
        if kind.has_one_place:
            return SequenceWorker(self.store, performer, self.limits, positions), InlineLoop
        from sequencer.engine.threads import make_worker_and_loop  # noqa: PLC0415 - graphs only

        return make_worker_and_loop(self.store, performer, self.limits, places)

    @contextlib.contextmanager
    def turn(self, position: str | None = None, *, wait: bool = False) -> Iterator[OpenTurn]:
        """Claim the next step and let the caller perform it.

        While the block runs, the claim is kept alive. The end of the block accepts the step. An
        exception records a failure and propagates. With *wait*, this call sleeps until the next
        step is ready and at *position*; without it, a step that is not ready is an error.

        Raises:
            ClaimHeld: another process runs the step, or it is at another position.
            TransitionRefused: nothing can start (complete, stopped, a date, a limit).
            UsageRefused: the run has a graph.
            StaleClaim: the claim was lost while the block ran; its output was kept.
            DecisionRefused: an agent asks, which could make up the result of the step.
        """
        resolution = self._resolve_at(self.head)
        commands = self._build_commands(resolution)
        commands.ensure_may_decide("skip", "performing a step")
        commands.kind.ensure_supported("turn")
        if self.dispatch is not None:
            hint = "use 'run.work' or 'sequencer run'"
            raise UsageRefused("the run's store hands out its attempts itself", hint=hint)
        # Before the run starts: a project that is not trusted must leave no trace.
        performer = resolution.performer(ignore)
        names = commands.kind.resolve_positions([position] if position else ())
        head = commands.begin()
        worker = SequenceWorker(self.store, performer, self.limits, names)
        try:
            yield from perform_by_caller(worker, claim_turn(worker, head, wait=wait))
        finally:
            worker.close()


def _identity(head: Head) -> tuple[object, ...]:
    """Return the parts of *head* that say which workflow its run has."""
    return (
        head.run_id,
        head.workflow_name,
        head.workflow_digest,
        head.params,
        head.has_definition,
    )
