"""What the steps of a run have said so far, read from its journal.

Only a prompt that asks for it causes the reading. A journal keeps as much as its rotation
lets it; of an older output only the name is known, and asking for it is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from sequencer.errors import StorageFailed
from sequencer.history.facts import read
from sequencer.history.outputs import Round, StepOutputs
from sequencer.store import results
from sequencer.store.folder import read_regular

MAX_OUTPUT_BYTES = 4 * 1024 * 1024
"""Of one output in a prompt; a client would refuse more anyway."""
_MOST_TRIED_CHARS = 4_000
"""Of what a fixer said it did; its end is what it came to."""
_MOST_EARLIER_CHARS = 20_000
"""Of all earlier rounds; a judge that never says yes would else make each prompt longer."""


class EarlierOutputs(Struct, frozen=True):
    """What the steps of one run have said so far, for prompts."""

    folder: Path
    """Of the run; outputs that are too large for the journal lie below it."""
    said: StepOutputs

    @property
    def steps(self) -> list[str]:
        """Return the names of the steps that have said something."""
        return sorted(self.said.records)

    def earlier_rounds(self) -> str:
        """Return what was found and tried before the newest "no", see `rounds_in_short`."""
        return rounds_in_short(map(self._told, self.said.rounds[:-1]))

    def _told(self, one: Round) -> str:
        found = f"Round {one.number} found: {one.reason or 'no reason was given'}"
        if one.fix is None:
            return found
        try:
            tried = end_of(self._output_in(one.fix))
        except StorageFailed:
            # Results are cleared away in time, and this fixer can do without them.
            tried = "(its output is gone)"
        return f"{found}\n\nThen this was tried: {tried or '(nothing was said about it)'}"

    def last(self) -> str:
        """Return the output of the step before; empty at the beginning."""
        return "" if self.said.newest is None else self.output(self.said.newest)

    def output(self, step: str) -> str:
        """Return the newest output of *step*.

        Raises:
            KeyError: it has not run yet.
            StorageFailed: its file can't be read, or is not as it was written.
            CorruptState: its record names something else than an output, or what lies there
                is no plain file.
        """
        if step not in self.said.records:
            known = ", ".join(self.steps) or "none"
            message = f"step {step!r} has no output yet; steps that have one: {known}"
            raise KeyError(message)
        return self._output_in(self.said.records[step])

    def _output_in(self, record: Mapping[str, Any]) -> str:
        name = record.get("output_file")
        if name is None:
            return str(record.get("output", ""))
        return read_output(results.output_path(self.folder, name))


def end_of(said: str) -> str:
    """Return what a fixer *said* it did, as far as later rounds have room for it."""
    text = said.strip()
    return text if len(text) <= _MOST_TRIED_CHARS else f"…{text[-_MOST_TRIED_CHARS:]}"


def rounds_in_short(rounds: Iterable[str]) -> str:
    """Return what *rounds* came to, oldest first; the oldest go where a prompt has no room."""
    told, chars_left = list(rounds), _MOST_EARLIER_CHARS
    for left_out in range(len(told), 0, -1):
        chars_left -= len(told[left_out - 1])
        if chars_left < 0:
            told[:left_out] = [f"(There were {left_out} more before these.)"]
            break
    return "\n\n".join(told)


def read_output(path: Path) -> str:
    """Return the output that an attempt has left at *path*.

    Raises:
        StorageFailed: it can't be read, is not as it was written, or is too large for a
            prompt. A step must not start with less than the one before it has said.
    """
    try:
        data = read_regular(path, max_bytes=MAX_OUTPUT_BYTES)
        is_too_large = len(data) > MAX_OUTPUT_BYTES
        is_whole = is_too_large or results.is_whole(path, data)
    except OSError as error:
        raise StorageFailed(
            f"the output of an earlier step can't be read: {error.strerror}", where=str(path)
        ) from error
    if is_too_large:
        raise StorageFailed(
            f"the output of an earlier step has more than {MAX_OUTPUT_BYTES} bytes",
            where=str(path),
            hint="name the file in the prompt instead",
        )
    if not is_whole:
        raise StorageFailed(
            "the output of an earlier step was changed after it was written",
            where=str(path),
            hint="restore the file, or remove from the prompt what asks for it",
        )
    return data.decode("utf-8", "replace")


def earlier_outputs_of(folder: Path, history: Iterable[Mapping[str, Any]]) -> EarlierOutputs:
    """Return what the run in *folder* with *history* has said."""
    said = StepOutputs()
    for fact in read(history):
        said.keep(fact)
    return EarlierOutputs(folder, said)
