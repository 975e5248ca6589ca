"""Writes down which commit a package is built from. All else about it is in pyproject.toml."""

from __future__ import annotations

import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent
NAME = "sequencer/built.txt"


def commit() -> str | None:
    """Return the commit of this folder with its date; None if the folder is not a clone."""

    def git(*arguments: str) -> str:
        command = ["git", *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S603
        return done.stdout.strip()

    try:
        # An unpacked source distribution may be in a repository that is not its own.
        if Path(git("rev-parse", "--show-toplevel")).resolve() != ROOT:
            return None
        changed = ", changed" if git("status", "--porcelain", "--untracked-files=no") else ""
        return git("log", "-1", "--abbrev=12", "--format=%h of %cs") + changed
    except (OSError, subprocess.CalledProcessError):
        return None


def write_commit(folder: str) -> None:
    """Put the commit into the package below *folder*; what a source distribution says stays."""
    if (found := commit()) is not None:
        Path(folder, NAME).write_text(f"{found}\n", encoding="ascii")


class BuildWithCommit(build_py):
    """Builds the package; one that is linked to its sources belongs to no commit."""

    def run(self) -> None:
        """Build it, and put the commit into what was built."""
        super().run()
        if not self.editable_mode:
            write_commit(self.build_lib)


class SourcesWithCommit(sdist):
    """Packs the sources, from which a package can be built without git."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Copy the *files*, and put the commit beside them."""
        super().make_release_tree(base_dir, files)
        write_commit(base_dir)


setup(cmdclass={"build_py": BuildWithCommit, "sdist": SourcesWithCommit})
