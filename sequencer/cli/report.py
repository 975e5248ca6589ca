"""`report`: what a run did, as text, metrics, a picture, or one file to be sent to somebody."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import click

from sequencer.cli.context import Invocation
from sequencer.cli.options import NewFile, pass_invocation, save, verb, with_options
from sequencer.errors import UsageRefused
from sequencer.plugins.drawing.pictures import draw
from sequencer.plugins.web.cli_web import ensure_extra

_OPTIONS = with_options(
    click.option("--gantt", is_flag=True, help="Show who worked when (the default)."),
    click.option("--html", type=NewFile(), metavar="FILE", help="Write a page into FILE."),
    click.option("--svg", type=NewFile(), metavar="FILE",
                 help="Draw the plots into FILE; with --gantt, who worked when."),
    click.option("--png", type=NewFile(), metavar="FILE", help="The same, as PNG."),
    click.option("--metrics", is_flag=True, help="Print metrics, for Prometheus."),
    click.option("--all-runs", is_flag=True, help="With --metrics: those of every run."),
    click.option("--format", "text_format", metavar="F",
                 type=click.Choice(["openmetrics", "prometheus"]),
                 help="How metrics are written: openmetrics (default), or prometheus for a node "
                 "exporter."),
    click.option("--output", type=NewFile(), metavar="FILE",
                 help="Write the metrics into FILE, whole or not at all."),
    click.option("--width", type=click.IntRange(min=60, max=1000), metavar="N",
                 help="Width of the text, in columns."),
)  # fmt: skip


@verb("report")
@_OPTIONS
@pass_invocation
def report(invocation: Invocation, /, *, gantt: bool, metrics: bool, **given: Any) -> None:
    """Show what a run did: who worked when, the critical path, and the speedup.

    While a run continues, running attempts count as if they ended now. The page has the graph,
    the steps and what they cost; it needs no server and no network. The plots show cost, tokens
    and time as they grew, and what reviews found. The page and the plots need the extra 'web',
    --png the extra 'picture'.

    \b
    Examples:
      sequencer report
      sequencer --run review report --html review.html
      sequencer --run review report --gantt --svg review.svg
      sequencer report --metrics --all-runs --output /srv/s.prom
    """
    asked = {name for name, value in given.items() if value not in (None, False)}
    draws, of_metrics = {"svg", "png"}, {"all_runs", "text_format", "output"}
    may = of_metrics if metrics else draws | {"width"} if gantt else {"html", "width"} | draws
    if metrics and gantt:
        raise UsageRefused("--gantt and --metrics can't be used together")
    for name in sorted(asked - may):
        option = "format" if name == "text_format" else name.replace("_", "-")
        refusal = "works only with" if name in of_metrics else "can't be used with"
        other = "--metrics" if metrics or name in of_metrics else "--gantt"
        raise UsageRefused(f"{refusal} {other}", where=f"--{option}")
    if metrics:
        if invocation.is_json:
            raise UsageRefused("can't be used with --metrics", where="--json", hint="leave it out")
        options = {name: given[name] for name in sorted(of_metrics)}
        options["text_format"] = options["text_format"] or "openmetrics"
        # prometheus_client is slow to load.
        import_module("sequencer.plugins.metrics.cli_metrics").report_metrics(invocation, **options)
    elif gantt or not asked - {"width"}:
        room = import_module("sequencer.plugins.drawing.cli_gantt")
        room.report_gantt(invocation, given["svg"], given["png"], given["width"])
    else:
        _write(invocation, given["html"], given["svg"], given["png"])


def _write(invocation: Invocation, html: Path | None, svg: Path | None, png: Path | None) -> None:
    """Write the page of the run, and its plots."""
    if invocation.is_json:
        raise UsageRefused(
            "can't be used with a page or a drawing", where="--json", hint="leave it out"
        )
    ensure_extra()
    # No other command may pay for this.
    from sequencer.plugins.web.report import is_report, plots_svg, report_html  # noqa: PLC0415

    run, settings = invocation.run_to_show(), invocation.project().settings
    if html is not None:
        save(html, report_html(settings, run.name).encode(), is_ours=is_report, what="a report")
        invocation.say(f"{html} was written")
    if svg or png:
        draw(invocation, plots_svg(settings, run.name), svg, png)
