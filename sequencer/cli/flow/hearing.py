"""What nodes that run are heard to say: the newest line and what they have used so far."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sequencer.cli.feed import Feed
from sequencer.cli.flow.team_table import Heard
from sequencer.engine.attempt import Attempt
from sequencer.executors.protocol import Kind
from sequencer.executors.redaction import Redaction
from sequencer.model.outcome import Outcome, Usage


class NodeObserver:
    """The `Observer` of one node; called by the thread that runs it, read by the painter."""

    def __init__(
        self,
        node_id: str,
        *,
        redaction: Redaction,
        changed: Callable[[], None],
        notice: Callable[[str], None],
    ) -> None:
        """Say *changed* after all that may be seen, and hand notices on to *notice*."""
        self._node_id = node_id
        self._redaction = redaction
        self._changed = changed
        self._notice = notice
        self._feed = Feed(redaction=redaction)
        self.usage = Usage()
        self.is_over = True

    @property
    def last(self) -> str:
        """Return the newest line of what runs."""
        return self._feed.last

    @property
    def heard(self) -> Heard:
        """Return what it has said and used so far, for a table."""
        usage = self.usage
        return Heard(self.last, usage.cost_usd, usage.input_tokens + usage.output_tokens)

    def started(self, attempt: Attempt, log: Path) -> None:  # noqa: ARG002 - the protocol's
        """See `Observer`."""
        self._feed, self.usage, self.is_over = Feed(redaction=self._redaction), Usage(), False
        self._changed()

    def write(self, data: bytes, kind: Kind) -> None:
        """See `Observer`."""
        self._feed.take(data, kind)
        self._changed()

    def used(self, usage: Usage) -> None:
        """See `Observer`."""
        self.usage = usage
        self._changed()

    def ended(self, attempt: Attempt, outcome: Outcome) -> None:  # noqa: ARG002 - the protocol's
        """See `Observer`; the next view of the run has the figures."""
        self.is_over = True
        self._changed()

    def notice(self, text: str) -> None:
        """See `Observer`."""
        self._notice(f"{self._node_id}: {text}")

    def waiting(self, reason: str, until: str | None) -> None:
        """See `Observer`."""
        self._notice(f"{self._node_id} waits: {reason}" + (f" (until {until})" if until else ""))
