"""Takes turns in one run: claim, perform, record; the only code that moves step_index.

Accepting a step and claiming the next one is one transition where this worker may go on,
so that a crash in between can't exist. Everything that decides is called under the
store's exclusion and is pure; everything that takes time happens outside.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from sequencer.engine import code
from sequencer.engine.attempt import Attempt
from sequencer.engine.by_hand import Control
from sequencer.engine.carrier import NothingCarried
from sequencer.engine.composing import compose_along
from sequencer.engine.events import Waiting
from sequencer.engine.heartbeat import Heartbeat
from sequencer.engine.patience import Changes, Patience
from sequencer.engine.performing import Performer
from sequencer.engine.prepared import Allowance, Prepared, Turn
from sequencer.engine.recall import Memory, recall
from sequencer.engine.records import (
    chance,
    journal_record,
    keep_output,
    performed_record,
    shown_log,
)
from sequencer.errors import (
    ClaimHeld,
    SequencerError,
    StateRefused,
    WorkTreeRefused,
    out_of_resources,
)
from sequencer.executors.attempt_lock import AttemptLock, lock_path
from sequencer.executors.protocol import Cancellation, StopReason
from sequencer.model.head import Claim, Head
from sequencer.model.kind import Performed, Room
from sequencer.model.limits import RunLimits
from sequencer.model.line.line import Ended, Ending, EndingKind, Line
from sequencer.model.line.order import place, position_at
from sequencer.model.line.rounds import round_of
from sequencer.model.outcome import Outcome, OutcomeStatus, Usage
from sequencer.model.standing import Standing
from sequencer.model.transitions import Place
from sequencer.model.workflow import Workflow, ensure_definition, has_definition
from sequencer.store import results
from sequencer.store.identity import boottime
from sequencer.store.protocol import Store

CALLER = "caller"
"""What the journal names as the agent of a step that a program performed itself."""

_NOTHING = Usage()
MayGoOn = Callable[[Head], bool]
"""Whether the invocation's own limits allow one more step after this head."""


def _where(head: Head) -> tuple[object, ...]:
    """Return what has to be as it was seen for a prepared step to be the right one."""
    return head.run_id, head.step_index, head.loop


