"""Begin a run, and change it by hand; every change is a journalled transition."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sequencer.errors import TransitionRefused
from sequencer.model import by_hand, transitions
from sequencer.model.head import FLOW_DOCUMENT, Flow, Gate, Head, Status
from sequencer.model.line import gates
from sequencer.model.line.order import place, present
from sequencer.model.request import DEFINITION_FILE, Definition
from sequencer.model.transitions import Event, Place, Transition
from sequencer.model.workflow import Workflow, ensure_definition
from sequencer.store.identity import utc_now
from sequencer.store.protocol import Store

if TYPE_CHECKING:
    from sequencer.model.net.source import FlowSource

BY_TIMEOUT = "timeout"
"""Who decided, where nobody did."""


def fresh_head(
    workflow: Workflow, name: str | None = None, *, has_definition: bool = False
) -> Head:
    """Return the head of a run of *workflow*, called *name*, that was never begun."""
    here = place(workflow, 0)
    flow = None
    if workflow.graph is not None:
        flow = Flow(rest=Status.IDLE, begun_at=utc_now(), marking={})
    return Head(
        run_id=str(uuid.uuid4()),
        run_name=name,
        workflow_name=workflow.name,
        workflow_digest=workflow.digest(),
        params=dict(workflow.params),
        expected_step=here.step,
        last_update=utc_now(),
        has_definition=has_definition,
        flow=flow,
    )


class Control:
    """Changes one run by hand."""

    def __init__(
        self,
        store: Store,
        workflow: Workflow,
        name: str | None = None,
        source: FlowSource | None = None,
    ) -> None:
        """Change the run *name* in *store*, which has *workflow* or is to have it.

        *source* says where the workflow of a graph comes from, if not from the settings.
        """
        self._store = store
        self._name = name
        self._workflow = workflow
        self._source = source

    def start(self, definition: Definition) -> Head:
        """Begin the run with *definition*, which is kept with it.

        Raises:
            TransitionRefused: a run of this name has begun already.
        """

        def change(head: Head | None) -> Transition:
            if head is not None:
                raise TransitionRefused(
                    f"start: run {head.run_name or 'default'!r} exists, at step_index "
                    f"{head.step_index}",
                    hint="choose another name with --run, or 'sequencer --run NAME run' goes on",
                )
            # Before the head: after a crash in between, who works on the run begins it so.
            self._store.keep_document(DEFINITION_FILE, definition.to_json())
            told = None if definition.team is None else {"team": definition.team}
            return transitions.initialise(self._fresh(has_definition=True), told)

        return self._store.update(change)

    def begin(self) -> Head:
        """Return the run's head; a run that was never begun begins.

        Raises:
            DefinitionChanged: see `ensure_definition`.
        """
        head = self._store.view().head
        if head is None or not self._store.state_path.exists():
            head = self._store.update(self._begin_or_keep)
        ensure_definition(head, self._workflow)
        return head

    def _begin_or_keep(self, head: Head | None) -> Transition | None:
        return transitions.initialise(self._fresh()) if head is None else None

    def _fresh(self, *, has_definition: bool | None = None) -> Head:
        """Return the head of this run before it has begun."""
        self._keep_source()
        return self._fresh_head(has_definition=has_definition)

    def _fresh_head(self, *, has_definition: bool | None = None) -> Head:
        if has_definition is None:
            # Only a named run is made from a request.
            is_named = self._name is not None
            has_definition = is_named and self._store.document(DEFINITION_FILE) is not None
        return fresh_head(self._workflow, self._name, has_definition=has_definition)

    def _keep_source(self) -> None:
        """Keep what a graph's run begins with: before the head, as a definition is."""
        if self._workflow.graph is not None:
            source = self._own_source()
            self._store.keep_document(FLOW_DOCUMENT, source.to_json())

    def _own_source(self) -> FlowSource:
        from sequencer.model.net.source import FlowSource  # noqa: PLC0415 - graphs only

        source = self._source or FlowSource(workflow=self._workflow)
        return source.model_copy(update={"workflow": self._workflow})

    def _ensure_line(self, verb: str) -> None:
        """Return if the run goes along a line of steps.

        Raises:
            TransitionRefused: it is a graph's, where several nodes may come next.
        """
        if self._workflow.graph is not None:
            raise TransitionRefused(
                f"{verb}: the run is one of a graph, which has no line of steps",
                hint="'sequencer answer' answers a node, 'retry' puts back what failed, "
                "'reset' begins again",
            )

    def _change(self, change: Callable[[Head], Transition]) -> Head:
        def apply(head: Head | None) -> Transition:
            if head is not None:
                return change(head)
            begun = transitions.initialise(self._fresh())
            return begun.then(change(begun.head))

        return self._store.update(apply)

    def _following(self, head: Head) -> Place:
        ensure_definition(head, self._workflow)
        return place(self._workflow, head.step_index + 1)

    def stamp_ok(self, note: str | None = None) -> Head:
        """See `by_hand.stamp_ok`; of a fixer only the fixing is accepted."""
        self._ensure_line("stamp")
        return self._change(lambda head: self._passed(head, Event.STAMPED, note))

    def stamp_fail(self, note: str | None = None) -> Head:
        """See `by_hand.stamp_fail`."""
        self._ensure_line("stamp")
        return self._change(lambda head: by_hand.stamp_fail(head, note, at=utc_now()))

    def skip(self, note: str | None = None) -> Head:
        """See `by_hand.skip`; behind a fixer the judgement comes again."""
        self._ensure_line("skip")
        return self._change(lambda head: self._passed(head, Event.SKIPPED, note))

    def skip_to(self, step_index: int, note: str, *, present: int) -> Head:
        """Skip the steps from *present* up to *step_index*, in one change; see `skip`.

        Raises:
            ClaimHeld: somebody works on the run, whose step would be taken away.
            TransitionRefused: the run is not at *present* any more.
        """
        self._ensure_line("skip")

        def change(head: Head) -> Transition:
            for claim in head.claims:
                if not self._store.liveness(claim).allows_take_over:
                    raise transitions.held_by(claim)
            if head.step_index != present:
                message = f"skip: the run went on to step_index {head.step_index} meanwhile"
                raise TransitionRefused(message, hint="look at 'sequencer next'")
            made = self._passed(head, Event.SKIPPED, note)
            while made.head.step_index < step_index:
                made = made.then(self._passed(made.head, Event.SKIPPED, note))
            return made

        return self._change(change)

    def _passed(self, head: Head, event: Event, note: str | None) -> Transition:
        following = self._following(head)
        if head.loop is not None and head.loop.stage == "fix":
            judge = place(self._workflow, head.step_index)
            return by_hand.pass_fixer(head, judge, event, note, at=utc_now())
        decide = by_hand.skip if event is Event.SKIPPED else by_hand.stamp_ok
        return decide(head, following, note, at=utc_now())

    def retry(self) -> Head:
        """See `by_hand.retry`; of a graph's run see `FlowControl.retry`."""
        if self._workflow.graph is not None:
            from sequencer.engine.flow.control import FlowControl  # noqa: PLC0415 - graphs only

            return FlowControl(self._store, self._workflow).retry()
        return self._change(lambda head: by_hand.retry(head, at=utc_now()))

    def rewind(self, step_index: int) -> Head:
        """See `by_hand.rewind`."""
        self._ensure_line("rewind")

        def change(head: Head) -> Transition:
            ensure_definition(head, self._workflow)
            # Beyond the end of a procedure there is no place; `rewind` refuses it by itself.
            here = (
                place(self._workflow, step_index)
                if step_index <= head.step_index
                else Place(step_index, "", "")
            )
            return by_hand.rewind(head, here, at=utc_now())

        return self._change(change)

    def set_field(self, field: str, value: Any) -> Head:
        """See `by_hand.edit_field`."""

        def placed(head: Head) -> Place:
            ensure_definition(head, self._workflow)
            return present(self._workflow, head)

        return self._change(
            lambda head: by_hand.edit_field(head, field, value, at=utc_now(), placed=placed)
        )

    def reset(self) -> Head:
        """See `by_hand.reset`; the new run has the workflow that is configured."""

        def change(head: Head) -> Transition:
            made = by_hand.reset(head, self._fresh_head(), at=utc_now())
            # Not where it is refused: the run goes on from what it was begun with.
            self._keep_source()
            return made

        return self._change(change)

    def adopt(self) -> Head:
        """See `by_hand.adopt`."""
        workflow = self._workflow

        def change(head: Head) -> Transition:
            here = present(workflow, head)
            made = by_hand.adopt(
                head, workflow.name, workflow.digest(), workflow.params, here, at=utc_now()
            )
            if head.flow is None and workflow.graph is None:
                return made
            from sequencer.engine.flow.adopting import adopted  # noqa: PLC0415 - graphs only

            return adopted(self._store, head, made, self._own_source())

        return self._change(change)

    def approve(self, note: str | None = None, *, by: str, token: int | None = None) -> Head:
        """See `gates.approve`."""
        self._ensure_gates("approve")

        def change(head: Head) -> Transition:
            ensure_definition(head, self._workflow)
            following = place(self._workflow, head.step_index)
            return gates.approve(head, following, note, at=utc_now(), by=by, token=token)

        return self._decide(change, "approve")

    def reject(self, note: str | None = None, *, by: str, token: int | None = None) -> Head:
        """See `gates.reject`; a graph's run ends as cancelled, wherever it stands."""
        if self._workflow.graph is not None:
            from sequencer.engine.flow.control import FlowControl  # noqa: PLC0415 - graphs only

            return FlowControl(self._store, self._workflow).cancel(note, by=by)
        return self._decide(
            lambda head: gates.reject(head, note, at=utc_now(), by=by, token=token), "reject"
        )

    def feedback(self, text: str, *, by: str, token: int | None = None) -> Head:
        """See `gates.feedback`."""
        self._ensure_gates("feedback")

        def change(head: Head) -> Transition:
            ensure_definition(head, self._workflow)
            back = place(self._workflow, gates.open_gate(head, "feedback").feedback_to)
            return gates.feedback(head, text, back, at=utc_now(), by=by, token=token)

        return self._decide(change, "feedback")

    def _ensure_gates(self, verb: str) -> None:
        """Return if the run may come to gates.

        Raises:
            TransitionRefused: it is a graph's, whose nodes ask questions.
        """
        if self._workflow.graph is not None:
            raise TransitionRefused(
                f"{verb}: the run is one of a graph, whose questions are answered",
                hint="'sequencer gates' shows them, 'sequencer answer NODE VALUE' answers one",
            )

    def expire(self, gate: Gate) -> Head:
        """Record what was agreed for *gate* when nobody decides; somebody may have decided."""

        def change(head: Head | None) -> Transition | None:
            if head is None or head.gate != gate:
                return None
            note = f"nobody decided until {gate.expires_at}"
            if gate.on_timeout == "reject":
                return gates.reject(head, note, at=utc_now(), by=BY_TIMEOUT)
            following = place(self._workflow, head.step_index)
            return gates.approve(head, following, note, at=utc_now(), by=BY_TIMEOUT)

        return self._store.update(change)

    def _decide(self, change: Callable[[Head], Transition], verb: str) -> Head:
        """Apply a decision; a run that was never begun has no gate."""
        never_begun = TransitionRefused(f"{verb}: the run was never begun, so no gate waits")
        if self._store.view().head is None:
            # Before the lock, whose file would be the first trace of a run.
            raise never_begun

        def apply(head: Head | None) -> Transition:
            if head is None:
                raise never_begun
            return change(head)

        return self._store.update(apply)

    def take_over(self) -> Head:
        """See `by_hand.take_over_by_force`."""
        return self._change(lambda head: by_hand.take_over_by_force(head, at=utc_now()))

    def stop(self, reason: str | None = None) -> Head:
        """See `by_hand.stop`."""
        return self._change(lambda head: by_hand.stop(head, reason, at=utc_now()))

    def pause(self) -> Head:
        """See `by_hand.pause`."""
        return self._change(lambda head: by_hand.pause(head, at=utc_now()))

    def resume(self) -> Head:
        """See `by_hand.resume`."""
        return self._change(lambda head: by_hand.resume(head, at=utc_now()))
