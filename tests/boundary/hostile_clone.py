"""A clone full of traps: looked at, it does nothing; not trusted, nothing of it acts.

One project a trap, so that none hides behind another. Of each command it is seen with
``strace`` what was executed (git with our own settings, nothing else), connected to,
written and read outside of the clone, what it printed, and what it cost.

Not shown: which of git's own faults a repository could use.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.boundary import traps_of_code, traps_of_files, traps_of_git
from tests.boundary.projects import AGENT, TRAPS, Clones, Trap
from tests.boundary.traced import tracer
from tests.boundary.watching import Command, look, wrong
from tests.boundary.world import World, differences
from tests.long.report import Report, Size

__all__ = ["traps_of_code", "traps_of_files", "traps_of_git"]
STATE_DISPLAYS: tuple[tuple[str, ...], ...] = (
    ("status",), ("check",), ("plan",), ("history",), ("log",), ("report",),
    ("report", "--metrics"),
    ("report", "--metrics", "--all-runs"), ("sync",), ("status", "--all"),
    ("status", "--all", "--ended"), ("inbox",),
    ("plan", "--request", "Fix the tests"), ("plan", "--simulate"), ("plan", "--list"),
    ("plan", "--commit"), ("check", "--settings"), ("log", "--path"), ("schedule", "print"),
    ("schedule", "print", "--with", "systemd"),
    ("status", "--json"), ("history", "--json"), ("plan", "--help"),
    ("takeover",), ("repair",), ("plan", "--chart", "x.mmd"),
)  # fmt: skip
"""Commands that only look."""
ACTS: tuple[tuple[str, ...], ...] = (
    ("tick",), ("run", "--max-steps", "1"), ("start", "Fix the tests"),
)  # fmt: skip
"""Commands that let the project act, and are therefore refused until it is trusted."""
CHANGES: tuple[tuple[str, ...], ...] = (
    ("stop", "--pause"), ("resume",), ("stop",), ("answer", "approve"), ("answer", "reject"),
    ("answer", "look again"),
    ("answer", "yes"), ("skip", "--as-done"), ("retry",), ("skip",), ("set", "exit", "true"),
    ("rewind", "0"), ("reset", "--yes"), ("adopt",), ("takeover", "--force"), ("repair", "--apply"),
    ("tell", "main", "hello"), ("--run", "../../x", "tick"), ("--run", "a\nb", "status"),
)  # fmt: skip
OFFERED = {
    "_SEQUENCER_COMPLETE": "bash_complete",
    "COMP_WORDS": "sequencer --run ",
    "COMP_CWORD": "2",
}
"""Variables of a shell that asks what could be typed next: of the command without words."""
REFUSED_TO_ACT = (2, 3)
OF_AN_INTERPRETER = ("shadows", "agent-beside")
"""Traps for whoever starts an interpreter there; all are tried so in the long programme."""
_ACTING = {argv[0] for argv in ACTS}


def looks_of(clones: Clones, trap: Trap, looks: Iterable[tuple[str, ...]]) -> list[Command]:
    """Return what is called in a project with *trap* that nobody has trusted."""
    project = clones.make(trap.name.replace("/", "-"), trap)
    return [
        Command(project, argv, REFUSED_TO_ACT, names=trap.names)
        if {*argv} & _ACTING
        else Command(project, argv, variables=() if argv else tuple(OFFERED.items()))
        for argv in dict.fromkeys((*trap.looks, *looks))
    ]


def portion(size: Size, number: int) -> tuple[tuple[str, ...], ...]:
    """Return the commands for the trap *number*: a few in turn on every push, else all."""
    if size is Size.LONG:
        return (*STATE_DISPLAYS, *ACTS, *CHANGES, ())
    rest = (*STATE_DISPLAYS[2:], *CHANGES)
    acts = (ACTS[number // 4 % 3],) if number % 4 == 1 else ()
    offered = ((),) if number % 4 == 0 else ()
    look = STATE_DISPLAYS[1] if number % 2 else rest[number % len(rest)]
    return (look, *acts, *offered)


def untrusted(folder: Path, names: Iterable[str], size: Size) -> tuple[int, list[str]]:
    """Look at the traps called *names*; return how many calls there were, and violations."""
    world = World(folder)
    clones = Clones(world)
    places = {name: number for number, name in enumerate(TRAPS)}
    todo = [(n, looks_of(clones, TRAPS[n], portion(size, places[n]))) for n in names]
    untouched = world.outside()
    found: list[str] = []
    calls = 0
    for starts in (False, True):
        # What an interpreter itself takes from a folder is seen where one is started.
        batch = [
            command
            for name, commands in todo
            for command in commands
            if (size is Size.LONG or name in OF_AN_INTERPRETER) or not starts
            if not starts or command.argv in STATE_DISPLAYS
        ]
        if batch:
            seen = look(world, batch, starts=starts)
            found += [f"{one.command}: {text}" for one in seen for text in wrong(world, one)]
            calls += len(batch)
    found += [f"canary {name} sprang" for name in world.sprung()]
    return calls, found + differences(untouched, world.outside())


def trusted(folder: Path, names: Iterable[str]) -> tuple[int, list[str]]:
    """Run a step in the projects with *names*, trusted; a trap is none for a person either.

    What a remote of theirs runs when it is pushed to is the remote's business.
    """
    world = World(folder)
    clones = Clones(world)
    todo: list[Command] = []
    for name in names:
        project = clones.make(name.replace("/", "-"), TRAPS[name])
        # Of a person's own, with an answer that needs a folder for results.
        project.document["agents"]["script"]["argv"] = [sys.executable, "-IS", "-c", AGENT]
        project.write()
        trust = (("SEQUENCER_TRUST", "all"),)
        codes = TRAPS[name].codes
        todo.append(Command(project, ("tick",), codes, trust))
        # Not every folder is one that a pause needs.
        todo.append(Command(project, ("stop", "--pause"), (0, *codes), trust))
    untouched = world.outside()
    seen = look(world, todo)
    found = [f"{one.command}: {text}" for one in seen for text in wrong(world, one, acts=True)]
    found += [f"canary {name} sprang" for name in world.sprung() if not name.startswith("served-")]
    return len(todo), found + differences(untouched, world.outside())


def chosen(size: Size) -> list[str]:
    """Return the traps to try: on every push each eighth one, some of every kind."""
    if size is Size.LONG:
        return list(TRAPS)
    return list(dict.fromkeys((*list(TRAPS)[3::8], *OF_AN_INTERPRETER)))


def campaign(folder: Path, size: Size) -> Report:
    """Look at a clone full of traps that is not trusted, and run what may not be trusted."""
    # Each part starts an interpreter below a tracer, which costs as much as some twenty commands.
    parts, halves = (1, 1) if size is Size.SHORT else (16, 2)
    names = chosen(size)
    refused = [name for name in names if TRAPS[name].codes]
    with ThreadPoolExecutor(2) as pool:
        shares = [names[k::parts] for k in range(parts)]
        looked = list(
            pool.map(untrusted, (folder / f"u{k}" for k in range(parts)), shares, [size] * parts)
        )
        tried = list(
            pool.map(
                trusted,
                (folder / f"t{k}" for k in range(halves)),
                (refused[k::halves] for k in range(halves)),
            )
        )
    calls = sum(number for number, _ in (*looked, *tried))
    found = [text for _, texts in (*looked, *tried) for text in texts]
    notes = () if tracer() else ("strace can't be used here: calls of the kernel are not known",)
    return Report({"traps": len(names), "calls": calls}, tuple(found), notes=notes)
