"""Opens the step logs, one for each attempt."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from sequencer.engine.attempt import Attempt, StepLog


class Logs(Protocol):
    """Makes step logs."""

    def open(self, attempt: Attempt) -> StepLog:
        """Create the log of *attempt*; an existing file is never overwritten."""

    def left_behind(self) -> Path | None:
        """Return the log of the latest step of any run that has logged here, if there is one."""
