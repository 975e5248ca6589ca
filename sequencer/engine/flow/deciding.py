"""What a hook's decision makes of an attempt at a node of a graph.

The chart or the list says where a graph goes on, so a hook says only whether an attempt
counts. Decided before anything is kept or merged: what does not count leaves nothing.
"""

from __future__ import annotations

from dataclasses import replace

from sequencer.model.kind import Performed
from sequencer.model.outcome import Decision, Move, OutcomeStatus

OF_A_GRAPH = (Move.NEXT, Move.RETRY, Move.FAIL)


def as_decided(performed: Performed) -> Performed:
    """Return *performed* as its decision says it counts; without one as it is.

    How often a node may be begun bounds ``retry`` (``limits.max_attempts``).
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
    if decision.move is Move.NEXT:
        return OutcomeStatus.OK, None
    if decision.move is Move.RETRY:
        return OutcomeStatus.INTERRUPTED, f"a hook wants it once more: {decision.why}"
    if decision.move is Move.FAIL:
        return OutcomeStatus.FAILED, f"a hook decided so: {decision.why}"
    known = ", ".join(OF_A_GRAPH)
    message = f"a hook decided {decision.move}, which a flowchart or a team can't do; {known} can"
    return OutcomeStatus.FAILED, message
