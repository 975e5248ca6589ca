"""Takes turns in one run: claim, perform, record; the only code that moves step_index.

Accepting a step and claiming the next one is one transition where this worker may go on,
so that a crash in between can't exist. Everything that decides is called under the
store's exclusion and is pure; everything that takes time happens outside.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from msgspec.structs import replace

from sequencer.engine import code
from sequencer.engine.attempt import Allowance, Attempt, Prepared, Turn
from sequencer.engine.by_hand import Control
from sequencer.engine.carrier import NothingCarried
from sequencer.engine.composing import compose_along
from sequencer.engine.events import Noticed, Waiting
from sequencer.engine.heartbeat import Heartbeat
from sequencer.engine.patience import Changes, Patience, changes_of
from sequencer.engine.performing import Performer
from sequencer.engine.recall import Memory, recall
from sequencer.engine.records import (
    broken,
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
from sequencer.model.workflow import ensure_definition, has_definition
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
    """One process's part in a run, of whatever kind."""

    def __init__(self, changes: Changes, performer: Performer, limits: RunLimits) -> None:
        """Work in the run that *changes* changes."""
        self._changes = changes
        self.store = changes.store
        self.performer = performer
        self.limits = limits
        self.stop = Cancellation()
        """Set when this process is asked to end."""
        self.patience = changes.patience = Patience(self.store, self.stop, performer.emit)
        self._heartbeat = Heartbeat(self.store)

    def leave(self) -> None:
        """Leave no process and no descriptor of the work behind."""
        self._changes.patience = None
        self._heartbeat.close()
        self.stop.close()
        self._leave_code()
        self.performer.agents.close()
        self.store.close()

    def _leave_code(self) -> None:
        self.performer.carrier.leave(None)

    def interrupt(self) -> None:
        """Ask for the end of what runs and of the work; safe in a signal handler."""
        self.stop.set(StopReason.INTERRUPTED)

    def ensure_startable(self, head: Head | None) -> None:
        """Return if the run of *head* can start; None: it was never started.

        What can't even start must not begin it: the mistake is still to be corrected, and the
        definition would be fixed already.

        Raises:
            ConfigurationError: a prompt or an agent can't be had.
        """

    def gone(self, head: Head, mine: Collection[int] = ()) -> frozenset[int]:
        """Return the tokens of claims that may be taken over; those of *mine* may not."""
        if not head.claims:
            return frozenset()
        return frozenset(
            claim.token
            for claim in head.claims
            if claim.token not in mine and self.store.liveness(claim).allows_take_over
        )

    def _room(self, slots: int, gone: frozenset[int], **more: Any) -> Room:
        """Return that *slots* steps may be claimed, and those with the tokens *gone* again."""
        store = self.store
        clock = round(boottime(), 3)
        return Room(store.owner(), store.ttl_s, clock, slots, gone, self.limits, **more)


