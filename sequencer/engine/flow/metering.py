"""What an attempt has used so far, as its executor tells it while the agent works."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sequencer.engine.attempt import Attempt, Observer
from sequencer.engine.flow.attempts import Running
from sequencer.executors.protocol import Kind
from sequencer.model.outcome import Outcome, Usage


@dataclass(frozen=True, slots=True)
class Metered:
    """Hears what *shown* hears of *running*, and keeps what it has used."""

    shown: Observer
    running: Running
    on_use: Callable[[], None]
    """Called in the attempt's thread when it has used something."""

    def started(self, attempt: Attempt, log: Path) -> None:
        """See `Observer`."""
        self.shown.started(attempt, log)

    def write(self, data: bytes, kind: Kind) -> None:
        """See `Observer`."""
        self.shown.write(data, kind)

    def used(self, usage: Usage) -> None:
        """Keep *usage*, and pass it on."""
        self.running.used = usage
        self.shown.used(usage)
        self.on_use()

    def ended(self, attempt: Attempt, outcome: Outcome) -> None:
        """See `Observer`."""
        self.shown.ended(attempt, outcome)

    def notice(self, text: str) -> None:
        """See `Observer`."""
        self.shown.notice(text)

    def waiting(self, reason: str, until: str | None) -> None:
        """See `Observer`."""
        self.shown.waiting(reason, until)
