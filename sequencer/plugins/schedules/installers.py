"""The timers and services of this machine: units of systemd, agents of launchd, lines of cron.

Every path is absolute and quoted for its reader: sh inside cron, where ``%`` ends the command, or
systemd, where ``%`` starts a specifier. Keys are in a file that the entry names.

Not promised: that a job runs while no one is logged in; the message says what this needs.
"""

from __future__ import annotations

import os
import plistlib
import pwd
import re
import shlex
import shutil
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from sequencer.errors import UsageRefused
from sequencer.files.textfile import path_at_home
from sequencer.plugins.schedules.dates import Schedule

KINDS = ("systemd", "launchd", "cron")
HOUR_MIN, DAY_MIN = 60, 1440
REGULAR = {
    1: "* * * * *",
    **{
        minutes: f"*/{minutes} * * * *" for minutes in range(2, HOUR_MIN) if HOUR_MIN % minutes == 0
    },
    HOUR_MIN: "0 * * * *",
    **{hours * HOUR_MIN: f"0 */{hours} * * *" for hours in range(2, 24) if 24 % hours == 0},
    DAY_MIN: "0 0 * * *",
}
"""Interval in minutes -> the five fields of cron for it."""
NO_CRONTAB = ("no crontab for", "no such file")
"""Messages of crontab -l if there is no crontab; busybox prints the second."""
_UNDECODED = re.compile("[\udc80-\udcff]")
"""Stands for a byte of a file name that is not UTF-8."""
CRON_CHARS = 990
"""Classic cron refuses longer commands."""
PROGRAM_S = 30
_SERVICE = """\
[Unit]
Description={about}
{unit}
[Service]
WorkingDirectory={folder}
Environment={environment}{keys}
ExecStart={argv}
{service}"""
_PAGES = (
    "After=network.target\n",
    """\
# The link does not belong in a log; everything else goes to the journal.
StandardOutput=null
Restart=on-failure
RestartSec=5
# Runs that a tracker has started continue when the pages end.
KillMode=process

[Install]
WantedBy=default.target
""",
)
_TICK = (
    "# The journal tells you once of each change that you have to know; OnFailure= can mail it.\n",
    """\
Type=oneshot
# 75: another tick is at work; 130: it was ended in order. Neither is a failure.
SuccessExitStatus=75 130
# First the step's agent is asked to end; then whatever is left is killed.
KillMode=mixed
TimeoutStopSec=30
""",
)
_TIMER = """\
[Unit]
Description={about}

[Timer]
OnActiveSec=1min
OnUnitActiveSec={every}min

[Install]
WantedBy=timers.target
"""


class Job(Struct, frozen=True):
    """A program that this machine starts at intervals, or keeps running."""

    name: str
    about: str
    argv: tuple[str, ...]
    folder: str
    variables: Mapping[str, str]
    """PATH, and the variable for the state folder if it is set."""
    env_file: str | None
    every: int | None = None
    """Minutes between two starts; None: it runs permanently."""

    def ensure_printable(self) -> None:
        """Check that a unit file or a crontab can hold this job.

        Raises:
            UsageRefused: a text has a control character, or is not UTF-8.
        """
        for text in (self.folder, *self.argv, *self.variables.values(), self.env_file or ""):
            if text.isprintable():
                continue
            name, problem = ascii(text), "has a line break or another control character"
            if _UNDECODED.search(text) is not None:
                name, problem = repr(os.fsencode(text))[1:], "is not UTF-8"
            raise UsageRefused(
                f"{name} {problem}", hint="a crontab or unit file can't have it; rename the folder"
            )

    @property
    def shell(self) -> str:
        """Return the command for sh; it reads the keys first."""
        parts: list[str] = []
        if self.env_file is not None:
            parts += ["set -a", f". {shlex.quote(self.env_file)}", "set +a"]
        assignments = " ".join(
            f"{name}={shlex.quote(text)}" for name, text in self.variables.items()
        )
        return " && ".join([*parts, f"export {assignments}", f"exec {shlex.join(self.argv)}"])

    @property
    def typed(self) -> str:
        """Return the command that a person can type to start it."""
        command = shlex.join(self.argv)
        if self.env_file is None:
            return command
        return f"(set -a && . {shlex.quote(self.env_file)} && set +a && exec {command})"


