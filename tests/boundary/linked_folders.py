"""Each folder of a run as a link to a folder full of somebody's files.

Before a command, swapped by the agent while its step runs, swapped while a person changes
the run beside it, and swapped to and fro as fast as the kernel can. Nothing outside is
written, removed or read, and who needs the folder is refused (exit 3) with its name.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.boundary.hostile_clone import CHANGES
from tests.boundary.projects import LARGE, Clones, Project
from tests.boundary.traced import tracer
from tests.boundary.watching import DONE, Command, look, wrong
from tests.boundary.world import World, differences
from tests.forked import Forked
from tests.long.report import Report, Size

TRUST = (("SEQUENCER_TRUST", "all"),)
LIMIT_S = 60.0
AGENT = f"""\
import json, os, pathlib, sys, time
sys.stdin.read()
plan = json.loads(pathlib.Path("plan.json").read_text())
if plan["swaps"]:
    place = pathlib.Path(os.environ["SEQUENCER_RESULT"]).parent if plan["place"] == "attempt" \\
        else pathlib.Path(plan["place"])
    place.mkdir(parents=True, exist_ok=True)
    if not place.is_symlink():
        place.rename(f"{{place}}-aside")
        place.symlink_to(plan["target"])
pathlib.Path("begun").touch()
while plan["holds"] and not pathlib.Path("go").exists():
    time.sleep(0.01)
print("an answer " + {LARGE!r})
"""
EXCHANGE = """\
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
place, link = (os.fsencode(path) for path in sys.argv[1:])
while True:
    libc.renameat2(-100, place, -100, link, 2)
"""
"""Swaps two names in one call, for ever."""
STEPS = (("tick",), ("run", "--max-steps", "2"))
NAMED = ("--run", "n")


@dataclass(frozen=True, slots=True)
class Place:
    """A folder of a run."""

    name: str
    needs: tuple[tuple[str, ...], ...] = ()
    """The commands that can't do without it, and are therefore refused."""
    options: tuple[str, ...] = ()


_BY_HAND = tuple(argv for argv in CHANGES if argv[0] in ("stop", "skip"))
PLACES = (
    Place("sync", (*STEPS, *_BY_HAND)),
    Place("sync/beats", STEPS),
    Place("sync/results", STEPS),
    Place("sync/runs", (*STEPS, ("stop", "--pause")), NAMED),
    Place("sync/runs/n", (*STEPS, ("stop", "--pause")), NAMED),
    Place("sync/activity"),
    Place("sync/worktrees"),
    Place("logs", STEPS),
    Place("logs/local", STEPS),
    Place("logs/local/steps", STEPS),
    Place("logs/local/runs", STEPS, NAMED),
    Place("logs/local/runs/n/steps", STEPS, NAMED),
)


def made(
    clones: Clones, name: str, place: Place, *, swaps: bool = False, holds: bool = False
) -> Project:
    """Make a project that has begun, whose agent follows what `AGENT` reads."""
    project = clones.make(name)
    target = clones.world.full(name)
    argv = [sys.executable, "-IS", "agent.py"]
    project.document["agents"]["script"]["argv"] = argv
    project.document["activity"] = {"sinks": {"mine": {"kind": "jsonl"}}}
    project.write()
    (project.folder / "agent.py").write_text(AGENT)
    plan = {"place": place.name, "target": str(target), "swaps": swaps, "holds": holds}
    (project.folder / "plan.json").write_text(json.dumps(plan))
    return project


def judged(world: World, commands: list[Command]) -> Iterator[str]:
    """Run *commands* one after another, and yield what is wrong with them."""
    untouched = world.outside()
    for seen in look(world, commands):
        yield from (f"{seen.command}: {text}" for text in wrong(world, seen, acts=True))
    yield from differences(untouched, world.outside())


def before(clones: Clones, place: Place, name: str, argv: tuple[str, ...]) -> list[Command]:
    """Return a command where *place* is a link from the start."""
    project = made(clones, name, place)
    project.link(place.name, clones.world.full(name))
    is_needed = argv in place.needs
    whole = (*place.options, *argv)
    names = place.name if is_needed else ""
    return [Command(project, whole, (3,) if is_needed else DONE, TRUST, names)]


def swapped(clones: Clones, place: Place, name: str, argv: tuple[str, ...]) -> list[Command]:
    """Return two calls of a command; while its step runs the agent swaps *place*."""
    project = made(clones, name, place, swaps=True)
    return [Command(project, (*place.options, *argv), (0, 1, 3), TRUST)] * 2


