"""One run as one file, to be sent to somebody: its page without buttons, links and scripts."""

from __future__ import annotations

import re
from importlib.resources import files

from sequencer.cli.views.text import one_line
from sequencer.documents.files import slug
from sequencer.errors import TransitionRefused
from sequencer.settings.settings import Settings
from sequencer.web import run_page
from sequencer.web.server import environment
from sequencer.web.site import DEFAULT_RUN, Site

MARK = b"<!-- a report of sequencer -->"
"""How such a file begins, so that nothing else is overwritten."""
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
    page = run_page.run(site, {"whole": "1"}, project, address)
    if page.template != "run.html":
        raise TransitionRefused("report: the run was never started, so there is nothing to tell")
    made = environment()
    template = made.get_template(page.template)
    # Without buttons: whoever gets the file has not got the run.
    values = {**page.context, "page": page, "badge": 0, "form_token": "", "distrust": True}
    context = template.new_context(values)
    parts = {name: _LINK.sub("", "".join(template.blocks[name](context))) for name in _PARTS}
    style = files("sequencer.web").joinpath("static", "style.css").read_text(encoding="utf-8")
    frame = made.get_template("report.html")
    return frame.render(title=one_line(page.title), parts=parts, style=style)


def is_report(beginning: bytes) -> bool:
    """Return whether a file that begins so is empty or one of ours."""
    return not beginning.strip() or beginning.startswith(MARK)
