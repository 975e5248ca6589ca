"""The programs that a timer's tick must find, and the PATH of the installed timers.

A timer does not have the PATH of a shell. A printed entry sets one, with the folders that have the
project's programs now. Installed entries are read back, so that `check` can report programs that
the next tick will not find.

Not covered: programs that an agent calls by itself, and entries in another form.
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
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from xml.parsers.expat import ExpatError

from msgspec import Struct
from msgspec.structs import replace

from sequencer.errors import SequencerError
from sequencer.files.textfile import slug
from sequencer.model.workflow import Workflow
from sequencer.plugins.schedules.section import get_schedules
from sequencer.plugins.schedules.timer_needs import (
    MissingRequirement,
    find_missing_for_cron,
    find_missing_keys,
    list_run_workflows,
)
from sequencer.project.agents import CLIENTS
from sequencer.project.project import Project
from sequencer.project.settings import Agent, Settings
from sequencer.store.folder import read_regular

ALWAYS = ("git", "node")
"""Programs that agents and this program need; node starts most clients."""
STANDARD_PATH = ("/usr/local/bin", "/usr/bin", "/bin")
_LIST_S = 5
"""Time limit for crontab -l, which should only read a file but may ask for a password."""
Which = Callable[[str], str | None]
_STAMP = re.compile(r"(?m)^(\d{4}(?:-\d\d){2} \d\d(?::\d\d){2}[+-]\d{4})  ")
TAIL_BYTES = 8 * 1024
_LOG_OF_ALL = "tick-all.log"
_MAX_LOGS = 1024
"""Number of logs whose times are kept in memory."""
"""How many bytes at the end of a log are read to find the pace of its ticks."""
SHORTEST_PAUSE_S, MIN_PAUSES = 20.0, 2
"""Lines that are closer are from the same tick: no timer is faster."""
DAY_S = 24 * 60 * 60
LATE, LATE_S = 2.0, 60.0
"""A tick is missed after this many pauses plus this many seconds."""


class Entry(Struct, frozen=True):
    """A timer's entry and the PATH that its tick gets."""

    name: str
    path: str
    run: str | None = None
    """The run that it names."""
    is_all: bool = False
    """Whether it is for all runs."""
    env_file: str | None = None
    """The file from which it reads keys."""
    is_of_cron: bool = False

    def is_for_run(self, run: str) -> bool:
        """Return whether its ticks start *run*."""
        return self.is_all or self.run == run


class MissingProgram(Struct, frozen=True):
    """A program that this shell finds, and that an entry's tick finds elsewhere or not at all."""

    entry: Entry
    program: str
    in_shell: str
    in_tick: str | None


def list_programs(settings: Settings) -> list[str]:
    """Return the programs that agents of the project may search on PATH, and `ALWAYS`."""
    of_agents = filter(None, map(_find_searched_program, settings.agents.values()))
    return list(dict.fromkeys([*CLIENTS, *of_agents, *ALWAYS]))


def _find_searched_program(agent: Agent) -> str | None:
    """Return the program of *agent* if it is searched on this process's PATH, or None."""
    argv, env = agent.options.get("argv"), agent.options.get("env")
    program = argv[0] if isinstance(argv, (list, tuple)) and argv else None
    name = program if agent.kind == "command" else agent.options.get("program")
    has_own_path = isinstance(env, Mapping) and "PATH" in env
    if not isinstance(name, str) or has_own_path or os.sep in name or name == "{python}":
        return None
    return name


def path_for(programs: list[str], present: str, which: Which) -> str:
    """Return a short PATH that finds each of *programs* where *present* does."""
    folders = {os.path.dirname(path) for program in programs if (path := which(program))}  # noqa: PTH120
    # Keep the order of the current PATH: it decides between two programs with the same name. Drop
    # relative folders: they would be other folders in a timer.
    order = [folder for folder in present.split(os.pathsep) if folder.startswith("/")]
    kept_folders = [folder for folder in order if folder in folders or folder in STANDARD_PATH]
    return os.pathsep.join(dict.fromkeys([*kept_folders, *STANDARD_PATH]))


def find_entries(settings: Settings, env: Mapping[str, str]) -> list[Entry]:
    """Return the timer entries of this machine whose ticks work on the project."""
    sources = (
        _find_cron_entries(settings),
        _find_systemd_entries(settings, env),
        _find_launchd_entries(settings, env),
    )
    return [entry for entries in sources for entry in entries]


def find_runs_without_timer(settings: Settings, entries: Sequence[Entry]) -> Iterator[str]:
    """Yield the runs of ``schedules:`` that no timer of this machine starts.

    Every tick writes a log, so timers of other kinds are recognized by the log.
    """
    for run in get_schedules(settings):
        pace = find_tick_pace(settings, run)
        if not any(entry.is_for_run(run) for entry in entries) and (pace is None or pace.is_missed):
            yield run


