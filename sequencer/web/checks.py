"""The pages over all runs: what they cost, and whether all is well with what they need."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

from msgspec import Struct

from sequencer import __version__
from sequencer.cli.views.states import amount
from sequencer.cli.views.text import file_size
from sequencer.errors import SequencerError
from sequencer.history.metrics import Total, totals_of
from sequencer.model.outcome import Usage, used
from sequencer.web.drawings import plot_svg
from sequencer.web.pages import Page, Query, every_folder, look_of, money
from sequencer.web.site import RunRow, ShownProject, Site

LEAST_FREE_BYTES = 1024**3
MOST_LISTED = 50


def costs(site: Site, query: Query) -> Page:
    """Return the page of what the runs have used."""
    del query
    rows = list(site.rows())
    total, steps, makers = Usage(), dict[tuple[str, str], Total](), dict[tuple[str, str], Total]()
    spent: list[tuple[float, float, float]] = []
    for row in rows:
        if row.head is not None:
            total = total.plus(row.head.usage)
        facts = row.project.story(row).facts
        for maker, sums in totals_of(facts).by_maker.items():
            _add(makers, (maker.agent or "?", maker.model), sums)
            _add(steps, (maker.step, row.facts.get("workflow", "")), sums)
        spent += _spent(facts)
    context = {
        "total": total,
        "runs": [(row, look_of(row), row.head.usage) for row in _dearest(rows) if row.head],
        "agents": sorted(makers.items(), key=lambda one: -one[1].usage.cost_usd),
        "steps": sorted(steps.items(), key=lambda one: -one[1].usage.cost_usd)[:MOST_LISTED],
        "plot": _plot([(at, cost) for at, cost, _ in sorted(spent)], _dollars),
        "token_plot": _plot([(at, count) for at, _, count in sorted(spent)], _count),
    }
    return Page("costs.html", "Costs", context, **every_folder(site), tab="costs")


def _dearest(rows: list[RunRow]) -> list[RunRow]:
    return sorted(rows, key=lambda row: -(row.head.usage.cost_usd if row.head else 0))[:MOST_LISTED]


def _add(found: dict[tuple[str, str], Total], key: tuple[str, str], sums: Total) -> None:
    known = found.setdefault(key, Total())
    known.accepted += sums.accepted
    known.failed += sums.failed
    known.usage = known.usage.plus(sums.usage)


def _spent(facts: list[dict[str, Any]]) -> Iterator[tuple[float, float, float]]:
    """Yield when something was used, its cost and its LLM tokens."""
    for fact in facts:
        told = (fact.get("outcome") or {}).get("usage") or {}
        if told.get("cost_usd") or told.get("input_tokens"):
            usage = used(told)
            count = usage.input_tokens + usage.output_tokens
            yield datetime.fromisoformat(fact["at"]).timestamp(), usage.cost_usd, count


def _dollars(value: float) -> str:
    return money(Usage(cost_usd=value)) or "$0"


def _count(value: float) -> str:
    return amount(round(value))


def _plot(spent: list[tuple[float, float]], label: Callable[[float], str]) -> str:
    if len(spent) < 2:  # noqa: PLR2004 - a line has two ends
        return ""
    total, values = 0.0, [(spent[0][0], 0.0)]
    for when, cost in spent:
        total += cost
        values.append((when, total))
    return plot_svg(values, label)


class HealthCheck(Struct):
    """One line of the page of checks."""

    is_well: bool
    what: str
    text: str
    command: str = ""


def health(site: Site, query: Query) -> Page:
    """Return the page that says what stands in the way of the runs."""
    del query
    found = [(project, [*_checks(project)]) for project in site.projects.values()]
    about = f"sequencer {__version__}, Python {platform.python_version()}"
    context = {"projects": found, "about": about}
    return Page("health.html", "Health", context, **every_folder(site), tab="health")


def _checks(project: ShownProject) -> Iterator[HealthCheck]:
    try:
        settings = project.project.settings
        refused = project.distrust()
    except SequencerError as error:
        yield HealthCheck(
            is_well=False, what="Settings", text=str(error), command="sequencer check"
        )
        return
    yield HealthCheck(is_well=True, what="Settings", text=str(settings.config_path or "defaults"))
    if refused is None:
        yield HealthCheck(is_well=True, what="Trust", text="it may act on this machine")
    else:
        text = "it is shown and not acted on: " + refused.message.partition("\n")[0]
        yield HealthCheck(is_well=False, what="Trust", text=text, command="sequencer trust")
    free = shutil.disk_usage(settings.project_dir).free
    yield HealthCheck(is_well=free > LEAST_FREE_BYTES, what="Disk", text=f"{file_size(free)} free")
    yield HealthCheck(
        is_well=True, what="Store", text=f"{settings.store.kind}, {settings.state_file.parent}"
    )
    yield from _run_checks(project)


def _run_checks(project: ShownProject) -> Iterator[HealthCheck]:
    for row in project.rows():
        option = "" if row.run.name is None else f"--run {row.run.name} "
        if "error" in row.facts:
            yield HealthCheck(
                is_well=False,
                what=row.name,
                text=str(row.facts["error"]),
                command=f"sequencer {option}repair",
            )
        elif row.is_stale:
            text = "a claim's holder is gone; the next run or tick takes over"
            yield HealthCheck(
                is_well=False, what=row.name, text=text, command=f"sequencer {option}takeover"
            )
        for post in row.facts.get("posts", ()):
            if post["pending"] or post["error"]:
                text = f"{post['sink']}: {post['pending']} posts wait"
                yield HealthCheck(
                    is_well=False, what=row.name, text=f"{text} {post['error'] or ''}".strip()
                )
