"""The page that says whether all is well with what the runs need."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterator

from msgspec import Struct

from sequencer import __version__
from sequencer.cli.views.text import file_size
from sequencer.errors import SequencerError
from sequencer.web.pages import Page, Query, every_folder
from sequencer.web.site import ShownProject, Site

LEAST_FREE_BYTES = 1024**3
MOST_LISTED = 50


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