def scheduled_workflows(project: Project) -> Iterator[Workflow]:
    """Yield the workflows of the runs of ``schedules:``."""
    for run in get_schedules(project.settings):
        yield from list_run_workflows(project, run, is_all=False)


def find_missing_requirements(
    project: Project, entries: Sequence[Entry]
) -> Iterator[tuple[Entry, MissingRequirement]]:
    """Yield what the ticks of installed *entries* need but do not have."""
    for entry in entries:
        workflows = list_run_workflows(project, entry.run, is_all=entry.is_all)
        env_file = None if entry.env_file is None else Path(entry.env_file)
        for missing in find_missing_keys(project, workflows, env_file):
            yield entry, missing
    if (cron := next((entry for entry in entries if entry.is_of_cron), None)) is not None:
        log = log_of_all(project.settings) if cron.is_all else tick_log(project.settings, cron.run)
        for missing in find_missing_for_cron(_read_crontab().splitlines(), str(log)):
            yield cron, missing


def find_lost_programs(
    settings: Settings, entries: Sequence[Entry], env: Mapping[str, str]
) -> Iterator[MissingProgram]:
    """Yield programs that the ticks of installed *entries* don't find, or find elsewhere.

    If none is installed, the entry that would be printed is checked.
    """
    programs, search_path = list_programs(settings), env.get("PATH", "")
    if not entries:
        path = path_for(programs, search_path, partial(shutil.which, path=search_path))
        entries = [Entry("the timer that 'sequencer schedule install' installs", path)]
    for entry in entries:
        for program in programs:
            in_shell = shutil.which(program, path=search_path)
            in_tick = shutil.which(program, path=entry.path)
            if in_shell and (
                in_tick is None or _resolve_folder(in_shell) != _resolve_folder(in_tick)
            ):
                yield MissingProgram(entry, program, in_shell, in_tick)


def _resolve_folder(program: str) -> tuple[str, str]:
    # Resolve links of the folder, not of the program: an environment's python is a link.
    folder, name = os.path.split(program)
    return os.path.realpath(folder), name


def _find_cron_entries(settings: Settings) -> Iterator[Entry]:
    yield from parse_entries(_read_crontab(), settings.project_dir)


