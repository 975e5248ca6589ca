"""Attempts, and what they do said as events, as the engine tells it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from sequencer.engine.attempt import Attempt, PreparedStep
from sequencer.engine.events import (
    AttemptAccepted,
    AttemptEnded,
    AttemptStarted,
    AttemptUsed,
    AttemptWrote,
    Emit,
    NoticeGiven,
    Waiting,
)
from sequencer.executors.protocol import Piece
from sequencer.model.outcome import Outcome, Usage
from sequencer.model.step import Step
from sequencer.model.transitions import StepRef
from tests.contract.store_cases import WORKFLOW, make_claim, new_head


class NotAsked:
    """The agent of attempts that are only told of."""

    kind: ClassVar[str] = "canned"
    supported_fields: ClassVar[frozenset[str]] = frozenset()

    def problems(self) -> list[str]:
        return []

    def perform(self, *_: object) -> Outcome:
        raise AssertionError("nobody asks it")


LOG = "logs/steps/iter-00001_a.log"


def attempt(step: Step | str = "main", **facts: Any) -> Attempt:
    """Return an attempt at *step* in which *facts* are as said, and the others usual."""
    made = Step(name=step) if isinstance(step, str) else step
    usual = {
        "run_id": "run-1",
        "run_name": None,
        "workflow": "standard",
        "position": made.name,
        "step_index": 0,
        "token": 1,
        "attempt": 1,
        "agent": "canned",
        "state_path": Path("sync/state.json"),
        "result_path": Path("sync/results/result.json"),
        "subject": None,
    }
    assert not facts.keys() - usual.keys(), facts
    said = {**usual, **facts}
    run = {name: said.pop(name) for name in ("run_id", "run_name")}
    place = StepRef(said.pop("step_index"), made.name, made.prompt_name)
    number, who = said.pop("attempt"), (said.pop("agent"), NotAsked())
    claim = make_claim(
        max(said["token"], 1), step=place.step, step_index=place.step_index, attempt=number
    )
    return Attempt(
        claim=claim,
        head=new_head(workflow_name=said.pop("workflow"), **run),
        prepared=PreparedStep(made, said.pop("position"), place, *who, prompt=""),
        workflow=WORKFLOW,
        cwd=Path(),
        **said,
    )


@dataclass
class Saying:
    """One attempt, told to *emit*."""

    emit: Emit
    attempt: Attempt | None = None

    def _told(self) -> Attempt:
        assert self.attempt is not None
        return self.attempt

    def started(self, attempt: Attempt, log: str = LOG) -> None:
        self.attempt = attempt
        self.emit(AttemptStarted(attempt, log))

    def write(self, data: bytes, kind: Piece = Piece.OUTPUT) -> None:
        self.emit(AttemptWrote(self._told(), data, kind))

    def report_usage(self, usage: Usage) -> None:
        self.emit(AttemptUsed(self._told(), usage))

    def ended(self, attempt: Attempt, outcome: Outcome, verdict: str = "") -> None:
        self.emit(AttemptEnded(attempt, outcome, verdict))

    def accepted(self, attempt: Attempt, outcome: Outcome) -> None:
        self.emit(AttemptAccepted(attempt, outcome))

    def notice(self, text: str) -> None:
        self.emit(NoticeGiven(text))

    def waiting(self, reason: str, until: str | None = None) -> None:
        self.emit(Waiting(reason, until))
