"""The code that an attempt has left: collected before its end is recorded, kept if that fails."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from sequencer.engine.carrier import Carrier
from sequencer.errors import SequencerError, WorkTreeRefused
from sequencer.model.head import Claim, Head
from sequencer.model.line.line import Ended, Ending, EndingKind
from sequencer.model.outcome import Outcome, OutcomeStatus


def collected(carrier: Carrier, claim: Claim, head: Head, ended: Ended) -> Ended:
    """Return how the attempt ended, with the code that is to move with it.

    Where the code can't move, the attempt has failed and its work is on a branch of its own.
    """
    if not ended.has_worked:
        return ended
    try:
        work = carrier.collect(claim, claim.step, head)
    except WorkTreeRefused as refusal:
        return without_code(carrier, claim, head, ended, refusal)
    if work is None:
        return ended
    record = {**ended.record, "work": work.model_dump()}
    return replace(ended, record=record, work=work)


def left(carrier: Carrier, claim: Claim, head: Head) -> Head:
    """Have *carrier* leave the work tree if who held *claim* holds none in *head*; return that."""
    if not any(one.owner.nonce == claim.owner.nonce for one in head.claims):
        carrier.leave(head)
    return head


def without_code(
    carrier: Carrier, claim: Claim, head: Head, ended: Ended, refusal: WorkTreeRefused
) -> Ended:
    """Return *ended* as the failure that it is because its code was not taken."""
    outcome = failed(carrier, claim, head, ended.outcome, refusal)
    performed = replace(ended.performed, outcome=outcome, decision=None, verdict=None)
    record = {name: value for name, value in ended.record.items() if name != "work"}
    record |= {"status": str(outcome.status), "error": outcome.error}
    return Ended(performed, Ending(EndingKind.FAIL), record)


def failed(
    carrier: Carrier, claim: Claim, head: Head, outcome: Outcome, refusal: WorkTreeRefused
) -> Outcome:
    """Return *outcome* as a failure that names the branch on which the work is kept."""
    error, kept = refusal.message, None
    with contextlib.suppress(SequencerError):
        kept = carrier.keep(claim, claim.step, head)
    if kept is not None:
        error = f"{error}; what the step did is on branch {kept}"
    return outcome.replace(status=OutcomeStatus.FAILED, error=error)
