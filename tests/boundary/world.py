"""A machine in a folder: a person's home, a stranger's clone, and what belongs to neither.

Every program and every hook of the stranger's is a canary: run, it leaves a file with its
name. Everything outside of the clone is a decoy: whoever changes it is seen by `outside`,
and whoever opens a secret by its path.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SECRET = "decoy-0c5f2b7e91"  # noqa: S105 (nobody's)
"""Stands in each file that is nobody's business, and in the variables with tokens."""
FULL = ("id_rsa", "config", "notes.tmp", "5.tmp", "7", "1", "1.seen-abcdef01", "state.json")
"""Names that a sweep could take for its own, in each folder of a person's."""


class World:
    """The folders of one test, and the variables of the person who works there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clone = folder / "clone"
        self.home = folder / "home"
        self.temporary = folder / "tmp"
        self.strangers = folder / "outside"
        """Of other people and programs: nothing of it is ours to touch."""
        self.served = folder / "served"
        """Repositories that a trusted project may push to."""
        self.secrets = self.strangers / "secrets"
        self.canaries = folder / "canaries"
        for made in (
            self.clone,
            self.home,
            self.temporary,
            self.secrets,
            self.canaries,
            self.served,
        ):
            made.mkdir(parents=True)
        self._fill()

    def _fill(self) -> None:
        text = f"{SECRET}\n"
        for name in ("id_rsa", "token.json", "answer.txt", "flow.md"):
            (self.secrets / name).write_text(text)
        for place in (".ssh/id_rsa", ".netrc", ".git-credentials"):
            path = self.home / place
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        (self.home / ".gitconfig").write_text("[user]\n\tname = Me\n\temail = me@example.org\n")

    def full(self, name: str) -> Path:
        """Return a folder of somebody's, full of files that look like our own."""
        made = self.secrets / name
        if not made.exists():
            made.mkdir()
            for file in FULL:
                (made / file).write_text(f"{SECRET}\n")
            for folder in ("0-1", "3-4", "default"):
                (made / folder).mkdir()
                (made / folder / "output.txt").write_text(f"{SECRET}\n")
        return made

    def evil(self, name: str) -> Path:
        """Return a program that leaves the canary *name*, and fails."""
        path = self.strangers / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n: > {shlex.quote(str(self.canaries / name))}\nexit 1\n")
        path.chmod(0o755)
        return path

    def evil_python(self, name: str) -> str:
        """Return a line of Python that leaves the canary *name*."""
        return f"open({str(self.canaries / name)!r}, 'w').close()\n"

    def sprung(self) -> list[str]:
        """Return the canaries that there are, and remove them."""
        found = sorted(path.name for path in self.canaries.iterdir())
        for name in found:
            (self.canaries / name).unlink()
        return found

    def environment(self, **variables: str) -> dict[str, str]:
        """Return what the person's processes get; nobody is trusted without a word."""
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "TMPDIR": str(self.temporary),
            "LANG": "C.UTF-8",
            "GIT_CONFIG_NOSYSTEM": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": str(ROOT),
            **dict.fromkeys(("GITHUB_TOKEN", "LINEAR_TOKEN", "MY_TOKEN", "MY_API_KEY"), SECRET),
            **variables,
        }

    def outside(self) -> dict[str, tuple[object, ...]]:
        """Return what there is outside of the clone, and in which state."""
        return dict(_states(self.strangers)) | dict(_states(self.home / ".ssh"))


def _states(folder: Path) -> Iterator[tuple[str, tuple[object, ...]]]:
    for path in sorted(folder.rglob("*")):
        found = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(found.st_mode) else b""
        # A folder's own time tells of names that came and went.
        yield str(path), (found.st_mode, found.st_ino, found.st_mtime_ns, content)


def differences(
    before: dict[str, tuple[object, ...]], after: dict[str, tuple[object, ...]]
) -> list[str]:
    """Return in words what has changed between two answers of `World.outside`."""
    gone = [f"{path} was removed" for path in before if path not in after]
    new = [f"{path} was made" for path in after if path not in before]
    return [
        *gone,
        *new,
        *(
            f"{path} was changed"
            for path in before
            if after.get(path, before[path]) != before[path]
        ),
    ]
