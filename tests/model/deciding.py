"""Whether a process of the product claims at a head of the models: its own decider says so."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache

from sequencer import (
    Head,
    InvocationLimits,
    Mode,
    Outcome,
    OutcomeStatus,
    Owner,
    RunLimits,
    SequenceKind,
    Step,
    Workflow,
    find_step_ref,
)
from sequencer.engine.decide import SequenceSeen, TakeClaims, next_move
from sequencer.engine.invocation_budget import SequenceBudget
from sequencer.model import transitions
from sequencer.model.kind import fresh_head
from sequencer.model.limits import format_utc_ms

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SOMEBODY = Owner(host="h", boot_id="b", pid_ns="p", pid=1, pid_start=1, nonce="n")


@cache
def claims(step: int, steps: int, *, is_running: bool, takes_over: bool) -> bool:
    """Return whether a process claims at *step* of a procedure with so many *steps*.

    Any claim may be believed to be expired at any moment, so one that *is_running* is gone for
    a process that *takes_over*.
    """
    workflow = Workflow("w", tuple(Step(name=f"s{n}") for n in range(steps)), kind="procedure")
    head = fresh_head(workflow, "r", at=format_utc_ms(NOW), name=None, has_definition=False)
    for index in range(step):
        head = _claimed(head, workflow)
        outcome = Outcome(status=OutcomeStatus.OK)
        following, token = find_step_ref(workflow, index + 1), head.claims[0].token
        head = transitions.succeed(
            head, token, outcome, following, at=format_utc_ms(NOW), record={}
        ).head
    head = _claimed(head, workflow) if is_running else head
    budget = SequenceBudget(workflow, Mode.SYNC, InvocationLimits(), RunLimits(), head)
    gone = [claim.token for claim in head.claims] if takes_over else []
    seen = SequenceSeen(head, NOW, SequenceKind(workflow), budget, expired_tokens=gone)
    return isinstance(next_move(seen), TakeClaims)


def _claimed(head: Head, workflow: Workflow) -> Head:
    here = find_step_ref(workflow, head.step_index)
    return transitions.claim(head, here, SOMEBODY, at=format_utc_ms(NOW), ttl_s=60.0).head
