"""Which programs a timer's tick has to find, and where the entries that call it look.

A timer has not the PATH of a shell. The entry that is printed brings one along, with the
folders in which the project's programs are found at that moment; what was installed
earlier is read back, so that `check` asks what the next tick will find.

Not promised: what an agent calls by itself, and entries that nobody printed in this form.
"""

from __future__ import annotations

import os
import plistlib
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple
from xml.parsers.expat import ExpatError

from sequencer.errors import SequencerError
from sequencer.files.textfile import slug
from sequencer.model.workflow import Workflow
from sequencer.plugins.schedules.section import schedules_of
from sequencer.plugins.schedules.timer_needs import (
    Lack,
    lacks_of_cron,
    lacks_of_keys,
    workflows_of,
)
from sequencer.project.agents import CLIENTS
from sequencer.project.project import Project
from sequencer.project.settings import Agent, Settings
from sequencer.store.folder import read_regular

ALWAYS = ("git", "node")
"""What agents and the program itself look for; node starts most clients."""
STANDARD_PATH = ("/usr/local/bin", "/usr/bin", "/bin")
_LIST_S = 5
"""crontab -l reads a file; one that asks for a password would wait forever."""
Which = Callable[[str], str | None]
_STAMP = re.compile(r"(?m)^(\d{4}(?:-\d\d){2} \d\d(?::\d\d){2}[+-]\d{4})  ")
TAIL_BYTES = 8 * 1024
"""Of a log, from which the pace of its ticks is read."""
SHORTEST_PAUSE_S, LEAST_PAUSES = 20.0, 2
"""No timer is faster: what is closer was said by one tick."""
DAY_S = 24 * 60 * 60
LATE, LATE_S = 2.0, 60.0
"""Pauses, and seconds more, after which a timer's tick is missed."""


class Entry(NamedTuple):
    """A timer's entry: what it is, and the PATH that its tick gets."""

    name: str
    path: str
    run: str | None = None
    """The run that it names."""
    is_all: bool = False
    """It is for all runs."""
    env_file: str | None = None
    """The file with keys that it reads."""
    is_of_cron: bool = False

    def serves(self, run: str) -> bool:
        """Return whether its ticks start *run*."""
        return self.is_all or self.run == run


class Lost(NamedTuple):
    """A program that is found here, and by the tick of an entry elsewhere or not at all."""

    entry: Entry
    program: str
    here: str
    there: str | None


def programs_of(settings: Settings) -> list[str]:
    """Return the names that agents of the project may look for on PATH, and `ALWAYS`."""
    own = filter(None, map(_looked_up, settings.agents.values()))
    return list(dict.fromkeys([*CLIENTS, *own, *ALWAYS]))


def _looked_up(agent: Agent) -> str | None:
    """Return the name of the program of *agent* if this process's PATH leads to it."""
    argv, env = agent.options.get("argv"), agent.options.get("env")
    first = argv[0] if isinstance(argv, (list, tuple)) and argv else None
    name = first if agent.kind == "command" else agent.options.get("program")
    has_own_path = isinstance(env, Mapping) and "PATH" in env
    if not isinstance(name, str) or has_own_path or os.sep in name or name == "{python}":
        return None
    return name


def path_for(programs: list[str], present: str, which: Which) -> str:
    """Return a short PATH that finds each of *programs* where *present* does."""
    found = {os.path.dirname(path) for program in programs if (path := which(program))}  # noqa: PTH120
    # The order of the present PATH decides which of two programs of one name is meant; a
    # relative entry would mean another folder there.
    order = [folder for folder in present.split(os.pathsep) if folder.startswith("/")]
    wanted = [folder for folder in order if folder in found or folder in STANDARD_PATH]
    return os.pathsep.join(dict.fromkeys([*wanted, *STANDARD_PATH]))


def installed(settings: Settings, env: Mapping[str, str]) -> list[Entry]:
    """Return the entries of this machine whose ticks work on the project."""
    found = (_of_cron(settings), _of_systemd(settings, env), _of_launchd(settings, env))
    return [entry for entries in found for entry in entries]


