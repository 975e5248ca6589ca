"""`check`: everything that is wrong, at once, and the settings with their sources."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shutil
from collections.abc import Iterator
from importlib.metadata import distributions, requires
from pathlib import Path
from typing import Any

import click
import yaml
from msgspec.structs import asdict, replace

from sequencer.cli.context import Invocation, near
from sequencer.cli.options import hide_in, pass_invocation, verb, version_line
from sequencer.cli.views.text import one_line, plain, plural
from sequencer.documents.textfile import locate, slug
from sequencer.documents.yamlfile import KeyPath, dotted, plain_value
from sequencer.errors import ConfigurationError, UsageRefused
from sequencer.executors.redaction import Redaction
from sequencer.project import checks
from sequencer.project.agents import CLIENTS
from sequencer.project.diagnostics import Area, Finding, Level, exit_code, of_error
from sequencer.project.project import open_project
from sequencer.project.sources import DEFAULT

SOURCE_COLUMN = 48
"""Where the source of a short value stands."""
REPORT_FENCE = "~~~~"
PACKAGE, EXTRAS = "step-sequencer", ("claude", "fleet", "mcp", "web")
PROGRAMS = ("git", *CLIENTS, "systemctl", "crontab", "launchctl", "tmux")
"""Of those on PATH a report has the names."""
PLACES = 3
"""Where the same is wrong in more of them, the others are counted."""


@verb("check")
@click.option("--settings", "has_settings", is_flag=True, help="Print each value and its source.")
@click.option(
    "--remote", "asks", is_flag=True, help="Also ask the remote of a run that is kept in git."
)
@click.option("--schema", is_flag=True, help="Print the JSON schema of orchestration.yaml.")
@click.option(
    "--report",
    "is_report",
    is_flag=True,
    help="Print one block to paste into a bug report; secrets are hidden.",
)
@pass_invocation
def check(
    invocation: Invocation, has_settings: bool, asks: bool, schema: bool, is_report: bool
) -> int:
    """Find everything that is wrong, and change nothing.

    Checks the configuration, the workflow with its prompts and agents, the run's state
    and journal, the folders, and the repository of a run that is kept in git; --remote
    also asks its remote. Shows what the agents may do, and which settings have no effect.
    Exit code 0: no errors, at most warnings; 3: errors only in the run's state or journal;
    2: any other error.

    \b
    Examples:
      sequencer check
      sequencer check --remote
      sequencer check --settings
      sequencer check --report
      sequencer check --json | jq '.findings[] | select(.level == "error")'
    """
    if is_report and (invocation.is_json or has_settings or schema):
        raise UsageRefused("is text to paste, and has the settings; use it alone", where="--report")
    if schema:
        click.echo(checks.editors_schema(), nl=False)
        return 0
    invocation.acts = asks
    if is_report:
        return _print_report(invocation)
    if has_settings:
        _print_settings(invocation)
        return 0

    findings = _findings(invocation)
    code = exit_code(findings)
    if invocation.is_json:
        told = [{**asdict(f), "level": str(f.level), "area": str(f.area)} for f in findings]
        invocation.print_json({"ok": code == 0, "exit_code": code, "findings": told})
        return code
    errors = sum(finding.level is Level.ERROR for finding in findings)
    warnings = sum(finding.level is Level.WARNING for finding in findings)
    for text in _texts(findings):
        invocation.echo(text)
    if errors or warnings:
        invocation.echo(f"errors: {errors}, warnings: {warnings}")
    else:
        invocation.echo("nothing is wrong")
    return code


def _findings(invocation: Invocation) -> list[Finding]:
    """Return all findings; where the configuration can't be used, those of the run's files."""
    try:
        project = open_project(config=invocation.config, acts=invocation.acts)
        project.ensure_is_one()
    except ConfigurationError as error:
        found = of_error(Area.CONFIGURATION, error)
        try:
            state_path = locate(Path.cwd(), invocation.config, os.environ).state_path
        except ConfigurationError:
            return found
        name = invocation.run_name
        if name is not None:
            state_path = state_path.parent / "runs" / slug(name) / state_path.name
        return [*found, *checks.check_state(state_path)]
    if invocation.run_name is not None:
        invocation.run()  # an unknown name is an error, and the known ones are listed
    return checks.check_project(project, invocation.run_name)


def _texts(findings: list[Finding]) -> Iterator[str]:
    """Yield what a person reads: what is wrong in the same way elsewhere stands once."""
    alike: dict[Finding, list[Finding]] = {}
    for finding in findings:
        alike.setdefault(replace(finding, where=None), []).append(finding)
    for same in alike.values():
        places = [finding.where for finding in same if finding.where]
        where = ", ".join(places[:PLACES])
        if more := len(places[PLACES:]):
            where += f" and {plural(more, 'more place')}"
        one, where = same[0], f"{where}: " if where else ""
        text = f"{one.level}: {one.area}: {where}{one.message}"
        hint = one.hint or ""
        between = "; " if hint.startswith("did you mean") and hint.endswith("?") else "\n  "
        yield plain(f"{text}{between}{hint}" if hint else text)


def _print_settings(invocation: Invocation) -> None:
    project = invocation.project()
    # A remote may hold a login, and an agent's variables a key.
    rows = [
        (path, hide_in(project.redaction, value), source)
        for path, value, source in project.settings.rows()
    ]
    if invocation.is_json:
        invocation.print_json(
            [
                {"key": dotted(path), "value": value, "source": str(source)}
                for path, value, source in rows
            ]
        )
        return
    above: KeyPath = ()
    for path, value, source in rows:
        shared = sum(above[:depth] == path[:depth] for depth in range(1, len(path)))
        for depth in range(shared, len(path) - 1):
            invocation.echo(f"{'  ' * depth}{_in_yaml(path[depth])}:")
        for line in _lines(path, value, near(one_line(str(source))), invocation.room):
            invocation.echo(line, is_verbatim=True)
        above = path


def _lines(path: KeyPath, value: Any, source: str, room: int | None) -> Iterator[str]:
    """Yield the lines of one setting; what is too long for one has its source above it."""
    before = "  " * (len(path) - 1)
    line = f"{before}{_in_yaml(path[-1])}: {_in_yaml(value)}"
    whole = f"{line:<{SOURCE_COLUMN}}  # {source}"
    if room is None or len(whole) <= room:
        yield whole
        return
    yield f"{before}# {source}"
    if len(line) <= room:
        yield line
        return
    width = max(room - len(before), 20)
    dumped = yaml.safe_dump({path[-1]: value}, width=width, sort_keys=False)
    yield from (f"{before}{part}" for part in dumped.splitlines())


def _print_report(invocation: Invocation) -> int:
    """Print versions, machine, settings and findings between fences, without known secrets."""
    findings = _findings(invocation)
    redaction, settings = Redaction.of(os.environ), ["can't be read, see the findings"]
    with contextlib.suppress(ConfigurationError):
        project = open_project(config=invocation.config, acts=invocation.acts)
        redaction = project.redaction
        settings = [
            f"{dotted(path)}: {_in_yaml(hide_in(redaction, value))}"
            for path, value, source in project.settings.rows()
            if source is not DEFAULT
        ]
    lines = [
        *_machine(),
        "settings that are not the defaults:",
        *(f"  {line}" for line in settings or ["none"]),
        "findings:",
        *(f"  {line}" for text in _texts(findings) for line in text.splitlines()),
        *([] if findings else ["  none"]),
    ]
    invocation.echo(f"{REPORT_FENCE}text", is_verbatim=True)
    for line in lines:
        invocation.echo(_for_strangers(redaction.hide_text(near(line))), is_verbatim=True)
    invocation.echo(REPORT_FENCE, is_verbatim=True)
    return exit_code(findings)


def _for_strangers(text: str) -> str:
    """Return a line of a report without the person's home folder or a digest of a secret."""
    home = os.path.expanduser("~")  # noqa: PTH111 - Path raises where there is none
    text = re.sub(r"\(hidden, [0-9a-f]+\)", "(hidden)", text)
    if len(home) > 1:
        text = text.replace(home, "~")
    # A fence within would end the block.
    return text.replace(REPORT_FENCE, "~")


