"""The order of the layers."""

from __future__ import annotations

from functools import partial

from sequencer.engine.attempt import Attempt
from sequencer.engine.layers.agent import perform_by_agent
from sequencer.engine.layers.conversation import continue_conversation
from sequencer.engine.layers.evidence import judge_evidence
from sequencer.engine.layers.fallback import fall_back
from sequencer.engine.layers.hooks import apply_hooks, decide_by_hook
from sequencer.engine.layers.layer import Layer, Next
from sequencer.engine.layers.lock import hold_lock
from sequencer.engine.layers.log import keep_log
from sequencer.engine.layers.prompt import complete_prompt
from sequencer.engine.layers.router import choose_prompt
from sequencer.engine.layers.worktree import keep_files
from sequencer.engine.performing import Performer


def layers_of(performer: Performer, attempt: Attempt) -> tuple[tuple[Layer, object], ...]:
    """Return every layer inside of the log, the outer ones first, and whether it is needed."""
    step, hooks, place = attempt.prepared.step, performer.hooks, performer.place
    return (
        (keep_files, place is not None),
        (decide_by_hook, hooks is not None),
        (judge_evidence, True),
        (hold_lock, attempt.lock_path is not None),
        (choose_prompt, performer.router is not None and performer.router.is_active),
        (apply_hooks, hooks is not None),
        (complete_prompt, attempt.compose or attempt.known.notes or place is not None),
        (fall_back, performer.agents.has_fallback),
        (continue_conversation, step.continue_session and attempt.head.session is not None),
    )


def perform(performer: Performer, attempt: Attempt, *outer: Layer) -> None:
    """Make *attempt*: through its log, the *outer* layers of its kind, and those that it needs."""
    proceed: Next = partial(perform_by_agent, performer)
    for layer, is_needed in reversed(layers_of(performer, attempt)):
        if is_needed:
            proceed = partial(layer, performer, proceed=proceed)
    for layer in reversed(outer):
        proceed = partial(layer, performer, proceed=proceed)
    keep_log(performer, attempt, proceed)
