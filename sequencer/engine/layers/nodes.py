"""The outer layers of a node: where its task is done, and where its output is kept."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial

from msgspec.structs import replace

from sequencer.engine.attempt import Attempt
from sequencer.engine.conversations import Sessions
from sequencer.engine.events import Noticed, Waiting
from sequencer.engine.layers.layer import Next
from sequencer.engine.markings import NetChanges
from sequencer.engine.merge_order import Crowd, MergeTurn
from sequencer.engine.node_prompts import with_notes
from sequencer.engine.performing import Performer
from sequencer.engine.tasks import TaskExecution
from sequencer.engine.workplaces import Left, Workplace
from sequencer.errors import Interrupted, SequencerError
from sequencer.executors.attempt_lock import AttemptLock
from sequencer.executors.cancellation import StopReason
from sequencer.model.kind import Ended
from sequencer.model.limits import utc
from sequencer.model.outcome import Decision, Move, OutcomeStatus

TURN_POLL_S = 0.05
"""How often a result looks whether it may be merged; what it looks at is in memory."""


class NodeLayers:
    """The layers that need the run of the graph, for the threads of one process."""

    def __init__(self, control: NetChanges, tasks: TaskExecution | None) -> None:
        """Make the layers of the run that *control* changes."""
        self._control, self._tasks = control, tasks
        self.sessions = Sessions.of(control.store, control.workflow)
        self.crowd = Crowd()
        """Of the newest head; kept up to date by the worker."""

    def keep_output(self, performer: Performer, attempt: Attempt, /, proceed: Next) -> None:
        """Keep what an accepted attempt has said, and what a judge has."""
        del performer
        proceed(attempt)
        ended, claim, marking = attempt.ended, attempt.claim, attempt.marking
        if ended is None or marking is None:
            return
        attempt.ended = ended = as_decided(ended)
        if ended.outcome.session_fault is not None:
            self.sessions.end(marking, claim.step)
        is_accepted = ended.outcome.is_accepted
        # The run may go on behind a judge that says no to the last.
        if not (is_accepted or ended.verdict):
            return
        attempt.reference = self._control.keep_output(
            claim.step_index, claim.token, ended.outcome.output
        )
        if is_accepted:
            self.sessions.keep(claim, ended, utc(self._control.now()))

    def work_in_its_place(self, performer: Performer, attempt: Attempt, /, proceed: Next) -> None:
        """Let the agent work where its task is to be done, and take what it leaves there."""
        claim, marking, tasks = attempt.claim, attempt.marking, self._tasks
        node = None if marking is None else marking.graph.by_id[claim.step]
        if marking is None or tasks is None or node is None or node.task is None:
            proceed(attempt)
            return
        if claim.attempt > 1 and attempt.lock_path is not None:
            # Before its place is made anew, where processes of the earlier one may work.
            wait = AttemptLock(attempt.lock_path, lambda text: performer.emit(Waiting(text)))
            wait.settle(attempt.cancellation)
        # After a retry, and behind a fix, attempts are counted anew; what was used is not.
        is_first = claim.attempt == 1 and claim.step not in marking.ledger.spent
        place = tasks.workplaces.open(node, claim.token, attempt.run_id, is_first=is_first)
        for text in place.notices:
            performer.emit(Noticed(text))
        if place.notices and attempt.compose is not None:
            attempt.compose = partial(with_notes, attempt.compose, place.notices)
        if place.cwd != attempt.cwd:
            # A work tree of its own.
            attempt.cwd = place.cwd
            attempt.known = replace(attempt.known, is_shared=lambda: False)
        try:
            proceed(attempt)
        except BaseException:
            # What is there is not lost, whatever has happened; that is the news.
            with suppress(SequencerError, OSError):
                place.close(is_accepted=False, wait_for_turn=lambda: None)
            raise
        left = self._closed(place, attempt, performer)
        for text in left.notices:
            performer.emit(Noticed(text))
        _take(attempt, left)

    def _closed(self, place: Workplace, attempt: Attempt, performer: Performer) -> Left:
        ended = attempt.ended
        is_accepted = ended is not None and ended.outcome.is_accepted
        try:
            turn = partial(self._wait_for_turn, attempt)
            return place.close(is_accepted=is_accepted, wait_for_turn=turn)
        except Interrupted:
            # It repeats what it has said before: the branch that has the work.
            left = place.close(is_accepted=False, wait_for_turn=lambda: None)
            return replace(left, error="its claim was lost before its work was merged")
        except SequencerError as error:
            return Left(error=performer.redact(str(error)))

    def _wait_for_turn(self, attempt: Attempt) -> None:
        """Wait until the results of tasks that stand before this one are merged.

        Only those count that run now in work trees of their own: what begins later begins
        with this one's work. An attempt that is to end is done, and paid for: it does not
        wait any longer.

        Raises:
            Interrupted: somebody else has the task by now.
        """
        tasks, marking = self._tasks, attempt.marking
        if tasks is not None and marking is not None and tasks.merge != "finished":
            is_strict = tasks.merge == "listed"
            holds = MergeTurn(marking.graph, attempt.claim.step, is_strict=is_strict)
            while not attempt.cancellation.is_set():
                if not holds.is_held_by(self.crowd):
                    return
                time.sleep(TURN_POLL_S)
        if attempt.cancellation.reason in (StopReason.CLAIM_LOST, StopReason.LEASE_LOST):
            raise Interrupted("interrupted")


def _take(attempt: Attempt, left: Left) -> None:
    """Let the attempt end as what it has left says."""
    attempt.left = left
    ended = attempt.ended
    if left.error is None or ended is None:
        return
    outcome = ended.outcome
    if outcome.is_accepted:
        is_stopped = attempt.cancellation.is_set()
        status = OutcomeStatus.INTERRUPTED if is_stopped else OutcomeStatus.FAILED
        outcome = outcome.replace(status=status, error=left.error)
    else:
        outcome = outcome.replace(error="\n".join(filter(None, (outcome.error, left.error))))
    attempt.ended = replace(ended, outcome=outcome)


def as_decided(ended: Ended) -> Ended:
    """Return *ended* as its decision says it counts; without one as it is.

    How often a node may be begun bounds ``retry`` (``limits.attempts``).
    """
    decision = ended.decision
    if decision is None:
        return ended
    status, error = _counting_as(decision)
    if status is OutcomeStatus.OK and ended.outcome.is_accepted:
        # It may say more than that.
        status = ended.outcome.status
    outcome = ended.outcome.replace(status=status, error=error)
    return replace(ended, outcome=outcome, verdict=None)


def _counting_as(decision: Decision) -> tuple[OutcomeStatus, str | None]:
    if decision.move is Move.RETRY:
        return OutcomeStatus.INTERRUPTED, f"a hook asked for another try: {decision.why}"
    if decision.move is Move.FAIL:
        return OutcomeStatus.FAILED, f"a hook made it fail: {decision.why}"
    return OutcomeStatus.OK, None
