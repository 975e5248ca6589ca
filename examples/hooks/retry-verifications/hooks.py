"""A verification that failed is tried again, up to three times in all."""

from __future__ import annotations

import sequencer

ATTEMPTS = 3


@sequencer.hookimpl
def sequencer_transition(
    context: sequencer.HookContext, outcome: sequencer.Outcome
) -> sequencer.Decision | None:
    """Repeat the step while it has failed and there are attempts left."""
    if context.step.name != "verifications" or outcome.is_accepted:
        return None
    if context.attempt >= ATTEMPTS:
        return None
    reason = f"attempt {context.attempt} of {ATTEMPTS} failed"
    return sequencer.Decision(sequencer.Move.RETRY, reason=reason)
