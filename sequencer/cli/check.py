"""`check`: report everything that is wrong at once, or the settings with their sources.

A report for a bug (--report) contains no secret that is known and no path of the home folder.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import yaml
from msgspec.structs import asdict, replace

from sequencer import __version__
from sequencer.cli.context import Invocation, relativize_paths
from sequencer.cli.contributions import contribution_errors
from sequencer.cli.options import hide_in, pass_invocation, verb
from sequencer.cli.views.text import cut, one_line, pluralize, strip_controls
from sequencer.errors import ConfigurationError, NotTrusted, RemoteUnreachable, UnknownName
from sequencer.executors.redaction import Redaction
from sequencer.files.textfile import expand_home, locate, slug
from sequencer.files.yamlfile import KeyPath, format_key_path, parse_scalar
from sequencer.project import checks
from sequencer.project.agents import CLIENTS
from sequencer.project.dependencies import installed_versions
from sequencer.project.diagnostics import Area, Diagnostic, Level, diagnose_error, exit_code
from sequencer.project.package_checks import check_packages
from sequencer.project.project import open_project
from sequencer.project.settings import HIDDEN

SOURCE_COLUMN = 48
"""The column in which the source of a short value starts."""
PLACES = 3
"""At most this many places with the same problem are named; the others are counted."""


@verb("check")
@click.option("--settings", "has_settings", is_flag=True, help="Print each value and its source.")
@click.option(
    "--remote", "asks", is_flag=True, help="Also ask the remote of a run that is kept in git."
)
@click.option("--schema", is_flag=True, help="Print the JSON schema of orchestration.yaml.")
@click.option(
    "--report",
    "reports",
    is_flag=True,
    help="Print one block for a bug report: versions, settings without secrets, findings.",
)
@pass_invocation
def check(
    invocation: Invocation, has_settings: bool, asks: bool, schema: bool, reports: bool
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
    _ensure_one_output({"--schema": schema, "--settings": has_settings, "--report": reports}, asks)
    if schema:
        click.echo(checks.editors_schema(), nl=False)
        return 0
    invocation.acts = asks
    if has_settings:
        _print_settings(invocation)
        return 0

    diagnostics = _collect_diagnostics(invocation)
    code = exit_code(diagnostics)
    if reports:
        _print_report(invocation, diagnostics)
        return code
    if invocation.is_json:
        findings = [{**asdict(d), "level": str(d.level), "area": str(d.area)} for d in diagnostics]
        invocation.print_json({"ok": code == 0, "exit_code": code, "findings": findings})
        return code
    errors = sum(diagnostic.level is Level.ERROR for diagnostic in diagnostics)
    warnings = sum(diagnostic.level is Level.WARNING for diagnostic in diagnostics)
    for text in _format_diagnostics(diagnostics):
        invocation.echo(text)
    if errors or warnings:
        invocation.echo(f"errors: {errors}, warnings: {warnings}")
    else:
        invocation.echo("nothing is wrong")
    return code


def _ensure_one_output(flags: dict[str, bool], asks: bool) -> None:
    """Check that at most one of *flags* is given, and that ``--remote`` (*asks*) has an effect.

    Raises:
        UsageError: an option would be ignored.
    """
    names = [name for name, is_given in flags.items() if is_given]
    names += ["--remote"] if asks and names and names != ["--report"] else []
    if len(names) > 1:
        raise click.UsageError(f"{names[0]} and {names[1]} can't be used together")


def _collect_diagnostics(invocation: Invocation) -> list[Diagnostic]:
    """Return all diagnostics, including those about what packages contribute to commands."""
    of_project = _diagnose_project(invocation)
    warnings = [
        diagnostic
        for error in contribution_errors()
        for diagnostic in diagnose_error(Area.CONFIGURATION, error, Level.WARNING)
    ]
    return checks.deduplicate([*of_project, *warnings])


def _diagnose_project(invocation: Invocation) -> list[Diagnostic]:
    """Return the diagnostics of the project and the run.

    If the configuration is unusable, only its errors, the packages and the run's files are covered.
    """
    try:
        project = open_project(config=invocation.config, acts=invocation.acts)
        project.ensure_exists()
    except ConfigurationError as error:
        diagnostics = [*diagnose_error(Area.CONFIGURATION, error), *check_packages()]
        try:
            state_path = locate(Path.cwd(), invocation.config, os.environ).state_path
        except ConfigurationError:
            return diagnostics
        name = invocation.run_name
        if name is not None:
            state_path = state_path.parent / "runs" / slug(name) / state_path.name
        return [*diagnostics, *checks.check_state(state_path)]
    if invocation.run_name is not None:
        try:
            invocation.run()
        except UnknownName:
            raise  # the error lists the known names
        except (ConfigurationError, NotTrusted, RemoteUnreachable):
            pass  # `check_project` reports it
    return checks.check_project(project, invocation.run_name)


def _format_diagnostics(diagnostics: list[Diagnostic]) -> Iterator[str]:
    """Yield the diagnostics for people; the same problem in several places is shown once."""
    groups: dict[Diagnostic, list[Diagnostic]] = {}
    for item in diagnostics:
        groups.setdefault(replace(item, where=None), []).append(item)
    for group in groups.values():
        places = [item.where for item in group if item.where]
        location = ", ".join(places[:PLACES])
        if extra_count := len(places[PLACES:]):
            location += f" and {pluralize(extra_count, 'more place')}"
        diagnostic, location = group[0], f"{location}: " if location else ""
        text = f"{diagnostic.level}: {diagnostic.area}: {location}{diagnostic.message}"
        hint = diagnostic.hint or ""
        separator = "; " if hint.startswith("did you mean") and hint.endswith("?") else "\n  "
        yield strip_controls(f"{text}{separator}{hint}" if hint else text)


REPORTED_CHARS = 300
"""Longest line of a report, in characters."""
REPORTED_WORD = 40
"""If all texts of a field in a report are shorter, they are joined on one line."""
_PRIVATE = frozenset({"env", "headers", "headers_env"})
"""Keys below which any value may be private."""
_DIGEST = re.compile(r"\(hidden, [0-9a-f]+\)")
"""The digest of a hidden value. It is removed, because it could reveal a short secret."""
_GIVEN = re.compile(
    r"""(--?[\w-]*(?:key|passw|pwd|token|secret|credential)[\w-]*(?:=|["',\s]+))[^\s"',\]]+""",
    re.IGNORECASE,
)
"""The value of an option that names a secret, in the same word or in the next one."""


def _print_report(invocation: Invocation, diagnostics: list[Diagnostic]) -> None:
    """Print what a bug report needs, for people or as JSON, without secrets or paths of home."""
    settings, redaction = _settings_and_redaction(invocation)
    facts: dict[str, Any] = {
        "sequencer": __version__,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "encoding": f"{getattr(sys.stdout, 'encoding', None)}, {sys.getfilesystemencoding()}",
        "packages": [f"{name} {version}" for name, version in installed_versions().items()],
        "programs": [name for name in ("git", "tmux", *CLIENTS) if shutil.which(name)],
        "settings": [_anonymize(text, redaction) for text in settings],
        "findings": [_anonymize(text, redaction) for text in _format_diagnostics(diagnostics)],
    }
    if invocation.is_json:
        invocation.print_json(facts)
        return
    lines = [f"{name}:{_format_fact(value)}" for name, value in facts.items()]
    invocation.echo("\n".join(("```text", *lines, "```")), is_verbatim=True)


def _format_fact(value: str | list[str]) -> str:
    """Return *value* on one line, or on lines below its name if one of its texts is long."""
    if isinstance(value, str):
        return f" {value}"
    if all(len(text) < REPORTED_WORD for text in value):
        return f" {', '.join(value) or 'none'}"
    return "".join(f"\n  {line}" for text in value for line in text.splitlines())


def _settings_and_redaction(invocation: Invocation) -> tuple[list[str], Redaction]:
    """Return the settings that are not defaults, one text per key, and the project's redaction.

    If the configuration can't be used, there are no settings.
    """
    try:
        project = open_project(config=invocation.config, acts=False)
    except ConfigurationError:
        return [], Redaction.from_environment(os.environ)
    texts = []
    for path, value, source in project.settings.rows():
        if source.kind != "default":
            text = HIDDEN if _PRIVATE.intersection(path) else _format_yaml(value)
            texts.append(f"{format_key_path(path)}: {text}  # {one_line(str(source))}")
    return texts, project.redaction


def _anonymize(text: str, redaction: Redaction) -> str:
    """Return *text* as the public may read it: without secrets and local paths, lines cut."""
    # A code fence inside the text would end the report's block.
    text = strip_controls(text).replace("```", "` ` `")
    text = _DIGEST.sub(HIDDEN, relativize_paths(redaction.hide_text(text)))
    text = _GIVEN.sub(rf"\1{HIDDEN}", text)
    for folder, name in ((os.getcwd(), "."), (expand_home("~"), "~")):  # noqa: PTH109 - a prefix
        text = text.replace(folder, name) if len(folder) > 1 else text
    return "\n".join(cut(line, REPORTED_CHARS) for line in text.splitlines())


def _print_settings(invocation: Invocation) -> None:
    project = invocation.project()
    # The address of a remote may contain a login, and an agent's variables may contain a key.
    rows = [
        (path, hide_in(project.redaction, value), source)
        for path, value, source in project.settings.rows()
    ]
    if invocation.is_json:
        invocation.print_json(
            [
                {"key": format_key_path(path), "value": value, "source": str(source)}
                for path, value, source in rows
            ]
        )
        return
    previous_path: KeyPath = ()
    for path, value, source in rows:
        shared_depth = sum(previous_path[:depth] == path[:depth] for depth in range(1, len(path)))
        for depth in range(shared_depth, len(path) - 1):
            invocation.echo(f"{'  ' * depth}{_format_yaml(path[depth])}:")
        for line in _format_setting(
            path, value, relativize_paths(one_line(str(source))), invocation.max_width
        ):
            invocation.echo(line, is_verbatim=True)
        previous_path = path


def _format_setting(path: KeyPath, value: Any, source: str, max_width: int | None) -> Iterator[str]:
    """Yield the lines of one setting; if it needs several, its source is on the line above."""
    indent = "  " * (len(path) - 1)
    line = f"{indent}{_format_yaml(path[-1])}: {_format_yaml(value)}"
    line_with_source = f"{line:<{SOURCE_COLUMN}}  # {source}"
    if max_width is None or len(line_with_source) <= max_width:
        yield line_with_source
        return
    yield f"{indent}# {source}"
    if len(line) <= max_width:
        yield line
        return
    width = max(max_width - len(indent), 20)
    document = yaml.safe_dump({path[-1]: value}, width=width, sort_keys=False)
    yield from (f"{indent}{part}" for part in document.splitlines())


def _format_yaml(value: Any) -> str:
    """Return *value* as YAML, in ASCII and on one line."""
    is_word = isinstance(value, str) and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_./-]*", value)
    return value if is_word and parse_scalar(value) == value else json.dumps(value)
