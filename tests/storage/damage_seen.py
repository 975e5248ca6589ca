"""Damaged files, and things that are no files, before the real command.

Nothing may hang for longer than five seconds, nothing may end as a bug, and what a command
refuses it leaves as it was.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.long.report import Report, Size
from tests.storage.commands import Ended, accepted, facts, project, sequencer

HANG_S = 5.0
STEPS = 3


def _device(path: Path) -> None:
    try:
        os.mknod(path, 0o600 | 0o020000, os.makedev(1, 5))
    except PermissionError:
        # Only root makes devices; a link to one has to do.
        path.symlink_to("/dev/zero")


def _socket(path: Path) -> None:
    # The path of a socket is short, so it is bound from within its folder.
    with socket.socket(socket.AF_UNIX) as bound, contextlib.chdir(path.parent):
        bound.bind(path.name)


SPECIAL: dict[str, Callable[[Path], object]] = {
    "folder": lambda path: path.mkdir(),
    "fifo": os.mkfifo,
    "socket": _socket,
    "device": _device,
    "link": lambda path: path.symlink_to("/etc/passwd"),
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
    "dangling link": lambda path: path.symlink_to("nowhere/at/all"),
    "loop": lambda path: path.symlink_to(path.name),
    "nothing in it": lambda path: path.write_bytes(b""),
    "a NUL page": lambda path: path.write_bytes(bytes(4096)),
}
PLACES = ("state.json", "journal.jsonl", "state.json.lock", "idle.json", "beats", "results")


class Original:
    """A project with accepted steps, copied anew for each input."""

    def __init__(self, folder: Path) -> None:
        self.made, self.folder = project(folder / "made"), folder / "copy"
        ended = sequencer(self.made, "run", "--max-steps", str(STEPS))
        if ended.code != 0:
            raise RuntimeError(ended.err)
        self.run_id = json.loads((self.made / "sync/state.json").read_text())["run_id"]
        self.history = facts(self.made)

    def fresh(self) -> Path:
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.made, self.folder)
        return self.folder

    def files(self) -> dict[str, bytes | None]:
        """Return what stands where state and journal should; None for what is no plain file."""
        paths = [self.folder / "sync" / name for name in ("state.json", "journal.jsonl")]
        return {
            path.name: path.read_bytes() if path.is_file() and not path.is_symlink() else None
            for path in paths
            if os.path.lexists(path)
        }


def look(original: Original, verbs: tuple[str, ...]) -> Iterator[str]:
    """Let each of *verbs* come to the damaged copy; yield what is wrong with what they do."""
    folder = original.folder
    for verb in verbs:
        before = original.files()
        ended = sequencer(folder, *verb.split(), limit_s=HANG_S * 4)
        if wrong := ended.wrong(0, 2, 3) if verb == "check" else ended.wrong(0, 3):
            # A loaded machine is slow to start Python; a hang is a hang for twenty seconds.
            yield f"{verb}: {wrong}"
        elif (ended.code or verb != "tick") and original.files() != before:
            yield f"{verb}: exit code {ended.code}, and it changed a file"
        elif verb == "status --json" and ended.code == 0:
            yield from _status(original, ended)
        elif verb == "tick" and ended.code == 0:
            yield from _went_on(original)


def _status(original: Original, ended: Ended) -> Iterator[str]:
    head = json.loads(ended.out)
    is_edit = "edited by hand" in ended.err
    if head["run_id"] != original.run_id:
        yield f"status: run {head['run_id']}"
    if head["step_index"] != STEPS and not is_edit:
        yield f"status: step_index {head['step_index']} without a word"


def _went_on(original: Original) -> Iterator[str]:
    told = facts(original.folder)
    head = json.loads((original.folder / "sync/state.json").read_text())
    if told[: len(original.history)] != original.history or head["run_id"] != original.run_id:
        yield f"tick: the history was {original.history} and is {told}"
    new = told[len(original.history) :]
    events = [fact["event"] for fact in new]
    edits, rest = (1, events[1:]) if events[:1] == ["edited"] else (0, events)
    if rest not in ([], ["claimed", "succeeded"]) or (not rest and not edits):
        yield f"tick: it did {events}"
    elif not edits and accepted(told) != [*range(STEPS + 1)]:
        yield f"tick: it accepted {accepted(told)}"


def damages(original: Original, number: int) -> Iterator[tuple[str, str, bytes]]:
    """Yield *number* damaged files: name of the damage, of the file, its bytes."""
    chance = random.Random(7)  # noqa: S311 (chance, no secret)
    whole = {
        name: (original.made / "sync" / name).read_bytes()
        for name in ("state.json", "journal.jsonl")
    }
    for index in range(number):
        name = "journal.jsonl" if index % 3 == 2 else "state.json"
        data = whole[name]
        first = data.rindex(b"\n", 0, -1) + 1 if name == "journal.jsonl" else 0
        at = chance.randrange(first, len(data))
        if index % 2:
            yield f"{name} of {at} bytes", name, data[:at]
        else:
            bit = chance.randrange(8)
            made = bytearray(data)
            made[at] ^= 1 << bit
            yield f"{name}, bit {at * 8 + bit}", name, bytes(made)


def specials(size: Size) -> Iterator[tuple[str, str]]:
    for place in PLACES[:2] if size is Size.SHORT else PLACES:
        for kind in ("fifo", "device") if size is Size.SHORT else SPECIAL:
            yield place, kind


def put(original: Original, place: str, kind: str) -> None:
    path = original.fresh() / "sync" / place
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    SPECIAL[kind](path)


def campaign(folder: Path, size: Size) -> Report:
    """Damage a run's files and look at them with ``status``, ``check``, ``repair`` and ``tick``."""
    original, wrong, inputs = Original(folder), [], 0
    is_short = size is Size.SHORT
    verbs: tuple[str, ...] = ("status --json", "check", "repair", "tick")
    for place, kind in specials(size):
        put(original, place, kind)
        inputs += 1
        wrong += [
            f"{place} is a {kind}: {text}"
            for text in look(original, verbs[-1:] if is_short else verbs)
        ]
    verbs = ("status --json", "tick") if is_short else ("status --json", "check", "tick")
    for name, file, data in damages(original, 3 if is_short else 150):
        (original.fresh() / "sync" / file).write_bytes(data)
        inputs += 1
        wrong += [f"{name}: {text}" for text in look(original, verbs)]
    return Report({"inputs": inputs}, tuple(wrong))
