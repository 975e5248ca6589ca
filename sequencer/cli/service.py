"""`schedule`: the pages, and what trackers send to them, as a service of this user.

Installed is one file for what starts programs here: a unit of systemd, an agent of launchd, or
a line of the crontab. Every path in it is absolute; keys stand in a file that it names, and the
key of the link in one that only this user can read.

Not promised: that a service runs while nobody is logged in; the message says what that takes.
"""

from __future__ import annotations

import os
import plistlib
import secrets
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from msgspec import Struct

from sequencer.assembly.trusting import place
from sequencer.cli.context import Invocation, refuse
from sequencer.cli.options import pass_invocation, verb, with_options
from sequencer.cli.schedule import (
    DAY_MIN,
    print_tick,
    program_argv,
    systemd_escaped,
    systemd_quoted,
    timer_variables,
)
from sequencer.cli.web import ensure_extra, read_key
from sequencer.documents.files import is_inside_agent, slug
from sequencer.errors import UsageRefused

KINDS = ("systemd", "launchd", "cron")
PROGRAM_S = 30
_UNIT = """\
[Unit]
Description=Pages and webhooks of {folders}
After=network.target

[Service]
WorkingDirectory={folder}
Environment={environment}{keys}
ExecStart={argv}
# The link is no news for a log; what else is said goes to the journal.
StandardOutput=null
Restart=on-failure
RestartSec=5
# Runs that a tracker has started go on when the pages end.
KillMode=process

[Install]
WantedBy=default.target
"""

_OPTIONS = with_options(
    click.option("--with", "kind", type=click.Choice(KINDS),
                 help="What starts it; by default what this machine has, and cron for 'print'."),
    click.option("--every", type=click.IntRange(1, DAY_MIN), metavar="MINUTES",
                 help="How often a tick runs; for 'print', default 60."),
    click.option("--port", type=click.IntRange(1, 65535), default=8420, show_default=True,
                 help="As for 'web'; the same for the next three."),
    click.option("--bind", default="127.0.0.1", show_default=True, metavar="ADDRESS",
                 help="Where it listens."),
    click.option("--name", "names", multiple=True, metavar="HOST[:PORT]",
                 help="What browsers and trackers call this machine."),
    click.option("--token-file", type=click.Path(exists=True, dir_okay=False, path_type=Path),
                 metavar="FILE", help="Has the key of the link; without it one is made and kept."),
    click.option("--env-file", type=click.Path(dir_okay=False, path_type=Path), metavar="PATH",
                 help="A file of NAME=value lines (keys, secrets); mode 600."),
)  # fmt: skip


class Service(Struct, frozen=True):
    """What is to be started, and what that is called."""

    name: str
    argv: tuple[str, ...]
    folders: tuple[str, ...]
    variables: Mapping[str, str]
    env_file: str | None

    @property
    def shell(self) -> str:
        """Return the command for sh, which reads the keys."""
        read: tuple[str, ...] = ()
        if self.env_file is not None:
            read = ("set -a", f". {shlex.quote(self.env_file)}", "set +a")
        return " && ".join((*read, f"exec {shlex.join(self.argv)}"))


@verb("schedule", has_json=False)
@click.argument("action", type=click.Choice(("print", "install", "show", "remove")))
@click.argument(
    "folders",
    nargs=-1,
    metavar="[DIR]...",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)
@_OPTIONS
@pass_invocation
def schedule(invocation: Invocation, /, *, action: str, every: int | None, **given: Any) -> int:
    """Let this machine run steps by itself, and keep 'sequencer web' running.

    'print' prints an entry for cron or systemd that runs one due step, ready to paste. 'install'
    installs or replaces a service of this user that shows the pages of this project, or of the
    projects in DIR..., and starts it; 'show' says whether it runs; 'remove' removes it.

    \b
    Examples:
      sequencer schedule print --every 30
      (crontab -l; sequencer schedule print) | crontab -
      sequencer schedule install --env-file ~/.config/sequencer.env
      sequencer schedule remove
    """
    if action == "print":
        if given["folders"]:
            raise UsageRefused("prints for one project", where="DIR", hint="--config names it")
        print_tick(invocation, given["kind"], every, given["env_file"])
        return 0
    if every is not None:
        raise UsageRefused("is for 'schedule print'", where="--every")
    if is_inside_agent():
        refuse(invocation.verb, "the pages decide for a person")
    return _service(invocation, action, **given)


