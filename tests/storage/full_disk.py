"""A disk of 160 KiB that is full at another byte each time; run as ``python -m``, see `namespace`.

A file on it takes whole pages, so the free pages say which file finds no room, and how far
the journal's last page is filled says at which byte of an append it ends.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
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
STEPS = 3


class Disk:
    """A mounted disk of `PAGES` pages, filled with ballast as far as it is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "disk"
        self.folder.mkdir()
        mount("-t", "tmpfs", "-o", f"size={PAGES * PAGE}", "tmpfs", str(self.folder))
        self._ballast = self.folder / "ballast"

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

    def make_room(self) -> None:
        self._ballast.unlink(missing_ok=True)


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
    for scenario in SCENARIOS:
        for pages in range(6):
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
    wrong = [sequencer(folder, verb, *limited, variables=elsewhere).wrong(0, 3)]
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


def files_of(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def _init(disk: Disk, pages: int) -> list[str]:
    disk.clear()
    disk.fill(pages)
    wrong = [sequencer(disk.folder, "init", "project").wrong(0, 2)]
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
    """Let the disk be full at every write of every change, and of ``init``, ``run``, ``tick``."""
    return in_namespace("tests.storage.full_disk", folder, size)


def main(folder: Path, size: Size) -> Report:
    disk, wrong, inputs = Disk(folder), [], 0
    for tried in (changes(disk, size), commands(disk, folder / "project", size)):
        for name, texts in tried:
            inputs += 1
            wrong += [f"{name}: {text}" for text in texts]
    return Report({"inputs": inputs}, tuple(wrong))


if __name__ == "__main__":
    print(json.dumps(asdict(main(Path(sys.argv[1]), Size(sys.argv[2])))))