def _compute_next_start(last_time: float | None, interval: int | None) -> float | None:
    if last_time is None or interval is None:
        return None
    return last_time + interval * 60


def _search_file(path: Path, pattern: str) -> str | None:
    """Return the first group of *pattern* in the file at *path*, or None."""
    with suppress(OSError, UnicodeDecodeError):
        match = re.search(pattern, path.read_text(encoding="utf-8"))
        return None if match is None else match[1]
    return None


def _is_lingering() -> bool:
    """Return whether the services of this user run while the user is not logged in."""
    with suppress(KeyError, OSError):
        return Path("/var/lib/systemd/linger", pwd.getpwuid(os.getuid()).pw_name).exists()
    return False


class _Files(ABC):
    """A kind of timer that is configured by files of this user."""

    @abstractmethod
    def files(self, job: Job) -> dict[Path, str]:
        """Return the text of each file of *job*."""

    @abstractmethod
    def _paths(self, name: str) -> tuple[Path, ...]:
        """Return the paths of the files of the job called *name*."""

    def format_job(self, job: Job) -> str:
        """Return the files that `install` would write, ready to paste."""
        return "\n\n".join(
            f"# Put this into {path}\n{text.rstrip()}" for path, text in self.files(job).items()
        )

    def _write(self, job: Job) -> str:
        has_existed = self._exists(job.name)
        for path, text in self.files(job).items():
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f".{path.name}.{os.getpid()}")
            try:
                temporary.write_text(text, encoding="utf-8")
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)
        return f"{self._paths(job.name)[0]} {'was replaced' if has_existed else 'is installed'}"

    @contextmanager
    def _undo_on_failure(self, name: str) -> Iterator[None]:
        """If the block fails, restore the files of the job called *name* as they were before.

        A job that was not installed must not start at the next login.
        """
        old_files = {
            path: path.read_bytes() if path.exists() else None for path in self._paths(name)
        }
        try:
            yield
        except BaseException:
            has_existed = any(data is not None for data in old_files.values())
            if not has_existed:
                with suppress(UsageRefused):
                    self._disable(name)
            for path, data in old_files.items():
                path.unlink(missing_ok=True) if data is None else path.write_bytes(data)
            with suppress(UsageRefused):
                self._load_restored(name, has_existed=has_existed)
            raise

    @abstractmethod
    def _disable(self, name: str) -> None:
        """Stop the job called *name*, whose files exist; a failure changes nothing."""

    @abstractmethod
    def _load_restored(self, name: str, *, has_existed: bool) -> None:
        """Load the restored files of the job called *name*, and start it if it *has_existed*."""

    def _exists(self, name: str) -> bool:
        return self._paths(name)[0].exists()

    def _unlink(self, name: str) -> None:
        for path in self._paths(name):
            with suppress(FileNotFoundError):
                path.unlink()


