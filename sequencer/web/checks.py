"""The page that says whether all is well with what the runs need.

It has the checks of ``sequencer check`` that run nothing of the project: no hook is loaded, no
remote is asked, no timer's table is read. What these would find, the command says.
"""

from __future__ import annotations

import platform
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version

from msgspec import Struct

from sequencer import __version__
from sequencer.checks import check_flows, check_folders, check_webhooks
from sequencer.cli.views.runs import Open
from sequencer.cli.views.text import file_size, plural
from sequencer.errors import ConfigurationError, RemoteUnreachable, SequencerError
from sequencer.findings import Area, Finding, Level, of_error
from sequencer.git.check import check_git
from sequencer.model.head import Head
from sequencer.project import Project
from sequencer.web.hooks.box import DeliveryBox
from sequencer.web.pages import MISSED, Page, Query, every_folder, missed
from sequencer.web.site import RunRow, ShownProject, Site

LEAST_FREE_BYTES = 1024**3
MOST_FINDINGS, MOST_DELIVERIES = 12, 6
LIBRARIES = ("starlette", "uvicorn", "temporalio", "anthropic")
KNOWN_S = 30.0
"""How long the findings about a project are believed: they take a look at each of its flows."""


class HealthCheck(Struct):
    """One line of the page of checks."""

    is_well: bool
    what: str
    text: str
    command: str = ""
    url: str = ""
    is_warning: bool = False
    """It is not well, and things go on all the same."""


def health(site: Site, query: Query) -> Page:
    """Return the page that says what stands in the way of the runs."""
    del query
    found = [
        (project, sorted(_checks(site, project), key=lambda one: one.is_well))
        for project in site.projects.values()
    ]
    context = {"projects": found, "about": ", ".join(_versions())}
    return Page("health.html", "Health", context, **every_folder(site), tab="health")


def _versions() -> Iterator[str]:
    yield f"sequencer {__version__}"
    yield f"Python {platform.python_version()}"
    yield f"{platform.system()} {platform.release()}"
    for name in LIBRARIES:
        try:
            yield f"{name} {version(name)}"
        except PackageNotFoundError:
            continue


def _checks(site: Site, shown: ShownProject) -> Iterator[HealthCheck]:
    try:
        settings = shown.project.settings
        refused = shown.distrust()
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
    yield from _findings(shown)
    yield from _deliveries(site, shown)
    try:
        rows = [*shown.rows()]
    except RemoteUnreachable as error:
        yield HealthCheck(is_well=False, what="Store", text=str(error))
        return
    text = f"{settings.store.kind}, {settings.state_file.parent}"
    if shown.is_remote:
        text = f"{settings.store.kind}, the server answers"
    yield HealthCheck(is_well=True, what="Store", text=f"{text}, {plural(len(rows), 'run')}")
    for row in rows:
        yield from _run_checks(row)


def _findings(shown: ShownProject) -> Iterator[HealthCheck]:
    until, findings = shown.findings
    if until < time.monotonic():
        findings = list(dict.fromkeys(_found(shown.project)))
        shown.findings = time.monotonic() + KNOWN_S, findings
    for one in findings[:MOST_FINDINGS]:
        is_well = one.level is Level.NOTICE
        text = f"{one.message} ({one.where})" if one.where else one.message
        text = f"{text}. {one.hint or ''}".strip()
        is_warning = one.level is Level.WARNING
        yield HealthCheck(is_well, str(one.area).capitalize(), text, is_warning=is_warning)

    if (more := len(findings) - MOST_FINDINGS) > 0:
        text = f"{plural(more, 'more finding')}"
        yield HealthCheck(is_well=False, what="Checks", text=text, command="sequencer check")


def _deliveries(site: Site, shown: ShownProject) -> Iterator[HealthCheck]:
    """Yield what trackers have sent last, and what was refused."""
    hooks, trust = shown.project.settings.webhooks, shown.project.trust
    if not any(hooks.taken()):
        return
    refused = [(at, f"refused: {why} ({count} times)") for why, (count, at) in site.refused.items()]
    for at, text in sorted(refused, reverse=True)[:MOST_DELIVERIES]:
        yield HealthCheck(
            is_well=False, what="Deliveries", text=f"{_local(at)} {text}", is_warning=True
        )
    with suppress(sqlite3.Error):
        for one in DeliveryBox(trust.key).newest(MOST_DELIVERIES):
            text = f"{_local(one.taken_at)} {one.tracker}: {one.done or 'waits'}"
            yield HealthCheck(is_well=True, what="Deliveries", text=text)


def _local(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M")


def _found(project: Project) -> Iterator[Finding]:
    """Yield what is wrong with *project*, as far as looking tells."""
    try:
        if project.settings.store.kind == "git":
            yield from check_git(project.settings, project.run(None).store, acts=False)
        yield from check_flows(project)
        yield from check_folders(project, None)
        yield from check_webhooks(project)
        if (posting := project.posting) is not None:
            for where, text in posting.problems(None):
                yield Finding(Level.ERROR, Area.CONFIGURATION, text, where)
    except SequencerError as error:
        yield Finding(Level.ERROR, Area.CONFIGURATION, error.message, error.where, error.hint)
    for name in project.settings.agents:
        try:
            problems = project.agents.build(name).problems()
        except ConfigurationError as error:
            yield from of_error(Area.AGENT, error)
            continue
        for problem in problems:
            yield Finding(Level.WARNING, Area.AGENT, problem, f"agent {name}")


def _run_checks(row: RunRow) -> Iterator[HealthCheck]:
    head, option = row.head, Open(row.run).option
    if head is None:
        command, text = f"sequencer {option}repair", str(row.facts["error"])
        yield HealthCheck(is_well=False, what=row.name, text=text, command=command, url=row.url)
        return
    if row.is_stale:
        text = "a claim's holder is gone; the next run or tick takes over"
        command = f"sequencer {option}takeover"
        yield HealthCheck(is_well=False, what=row.name, text=text, command=command, url=row.url)
    elif head.claims:
        yield HealthCheck(is_well=True, what=row.name, text=_at_work(row, head), url=row.url)
    most = row.run.limits.failures_in_row
    if most and head.failures_in_row >= most and head.status != "complete":
        text = f"{head.failures_in_row} failures in a row: nothing more starts until a person acts"
        command = f"sequencer {option}retry"
        yield HealthCheck(is_well=False, what=row.name, text=text, command=command, url=row.url)
    if missed(row) is not None:
        command = f"sequencer {option}tick"
        yield HealthCheck(is_well=False, what=row.name, text=MISSED, command=command, url=row.url)
    for post in row.facts.get("posts", ()):
        if post["pending"] or post["error"]:
            text = f"{post['sink']}: {post['pending']} posts wait. {post['error'] or ''}".strip()
            yield HealthCheck(is_well=False, what=row.name, text=text, url=row.url)


def _at_work(row: RunRow, head: Head) -> str:
    """Return who makes which steps of the run of *row* now."""
    makers = row.run.makers()
    found = []
    for claim in head.claims:
        who = claim.owner.words if makers is None else makers.get(claim.token, "nobody yet")
        found.append(f"{claim.step} by {who}")
    return ", ".join(found)
