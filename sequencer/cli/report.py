"""`report`: a run as one file, to be sent to somebody."""

from __future__ import annotations

from pathlib import Path

import click

from sequencer.cli.context import Invocation
from sequencer.cli.options import NewFile, pass_invocation, save, verb
from sequencer.cli.views.pictures import draw
from sequencer.cli.web import ensure_extra
from sequencer.errors import UsageRefused


@verb("report", has_json=False)
@click.option("--html", type=NewFile(), metavar="FILE", help="Write the page into FILE.")
@click.option("--svg", type=NewFile(), metavar="FILE", help="Draw the plots into FILE.")
@click.option("--png", type=NewFile(), metavar="FILE", help="Draw the plots into FILE.")
@pass_invocation
def report(
    invocation: Invocation, *, html: Path | None, svg: Path | None, png: Path | None
) -> None:
    """Write a run into one file: its graph, its steps, what they cost, and who worked when.

    The page needs no server and no network. Its texts are those of the journal, without the
    answers as a whole. The plots show cost, tokens and time as they grew, and what reviews
    found. Needs the extra 'web', and --png the extra 'picture'.

    \b
    Examples:
      sequencer report --html run.html
      sequencer report --png costs.png
      sequencer --run login-timeout report --html review.html
    """
    if not (html or svg or png):
        raise UsageRefused("--html, --svg or --png says what to write")
    ensure_extra()
    # No other command may pay for this.
    from sequencer.web.report import is_report, plots_svg, report_html  # noqa: PLC0415

    run, settings = invocation.run(), invocation.project().settings
    if html is not None:
        save(html, report_html(settings, run.name).encode(), is_ours=is_report, what="a report")
        invocation.say(f"{html} was written")
    if svg or png:
        draw(invocation, plots_svg(settings, run.name), svg, png)
