"""The metrics of a run: time, steps, tokens, cost, agents and parallelism.

They come from the facts of the journal, so every process computes the same metrics for the same
end. A cost that no agent has reported is unknown, never 0.

Not promised: attempts and times of a run whose first facts the journal has dropped. Then these
are left out, and the sums come from the run's head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from sequencer.history.spans import Figures, build_timeline, compute_figures
from sequencer.history.story import Story
from sequencer.history.totals import BY_HAND
from sequencer.model.graph.graph import Node
from sequencer.model.graph.task import Budget
from sequencer.model.limits import RunLimits
from sequencer.model.outcome import Usage, format_duration, format_usage
from sequencer.plugins.teams.team import TeamRules

Spent = Mapping[str, Sequence[float]]
"""Task -> USD, tokens and seconds of all its attempts."""


class Cap(Struct, frozen=True):
    """One cap and its usage."""

    scope: str
    """run, team, role or task."""
    name: str
    """Name of the role or the task; empty for a run and a team."""
    unit: str
    """usd, tokens, steps or seconds."""
    limit: float
    used: float

    @property
    def left(self) -> float:
        """Return the amount that is left; 0 if an attempt has used more than the limit."""
        return max(self.limit - self.used, 0.0)


def list_caps(
    limits: RunLimits, usage: Usage, tasks: Sequence[Node], spent: Spent, rules: TeamRules | None
) -> list[Cap]:
    """Return the caps that are set; *usage* is for the run, *spent* for the tasks of a team."""
    of_run = (
        ("usd", limits.cost_usd, usage.cost_usd),
        ("steps", limits.steps, usage.steps),
        ("seconds", limits.seconds, usage.seconds),
    )
    caps = [
        Cap("run", "", unit, limit, used_amount)
        for unit, limit, used_amount in of_run
        if limit is not None
    ]
    if not tasks or rules is None:
        return caps
    tokens = usage.input_tokens + usage.output_tokens
    caps += _caps_of_budget("team", "", rules.budget, usage.cost_usd, tokens)
    for role, budget in rules.role_budgets.items():
        names = [node.id for node in tasks if node.task is not None and node.task.role == role]
        caps += _caps_of_budget("role", role, budget, *_sum_usage(spent, names))
    for node in tasks:
        if node.task is not None:
            caps += _caps_of_budget(
                "task", node.id, node.task.budget, *_sum_usage(spent, [node.id])
            )
    return caps


def _sum_usage(usage_by_task: Spent, tasks: Sequence[str]) -> tuple[float, float]:
    """Return the USD and the tokens that *tasks* have used."""
    amounts = [usage_by_task[task] for task in tasks if task in usage_by_task]
    return round(sum(usd for usd, *_ in amounts), 9), sum(tokens for _, tokens, *_ in amounts)


def _caps_of_budget(
    scope: str, name: str, budget: Budget, cost_usd: float, tokens: float
) -> Iterator[Cap]:
    if budget.max_cost_usd is not None:
        yield Cap(scope, name, "usd", budget.max_cost_usd, cost_usd)
    if budget.max_tokens is not None:
        yield Cap(scope, name, "tokens", budget.max_tokens, tokens)


SHORTEST_SHOWN_S = 1.0
MAX_SHOWN = 20
"""Maximum number of steps of the critical path in a text."""


class Metrics(Struct, frozen=True, kw_only=True):
    """The metrics of a run; None: unknown."""

    usage: Usage
    agents: tuple[str, ...] = ()
    """The agents, in the order of their first attempts."""
    attempts: int | None = None
    failed: int | None = None
    """Attempts that failed or gave a negative verdict."""
    figures: Figures | None = None
    critical_path: tuple[str, ...] = ()
    """In a graph: the chain of steps that took longest."""

    def to_data(self) -> dict[str, Any]:
        """Return the JSON for ``activity.jsonl`` and a webhook's body."""
        usage, figures = self.usage, self.figures
        fields: dict[str, Any] = {
            "steps": usage.steps,
            "attempts": self.attempts,
            "failed": self.failed,
            "agents": list(self.agents),
            "agent_seconds": round(usage.seconds, 3),
            "input_tokens": usage.input_tokens,
            "cache_read_tokens": usage.cache_read_tokens,
            "output_tokens": usage.output_tokens,
            "cost_usd": usage.known_usd,
            "unpriced": usage.unpriced,
            "estimated_usd": usage.estimated_usd,
        }
        if figures is not None:
            fields["wall_s"] = round(figures.wall_s, 3)
            fields["people_s"] = round(figures.people_s, 3)
        if figures is not None and self.critical_path:
            fields |= {
                "peak": figures.peak,
                "speed_up": figures.speed_up and round(figures.speed_up, 3),
                "critical_s": round(figures.critical_s, 3),
                "critical_path": list(self.critical_path),
            }
        return fields

    def format_text(self, shown: Callable[[str], str] = str) -> str:
        """Return one or two lines for people; *shown* escapes a name for its destination.

        >>> usage = Usage(steps=2, seconds=75, unpriced=1)
        >>> print(Metrics(usage=usage, agents=("claude",)).format_text())
        2 steps · 1 min 15 s of agents · cost unknown · claude
        """
        usage = self.usage
        parts = [*self._format_time(), _format_count(usage.steps, "step")]
        if self.attempts is not None and self.attempts != usage.steps:
            failed_text = f", {self.failed} failed" if self.failed else ""
            parts.append(f"{_format_count(self.attempts, 'attempt')}{failed_text}")
        parts.append(f"{format_duration(usage.seconds)} of agents")
        agents = ", ".join(map(shown, self.agents))
        parts += [text for text in (format_usage(usage), agents) if text]
        lines = [" · ".join(parts), self._format_parallelism(shown)]
        return "\n\n".join(line for line in lines if line)

    def _format_time(self) -> list[str]:
        figures = self.figures
        if figures is None:
            return []
        has_waited = figures.people_s >= SHORTEST_SHOWN_S
        waiting = (
            f" ({format_duration(figures.people_s)} waiting for a person)" if has_waited else ""
        )
        return [f"took {format_duration(figures.wall_s)}{waiting}"]

    def _format_parallelism(self, display: Callable[[str], str]) -> str:
        figures = self.figures
        if figures is None or not self.critical_path:
            return ""
        parts = [f"at most {figures.peak} at the same time"]
        if figures.speed_up is not None:
            parts.append(f"{figures.speed_up:.2f} times as fast as one worker")
        path = " → ".join(map(display, self.critical_path[:MAX_SHOWN]))
        path += " → …" if len(self.critical_path) > MAX_SHOWN else ""
        parts.append(f"critical path {format_duration(figures.critical_s)}: {path}")
        return " · ".join(parts)


