"""What the thread of one attempt at a node does: its prompt, its agent, where it works.

Everything that is needed of the run is taken when the attempt begins; the run goes on
meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from msgspec.structs import replace

from sequencer.engine.allowance import Allowance
from sequencer.engine.attempt import Attempt, Prepared, Running
from sequencer.engine.composing import form_block
from sequencer.engine.conversations import Sessions
from sequencer.engine.events import AttemptUsed, Emit, Noticed, RunEvent, Waiting
from sequencer.engine.evidence import PriorAttempts
from sequencer.engine.markings import NetChanges
from sequencer.engine.merge_order import Crowd, MergeTurn
from sequencer.engine.messages import messages_block, unread
from sequencer.engine.performing import Performer
from sequencer.engine.records import wanted_form
from sequencer.engine.tasks import TaskExecution
from sequencer.engine.values import NodeValues, values_of
from sequencer.engine.workplaces import Left, Workplace
from sequencer.errors import Interrupted, SequencerError
from sequencer.executors.attempt_lock import AttemptLock, lock_path
from sequencer.executors.cancellation import StopReason
from sequencer.model.head import Head
from sequencer.model.kind import Performed
from sequencer.model.limits import utc
from sequencer.model.net.marking import Marking
from sequencer.model.outcome import Decision, Move, OutcomeStatus

TURN_POLL_S = 0.05
"""How often a result looks whether it may be merged; what it looks at is in memory."""


@dataclass
class Performances:
    """Makes what the threads of one process's attempts do."""

    control: NetChanges
    performer: Performer
    known: Callable[[Head, Prepared, Callable[[], bool]], PriorAttempts]
    """What is known when an attempt starts; see `Worker.known`."""
    crowd: Crowd = field(default=Crowd(), init=False)
    """Of the newest head; kept up to date by the worker."""
    on_use: Callable[[], None] | None = field(default=None, init=False)
    """Told in its thread that an attempt has used something; None: nobody wants to know."""

    def __post_init__(self) -> None:
        """Look which outputs the run keeps as what."""
        workflow = self.control.workflow
        self._sessions = Sessions.of(self.control.store, workflow)
        self._json_nodes = frozenset(
            step.name for step in workflow.steps if step.output and step.output.format == "json"
        )

    def task(
        self, running: Running, head: Head, marking: Marking, budget: Allowance
    ) -> Callable[[Running], None]:
        """Return what the thread of *running* does; what it needs of *marking* is taken now."""
        name = running.claim.step
        seen = head.replace(session=self._sessions.reaching(marking, name), gate=None, loop=None)
        performer = replace(
            self.performer,
            emit=self._metered(running),
            workflow=self.control.net.workflow_at(marking),
        )
        compose = self._compose(running.prepared, name, head, marking)
        known = self.known(head, running.prepared, partial(self._is_shared, head))
        made = partial(
            self._perform,
            known=known,
            subject=marking.graph.by_id[name].subject,
            head=head,
            seen=seen,
            budget=budget,
            compose=compose,
        )
        return lambda attempt: self._in_its_place(attempt, performer, marking, made)

    def _is_shared(self, head: Head) -> bool:
        """Return whether other attempts of the run are or were made since *head* granted one."""
        newest = None
        with suppress(SequencerError):  # nobody knows, then
            newest = self.control.store.view().head
        return len(head.claims) > 1 or newest is None or newest.token > head.token

    def _metered(self, running: Running) -> Emit:
        """Return who hears of *running*, and keeps what it has used where somebody asks."""
        emit, on_use = self.performer.emit, self.on_use
        if on_use is None:
            return emit

        def heard(event: RunEvent) -> None:
            if isinstance(event, AttemptUsed):
                running.used = event.usage
            emit(event)
            if isinstance(event, AttemptUsed):
                on_use()

        return heard

    def _compose(
        self, prepared: Prepared, name: str, head: Head, marking: Marking
    ) -> Callable[[str], str] | None:
        graph = marking.graph
        values = values_of(
            graph,
            name,
            marking,
            _texts(prepared, graph.by_id[name].input),
            self.control.read_output,
            json_nodes=self._json_nodes,
            head=head,
        )
        tasks = self.performer.tasks
        if values is not None and tasks is not None and graph.by_id[name].task:
            return self._context(tasks, values, marking)
        compose = None if values is None else values.compose_prompt
        if marking.active[name].failures:
            form = wanted_form(self.control.workflow, prepared.step)
            compose = (
                compose if form is None else partial(_with_block, compose or str, form_block(form))
            )
        if told := tuple(unread(marking, name)):
            block = messages_block(told, self.control.read_output)
            return partial(_with_block, compose or str, block)
        return compose

    def _context(
        self, tasks: TaskExecution, values: NodeValues, marking: Marking
    ) -> Callable[[str], str]:
        made_from = self.performer.definition
        return tasks.context(
            values,
            marking,
            request=made_from.request if made_from else None,
            substitutions=made_from.substitutions if made_from else {},
            path_of=self.control.output_path,
        )

    def _perform(
        self,
        attempt: Running,
        performer: Performer,
        around: tuple[str, ...] = (),
        *,
        known: PriorAttempts,
        subject: str | None,
        head: Head,
        seen: Head,
        budget: Allowance,
        compose: Callable[[str], str] | None,
    ) -> bool:
        """Let the agent work; return whether it did what it was asked.

        *around* is what it should know about the place where it works.
        """
        if around and compose is not None:
            compose = partial(_with_notes, compose, around)
        if performer.project != self.performer.project:
            # A work tree of its own.
            known = replace(known, is_shared=lambda: False)
        store = self.control.store
        attempt.attempt = Attempt.of(
            attempt.claim,
            head,
            attempt.prepared,
            store,
            lock_path=lock_path(store.state_path, attempt.claim.step),
            subject=subject,
        )
        performed = performer.perform(
            attempt.prepared,
            attempt.attempt,
            seen,
            budget,
            cancellation=attempt.cancellation,
            paid=attempt.paid,
            compose=compose,
            known=known,
        )
        attempt.performed = as_decided(performed)
        return attempt.performed.outcome.is_accepted

    def _keep(self, attempt: Running, marking: Marking, is_accepted: bool) -> None:
        """Keep what an accepted attempt has said, and what a judge has."""
        performed, claim = attempt.performed, attempt.claim
        if performed is not None and performed.outcome.session_fault is not None:
            self._sessions.end(marking, claim.step)
        # The run may go on behind a judge that says no to the last.
        if performed is None or not (is_accepted or performed.verdict):
            return
        attempt.reference = self.control.keep_output(
            claim.step_index, claim.token, performed.outcome.output
        )
        if is_accepted:
            self._sessions.keep(claim, performed, utc(self.control.now()))

    # --- tasks ---------------------------------------------------------------------

    def _in_its_place(
        self,
        attempt: Running,
        performer: Performer,
        marking: Marking,
        perform: Callable[..., bool],
    ) -> None:
        """Let the agent work where its task is to be done, and take what it leaves there."""
        claim, node = attempt.claim, marking.graph.by_id[attempt.claim.step]
        tasks = self.performer.tasks
        if tasks is None or node.task is None:
            self._keep(attempt, marking, perform(attempt, performer))
            return
        if claim.attempt > 1:
            # Before its place is made anew, where processes of the earlier one may work.
            path = lock_path(self.control.store.state_path, claim.step)
            wait = AttemptLock(path, lambda text: performer.emit(Waiting(text)))
            wait.settle(attempt.cancellation)
        # After a retry, and behind a fix, attempts are counted anew; what was used is not.
        is_first = claim.attempt == 1 and claim.step not in marking.ledger.spent
        place = tasks.workplaces.open(node, claim.token, attempt.head.run_id, is_first=is_first)
        for text in place.notices:
            performer.emit(Noticed(text))
        is_accepted = False
        try:
            here = replace(performer, project=place.cwd)
            is_accepted = perform(attempt, here, place.notices)
            self._keep(attempt, marking, is_accepted)
        except BaseException:
            # What is there is not lost, whatever has happened; that is the news.
            with suppress(SequencerError, OSError):
                place.close(is_accepted=False, wait_for_turn=lambda: None)
            raise
        left = self._closed(place, attempt, marking, is_accepted)
        for text in left.notices:
            performer.emit(Noticed(text))
        _take(attempt, left)

    def _closed(
        self,
        place: Workplace,
        attempt: Running,
        marking: Marking,
        is_accepted: bool,
    ) -> Left:
        turn = partial(self._wait_for_turn, attempt, marking)
        try:
            return place.close(is_accepted=is_accepted, wait_for_turn=turn)
        except Interrupted:
            # It repeats what it has said before: the branch that has the work.
            left = place.close(is_accepted=False, wait_for_turn=lambda: None)
            return replace(left, error="its claim was lost before its work was merged")
        except SequencerError as error:
            return Left(error=self.performer.redact(str(error)))

    def _wait_for_turn(self, attempt: Running, marking: Marking) -> None:
        """Wait until the results of tasks that stand before this one are merged.

        Only those count that run now in work trees of their own: what begins later begins
        with this one's work. An attempt that is to end is done, and paid for: it does not
        wait any longer.

        Raises:
            Interrupted: somebody else has the task by now.
        """
        tasks = self.performer.tasks
        if tasks is not None and tasks.merge != "finished":
            is_strict = tasks.merge == "listed"
            holds = MergeTurn(marking.graph, attempt.claim.step, is_strict=is_strict)
            while not attempt.cancellation.is_set():
                if not holds.is_held_by(self.crowd):
                    return
                time.sleep(TURN_POLL_S)
        if attempt.cancellation.reason in (StopReason.CLAIM_LOST, StopReason.LEASE_LOST):
            raise Interrupted("interrupted")


