"""The page of what the runs have used: sums, how they grew, what is left, and what reviews said."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from msgspec import Struct, field

from sequencer.history.facts import RecordedFact
from sequencer.history.totals import Maker, Total
from sequencer.model.outcome import Usage, amount, total
from sequencer.plugins.metrics.facts import Cap, caps_of
from sequencer.plugins.web.drawings import Series, stacked_svg
from sequencer.plugins.web.pages import Page, Query, every_folder, took
from sequencer.plugins.web.records import UNKNOWN, Spent
from sequencer.plugins.web.site import RunRow, Site
from sequencer.store.identity import utc_now

MOST_LISTED = 20
MOST_SERIES = 6
"""Told apart in a plot; the rest is drawn as one."""
BINS = 160
"""Points of a plot, whatever the number of attempts: nobody sees more, and a page stays small."""
PACE_TRIES = 20
"""Newest attempts of a run whose pace its forecast goes on with."""
MOST_VERDICTS = 30


class Measure(NamedTuple):
    """What a plot shows the growth of."""

    word: str
    value: Callable[[Spent], float]
    label: Callable[[float], str]


_TOKENS: Callable[[float], str] = lambda count: amount(round(count))  # noqa: E731
MEASURES = {
    "cost": Measure("Cost", lambda one: one.usage.cost_usd, lambda usd: f"${usd:,.2f}"),
    "tokens": Measure("Tokens", lambda one: one.tokens, _TOKENS),
    "cache": Measure("Cache reads", lambda one: one.usage.cache_read_tokens, _TOKENS),
    "time": Measure("Time of agents", lambda one: one.usage.seconds, lambda s: took(s) or "0"),
}
_CAPPED = {
    "usd": MEASURES["cost"],
    "steps": Measure("Steps", lambda _: 1.0, lambda value: f"{value:g} steps"),
    "seconds": MEASURES["time"],
}
"""What a cap is told in, by its unit."""
PARTS: Mapping[str, Callable[[str, Spent], str]] = {
    "agent": lambda _, one: one.agent,
    "step": lambda _, one: one.step,
    "run": lambda run, _: run,
}


class Judge(Struct):
    """What a step that judges has said, in one run."""

    row: RunRow
    step: str
    verdicts: list[bool] = field(default_factory=list)
    reason: str = ""
    """Of the newest "no"."""

    @property
    def newest(self) -> list[bool]:
        """Return the verdicts that the page shows one by one."""
        return self.verdicts[-MOST_VERDICTS:]


class Forecast(NamedTuple):
    """A cap of a run, and when its pace reaches it."""

    row: RunRow
    cap: Cap
    used: str
    limit: str
    steps_left: int | None
    """None: it has no pace yet, or has ended."""
    seconds_left: float

    @property
    def share(self) -> float:
        """Return how much of the cap is used, from 0 to 1."""
        return min(self.cap.used / self.cap.limit, 1.0) if self.cap.limit else 1.0


def costs(site: Site, query: Query) -> Page:
    """Return the page of what the runs have used."""
    of, by = query.get("of", ""), query.get("by", "")
    of, by = of if of in MEASURES else "cost", by if by in PARTS else "agent"
    sums = dict[str, dict[tuple[str, str], Total]]()
    spent: list[tuple[str, Spent]] = []
    rows, reviews, cut = list(site.rows()), list[Judge](), 0
    used = [(row, row.look, row.head.usage) for row in rows if row.head]
    for row in rows:
        story = row.project.story(row)
        _sum_up(sums, row, story.story.totals.by_maker)
        cut += (story.story.totals.first_revision or 1) > 1
        spent += [(row.name, one._replace(step=row.named(one.step))) for one in story.spent]
        reviews += reviews_of(row, story.judged)
    told = [one for row in rows for one in row.project.story(row).quotas.items()]
    quotas = dict(sorted(told, key=lambda one: one[1]))
    measure = MEASURES[of]
    plot, series = grown(sorted(spent, key=lambda one: one[1].at), measure, PARTS[by])
    context = {
        "total": total(usage for *_, usage in used),
        "cut": cut,
        "runs": sorted(used, key=lambda one: -one[2].cost_usd)[:MOST_LISTED],
        "agents": _sorted(sums.get("agent", {})),
        "steps": _sorted(sums.get("step", {})),
        "plot": plot,
        "series": [(one.name, measure.label(one.values[-1])) for one in series],
        "of": of,
        "by": by,
        "measures": {name: one.word for name, one in MEASURES.items()},
        "parts_of": list(PARTS),
        "quotas": {agent: one for agent, (_, one) in quotas.items() if one.resets_at > utc_now()},
        "caps": [one for row in rows for one in forecasts_of(row)][:MOST_LISTED],
        "reviews": sorted(reviews, key=lambda one: all(one.newest))[:MOST_LISTED],
    }
    return Page("costs.html", "Costs", context, **every_folder(site), tab="costs")


def _sorted(found: Mapping[tuple[str, str], Total]) -> list[tuple[tuple[str, str], Total]]:
    return sorted(found.items(), key=lambda one: -one[1].usage.cost_usd)[:MOST_LISTED]


def _sum_up(
    sums: dict[str, dict[tuple[str, str], Total]], row: RunRow, makers: Mapping[Maker, Total]
) -> None:
    for maker, found in makers.items():
        keys = {"step": (row.named(maker.step), str(row.facts.get("workflow", "")))}
        if maker.agent or found.usage != Usage():
            # A decision that no agent makes can fail too.
            keys["agent"] = (maker.agent or UNKNOWN, maker.model)
        for part, key in keys.items():
            known = sums.setdefault(part, {}).setdefault(key, Total())
            known.accepted += found.accepted
            known.failed += found.failed
            known.usage = known.usage.plus(found.usage)


def reviews_of(row: RunRow, judged: Iterable[RecordedFact]) -> Iterator[Judge]:
    """Yield what each step of the run of *row* that judges has said."""
    found: dict[str, Judge] = {}
    for fact in judged:
        verdict = fact.details["verdict"]
        review = found.setdefault(fact.step, Judge(row, row.named(fact.step)))
        review.verdicts.append(bool(verdict["pass"]))
        if not verdict["pass"]:
            review.reason = str(verdict.get("reason", ""))
    yield from found.values()


def forecasts_of(row: RunRow) -> Iterator[Forecast]:
    """Yield the caps of the run of *row*, each with what its pace leaves of it."""
    head = row.head
    if head is None or head.status == "complete":
        return
    newest = row.project.story(row, is_whole=False).spent[-PACE_TRIES:]
    for cap in caps_of(row.run.limits, head.usage, (), {}, None):
        _, value, label = _CAPPED[cap.unit]
        each = sum(value(one) for one in newest) / (len(newest) or 1)
        steps_left = None if not each or head.exit else int(cap.left / each)
        pace = (newest[-1].at - newest[0].at) / (len(newest) - 1) if len(newest) > 1 else 0.0
        seconds = pace * (steps_left or 0)
        yield Forecast(row, cap, label(cap.used), label(cap.limit), steps_left, seconds)


def grown(
    spent: Sequence[tuple[str, Spent]], measure: Measure, part: Callable[[str, Spent], str]
) -> tuple[str, list[Series]]:
    """Return a plot of how *measure* grew, by *part*, and what it shows.

    *spent* is what was used and in which run, in the order of time.
    """
    spent, whole = [each for each in spent if measure.value(each[1])], dict[str, float]()
    for run, one in spent:
        name = part(run, one)
        whole[name] = whole.get(name, 0.0) + measure.value(one)
    named = sorted(whole, key=lambda name: -whole[name])
    if not named or spent[0][1].at == spent[-1][1].at:
        return "", []
    kept = named if len(named) <= MOST_SERIES + 1 else [*named[:MOST_SERIES], OTHERS]
    first, last = spent[0][1].at, spent[-1][1].at
    values = {name: [0.0] * (BINS + 1) for name in kept}
    for run, one in spent:
        if (value := measure.value(one)) and (
            row := values.get(part(run, one), values.get(OTHERS))
        ):
            row[1 + int((BINS - 1) * (one.at - first) / (last - first))] += value
    series = [Series(name, [*accumulate(row)]) for name, row in values.items()]
    return stacked_svg(series, first, last, measure.label), series


OTHERS = "all others"
