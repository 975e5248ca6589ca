"""What a transition of a graph run comes to: the head that stands after it."""

from __future__ import annotations

from sequencer.engine.flow.bad_end import failures
from sequencer.engine.flow.timing import later, rests
from sequencer.engine.flow.transitions import OpenTransition
from sequencer.model.head import Head, Status
from sequencer.model.net.marking import FlowStatus, Marking
from sequencer.model.net.rules import shortened
from sequencer.model.transitions import Event, Fact, Transition, changed

ERROR_CHARS = 4000
"""Of what a run has failed with, in its journal."""
ENDS_BADLY = (FlowStatus.FAILED, FlowStatus.TIMED_OUT, FlowStatus.MAX_ITERATIONS)


def rest_of(marking: Marking) -> Status:
    """Return the status that a run has while nobody works on it."""
    if marking.status in ENDS_BADLY:
        return Status.FAILED
    if marking.status is not FlowStatus.RUNNING:
        return Status.COMPLETE
    if marking.next_startable() is not None:
        return Status.WAITING_NEXT
    only_asks = all(active.since is not None for active in marking.active.values())
    return Status.WAITING_APPROVAL if only_asks else Status.WAITING_NEXT


def transition_of(step: OpenTransition) -> Transition:
    """Return what *step* did; the marking has to be written into the head by who calls."""
    _count_time(step)
    marking = step.marking
    head = changed(step.head, step.at, expected_step=_expected(marking))
    if marking.status is FlowStatus.RUNNING:
        return Transition(_at_rest(head, marking), tuple(step.facts))
    is_new = step.head.flow is None or step.head.flow.status == FlowStatus.RUNNING
    if is_new:
        told = {"status": str(marking.status)}
        if marking.status is FlowStatus.FAILED:
            told["error"] = shortened(failures(marking), ERROR_CHARS)
        step.facts.append(Fact(Event.COMPLETED, "", head.step_index, 0, 0, told))
    reason = None if marking.status is FlowStatus.COMPLETED else str(marking.status)
    head = head.replace(
        claims=(), status=rest_of(marking), pause_requested=False, exit_reason=reason
    )
    return Transition(head, tuple(step.facts))


def _at_rest(head: Head, marking: Marking) -> Head:
    if head.claims:
        return head.replace(status=Status.RUNNING)
    if head.status is Status.PAUSED or head.pause_requested:
        return head.replace(status=Status.PAUSED, pause_requested=False)
    return head.replace(status=rest_of(marking))


def _expected(marking: Marking) -> str:
    """Return a node that comes next, for who looks at the head alone."""
    name = marking.next_startable()
    return name if name is not None else next(iter(marking.active), "")


def _count_time(step: OpenTransition) -> None:
    """Keep how long agents have been at work; only where the run has a limit on that."""
    marking = step.marking
    if marking.graph.timeout_ms is None:
        return
    spent = marking.busy_ms if marking.busy_since is None else step.spent_ms
    if step.longest_taken_over_s and marking.busy_since is not None:
        # It worked no longer than its lease, for all that is known.
        spent = min(spent, marking.busy_ms + round(step.longest_taken_over_s * 1000))
    works = bool(step.head.claims) or any(map(rests, marking.active.values()))
    # Not ``at``, which has whole seconds: what is lost there would count at each change.
    since = later(step.now, 0) if works and marking.status is FlowStatus.RUNNING else None
    if (spent, since) != (marking.busy_ms, marking.busy_since):
        step.course.do("busy", spent, since)