class Systemd(_Files):
    """Units of this user."""

    def _paths(self, name: str) -> tuple[Path, ...]:
        base = os.environ.get("XDG_CONFIG_HOME", "")
        folder = Path(base) if base.startswith("/") else path_at_home(".config", "XDG_CONFIG_HOME")
        return tuple(
            folder / "systemd" / "user" / f"{name}.{kind}" for kind in ("service", "timer")
        )

    def files(self, job: Job) -> dict[Path, str]:
        folder, description = _escape(job.folder), _escape(job.about)
        pairs = (f"{name}={value}" for name, value in job.variables.items())
        keys = f"\nEnvironmentFile=-{_escape(job.env_file)}" if job.env_file else ""
        unit, service = _PAGES if job.every is None else _TICK
        text = _SERVICE.format(
            about=description,
            unit=unit,
            folder=folder,
            environment=" ".join(_quote(pair, is_command=False) for pair in pairs),
            keys=keys,
            argv=" ".join(_quote(word) for word in job.argv),
            service=service,
        )
        path, timer = self._paths(job.name)
        if job.every is None:
            return {path: text}
        return {path: text, timer: _TIMER.format(about=description, every=job.every)}

    def format_job(self, job: Job) -> str:
        unit = _format_unit(job)
        return (
            f"{super().format_job(job)}\n\n"
            f"# Then: systemctl --user daemon-reload && systemctl --user enable --now {unit}\n"
            "# And, so that it runs while no one is logged in: loginctl enable-linger"
        )

    def install(self, job: Job) -> Sequence[str]:
        """Install and start *job*; return messages to print."""
        unit = _format_unit(job)
        with self._undo_on_failure(job.name):
            message = self._write(job)
            _run_checked("systemctl", "--user", "daemon-reload")
            _run_checked("systemctl", "--user", "enable", unit)
            _run_checked("systemctl", "--user", "restart", unit)
        linger = "so that it runs while no one is logged in: loginctl enable-linger"
        return (
            f"{message} and started",
            f"its messages: journalctl --user -u {job.name}.service",
            *([] if _is_lingering() else [linger]),
        )

    def interval(self, name: str) -> int | None:
        """Return the minutes between two starts of *name*; None: permanent, or not installed."""
        minutes = _search_file(self._paths(name)[1], r"(?m)^OnUnitActiveSec=(\d{1,9})min")
        return None if minutes is None else int(minutes)

    def find_next_start(self, name: str, last: float | None) -> float | None:
        """Return the time of the next start of *name* after *last*, in seconds since 1970."""
        return _compute_next_start(last, self.interval(name))

    def describe_state(self, name: str) -> tuple[bool, str]:
        """Return (whether *name* is installed, its state in words)."""
        if not self._exists(name):
            return False, "not installed"
        unit = f"{name}.{'timer' if self._paths(name)[1].exists() else 'service'}"
        state = _run("systemctl", "--user", "is-active", unit).stdout.strip()
        return True, f"installed, {state or 'unknown'} ({self._paths(name)[0]})"

    def remove(self, name: str) -> bool:
        """Stop and remove *name*; return whether it was installed."""
        if not self._exists(name):
            return False
        self._disable(name)
        self._unlink(name)
        _run("systemctl", "--user", "daemon-reload")
        return True

    def _disable(self, name: str) -> None:
        for path in self._paths(name):
            if path.exists():
                _run("systemctl", "--user", "disable", "--now", path.name)

    def _load_restored(self, name: str, *, has_existed: bool) -> None:
        _run("systemctl", "--user", "daemon-reload")
        if has_existed:
            unit = f"{name}.{'timer' if self._paths(name)[1].exists() else 'service'}"
            _run("systemctl", "--user", "restart", unit)