def _with_notes(compose: Callable[[str], str], notes: tuple[str, ...], text: str) -> str:
    """Return the prompt that *text* makes, with *notes* about the place behind it."""
    listed = "\n".join(f"- {note}" for note in notes)
    return _with_block(compose, f"# Where you work\n\n{listed}", text)


def _with_block(compose: Callable[[str], str], block: str, text: str) -> str:
    """Return the prompt that *text* makes, with *block* after it."""
    return f"{compose(text).rstrip()}\n\n{block}\n"


def _take(attempt: Running, left: Left) -> None:
    """Let the attempt end as what it has left says."""
    attempt.left = left
    performed = attempt.performed
    if left.error is None or performed is None:
        return
    outcome = performed.outcome
    if outcome.is_accepted:
        is_stopped = attempt.cancellation.is_set()
        status = OutcomeStatus.INTERRUPTED if is_stopped else OutcomeStatus.FAILED
        outcome = outcome.replace(status=status, error=left.error)
    else:
        outcome = outcome.replace(error="\n".join(filter(None, (outcome.error, left.error))))
    attempt.performed = replace(performed, outcome=outcome)


def _texts(prepared: Prepared, given: Mapping[str, Any]) -> str:
    """Return everything of a node in which a template may stand."""
    return f"{prepared.prompt}\n{given}" if given else prepared.prompt


def as_decided(performed: Performed) -> Performed:
    """Return *performed* as its decision says it counts; without one as it is.

    How often a node may be begun bounds ``retry`` (``limits.attempts``).
    """
    decision = performed.decision
    if decision is None:
        return performed
    status, error = _counting_as(decision)
    if status is OutcomeStatus.OK and performed.outcome.is_accepted:
        # It may say more than that.
        status = performed.outcome.status
    outcome = performed.outcome.replace(status=status, error=error)
    return replace(performed, outcome=outcome, verdict=None)


def _counting_as(decision: Decision) -> tuple[OutcomeStatus, str | None]:
    if decision.move is Move.RETRY:
        return OutcomeStatus.INTERRUPTED, f"a hook asked for another try: {decision.why}"
    if decision.move is Move.FAIL:
        return OutcomeStatus.FAILED, f"a hook made it fail: {decision.why}"
    return OutcomeStatus.OK, None
