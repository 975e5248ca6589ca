"""`report`: a run as one file, to be sent to somebody."""

from __future__ import annotations

from pathlib import Path

import click

from sequencer.cli.context import Invocation
from sequencer.cli.options import NewFile, pass_invocation, save, verb
from sequencer.cli.web import ensure_extra


@verb("report", has_json=False)
@click.option("--html", type=NewFile(), metavar="FILE", required=True, help="Write it into FILE.")
@pass_invocation
def report(invocation: Invocation, *, html: Path) -> None:
    """Write a run into one file: its graph, its steps, what they cost, and who worked when.

    The file needs no server and no network. Its texts are those of the journal, without the
    answers as a whole. Needs the extra 'web'.

    \b
    Examples:
      sequencer report --html run.html
      sequencer --run login-timeout report --html review.html
    """
    ensure_extra()
    # No other command may pay for this.
    from sequencer.web.report import is_report, report_html  # noqa: PLC0415

    run = invocation.run()
    text = report_html(invocation.project().settings, run.name)
    save(html, text.encode(), is_ours=is_report, what="a report")
    invocation.say(f"{html} was written")
