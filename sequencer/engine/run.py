"""One run, for programs and for the command line: read it, work on it, change it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from sequencer.engine.attempt import Prepared, Running
from sequencer.engine.by_hand import Control, fresh_head
from sequencer.engine.carrier import NOTHING_CARRIED
from sequencer.engine.dispatch import Dispatching, dispatch_of
from sequencer.engine.events import Emit, Noticed, ignore
from sequencer.engine.loop import LONGEST_SLEEP_S, EngineLoop, LineLoop
from sequencer.engine.patience import followed
from sequencer.engine.performing import Performer
from sequencer.engine.stint import Mode, Summary
from sequencer.engine.worker import LineWorker, NewestLimits, Worker
from sequencer.errors import ClaimHeld, SequencerError, TransitionRefused, UsageRefused
from sequencer.executors.cancellation import Cancellation
from sequencer.executors.protocol import StepRequest
from sequencer.model import transitions
from sequencer.model.head import Head, Status
from sequencer.model.kind import Kind, Readiness, Standing, standing
from sequencer.model.limits import InvocationLimits, RunLimits, parse_time
from sequencer.model.line.order import Description, place
from sequencer.model.moving import ensure_here
from sequencer.model.outcome import Outcome, OutcomeStatus
from sequencer.model.request import Definition
from sequencer.model.workflow import Workflow, ensure_definition
from sequencer.store.file import FileStore
from sequencer.store.protocol import Store, View

if TYPE_CHECKING:
    from sequencer.engine.capacity import CapacityRule
    from sequencer.engine.markings import NetChanges
    from sequencer.model.net.source import FlowSource


class Resolution(Protocol):
    """What a run consists of, resolved for one head."""

    @property
    def definition(self) -> Definition | None:
        """Return what the run was made from; None for one that was not made from a request."""
        ...

    @property
    def source(self) -> FlowSource | None:
        """Return what a graph's run was started with; None for another run."""
        ...

    @property
    def workflow(self) -> Workflow:
        """Return the workflow of the run, or the one that it would start with."""
        ...

    @property
    def capacity(self) -> CapacityRule | None:
        """Return what limits the nodes of its graph besides; None: nothing does."""
        ...

    @property
    def is_current(self) -> bool:
        """Return whether the chart of the workflow is unchanged since it was read."""
        ...

    def performer(self, emit: Emit) -> Performer:
        """Return what performs its steps."""
        ...

    def agents_may(self, verb: str) -> bool:
        """Return whether agents may use *verb* too, as the project was trusted."""
        ...


