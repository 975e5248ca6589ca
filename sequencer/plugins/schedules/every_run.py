"""`tick --all`: the due step of the first run in line that has one.

Runs stand in the order in which they started. Each tick is a process of its own, so it says,
logs and decides what the tick of that run alone would. A lock for each place at work ends with
its process, so nothing has to be cleaned up after a crash.

Not promised: that a run is only worked on by these ticks. Others take turns with them as ever.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from sequencer.cli.context import Invocation
from sequencer.cli.run_work import explain_held
from sequencer.cli.signals import EndOnSignal
from sequencer.cli.views.runs import each_run, name_of, run_facts
from sequencer.cli.views.text import plural
from sequencer.engine.run import Run
from sequencer.errors import ClaimHeld, Interrupted, SequencerError, UsageRefused
from sequencer.model.head import Head
from sequencer.plugins.schedules.cli_schedule import program_argv
from sequencer.plugins.schedules.schedules import as_utc, scheduled
from sequencer.plugins.schedules.timers import tick_log
from sequencer.plugins.schedules.unattended import OPTION, log_of
from sequencer.project.project import Project
from sequencer.store import folder as folders

_OWN = ("--at-most", "--config", OPTION)
"""Options with a value that a run's tick gets in another form, or not."""


def tick_all(invocation: Invocation, at_most: int) -> int:
    """Run one due step, whichever run it is of; return the exit code of its tick.

    Where nothing was due it is that of the first run that something stands in the way of. With
    a log it is 0: each run tells by itself, and only once.

    Raises:
        UsageRefused: a run is named, too.
        ClaimHeld: *at_most* so many work already.
        Interrupted: a signal came.
    """
    if invocation.run_name is not None:
        raise UsageRefused("is one run", where="--run", hint="leave --all out")
    project, has_log = invocation.project(), log_of(invocation.arguments) is not None
    options = [*_passed_on(invocation.arguments)]
    place = _place(project, at_most)
    if place is None:
        busy = ClaimHeld(f"{plural(at_most, 'tick')} at work already (--at-most)")
        for run, head in each_run(project, lambda _, head: head):
            if isinstance(head, Head):
                explain_held(invocation, run, head, busy)
        raise busy
    codes = []
    try:
        with EndOnSignal(invocation.say) as ending:
            for run in _in_line(project):
                before = _mark(run)
                if not has_log:
                    invocation.say(f"{name_of(run)}:")
                argv = [*program_argv(), "tick", *_of(project, run, has_log=has_log), *options]
                # The place is taken until the tick has ended, even if this process is killed.
                child = subprocess.Popen(argv, pass_fds=(place,))  # noqa: S603 - this program
                ending.on_ready(child.terminate)
                codes.append(child.wait())
                # A tick that has just begun ends by the signal itself, with another code.
                if ending.has_come or codes[-1] == Interrupted.exit_code:
                    raise Interrupted("ended by a signal")
                # If somebody else holds its step, that is why it has moved.
                if codes[-1] != ClaimHeld.exit_code and _mark(run) != before:
                    return 0 if has_log else codes[-1]
    finally:
        os.close(place)
    if not codes:
        invocation.echo("nothing due: no run is in progress")
    return 0 if has_log else next(filter(None, codes), 0)


def _place(project: Project, at_most: int) -> int | None:
    """Return a descriptor that holds one of *at_most* places; None: all are taken."""
    folder = folders.made(project.settings.state_file.parent)
    for number in range(1, at_most + 1):
        fd = folder.open(f"tick-{number}.lock", os.O_WRONLY | os.O_CREAT)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
        else:
            return fd
    return None


def _in_line(project: Project) -> Iterator[Run]:
    """Yield the runs that a tick may do something for, those that started first at the front."""
    found: list[tuple[str, int, Run]] = []
    for run, facts in each_run(project, lambda run, head: run_facts(project, run, head)):
        # What can't be read has a tick too, which says why.
        if isinstance(facts, SequencerError):
            found.append(("", 0, run))
        elif not facts["ended"] or any(post["pending"] for post in facts["posts"]):
            found.append((facts["began_at"] or "", _made_at(run), run))
    known = {run.name for *_, run in found}
    # A tick decides whether the date has come, and notes since when it has waited for one.
    found += [
        (as_utc(date), 0, run)
        for run, date in scheduled(project)
        if date is not None and run.name not in known
    ]
    return (run for *_, run in sorted(found, key=lambda one: one[:2]))


def _made_at(run: Run) -> int:
    """Return when the files of *run* were made; of many runs that started in one second."""
    try:
        return os.lstat(f"{run.store.state_path}.lock").st_mtime_ns  # nobody ever writes it
    except OSError:
        return 0


def _mark(run: Run) -> tuple[str, int] | None:
    """Return what is another one after an attempt at a step."""
    try:
        head = run.head
    except SequencerError:
        return None
    return None if head is None else (head.run_id, head.token)


def _passed_on(arguments: Sequence[str]) -> Iterator[str]:
    """Yield the options that each tick gets as they were typed."""
    is_value = False
    for argument in arguments:
        name, separator, _ = argument.partition("=")
        if is_value or argument in ("tick", "--all"):
            is_value = False
        elif name in _OWN:
            is_value = not separator
        else:
            yield argument


def _of(project: Project, run: Run, *, has_log: bool) -> Iterator[str]:
    config: Path | None = project.settings.config_path
    if config is not None:
        yield f"--config={config.absolute()}"
    if run.name is not None:
        yield f"--run={run.name}"
    if has_log:
        yield f"{OPTION}={tick_log(project.settings, run.name)}"
