"""Writes one run as one file to send to people: its page without buttons, or its plots."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from html import escape
from importlib.resources import files

from msgspec.structs import replace

from sequencer.cli.views.states import sanitize_text
from sequencer.cli.views.text import one_line, shorten_middle
from sequencer.errors import TransitionRefused
from sequencer.files.textfile import slug
from sequencer.plugins.drawing.pictures import (
    FAINT,
    FONTS,
    INK,
    PALE_INK,
    SMALL,
    estimate_width,
    svg_header,
)
from sequencer.plugins.web import run_page
from sequencer.plugins.web.costs import MEASURES, PARTS, JudgeVerdicts, list_reviews, plot_growth
from sequencer.plugins.web.drawings import PLOT_HIGH, PLOT_WIDE, Series
from sequencer.plugins.web.server import environment
from sequencer.plugins.web.site import DEFAULT_RUN, Site
from sequencer.project.settings import Settings

MARK = b"<!-- a report of sequencer -->"
"""Start of each such file; `--html` overwrites no others."""
_LINK = re.compile(r' href="/[^"]*"')
_PARTS = ("head", "graph", "steps", "time")


def report_html(settings: Settings, run: str | None) -> str:
    """Return the page of the run called *run* of the project with *settings*, as one file.

    Raises:
        TransitionRefused: it was never started.
        SequencerError: it can't be read.
    """
    site = Site([settings.project_dir], settings.config_path)
    (project,) = site.projects
    address = DEFAULT_RUN if run is None else slug(run)
    page = run_page.build_run_page(site, {"whole": "1"}, project, address)
    if page.template != "run.html":
        raise TransitionRefused("report: the run was never started, so there is nothing to report")
    templates = environment()
    template = templates.get_template(page.template)
    # "distrust" hides the buttons: readers of the file do not have the run.
    values = {**page.context, "page": page, "badge": 0, "form_token": "", "distrust": True}
    context = template.new_context(values)
    parts = {name: _LINK.sub("", "".join(template.blocks[name](context))) for name in _PARTS}
    style = (
        files("sequencer.plugins.web").joinpath("static", "style.css").read_text(encoding="utf-8")
    )
    frame = templates.get_template("report.html")
    return frame.render(title=one_line(page.title), parts=parts, style=style)


PLOT_GAP, LINE, LEFT, SQUARE = 56, 22, 24, 12
TITLE_GAP, SQUARE_GAP, LEGEND_GAP = 8, 6, 18
MAX_REVIEWS = 12
_PLOT_STYLE = (
    f"<style>text {{ font-family: {FONTS}; font-size: 12px; fill: {PALE_INK} }} "
    f".grid {{ stroke: {FAINT} }} .sum {{ fill: none; stroke: currentColor; stroke-width: 1.75 }} "
    ".area { fill: currentColor; opacity: .2 } .s0 { color: #0757b5 } .s1 { color: #116b47 } "
    ".s2 { color: #8a4b00 } .s3 { color: #7a2e8e } .s4 { color: #b3261e } .s5 { color: #0a6b74 } "
    ".s6 { color: #8a949f } .yes { fill: #116b47 } .no { fill: #b3261e } "
    f".title {{ font-size: 14px; fill: {INK} }}</style>"
)


def plots_svg(settings: Settings, run: str | None) -> str:
    """Return an SVG of what the run called *run* used over time, and of its reviews' verdicts.

    Raises:
        TransitionRefused: there is nothing to draw: no usage over time, and no reviews.
    """
    site = Site([settings.project_dir], settings.config_path)
    (project,) = site.projects.values()
    row = project.row(DEFAULT_RUN if run is None else slug(run))
    story = project.story(row)
    expenses = ((row.name, replace(item, step=row.named(item.step))) for item in story.spent)
    sorted_expenses = sorted(expenses, key=lambda item: item[1].at)
    parts, y = list[str](), LINE
    for measure, part in (("cost", "agent"), ("tokens", "step"), ("time", "agent")):
        curves, series = plot_growth(sorted_expenses, MEASURES[measure], PARTS[part])
        if curves:
            label = MEASURES[measure].label
            parts += _draw_plot(curves, f"{MEASURES[measure].word} by {part}", series, label, y)
            y += PLOT_HIGH + PLOT_GAP
    reviews = [*list_reviews(row, story.judged)][:MAX_REVIEWS]
    if reviews:
        parts.append(f'<text class="title" x="{LEFT}" y="{y}">What reviews found</text>')
    for place, review in enumerate(reviews, 1):
        parts += _review(review, y + place * LINE)
    y += LINE * (len(reviews) + 1) if reviews else 0
    if not parts:
        raise TransitionRefused(
            "report: there is nothing to draw: the run has used nothing, or everything at one time"
        )
    title = f"{one_line(settings.project_dir.name)}: {one_line(row.name)}"
    opening = svg_header(PLOT_WIDE + 2 * LEFT, y, title)
    return "\n".join([*opening, _PLOT_STYLE, *parts, "</svg>"])


def _draw_plot(
    curves: str, title: str, series: list[Series], label: Callable[[float], str], y: int
) -> Iterator[str]:
    """Yield the SVG of one plot at the height *y*: its title, its curves, and a legend.

    The legend has the last value of each series, as *label* formats it.
    """
    yield f'<text class="title" x="{LEFT}" y="{y}">{escape(title)}</text>'
    yield f'<g transform="translate({LEFT} {y + TITLE_GAP})">{curves}</g>'
    x = float(LEFT)
    for place, area in enumerate(series):
        text = f"{sanitize_text(area.name)} {label(area.values[-1])}"
        position = f'x="{x:g}" y="{y + PLOT_HIGH + LINE - SQUARE + 2}"'
        square = f'width="{SQUARE}" height="{SQUARE}" fill="currentColor"'
        yield f'<g class="s{place}"><rect {position} {square}/></g>'
        x += SQUARE + SQUARE_GAP
        yield f'<text x="{x:g}" y="{y + PLOT_HIGH + LINE}">{escape(text)}</text>'
        x += estimate_width(text, SMALL) + LEGEND_GAP


def _review(review: JudgeVerdicts, y: int) -> Iterator[str]:
    x = LEFT
    for verdict in review.newest:
        kind = "yes" if verdict else "no"
        yield f'<rect class="{kind}" x="{x}" y="{y - 10}" width="{SQUARE}" height="{SQUARE}"/>'
        x += SQUARE + 3
    text = f"{sanitize_text(review.step)}: {sum(review.verdicts)} of {len(review.verdicts)} passed"
    if review.reason:
        text = shorten_middle(f"{text}; {one_line(review.reason)}", 110)
    yield f'<text x="{x + 8}" y="{y}">{escape(text)}</text>'


def is_report(beginning: bytes) -> bool:
    """Return whether a file with this *beginning* is empty or one of our reports."""
    return not beginning.strip() or beginning.startswith(MARK)
