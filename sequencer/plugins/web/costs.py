"""The costs page: what the runs used, how it grew, what their limits leave, and reviews."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from msgspec import Struct, field
from msgspec.structs import replace

from sequencer.history.facts import RecordedFact
from sequencer.history.totals import Total, UsageKey
from sequencer.model.outcome import Usage, format_count, sum_usages
from sequencer.plugins.metrics.facts import Cap, list_caps
from sequencer.plugins.web.drawings import Series, stacked_svg
from sequencer.plugins.web.pages import Page, Query, collect_folders, took
from sequencer.plugins.web.records import UNKNOWN, AttemptUsage
from sequencer.plugins.web.site import RunRow, Site
from sequencer.store.identity import utc_now

MAX_LISTED = 20
MAX_SERIES = 6
"""Separate areas of a plot; the rest are combined into one more."""
BINS = 160
"""Points of a plot for any number of attempts: more would not be visible, and the page is small."""
PACE_TRIES = 20
"""Newest attempts of a run that its forecast is based on."""
MAX_VERDICTS = 30


class Measure(Struct, frozen=True):
    """A quantity whose growth a plot shows."""

    word: str
    value: Callable[[AttemptUsage], float]
    label: Callable[[float], str]


_TOKENS: Callable[[float], str] = lambda count: format_count(round(count))  # noqa: E731
MEASURES = {
    "cost": Measure("Cost", lambda expense: expense.usage.cost_usd, lambda usd: f"${usd:,.2f}"),
    "tokens": Measure("Tokens", lambda expense: expense.tokens, _TOKENS),
    "cache": Measure("Cache reads", lambda expense: expense.usage.cache_read_tokens, _TOKENS),
    "time": Measure(
        "Agent time", lambda expense: expense.usage.seconds, lambda seconds: took(seconds) or "0"
    ),
}
_CAPPED = {
    "usd": MEASURES["cost"],
    "steps": Measure("Steps", lambda _: 1.0, lambda value: f"{value:g} steps"),
    "seconds": MEASURES["time"],
}
"""Unit of a cap -> its measure."""
PARTS: Mapping[str, Callable[[str, AttemptUsage], str]] = {
    "agent": lambda _, expense: expense.agent,
    "step": lambda _, expense: expense.step,
    "run": lambda run, _: run,
}


class JudgeVerdicts(Struct):
    """The verdicts of one judging step in one run."""

    row: RunRow
    step: str
    verdicts: list[bool] = field(default_factory=list)
    reason: str = ""
    """Reason of the newest "no"."""

    @property
    def newest(self) -> list[bool]:
        """Return the verdicts that the page shows individually."""
        return self.verdicts[-MAX_VERDICTS:]


class Forecast(Struct, frozen=True):
    """A cap of a run, and when the run will reach it at its pace."""

    row: RunRow
    cap: Cap
    used: str
    limit: str
    steps_left: int | None
    """None: it has no pace yet, or has ended."""
    seconds_left: float

    @property
    def share(self) -> float:
        """Return the used share of the cap, from 0 to 1."""
        return min(self.cap.used / self.cap.limit, 1.0) if self.cap.limit else 1.0


def build_costs_page(site: Site, query: Query) -> Page:
    """Return the page of what the runs used."""
    measure_name, part_name = query.get("of", ""), query.get("by", "")
    measure_name, part_name = (
        measure_name if measure_name in MEASURES else "cost",
        part_name if part_name in PARTS else "agent",
    )
    sums = dict[str, dict[tuple[str, str], Total]]()
    expenses: list[tuple[str, AttemptUsage]] = []
    rows, reviews, cut_count = list(site.rows()), list[JudgeVerdicts](), 0
    run_usages = [(row, row.look, row.head.usage) for row in rows if row.head]
    for row in rows:
        story = row.project.story(row)
        _sum_up(sums, row, story.story.totals.by_maker)
        cut_count += (story.story.totals.first_revision or 1) > 1
        expenses += [(row.name, replace(item, step=row.named(item.step))) for item in story.spent]
        reviews += list_reviews(row, story.judged)
    reports = [item for row in rows for item in row.project.story(row).quotas.items()]
    # Sorted by time, so that an agent's newest report replaces older ones.
    quotas = dict(sorted(reports, key=lambda item: item[1]))
    measure = MEASURES[measure_name]
    plot, series = plot_growth(
        sorted(expenses, key=lambda item: item[1].at), measure, PARTS[part_name]
    )
    context = {
        "total": sum_usages(usage for *_, usage in run_usages),
        "cut": cut_count,
        "runs": sorted(run_usages, key=lambda item: -item[2].cost_usd)[:MAX_LISTED],
        "agents": _sort_totals(sums.get("agent", {})),
        "steps": _sort_totals(sums.get("step", {})),
        "plot": plot,
        "series": [(area.name, measure.label(area.values[-1])) for area in series],
        "of": measure_name,
        "by": part_name,
        "measures": {name: known_measure.word for name, known_measure in MEASURES.items()},
        "parts_of": list(PARTS),
        "quotas": {
            agent: quota for agent, (_, quota) in quotas.items() if quota.resets_at > utc_now()
        },
        "caps": [forecast for row in rows for forecast in list_forecasts(row)][:MAX_LISTED],
        "reviews": sorted(reviews, key=lambda review: all(review.newest))[:MAX_LISTED],
    }
    return Page("costs.html", "Costs", context, **collect_folders(site, rows), tab="costs")


def _sort_totals(totals: Mapping[tuple[str, str], Total]) -> list[tuple[tuple[str, str], Total]]:
    return sorted(totals.items(), key=lambda item: -item[1].usage.cost_usd)[:MAX_LISTED]


def _sum_up(
    sums: dict[str, dict[tuple[str, str], Total]], row: RunRow, makers: Mapping[UsageKey, Total]
) -> None:
    for maker, addition in makers.items():
        keys = {"step": (row.named(maker.step), str(row.facts.get("workflow", "")))}
        if maker.agent or addition.usage != Usage():
            # A decision without an agent has no usage; it belongs to no agent's sums.
            keys["agent"] = (maker.agent or UNKNOWN, maker.model)
        for part, key in keys.items():
            total = sums.setdefault(part, {}).setdefault(key, Total())
            total.accepted += addition.accepted
            total.failed += addition.failed
            total.usage = total.usage.plus(addition.usage)


def list_reviews(row: RunRow, judged: Iterable[RecordedFact]) -> Iterator[JudgeVerdicts]:
    """Yield the verdicts of each judging step in the run of *row*."""
    reviews: dict[str, JudgeVerdicts] = {}
    for fact in judged:
        verdict = fact.details["verdict"]
        review = reviews.setdefault(fact.step, JudgeVerdicts(row, row.named(fact.step)))
        review.verdicts.append(bool(verdict.get("pass")))
        if not verdict.get("pass"):
            review.reason = str(verdict.get("reason", ""))
    yield from reviews.values()


def list_forecasts(row: RunRow) -> Iterator[Forecast]:
    """Yield a forecast for each cap of the run of *row*, from the pace of its newest attempts."""
    head = row.head
    if head is None or head.status == "complete":
        return
    expenses = row.project.story(row, is_whole=False).spent[-PACE_TRIES:]
    for cap in list_caps(row.run.limits, head.usage, (), {}, None):
        measure = _CAPPED[cap.unit]
        per_step = sum(measure.value(expense) for expense in expenses) / (len(expenses) or 1)
        steps_left = None if not per_step or head.exit else int(cap.left / per_step)
        pace = (
            (expenses[-1].at - expenses[0].at) / (len(expenses) - 1) if len(expenses) > 1 else 0.0
        )
        seconds = pace * (steps_left or 0)
        yield Forecast(
            row, cap, measure.label(cap.used), measure.label(cap.limit), steps_left, seconds
        )


def plot_growth(
    spent: Sequence[tuple[str, AttemptUsage]],
    measure: Measure,
    part: Callable[[str, AttemptUsage], str],
) -> tuple[str, list[Series]]:
    """Return a plot of how *measure* grew, divided by *part*, and the areas that it shows.

    *spent* has (run, usage) in the order of time. The plot is empty if everything was used at
    one time.
    """
    spent, sums = [item for item in spent if measure.value(item[1])], dict[str, float]()
    for run, expense in spent:
        name = part(run, expense)
        sums[name] = sums.get(name, 0.0) + measure.value(expense)
    names = sorted(sums, key=lambda name: -sums[name])
    if not names or spent[0][1].at == spent[-1][1].at:
        return "", []
    series_names = names if len(names) <= MAX_SERIES + 1 else [*names[:MAX_SERIES], OTHERS]
    start, end = spent[0][1].at, spent[-1][1].at
    values = {name: [0.0] * (BINS + 1) for name in series_names}
    for run, expense in spent:
        if (value := measure.value(expense)) and (
            row := values.get(part(run, expense), values.get(OTHERS))
        ):
            row[1 + int((BINS - 1) * (expense.at - start) / (end - start))] += value
    series = [Series(name, [*accumulate(row)]) for name, row in values.items()]
    return stacked_svg(series, start, end, measure.label), series


OTHERS = "all others"
