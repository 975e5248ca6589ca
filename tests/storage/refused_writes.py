"""Writes that the system refuses: a limit on the size of files, folders that nobody may write.

Root may write everywhere, so as root the commands run without that privilege. A folder on
a read-only file system needs a mount; run as ``python -m``, see `namespace`.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

from tests.concurrency.crash_points import SCENARIOS
from tests.long.report import Report, Size
from tests.storage.commands import accepted, facts, project, sequencer
from tests.storage.namespace import in_namespace, mount, way
from tests.storage.troubled import apart, change

STEPS = 2
UNPRIVILEGED = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search")
"""Makes the modes of files count for root as well."""
MODES = {
    "sync": (0o555, 0o000),
    "sync/state.json": (0o444, 0o000),
    "sync/journal.jsonl": (0o444, 0o000),
    "sync/state.json.lock": (0o444, 0o000),
    "sync/beats": (0o555, 0o000),
    "sync/results": (0o555, 0o000),
    "logs": (0o555, 0o000),
    "prompts/supervisor.md": (0o000,),
    "orchestration.yaml": (0o000,),
    ".": (0o555,),
}
ON_EVERY_PUSH = ("sync/journal.jsonl", "sync/beats", ".")


def limit_size(most: int) -> None:
    """Let no file of this process grow beyond *most* bytes; -1 lets it again."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))


def sizes(folder: Path, size: Size) -> Iterator[tuple[str, list[str]]]:
    """Do each change under a limit that lies at each byte, or at some on every push."""
    for number, scenario in enumerate(SCENARIOS):
        first = number % 2 * 1_000 if size is Size.SHORT else 0
        every = 5 if scenario == "commit+claim" else 31
        for most in range(first, 4_000, 2_000 if size is Size.SHORT else every):
            begin, end = partial(limit_size, most), partial(limit_size, -1)
            work = partial(change, folder / "sync", scenario, begin, end)
            yield f"{scenario}, files up to {most} bytes", apart(work)
            shutil.rmtree(folder)


def limited_commands(folder: Path, size: Size) -> Iterator[tuple[str, list[str]]]:
    for most in (300,) if size is Size.SHORT else range(0, 5_000, 250):
        shutil.rmtree(folder, ignore_errors=True)
        project(folder)
        before = ("prlimit", f"--fsize={most}")
        ended = sequencer(folder, "run", "--max-steps", str(STEPS), before=before)
        # 3: not a byte more can be written; 75: a part of the record, as on a full disk.
        yield f"run, files up to {most} bytes", [ended.wrong(0, 3, 75), *go_on(folder)]


def modes(folder: Path, size: Size) -> Iterator[tuple[str, list[str]]]:
    """Take the permissions from each part of a run, look at it, try to go on; then give them."""
    before = UNPRIVILEGED if os.geteuid() == 0 else ()
    for part, refusals in MODES.items():
        if size is Size.SHORT and part not in ON_EVERY_PUSH:
            continue
        for mode in refusals[-1:] if size is Size.SHORT else refusals:
            shutil.rmtree(folder, ignore_errors=True)
            project(folder)
            if part != ".":
                sequencer(folder, "tick")
            path = folder / part
            if not path.exists():
                path.mkdir()
            kept = path.stat().st_mode
            path.chmod(mode)
            try:
                wrong = look(folder, before, size, path.name)
            finally:
                path.chmod(kept)
            yield f"{part} with mode {mode:04o}", [*wrong, *go_on(folder)]


def look(folder: Path, before: tuple[str, ...], size: Size, place: str) -> list[str]:
    """Return what is wrong with what the commands say of a folder that refuses them."""
    wrong = []
    for verb in ("tick",) if size is Size.SHORT else ("status", "check", "repair", "tick", "stop"):
        ended = sequencer(folder, verb, before=before)
        wrong.append(f"{verb}: {text}" if (text := ended.wrong(0, 2, 3)) else "")
        is_told = ended.code == 0 or any(
            p in ended.err + ended.out
            for p in (str(folder), f"{place}/", f"{place}:", "sync/", "sync:")
        )
        wrong.append("" if is_told else f"{verb} does not say where: {ended.err}")
    return wrong


def read_only(folder: Path, size: Size) -> Iterator[tuple[str, list[str]]]:
    """Let the run's folder, or the whole project, be on a read-only file system."""
    for part in ("sync",) if size is Size.SHORT else ("sync", "logs", "."):
        shutil.rmtree(folder, ignore_errors=True)
        project(folder)
        sequencer(folder, "tick")
        path = str(folder / part)
        mount("--bind", path, path)
        mount("-o", "remount,ro,bind", path)
        try:
            # What is below a mount is seen by whoever enters it after that.
            with contextlib.chdir(folder):
                wrong = look(folder, (), size, part)
        finally:
            mount("-o", "remount,rw,bind", path)
        yield f"{part} is read-only", [*wrong, *go_on(folder)]
        os.system(f"umount {path}")  # noqa: S605 (a path of our own)


def go_on(folder: Path) -> list[str]:
    """Return what is wrong when nothing is refused any more."""
    sequencer(folder, "resume")
    done = len(accepted(facts(folder)))
    limit = ("--max-steps", str(max(STEPS + 1 - done, 1)))
    ended = sequencer(folder, "run", *limit)
    told = facts(folder)
    steps = accepted(told)
    is_once = steps == [*range(len(steps))] and len(steps) > done
    is_one_run = [fact["event"] for fact in told].count("initialised") == 1
    return [ended.wrong(0), "" if is_once and is_one_run else f"then it accepted {steps}: {told}"]


def campaign(folder: Path, size: Size) -> Report:
    """Refuse writes by a size limit, by modes and by a read-only file system."""
    if way():
        return in_namespace("tests.storage.refused_writes", folder, size)
    return main(folder, size)


def main(folder: Path, size: Size) -> Report:
    wrong, inputs = [], 0
    tried = [
        *(sizes(folder / "sizes", size), limited_commands(folder / "limited", size)),
        modes(folder / "modes", size),
    ]
    if way():
        tried.append(read_only(folder / "mounted", size))
    for part in tried:
        for name, texts in part:
            inputs += 1
            wrong += [f"{name}: {text}" for text in texts if text]
    return Report({"inputs": inputs}, tuple(wrong))


if __name__ == "__main__":
    print(json.dumps(asdict(main(Path(sys.argv[1]), Size(sys.argv[2])))))
