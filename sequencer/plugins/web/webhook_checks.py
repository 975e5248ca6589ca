"""Checks whether a tracker's webhooks would be ignored."""

from __future__ import annotations

import os
from collections.abc import Iterator

from sequencer.plugins.web.section import get_webhook_options
from sequencer.project.diagnostics import Area, Diagnostic, Level
from sequencer.project.project import Project


def check_project(project: Project, run: str | None, *, looks: bool) -> Iterator[Diagnostic]:
    """Yield the reasons why a configured tracker is ignored."""
    del run, looks
    for name, hook in get_webhook_options(project.settings).list_enabled_hooks():
        where = f"webhooks.{name}"
        if lack := hook.find_secret_problem(os.environ):
            hint = "'sequencer web' needs the key to check signatures; it ignores the tracker"
            yield Diagnostic(Level.WARNING, Area.CONFIGURATION, lack, f"{where}.secret_env", hint)
        if not (hook.people or hook.may_start or hook.may_answer or hook.may_stop):
            text = "no people are listed, so no one may start, answer or stop anything"
            yield Diagnostic(Level.WARNING, Area.CONFIGURATION, text, f"{where}.people")