def _service(
    invocation: Invocation,
    action: str,
    *,
    folders: tuple[Path, ...],
    kind: str | None,
    port: int,
    bind: str,
    names: tuple[str, ...],
    token_file: Path | None,
    env_file: Path | None,
) -> int:
    """Install, show or remove the service of the pages; return the exit code."""
    settings = invocation.project().settings
    shown = tuple(str(path.resolve()) for path in folders) or (str(settings.project_dir),)
    name = f"sequencer-web-{slug(Path(shown[0]).name or 'root')}"
    installer = _installer(kind)
    if action != "install":
        return _shown_or_removed(invocation, installer, name, is_removed=action == "remove")
    ensure_extra()
    given = [f"--port={port}", f"--bind={bind}", *(f"--name={one}" for one in names)]
    if not folders and settings.config_path is not None:
        given.append(f"--config={settings.config_path.absolute()}")
    token_path, origin = _key_of_link(bind, port, names, token_file)
    argv = [*program_argv(), "web", "--no-browser", f"--token-file={token_path}", *given]
    argv += ["--", *shown] if folders or settings.config_path is None else []
    env = str(env_file.absolute()) if env_file else None
    service = Service(name, tuple(argv), shown, timer_variables(settings, os.environ), env)
    _ensure_printable(service)
    for line in installer.installed(service):
        invocation.say(line)
    token = read_key(token_path)
    invocation.echo(f"{origin}/login?token={token}", is_verbatim=True)
    return 0


def _shown_or_removed(
    invocation: Invocation, installer: Systemd | Launchd | Cron, name: str, *, is_removed: bool
) -> int:
    if is_removed:
        was_there = installer.removed(name)
        invocation.say(f"{name} {'is removed' if was_there else 'was not installed'}")
        return 0
    installed, state = installer.shown(name)
    invocation.echo(f"{name}: {state}")
    return 0 if installed else 1


def _key_of_link(
    bind: str, port: int, names: tuple[str, ...], token_file: Path | None
) -> tuple[Path, str]:
    """Return the file with the key of the link, and where browsers find the server.

    Raises:
        UsageRefused: the key is too short.
    """
    from sequencer.web import guard  # noqa: PLC0415 - of the extra

    path = token_file.absolute() if token_file else _own_token()
    guard.ensure_token(bind, read_key(path))
    return path, guard.origins_of(bind, port, names)[0]


def _own_token() -> Path:
    """Return the file with this user's key of the link, made if it is not there."""
    path = place().parent / "web.token"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileExistsError):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(secrets.token_urlsafe(24) + "\n")
    return path


def _ensure_printable(service: Service) -> None:
    for text in (*service.argv, *service.folders, *service.variables.values()):
        if not text.isprintable():
            raise UsageRefused(
                f"{text!a} holds a line end or another control character",
                hint="no unit file can hold it; rename the folder",
            )


