"""What the attempts of a run have used and how they ended, summed from its journal's facts.

Facts are taken one by one and none is kept, so a journal of any length needs little memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sequencer.model.outcome import used
from sequencer.model.transitions import Event
from sequencer.resolution.timeline import is_failed_by_hand

BY_HAND = "by hand"
"""The agent of a step that a person has stamped."""
_BEGINNINGS = frozenset({Event.INITIALISED, Event.RESET})
_COUNTED = {
    Event.SUCCEEDED: "accepted",
    Event.FIXED: "accepted",
    Event.STAMPED: "accepted",
    Event.FAILED: "failed",
    Event.INVALID: "failed",
    Event.RELEASED: "released",
    Event.TAKEN_OVER: "taken_over",
}
"""What each event adds one to."""


class Maker(NamedTuple):
    """Whose attempts are summed up together."""

    step: str
    agent: str
    model: str
    """Empty: nobody asked for one, so it was the agent's own choice."""


@dataclass(slots=True)
class Tally:
    """The sums."""

    accepted: int = 0
    failed: int = 0
    """Those that judged "no" included."""
    released: int = 0
    taken_over: int = 0
    seconds: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    unpriced: int = 0
    """Calls whose cost nobody told."""
    estimated_usd: float = 0.0


@dataclass(slots=True)
class Tallies:
    """Of one run, since it began or was reset."""

    by_maker: dict[Maker, Tally] = field(default_factory=dict)
    first_revision: int | None = None
    """Of the oldest fact that is left; 1 where nothing was dropped."""
    _makers: dict[str, Maker] = field(default_factory=dict)
    """Who tried each step last, for facts that do not say."""

    def keep(self, fact: Mapping[str, Any]) -> None:
        """Add one fact of the journal."""
        if self.first_revision is None:
            self.first_revision = fact["revision"]
        event, step = fact["event"], fact["step"]
        if event in _BEGINNINGS:
            self.by_maker.clear()
            self._makers.clear()
            return
        outcome = fact.get("outcome") or {}
        usage = outcome.get("usage")
        counted = _COUNTED.get(event)
        if not usage and counted is None:
            return
        if is_failed_by_hand(event, outcome):
            counted = "failed"
        tally = self._tally_of(event, step, outcome)
        if counted is not None:
            setattr(tally, counted, getattr(tally, counted) + 1)
        if usage:
            told = used(usage)
            tally.seconds += told.seconds
            tally.input_tokens += told.input_tokens
            tally.output_tokens += told.output_tokens
            tally.cost_usd += told.cost_usd
            tally.unpriced += told.unpriced
            tally.estimated_usd += told.estimated_usd

    def _tally_of(self, event: str, step: str, outcome: Mapping[str, Any]) -> Tally:
        agent = outcome.get("agent")
        if agent:
            maker = Maker(step, str(agent), str(outcome.get("model") or ""))
            self._makers[step] = maker
        elif event == Event.STAMPED:
            maker = Maker(step, BY_HAND, "")
        else:
            maker = self._makers.get(step) or Maker(step, "", "")
        return self.by_maker.setdefault(maker, Tally())


def tallies_of(facts: Iterable[Mapping[str, Any]]) -> Tallies:
    """Return the sums of *facts*, oldest first."""
    found = Tallies()
    for fact in facts:
        found.keep(fact)
    return found
