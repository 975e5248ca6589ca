"""One run, for programs and for the command line: look at it, work on it, change it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sequencer.engine import same_run
from sequencer.engine.attempt import Observer, SilentObserver
from sequencer.engine.control import Control, ensure_definition
from sequencer.engine.local import LocalInvocation
from sequencer.engine.performing import Performer
from sequencer.engine.standing import Kind, Standing, parse_time, standing
from sequencer.engine.work import LONGEST_SLEEP_S, Invocation, Mode, Summary
from sequencer.engine.worker import Turn, Worker
from sequencer.errors import ClaimHeld, SequencerError, TransitionRefused, UnknownName
from sequencer.executors.protocol import Cancellation
from sequencer.model.definition import Definition
from sequencer.model.head import Head, Status
from sequencer.model.limits import InvocationLimits, RunLimits
from sequencer.model.outcome import Outcome, OutcomeStatus
from sequencer.model.workflow import Workflow
from sequencer.resolution.resolver import Description, describe_at, place, present
from sequencer.store.protocol import Store, View

MakePerformer = Callable[[Workflow, Observer], Performer]
ChooseWorkflow = Callable[[Head | None], Workflow]


@dataclass(slots=True)
class OpenTurn:
    """A step that the caller performs itself, see `Run.turn`."""

    step: str
    position: str
    step_index: int
    token: int
    attempt: int
    prompt_name: str
    cancellation: Cancellation
    """Set when the claim was lost: stop, the result will not be accepted."""
    output: str = ""
    """What to record as the step's output."""
    is_complete: bool = False
    """Set it to end the whole run with this step."""
    failure: str | None = field(default=None)
    """Set it to record a failure without raising."""


class Run:
    """A run that `open_run` has found, begun or not."""

    def __init__(
        self,
        name: str | None,
        store: Store,
        limits: RunLimits,
        choose_workflow: ChooseWorkflow,
        make_performer: MakePerformer,
        *,
        read_definition: Callable[[], Definition | None] = lambda: None,
    ) -> None:
        """Join the parts; `assembly` makes them."""
        self._read_definition = read_definition
        self.name = name
        self.store = store
        self.limits = limits
        self._choose_workflow = choose_workflow
        self._make_performer = make_performer

    # --- looking -------------------------------------------------------------------

    @property
    def head(self) -> Head | None:
        """Return the newest accepted head; None before the run has begun."""
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
        return self._read_definition()

    @property
    def workflow(self) -> Workflow:
        """Return the workflow of the run, or the one that it would begin with.

        Raises:
            DefinitionChanged: what is configured is not what the run was begun with.
        """
        head = self.head
        workflow = self._choose_workflow(head)
        if head is not None:
            ensure_definition(head, workflow)
        return workflow

    def workflow_for(self, head: Head | None) -> Workflow:
        """Return the workflow that the run of *head* is to have, whatever it was begun with."""
        return self._choose_workflow(head)

    def next(self, count: int = 1, step_index: int | None = None) -> list[Description]:
        """Return the steps that come next, at most *count*; changes nothing."""
        head = self.head
        if step_index is None and head is not None and head.status is Status.COMPLETE:
            return []
        workflow = self.workflow if step_index is None else self._choose_workflow(head)
        first = step_index if step_index is not None else head.step_index if head else 0
        found = []
        for index in range(first, first + count):
            if place(workflow, index).is_end:
                break
            is_present = head is not None and index == head.step_index
            here = present(workflow, head) if is_present and head else place(workflow, index)
            found.append(describe_at(workflow, here))
        return found

    def standing(self) -> Standing | None:
        """Return what may happen next; None before the run has begun."""
        head = self.head
        if head is None:
            return None
        return standing(head, self.workflow, self.limits, datetime.now(UTC))

    # --- changing by hand ----------------------------------------------------------

    @property
    def control(self) -> Control:
        """Return the changes that a person makes: stamp, skip, rewind, stop and the rest."""
        return Control(self.store, self._choose_workflow(self.head), self.name)

    def approve(
        self,
        note: str | None = None,
        *,
        by: str,
        token: int | None = None,
        observer: Observer | None = None,
    ) -> Head:
        """Let the run go on behind its gate; *token* is that of the gate that was read."""
        return self._decided(self.control.approve(note, by=by, token=token), observer)

    def reject(
        self,
        note: str | None = None,
        *,
        by: str,
        token: int | None = None,
        observer: Observer | None = None,
    ) -> Head:
        """End the run at its gate; see `approve`."""
        return self._decided(self.control.reject(note, by=by, token=token), observer)

    def feedback(self, text: str, *, by: str, token: int | None = None) -> Head:
        """Send the run back with *text*; see `approve`."""
        return self.control.feedback(text, by=by, token=token)

    def _decided(self, head: Head, observer: Observer | None) -> Head:
        """Tell the hooks of an end; the decision stands, whatever becomes of that."""
        if head.status is Status.COMPLETE and head.step_index:
            observer = observer or SilentObserver()
            try:
                performer = self._make_performer(self.workflow, observer)
                performer.tell_completed(head.step_index - 1, head)
            except SequencerError as error:
                observer.notice(f"nobody was told of the end: {error.message}")
        return head

    # --- working -------------------------------------------------------------------

    def _worker(self, workflow: Workflow, observer: Observer, positions: Collection[str]) -> Worker:
        performer = self._make_performer(workflow, observer)
        names = _position_names(workflow, positions)
        return Worker(self.store, performer, self.limits, names)

    def work(
        self,
        mode: Mode = Mode.COMBINED,
        limits: InvocationLimits | None = None,
        *,
        positions: Collection[str] = (),
        observer: Observer | None = None,
        on_ready: Callable[[Callable[[], None]], None] | None = None,
        step_index: int = 0,
    ) -> Summary:
        """Work on the run in *mode* until a limit, an end or an error.

        *positions* are names, or places in the cycle counted from 0; none means every
        position. *on_ready* gets a function that asks this call to end, for a signal
        handler. *step_index* is async mode's start.

        Raises:
            SequencerError: see `work.Invocation.work`; the class has the exit code.
        """
        observer, limits = observer or SilentObserver(), limits or InvocationLimits()
        if mode is Mode.ASYNC:
            performer = self._make_performer(self._choose_workflow(None), observer)
            local = LocalInvocation(performer, limits, step_index, self.store.state_path)
            if on_ready is not None:
                on_ready(local.interrupt)
            return local.work()
        head = self._begin(observer, positions)
        worker = self._worker(self._choose_workflow(head), observer, positions)
        try:
            if on_ready is not None:
                on_ready(worker.interrupt)
            return Invocation(worker, mode, limits, head).work()
        finally:
            worker.leave()

    def _begin(self, observer: Observer, positions: Collection[str]) -> Head:
        """Begin the run, unless that was done.

        What can't even start must not begin it: the mistake is still to be corrected, and
        the definition would be fixed already.
        """
        if self.head is None:
            worker = self._worker(self._choose_workflow(None), observer, positions)
            try:
                if worker.is_mine(0):
                    worker.performer.prepare(place(worker.workflow, 0))
                left = worker.performer.logs.left_behind()
            finally:
                worker.leave()
            if left is not None:
                observer.notice(
                    f"a new run begins at step_index 0, and {left} is of an earlier one; if its "
                    "state was removed by mistake, bring it back, or 'sequencer set step_index=N'"
                )
        return self.control.begin()

    @contextlib.contextmanager
    def turn(self, position: str | None = None, *, wait: bool = False) -> Iterator[OpenTurn]:
        """Claim the next step and let the caller perform it.

        While the block runs the claim is kept alive. Its end accepts the step; an exception
        records a failure and goes on. With *wait*, sleeps until the step is due and at
        *position*; else a step that can't be had is an error.

        Raises:
            ClaimHeld: somebody else runs the step, or it is at another position.
            TransitionRefused: nothing can start (complete, stopped, a date, a limit).
            StaleClaim: the claim was lost while the block ran; its output was kept.
        """
        head = self.control.begin()
        positions = (position,) if position else ()
        worker = self._worker(self._choose_workflow(head), SilentObserver(), positions)
        try:
            turn = _claim(worker, head, wait=wait)
            opened = OpenTurn(
                step=turn.claim.step,
                position=turn.position,
                step_index=turn.claim.step_index,
                token=turn.claim.token,
                attempt=turn.claim.attempt,
                prompt_name=turn.step.prompt_name,
                cancellation=Cancellation(),
            )
            yield from _perform_by_caller(worker, turn, opened)
        finally:
            worker.leave()