def without_timer(settings: Settings, entries: Sequence[Entry]) -> Iterator[str]:
    """Yield the runs of ``schedules:`` that no timer of this machine starts.

    Whatever calls ticks leaves its log, so another kind of timer is known by that.
    """
    for run in schedules_of(settings):
        pace = pace_of(settings, run)
        if not any(entry.serves(run) for entry in entries) and (pace is None or pace.is_missed):
            yield run


def scheduled_workflows(project: Project) -> Iterator[Workflow]:
    """Yield the workflows that runs of ``schedules:`` work on."""
    for run in schedules_of(project.settings):
        yield from workflows_of(project, run, is_all=False)


def lacking(project: Project, entries: Sequence[Entry]) -> Iterator[tuple[Entry, Lack]]:
    """Yield what the ticks of installed *entries* need, and do not have."""
    for entry in entries:
        workflows = workflows_of(project, entry.run, is_all=entry.is_all)
        env_file = None if entry.env_file is None else Path(entry.env_file)
        for lack in lacks_of_keys(project, workflows, env_file):
            yield entry, lack
    if (cron := next((entry for entry in entries if entry.is_of_cron), None)) is not None:
        log = log_of_all(project.settings) if cron.is_all else tick_log(project.settings, cron.run)
        for lack in lacks_of_cron(_crontab().splitlines(), str(log)):
            yield cron, lack


def lost(settings: Settings, entries: Sequence[Entry], env: Mapping[str, str]) -> Iterator[Lost]:
    """Yield what the ticks of installed *entries* do not find as this process does.

    Where none is installed, the entry that would be printed counts.
    """
    programs, present = programs_of(settings), env.get("PATH", "")
    if not entries:
        path = path_for(programs, present, partial(shutil.which, path=present))
        entries = [Entry("the timer that 'sequencer schedule install' installs", path)]
    for entry in entries:
        for program in programs:
            here = shutil.which(program, path=present)
            there = shutil.which(program, path=entry.path)
            if here and (there is None or _place(here) != _place(there)):
                yield Lost(entry, program, here, there)


def _place(program: str) -> tuple[str, str]:
    # The folder's links and not the program's: an environment's python is a link to another.
    folder, name = os.path.split(program)
    return os.path.realpath(folder), name


def _of_cron(settings: Settings) -> Iterator[Entry]:
    yield from entries_of(_crontab(), settings.project_dir)


