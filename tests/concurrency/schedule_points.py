"""Kill a tick at every call between a schedule's date and the start of its run; then tick again.

The date is started for once, whenever the tick dies: no date is lost, and none is doubled.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from sequencer import Project, SequencerError, commands, open_project
from sequencer.plugins.schedules import schedules
from tests.concurrency.crash_points import LIMIT_S, Injector, nothing_waits_for_the_disk
from tests.long.report import Report, Size
from tests.property.amounts import in_memory

CONFIGURATION = """\
agent: rehearsal
workflow: two
workflows:
  two: {kind: procedure, steps: [{name: one, text: x}, {name: other, text: y}]}
schedules:
  night: {workflow: two, at: "0 2 * * *"}
"""
FAULTS = ("kill", "kill-after", "kill-half", "EIO", "ENOSPC", "EIO-after")
MIN_POINTS = 10
DAY_S = 24 * 60 * 60


@contextmanager
def clock(days: int) -> Iterator[None]:
    """Move the clock of schedules that many days after now."""
    moved = SimpleNamespace(time=lambda: time.time() + days * DAY_S)
    with patch.object(schedules, "time", moved):
        yield


def tick(project: Project) -> None:
    """Do what a tick does until its run has started."""
    run = project.run("night")
    project.due.clear()
    if schedules.start_due(project, run, lambda _: None) is None:
        schedules.begin(project, run)


def finish(project: Project) -> None:
    """Bring the run to its end, at a time before the date."""
    for _ in range(2):
        project.run("night").do(commands.Skip())


def seen_first(project: Project) -> None:
    tick(project)


def ended_once(project: Project) -> None:
    tick(project)
    with clock(1):
        tick(project)
    finish(project)


SCENARIOS: dict[str, tuple[Callable[[Project], None], int, int]] = {
    "first start": (seen_first, 1, 0),
    "start over": (ended_once, 2, 1),
}
"""What was before; on which day the date comes; how often it has been started over by then."""


def resets(project: Project) -> int:
    return sum(fact["event"] == "reset" for fact in project.run("night").history())


def wrong(project: Project, day: int, over: int) -> Iterator[str]:
    """Let ticks come after the fault, and yield what they do wrong."""
    with clock(day):
        tick(project)
        head = project.run("night").head
        if head is None or head.status == "complete" or resets(project) != over:
            yield f"the date is lost: {head}, started over {resets(project)} times"
            return
        note = schedules._read(project, project.run("night"))
        if note is None or note.starting is not None:
            yield f"a start that was made is still noted as one to be made: {note}"
        finish(project)
        tick(project)
        if resets(project) != over:
            yield "the date is doubled"
    with clock(day + 1):
        tick(project)
        if resets(project) != over + 1:
            yield "the date after it is lost"


def in_a_child(injector: Injector, act: Callable[[], None]) -> tuple[bool, bool, str]:
    """Do *act* under a fault; return whether it was killed, whether the fault came, and a bug."""
    read_fd, write_fd = os.pipe()
    if not (child := os.fork()):
        signal.alarm(LIMIT_S)
        said = ""
        try:
            injector.install()
            injector.is_armed = True
            with suppress(SequencerError):
                act()
        except BaseException:  # noqa: BLE001 (whatever it is, the parent has to hear of it)
            said = traceback.format_exc()
        injector.is_armed = False
        os.write(write_fd, f"{int(injector.has_fired)}{said}".encode())
        os._exit(0)
    os.close(write_fd)
    with os.fdopen(read_fd, "rb") as pipe:
        told = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status), told[:1] == "1", told[1:]


Spoil = Callable[[Path], None]
"""Does to the user's state folder what a tick should not have done before its fault."""


def spoil_nothing(state: Path) -> None:
    del state


def tried(
    folder: Path, name: str, fault: str, at: int, spoil: Spoil = spoil_nothing
) -> tuple[bool, list[str]]:
    """Return whether there was a call number *at*, and what broke."""
    before, day, over = SCENARIOS[name]
    folder.mkdir(parents=True)
    with patch.dict(os.environ, {"XDG_STATE_HOME": str(folder / "state")}):
        (folder / "orchestration.yaml").write_text(CONFIGURATION)
        project = open_project(folder, trust=True)
        before(project)
        with clock(day):
            was_killed, has_fired, bug = in_a_child(Injector(fault, at), lambda: tick(project))
        spoil(folder / "state")
        found = [bug] if bug else list(wrong(project, day, over))
    shutil.rmtree(folder)
    return was_killed or has_fired, [f"{name}, {fault} at call {at}: {one}" for one in found]


def swept(folder: Path, faults: dict[str, tuple[int, int]], spoil: Spoil = spoil_nothing) -> Report:
    """Try each of *faults* at its first call and each so many behind it."""
    points, violations = 0, list[str]()
    with nothing_waits_for_the_disk():
        for name, (fault, (first, step)) in itertools.product(SCENARIOS, faults.items()):
            for at in itertools.count(first, step):
                place = folder / f"{name}-{fault}-{at}"
                is_there, found = tried(place, name, fault, at, spoil)
                violations += found
                if not is_there:
                    break
                points += 1
    if points < MIN_POINTS:
        violations.append(f"only {points} points: the calls are not seen any more")
    return Report({"crash points": points}, tuple(violations))


def campaign(folder: Path, size: Size) -> Report:
    """SIGKILL and errors at every call from a schedule's date to the start of its run."""
    if size is Size.SHORT:
        with in_memory() as made:
            return swept(made, {"kill": (1, 10), "EIO-after": (6, 20)})
    everything: dict[str, Any] = dict.fromkeys(FAULTS, (1, 1))
    return swept(folder, everything)