class Run:
    """A run found by `open_run`, whether it has started or not."""

    def __init__(
        self,
        name: str | None,
        store: Store,
        limits: RunLimits,
        resolve: Callable[[Head | None], Resolution],
        live_limits: Callable[[], NewestLimits] | None = None,
    ) -> None:
        """Join the parts; `Project.run` makes them. Without *live_limits*, *limits* stay."""
        self.name = name
        self.store = store
        self.limits = limits
        self._resolve, self._live_limits = resolve, live_limits
        self._resolved: tuple[object, Resolution] | None = None

    @cached_property
    def dispatch(self) -> Dispatching | None:
        """Return what hands out its attempts, if its store does that itself."""
        return dispatch_of(self.store)

    def __repr__(self) -> str:
        """Return its name and where it is kept; no file is read for that."""
        return f"<Run {self.name or 'default'!r} in {self.store!r}>"

    def _at(self, head: Head | None) -> Resolution:
        """Return what the run with *head* consists of, resolved once.

        It is resolved again only if another process starts the run over or adopts another
        definition, or if you edit the chart.
        """
        key = None if head is None else _identity(head)
        kept = self._resolved
        if kept is None or kept[0] != key or not kept[1].is_current:
            self._resolved = kept = key, self._resolve(head)
        return kept[1]

    # --- looking -------------------------------------------------------------------

    @property
    def head(self) -> Head | None:
        """Return the newest accepted head; None before the run starts."""
        return self.store.view().head

    def view(self) -> View:
        """Return the head and what was noticed while reading it."""
        return self.store.view()

    def history(self) -> Iterator[dict[str, Any]]:
        """Yield the accepted facts, oldest first."""
        return self.store.history()

    @property
    def definition(self) -> Definition | None:
        """Return what the run was made from; None for one that was not made from a request.

        Raises:
            CorruptState: its file can't be read.
        """
        resolved = self._resolve(None) if self._resolved is None else self._resolved[1]
        return resolved.definition

    @property
    def workflow(self) -> Workflow:
        """Return the workflow of the run, or the one that it would start with.

        Raises:
            DefinitionChanged: the configuration differs from what the run started with.
        """
        return self._current().workflow

    def _current(self) -> Resolution:
        head = self.head
        resolved = self._at(head)
        if head is not None:
            ensure_definition(head, resolved.workflow)
        return resolved

    def workflow_for(self, head: Head | None) -> Workflow:
        """Return the configured workflow of the run of *head*, even if it started with another."""
        return self._at(head).workflow

    def next(self, count: int = 1, step_index: int | None = None) -> list[Description]:
        """Return the next steps, at most *count*; changes nothing.

        If the definition has changed, these are the steps after an `adopt`.
        """
        head = self.head
        if step_index is None and head is not None and head.status is Status.COMPLETE:
            return []
        return self._control_of(self._at(head)).kind.upcoming(head, count, step_index)

    def standing(self) -> Standing | None:
        """Return what may happen next; None before the run starts."""
        head = self.head
        if head is None:
            return None
        return standing(head, self.workflow, self.limits, datetime.now(UTC))

    @property
    def kind(self) -> Kind:
        """Return what decides about the run and says what may happen in it.

        Raises: see `workflow`.
        """
        return self._control_of(self._current()).kind

    # --- graphs --------------------------------------------------------------------

    @property
    def flow(self) -> NetChanges:
        """Return what reads the nodes of a graph's run, and answers their questions.

        Raises:
            UsageRefused: the run has no graph.
            DefinitionChanged: see `workflow`.
        """
        return self._control_of(self._current()).nodes

    def stopped_by(self, head: Head) -> list[str]:
        """Return which budgets or failures keep its tasks from starting."""
        if not self.workflow.tasks or (rule := self._at(head).capacity) is None:
            return []
        return rule.reasons(self.flow.marking(head)[1])

    # --- changing by hand ----------------------------------------------------------

    @property
    def control(self) -> Control:
        """Return the changes that a person makes: stamp, skip, rewind, stop and the rest."""
        return self._control_of(self._at(self.head))

    def _control_of(self, resolved: Resolution) -> Control:
        workflow, source = resolved.workflow, resolved.source
        return Control(self.store, workflow, self.name, source, resolved.agents_may)

    def approve(
        self,
        note: str | None = None,
        *,
        by: str,
        token: int | None = None,
        on_event: Emit = ignore,
    ) -> Head:
        """Let the run continue after its gate; *token* belongs to the gate that was read."""
        return self._decided(self.control.approve(note, by=by, token=token), on_event)

    def reject(
        self,
        note: str | None = None,
        *,
        by: str,
        token: int | None = None,
        on_event: Emit = ignore,
    ) -> Head:
        """End the run at its gate; see `approve`."""
        return self._decided(self.control.reject(note, by=by, token=token), on_event)

    def answer(self, node: str, said: str, *, by: str, token: int | None = None) -> Head:
        """Answer the question of *node*; see `Control.answer`."""
        return self.control.answer(node, said, by=by, token=token)

    def feedback(self, text: str, *, by: str, token: int | None = None) -> Head:
        """Send the run back with *text*; see `approve`."""
        return self.control.feedback(text, by=by, token=token)

    def _decided(self, head: Head, on_event: Emit) -> Head:
        """Tell the hooks that the run ended; the decision stands even if they fail."""
        if head.status is Status.COMPLETE and head.step_index:
            try:
                performer = self._current().performer(on_event)
                performer.tell_completed(head.step_index - 1, head)
            except SequencerError as error:
                on_event(Noticed(f"the run is complete, but: {error.in_one_line}"))
        return head

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

        *positions* are names, or places in the cycle counted from 0; none means every
        position. *on_ready* gets a function that asks this call to end, for a signal
        handler. *on_event* gets all events, see `engine.attempt`. *step_index* is where mode
        async starts. *places*, for graphs, is how many agents this process runs at once. If it
        *is_detached*, the project's workers do the work, and this call returns at once.

        Raises: see `EngineLoop.work` and `Control.begin`; the class has the exit code.
        """
        self._ensure_others_work(mode, is_detached=is_detached)
        head = None if mode is Mode.ASYNC else self.head
        resolved = self._at(head)
        control = self._control_of(resolved)
        control.ensure_may_begin(head)
        control.kind.ensure_may(mode)
        names = control.kind.positions(positions)
        if limits is None:
            limits = InvocationLimits(max_steps=resolved.workflow.default_max_steps)
        performer = resolved.performer(on_event)
        if mode is Mode.ASYNC:
            return work_beside(performer, limits, step_index, self.store.state_path, on_ready)
        worker, loop = self._workers(control.kind, performer, names, places)
        worker.live_limits, hands_out = self._live_limits, self.dispatch
        try:
            worker.ensure_startable(head)
            if hands_out is not None:
                hands_out.ensure_served(worker)
            ensure_here(head := control.begin())
            # Another program's state has no run before its first transition.
            head = head if head.revision else self.head or head
            if on_ready is not None:
                on_ready(worker.interrupt)
            if hands_out is not None:
                return hands_out.work(worker, mode, limits, head, places, is_detached=is_detached)
            return loop(worker, mode, limits, head).work()
        finally:
            worker.leave()

    def _ensure_others_work(self, mode: Mode, *, is_detached: bool) -> None:
        if is_detached and (mode is Mode.ASYNC or self.dispatch is None):
            hint = "leave it out; only runs on Temporal ('store: {kind: temporal}') have workers"
            message = "this run has no workers to do its steps"
            raise UsageRefused(message, where="--detach", hint=hint)

    def makers(self) -> Mapping[int, str] | None:
        """Return who runs its attempts, by token; None: each claim says it."""
        return None if self.dispatch is None else self.dispatch.makers()

    def elsewhere(self) -> str:
        """Return where the workers are that run its attempts; empty: here too."""
        return "" if self.dispatch is None else self.dispatch.elsewhere()

    def detached(self) -> list[dict[str, Any]]:
        """Return its detached permissions to work, which no process waits for."""
        return [] if self.dispatch is None else self.dispatch.detached()

    def worker(self, on_event: Emit = ignore) -> Worker:
        """Return what runs attempts at the run if others decide about it.

        Raises: see `workflow`.
        """
        resolved = self._current()
        kind, performer = self._control_of(resolved).kind, resolved.performer(on_event)
        return self._workers(kind, performer, (), 1)[0]

    def _workers(
        self, kind: Kind, performer: Performer, positions: Collection[str], places: int
    ) -> tuple[Worker, Callable[..., EngineLoop]]:
        """Return what works on a run of *kind*."""
        if kind.has_one_place:
            return LineWorker(self.store, performer, self.limits, positions), LineLoop
        from sequencer.engine.net_loop import on_nodes  # noqa: PLC0415 - graphs only

        return on_nodes(self.store, performer, self.limits, places)

    @contextlib.contextmanager
    def turn(self, position: str | None = None, *, wait: bool = False) -> Iterator[OpenTurn]:
        """Claim the next step and let the caller perform it.

        While the block runs, the claim is kept alive. The end of the block accepts the step; an
        exception records a failure and propagates. With *wait*, this sleeps until the step is
        due and at *position*; without it, an unavailable step is an error.

        Raises:
            ClaimHeld: another process runs the step, or it is at another position.
            TransitionRefused: nothing can start (complete, stopped, a date, a limit).
            UsageRefused: the run has a graph.
            StaleClaim: the claim was lost while the block ran; its output was kept.
            DecisionRefused: an agent asks, whose own words would be the result of the step.
        """
        resolved = self._at(self.head)
        control = self._control_of(resolved)
        control.ensure_may_decide("skip", "performing a step")
        control.kind.ensure_may("turn")
        if self.dispatch is not None:
            hint = "use 'run.work' or 'sequencer run'"
            raise UsageRefused("the run's store hands out its attempts itself", hint=hint)
        # Before it begins: a project that may not act leaves nothing behind.
        performer = resolved.performer(ignore)
        names = control.kind.positions([position] if position else ())
        head = control.begin()
        worker = LineWorker(self.store, performer, self.limits, names)
        try:
            yield from perform_by_caller(worker, claim_turn(worker, head, wait=wait))
        finally:
            worker.leave()


def _identity(head: Head) -> tuple[object, ...]:
    """Return the parts of *head* that say which workflow its run has."""
    return (
        head.run_id,
        head.workflow_name,
        head.workflow_digest,
        head.params,
        head.has_definition,
    )


MOST_RETRIES = 100
"""The most that a step can ask for."""
CALLER = "caller"
"""The agent in the journal for a step that a program performed itself."""


class OpenTurn(Struct):
    """A step that the caller performs itself, see `Run.turn`."""

    step: str
    position: str
    step_index: int
    token: int
    attempt: int
    prompt_name: str
    cancellation: Cancellation
    """Set when the claim is lost: stop, because the result will not be accepted."""
    output: str = ""
    """What to record as the step's output."""
    is_complete: bool = False
    """Set it to end the run with this step."""
    failure: str | None = field(default=None)
    """Set it to record a failure without raising."""


