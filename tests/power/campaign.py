"""The power fails: at every call, with everything that was not synced there or not.

A process acts on a run while its calls are written down. From each prefix of them the
folders that a disk may be left with are built, and a new process comes to each: what was
acknowledged has to be there, nothing else may have come to be, and the run has to go on.
The same again after a process was killed in the middle and another one has gone on.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from sequencer import FileStore, SequencerError
from tests.concurrency.crash_points import new_store
from tests.contract import store_cases as cases
from tests.long.report import Report, Size
from tests.power.disk import Disk, Effort, Op, Sync, Told, Tree, Write
from tests.power.recorder import Recorder, replaced
from tests.power.stories import RUN, STORIES, Story
from tests.scratch_folders import scratch_folder

Facts = list[dict[str, Any]]
Action = Callable[[FileStore], object]
GOING_ON: tuple[Action, ...] = (cases.begin, cases.claim)
FIRST_NODE_OF_THE_SECOND = 100_000
SYNCS = [name for name in ("fsync", "fdatasync") if hasattr(os, name)]


@dataclass(frozen=True)
class Trace:
    """What a process did."""

    before: Tree
    ops: list[Op]
    history: Facts
    """All that was accepted when it had ended."""


@dataclass(frozen=True)
class Amount:
    """How much is tried."""

    effort: Effort
    kills: Callable[[str, Op], bool]
    """Whether, in the story of this name, a process is killed before this call."""
    effort_after_kill: Effort
    every: int = 1
    """The power is lost before each so-manieth call."""


MEMORY = Path("/dev/shm")  # noqa: S108 (a folder with a random name is made in it)
QUICK_KILLS = ("init", "commit+claim", "rotation")
EVERY_CALL = Amount(
    Effort(1, 0, 3, 0),
    lambda name, op: name in QUICK_KILLS and isinstance(op, Sync),
    Effort(1, 0, 2, 0),
)
"""As much as shows every mistake of a store in a story."""
AMOUNTS = {
    Size.SHORT: replace(EVERY_CALL, every=10),
    Size.LONG: Amount(Effort(9, 80, 200, 80), lambda _name, _op: True, Effort(5, 10, 24, 10)),
}


@dataclass
class Tried:
    """What has been looked at so far."""

    calls: int = 0
    kills: int = 0
    replays: int = 0
    violations: list[str] = field(default_factory=list)


def campaign(folder: Path, size: Size) -> Report:
    """The power fails at every call of every transition, everything unsynced there or not."""
    # The disk is a simulated one; what is beneath it need not be slow.
    base = MEMORY if os.access(MEMORY, os.W_OK) else folder
    tried = Tried()
    with scratch_folder(base) as made:
        for name, story in STORIES.items():
            Telling(name, story, made, tried).tell(AMOUNTS[size])
    counts = {
        "power losses": tried.calls,
        "kills": tried.kills,
        "replays": tried.replays,
    }
    return Report(counts, tuple(tried.violations))


@dataclass
class Telling:
    """One story, whose power fails."""

    name: str
    story: Story
    folder: Path
    tried: Tried
    seen: set[int] = field(default_factory=set)

    def tell(self, amount: Amount) -> None:
        """Let the power fail in one process, and in another that goes on after a kill."""
        trace = in_child(lambda: record(self.folder / "first", self.story))
        self.examine(self.name, Disk(trace.before), trace, amount.effort, amount.every)
        for call, op in enumerate(trace.ops):
            if not amount.kills(self.name, op):
                continue
            effort = amount.effort_after_kill
            where = f"{self.name}, killed before call {call}"
            self.kill(where, replayed(trace, call), effort, amount.every)
            if isinstance(op, Write):
                half = op._replace(data=op.data[: len(op.data) // 2])
                disk = replayed(trace, call, half)
                self.kill(f"{self.name}, killed in call {call}", disk, effort, amount.every)

    def kill(self, where: str, disk: Disk, effort: Effort, every: int) -> None:
        """Let another process go on with what is in memory, and the power fail then."""
        self.tried.kills += 1
        try:
            trace = in_child(lambda: record_on(disk.present, self.folder / "second"))
        except RuntimeError as error:
            self.tried.violations.append(f"{where}: {error}")
            return
        self.examine(where, disk, trace, effort, every)

    def examine(self, where: str, disk: Disk, trace: Trace, effort: Effort, every: int) -> None:
        """Let the power fail before each call of *trace* and after the last, or *every* few."""
        # Not the same calls in each story, so that each is met in some of them.
        first = len(where) % every
        for call in range(len(trace.ops) + 1):
            if call % every != first:
                self._do(disk, trace, call)
                continue
            chance = random.Random(f"{where} {call}")  # noqa: S311 (to be repeated)
            self.tried.calls += 1
            for number, tree in enumerate(disk.left(effort, chance)):
                wrong = self.look_once(tree, disk.told, trace.history)
                if wrong is not None:
                    place = f"{where}, power lost before call {call}, remains {number}"
                    shown = ", ".join(path for path, _, _ in tree.key())
                    self.tried.violations.append(f"{place}, told {disk.told}: {wrong} [{shown}]")
                    break
            self._do(disk, trace, call)

    def _do(self, disk: Disk, trace: Trace, call: int) -> None:
        if call < len(trace.ops):
            disk.do(trace.ops[call])

    def look_once(self, tree: Tree, told: int, accepted: Facts) -> str | None:
        """Return what is wrong with *tree*, unless one that is alike was looked at."""
        key = hash((tree.key(), told, len(accepted)))
        if key in self.seen:
            return None
        self.seen.add(key)
        self.tried.replays += 1
        return look(tree, self.folder / "left", told, accepted, self.story)


def replayed(trace: Trace, calls: int, part: Op | None = None) -> Disk:
    """Return the disk after the first *calls* calls of *trace*, and *part* of the next."""
    disk = Disk(trace.before)
    for op in (*trace.ops[:calls], *([part] if part else [])):
        disk.do(op)
    return disk


def _nothing(_: int) -> None:
    """Sync nothing."""


def look(tree: Tree, folder: Path, told: int, accepted: Facts, story: Story) -> str | None:
    """Return what is wrong with *tree*, to which a new process comes."""
    shutil.rmtree(folder, ignore_errors=True)
    tree.write_to(folder)
    run = folder / RUN
    store = new_store(run)
    try:
        # They only take time where no power fails.
        with replaced(dict.fromkeys(SYNCS, _nothing)):
            found = list(store.history())
            head = store.view().head
            lost = [f for f in accepted if f["revision"] <= told and f not in found]
            if lost or (head.revision if head else 0) < told:
                return f"lost {lost}, the head is at {head.revision if head else None}"
            if found != accepted[: len(found)]:
                return f"found what nobody wrote: {found}"
            cases.begin(store)
            granted = cases.claim(store)
            cases.check_files(run)
            cases.commit(store, granted.token)
            cases.check_files(run)
            if (after := list(store.history()))[: len(found)] != found:
                return f"the history has changed from {found} to {after}"
    except (AssertionError, SequencerError) as error:
        return f"the run does not go on: {type(error).__name__}: {error}"
    finally:
        store.close()
    return story.holds(run, told)


# --- what is done in processes of their own, which are gone afterwards -----------------


def record(folder: Path, story: Story) -> Trace:
    """Return what *story* does in a new *folder*."""
    shutil.rmtree(folder, ignore_errors=True)
    run = folder / RUN
    run.parent.mkdir(parents=True)
    story.given(run)
    recorder = Recorder(folder)
    before = recorder.read()
    return _acted(recorder, before, run, story.actions)


def record_on(tree: Tree, folder: Path) -> Trace:
    """Return what a new process does that comes to *tree*."""
    shutil.rmtree(folder, ignore_errors=True)
    nodes = tree.write_to(folder)
    recorder = Recorder(folder, FIRST_NODE_OF_THE_SECOND)
    recorder.know(nodes)
    return _acted(recorder, tree, folder / RUN, GOING_ON)


def _acted(recorder: Recorder, before: Tree, run: Path, actions: Sequence[Action]) -> Trace:
    store = new_store(run)
    with recorder.recording():
        for action in actions:
            action(store)
            head = store.view().head
            recorder.ops.append(Told(head.revision if head else 0))
    return Trace(before, recorder.ops, list(store.history()))


def in_child(action: Callable[[], Trace]) -> Trace:
    """Return what *action* returns in a process that is gone then, so that nobody is alive."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_send, args=(sender, action))
    child.start()
    sender.close()
    result = receiver.recv()
    child.join()
    receiver.close()
    if isinstance(result, str):
        raise RuntimeError(result)  # noqa: TRY004 (it is what the child raised)
    trace: Trace = result
    return trace


def _send(sender: Connection, action: Callable[[], Trace]) -> None:
    try:
        sender.send(action())
    except BaseException:  # noqa: BLE001 (whatever it is, the parent has to hear of it)
        sender.send(traceback.format_exc())
