"""Clones whose processes are killed: at random, and at every call between two of their steps.

Twice each: the process alone, whose git goes on without it and may still move the ref; and
with all that it has started, as when a machine loses its power.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from sequencer import SequencerError, Store
from tests.clones import Shared, SharedStore
from tests.concurrency import children
from tests.contract import store_cases as cases
from tests.git.turns import KEEP, accepted_in, insist, play, violations
from tests.long.report import Report, Size

ENDLESS = 10**6
CLONES = 3
ROTATE_BYTES = 8_000
CALLS = ("open", "write", "replace", "unlink", "fsync", "fdatasync")
MAX_POINTS = 400
KILLS_A_STEP = 10
"""At most, so that there are steps that can be lost."""
STEP_S = 60.0
"""In which nobody is killed and a step is accepted, or it is stuck."""


def kill(pid: int, *, with_all: bool) -> None:
    """Kill the process *pid*, and *with_all* also what it has started.

    The server goes on, as one on another machine does: a lock that it leaves is its own.
    """
    family: list[psutil.Process] = []
    if with_all:
        with contextlib.suppress(psutil.NoSuchProcess):
            family = [p for p in psutil.Process(pid).children(recursive=True) if _is_here(p)]
    if pid != os.getpid():
        # Before its children: it might see how they end.
        os.kill(pid, signal.SIGKILL)
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    if pid == os.getpid():
        os.kill(pid, signal.SIGKILL)


def _is_here(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error, OSError):
        return not process.cwd().endswith(".git") and "receive-pack" not in process.cmdline()
    return False


# --- at random --------------------------------------------------------------------------


def random_kills(folder: Path, size: Size) -> Report:
    """See `tests.long.report.Campaign`; processes of clones are killed at random moments."""
    kills = 6 if size is Size.SHORT else 1_000
    shared = Shared(folder)
    names = [f"clone-{number}" for number in range(CLONES)]
    for name in names:
        shared.clone(name)
    cases.begin(shared.store("first", keep=KEEP))
    errors, chance = folder / "errors", random.Random(6)  # noqa: S311 - chance, no secret
    work = {name: children.start(partial(play, shared, name, ENDLESS), errors) for name in names}
    try:
        for number in range(kills):
            time.sleep(chance.uniform(0.02, 0.35))
            if number % KILLS_A_STEP == 0:
                until_told(shared, number // KILLS_A_STEP)
            name = chance.choice(names)
            if errors.exists():
                break
            kill(work[name], with_all=bool(number % 2))
            children.end([work[name]])
            work[name] = children.start(partial(play, shared, name, ENDLESS), errors)
    finally:
        children.end(work.values())
    wrong = list(children.wrong(errors))
    until_quiet(shared)
    store = shared.store("first", keep=KEEP)
    store.pull()
    done = len(accepted_in(store))
    store.close()
    try:
        # The next process goes on without a hand.
        play(shared, "first", done + 2)
    except SequencerError as error:
        wrong.append(f"the next process does not go on: {error!r}")
    wrong += violations(shared, [*names, "first"], least=done + 2, may_hold_halves=True)
    if done < kills // KILLS_A_STEP:
        wrong.append(f"only {done} steps between {kills} kills")
    return Report({"kills": kills, "steps": done}, tuple(wrong))


def until_told(shared: Shared, steps: int) -> None:
    """Wait until so many *steps* have been told of: on a busy machine chance alone may kill all."""
    deadline = time.monotonic() + STEP_S
    while len(children.pairs(shared.folder / "told")) < steps and time.monotonic() < deadline:
        time.sleep(0.02)


def until_quiet(shared: Shared) -> None:
    """Wait until no git works in the folder that a killed process has left behind."""
    for _ in range(200):
        if not any(str(shared.folder) in cwd for cwd in _folders_of_git()):
            return
        time.sleep(0.02)


def _folders_of_git() -> list[str]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.name().startswith("git"):
                found.append(process.cwd())
    return found


# --- at every call ----------------------------------------------------------------------


@dataclass
class Deadly:
    """Kills its process at call number *at*: of git before and after, and of the files' own."""

    at: int
    with_all: bool
    seen: int = 0
    real: dict[str, Callable[..., Any]] = field(default_factory=dict)

    def install(self, *, only_git: bool = False) -> None:
        """Wrap the calls of this process."""
        for name in ("replace",) if only_git else CALLS:
            self._wrap(os, name)
        # Before and after the start of each git, and after its end.
        self._wrap(subprocess.Popen, "__init__")
        self._wrap(subprocess.Popen, "communicate")

    def _wrap(self, holder: Any, name: str) -> None:
        real = getattr(holder, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if name != "communicate":
                self._count()
            result = real(*args, **kwargs)
            if holder is subprocess.Popen:
                self._count()
            return result

        setattr(holder, name, call)

    def _count(self) -> None:
        self.seen += 1
        if self.seen == self.at:
            kill(os.getpid(), with_all=self.with_all)


def transitions(shared: Shared, name: str) -> None:
    """Take a turn, claim the next one, and write down each step that was told of."""
    store = new_store(shared, name)
    token = cases.claim(store).token
    step = store.view().head
    assert step is not None
    following = cases.commit_and_claim(store, token)
    children.append(shared.folder / "told", f"{step.step_index} {token} {name}")
    insist(store, cases.on_run(lambda head: cases.succeeding(head, following.token)))
    children.append(shared.folder / "told", f"{following.step_index} {following.token} {name}")


def new_store(shared: Shared, name: str) -> SharedStore:
    """Return a store whose journal is often put aside."""
    return shared.store(name, rotate_bytes=ROTATE_BYTES, keep=KEEP)


def crash_points(folder: Path, size: Size) -> Report:
    """See `tests.long.report.Campaign`; killed before and after every call, one by one."""
    shared, wrong, tried = Shared(folder), list[str](), 0
    cases.begin(new_store(shared, "first"))
    step = 24 if size is Size.SHORT else 1
    for with_all, first in ((False, 1), (True, (step + 1) // 2)):
        for at in range(first, MAX_POINTS, step):
            is_over, found = _killed_at(shared, at, with_all=with_all, only_git=size is Size.SHORT)
            wrong += [f"killed at {at}, {'all' if with_all else 'alone'}: {text}" for text in found]
            if is_over or len(wrong) > 20:
                break
            tried += 1
    names = ["first", "killed", "other"]
    wrong += violations(shared, names, least=None, may_hold_halves=True)
    return Report({"crash points": tried}, tuple(wrong))


def _killed_at(
    shared: Shared, at: int, *, with_all: bool, only_git: bool
) -> tuple[bool, list[str]]:
    """Kill a clone's process at its call *at*; return whether it has none, and what broke."""
    shared.clone("killed")
    errors = shared.folder / f"errors-{at}-{with_all}"

    def role() -> None:
        Deadly(at, with_all).install(only_git=only_git)
        transitions(shared, "killed")

    _, status = os.waitpid(children.start(role, errors), 0)
    wrong = list(children.wrong(errors))
    # The next process: of the same clone, and of another one.
    name = "killed" if at % 2 else "other"
    store = new_store(shared, name)
    try:
        token = cases.claim(store).token
        cases.commit(store, token)
        children.append(shared.folder / "told", f"{_step_of(store, token)} {token} {name}")
        wrong += _lost(shared, store)
    except (AssertionError, SequencerError) as error:
        wrong.append(f"{name} does not go on: {error!r}")
    finally:
        store.close()
    return not os.WIFSIGNALED(status), wrong


def _step_of(store: Store, token: int) -> int:
    return next(step for step, used in accepted_in(store) if used == token)


def _lost(shared: Shared, store: Store) -> list[str]:
    told = {(int(step), int(token)) for step, token, _ in children.pairs(shared.folder / "told")}
    accepted = accepted_in(store)
    wrong = [f"lost {missing}" for missing in sorted(told - set(accepted))]
    steps = [step for step, _ in accepted]
    if steps != list(range(len(steps))):
        wrong.append(f"steps {steps}")
    return wrong
