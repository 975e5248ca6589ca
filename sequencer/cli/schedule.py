"""`schedule print`: entries for unattended ticks, ready to paste.

They print and change nothing. Every path is absolute and quoted for the reader that it
meets: sh within cron, where ``%`` ends the command, or systemd, where ``%`` begins a
specifier. No lock around a tick is needed, because two ticks exclude each other.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from string import Template

from msgspec import Struct

from sequencer.assembly.timers import path_for, programs_of
from sequencer.cli.context import Invocation
from sequencer.cli.unattended import OPTION
from sequencer.documents.files import slug
from sequencer.errors import UsageRefused
from sequencer.settings.settings import Settings

HOUR_MIN, DAY_MIN = 60, 1440
REGULAR = {
    1: "* * * * *",
    **{n: f"*/{n} * * * *" for n in range(2, HOUR_MIN) if HOUR_MIN % n == 0},
    HOUR_MIN: "0 * * * *",
    **{n * HOUR_MIN: f"0 */{n} * * *" for n in range(2, 24) if 24 % n == 0},
    DAY_MIN: "0 0 * * *",
}
"""Every so many minutes, and what cron calls that."""
CRON_CHARS = 990
"""Classic cron refuses longer commands."""


class _Tick(Struct, frozen=True):
    """What an entry has to say."""

    argv: tuple[str, ...]
    folder: str
    variables: Mapping[str, str]
    """PATH, and where the record of trust is if that was said."""
    log: str
    env_file: str | None
    name: str


def print_tick(
    invocation: Invocation, kind: str | None, every: int | None, env_file: Path | None
) -> None:
    """Print an entry for *kind* that runs one due step, unattended."""
    if kind not in (None, "cron", "systemd"):
        raise UsageRefused("prints for cron or systemd", where=f"--with {kind}")
    (_systemd if kind == "systemd" else _crontab)(invocation, every or HOUR_MIN, env_file)


def _crontab(invocation: Invocation, every: int, env_file: Path | None) -> None:
    tick = _tick(invocation, env_file)
    entry = f"{_cron_times(every)} {_cron_command(tick)}"
    if len(entry) > CRON_CHARS:
        raise UsageRefused(
            f"the entry would have {len(entry)} characters, more than cron takes",
            hint="use --with systemd, or a shorter path",
        )
    for line in (
        f"# sequencer: one due step every {every} minutes, in {tick.folder}",
        "# No flock is needed: a tick that finds another one at work ends with 75.",
        "# cron mails what a person has to know, once for each change (MAILTO says to whom).",
        f"# The whole record, with the time on each line: {tick.log}",
        _about_keys(tick),
        entry,
    ):
        invocation.echo(line, is_verbatim=True)


def _systemd(invocation: Invocation, every: int, env_file: Path | None) -> None:
    tick = _tick(invocation, env_file)
    keys = f"\nEnvironmentFile=-{systemd_escaped(tick.env_file)}" if tick.env_file else ""
    pairs = (f"{name}={value}" for name, value in tick.variables.items())
    text = files("sequencer").joinpath("builtin", "systemd.txt").read_text(encoding="utf-8")
    filled = Template(text).substitute(
        unit=f"sequencer-{tick.name}",
        every=every,
        about_keys=_about_keys(tick),
        folder=systemd_escaped(tick.folder),
        log=systemd_escaped(tick.log),
        environment=" ".join(systemd_quoted(pair, is_command=False) for pair in pairs),
        environment_file=keys,
        arguments=" ".join(systemd_quoted(word) for word in tick.argv),
    )
    invocation.echo(filled.rstrip("\n"), is_verbatim=True)


def _about_keys(tick: _Tick) -> str:
    if tick.env_file:
        return f"# Keys are read from {tick.env_file}; let nobody else read it (chmod 600)."
    return "# Keys do not belong in here: name a file of NAME=value lines with --env-file."


def _tick(invocation: Invocation, env_file: Path | None) -> _Tick:
    settings = invocation.project().settings
    name = invocation.run_name
    if name is not None:
        invocation.run()  # an unknown name is an error, and the known ones are listed
    logs = str(settings.logs_dir)
    log = f"{logs}/tick.{slug(name)}.log" if name else f"{logs}/tick.log"
    argv = [*program_argv(), "tick", f"{OPTION}={log}"]
    if settings.config_path is not None:
        argv.append(f"--config={settings.config_path.absolute()}")
    argv += [f"--run={name}"] if name is not None else []
    tick = _Tick(
        argv=tuple(argv),
        folder=str(settings.project_dir),
        variables=timer_variables(settings, os.environ),
        log=log,
        env_file=str(env_file.absolute()) if env_file else None,
        name=slug(f"{settings.project_dir.name}-{name}" if name else settings.project_dir.name),
    )
    for text in (*tick.argv, tick.folder, *tick.variables.values(), tick.env_file or ""):
        if not text.isprintable():
            raise UsageRefused(
                f"{text!a} holds a line end or another control character",
                hint="no crontab or unit file can hold it; rename the folder",
            )
    return tick


def program_argv() -> list[str]:
    """Return how this very program is started, without a shell's help."""
    beside = Path(sys.executable).with_name("sequencer")
    if beside.is_file() and os.access(beside, os.X_OK):
        return [str(beside)]
    return [sys.executable, "-P", "-m", "sequencer"]


def _cron_times(every: int) -> str:
    """Return the five fields for "every so many minutes".

    Raises:
        UsageRefused: cron counts within an hour or a day, so that 45 minutes would be 45
            and then 15.
    """
    if (fields := REGULAR.get(every)) is not None:
        return fields
    raise UsageRefused(
        f"cron has no even distance of {every} minutes",
        where="--every",
        hint=f"one of {', '.join(map(str, REGULAR))}; --with systemd takes any",
    )


def timer_variables(settings: Settings, env: Mapping[str, str]) -> dict[str, str]:
    """Return what a timer would not know by itself."""
    state = env.get("XDG_STATE_HOME", "")
    found = {"PATH": path_for(programs_of(settings), env.get("PATH", ""), shutil.which)}
    return {**found, "XDG_STATE_HOME": state} if state.startswith("/") else found


def _cron_command(tick: _Tick) -> str:
    parts = [f"cd {shlex.quote(tick.folder)}"]
    if tick.env_file:
        parts.append(f"set -a && . {shlex.quote(tick.env_file)} && set +a")
    command = " ".join(shlex.quote(word) for word in tick.argv)
    given = " ".join(f"{name}={shlex.quote(value)}" for name, value in tick.variables.items())
    parts.append(f"{given} {command}")
    # cron ends the command at % and gives the rest to it as input, in quotes as well.
    return " && ".join(parts).replace("%", r"\%")


def systemd_escaped(text: str) -> str:
    """Return *text* for a setting that systemd takes to the end of the line."""
    return text.replace("%", "%%")


def systemd_quoted(text: str, *, is_command: bool = True) -> str:
    """Return *text* as one word of a setting of systemd, or of a command line in one."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    # Only a command line replaces $NAME.
    return f'"{escaped.replace("$", "$$") if is_command else escaped}"'
