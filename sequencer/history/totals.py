"""The usage of a run's attempts, by step and agent.

A cost that was not reported is unknown, and never counts as 0.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from sequencer.history.facts import EndState, RecordedFact
from sequencer.model.outcome import Usage

CLASSIFICATION = "(classification)"
"""The step for the usage of making a run; no real step has such a name."""
BY_HAND = "by hand"
"""The agent of a step that a person stamped."""
_COUNTED: Mapping[EndState, str] = {
    EndState.DONE: "accepted",
    EndState.FAILED: "failed",
    EndState.REFUSED: "failed",
    EndState.RELEASED: "released",
    EndState.LOST: "taken_over",
}
"""The counter of `Total` for each ending."""


class UsageKey(Struct, frozen=True):
    """The key of a sum: attempts with the same maker are added up."""

    step: str
    agent: str
    model: str
    """Empty: the step names none, so the agent chose its default."""


class Total(Struct):
    """The sums of one maker."""

    accepted: int = 0
    failed: int = 0
    """Including attempts that judged "no"."""
    released: int = 0
    taken_over: int = 0
    usage: Usage = field(default_factory=Usage)


class Totals(Struct):
    """The sums of one run since its start or reset."""

    by_maker: dict[UsageKey, Total] = field(default_factory=dict)
    first_revision: int | None = None
    """Revision of the oldest fact in the journal; 1: nothing was dropped."""
    _makers: dict[str, UsageKey] = field(default_factory=dict)
    """The newest maker at each step, for facts that do not name one."""

    def sum_by_step(self) -> dict[str, Usage]:
        """Return the usage of all attempts at each step, by the step's name."""
        by_step: dict[str, Usage] = {}
        for maker, total in self.by_maker.items():
            usage = by_step.get(maker.step)
            by_step[maker.step] = total.usage if usage is None else usage.plus(total.usage)
        return by_step

    def add_fact(self, fact: RecordedFact, usage: Usage | None) -> None:
        """Add one fact of the journal and its *usage*; None: it has none."""
        if self.first_revision is None:
            self.first_revision = fact.revision
        step, meaning = fact.step, fact.meaning
        if meaning.starts_over:
            self.by_maker.clear()
            self._makers.clear()
            step = CLASSIFICATION
        counter = _COUNTED.get(meaning.ends) if meaning.ends else None
        if usage is None and counter is None:
            return
        total = self._find_or_add_total(fact, step)
        if counter is not None:
            setattr(total, counter, getattr(total, counter) + 1)
        if usage is not None:
            total.usage = total.usage.plus(usage)

    def _find_or_add_total(self, fact: RecordedFact, step: str) -> Total:
        details = fact.details
        if agent := details.get("agent"):
            maker = UsageKey(step, str(agent), str(details.get("model") or ""))
            self._makers[step] = maker
        elif fact.meaning.by_hand:
            maker = UsageKey(step, BY_HAND, "")
        else:
            maker = self._makers.get(step) or UsageKey(step, "", "")
        return self.by_maker.setdefault(maker, Total())
