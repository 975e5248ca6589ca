"""The text that an agent gets: its prompt file with what the run has to say about it."""

from __future__ import annotations

from msgspec.structs import replace

from sequencer.engine.attempt import Attempt
from sequencer.engine.layers.layer import Next
from sequencer.engine.performing import Performer


def complete_prompt(_: Performer, attempt: Attempt, proceed: Next) -> None:
    """Fill in the templates, and add what is known of earlier attempts.

    Raises:
        MissingValue: a template names something that is not there.
    """
    prompt, notes = attempt.prepared.prompt, attempt.prior.notes
    if attempt.compose is not None:
        prompt = attempt.compose(prompt)
    if prompt:
        notes = (*notes, *attempt.notes)
    if notes:
        whole = "\n\n".join((prompt.rstrip(), *notes))
        prompt = f"{whole}\n"
    attempt.prepared = replace(attempt.prepared, prompt=prompt)
    proceed(attempt)
