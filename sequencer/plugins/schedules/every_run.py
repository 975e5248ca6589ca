"""`tick --all`: run one due step, of the first run in the queue that has one.

`run_queue` decides the order. The tick of each run is a separate process, so it prints, logs and
decides the same as a tick of only that run. Each tick holds a numbered lock, which ends with its
process, so a crash needs no cleanup.

Not promised: that only these ticks work on a run. Other processes can work on it too.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct

from sequencer.cli.context import Invocation
from sequencer.cli.signals import EndOnSignal
from sequencer.cli.tick_news import explain_held
from sequencer.cli.unattended import OPTION, find_log_path
from sequencer.cli.views.runs import (
    get_run_name,
    iter_started_runs,
    run_facts,
    unread_facts,
    visit_runs,
)
from sequencer.cli.views.text import pluralize
from sequencer.engine.run import Run
from sequencer.errors import ClaimHeld, Interrupted, SequencerError, UsageRefused
from sequencer.model.head import Head
from sequencer.plugins.schedules.cli_schedule import program_argv
from sequencer.plugins.schedules.run_queue import Rank, StoredRunQueue, Turn, rank_runs
from sequencer.plugins.schedules.schedules import is_unsettled, list_scheduled_runs
from sequencer.plugins.schedules.timers import tick_log
from sequencer.project.project import Project
from sequencer.project.scheduler import format_utc
from sequencer.store import folder as folders

_OWN = ("--at-most", "--config", OPTION)
"""Options with a value that a run's tick gets in another form, or does not get."""


def tick_all(invocation: Invocation, at_most: int | None = None) -> int:
    """Run one due step, of the run whose turn it is; return the exit code of its tick.

    At most *at_most* (None: one) of these ticks run at the same time.

    If nothing was due, it is the exit code of the first run with an obstacle. With a log it is 0,
    because each run reports for itself, and only once.

    Raises:
        UsageRefused: a run is also named.
        NotTrusted: no code of the project may run on this machine.
        ClaimHeld: *at_most* ticks are running already.
        Interrupted: a signal came.
    """
    if invocation.run_name is not None:
        raise UsageRefused("is one run", where="--run", hint="leave --all out")
    at_most = at_most or 1
    project, options = invocation.project(), [*_list_passed_options(invocation.arguments)]
    if (refusal := project.trust.refusal()) is not None:
        # Raise it once, instead of once per run.
        raise refusal
    place = _acquire_lock(project, at_most)
    if place is None:
        error = ClaimHeld(f"{pluralize(at_most, 'tick')} at work already (--at-most)")
        for run, head in iter_started_runs(project):
            if isinstance(head, Head):
                explain_held(invocation, run, head, error)
        raise error
    try:
        with EndOnSignal(invocation.notify) as ending:
            return _run_ticks(invocation, _Runs.from_project(project), options, place, ending)
    finally:
        os.close(place)


class _Runs(Struct, frozen=True):
    """The runs that may get a turn, by name; the default run is ""."""

    project: Project
    by_name: dict[str, Run]
    ranks: dict[str, Rank]
    able: frozenset[str]
    """The runs that a tick may work on; the others wait for a date."""

    @classmethod
    def from_project(cls, project: Project) -> _Runs:
        """Return the runs of *project*."""
        run_states, by_name, able_names = (
            list[tuple[Run, dict[str, Any]]](),
            dict[str, Run](),
            set[str](),
        )
        for run, facts in visit_runs(iter_started_runs(project), partial(run_facts, project)):
            # An unreadable run gets turns too: its tick reports the error.
            state = unread_facts(run, facts) if isinstance(facts, SequencerError) else facts
            if not state["ended"] or any(post["pending"] for post in state["posts"]):
                run_states.append((run, state))
                able_names.add(run.name or "")
                by_name[run.name or ""] = run
        dates = dict[str, str]()
        for run, date in list_scheduled_runs(project):
            name = run.name or ""
            if date is not None and name not in by_name:
                by_name[name], dates[name] = run, format_utc(date)
                if date <= time.time() or is_unsettled(project, run):
                    able_names.add(name)
        return cls(project, by_name, rank_runs(project, run_states, dates), frozenset(able_names))