class LineWorker(Worker):
    """One process's part in the run of a cycle or a procedure."""

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
        self.workflow = performer.workflow
        """The workflow that this worker believes the run to have."""
        changes = changes_of(store, self.workflow)
        self.kind: Line = cast("Line", changes.kind)
        super().__init__(changes, performer, limits)
        self.positions = frozenset(positions)
        self._moves = not isinstance(performer.carrier, NothingCarried)
        """Whether code moves with the state."""
        self._current: Cancellation | None = None
        self._lock_path = lock_path(store.state_path)
        self._told_path = state_path
        self._paid = _NOTHING
        """By the attempt that ended last, for an end that can't be recorded as it was."""

    @property
    def control(self) -> Control:
        """Return the changes by hand; a gate's time limit is decided as if by hand."""
        return Control(self.store, self.workflow)

    def ensure_startable(self, head: Head | None) -> None:
        """See `Worker.ensure_startable`; the first step is prepared."""
        if head is not None:
            return
        if self.is_mine(0):
            self.performer.prepare(place(self.workflow, 0))
        left = self.performer.logs.left_behind()
        # A log of somebody who has begun the run meanwhile is no earlier one.
        if left is not None and self.store.view().head is None:
            text = f"a new run begins at step_index 0, and {left} is of an earlier one; if "
            text += "its state was removed by mistake, bring it back, or "
            self.performer.emit(Noticed(f"{text}'sequencer set step_index=N'"))

    def interrupt(self) -> None:
        """See `Worker.interrupt`."""
        super().interrupt()
        current = self._current
        if current is not None:
            current.set(StopReason.INTERRUPTED)

    def standing(self, head: Head) -> Standing:
        """Return what may happen next, as this worker sees it."""
        return self.kind.ready(head, self.limits, at=datetime.now(UTC))

    def standing_for_claim(self, head: Head) -> Standing:
        """Return what may happen next once a holder that is gone is out of the way."""
        here = self.standing(head)
        if here.claim is None or not self.store.liveness(here.claim).allows_take_over:
            return here
        return self.standing(head.replace(claims=()))

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
            return self._room(1, self.gone(present))

        head, granted = self._changes.update(None, room)
        claim = head.claim_with(granted[0]) if granted else None
        return None if claim is None else (head, claim)

    def arrive(self, turn: Turn) -> None:
        """Bring the work tree to the code that the step of *turn* begins on.

        An earlier attempt at it may have left processes; they are gone then.

        Raises:
            WorkTreeRefused: see `Carrier.arrive`.
            MachineBusy: see `AttemptLock.take`.
        """
        if turn.claim.attempt > 1:
            AttemptLock(self._lock_path, self._tell_waiting).settle(self.stop)
        if self._moves:
            self.patience.reach(lambda: self.performer.carrier.arrive(turn.head))

    def _tell_waiting(self, text: str) -> None:
        self.performer.emit(Waiting(text))

    def _arrived(self, turn: Turn) -> Prepared:
        """Return what is to be performed; with newer code its prompt may be another one."""
        if turn.prepared is None:
            message = "the caller has to perform this step"
            raise ValueError(message)
        self.arrive(turn)
        return self.performer.prepare(turn.place) if self._moves else turn.prepared

    def perform(self, turn: Turn, budget: Allowance) -> Ended:
        """Run the step of *turn*; return how it ended and what that means.

        Nothing is recorded in the run yet; see `finish`.
        """
        self._paid = _NOTHING
        claim, head, prepared = turn.claim, turn.head, self._arrived(turn)
        attempt = Attempt.of(
            claim,
            head,
            prepared,
            self.store,
            lock_path=self._lock_path,
            told_path=self._told_path,
        )
        cancellation = Cancellation()
        self.begin(claim, cancellation)
        try:
            performed = self.performer.perform(
                prepared,
                attempt,
                head,
                budget,
                cancellation=cancellation,
                compose=compose_along(
                    self.workflow, self.performer.definition, head, self._recalled
                ),
            )
            self._paid = performed.outcome.usage
            reason = cancellation.reason
            if reason in (StopReason.CLAIM_LOST, StopReason.LEASE_LOST):
                # Whatever the agent managed to say, this worker's word does not count any more.
                interrupted = performed.outcome.replace(status=OutcomeStatus.INTERRUPTED)
                performed = replace(performed, outcome=interrupted)
            return self._collected(turn, self._ended(turn, performed, attempt, reason))
        finally:
            self.end(claim, cancellation)

    def _collected(self, turn: Turn, ended: Ended) -> Ended:
        carrier = self.performer.carrier
        return code.collected(carrier, turn.claim, turn.head, ended) if self._moves else ended

    def _recalled(self) -> Memory:
        return recall(self.store.state_path.parent, self.store.history())

    def _ended(
        self, turn: Turn, performed: Performed, attempt: Attempt, reason: StopReason | None
    ) -> Ended:
        """Return what *performed* means for the run, with the record of it."""
        performed, ending = self.kind.judge(turn.head, performed, self.limits.max_attempts)
        output = keep_output(performed.outcome, attempt.result_path.parent)
        record = performed_record(
            performed, shown_log(performed.log, self.performer.project), output, round_of(turn.head)
        )
        if reason is not None:
            record["reason"] = str(reason)
        return Ended(performed, ending, record, jitter=chance())

    def begin(self, claim: Claim, cancellation: Cancellation) -> None:
        """Keep *claim* alive until `end`; *cancellation* hears when its step must end."""
        self._current = cancellation
        self._heartbeat.begin(claim, cancellation)
        if self.stop.is_set():
            cancellation.set(StopReason.INTERRUPTED)

    def end(self, claim: Claim, cancellation: Cancellation) -> None:
        """Undo `begin`."""
        self._heartbeat.end(claim)
        self._current = None
        cancellation.close()

    def abandon(self, turn: Turn, error: BaseException) -> None:
        """End the claim of a step that was given up by an exception, if that is possible.

        A bug counts as a failure, so that it can't repeat for ever.
        """
        outcome, busy = broken(error, self._paid, self.performer.redact), out_of_resources(error)
        agent = turn.prepared.agent if turn.prepared else CALLER
        performed = Performed(outcome, turn.step, turn.place, agent)
        ending = Ending(EndingKind.FAIL) if outcome.status is OutcomeStatus.FAILED else None
        record = journal_record(outcome, agent, None, {})
        ended = Ended(performed, ending, record, postponed=None if busy is None else busy.message)
        # What is raised already says more than why it could not be recorded.
        with contextlib.suppress(SequencerError):
            self.finish(turn, ended, lambda _: False)

    def settle(self, turn: Turn, outcome: Outcome, seconds: float) -> Head:
        """Record a step that the caller performed."""
        usage = outcome.usage.replace(seconds=seconds)
        outcome = outcome.replace(usage=usage, prompt=turn.step.prompt_name)
        folder = self.store.result_folder(turn.claim.step_index, turn.claim.token)
        record = journal_record(outcome, CALLER, None, keep_output(outcome, folder))
        performed = Performed(outcome, turn.step, turn.place, CALLER)
        _, ending = self.kind.judge(turn.head, performed, self.limits.max_attempts)
        ended = Ended(performed, ending, record)
        with self._heartbeat.going_on(turn.claim):
            ended = self._collected(turn, ended)
        return self.finish(turn, ended, lambda _: False)[0]

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
            is_next = is_next and has_definition(head, self.workflow)
            return self._room(1, self.gone(head)) if is_next else None

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
            if self._moves:
                code.left(self.performer.carrier, claim, head)
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
        return head, granted

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