class _Caller:
    """Represents the program that performs a step itself."""

    kind: ClassVar[str] = CALLER
    supported_fields: ClassVar[frozenset[str]] = frozenset()

    def problems(self) -> list[str]:
        return []

    def perform(self, request: StepRequest, *_: object) -> Outcome:
        raise ValueError(f"the caller must perform step {request.step.name!r}")


def claim_turn(worker: LineWorker, head: Head, *, wait: bool) -> Running:
    """Claim the ready step, or with *wait* the next one at the worker's positions.

    Raises: see `Run.turn`.
    """
    while True:
        head = followed(worker.store, head, worker.store.view().head)
        here = worker.standing_for_claim(head)
        is_mine = worker.is_mine(head.step_index)
        if here.kind in (Readiness.READY, Readiness.HELD) and is_mine:
            step, position = worker.performer.look(here.place)
            prepared = Prepared(step, position, here.place, CALLER, _Caller(), "")
            try:
                claimed = worker.claim(head, prepared)
            except ClaimHeld:
                if not wait:
                    raise
                claimed = None
            if claimed is not None:
                try:
                    worker.arrive(claimed)
                except BaseException as error:
                    worker.abandon(claimed, error)
                    raise
                return claimed
        if here.kind is Readiness.EXPIRED and head.gate is not None:
            worker.control.lapse()
            continue
        if not wait or here.is_final or here.kind in (Readiness.PERSON, Readiness.REFUSED):
            if here.kind in (Readiness.READY, Readiness.HELD):
                raise ClaimHeld(f"step {here.place.step!r} is at another position")
            raise TransitionRefused(here.message)
        due = parse_time(here.until) if here.until else None
        left = (due - datetime.now(UTC)).total_seconds() if due else LONGEST_SLEEP_S
        worker.store.wait(head.revision, min(max(left, 0.0), LONGEST_SLEEP_S), claim=here.claim)