def _crontab() -> str:
    """Return this user's crontab; empty if there is none, or it can't be read."""
    program = shutil.which("crontab")
    if program is None or not Path(program).is_absolute():
        return ""
    try:
        listed = subprocess.run(  # noqa: S603 - no words of others are in it
            [program, "-l"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_LIST_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return listed.stdout.decode(errors="replace")


def entries_of(crontab: str, folder: Path) -> Iterator[Entry]:
    """Yield the entries of *crontab* whose ticks work in *folder*."""
    above = "/usr/bin:/bin"
    for line in crontab.split("\n"):
        if (found := re.match(r"\s*PATH\s*=\s*(.*?)\s*$", line)) is not None:
            above = found[1].strip("\"'")
            continue
        try:
            words = shlex.split(line.replace(r"\%", "%"), comments=True)
        except ValueError:
            continue
        at_folder = ("cd", str(folder)) in pairwise(words)
        if at_folder and "tick" in words:
            entry = _entry("the crontab", words, _value("PATH", words) or above)
            yield entry._replace(is_of_cron=True)


def _entry(name: str, words: Sequence[str], path: str, env_file: str | None = None) -> Entry:
    # As `Job.shell` writes it.
    file = env_file or next((after for word, after in pairwise(words) if word == "."), None)
    return Entry(name, path, _value("--run", words), "--all" in words, file)


def _value(name: str, words: Sequence[str]) -> str | None:
    """Return what is given in *words* as ``name=value``, or as an option's next word."""
    joined = (word.partition("=")[2] for word in words if word.startswith(f"{name}="))
    apart = (value for word, value in pairwise(words) if word == name)
    return next(joined, None) or next(apart, None)


def _of_systemd(settings: Settings, env: Mapping[str, str]) -> Iterator[Entry]:
    home = env.get("XDG_CONFIG_HOME") or os.path.join(env.get("HOME", "/"), ".config")  # noqa: PTH118
    for unit in sorted(Path(home, "systemd", "user").glob("*.service")):
        try:
            text = unit.read_text(errors="replace").replace("%%", "%")
        except OSError:
            continue
        folder = re.search(r"(?m)^WorkingDirectory=(.*?)\s*$", text)
        if folder is None or folder[1] != str(settings.project_dir):
            continue
        own = re.search(r'(?m)^Environment=.*?"?\bPATH=([^"\n]*)', text)
        command = re.search(r"(?m)^ExecStart=(.*)", text)
        keys = re.search(r"(?m)^EnvironmentFile=-?(.*?)\s*$", text)
        try:
            words = shlex.split(command[1]) if command is not None else []
        except ValueError:
            continue
        if own is not None and "tick" in words:
            yield _entry(str(unit), words, own[1], keys and keys[1])


def _of_launchd(settings: Settings, env: Mapping[str, str]) -> Iterator[Entry]:
    agents = Path(env.get("HOME", "/"), "Library", "LaunchAgents")
    for path in sorted(agents.glob("*.plist")):
        try:
            told = plistlib.loads(path.read_bytes())
            words = shlex.split(told["ProgramArguments"][-1])
        except (OSError, ValueError, TypeError, LookupError, ExpatError):
            continue  # it is another program's
        if told.get("WorkingDirectory") == str(settings.project_dir) and "tick" in words:
            path_of_tick = _value("PATH", words) or os.pathsep.join(STANDARD_PATH[1:])
            yield _entry(str(path), words, path_of_tick)


class TickPace(NamedTuple):
    """How the ticks of a timer came."""

    last: float
    """Seconds since 1970."""
    pause_s: float
    """The longest between two of them."""

    @property
    def next(self) -> float:
        """Return when the next one is due."""
        return self.last + self.pause_s

    @property
    def is_missed(self) -> bool:
        """Return whether more ticks are late than one, which may just take long."""
        return time.time() - self.last > LATE * self.pause_s + LATE_S


def tick_log(settings: Settings, run: str | None) -> Path:
    """Return the log that the timer's ticks of the run called *run* write."""
    return settings.logs_dir / (f"tick.{slug(run)}.log" if run else "tick.log")


def log_of_all(settings: Settings) -> Path:
    """Return the log that the timer's ticks of all runs write, besides those of the runs."""
    return settings.logs_dir / "tick-all.log"


def pace_of(settings: Settings, run: str | None) -> TickPace | None:
    """Return how the ticks that may work on *run* came; None: too few of them are known.

    Those of all runs give it no turn while it has nothing to do, but they came.
    """
    logs = tick_log(settings, run), log_of_all(settings)
    known = [pace for log in logs if (pace := _pace_in(log)) is not None]
    return max(known, default=None)


def last_tick(settings: Settings, run: str | None) -> float | None:
    """Return when a tick came last that may work on *run*; None: none is known."""
    logs = tick_log(settings, run), log_of_all(settings)
    return max((time for log in logs for time in _times_in(log)), default=None)


def _pace_in(log: Path) -> TickPace | None:
    """Return how the ticks came that wrote *log*; None: too few of them are known."""
    times = _times_in(log)
    pauses = [two - one for one, two in pairwise(times) if two - one > SHORTEST_PAUSE_S]
    return TickPace(times[-1], max(pauses)) if len(pauses) >= LEAST_PAUSES else None


def _times_in(log: Path) -> list[float]:
    """Return the newest times in the *log* of ticks.

    Known from their log, which is there whatever called them. A time more than a day ahead was
    written by a clock that was wrong, or by an agent: it would hide that ticks are missed.
    """
    try:
        data = read_regular(log, max(log.lstat().st_size - TAIL_BYTES, 0))
    except (OSError, SequencerError):
        return []
    stamps = dict.fromkeys(_STAMP.findall(data.decode(errors="replace")))
    latest = time.time() + DAY_S
    return [at for one in stamps if (at := _time(one)) is not None and at <= latest]


def _time(stamp: str) -> float | None:
    """Return the time of a line, in seconds since 1970; None: there is no such time."""
    try:
        return datetime.fromisoformat(stamp).timestamp()
    except (ValueError, OverflowError):
        return None