class Launchd(_Files):
    """An agent of macOS."""

    def _paths(self, name: str) -> tuple[Path, ...]:
        return (path_at_home("Library/LaunchAgents") / f"{name}.plist",)

    def _log(self, name: str) -> str:
        return str(path_at_home("Library/Logs") / f"{name}.log")

    def files(self, job: Job) -> dict[Path, str]:
        log = self._log(job.name)
        fields: dict[str, Any] = {
            "Label": job.name,
            "ProgramArguments": ["/bin/sh", "-c", job.shell],
            "WorkingDirectory": job.folder,
            "StandardErrorPath": log,
        }
        if job.every is None:
            # Runs that a tracker has started continue after the pages end. The link, which the
            # pages print, does not belong in a log.
            fields |= {"RunAtLoad": True, "KeepAlive": {"SuccessfulExit": False}}
            fields |= {"AbandonProcessGroup": True, "StandardOutPath": "/dev/null"}
        else:
            fields |= {"StartInterval": job.every * 60, "StandardOutPath": log}
        return {self._paths(job.name)[0]: plistlib.dumps(fields).decode()}

    def install(self, job: Job) -> Sequence[str]:
        """Write the agent of *job* and load it; return messages to print."""
        with self._undo_on_failure(job.name):
            self._disable(job.name)
            message = self._write(job)
            _run_checked("launchctl", "bootstrap", self._domain, str(self._paths(job.name)[0]))
        return f"{message} and started", f"its messages: {self._log(job.name)}"

    def describe_state(self, name: str) -> tuple[bool, str]:
        """Return (whether the agent *name* is installed, its state in words)."""
        if not self._exists(name):
            return False, "not installed"
        runs = _run("launchctl", "print", f"gui/{os.getuid()}/{name}").returncode == 0
        return True, f"installed, {'active' if runs else 'inactive'} ({self._paths(name)[0]})"

    def interval(self, name: str) -> int | None:
        """Return the minutes between two starts of *name*; None: permanent, or not installed."""
        seconds = _search_file(
            self._paths(name)[0], r"<key>StartInterval</key>\s*<integer>(\d{1,9})</integer>"
        )
        return None if seconds is None else int(seconds) // 60

    def find_next_start(self, name: str, last: float | None) -> float | None:
        """Return the time of the next start of *name* after *last*, in seconds since 1970."""
        return _compute_next_start(last, self.interval(name))

    def remove(self, name: str) -> bool:
        """Unload and remove the agent *name*; return whether it was installed."""
        if not self._exists(name):
            return False
        self._disable(name)
        self._unlink(name)
        return True

    @property
    def _domain(self) -> str:
        return f"gui/{os.getuid()}"

    def _disable(self, name: str) -> None:
        _run("launchctl", "bootout", f"{self._domain}/{name}")

    def _load_restored(self, name: str, *, has_existed: bool) -> None:
        if has_existed:
            _run("launchctl", "bootstrap", self._domain, str(self._paths(name)[0]))


class Cron:
    """A line of the crontab."""

    def format_job(self, job: Job) -> str:
        """Return the line for the crontab.

        Raises:
            UsageRefused: cron does not support this interval, or a line of this length.
        """
        times, redirection = (
            ("@reboot", " >/dev/null") if job.every is None else (cron_times(job.every), "")
        )
        # cron ends the command at %, even inside quotes, and passes the rest as its input.
        command = f"cd {shlex.quote(job.folder)} && {job.shell}{redirection}".replace("%", r"\%")
        line = f"{times} {command} # {job.name}"
        if len(line) > CRON_CHARS:
            raise UsageRefused(
                f"the entry would have {len(line)} characters, more than cron accepts",
                hint="use --with systemd, or a shorter path",
            )
        return line

    def _read_crontab(self) -> list[str]:
        """Return the lines of the crontab.

        Raises:
            UsageRefused: they can't be read, so replacing the crontab would lose them.
        """
        process = _run("crontab", "-l")
        message = process.stderr.strip()
        if process.returncode and not any(words in message.lower() for words in NO_CRONTAB):
            raise UsageRefused(
                f"crontab -l: {message or f'exit code {process.returncode}'}",
                hint="your crontab is unchanged; choose another timer with --with",
            )
        # Split only at \n, as cron does: other line ends in a comment must not start a command.
        return [] if process.returncode else process.stdout.removesuffix("\n").split("\n")

    def _drop_line(self, name: str) -> tuple[list[str], bool]:
        lines = self._read_crontab()
        other_lines = [line for line in lines if not line.endswith(f" # {name}")]
        return other_lines, len(other_lines) < len(lines)

    def install(self, job: Job) -> Sequence[str]:
        """Add the line of *job* to the crontab, or replace it; return messages to print."""
        line = self.format_job(job)
        lines, has_existed = self._drop_line(job.name)
        _run_checked("crontab", "-", text="\n".join([*lines, line]) + "\n")
        message = "the line in your crontab was replaced" if has_existed else ""
        message = message or "a line was added to your crontab"
        if job.every is None:
            return message, f"it starts with the machine; until then start it by hand: {job.typed}"
        return (message,)

    def interval(self, name: str) -> int | None:
        """Return the minutes between two starts of *name*; None: irregular, or not installed."""
        intervals = {fields: interval for interval, fields in REGULAR.items()}
        return intervals.get(self._read_cron_times(name) or "")

    def find_next_start(self, name: str, last: float | None) -> float | None:
        """Return the time of the next start of *name*, in seconds since 1970."""
        del last
        fields = self._read_cron_times(name)
        return (
            None
            if fields is None
            else Schedule(workflow=name, at=fields).find_next_date(time.time())
        )

    def read_lines(self) -> list[str]:
        """Return the lines of the crontab; empty if it can't be read."""
        with suppress(UsageRefused):
            return self._read_crontab()
        return []

    def _read_cron_times(self, name: str) -> str | None:
        """Return the five fields of the line for *name*; None: unknown fields, or no line."""
        line = next((line for line in self.read_lines() if line.endswith(f" # {name}")), "")
        fields = " ".join(line.split()[:5])
        return fields if fields in REGULAR.values() else None

    def describe_state(self, name: str) -> tuple[bool, str]:
        """Return (whether the crontab has a line for *name*, its state in words)."""
        if shutil.which("crontab") is None:
            return False, "not installed; this machine has no crontab"
        is_installed = self._drop_line(name)[1]
        return is_installed, "installed (crontab)" if is_installed else "not installed"

    def remove(self, name: str) -> bool:
        """Remove the line of *name* from the crontab; return whether it was installed."""
        lines, has_existed = self._drop_line(name)
        if has_existed:
            _run_checked("crontab", "-", text="".join(f"{line}\n" for line in lines))
        return has_existed