def beside(clones: Clones, place: Place, name: str, argv: tuple[str, ...]) -> Iterator[str]:
    """Swap *place* while an agent works, and call a command beside it."""
    project = made(clones, name, place, holds=True)
    world, folder = clones.world, project.folder
    untouched = world.outside()
    words = [sys.executable, "-m", "sequencer", *place.options, "run", "--max-steps", "1"]
    variables = world.environment(**dict(TRUST))
    with Forked(
        words, cwd=folder, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True,
    ) as worker:  # fmt: skip
        try:
            if until(folder / "begun", worker):
                aside = folder / f"{place.name}-aside"
                aside.parent.mkdir(parents=True, exist_ok=True)
                if (folder / place.name).exists():
                    (folder / place.name).rename(aside)
                project.link(place.name, world.full(name))
                # It may wait for the agent's step no longer than a person would.
                command = Command(project, (*place.options, *argv), (*DONE, 75), TRUST)
                yield from judged(world, [command])
            (folder / "go").touch()
            _, told = worker.communicate(timeout=LIMIT_S)
        finally:
            worker.kill()
    if worker.returncode not in (0, 1, 3) or "Traceback" in told:
        yield f"{name}: the run ended with {worker.returncode}: {told[-200:]}"
    yield from differences(untouched, world.outside())


def until(path: Path, worker: Forked) -> bool:
    """Return whether *path* came into being while *worker* lived."""
    deadline = time.monotonic() + LIMIT_S
    while not path.exists():
        if worker.poll() is not None or time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@contextmanager
def swapping(place: Path, link: Path) -> Iterator[None]:
    """Let *place* and *link* take each other's place, to and fro."""
    argv = [sys.executable, "-IS", "-c", EXCHANGE, str(place), str(link)]
    with subprocess.Popen(argv) as racer:
        try:
            yield
        finally:
            racer.kill()


def raced(clones: Clones, place: Place, name: str, argv: tuple[str, ...]) -> Iterator[str]:
    """Call a command three times while *place* is a folder and a link in turn."""
    project = made(clones, name, place)
    link, there = project.folder / "link", project.folder / place.name
    there.mkdir(parents=True, exist_ok=True)
    link.symlink_to(clones.world.full(name))
    command = Command(project, (*place.options, *argv), (*DONE, 75), TRUST)
    with swapping(there, link):
        yield from judged(clones.world, [command] * 3)


AT_ONCE = {"before": before, "swapped": swapped}
"""Cases that are commands alone, and are run in one go."""
BY_THEMSELVES = {"beside": beside, "raced": raced}


def cases(size: Size) -> Iterator[tuple[str, Place, tuple[str, ...]]]:
    """Yield moment, place and command of each case; on every push those that matter most."""
    several = (*STEPS, ("stop", "--pause"), ("resume",))
    everything = (*STEPS, *(argv for argv in CHANGES if argv[0] != "--run"))
    places = PLACES if size is Size.LONG else PLACES[::3]
    for number, place in enumerate(places):
        for argv in everything if size is Size.LONG else several[number % 2 :][:1]:
            yield "before", place, argv
        for argv in STEPS if size is Size.LONG else STEPS[number % 2 :][:1]:
            yield "swapped", place, argv
    if size is Size.SHORT:
        yield "swapped", Place("attempt"), STEPS[0]
        yield "beside", PLACES[0], ("stop", "--pause")
        yield "raced", PLACES[2], ("tick",)
        return
    yield from (("swapped", Place("attempt"), argv) for argv in STEPS)
    for place in PLACES:
        yield from (("beside", place, argv) for argv in everything)
        yield from (("raced", place, argv) for argv in (*STEPS, ("stop", "--pause")))


def part(folder: Path, todo: list[tuple[str, Place, tuple[str, ...]]]) -> list[str]:
    """Return what is wrong with the cases of *todo*."""
    clones = Clones(World(folder))
    commands: list[Command] = []
    found: list[str] = []
    for number, (moment, place, argv) in enumerate(todo):
        name = f"{moment}-{place.name}-{argv[0]}-{number}".replace("/", "-")
        if moment in AT_ONCE:
            commands += AT_ONCE[moment](clones, place, name, argv)
        else:
            found += BY_THEMSELVES[moment](clones, place, name, argv)
    return [*found, *judged(clones.world, commands)]


def campaign(folder: Path, size: Size) -> Report:
    """Put links in the place of a run's folders, before a command and while it works."""
    todo = list(cases(size))
    # Each part imports the program below a tracer, which costs as much as some twenty commands.
    parts = 1 if size is Size.SHORT else 2
    with ThreadPoolExecutor(parts) as pool:
        folders, shares = (
            [folder / f"{k}" for k in range(parts)],
            [todo[k::parts] for k in range(parts)],
        )
        found = [text for texts in pool.map(part, folders, shares) for text in texts]
    notes = () if tracer() else ("strace can't be used here: nothing is known of what was read",)
    return Report({"cases": len(todo)}, tuple(found), notes=notes)