class Worker:
    """One process's part in a run."""

    def __init__(
        self,
        store: Store,
        performer: Performer,
        limits: RunLimits,
        positions: Collection[str] = (),
        state_path: Path | None = None,
    ) -> None:
        """Work in the run that *store* keeps; with *positions*, only on their steps.

        *state_path*: the run is known to this process alone; agents are told this path and
        no token, and so are their logs, which are no trace of a run.
        """
        self.store = store
        self.performer = performer
        self.limits = limits
        self.positions = frozenset(positions)
        self.kind = Line(performer.workflow)
        self.stop = Cancellation()
        """Set when this process is asked to end."""
        self._current: Cancellation | None = None
        self._lock_path = lock_path(store.state_path)
        self._told_path = state_path
        self._paid = _NOTHING
        """By the attempt that ended last, for an end that can't be recorded as it was."""
        self._heartbeat = Heartbeat(store)
        self._changes = Changes(store, self.kind)
        self.patience = self._changes.patience = Patience(store, self.stop, performer.emit)

    @property
    def workflow(self) -> Workflow:
        """Return the workflow that this worker believes the run to have."""
        return self.performer.workflow

    @property
    def control(self) -> Control:
        """Return the changes by hand; a gate's time limit is decided as if by hand."""
        return Control(self.store, self.workflow)

    def interrupt(self) -> None:
        """Ask for the end of the present step and of the work; safe in a signal handler."""
        self.stop.set(StopReason.INTERRUPTED)
        current = self._current
        if current is not None:
            current.set(StopReason.INTERRUPTED)

    def close(self) -> None:
        """End the heartbeat thread."""
        self._heartbeat.close()
        self.stop.close()

    def leave(self) -> None:
        """Close, and leave no process and no descriptor of the work behind."""
        self.close()
        self.performer.carrier.leave(None)
        self.performer.agents.close()
        self.store.close()

    def standing(self, head: Head) -> Standing:
        """Return what may happen next, as this worker sees it."""
        return self.kind.ready(head, self.limits, at=datetime.now(UTC))

    def standing_for_claim(self, head: Head) -> Standing:
        """Return what may happen next once a holder that is gone is out of the way."""
        here = self.standing(head)
        if here.claim is None or not self.store.liveness(here.claim).allows_take_over:
            return here
        return self.standing(head.model_copy(update={"claims": ()}))

    def is_mine(self, step_index: int) -> bool:
        """Return whether the step at *step_index* is at one of this worker's positions."""
        if not self.positions:
            return True
        if place(self.workflow, step_index).is_end:
            return True
        return position_at(self.workflow, step_index) in self.positions

    def claim(self, seen: Head) -> tuple[Head, Claim] | None:
        """Claim the step at which *seen* stands, or return None if the run went on meanwhile.

        Raises:
            ClaimHeld: somebody holds it and may be alive.
            StaleClaim: the run's files are gone.
            WorkTreeRefused: no step may begin in this work tree.
        """
        self.patience.reach(lambda: self.performer.carrier.ready(seen))

        def room(present: Head) -> Room | None:
            if _where(present) != _where(seen):
                return None
            # Somebody may have adopted another definition since this worker was started.
            ensure_definition(present, self.workflow)
            return self._room(present)

        head, granted = self._changes.update(None, room)
        claim = head.claim_with(granted[0]) if granted else None
        return None if claim is None else (head, claim)

    def _room(self, head: Head) -> Room:
        """Return that one step may be claimed at *head*."""
        store = self.store
        gone = [one.token for one in head.claims if store.liveness(one).allows_take_over]
        return Room(
            store.owner(),
            store.ttl_s,
            round(boottime(), 3),
            slots=1,
            gone=frozenset(gone),
            limits=self.limits,
        )

    def arrive(self, turn: Turn) -> None:
        """Bring the work tree to the code that the step of *turn* begins on.

        An earlier attempt at it may have left processes; they are gone then.

        Raises:
            WorkTreeRefused: see `Carrier.arrive`.
            MachineBusy: see `AttemptLock.take`.
        """
        if turn.claim.attempt > 1:
            AttemptLock(self._lock_path, self._tell_waiting).settle(self.stop)
        self.patience.reach(lambda: self.performer.carrier.arrive(turn.head))

    def _tell_waiting(self, text: str) -> None:
        self.performer.emit(Waiting(text))

    def _arrived(self, turn: Turn) -> Prepared:
        """Return what is to be performed; with newer code its prompt may be another one."""
        if turn.prepared is None:
            message = "the caller has to perform this step"
            raise ValueError(message)
        self.arrive(turn)
        if isinstance(self.performer.carrier, NothingCarried):
            return turn.prepared
        return self.performer.prepare(turn.place)

    def perform(self, turn: Turn, budget: Allowance) -> Ended:
        """Run the step of *turn*; return how it ended and what that means.

        Nothing is recorded in the run yet; see `finish`.
        """
        self._paid = _NOTHING
        prepared = self._arrived(turn)
        folder = self.store.result_folder(turn.claim.step_index, turn.claim.token)
        attempt = self._attempt(turn, prepared, folder)
        cancellation = Cancellation()
        with self.beating(turn.claim, cancellation):
            performed = self.performer.perform(
                prepared,
                attempt,
                turn.head,
                budget,
                cancellation=cancellation,
                compose=compose_along(
                    self.workflow, self.performer.definition, turn.head, self._recalled
                ),
            )
            self._paid = performed.outcome.usage
            reason = cancellation.reason
            if reason in (StopReason.CLAIM_LOST, StopReason.LEASE_LOST):
                # Whatever the agent managed to say, this worker's word does not count any more.
                interrupted = performed.outcome.replace(status=OutcomeStatus.INTERRUPTED)
                performed = replace(performed, outcome=interrupted)
            ended = self._ended(turn, performed, folder, reason)
            return code.collected(self.performer.carrier, turn.claim, turn.head, ended)

    def _recalled(self) -> Memory:
        return recall(self.store.state_path.parent, self.store.history())

    def _ended(
        self, turn: Turn, performed: Performed, folder: Path, reason: StopReason | None
    ) -> Ended:
        """Return what *performed* means for the run, with the record of it."""
        performed, ending = self.kind.judge(turn.head, performed, self.limits.max_attempts)
        output = keep_output(performed.outcome, folder)
        record = performed_record(
            performed, shown_log(performed.log, self.performer.project), output, round_of(turn.head)
        )
        if reason is not None:
            record["reason"] = str(reason)
        return Ended(performed, ending, record, jitter=chance())

    @contextlib.contextmanager
    def beating(self, claim: Claim, cancellation: Cancellation) -> Iterator[None]:
        """Keep *claim* alive while the block runs; *cancellation* hears when it must end."""
        self._current = cancellation
        self._heartbeat.begin(claim, cancellation)
        if self.stop.is_set():
            cancellation.set(StopReason.INTERRUPTED)
        try:
            yield
        finally:
            self._heartbeat.end(claim)
            self._current = None
            cancellation.close()

    def abandon(self, turn: Turn, error: BaseException) -> None:
        """End the claim of a step that was given up by an exception, if that is possible.

        A bug counts as a failure, so that it can't repeat for ever; a refusal, an interrupt
        and a machine that has no more processes or descriptors don't.
        """
        busy = out_of_resources(error)
        is_bug = (
            isinstance(error, Exception) and not isinstance(error, SequencerError) and busy is None
        )
        status = OutcomeStatus.FAILED if is_bug else OutcomeStatus.INTERRUPTED
        outcome = Outcome(status=status, error=self.performer.redact(repr(error)), usage=self._paid)
        agent = turn.prepared.agent if turn.prepared else CALLER
        performed = Performed(outcome, turn.step, turn.place, agent)
        ending = Ending(EndingKind.FAIL) if is_bug else None
        record = journal_record(outcome, agent, None, {})
        ended = Ended(performed, ending, record, postponed=None if busy is None else busy.message)
        # What is raised already says more than why it could not be recorded.
        with contextlib.suppress(SequencerError):
            self.finish(turn, ended, lambda _: False)

    def settle(self, turn: Turn, outcome: Outcome, seconds: float) -> Head:
        """Record a step that the caller performed."""
        usage = outcome.usage.model_copy(update={"seconds": seconds})
        outcome = outcome.model_copy(update={"usage": usage, "prompt": turn.step.prompt_name})
        folder = self.store.result_folder(turn.claim.step_index, turn.claim.token)
        record = journal_record(outcome, CALLER, None, keep_output(outcome, folder))
        performed = Performed(outcome, turn.step, turn.place, CALLER)
        _, ending = self.kind.judge(turn.head, performed, self.limits.max_attempts)
        ended = Ended(performed, ending, record)
        with self._heartbeat.going_on(turn.claim):
            ended = code.collected(self.performer.carrier, turn.claim, turn.head, ended)
        return self.finish(turn, ended, lambda _: False)[0]

    def _attempt(self, turn: Turn, prepared: Prepared, folder: Path) -> Attempt:
        return Attempt(
            run_id=turn.head.run_id,
            workflow=turn.head.workflow_name,
            step=turn.step,
            position=turn.position,
            step_index=turn.claim.step_index,
            token=turn.claim.token if self._told_path is None else 0,
            attempt=turn.claim.attempt,
            agent=prepared.agent,
            prompt=turn.step.prompt_name,
            state_path=self._told_path or self.store.state_path,
            result_path=folder / "result.json",
            lock_path=self._lock_path,
        )

    def finish(self, turn: Turn, ended: Ended, may_go_on: MayGoOn) -> tuple[Head, Turn | None]:
        """Record how the step of *turn* ended; where *may_go_on* says so, claim the next one.

        Raises:
            StaleClaim: the step is not this worker's any more; the output was kept.
            WorkTreeRefused: its code was not taken; that is recorded as a failure.
        """
        carrier, is_own = self.performer.carrier, turn.prepared is not None
        upcoming = self._prepare_following(ended.next_place, turn.head) if is_own else None

        def room(head: Head) -> Room | None:
            is_next = upcoming is not None and not self.stop.is_set() and may_go_on(head)
            return self._room(head) if is_next and has_definition(head, self.workflow) else None

        try:
            head, granted = self._accepted(turn, ended, room)
        except WorkTreeRefused as refusal:
            without = code.without_code(carrier, turn.claim, turn.head, ended, refusal)
            self.finish(turn, without, lambda _: False)
            told = without.outcome.error or refusal.message
            raise WorkTreeRefused(told, where=refusal.where, hint=refusal.hint) from refusal
        claim = head.claim_with(granted[0]) if granted else None
        if claim is None or upcoming is None:
            return head, None
        return head, Turn.of(head, claim, upcoming)

    def _prepare_following(self, following: Place | None, head: Head) -> Prepared | None:
        """Prepare the next step if it is this worker's; what is wrong with it shows later."""
        if following is None or not self.is_mine(following.step_index):
            return None
        try:
            self.performer.carrier.ready(head)
            return self.performer.prepare(following)
        except (SequencerError, OSError):
            return None

    def _accepted(
        self, turn: Turn, ended: Ended, room: Callable[[Head], Room | None]
    ) -> tuple[Head, list[int]]:
        claim = turn.claim
        try:
            with self._heartbeat.going_on(claim):
                head, granted = self._changes.update(
                    lambda change: change.end(claim.token, ended),
                    room,
                    run_id=turn.head.run_id,
                    lease_s=claim.ttl_s,
                )
            return code.left(self.performer.carrier, claim, head), granted
        except WorkTreeRefused:
            # Its work is kept by whoever records that.
            raise
        except (StateRefused, ClaimHeld):
            with contextlib.suppress(StateRefused):
                self._keep_stale_output(turn, ended.outcome)
            with contextlib.suppress(SequencerError):
                self.performer.carrier.keep(turn.claim, turn.claim.step, turn.head)
            self.performer.carrier.leave(None)
            raise

    def _keep_stale_output(self, turn: Turn, outcome: Outcome) -> None:
        head = self.store.view().head
        if head is not None and head.run_id != turn.head.run_id:
            # The attempt with this index and token is that run's own.
            return
        # Of a run that is gone something has to stay, or the next process begins it anew.
        if outcome.output or head is None:
            folder = self.store.result_folder(turn.claim.step_index, turn.claim.token)
            # That the step is not this worker's any more is the news, whatever the disk says.
            with contextlib.suppress(OSError):
                results.keep(folder, outcome.output.encode("utf-8", "replace"))
