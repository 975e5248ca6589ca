"""One attempt at a step, and who wants to hear of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sequencer.executors.protocol import Kind, Listener
from sequencer.model.outcome import Outcome, Usage
from sequencer.model.step import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Which step is being tried, by whom, for the how-manieth time."""

    run_id: str
    workflow: str
    step: Step
    position: str
    """Name of the step that the cycle has at this place, also in a review."""
    step_index: int
    token: int
    """0 in async mode, which holds no claim."""
    attempt: int
    agent: str
    prompt: str
    """File name of the prompt."""
    state_path: Path
    result_path: Path
    lock_path: Path | None = None
    """Of the step's processes; None where there is no claim."""

    @property
    def iteration(self) -> int:
        """Return step_index + 1."""
        return self.step_index + 1

    def environment(self) -> Mapping[str, str]:
        """Return the variables that tell the agent which step this is.

        Run id, step index and token together are an idempotency key: an agent that is run
        again after a crash sees the same first two and a larger third.
        """
        return {
            "SEQUENCER_RUN_ID": self.run_id,
            "SEQUENCER_WORKFLOW": self.workflow,
            "SEQUENCER_STEP": self.step.name,
            "SEQUENCER_POSITION": self.position,
            "SEQUENCER_STEP_INDEX": str(self.step_index),
            "SEQUENCER_ITERATION": str(self.iteration),
            "SEQUENCER_TOKEN": str(self.token),
            "SEQUENCER_ATTEMPT": str(self.attempt),
            "SEQUENCER_RESULT": str(self.result_path),
            "SEQUENCER_STATE": str(self.state_path),
        }


class StepLog(Listener, Protocol):
    """The log of one attempt."""

    path: Path

    def close(self, outcome: Outcome) -> None:
        """Write how it ended and close the file."""


class Logs(Protocol):
    """Makes step logs."""

    def open(self, attempt: Attempt) -> StepLog:
        """Create the log of *attempt*; an existing file is never overwritten."""

    def left_behind(self) -> Path | None:
        """Return the log of the latest step of any run that has logged here, if there is one."""


class Observer(Protocol):
    """Hears what a worker does, to show it to people; never fails a step."""

    def started(self, attempt: Attempt, log: Path) -> None:
        """Take that *attempt* begins, with its step log."""

    def write(self, data: bytes, kind: Kind) -> None:
        """Take output of the attempt that runs."""

    def used(self, usage: Usage) -> None:
        """Take the attempt's usage so far."""

    def ended(self, attempt: Attempt, outcome: Outcome) -> None:
        """Take how it ended."""

    def notice(self, text: str) -> None:
        """Take something that a person should know: restored state, an edit, a warning."""

    def waiting(self, reason: str, until: str | None) -> None:
        """Take that the worker sleeps, and until when if that is known."""


class SilentObserver:
    """Shows nothing; for programs that use the library."""

    def started(self, attempt: Attempt, log: Path) -> None:
        """Ignore it."""

    def write(self, data: bytes, kind: Kind) -> None:
        """Ignore it."""

    def used(self, usage: Usage) -> None:
        """Ignore it."""

    def ended(self, attempt: Attempt, outcome: Outcome) -> None:
        """Ignore it."""

    def notice(self, text: str) -> None:
        """Ignore it."""

    def waiting(self, reason: str, until: str | None) -> None:
        """Ignore it."""


class Tee:
    """Gives an attempt's output to its log first and then to the observer."""

    def __init__(self, log: StepLog, observer: Observer, *, hides_thoughts: bool) -> None:
        """Write to *log* always, and to *observer* what it is to see."""
        self._log = log
        self._observer = observer
        self._hides_thoughts = hides_thoughts

    def write(self, data: bytes, kind: Kind = Kind.OUTPUT) -> None:
        """See `Listener.write`."""
        self._log.write(data, kind)
        is_hidden = self._hides_thoughts and kind in (Kind.THOUGHT, Kind.ACTION)
        if not is_hidden:
            self._observer.write(data, kind)

    def used(self, usage: Usage) -> None:
        """See `Listener.used`."""
        self._observer.used(usage)
