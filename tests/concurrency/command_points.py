"""Commands that change a run as a whole are killed at every call of the system.

The transitions of a run have a sweep of their own (`crash_points`); these change more than one
record: `reset`, `adopt`, `set`, `clean`, `sync`, and a `tick` that puts the journal aside.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import runpy
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest

from tests.clones import ENVIRONMENT, Shared, copy_of, git
from tests.concurrency.crash_points import Injector, nothing_waits_for_the_disk
from tests.forked import prepare
from tests.long.report import Report, Size
from tests.property.amounts import in_memory
from tests.storage.commands import accepted, facts, project

FAULTS = ("kill", "kill-after", "kill-half")
LIMIT_S = 60
ROTATE_BYTES = 64 * 1024
CYCLE = {"name": "review_cadence", "review_every_n": 2}


class Command(NamedTuple):
    """What is killed."""

    prepare: Callable[[Path], None]
    """Makes the project in a folder."""
    argv: tuple[str, ...]
    again: tuple[int, ...] = (0,)
    """How it may end when it is called again after it was killed."""
    goes_on_at: int | None = None
    """The step_index that follows; None: the one after the last that was accepted."""
    inside: str = "."
    """Where in the folder it is called."""


def _called(folder: Path, *argv: str) -> int:
    """Run ``python -m sequencer`` in *folder*, in this process; return its exit code."""
    os.chdir(folder)
    sys.argv = ["sequencer", *argv]
    try:
        # The program ends at once if an earlier test of this process connected to Temporal.
        with patch.object(os, "_exit", sys.exit):
            runpy.run_module("sequencer", run_name="__main__")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 70
    return 70


def _apart(work: Callable[[], Any]) -> Any:
    """Return what *work* returns in a child; a text says why it did not."""
    read_fd, write_fd = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(LIMIT_S)
        os.environ.update(ENVIRONMENT, PATH=os.environ["PATH"], SEQUENCER_TRUST="all")
        nowhere = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(nowhere, fd)
        try:
            told = json.dumps(work())
        except BaseException:  # noqa: BLE001 - whatever it is, the parent has to hear of it
            told = json.dumps(traceback.format_exc())
        os.write(write_fd, told.encode())
        os._exit(0)
    os.close(write_fd)
    with os.fdopen(read_fd, "rb") as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    if text:
        return json.loads(text)
    return {"was_killed": os.WTERMSIG(status) == signal.SIGKILL, "status": status}


def _succeeds(folder: Path, *argv: str) -> None:
    code = _apart(lambda: _called(folder, *argv))
    assert code == 0, f"{argv}: {code}"


def cycle(folder: Path, *outcomes: dict[str, Any], **settings: Any) -> Path:
    """Make a project of a cycle with a review in *folder*."""
    made = project(folder, *outcomes, **{"workflow": CYCLE, **settings})
    (folder / "prompts" / "reviewer.md").write_text("Do the review.\n")
    return made


def worked(folder: Path) -> None:
    cycle(folder)
    _succeeds(folder, "run", "--max-steps", "3")


def of_another_definition(folder: Path) -> None:
    worked(folder)
    cycle(folder, workflow={**CYCLE, "review_every_n": 3})


def with_an_ended_run(folder: Path) -> None:
    cycle(folder, {"status": "complete"})
    _succeeds(folder, "--run", "old", "run", "--max-steps", "1")
    worked(folder)


def about_to_rotate(folder: Path) -> None:
    cycle(folder, store={"journal": {"rotate_bytes": ROTATE_BYTES}})
    _succeeds(folder, "run", "--max-steps", "1")
    journal = folder / "sync" / "journal.jsonl"
    with journal.open("ab") as file:
        # Empty lines are no records; the next one makes it long enough.
        file.write(b"\n" * max(0, ROTATE_BYTES - journal.stat().st_size))


def behind_another_clone(folder: Path) -> None:
    shared = Shared(folder)
    first = cycle(shared.clone("first"), store={"kind": "git", "retry_for_s": 0})
    git(first, "add", "-A")
    git(first, "commit", "-qm", "a project")
    git(first, "push", "-q", "origin", "main")
    for name, steps in (("here", "1"), ("there", "2"), ("here", "0")):
        clone = shared.clone(name)
        if steps != "0":
            _succeeds(clone, "run", "--max-steps", steps)


COMMANDS: Mapping[str, Command] = {
    "reset": Command(worked, ("reset", "--yes"), goes_on_at=0),
    "adopt": Command(of_another_definition, ("adopt",), again=(0, 3)),
    "set": Command(worked, ("set", "ticket=ABC-12")),
    "set a step": Command(worked, ("set", "step_index=1"), goes_on_at=1),
    "clean": Command(with_an_ended_run, ("clean", "--yes", "--older-than", "0")),
    "rotation": Command(about_to_rotate, ("tick",)),
    "sync": Command(behind_another_clone, ("sync", "--fetch"), inside="here"),
}


def attempt(folder: Path, command: Command, injector: Injector) -> dict[str, Any]:
    """Call *command* in *folder* under a fault, in a child; return how that ended."""

    def act() -> dict[str, Any]:
        injector.install()
        injector.is_armed = True
        code = _called(folder, *command.argv)
        injector.is_armed = False
        return {"code": code, "has_fired": injector.has_fired, "calls": injector.seen}

    found = _apart(act)
    return found if isinstance(found, dict) else {"bug": found, "has_fired": True}


def _wrong(folder: Path, command: Command, before: list[dict[str, Any]]) -> list[str]:
    """Return what does not hold when the command is done again and the run goes on."""
    told: list[dict[str, Any]] = []
    for argv in ((), command.argv, ("run", "--max-steps", "1"), ("check",)):
        code = _apart(partial(_called, folder, *argv)) if argv else 0
        if code not in {command.argv: command.again, ("check",): (0, 2)}.get(argv, (0,)):
            return [f"{' '.join(argv)} ended with {code}"]
        told = _apart(lambda: facts(folder))
        if not isinstance(told, list):
            return [str(told)]
        if told[: len(before)] != before:
            return [f"after {argv}: what was accepted has changed: {before} -> {told}"]
    made = accepted(told[len(before) :])
    first = accepted(before)[-1] + 1 if command.goes_on_at is None else command.goes_on_at
    if not made or made != [*range(first, first + len(made))]:
        return [f"accepted behind it: {made}, which should go on at {first}"]
    revisions = [one["revision"] for one in told]
    return [] if revisions == sorted(revisions) else [f"out of order: {revisions}"]


def sweep(
    name: str, fault: str, base: Path, points: Iterable[int], patch: pytest.MonkeyPatch
) -> tuple[int, list[str]]:
    """Kill the command called *name* at each of the calls *points*, as far as there are any.

    Returns how many points there were, and what broke.
    """
    command, made, wrong, tried = COMMANDS[name], base / "made", list[str](), 0
    made.mkdir(parents=True)
    patch.setenv("XDG_STATE_HOME", str(base / "state"))
    command.prepare(made)
    before = _apart(lambda: facts(made / command.inside))
    assert accepted(before), before
    for at in points:
        folder = copy_of(made, base / str(at))
        # A folder for each attempt: later commands would read the records of killed ones.
        patch.setenv("XDG_STATE_HOME", str(copy_of(base / "state", base / f"{at}-state")))
        inside = folder / command.inside
        said = attempt(inside, command, Injector(fault, at))
        bug = said.get("bug") or ("" if said.get("code", 0) == 0 else f"ended with {said['code']}")
        found = [bug] if bug else _wrong(inside, command, before)
        wrong += [f"{name}, {fault} at call {at}: {text.strip()[-600:]}" for text in found]
        shutil.rmtree(folder)
        shutil.rmtree(base / f"{at}-state")
        if not said.get("has_fired", True):
            break
        tried += 1
    return tried, wrong


def campaign(folder: Path, size: Size) -> Report:
    """SIGKILL at every call of `reset`, `adopt`, `set`, `clean`, `sync` and of a rotating tick."""
    # Else each child imports what it needs, which is most of its time.
    prepare()
    points, wrong = 0, list[str]()
    is_short = size is Size.SHORT
    place = in_memory() if is_short else contextlib.nullcontext(folder)
    patches = pytest.MonkeyPatch.context()
    with place as base, nothing_waits_for_the_disk(), patches as patch:
        for name, fault in itertools.product(COMMANDS, FAULTS[:1] if is_short else FAULTS):
            # Not the first call for each, so that others are met as well.
            at = [len(name) * 17 % 53 + 1] if is_short else itertools.count(1)
            tried, found = sweep(name, fault, base / name / fault, at, patch)
            points, wrong = points + tried, wrong + found
    return Report({"crash points": points}, tuple(wrong))
