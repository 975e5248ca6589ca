"""`report --html`: writes a run's page as one file to send to people, and its plots."""

from __future__ import annotations

from pathlib import Path

from sequencer.cli.context import Invocation
from sequencer.cli.options import save
from sequencer.errors import UsageRefused
from sequencer.plugins.drawing.pictures import write_picture
from sequencer.plugins.web.cli_web import ensure_extra


def report_page(
    invocation: Invocation, html: Path | None, svg: Path | None, png: Path | None
) -> None:
    """Write the page of the run, and its plots."""
    if invocation.is_json:
        raise UsageRefused(
            "can't be used with a page or a drawing", where="--json", hint="leave it out"
        )
    ensure_extra()
    # Without the extra 'web' this import would fail.
    from sequencer.plugins.web.report import is_report, plots_svg, report_html  # noqa: PLC0415

    run, settings = invocation.run_to_show(), invocation.project().settings
    if html is not None:
        save(html, report_html(settings, run.name).encode(), is_ours=is_report, what="a report")
        invocation.notify(f"{html} was written")
    if svg or png:
        write_picture(invocation, plots_svg(settings, run.name), svg, png)
