"""What the thread of one attempt at a node does: its prompt, its agent, where it works.

Everything that is needed of the run is taken when the attempt begins; the run goes on
meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from sequencer.engine.attempt import Attempt
from sequencer.engine.events import AttemptUsed, Emit, Noticed, RunEvent, Waiting
from sequencer.engine.flow.attempts import Running
from sequencer.engine.flow.briefing import brief_of
from sequencer.engine.flow.control import FlowControl
from sequencer.engine.flow.deciding import as_decided
from sequencer.engine.flow.sessions import Sessions
from sequencer.engine.flow.turns import Crowd, Turn
from sequencer.engine.flow.values import NodeValues, values_of
from sequencer.engine.flow.workplaces import Left, Workplace
from sequencer.engine.performing import Performer
from sequencer.engine.prepared import Allowance, Prepared
from sequencer.engine.recall import Memory
from sequencer.errors import Interrupted, SequencerError
from sequencer.executors.attempt_lock import AttemptLock, lock_path
from sequencer.executors.protocol import StopReason
from sequencer.model.head import Head
from sequencer.model.net.marking import Marking
from sequencer.model.outcome import OutcomeStatus

TURN_POLL_S = 0.05
"""How often a result looks whether it may be merged; what it looks at is in memory."""


@dataclass
class Performances:
    """Makes what the threads of one process's attempts do."""

    control: FlowControl
    performer: Performer
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
            workflow=self.control.workflow_at(marking),
        )
        compose = self._compose(running.prepared, name, head, marking)
        made = partial(
            self._perform,
            subject=marking.graph.by_id[name].subject,
            head=head,
            seen=seen,
            budget=budget,
            compose=compose,
        )
        if not marking.graph.is_team:
            return lambda attempt: self._keep(attempt, made(attempt, performer))
        return lambda attempt: self._in_its_place(attempt, performer, marking, made)

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
        if values is None:
            return None
        return self._brief(values, marking) if graph.is_team else values.compose_prompt

    def _brief(self, values: NodeValues, marking: Marking) -> Callable[[str], str]:
        made_from = self.performer.definition
        return brief_of(
            values,
            marking,
            request=made_from.request if made_from else None,
            substitutions=made_from.substitutions if made_from else {},
            path_of=self.control.output_path,
        ).compose

    def _perform(
        self,
        attempt: Running,
        performer: Performer,
        around: tuple[str, ...] = (),
        *,
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
        performed = performer.perform(
            attempt.prepared,
            self._attempt(attempt, head, subject),
            seen,
            budget,
            cancellation=attempt.cancellation,
            recall=lambda: Memory(self.control.store.state_path.parent),
            compose=compose,
        )
        attempt.performed = as_decided(performed)
        return attempt.performed.outcome.is_accepted

    def _keep(self, attempt: Running, is_accepted: bool) -> None:
        """Keep what an accepted attempt has said, and what a judge has."""
        performed, claim = attempt.performed, attempt.claim
        # The run may go on behind a judge that says no to the last.
        if performed is None or not (is_accepted or performed.verdict):
            return
        attempt.reference = self.control.keep_output(
            claim.step_index, claim.token, performed.outcome.output
        )
        if is_accepted:
            self._sessions.keep(claim, performed)

    # --- teams ---------------------------------------------------------------------

    def _in_its_place(
        self,
        attempt: Running,
        performer: Performer,
        marking: Marking,
        perform: Callable[..., bool],
    ) -> None:
        """Let the agent work where its task is to be done, and take what it leaves there."""
        claim, node = attempt.claim, marking.graph.by_id[attempt.claim.step]
        task = node.task
        team = self.performer.team
        if team is None or task is None:
            self._keep(attempt, perform(attempt, performer))
            return
        if claim.attempt > 1:
            # Before its place is made anew, where processes of the earlier one may work.
            path = lock_path(self.control.store.state_path, claim.step)
            wait = AttemptLock(path, lambda text: performer.emit(Waiting(text)))
            wait.settle(attempt.cancellation)
        # After a retry, and behind a fix, attempts are counted anew; what was used is not.
        is_first = claim.attempt == 1 and claim.step not in marking.team.spent
        place = team.workplaces.open(
            claim.step,
            claim.token,
            run_id=attempt.run_id,
            subject=node.label,
            traits=task,
            is_first=is_first,
        )
        for text in place.notices:
            performer.emit(Noticed(text))
        is_accepted = False
        try:
            here = replace(performer, project=place.cwd)
            is_accepted = perform(attempt, here, place.notices)
            self._keep(attempt, is_accepted)
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
        team = self.performer.team
        if team is not None and team.rules.merge != "finished":
            holds = Turn(marking.graph, attempt.claim.step, is_strict=team.rules.merge == "listed")
            while not attempt.cancellation.is_set():
                if not holds.is_held_by(self.crowd):
                    return
                time.sleep(TURN_POLL_S)
        if attempt.cancellation.reason in (StopReason.CLAIM_LOST, StopReason.LEASE_LOST):
            raise Interrupted("interrupted")

    def _attempt(self, running: Running, head: Head, subject: str | None) -> Attempt:
        claim, step = running.claim, running.prepared.step
        store = self.control.store
        return Attempt(
            run_id=head.run_id,
            workflow=head.workflow_name,
            step=step,
            position=claim.step,
            step_index=claim.step_index,
            token=claim.token,
            attempt=claim.attempt,
            agent=running.prepared.agent,
            prompt=step.prompt_name,
            state_path=store.state_path,
            result_path=store.result_folder(claim.step_index, claim.token) / "result.json",
            lock_path=lock_path(store.state_path, claim.step),
            subject=subject,
        )


def _with_notes(compose: Callable[[str], str], notes: tuple[str, ...], text: str) -> str:
    """Return the prompt that *text* makes, with *notes* about the place behind it."""
    listed = "\n".join(f"- {note}" for note in notes)
    return f"{compose(text).rstrip()}\n\n# Where you work\n\n{listed}\n"


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