def _position_names(workflow: Workflow, positions: Collection[str]) -> list[str]:
    """Return the names of *positions*, which are names or places counted from 0."""
    names = [step.name for step in workflow.steps]
    found = []
    for position in positions:
        if position in names:
            found.append(position)
        elif position.isdecimal() and int(position) < len(names):
            found.append(names[int(position)])
        else:
            raise UnknownName("position", position, names, where=f"workflow {workflow.name}")
    return found


def _claim(worker: Worker, head: Head, *, wait: bool) -> Turn:
    while True:
        head = same_run.followed(worker.store, head, worker.store.view().head)
        here = worker.standing_for_claim(head)
        is_mine = worker.is_mine(head.step_index)
        if here.kind in (Kind.READY, Kind.HELD) and is_mine:
            step, position = worker.performer.look(here.place)
            try:
                claimed = worker.claim(head)
            except ClaimHeld:
                if not wait:
                    raise
                claimed = None
            if claimed is not None:
                return Turn(claimed[1], step, position, here.place, claimed[0])
        if here.kind is Kind.EXPIRED and head.gate is not None:
            worker.control.expire(head.gate)
            continue
        if not wait or here.is_final or here.kind in (Kind.PERSON, Kind.REFUSED):
            if here.kind in (Kind.READY, Kind.HELD):
                raise ClaimHeld(f"step {here.place.step!r} is at another position")
            raise TransitionRefused(here.message)
        due = parse_time(here.until) if here.until else None
        left = (due - datetime.now(UTC)).total_seconds() if due else LONGEST_SLEEP_S
        worker.store.wait(head.revision, min(max(left, 0.0), LONGEST_SLEEP_S), claim=here.claim)


def _perform_by_caller(worker: Worker, turn: Turn, opened: OpenTurn) -> Iterator[OpenTurn]:
    started = time.monotonic()
    status, error = OutcomeStatus.OK, None
    try:
        # Inside, so that no beat comes after the record and leaves a file of its own.
        with worker.beating(turn.claim, opened.cancellation):
            yield opened
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
        worker.settle(turn, outcome, seconds)
