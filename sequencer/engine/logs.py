"""Step logs: one log per attempt, and the factory that opens them."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from sequencer.engine.attempt import Attempt
from sequencer.executors.protocol import Listener, StepRequest
from sequencer.model.outcome import Outcome


class StepLog(Listener, Protocol):
    """The log of one attempt."""

    path: Path

    def sent(self, request: StepRequest, to: str) -> None:
        """Write what the agent is about to get: the prompt of *request*, and *to* whom it goes."""

    def close(self, outcome: Outcome) -> None:
        """Write how it ended and close the file."""


class Logs(Protocol):
    """Makes step logs."""

    def open(self, attempt: Attempt) -> StepLog:
        """Create the log of *attempt*; an existing file is never overwritten."""

    def left_behind(self) -> Path | None:
        """Return the log of the latest step of any run that has logged here, if there is one."""
