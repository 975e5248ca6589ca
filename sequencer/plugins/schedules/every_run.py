"""`tick --all`: the due step of the first run in line that has one.

`line` says whose turn it is. Each tick is a process of its own, so it says, logs and decides
what the tick of that run alone would. A lock for each place at work ends with its process, so
nothing has to be cleaned up after a crash.

Not promised: that a run is only worked on by these ticks. Others take turns with them as ever.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from sequencer.cli.context import Invocation
from sequencer.cli.signals import EndOnSignal
from sequencer.cli.tick_news import explain_held
from sequencer.cli.unattended import OPTION, log_of
from sequencer.cli.views.runs import each_run, name_of, run_facts, unread_facts
from sequencer.cli.views.text import plural
from sequencer.engine.run import Run
from sequencer.errors import ClaimHeld, Interrupted, SequencerError, UsageRefused
from sequencer.model.head import Head
from sequencer.plugins.schedules.cli_schedule import program_argv
from sequencer.plugins.schedules.line import KeptLine, Rank, Turn, ranks_of
from sequencer.plugins.schedules.schedules import is_unsettled, scheduled
from sequencer.plugins.schedules.timers import tick_log
from sequencer.project.project import Project
from sequencer.project.starts import as_utc
from sequencer.store import folder as folders

_OWN = ("--at-most", "--config", OPTION)
"""Options with a value that a run's tick gets in another form, or not."""


def tick_all(invocation: Invocation, at_most: int | None = None) -> int:
    """Run one due step, of the run whose turn it is; return the exit code of its tick.

    Of these ticks *at_most* (None: one) are at work at a time.

    Where nothing was due it is that of the first run that something stands in the way of. With
    a log it is 0: each run tells by itself, and only once.

    Raises:
        UsageRefused: a run is named, too.
        NotTrusted: nothing of the project may run here.
        ClaimHeld: *at_most* so many work already.
        Interrupted: a signal came.
    """
    if invocation.run_name is not None:
        raise UsageRefused("is one run", where="--run", hint="leave --all out")
    at_most = at_most or 1
    project, options = invocation.project(), [*_passed_on(invocation.arguments)]
    if (refused := project.trust.refusal()) is not None:
        # Each run would say it by itself, and that it is over.
        raise refused
    place = _place(project, at_most)
    if place is None:
        busy = ClaimHeld(f"{plural(at_most, 'tick')} at work already (--at-most)")
        for run, head in each_run(project, lambda _, head: head):
            if isinstance(head, Head):
                explain_held(invocation, run, head, busy)
        raise busy
    try:
        with EndOnSignal(invocation.say) as ending:
            return _ticked(invocation, _Runs.of(project), options, place, ending)
    finally:
        os.close(place)


class _Runs(NamedTuple):
    """The runs that may get a turn, by name; the default run is ""."""

    project: Project
    by_name: dict[str, Run]
    ranks: dict[str, Rank]
    able: frozenset[str]
    """Those that a tick may do something for. The others wait for a date."""

    @classmethod
    def of(cls, project: Project) -> _Runs:
        """Return those of *project*."""
        listed, by_name, able = list[tuple[Run, dict[str, Any]]](), dict[str, Run](), set[str]()
        for run, facts in each_run(project, partial(run_facts, project)):
            # What can't be read has a turn too: its tick says why.
            told = unread_facts(run, facts) if isinstance(facts, SequencerError) else facts
            if not told["ended"] or any(post["pending"] for post in told["posts"]):
                listed.append((run, told))
                able.add(run.name or "")
                by_name[run.name or ""] = run
        dates = dict[str, str]()
        for run, date in scheduled(project):
            name = run.name or ""
            if date is not None and name not in by_name:
                by_name[name], dates[name] = run, as_utc(date)
                if date <= time.time() or is_unsettled(project, run):
                    able.add(name)
        return cls(project, by_name, ranks_of(project, listed, dates), frozenset(able))


def _ticked(
    invocation: Invocation, runs: _Runs, options: list[str], place: int, ending: EndOnSignal
) -> int:
    """Let one run after the other have its turn until one has moved; return the exit code."""
    has_log = log_of(invocation.arguments) is not None
    line, tried, codes = KeptLine(runs.project.settings), set[str](), list[int]()
    has_moved = False
    while turn := _next_turn(line, runs, tried):
        run = runs.by_name[turn.name]
        before = _mark(run)
        codes.append(_tick_of(invocation, runs.project, run, options, place=place, ending=ending))
        # If somebody else holds its step, that is why it has moved.
        has_moved = codes[-1] != ClaimHeld.exit_code and _mark(run) != before
        if not has_moved:
            line.give_back(turn)
        # A tick that has just begun ends by the signal itself, with another code.
        if ending.has_come or codes[-1] == Interrupted.exit_code:
            raise Interrupted("ended by a signal")
        if has_moved:
            break
    else:
        line.clear()
    if line.problem is not None:
        invocation.say(f"notice: the order of the runs is not kept: {line.problem}")
    if has_moved:
        return 0 if has_log else codes[-1]
    if not codes:
        invocation.echo("nothing due: no run is in progress")
    return 0 if has_log else next(filter(None, codes), 0)


def _next_turn(line: KeptLine, runs: _Runs, tried: set[str]) -> Turn | None:
    """Return the next turn; those that only wait for a date come last, to say so."""
    for wanted in (runs.able, runs.by_name.keys()):
        if (turn := line.take(runs.ranks, wanted - tried)) is not None:
            tried.add(turn.name)
            return turn
    return None


def _tick_of(
    invocation: Invocation,
    project: Project,
    run: Run,
    options: list[str],
    *,
    place: int,
    ending: EndOnSignal,
) -> int:
    """Run the tick of *run* and return its exit code."""
    has_log = log_of(invocation.arguments) is not None
    invocation.say(f"{name_of(run)}:")
    argv = [*program_argv(), "tick", *_of(project, run, has_log=has_log), *options]
    # The place is taken until the tick has ended, even if this process is killed.
    child = subprocess.Popen(argv, pass_fds=(place,))  # noqa: S603 - this program
    ending.on_ready(child.terminate)
    return child.wait()


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
