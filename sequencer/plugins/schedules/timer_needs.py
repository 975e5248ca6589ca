"""What a timer's ticks need, and what this machine or the timer's environment lacks.

A timer starts with an almost empty environment, can't ask anyone, and can report only by mail.
Each missing requirement is one line for a person, with a hint.

Not promised: that mail arrives, or that a key is valid.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import psutil
from msgspec import Struct

from sequencer.errors import SequencerError
from sequencer.model.workflow import Workflow
from sequencer.plugins.schedules.section import get_schedules
from sequencer.project.agents import list_agent_steps
from sequencer.project.project import Project
from sequencer.project.trusting import VARIABLE as TRUST
from sequencer.workflows.registry import with_defaults

MAIL_PATH = ("/usr/sbin", "/usr/lib", "/usr/local/sbin")
"""Folders that cron searches for sendmail."""
CRONS = frozenset({"cron", "crond", "fcron", "cronie"})
_SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIALS", "PASSPHRASE")
_FIRST_PROCESS = 1


class MissingRequirement(Struct, frozen=True):
    """Something that is missing, and a hint."""

    what: str
    hint: str


def list_run_workflows(project: Project, run: str | None, *, is_all: bool) -> list[Workflow]:
    """Return the workflows of *run*, or of all runs."""
    schedules = get_schedules(project.settings)
    names = [None, *schedules, *project.run_names()] if is_all else [run]
    workflows: dict[str, Workflow] = {}
    for name in dict.fromkeys(names):
        with suppress(SequencerError):  # `check` and each tick report the error
            named_run = project.run(name)
            head, schedule = named_run.head, schedules.get(name or "")
            if head is None and schedule is not None:
                workflow = project.settings.registry.get(schedule.workflow)
            else:
                workflow = named_run.workflow_for(head)
            workflows[workflow.name] = workflow
    return [*workflows.values()]


def find_missing_for_cron(lines: Iterable[str], log: str) -> Iterator[MissingRequirement]:
    """Yield what cron on this machine lacks; *lines* are the lines of the crontab."""
    if not _is_running(CRONS):
        yield MissingRequirement(
            "no cron daemon runs on this machine", "start it; without it no tick comes"
        )
    search_path = os.pathsep.join((os.environ.get("PATH", ""), *MAIL_PATH))
    advice = f"look at 'sequencer status' and {log}"
    if shutil.which("sendmail", path=search_path) is None:
        yield MissingRequirement(
            "no program on this machine sends mail (sendmail), so cron can't mail you", advice
        )
    elif any(re.fullmatch(r"\s*MAILTO\s*=\s*(\"\"|'')?\s*", line) for line in lines):
        yield MissingRequirement("MAILTO is empty in your crontab, so cron sends no mail", advice)


def _is_running(names: Collection[str]) -> bool:
    """Return whether a process has one of *names*, or this user can't see all processes."""
    if sys.platform == "darwin":
        return True  # launchd starts cron if there is a crontab
    try:
        psutil.Process(_FIRST_PROCESS).name()
    except psutil.Error:
        return True  # this user sees only its own processes
    return any(process.info["name"] in names for process in psutil.process_iter(["name"]))


def find_missing_trust(project: Project) -> Iterator[MissingRequirement]:
    """Yield one if a timer's tick would refuse to work on *project*."""
    with suppress(SequencerError):  # `check` reports a bad record
        if project.trust.refusal(by_record=True) is not None:
            note = f" ({TRUST} is set only in this shell)" if project.trust.is_vouched_for else ""
            hint = "each tick refuses with exit code 2 until you run 'sequencer trust'"
            yield MissingRequirement(f"the project is not trusted{note}", hint)


def find_missing_keys(
    project: Project, workflows: Iterable[Workflow], env_file: Path | None
) -> Iterator[MissingRequirement]:
    """Yield the keys and settings in variables that this shell has and a timer does not."""
    if env_file is not None and (missing := _find_missing_file(env_file)) is not None:
        yield missing
    missing_names = sorted(_variables(project, workflows) - _read_variable_names(env_file))
    if missing_names:
        verb = "is" if len(missing_names) == 1 else "are"
        hint = "put it into a file of NAME=value lines (mode 600) and name that with --env-file"
        yield MissingRequirement(f"{', '.join(missing_names)} {verb} set only in this shell", hint)


def _find_missing_file(path: Path) -> MissingRequirement | None:
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return MissingRequirement(
            f"{path} can't be read: {error.strerror}", "write the keys into it"
        )
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        return MissingRequirement(f"other users may read {path}", f"chmod 600 {path}")
    return None


def _read_variable_names(path: Path | None) -> set[str]:
    """Return the variables that the file at *path* sets."""
    with suppress(OSError, UnicodeDecodeError):
        text = "" if path is None else path.read_text(encoding="utf-8")
        return set(re.findall(r"(?m)^\s*(?:export\s+)?([A-Za-z_]\w*)=", text))
    return set()


def _variables(project: Project, workflows: Iterable[Workflow]) -> set[str]:
    """Return the variables of this shell that hold keys or settings of the project."""
    patterns = {name for workflow in workflows for name in _list_agent_variables(project, workflow)}
    names = {
        name
        for name, text in os.environ.items()
        if text and any(fnmatchcase(name, pattern) for pattern in patterns)
        if any(word in name for word in _SECRET)
    }
    names |= {
        name for name in _list_named_variables(project.settings.written) if os.environ.get(name)
    }
    return names | {name for name in os.environ if re.match(r"SEQUENCER_[A-Z_]+__", name)}


def _list_agent_variables(project: Project, workflow: Workflow) -> Iterator[str]:
    """Yield the variables, some with a star, that agents in *workflow* read."""
    for step in list_agent_steps(project.settings, workflow):
        with suppress(SequencerError):  # `check` reports the error
            _, executor = project.agents.choose(
                with_defaults(step, project.settings.step_defaults), step.name
            )
            yield from getattr(executor, "passed", ())
            key = getattr(getattr(executor, "options", None), "api_key_env", None)
            yield from [key] if key else ()


def _list_named_variables(node: Any) -> Iterator[str]:
    """Yield the variables that settings name: the values of all keys that end in ``_env``."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            if isinstance(key, str) and key.endswith("_env"):
                names = value.values() if isinstance(value, Mapping) else [value]
                yield from (name for name in names if isinstance(name, str))
            else:
                yield from _list_named_variables(value)
    elif isinstance(node, list | tuple):
        for value in node:
            yield from _list_named_variables(value)
