"""Run a story, and take down what its journal says; ``python -m tests.golden.recording NAME…``.

What differs between two runs of the same story is left out: ids, times, processes, sizes.
A recording is made once, by the program of its day, and kept for ever: see `test_golden`.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.acceptance.cli_process import cli
from tests.golden.stories import STORIES, Story

FOLDER = Path(__file__).parent / "recorded"
_VARIES = {
    "run_id", "at", "last_update", "owner", "claimed_at", "claimed_boottime", "journal_offset",
    "checksum", "began_at", "seconds", "spent_s", "asked_at", "since", "begun_at", "busy_since",
    "busy_ms", "ended_at", "log", "previous", "document", "size", "digest_of_journal",
}  # fmt: skip
_ADDED = {"cache_read_tokens": 0}
"""Fields that earlier versions did not write, as they read what has none."""
_LATER = {"evidence", "recent_costs", "incomplete", "unpriced"}
"""Facts that no earlier version has kept, or counted: an attempt that died cost nothing then."""
_QUOTING = {"error", "message"}
"""Texts that quote what a program said last, behind their first line; earlier ones did not."""
_OF_THIS_RUN = re.compile(
    r"(?<=\d)-[0-9a-f]{16}\b|(?<=marking-)[0-9a-f]{20}|process \d+ on \S+"
    r"|\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\b\d{4}-\d\d-\d\dT[\d:.]+Z?"
)
"""The ends of names that nobody can guess, digests of what has times, processes, ids, dates."""


def steady(value: Any) -> Any:
    """Return *value* without what differs between two runs."""
    if isinstance(value, dict):
        found = {
            key: steady(one.partition("\n")[0] if key in _QUOTING and isinstance(one, str) else one)
            for key, one in value.items()
            if key not in _VARIES | _LATER and (key not in _ADDED or one != _ADDED[key])
        }
        return {key: one for key, one in found.items() if (key, one) != ("usage", {})}
    if isinstance(value, list):
        return [steady(one) for one in value]
    return _OF_THIS_RUN.sub("", value) if isinstance(value, str) else value


def played(folder: Path, commands: Sequence[str]) -> Iterator[tuple[str, int, int, str]]:
    """Give *commands* in *folder*; yield each with its expected and its real exit code."""
    for command in commands:
        code, _, rest = command.partition(":")
        expected, words = (int(code), rest) if rest and code.lstrip("-").isdigit() else (0, command)
        ended = cli(folder, *shlex.split(words))
        yield words, expected, ended.returncode, ended.stderr + ended.stdout


def journals(folder: Path) -> dict[str, list[Any]]:
    """Return the steady records of each run of *folder*."""
    return {
        path.relative_to(folder).as_posix(): [
            steady(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()
        ]
        for path in sorted(folder.glob("sync/**/journal*.jsonl"))
    }


def kept(folder: Path) -> dict[str, str]:
    """Return the texts of what the run of *folder* has kept, by path."""
    found = {}
    for top in ("sync", "ran"):
        for path in sorted((folder / top).rglob("*")):
            if path.is_file() and not path.name.endswith(".lock"):
                with contextlib.suppress(UnicodeDecodeError):
                    found[path.relative_to(folder).as_posix()] = path.read_text(encoding="utf-8")
    return found


def bring_back(files: dict[str, str], folder: Path) -> None:
    """Write what `kept` has returned."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        (folder / name).write_text(text, encoding="utf-8")


def record(story: Story) -> dict[str, Any]:
    """Return what *story* leaves behind, after its cut and at its end."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "project"
        folder.mkdir()
        story.make(folder)
        for half in (story.commands[: story.cut], story.commands[story.cut :]):
            for words, expected, code, text in played(folder, half):
                assert code == expected, f"{words}: {code} and not {expected}: {text}"
            if half == story.commands[: story.cut]:
                cut = kept(folder)
        return {"cut": cut, "end": kept(folder), "journals": journals(folder)}


def main() -> None:
    """Record the stories that are named, or all that were not."""
    FOLDER.mkdir(exist_ok=True)
    for name in sys.argv[1:] or STORIES:
        path = FOLDER / f"{name}.json"
        if not path.exists():
            path.write_text(json.dumps(record(STORIES[name]), indent=0) + "\n", encoding="utf-8")
            print(name, path.stat().st_size)


if __name__ == "__main__":
    main()