def _format_count(count: int, what: str) -> str:
    return f"1 {what}" if count == 1 else f"{count} {what}s"


def compute_metrics(story: Story, usage: Usage | None = None) -> Metrics:
    """Return the metrics of the run whose story is *story*.

    *usage* is from its head. None: the head belongs to another run now, so the usage is the sum of
    the story.
    """
    totals = story.totals
    makers = [maker.agent for maker in totals.by_maker]
    agents = tuple(dict.fromkeys(agent for agent in makers if agent and agent != BY_HAND))
    if usage is None:
        usage = Usage()
        for total in totals.by_maker.values():
            usage = usage.plus(total.usage, steps=total.accepted)
    if not story.has_beginning:
        return Metrics(usage=usage, agents=agents)
    timeline = build_timeline(story, 0.0)
    figures = compute_figures(timeline)
    path = tuple(timeline.executions[number].step for number in figures.critical)
    by_maker = totals.by_maker.values()
    failed_count = sum(total.failed for total in by_maker)
    ended_count = sum(total.accepted + total.released + total.taken_over for total in by_maker)
    return Metrics(
        usage=usage,
        agents=agents,
        attempts=failed_count + ended_count,
        failed=failed_count,
        figures=figures,
        # In a sequence each step waits for the previous one, so the path says nothing.
        critical_path=path if story.has_edges else (),
    )
