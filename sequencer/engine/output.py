"""Passes the output of an attempt to its log first, and then to the listeners of the run."""

from __future__ import annotations

from contextlib import suppress

from sequencer.engine.attempt import Attempt
from sequencer.engine.events import AttemptUsed, AttemptWrote, Emit
from sequencer.errors import SequencerError
from sequencer.executors.protocol import Listener, Piece
from sequencer.model.outcome import Usage, sum_usages
from sequencer.store.leases import open_leases

_UNKNOWN = Usage(unpriced=1)


class AttemptOutput(Listener):
    """Passes the output of one attempt to its log and to the listeners."""

    def __init__(self, attempt: Attempt, emit: Emit) -> None:
        """Write to the log of *attempt* and *emit* its events."""
        self._attempt, self._emit = attempt, emit

    def write(self, data: bytes, kind: Piece = Piece.OUTPUT) -> None:
        """Write *data* to the log; listeners get it unless the step hides thoughts."""
        attempt = self._attempt
        if attempt.agent_usage is None:
            attempt.agent_usage = _UNKNOWN
        attempt.log.write(data, kind)
        is_hidden = attempt.prepared.step.suppress_thoughts
        if not (is_hidden and kind in (Piece.THOUGHT, Piece.ACTION)):
            self._emit(AttemptWrote(attempt, data, kind))

    def report_usage(self, usage: Usage) -> None:
        """Note how much the running agent has used so far, and report it."""
        attempt = self._attempt
        attempt.agent_usage, attempt.used = usage, sum_usages((*attempt.paid, usage))
        if attempt.token:
            # If this process dies, the process that takes over the step counts this usage.
            with suppress(OSError, SequencerError):
                open_leases(attempt.state_path).write_usage(attempt.token, attempt.used)
        self._emit(AttemptUsed(attempt, usage))
