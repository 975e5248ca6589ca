"""The order of the layers, and which of them an attempt needs."""

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
from sequencer.engine.layers.workspace import work_in_folder
from sequencer.engine.performing import Performer


def list_layers(
    performer: Performer, attempt: Attempt, of_kind: Layer | None = None
) -> tuple[tuple[Layer, object], ...]:
    """Return (layer, whether it is needed) for each layer inside of the log, from the outside.

    *of_kind* is the layer of the run's kind; None: it has none.
    """
    step, hooks, has_folder = attempt.prepared.step, performer.hooks, performer.workspace.opens
    return (
        (work_in_folder, has_folder),
        *(() if of_kind is None else ((of_kind, True),)),
        (decide_by_hook, hooks is not None),
        (judge_evidence, True),
        (hold_lock, attempt.lock_path is not None),
        (choose_prompt, performer.router is not None and performer.router.is_active),
        (apply_hooks, hooks is not None),
        (complete_prompt, attempt.compose or attempt.prior.notes or has_folder),
        (fall_back, performer.agents.has_fallback),
        (continue_conversation, step.continue_session and attempt.head.session is not None),
    )


def perform(performer: Performer, attempt: Attempt, of_kind: Layer | None = None) -> None:
    """Perform *attempt* through its log and the layers that it needs; see `list_layers`."""
    proceed: Next = partial(perform_by_agent, performer)
    for layer, is_needed in reversed(list_layers(performer, attempt, of_kind)):
        if is_needed:
            proceed = partial(layer, performer, proceed=proceed)
    keep_log(performer, attempt, proceed)
