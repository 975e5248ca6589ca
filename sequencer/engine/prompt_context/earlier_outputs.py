"""The outputs of the steps of a run so far, read from its journal for prompts.

The journal is read only if a prompt asks for an output. Rotation limits how far back it goes:
only the name of an older output is left, and asking for that output is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from sequencer.errors import StorageFailed
from sequencer.history.facts import read_facts
from sequencer.history.outputs import Round, StepOutputs
from sequencer.store import results
from sequencer.store.folder import read_regular

MAX_OUTPUT_BYTES = 4 * 1024 * 1024
"""The most bytes of one output in a prompt; a client would refuse more anyway."""
_MAX_FIX_CHARS = 4_000
"""The most characters of a fixer's output; the end is kept, because it has the result."""
_MAX_ROUNDS_CHARS = 20_000
"""The most characters of all earlier rounds. Otherwise a judge that never says yes would make
each prompt longer than the one before."""


class EarlierOutputs(Struct, frozen=True):
    """The outputs of the steps of one run so far, for prompts."""

    folder: Path
    """The folder of the run; it has the outputs that are too large for the journal."""
    recorded: StepOutputs

    @property
    def steps(self) -> list[str]:
        """Return the names of the steps that have an output."""
        return sorted(self.recorded.records)

    def earlier_rounds(self) -> str:
        """Return what was found and tried before the newest "no", see `join_rounds`."""
        return join_rounds(map(self._round_text, self.recorded.rounds[:-1]))

    def _round_text(self, fix_round: Round) -> str:
        finding = f"Round {fix_round.number} found: {fix_round.reason or 'no reason was given'}"
        if fix_round.fix is None:
            return finding
        try:
            fix_text = shorten_output(self._output_in(fix_round.fix))
        except StorageFailed:
            # Results are removed after a while, and the next fixer can work without this one.
            fix_text = "(its output is gone)"
        return f"{finding}\n\nThen this was tried: {fix_text or '(nothing was said about it)'}"

    def read_last_output(self) -> str:
        """Return the output of the step before; empty if no step has an output yet."""
        return "" if self.recorded.newest is None else self.output(self.recorded.newest)

    def output(self, step: str) -> str:
        """Return the newest output of *step*.

        Raises:
            KeyError: it has not run yet.
            StorageFailed: its file can't be read, or was changed after it was written.
            CorruptState: its record names a path that is not an output, or the path is not a
                plain file.
        """
        if step not in self.recorded.records:
            known_names = ", ".join(self.steps) or "none"
            message = f"step {step!r} has no output yet; steps that have one: {known_names}"
            raise KeyError(message)
        return self._output_in(self.recorded.records[step])

    def _output_in(self, record: Mapping[str, Any]) -> str:
        name = record.get("output_file")
        if name is None:
            return str(record.get("output", ""))
        return read_output(results.output_path(self.folder, name))


def shorten_output(output: str) -> str:
    """Return the end of a fixer's *output*, as much as a later round shows."""
    text = output.strip()
    return text if len(text) <= _MAX_FIX_CHARS else f"…{text[-_MAX_FIX_CHARS:]}"


def join_rounds(rounds: Iterable[str]) -> str:
    """Return the texts of *rounds*, oldest first; the oldest are left out if it is too long."""
    texts, chars_left = list(rounds), _MAX_ROUNDS_CHARS
    for omitted_count in range(len(texts), 0, -1):
        chars_left -= len(texts[omitted_count - 1])
        if chars_left < 0:
            texts[:omitted_count] = [f"(There were {omitted_count} more before these.)"]
            break
    return "\n\n".join(texts)


def read_output(path: Path) -> str:
    """Return the output of an attempt, which is the file at *path*.

    Raises:
        StorageFailed: it can't be read, was changed after it was written, or is too large for
            a prompt. A step must not start with only a part of the output before it.
    """
    try:
        data = read_regular(path, max_bytes=MAX_OUTPUT_BYTES)
        is_too_large = len(data) > MAX_OUTPUT_BYTES
        is_whole = is_too_large or results.is_intact(path, data)
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


def read_earlier_outputs(folder: Path, history: Iterable[Mapping[str, Any]]) -> EarlierOutputs:
    """Return the outputs that *history*, the journal of the run in *folder*, records."""
    outputs = StepOutputs()
    for fact in read_facts(history):
        outputs.add_fact(fact)
    return EarlierOutputs(folder, outputs)
