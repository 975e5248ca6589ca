"""The health page: problems in the projects and on this machine that keep runs from working.

It makes only those checks of ``sequencer check`` that run nothing of the project: it loads no
hook, asks no remote, and reads no timer's table. For these, use the command.
"""

from __future__ import annotations

import platform
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

from msgspec import Struct

from sequencer import __version__
from sequencer.cli.views.runs import Open
from sequencer.cli.views.text import file_size, pluralize
from sequencer.errors import RemoteUnreachable, SequencerError
from sequencer.model.head import Head
from sequencer.plugins.web.pages import Page, Query, collect_folders, iso, list_need_cards, local
from sequencer.plugins.web.section import get_webhook_options
from sequencer.plugins.web.site import RunRow, ShownProject, Site
from sequencer.plugins.web.webhooks.deliveries import DeliveryStore
from sequencer.project.checks import check_statically
from sequencer.project.diagnostics import Level

MIN_FREE_BYTES = 1024**3
MAX_FINDINGS, MAX_DELIVERIES = 12, 6
LIBRARIES = ("starlette", "uvicorn", "temporalio", "anthropic")
KNOWN_S = 30.0
"""How long a project's findings stay valid, because finding them reads each of its flows."""


class HealthCheck(Struct, frozen=True):
    """One line of the health page."""

    level: Level
    """A notice means OK; with a warning, runs still work."""
    what: str
    text: str
    command: str = ""
    url: str = ""


def build_health_page(site: Site, _: Query) -> Page:
    """Return the health page, with problems first."""
    checks = [
        (
            project,
            sorted(_check_project(site, project), key=lambda check: check.level is Level.NOTICE),
        )
        for project in site.projects.values()
    ]
    context = {"projects": checks, "about": ", ".join(_versions())}
    return Page("health.html", "Health", context, **collect_folders(site), tab="health")


def _versions() -> Iterator[str]:
    yield f"sequencer {__version__}"
    yield f"Python {platform.python_version()}"
    yield f"{platform.system()} {platform.release()}"
    for name in LIBRARIES:
        with suppress(PackageNotFoundError):
            yield f"{name} {version(name)}"


def _check_project(site: Site, site_project: ShownProject) -> Iterator[HealthCheck]:
    try:
        settings = site_project.project.settings
        refusal = site_project.distrust()
    except SequencerError as error:
        yield HealthCheck(Level.ERROR, "Settings", error.in_one_line, "sequencer check")
        return
    yield HealthCheck(Level.NOTICE, "Settings", str(settings.config_path or "defaults"))
    if refusal is None:
        yield HealthCheck(Level.NOTICE, "Trust", "the project may act on this machine")
    else:
        text = (
            "these pages show the project, but can't change anything: "
            + refusal.message.partition("\n")[0]
        )
        yield HealthCheck(Level.ERROR, "Trust", text, "sequencer trust")
    free_bytes = shutil.disk_usage(settings.project_dir).free
    level = Level.NOTICE if free_bytes > MIN_FREE_BYTES else Level.ERROR
    yield HealthCheck(level, "Disk", f"{file_size(free_bytes)} free")
    yield from _findings(site_project)
    yield from _deliveries(site, site_project)
    try:
        rows = [*site_project.rows()]
    except RemoteUnreachable as error:
        yield HealthCheck(Level.ERROR, "Store", error.in_one_line)
        return
    where = "the server answers" if site_project.is_remote else settings.state_file.parent
    text = f"{settings.store.kind}, {where}, {pluralize(len(rows), 'run')}"
    yield HealthCheck(Level.NOTICE, "Store", text)
    for row in rows:
        yield from _check_run(row)


def _findings(site_project: ShownProject) -> Iterator[HealthCheck]:
    deadline, diagnostics = site_project.diagnostics
    if deadline < time.monotonic():
        diagnostics = list(dict.fromkeys(check_statically(site_project.project)))
        site_project.diagnostics = time.monotonic() + KNOWN_S, diagnostics
    for finding in diagnostics[:MAX_FINDINGS]:
        text = f"{finding.message} ({finding.where})" if finding.where else finding.message
        text = f"{text}. {finding.hint or ''}".strip()
        yield HealthCheck(finding.level, finding.area.capitalize(), text)
    if (rest_count := len(diagnostics) - MAX_FINDINGS) > 0:
        yield HealthCheck(
            Level.ERROR, "Checks", pluralize(rest_count, "more finding"), "sequencer check"
        )


def _deliveries(site: Site, site_project: ShownProject) -> Iterator[HealthCheck]:
    """Yield the newest refusals, then the newest deliveries."""
    project = site_project.project
    if not any(get_webhook_options(project.settings).list_enabled_hooks()):
        return
    refusals = [
        (timestamp, f"refused: {reason} ({count} times)")
        for reason, (count, timestamp) in site.refused.items()
    ]
    for timestamp, text in sorted(refusals, reverse=True)[:MAX_DELIVERIES]:
        yield HealthCheck(Level.WARNING, "Deliveries", f"{local(iso(timestamp))} {text}")
    with suppress(sqlite3.Error):
        for delivery in DeliveryStore(project.trust.key).list_newest(MAX_DELIVERIES):
            taken_at = local(iso(delivery.taken_at))
            text = f"{taken_at} {delivery.tracker}: {delivery.done or 'waits'}"
            yield HealthCheck(Level.NOTICE, "Deliveries", text)


def _check_run(row: RunRow) -> Iterator[HealthCheck]:
    for need in list_need_cards(row):
        if need.kind in ("broken", "stale", "missed"):
            text = f"{need.title}: {need.text}"
            yield HealthCheck(Level.ERROR, row.name, text, need.command, row.url)
    head = row.head
    if head is None:
        return
    if head.claims and not row.is_stale:
        yield HealthCheck(Level.NOTICE, row.name, _describe_running_steps(row, head), url=row.url)
    max_failures = row.run.limits.failures_in_row
    if max_failures and head.failures_in_row >= max_failures and head.status != "complete":
        text = f"{head.failures_in_row} failures in a row: nothing more starts until a person acts"
        command = f"sequencer {Open(row.run).option}retry"
        yield HealthCheck(Level.ERROR, row.name, text, command, row.url)
    for post in row.facts.get("posts", ()):
        if post["pending"] or post["error"]:
            text = f"{post['sink']}: {post['pending']} posts wait. {post['error'] or ''}".strip()
            yield HealthCheck(Level.ERROR, row.name, text, url=row.url)


def _describe_running_steps(row: RunRow, head: Head) -> str:
    """Return the steps of *row* that are running, each with its process."""
    makers = row.run.list_attempt_processes()
    steps = []
    for claim in head.claims:
        process = (
            claim.owner.words if makers is None else makers.get(claim.token) or "no worker yet"
        )
        steps.append(f"{claim.step} by {process}")
    return ", ".join(steps)
