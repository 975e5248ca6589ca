"""The layer that keeps the output of nodes."""

from __future__ import annotations

from msgspec.structs import replace

from sequencer.engine.attempt import Attempt
from sequencer.engine.conversations import Sessions
from sequencer.engine.graph_changes import GraphChanges
from sequencer.engine.layers.layer import Next
from sequencer.engine.performing import Performer
from sequencer.model.kind import AttemptResult
from sequencer.model.limits import format_utc_s
from sequencer.model.outcome import Decision, Move, OutcomeStatus


class NodeLayers:
    """The layers that need the run of the graph, for the threads of one process."""

    def __init__(self, changes: GraphChanges) -> None:
        """Make the layers for the run of *changes*."""
        self._changes = changes
        self.sessions = Sessions.from_store(changes.store, changes.workflow)

    def keep_output(self, performer: Performer, attempt: Attempt, /, proceed: Next) -> None:
        """Keep the output of an accepted attempt, and the output of a judge."""
        del performer
        proceed(attempt)
        result, claim, marking = attempt.ended, attempt.claim, attempt.marking
        if result is None or marking is None:
            return
        attempt.ended = result = apply_decision(result)
        if result.outcome.session_fault is not None:
            self.sessions.end(marking, claim.step)
        is_accepted = result.outcome.is_accepted
        # The run may continue after the last "no" of a judge, so its output is needed.
        if not (is_accepted or result.verdict):
            return
        attempt.reference = self._changes.store_output(
            claim.step_index, claim.token, result.outcome.output
        )
        if is_accepted:
            self.sessions.keep(claim, result, format_utc_s(self._changes.now()))


def apply_decision(ended: AttemptResult) -> AttemptResult:
    """Return *ended* with the status that its decision gives it; unchanged without a decision.

    ``limits.attempts`` limits how often ``retry`` can start a node.
    """
    decision = ended.decision
    if decision is None:
        return ended
    status, error = _convert_decision(decision)
    if status is OutcomeStatus.OK and ended.outcome.is_accepted:
        # The status of an accepted outcome may say more than OK.
        status = ended.outcome.status
    outcome = ended.outcome.replace(status=status, error=error)
    return replace(ended, outcome=outcome, verdict=None)


def _convert_decision(decision: Decision) -> tuple[OutcomeStatus, str | None]:
    if decision.move is Move.RETRY:
        return OutcomeStatus.INTERRUPTED, f"a hook asked for another try: {decision.why}"
    if decision.move is Move.FAIL:
        return OutcomeStatus.FAILED, f"a hook made it fail: {decision.why}"
    return OutcomeStatus.OK, None