def _machine() -> Iterator[str]:
    """Yield what this is, and on what it runs; no program is started for it."""
    yield version_line()
    yield f"Python {platform.python_version()} ({platform.python_implementation()})"
    yield f"{platform.system()} {platform.release()} {platform.machine()}"
    needed = {
        re.split(r"[^\w.-]", one, maxsplit=1)[0]
        for one in requires(PACKAGE) or ()
        if (extra := re.search(r"extra == .(\w+)", one)) is None or extra[1] in EXTRAS
    }
    have = {found.name: found.version for found in distributions() if found.name in needed}
    yield "packages: " + ", ".join(f"{name} {have[name]}" for name in sorted(have))
    yield "programs: " + (", ".join(one for one in PROGRAMS if shutil.which(one)) or "none")
    names = ("LANG", "LC_ALL", "TERM", "NO_COLOR")
    yield "environment: " + ", ".join(
        [f"{name}={os.environ[name]}" for name in names if name in os.environ]
        + [name for name in sorted(os.environ) if name.startswith("SEQUENCER_")]
    )


def _in_yaml(value: Any) -> str:
    """Return *value* as YAML reads it, in ASCII and on one line."""
    is_word = isinstance(value, str) and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_./-]*", value)
    return value if is_word and plain_value(value) == value else json.dumps(value)
