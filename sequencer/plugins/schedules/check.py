"""The checks of schedules: runs without a timer, and what a timer's ticks lack."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from sequencer.errors import ConfigurationError, run_option
from sequencer.plugins.schedules.section import get_schedules
from sequencer.plugins.schedules.timers import (
    find_entries,
    find_lost_programs,
    find_missing_requirements,
    find_runs_without_timer,
    scheduled_workflows,
    tick_log,
)
from sequencer.project.agent_checks import check_time_limits
from sequencer.project.diagnostics import Area, Diagnostic, Level
from sequencer.project.project import Project
from sequencer.store.lock import filesystem_type
from sequencer.store.user_state import STATE_VARIABLE, user_state_path

PASSING = frozenset({"tmpfs", "ramfs", "overlay"})
"""File systems that end with the machine or the container."""


def check_project(project: Project, run: str | None, *, looks: bool) -> Iterator[Diagnostic]:
    """Yield runs that no timer starts, and missing limits, keys, programs and mail of ticks.

    In an untrusted project, a tick starts no program, so the crontab is not read.
    """
    del run
    if looks:
        return
    for workflow in scheduled_workflows(project):
        yield from check_time_limits(project, workflow)
    is_trusted = False
    with suppress(ConfigurationError):  # `_check_code` reports it
        is_trusted = project.trust.refusal() is None
    if not is_trusted:
        return
    settings = project.settings
    entries = find_entries(settings, os.environ)
    if entries or get_schedules(settings) or os.path.lexists(tick_log(settings, None)):
        yield from _check_own_records()
    for run in find_runs_without_timer(settings, entries):
        message = "no timer on this machine runs the ticks of this run, so it never starts"
        hint = f"sequencer {run_option(run)}schedule install"
        yield Diagnostic(Level.WARNING, Area.CONFIGURATION, message, f"schedules.{run}", hint)
    for entry, missing in find_missing_requirements(project, entries):
        yield Diagnostic(Level.WARNING, Area.CONFIGURATION, missing.what, entry.name, missing.hint)
    for lost in find_lost_programs(settings, entries, os.environ):
        program, in_shell = lost.program, lost.in_shell
        message = f"a timer's tick does not find {program!r}, which is {in_shell} in this shell"
        if lost.in_tick is not None:
            message = (
                f"{program!r} is {in_shell} in this shell, but {lost.in_tick} in a timer's tick"
            )
        hint = f"the tick's PATH is {lost.entry.path}; run 'sequencer schedule install' again"
        if not Path(in_shell).is_absolute():
            hint = "a timer uses only the absolute folders of PATH: give the program's full path"
        yield Diagnostic(Level.WARNING, Area.AGENT, message, lost.entry.name, hint)


def _check_own_records() -> Iterator[Diagnostic]:
    """Yield a finding if this user's records can't be kept, or not permanently: ticks need them."""
    copies = "ticks keep what you were told in logs/ only, where an agent can write"
    try:
        folder = user_state_path()
    except ConfigurationError as error:
        text = f"{error.message}: {copies}, and no schedule starts its run"
        yield Diagnostic(Level.WARNING, Area.FILES, text, None, error.hint)
        return
    hint = f"{STATE_VARIABLE} names another folder; give it to the timer, too"
    existing = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        text = f"your own records can't be written there: {copies}, and no schedule starts its run"
        yield Diagnostic(Level.WARNING, Area.FILES, text, str(folder), hint)
    elif (kind := filesystem_type(existing)) in PASSING:
        consequence = f"{copies}, and schedules leave out the dates before"
        text = f"is on {kind}, so your own records may be gone after a restart: then {consequence}"
        yield Diagnostic(Level.NOTICE, Area.FILES, text, str(folder), hint)