Installer = Systemd | Launchd | Cron


def find_installer(kind: str | None) -> Installer:
    """Return the installer for *kind*; None: the best kind that this machine has."""
    if kind is None:
        has_systemd = shutil.which("systemctl") and Path("/run/systemd/system").is_dir()
        linux_kind = "systemd" if has_systemd else "cron"
        kind = "launchd" if sys.platform == "darwin" else linux_kind
    if kind == "systemd":
        return Systemd()
    return Launchd() if kind == "launchd" else Cron()


def cron_times(every: int) -> str:
    """Return the five fields of cron for an interval of *every* minutes.

    Raises:
        UsageRefused: the interval does not divide an hour or a day: with cron, 45 minutes would
            be 45 and then 15.
    """
    if (fields := REGULAR.get(every)) is not None:
        return fields
    raise UsageRefused(
        f"cron can't run something every {every} minutes",
        where="--every",
        hint=f"use one of {', '.join(map(str, REGULAR))}; --with systemd takes any number",
    )


def _format_unit(job: Job) -> str:
    return f"{job.name}.{'service' if job.every is None else 'timer'}"


def _escape(text: str) -> str:
    """Return *text* escaped for a systemd setting that ends with the line.

    Raises:
        UsageRefused: systemd would drop its end, or continue with the next line.
    """
    if text.endswith((" ", "\\")):
        raise UsageRefused(
            f"{text!a} ends in a blank or a backslash, which no unit of systemd can hold",
            hint="rename the folder or file, or use --with cron",
        )
    return text.replace("%", "%%")


def _quote(text: str, *, is_command: bool = True) -> str:
    """Return *text* quoted as one word of a systemd setting, or of a command line in it."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    # Only a command line replaces $NAME.
    return f'"{escaped.replace("$", "$$") if is_command else escaped}"'


def _run(*argv: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program of the system, and return its result.

    Raises:
        UsageRefused: it is not installed, or hangs.
    """
    try:
        return subprocess.run(  # noqa: S603 - programs of the system, an argv list
            argv,
            input=text,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",  # a crontab may have any bytes, which must not change
            timeout=PROGRAM_S,
            check=False,
        )
    except FileNotFoundError as error:
        hint = "choose another with --with"
        raise UsageRefused(f"there is no {argv[0]} on this machine", hint=hint) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageRefused(
            f"{argv[0]} can't be run: {error}", hint="choose another with --with"
        ) from error


def _run_checked(*argv: str, text: str | None = None) -> None:
    process = _run(*argv, text=text)
    if process.returncode:
        message = process.stderr.strip() or f"exit code {process.returncode}"
        raise UsageRefused(f"{shlex.join(argv)}: {message}", hint="choose another with --with")
