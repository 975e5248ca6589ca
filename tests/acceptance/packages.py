"""Packages that are on the path of the program, as installed ones are, beside a project."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests import forked

ROOT = Path(__file__).parents[2]


class Packages:
    """A project, and a folder in which packages are installed."""

    def __init__(self, folder: Path) -> None:
        self.packages, self.project = folder / "packages", folder / "project"
        self.packages.mkdir(parents=True)
        self.project.mkdir()

    def package(self, name: str, points: Mapping[str, Mapping[str, str]], **modules: str) -> None:
        """Install *name*, which has *modules* and *points*: group -> name -> MODULE:OBJECT."""
        metadata = self.packages / f"{name.replace('-', '_')}-1.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        lines = []
        for group, entries in points.items():
            lines.append(f"[sequencer.{group}]")
            lines += [f"{entry} = {place}" for entry, place in entries.items()]
        (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
        for module, code in modules.items():
            (self.packages / f"{module}.py").write_text(code + "\n")

    def run(self, *words: str, code: int = 0, cwd: Path | None = None) -> str:
        return self.python("-m", "sequencer", *words, code=code, cwd=cwd)

    def findings(self, code: int = 0) -> list[dict[str, str]]:
        """Return what `check` finds."""
        said = self.run("check", "--json", code=code)
        found: list[dict[str, str]] = json.loads(said.splitlines()[0])["findings"]
        return [{**one, "where": one["where"] or "", "hint": one["hint"] or ""} for one in found]

    def python(self, *words: str, code: int = 0, cwd: Path | None = None) -> str:
        done = forked.run(
            [sys.executable, *words],
            cwd=cwd or self.project,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(self.packages)])},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert done.returncode == code, done.stderr
        return f"{done.stdout}{done.stderr}"
