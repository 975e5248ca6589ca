"""The layer that completes the prompt: the text of its file, and the context from the run."""

from __future__ import annotations

from msgspec.structs import replace

from sequencer.engine.attempt import Attempt
from sequencer.engine.layers.layer import Next
from sequencer.engine.performing import Performer


def complete_prompt(_: Performer, attempt: Attempt, proceed: Next) -> None:
    """Fill in the templates, and add the notes about earlier attempts and about the folder.

    A step without a prompt gets only the notes about earlier attempts.

    Raises:
        MissingValue: a template names a value that does not exist.
    """
    prompt, notes = attempt.prepared.prompt, attempt.prior.notes
    if attempt.compose is not None:
        prompt = attempt.compose(prompt)
    if prompt:
        notes = (*notes, *attempt.notes)
    if notes:
        prompt = "\n\n".join((prompt.rstrip(), *notes)) + "\n"
    attempt.prepared = replace(attempt.prepared, prompt=prompt)
    proceed(attempt)
