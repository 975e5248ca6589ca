"""A disk of 160 KiB that is full at another byte each time; run as ``python -m``, see `namespace`.

A file on it takes whole pages, so the free pages say which file finds no room, and how far
the journal's last page is filled says at which byte of an append it ends.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

from tests.concurrency.crash_points import SCENARIOS
from tests.long.report import Report, Size
from tests.storage.commands import accepted, facts, project, sequencer
from tests.storage.namespace import in_namespace, mount
from tests.storage.troubled import apart, change

PAGE = 4096
PAGES = 40
INODES = 64
STEPS = 3
_AGENT = """
import os, sys
print(os.environ["SEQUENCER_STEP"], "word " * 900 if sys.argv[1:] else "")
"""


class Disk:
    """A mounted disk of `PAGES` pages, filled with ballast as far as it is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "disk"
        self.folder.mkdir()
        options = f"size={PAGES * PAGE},nr_inodes={INODES}"
        mount("-t", "tmpfs", "-o", options, "tmpfs", str(self.folder))
        self._ballast = self.folder / "ballast"
        self._many = self.folder / "many"

    def clear(self) -> None:
        for entry in self.folder.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    def fill(self, pages: int) -> None:
        """Leave *pages* free."""
        with self._ballast.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(PAGE))
            except OSError:
                file.truncate(max(file.tell() // PAGE - pages, 0) * PAGE)

    def fill_inodes(self, inodes: int) -> None:
        """Leave *inodes* free: so many files and folders can be made."""
        self._many.mkdir()
        made: list[Path] = []
        try:
            while True:
                path = self._many / str(len(made))
                path.touch()
                made.append(path)
        except OSError:
            for path in made[:inodes]:
                path.unlink()

    def make_room(self) -> None:
        self._ballast.unlink(missing_ok=True)
        shutil.rmtree(self._many, ignore_errors=True)


def pad(journal: Path, room: int) -> None:
    """Add empty lines to *journal* until *room* bytes of its last page are free."""
    missing = (-journal.stat().st_size - room) % PAGE if journal.exists() else 0
    if missing:
        with journal.open("ab") as file:
            file.write(b"\n" * missing)


def fault(disk: Disk, scenario: str, pages: int, room: int) -> list[str]:
    """Do *scenario* with *pages* free and *room* bytes in the journal's last; then make room."""
    disk.clear()
    folder = disk.folder / "sync"

    def begin() -> None:
        pad(folder / "journal.jsonl", room)
        disk.fill(pages)

    return change(folder, scenario, begin, disk.make_room)


def changes(disk: Disk, size: Size) -> Iterator[tuple[str, list[str]]]:
    """Try each scenario with the last free byte at every place, or at some on every push."""
    for number, scenario in enumerate(SCENARIOS):
        # On every push one number of pages for each scenario, and the next for the next.
        for pages in (number % 3 * 2,) if size is Size.SHORT else range(6):
            # Without a free page the append itself ends at the last free byte.
            every = 1 if scenario == "commit+claim" and not pages else 31
            for room in range(0, 1500, 750 if size is Size.SHORT else every):
                name = f"{scenario}, {pages} pages and {room} bytes free"
                yield name, apart(partial(fault, disk, scenario, pages, room))


def commands(disk: Disk, folder: Path, size: Size) -> Iterator[tuple[str, list[str]]]:
    """Run ``init``, ``run`` and ``tick`` with each number of free pages, then with room."""
    is_short = size is Size.SHORT
    for pages in (1,) if is_short else range(PAGES - 1):
        for room in (700,) if is_short else (0, 400, 800):
            for verb in ("run",) if is_short else ("run", "tick"):
                yield f"{verb}, {pages} pages, {room} bytes", _work(disk, folder, verb, pages, room)
    for pages in (3,) if is_short else range(PAGES):
        yield f"init, {pages} pages free", _init(disk, pages)


def _work(disk: Disk, folder: Path, verb: str, pages: int, room: int) -> list[str]:
    disk.clear()
    shutil.rmtree(folder, ignore_errors=True)
    state, logs = disk.folder / "sync/state.json", disk.folder / "logs"
    project(folder)
    elsewhere = {"SEQUENCER_STATE_FILE": str(state), "SEQUENCER_LOGS_DIR": str(logs)}
    if room:
        sequencer(folder, "tick", variables=elsewhere)
        pad(state.with_name("journal.jsonl"), room)
    disk.fill(pages)
    limited = ("--max-steps", str(STEPS)) if verb == "run" else ()
    wrong = [sequencer(folder, verb, *limited, variables=elsewhere).wrong(0, 75)]
    disk.make_room()
    done = len(accepted(facts(folder, elsewhere)))
    if done < STEPS:
        rest = ("run", "--max-steps", str(STEPS - done))
        wrong.append(sequencer(folder, *rest, variables=elsewhere).wrong(0))
    told = facts(folder, elsewhere)
    if accepted(told) != [*range(STEPS)] and not (verb == "run" and room):
        wrong.append(f"accepted {accepted(told)}")
    if accepted(told) != [*range(len(accepted(told)))]:
        wrong.append(f"accepted {accepted(told)}")
    wrong.append(sequencer(folder, "check", variables=elsewhere).wrong(0, 2))
    return [text for text in wrong if text]


def attempts(disk: Disk, folder: Path, size: Size) -> Iterator[tuple[str, list[str]]]:
    """Start real agents with each number of free pages, and of files that can still be made.

    What finds no room is then also an executor's: the attempt's lock and its note, the folder of
    its result, the files of its system prompt, a long answer.
    """
    is_short = size is Size.SHORT
    for answer in ("long",) if is_short else ("short", "long"):
        for pages in (2,) if is_short else range(PAGES - 1):
            yield (
                f"{answer} answer, {pages} pages",
                _attempt(disk, folder, answer, partial(disk.fill, pages)),
            )
        for inodes in (1,) if is_short else range(24):
            yield (
                f"{answer} answer, {inodes} inodes",
                _attempt(disk, folder, answer, partial(disk.fill_inodes, inodes)),
            )


def _attempt(disk: Disk, folder: Path, answer: str, fill: Callable[[], None]) -> list[str]:
    disk.clear()
    shutil.rmtree(folder, ignore_errors=True)
    state, logs = disk.folder / "sync/state.json", disk.folder / "logs"
    argv = [sys.executable, "agent.py", *(["long"] if answer == "long" else [])]
    agent = {"kind": "command", "argv": argv, "free": True}
    project(folder, agent={"default": "hand"}, agents={"hand": agent})
    (folder / "agent.py").write_text(_AGENT)
    elsewhere = {"SEQUENCER_STATE_FILE": str(state), "SEQUENCER_LOGS_DIR": str(logs)}
    # With folders that are there already: a run that begins on a full disk is tried above.
    wrong = [sequencer(folder, "tick", variables=elsewhere).wrong(0)]
    fill()
    told = sequencer(folder, "run", "--max-steps", "1", variables=elsewhere)
    wrong.append(told.wrong(0, 75))
    if told.code == 75 and "no room left" not in told.err:
        wrong.append(f"not a word about the disk: {told.err}")
    disk.make_room()
    head = json.loads(sequencer(folder, "status", "--json", variables=elsewhere).out)
    if head.get("failures_in_row"):
        wrong.append(f"counted as a failure of the agent: {head['failures_in_row']}")
    rest = STEPS - len(accepted(facts(folder, elsewhere)))
    wrong.append(sequencer(folder, "run", "--max-steps", str(rest), variables=elsewhere).wrong(0))
    history = facts(folder, elsewhere)
    if accepted(history) != [*range(STEPS)] or any(one["event"] == "failed" for one in history):
        wrong.append(f"the history: {[(one['event'], one.get('step_index')) for one in history]}")
    return [text for text in wrong if text]


def files_of(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def _init(disk: Disk, pages: int) -> list[str]:
    disk.clear()
    disk.fill(pages)
    wrong = [sequencer(disk.folder, "init", "project").wrong(0, 75)]
    disk.make_room()
    wrong.append(sequencer(disk.folder, "init", "project").wrong(0))
    made = files_of(disk.folder / "project")
    disk.clear()
    wrong.append(sequencer(disk.folder, "init", "project").wrong(0))
    whole = files_of(disk.folder / "project")
    wrong += [
        f"init left {name} as {made.get(name)!r}" for name in whole if made.get(name) != whole[name]
    ]
    return [text for text in wrong if text]


def campaign(folder: Path, size: Size) -> Report:
    """Let the disk be full, of bytes and of inodes, at every write of every change and executor."""
    return in_namespace("tests.storage.full_disk", folder, size)


def main(folder: Path, size: Size) -> Report:
    disk, wrong, inputs = Disk(folder), [], 0
    for tried in (
        changes(disk, size),
        commands(disk, folder / "project", size),
        attempts(disk, folder / "work", size),
    ):
        for name, texts in tried:
            inputs += 1
            wrong += [f"{name}: {text}" for text in texts]
    return Report({"inputs": inputs}, tuple(wrong))


if __name__ == "__main__":
    print(json.dumps(asdict(main(Path(sys.argv[1]), Size(sys.argv[2])))))
