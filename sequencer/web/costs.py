"""The page of what the runs have used: sums, how they grew, what is left, and what reviews said."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from msgspec import Struct, field

from sequencer.cli.views.states import amount
from sequencer.history.metrics import Cap, Maker, Total, caps_of, totals_of
from sequencer.model.outcome import Usage, used
from sequencer.model.team import TeamRules
from sequencer.web.drawings import Series, stacked_svg
from sequencer.web.pages import Page, Query, every_folder, look_of, money, took
from sequencer.web.site import Fact, RunRow, Site

MOST_LISTED = 50
MOST_SERIES = 6
"""Told apart in a plot; the rest is drawn as one."""
BINS = 160
"""Points of a plot, whatever the number of attempts: nobody sees more, and a page stays small."""
PACE_TRIES = 20
"""Newest attempts of a run whose pace its forecast goes on with."""
MOST_VERDICTS = 30


class Spent(NamedTuple):
    """What one attempt has used, and when."""

    at: float
    usage: Usage
    agent: str
    step: str
    run: str

    @property
    def tokens(self) -> float:
        """Return its LLM tokens, in and out."""
        return self.usage.input_tokens + self.usage.output_tokens


class Measure(NamedTuple):
    """What a plot shows the growth of."""

    word: str
    value: Callable[[Spent], float]
    label: Callable[[float], str]


def _dollars(value: float) -> str:
    return money(Usage(cost_usd=value)) or "$0"


MEASURES = {
    "cost": Measure("Cost", lambda one: one.usage.cost_usd, _dollars),
    "tokens": Measure("Tokens", lambda one: one.tokens, lambda value: amount(round(value))),
    "time": Measure(
        "Time of agents", lambda one: one.usage.seconds, lambda value: took(value) or "0"
    ),
}
PARTS: Mapping[str, Callable[[Spent], str]] = {
    "agent": lambda one: one.agent,
    "step": lambda one: one.step,
    "run": lambda one: one.run,
}


class Review(Struct):
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
    total, sums = Usage(), dict[str, dict[tuple[str, str], Total]]()
    spent: list[Spent] = []
    rows = list(site.rows())
    reviews: list[Review] = []
    for row in rows:
        facts = row.project.story(row).facts
        total = total if row.head is None else total.plus(row.head.usage)
        _sum_up(sums, row, totals_of(facts).by_maker)
        spent += spent_of(row, facts)
        reviews += reviews_of(row, facts)
    measure = MEASURES[of]
    plot, series = grown(sorted(spent, key=lambda one: one.at), measure, PARTS[by])
    context = {
        "total": total,
        "runs": [(row, look_of(row), row.head.usage) for row in _dearest(rows) if row.head],
        "agents": _sorted(sums.get("agent", {})),
        "steps": _sorted(sums.get("step", {})),
        "plot": plot,
        "series": [(one.name, measure.label(one.values[-1])) for one in series],
        "of": of,
        "by": by,
        "measures": {name: one.word for name, one in MEASURES.items()},
        "parts_of": list(PARTS),
        "caps": [one for row in rows for one in forecasts_of(row)][:MOST_LISTED],
        "reviews": sorted(reviews, key=lambda one: all(one.newest))[:MOST_LISTED],
    }
    return Page("costs.html", "Costs", context, **every_folder(site), tab="costs")


def _sorted(found: Mapping[tuple[str, str], Total]) -> list[tuple[tuple[str, str], Total]]:
    return sorted(found.items(), key=lambda one: -one[1].usage.cost_usd)[:MOST_LISTED]


def _dearest(rows: list[RunRow]) -> list[RunRow]:
    return sorted(rows, key=lambda row: -(row.head.usage.cost_usd if row.head else 0))[:MOST_LISTED]


def _sum_up(
    sums: dict[str, dict[tuple[str, str], Total]], row: RunRow, makers: Mapping[Maker, Total]
) -> None:
    for maker, found in makers.items():
        keys = {
            "agent": (maker.agent or "?", maker.model),
            "step": (maker.step, str(row.facts.get("workflow", ""))),
        }
        for part, key in keys.items():
            known = sums.setdefault(part, {}).setdefault(key, Total())
            known.accepted += found.accepted
            known.failed += found.failed
            known.usage = known.usage.plus(found.usage)


def spent_of(row: RunRow, facts: Iterable[Fact]) -> Iterator[Spent]:
    """Yield what each attempt of the run of *row* has used."""
    for fact in facts:
        outcome: Mapping[str, Any] = fact.get("outcome") or {}
        told = outcome.get("usage") or {}
        if told:
            at = datetime.fromisoformat(fact["at"]).timestamp()
            agent = str(outcome.get("agent") or "?")
            yield Spent(at, used(told), agent, fact["step"], row.name)


def reviews_of(row: RunRow, facts: Iterable[Fact]) -> Iterator[Review]:
    """Yield what each step of the run of *row* that judges has said."""
    found: dict[str, Review] = {}
    for fact in facts:
        verdict = (fact.get("outcome") or {}).get("verdict")
        if verdict is not None:
            review = found.setdefault(fact["step"], Review(row, fact["step"]))
            review.verdicts.append(bool(verdict["pass"]))
            if not verdict["pass"]:
                review.reason = str(verdict.get("reason", ""))
    yield from found.values()


def forecasts_of(row: RunRow) -> Iterator[Forecast]:
    """Yield the caps of the run of *row*, each with what its pace leaves of it."""
    head = row.head
    if head is None or head.status == "complete":
        return
    facts = row.project.story(row).facts
    newest = [*spent_of(row, facts[-4 * PACE_TRIES :])][-PACE_TRIES:]
    for cap in caps_of(row.run.limits, head.usage, (), {}, TeamRules()):
        label = _LABELS[cap.unit]
        each = sum(_USED[cap.unit](one) for one in newest) / (len(newest) or 1)
        steps_left = None if not each or head.exit else int(cap.left / each)
        pace = (newest[-1].at - newest[0].at) / (len(newest) - 1) if len(newest) > 1 else 0.0
        seconds = pace * (steps_left or 0)
        yield Forecast(row, cap, label(cap.used), label(cap.limit), steps_left, seconds)


_LABELS: Mapping[str, Callable[[float], str]] = {
    "usd": _dollars,
    "steps": lambda value: f"{value:g} steps",
    "seconds": lambda value: took(value) or "0",
}
_USED: Mapping[str, Callable[[Spent], float]] = {
    "usd": lambda one: one.usage.cost_usd,
    "steps": lambda _: 1.0,
    "seconds": lambda one: one.usage.seconds,
}


def grown(
    spent: Sequence[Spent], measure: Measure, part: Callable[[Spent], str]
) -> tuple[str, list[Series]]:
    """Return how *measure* grew, by *part*, and its series; *spent* is in the order of time."""
    whole = dict[str, float]()
    for one in spent:
        whole[part(one)] = whole.get(part(one), 0.0) + measure.value(one)
    named = sorted((name for name, value in whole.items() if value), key=lambda name: -whole[name])
    if not named or spent[0].at == spent[-1].at:
        return "", []
    kept = named if len(named) <= MOST_SERIES + 1 else [*named[:MOST_SERIES], OTHERS]
    first, last = spent[0].at, spent[-1].at
    values = {name: [0.0] * (BINS + 1) for name in kept}
    for one in spent:
        name = part(one)
        place = 1 + int((BINS - 1) * (one.at - first) / (last - first))
        if (value := measure.value(one)) and (row := values.get(name, values.get(OTHERS))):
            row[place] += value
    series = []
    for name, row in values.items():
        total, sums = 0.0, []
        for value in row:
            total += value
            sums.append(total)
        series.append(Series(name, sums))
    return stacked_svg(series, first, last, measure.label), series


OTHERS = "all others"
