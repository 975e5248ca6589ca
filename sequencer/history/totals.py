"""What the attempts of a run have used and how they ended, and which caps it has left.

Facts are taken one by one and none is kept, so a journal of any length needs little memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct, field

from sequencer.history.timeline import BEGINNINGS, is_failed_by_hand
from sequencer.model.limits import RunLimits
from sequencer.model.net.graph import Node
from sequencer.model.outcome import Usage, used
from sequencer.model.team import Budget, TeamRules
from sequencer.model.transitions import Event

BY_HAND = "by hand"
"""The agent of a step that a person has stamped."""
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


class Total(Struct):
    """The sums."""

    accepted: int = 0
    failed: int = 0
    """Those that judged "no" included."""
    released: int = 0
    taken_over: int = 0
    usage: Usage = field(default_factory=Usage)


class Totals(Struct):
    """Of one run, since it began or was reset."""

    by_maker: dict[Maker, Total] = field(default_factory=dict)
    first_revision: int | None = None
    """Of the oldest fact that is left; 1 where nothing was dropped."""
    _makers: dict[str, Maker] = field(default_factory=dict)
    """Who tried each step last, for facts that do not say."""

    def keep(self, fact: Mapping[str, Any]) -> None:
        """Add one fact of the journal."""
        if self.first_revision is None:
            self.first_revision = fact["revision"]
        event, step = fact["event"], fact["step"]
        if event in BEGINNINGS:
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
        total = self._total_of(event, step, outcome)
        if counted is not None:
            setattr(total, counted, getattr(total, counted) + 1)
        if usage:
            total.usage = total.usage.plus(used(usage))

    def _total_of(self, event: str, step: str, outcome: Mapping[str, Any]) -> Total:
        agent = outcome.get("agent")
        if agent:
            maker = Maker(step, str(agent), str(outcome.get("model") or ""))
            self._makers[step] = maker
        elif event == Event.STAMPED:
            maker = Maker(step, BY_HAND, "")
        else:
            maker = self._makers.get(step) or Maker(step, "", "")
        return self.by_maker.setdefault(maker, Total())


def totals_of(facts: Iterable[Mapping[str, Any]]) -> Totals:
    """Return the sums of *facts*, oldest first."""
    found = Totals()
    for fact in facts:
        found.keep(fact)
    return found


Spent = Mapping[str, Sequence[float]]
"""By task: USD, tokens and seconds of all its attempts."""


class Cap(NamedTuple):
    """One cap."""

    scope: str
    """run, team, role or task."""
    name: str
    """Of the role or the task; empty for a run and a team."""
    unit: str
    """usd, tokens, steps or seconds."""
    limit: float
    used: float

    @property
    def left(self) -> float:
        """Return what may still be used; an attempt may overshoot, and then it is nothing."""
        return max(self.limit - self.used, 0.0)


def caps_of(
    limits: RunLimits, usage: Usage, tasks: Sequence[Node], spent: Spent, rules: TeamRules
) -> list[Cap]:
    """Return the caps that are set; *usage* is the whole run's, *spent* that of a team's tasks."""
    whole = (
        ("usd", limits.max_cost_usd, usage.cost_usd),
        ("steps", limits.max_steps, usage.steps),
        ("seconds", limits.max_seconds, usage.seconds),
    )
    found = [Cap("run", "", unit, cap, used) for unit, cap, used in whole if cap is not None]
    if not tasks:
        return found
    tokens = usage.input_tokens + usage.output_tokens
    found += _of_budget("team", "", rules.budget, usage.cost_usd, tokens)
    for role, budget in rules.role_budgets.items():
        own = [node.id for node in tasks if node.task is not None and node.task.role == role]
        found += _of_budget("role", role, budget, *_sum(spent, own))
    for node in tasks:
        if node.task is not None:
            found += _of_budget("task", node.id, node.task.budget, *_sum(spent, [node.id]))
    return found


def _sum(spent: Spent, tasks: Sequence[str]) -> tuple[float, float]:
    used = [spent[task] for task in tasks if task in spent]
    return round(sum(one[0] for one in used), 9), sum(one[1] for one in used)


def _of_budget(
    scope: str, name: str, budget: Budget, cost_usd: float, tokens: float
) -> Iterator[Cap]:
    if budget.max_cost_usd is not None:
        yield Cap(scope, name, "usd", budget.max_cost_usd, cost_usd)
    if budget.max_tokens is not None:
        yield Cap(scope, name, "tokens", budget.max_tokens, tokens)
