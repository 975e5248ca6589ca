"""Attempts, and what they do said as events, as the engine tells it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sequencer.engine.attempt import Attempt
from sequencer.engine.events import (
    AttemptAccepted,
    AttemptEnded,
    AttemptStarted,
    AttemptUsed,
    AttemptWrote,
    Emit,
    Noticed,
    Waiting,
)
from sequencer.executors.protocol import Piece
from sequencer.model.outcome import Outcome, Usage
from sequencer.model.step import Step

LOG = Path("logs/steps/iter-00001_a.log")


def attempt(step: Step | str = "main", **facts: Any) -> Attempt:
    """Return an attempt at *step* in which *facts* are as said, and the others usual."""
    made = Step(name=step) if isinstance(step, str) else step
    usual = {
        "run_id": "run-1",
        "workflow": "standard",
        "position": made.name,
        "step_index": 0,
        "token": 1,
        "attempt": 1,
        "agent": "canned",
        "prompt": "main.md",
        "state_path": Path("sync/state.json"),
        "result_path": Path("sync/results/result.json"),
    }
    return Attempt(step=made, **{**usual, **facts})


@dataclass
class Saying:
    """One attempt, told to *emit*."""

    emit: Emit
    attempt: Attempt | None = None

    def _told(self) -> Attempt:
        assert self.attempt is not None
        return self.attempt

    def started(self, attempt: Attempt, log: Path = LOG) -> None:
        self.attempt = attempt
        self.emit(AttemptStarted(attempt, log))

    def write(self, data: bytes, kind: Piece = Piece.OUTPUT) -> None:
        self.emit(AttemptWrote(self._told(), data, kind))

    def used(self, usage: Usage) -> None:
        self.emit(AttemptUsed(self._told(), usage))

    def ended(self, attempt: Attempt, outcome: Outcome, verdict: str = "") -> None:
        self.emit(AttemptEnded(attempt, outcome, verdict))

    def accepted(self, attempt: Attempt, outcome: Outcome) -> None:
        self.emit(AttemptAccepted(attempt, outcome))

    def notice(self, text: str) -> None:
        self.emit(Noticed(text))

    def waiting(self, reason: str, until: str | None = None) -> None:
        self.emit(Waiting(reason, until))