def perform_by_caller(worker: LineWorker, running: Running) -> Iterator[OpenTurn]:
    """Yield the step of *running* once, and then record how the caller performed it."""
    claim, made = running.claim, running.prepared
    opened = OpenTurn(
        claim.step,
        made.position,
        claim.step_index,
        claim.token,
        claim.attempt,
        made.step.prompt_name,
        running.cancellation,
    )
    started = time.monotonic()
    status, error = OutcomeStatus.OK, None
    try:
        # Inside, so that no heartbeat comes after the record and leaves a file.
        worker.begin(running)
        try:
            yield opened
        finally:
            worker.end(running)
    except BaseException as raised:
        is_failure = isinstance(raised, Exception)
        status = OutcomeStatus.FAILED if is_failure else OutcomeStatus.INTERRUPTED
        error = repr(raised)
        raise
    finally:
        if opened.failure is not None:
            status, error = OutcomeStatus.FAILED, opened.failure
        elif opened.is_complete and status is OutcomeStatus.OK:
            status = OutcomeStatus.COMPLETE
        outcome = Outcome(status=status, output=opened.output, error=error)
        seconds = round(time.monotonic() - started, 6)
        worker.settle(running, outcome, seconds)


def work_beside(
    performer: Performer,
    limits: InvocationLimits,
    step_index: int,
    state_path: Path,
    on_ready: Callable[[Callable[[], None]], None] | None = None,
) -> Summary:
    """Run steps from *step_index* on in mode async: in a run that only this call knows.

    Agents get *state_path*, but it is neither read nor written.

    Raises: see `EngineLoop.work`.
    """
    if performer.place is not None:
        raise UsageRefused(
            "mode async has no run, but worktree: true needs one",
            hint="choose another --mode, or remove worktree",
        )
    first = place(performer.workflow, step_index)
    fresh = fresh_head(performer.workflow).replace(
        step_index=step_index, iteration=step_index + 1, expected_step=first.step
    )
    # Only the step's retries limit its failures.
    own = RunLimits(failures_in_row=MOST_RETRIES, attempts=performer.max_attempts)
    performer = replace(performer, carrier=NOTHING_CARRIED)
    with TemporaryDirectory(prefix="sequencer-async-", ignore_cleanup_errors=True) as folder:
        store = FileStore(Path(folder).resolve() / "state.json", allow_network_fs=True)
        worker = LineWorker(store, performer, own, state_path=state_path)
        try:
            if on_ready is not None:
                on_ready(worker.interrupt)
            head = store.update(lambda _: transitions.initialise(fresh))
            return replace(LineLoop(worker, Mode.ASYNC, limits, head).work(), head=None)
        finally:
            worker.leave()