def _run_ticks(
    invocation: Invocation, runs: _Runs, options: list[str], place: int, ending: EndOnSignal
) -> int:
    """Give one run after the other a turn until one has moved; return the exit code."""
    has_log = find_log_path(invocation.arguments) is not None
    queue, tried_names, codes = StoredRunQueue(runs.project.settings), set[str](), list[int]()
    has_moved = False
    while turn := _take_next_turn(queue, runs, tried_names):
        run = runs.by_name[turn.name]
        old_mark = _read_progress_mark(run)
        codes.append(_run_tick(invocation, runs.project, run, options, place=place, ending=ending))
        # If another process holds the step, that process has moved the run.
        has_moved = codes[-1] != ClaimHeld.exit_code and _read_progress_mark(run) != old_mark
        if not has_moved:
            queue.return_turn(turn)
        # A tick that has just started is ended by the signal itself, with another code.
        if ending.has_come or codes[-1] == Interrupted.exit_code:
            raise Interrupted("ended by a signal")
        if has_moved:
            break
    else:
        queue.clear()
    if queue.problem is not None:
        invocation.notify(f"notice: the order of the runs is not kept: {queue.problem}")
    if has_moved:
        return 0 if has_log else codes[-1]
    if not codes:
        invocation.echo("nothing due: no run is in progress")
    return 0 if has_log else next(filter(None, codes), 0)


def _take_next_turn(queue: StoredRunQueue, runs: _Runs, tried_names: set[str]) -> Turn | None:
    """Return the next turn; runs that only wait for a date come last, to report that."""
    for names in (runs.able, runs.by_name.keys()):
        if (turn := queue.take_turn(runs.ranks, names - tried_names)) is not None:
            tried_names.add(turn.name)
            return turn
    return None


def _run_tick(
    invocation: Invocation,
    project: Project,
    run: Run,
    options: list[str],
    *,
    place: int,
    ending: EndOnSignal,
) -> int:
    """Run the tick of *run* and return its exit code."""
    has_log = find_log_path(invocation.arguments) is not None
    invocation.notify(f"{get_run_name(run)}:")
    argv = [*program_argv(), "tick", *_list_run_options(project, run, has_log=has_log), *options]
    # The child inherits the lock, so it is held until the tick ends, even if this process dies.
    child = subprocess.Popen(argv, pass_fds=(place,))  # noqa: S603 - this program
    ending.on_ready(child.terminate)
    return child.wait()


def _acquire_lock(project: Project, at_most: int) -> int | None:
    """Return a descriptor that holds one of *at_most* locks; None: all are held."""
    folder = folders.make_folder(project.settings.state_file.parent)
    for number in range(1, at_most + 1):
        fd = folder.open(f"tick-{number}.lock", os.O_WRONLY | os.O_CREAT)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
        else:
            return fd
    return None


def _read_progress_mark(run: Run) -> tuple[str, int] | None:
    """Return a value that changes with each attempt at a step."""
    try:
        head = run.head
    except SequencerError:
        return None
    return None if head is None else (head.run_id, head.token)


def _list_passed_options(arguments: Sequence[str]) -> Iterator[str]:
    """Yield the options that each tick gets unchanged."""
    is_value = False
    for argument in arguments:
        name, separator, _ = argument.partition("=")
        if is_value or argument in ("tick", "--all"):
            is_value = False
        elif name in _OWN:
            is_value = not separator
        else:
            yield argument


def _list_run_options(project: Project, run: Run, *, has_log: bool) -> Iterator[str]:
    config: Path | None = project.settings.config_path
    if config is not None:
        yield f"--config={config.absolute()}"
    if run.name is not None:
        yield f"--run={run.name}"
    if has_log:
        yield f"{OPTION}={tick_log(project.settings, run.name)}"