def _run(*argv: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program of the system, and return what came of it.

    Raises:
        UsageRefused: it is not there, or hangs.
    """
    try:
        return subprocess.run(  # noqa: S603 - programs of the system, an argv list
            argv, input=text, capture_output=True, text=True, timeout=PROGRAM_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageRefused(
            f"{argv[0]} can't be run: {error}", hint="choose another with --with"
        ) from error


def _ensured(*argv: str, text: str | None = None) -> None:
    done = _run(*argv, text=text)
    if done.returncode:
        said = done.stderr.strip() or f"exit code {done.returncode}"
        raise UsageRefused(f"{shlex.join(argv)}: {said}", hint="choose another with --with")


def _put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_bytes(data)
    fresh.replace(path)


class Systemd:
    """A unit of this user."""

    def _path(self, name: str) -> Path:
        base = os.environ.get("XDG_CONFIG_HOME", "")
        folder = Path(base) if base.startswith("/") else Path("~/.config").expanduser()
        return folder / "systemd" / "user" / f"{name}.service"

    def installed(self, service: Service) -> Sequence[str]:
        """Install and start *service*; return what people should know."""
        unit, path = f"{service.name}.service", self._path(service.name)
        pairs = (f"{name}={value}" for name, value in service.variables.items())
        keys = ""
        if service.env_file is not None:
            keys = f"\nEnvironmentFile=-{systemd_escaped(service.env_file)}"
        text = _UNIT.format(
            folders=systemd_escaped(", ".join(service.folders)),
            folder=systemd_escaped(service.folders[0]),
            environment=" ".join(systemd_quoted(pair, is_command=False) for pair in pairs),
            keys=keys,
            argv=" ".join(systemd_quoted(word) for word in service.argv),
        )
        _put(path, text.encode())
        _ensured("systemctl", "--user", "daemon-reload")
        _ensured("systemctl", "--user", "enable", unit)
        _ensured("systemctl", "--user", "restart", unit)
        return (
            f"{path} is installed and started",
            f"what it says: journalctl --user -u {unit}",
            "while nobody is logged in it runs after: loginctl enable-linger",
        )

    def shown(self, name: str) -> tuple[bool, str]:
        """Return whether *name* is installed, and how it is."""
        if not self._path(name).exists():
            return False, "not installed"
        state = _run("systemctl", "--user", "is-active", f"{name}.service").stdout.strip()
        return True, f"installed, {state or 'unknown'} ({self._path(name)})"

    def removed(self, name: str) -> bool:
        """End and remove *name*; return whether it was there."""
        path = self._path(name)
        if not path.exists():
            return False
        _run("systemctl", "--user", "disable", "--now", f"{name}.service")
        path.unlink()
        _run("systemctl", "--user", "daemon-reload")
        return True


class Launchd:
    """An agent of macOS."""

    def _path(self, name: str) -> Path:
        return Path("~/Library/LaunchAgents").expanduser() / f"{name}.plist"

    def installed(self, service: Service) -> Sequence[str]:
        """See `Systemd.installed`."""
        path, domain = self._path(service.name), f"gui/{os.getuid()}"
        log = str(Path("~/Library/Logs").expanduser() / f"{service.name}.log")
        told = {
            "Label": service.name,
            "ProgramArguments": ["/bin/sh", "-c", service.shell],
            "WorkingDirectory": service.folders[0],
            "EnvironmentVariables": dict(service.variables),
            "RunAtLoad": True,
            "KeepAlive": {"SuccessfulExit": False},
            # Runs that a tracker has started go on when the pages end.
            "AbandonProcessGroup": True,
            "StandardOutPath": "/dev/null",
            "StandardErrorPath": log,
        }
        _run("launchctl", "bootout", f"{domain}/{service.name}")
        _put(path, plistlib.dumps(told))
        _ensured("launchctl", "bootstrap", domain, str(path))
        return (f"{path} is installed and started", f"what it says: {log}")

    def shown(self, name: str) -> tuple[bool, str]:
        """See `Systemd.shown`."""
        if not self._path(name).exists():
            return False, "not installed"
        runs = _run("launchctl", "print", f"gui/{os.getuid()}/{name}").returncode == 0
        return True, f"installed, {'active' if runs else 'inactive'} ({self._path(name)})"

    def removed(self, name: str) -> bool:
        """See `Systemd.removed`."""
        path = self._path(name)
        if not path.exists():
            return False
        _run("launchctl", "bootout", f"gui/{os.getuid()}/{name}")
        path.unlink()
        return True


class Cron:
    """A line of the crontab, for the next start of the machine."""

    def _lines(self) -> list[str]:
        done = _run("crontab", "-l")
        return done.stdout.splitlines() if done.returncode == 0 else []

    def _without(self, name: str) -> tuple[list[str], bool]:
        lines = self._lines()
        left = [line for line in lines if not line.endswith(f" # {name}")]
        return left, len(left) < len(lines)

    def installed(self, service: Service) -> Sequence[str]:
        """See `Systemd.installed`."""
        given = " ".join(f"{name}={shlex.quote(text)}" for name, text in service.variables.items())
        folder = shlex.quote(service.folders[0])
        command = f"cd {folder} && export {given} && {service.shell} >/dev/null".replace("%", r"\%")
        lines, _ = self._without(service.name)
        text = "\n".join([*lines, f"@reboot {command} # {service.name}"]) + "\n"
        _ensured("crontab", "-", text=text)
        return ("it starts with the machine; until then start it by hand: sequencer web",)

    def shown(self, name: str) -> tuple[bool, str]:
        """See `Systemd.shown`."""
        is_there = self._without(name)[1]
        return is_there, "starts with the machine (crontab)" if is_there else "not installed"

    def removed(self, name: str) -> bool:
        """See `Systemd.removed`."""
        lines, was_there = self._without(name)
        if was_there:
            _ensured("crontab", "-", text="".join(f"{line}\n" for line in lines))
        return was_there


def _installer(kind: str | None) -> Systemd | Launchd | Cron:
    """Return what starts programs on this machine, or what was asked for."""
    if kind is None:
        has_systemd = shutil.which("systemctl") and Path("/run/systemd/system").is_dir()
        other = "systemd" if has_systemd else "cron"
        kind = "launchd" if sys.platform == "darwin" else other
    if kind == "systemd":
        return Systemd()
    return Launchd() if kind == "launchd" else Cron()
