"""What an attempt says: for its log first, and then for the listeners of the run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from sequencer.engine.attempt import Attempt
from sequencer.engine.events import AttemptUsed, AttemptWrote, Emit
from sequencer.engine.logs import StepLog
from sequencer.errors import SequencerError
from sequencer.executors.protocol import Piece
from sequencer.model.outcome import Usage, total
from sequencer.store.leases import leases_of

_UNKNOWN = Usage(unpriced=1)


class AttemptOutput:
    """What an attempt says: for its log first, and then for the listeners."""

    def __init__(
        self, attempt: Attempt, log: StepLog, emit: Emit, paid: Sequence[Usage] = ()
    ) -> None:
        """Write to *log* and *emit* events of *attempt*, whose other agents have *paid* before."""
        self._attempt, self._emit, self._paid = attempt, emit, paid
        self._log, self.sent = log, log.sent
        self.told: Usage | None = None
        """What the agent that runs has used so far; None: it has said nothing at all."""

    def write(self, data: bytes, kind: Piece = Piece.OUTPUT) -> None:
        """Write *data* to the log; listeners get it unless the step hides thoughts."""
        if self.told is None:
            self.told = _UNKNOWN
        self._log.write(data, kind)
        is_hidden = self._attempt.step.suppress_thoughts and kind in (Piece.THOUGHT, Piece.ACTION)
        if not is_hidden:
            self._emit(AttemptWrote(self._attempt, data, kind))

    def used(self, usage: Usage) -> None:
        """Take the attempt's usage so far."""
        self.told = usage
        if self._attempt.token:
            # Should this process die, whoever takes the step over counts it.
            with suppress(OSError, SequencerError):
                leases_of(self._attempt.state_path).keep_used(
                    self._attempt.token, total((*self._paid, usage))
                )
        self._emit(AttemptUsed(self._attempt, usage))

    def notice(self, text: str, before: str = "") -> None:
        """Write *text* as the sequencer's own line, after *before*."""
        self.write(f"{before}[sequencer] {text}\n".encode(), Piece.NOTICE)