def _read_crontab() -> str:
    """Return this user's crontab; empty if there is none, or it can't be read."""
    program = shutil.which("crontab")
    if program is None or not Path(program).is_absolute():
        return ""
    try:
        process = subprocess.run(  # noqa: S603 - fixed arguments
            [program, "-l"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_LIST_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return process.stdout.decode(errors="replace")


def parse_entries(crontab: str, folder: Path) -> Iterator[Entry]:
    """Yield the entries of *crontab* whose ticks work in *folder*."""
    cron_path = "/usr/bin:/bin"
    for line in crontab.split("\n"):
        if (match := re.match(r"\s*PATH\s*=\s*(.*?)\s*$", line)) is not None:
            cron_path = match[1].strip("\"'")
            continue
        try:
            words = shlex.split(line.replace(r"\%", "%"), comments=True)
        except ValueError:
            continue
        at_folder = ("cd", str(folder)) in pairwise(words)
        if at_folder and "tick" in words:
            entry = _entry("the crontab", words, _value("PATH", words) or cron_path)
            yield replace(entry, is_of_cron=True)


def _entry(name: str, words: Sequence[str], path: str, env_file: str | None = None) -> Entry:
    # `Job.shell` writes this form.
    file = env_file or next((file_name for word, file_name in pairwise(words) if word == "."), None)
    return Entry(name, path, _value("--run", words), "--all" in words, file)


def _value(name: str, words: Sequence[str]) -> str | None:
    """Return the value of *name* in *words*, in the form ``name=value`` or ``name value``."""
    joined_values = (word.partition("=")[2] for word in words if word.startswith(f"{name}="))
    separate_values = (value for word, value in pairwise(words) if word == name)
    return next(joined_values, None) or next(separate_values, None)


def _find_systemd_entries(settings: Settings, env: Mapping[str, str]) -> Iterator[Entry]:
    home = env.get("XDG_CONFIG_HOME") or os.path.join(env.get("HOME", "/"), ".config")  # noqa: PTH118
    for unit in sorted(Path(home, "systemd", "user").glob("*.service")):
        try:
            text = unit.read_text(errors="replace").replace("%%", "%")
        except OSError:
            continue
        folder = re.search(r"(?m)^WorkingDirectory=(.*?)\s*$", text)
        if folder is None or folder[1] != str(settings.project_dir):
            continue
        path_match = re.search(r'(?m)^Environment=.*?"?\bPATH=([^"\n]*)', text)
        command = re.search(r"(?m)^ExecStart=(.*)", text)
        keys = re.search(r"(?m)^EnvironmentFile=-?(.*?)\s*$", text)
        try:
            words = shlex.split(command[1]) if command is not None else []
        except ValueError:
            continue
        if path_match is not None and "tick" in words:
            yield _entry(str(unit), words, path_match[1], keys and keys[1])


def _find_launchd_entries(settings: Settings, env: Mapping[str, str]) -> Iterator[Entry]:
    agents = Path(env.get("HOME", "/"), "Library", "LaunchAgents")
    for path in sorted(agents.glob("*.plist")):
        try:
            agent = plistlib.loads(path.read_bytes())
            words = shlex.split(agent["ProgramArguments"][-1])
        except (OSError, ValueError, TypeError, LookupError, ExpatError):
            continue  # it belongs to another program
        if agent.get("WorkingDirectory") == str(settings.project_dir) and "tick" in words:
            path_of_tick = _value("PATH", words) or os.pathsep.join(STANDARD_PATH[1:])
            yield _entry(str(path), words, path_of_tick)


class TickPace(Struct, frozen=True, order=True):
    """The pace of a timer's ticks."""

    last: float
    """Time of the last tick, in seconds since 1970."""
    pause_s: float
    """The longest pause between two ticks."""

    @property
    def next(self) -> float:
        """Return the time of the next tick."""
        return self.last + self.pause_s

    @property
    def is_missed(self) -> bool:
        """Return whether more than one tick is late; a single tick may just be slow."""
        return time.time() - self.last > LATE * self.pause_s + LATE_S


def tick_log(settings: Settings, run: str | None) -> Path:
    """Return the log that the timer's ticks of the run called *run* write."""
    return settings.logs_dir / _tick_log_name(run)


def _tick_log_name(run: str | None) -> str:
    return f"tick.{slug(run)}.log" if run else "tick.log"


def log_of_all(settings: Settings) -> Path:
    """Return the log that ticks of all runs write, in addition to the logs of the runs."""
    return settings.logs_dir / _LOG_OF_ALL


def find_tick_pace(settings: Settings, run: str | None) -> TickPace | None:
    """Return the pace of the ticks that may work on *run*; None: too few ticks are known.

    Ticks of all runs are included, even if the run had nothing to do and got no turn.
    """
    logs = _find_tick_logs(settings, run)
    return max((pace for log in logs if (pace := _read_pace(log)) is not None), default=None)


def last_tick(settings: Settings, run: str | None) -> float | None:
    """Return the time of the last tick that may work on *run*; None: unknown."""
    logs = _find_tick_logs(settings, run)
    return max((time for log in logs for time in _read_times(log)), default=None)


def _find_tick_logs(settings: Settings, run: str | None) -> tuple[str, str]:
    # Texts instead of paths: a page asks this for hundreds of runs.
    folder = settings.logs_dir
    return f"{folder}/{_tick_log_name(run)}", f"{folder}/{_LOG_OF_ALL}"


def _read_pace(log: str) -> TickPace | None:
    """Return the pace of the ticks that wrote *log*, or None if too few ticks are known."""
    times = _read_times(log)
    pauses = [end - start for start, end in pairwise(times) if end - start > SHORTEST_PAUSE_S]
    return TickPace(times[-1], max(pauses)) if len(pauses) >= MIN_PAUSES else None


def _read_times(log: str) -> list[float]:
    """Return the newest times in the *log* of ticks.

    Every tick writes its log, no matter what has called it. A time more than a day ahead is
    ignored: a wrong clock or an agent wrote it, and it would hide missed ticks.
    """
    try:
        status = os.lstat(log)
    except OSError:
        return []
    latest = time.time() + DAY_S
    times = _read_stamps(log, status.st_ino, status.st_size, status.st_ctime_ns)
    return [timestamp for timestamp in times if timestamp <= latest]


@lru_cache(maxsize=_MAX_LOGS)
def _read_stamps(log: str, inode: int, size: int, changed_ns: int) -> tuple[float, ...]:
    """Return all times at the end of the *log*; it is read again only after it has changed."""
    del inode, changed_ns
    try:
        data = read_regular(Path(log), max(size - TAIL_BYTES, 0))
    except (OSError, SequencerError):
        return ()
    stamps = dict.fromkeys(_STAMP.findall(data.decode(errors="replace")))
    return tuple(timestamp for stamp in stamps if (timestamp := _time(stamp)) is not None)


def _time(stamp: str) -> float | None:
    """Return the time of a line, in seconds since 1970; None: it is not a valid time."""
    try:
        return datetime.fromisoformat(stamp).timestamp()
    except (ValueError, OverflowError):
        return None
