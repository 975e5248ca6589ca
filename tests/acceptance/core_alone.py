"""A project whose program has only some of its plug-ins."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.forked import Forked

ROOT = Path(__file__).parents[2]
AGENT = """\
import os, pathlib, sys, time
text = sys.stdin.read()
with open("done.txt", "a") as file:
    file.write(os.environ["SEQUENCER_STEP"] + "\\n")
if "wait here" in text and not pathlib.Path("go").exists():
    pathlib.Path("started").touch()
    time.sleep(600)
print("Done.")
"""
AGENTS = """\
agent: {default: script}
agents: {script: {kind: command, argv: [%s, -IS, agent.py]}}
"""
FLOW = """\
# Ship

```mermaid
flowchart TD
  build[Build] --> fine{{Fine?}}
  fine -->|"yes"| ship[Ship]
  fine -->|"no"| build
```

### build
Build it

### fine
---
options: ["yes", "no"]
---
Ship it?

### ship
Ship it
"""
TASKS = """\
kind: team
tasks:
  - {id: first, subject: The first, text: Do it}
  - {id: second, subject: The second, text: Do it, blocked_by: [first]}
"""


class Here:
    """A project, and the program that is called in it."""

    def __init__(self, folder: Path, *packages: Path, off: frozenset[str] = frozenset()) -> None:
        self.folder, self._packages, self._off = folder, packages, off
        (folder / "prompts").mkdir(parents=True, exist_ok=True)
        (folder / "agent.py").write_text(AGENT)

    def disabling(self, off: frozenset[str]) -> Here:
        """Return the same project with other plug-ins disabled."""
        return Here(self.folder, *self._packages, off=off)

    def configure(self, text: str) -> None:
        switches = f"plugins: {{{', '.join(f'{name}: off' for name in sorted(self._off))}}}\n"
        agents = AGENTS % json.dumps(sys.executable)
        (self.folder / "orchestration.yaml").write_text(
            text + agents + (switches if self._off else "")
        )

    def prompts(self, *names: str) -> None:
        for name in names:
            (self.folder / f"prompts/{name}.md").write_text("Work.\n")

    def begin(self, *words: str) -> Forked:
        return Forked(
            [sys.executable, "-m", "sequencer", *words],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, self._packages))},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def begin_and_wait(self, *words: str) -> Forked:
        """Return a process whose agent waits, because its prompt says so."""
        called = self.begin(*words)
        while not (self.folder / "started").exists():
            assert called.poll() is None, called.communicate()[0]
            time.sleep(0.01)
        return called

    def call(self, *words: str, code: int = 0) -> str:
        called = self.begin(*words)
        said: str = called.communicate(timeout=60)[0]
        assert called.returncode == code, said
        return said

    @property
    def done(self) -> list[str]:
        return (self.folder / "done.txt").read_text().split()

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "sync/state.json").read_text())
        return found


def without(tmp_path: Path, removed: frozenset[str]) -> Path:
    """Return where a copy of the package is that lacks the plug-ins *removed*; never change it.

    It is beside *tmp_path*, for all tests of this process.
    """
    if not removed:
        return ROOT
    folder = tmp_path.parent / f"without-{'-'.join(sorted(removed))}"
    lacks = {str(ROOT / "sequencer/plugins" / name) for name in removed}

    def ignored(where: str, names: list[str]) -> set[str]:
        return {name for name in names if str(Path(where) / name) in lacks}

    if not folder.exists():
        shutil.copytree(ROOT / "sequencer", folder / "sequencer", ignore=ignored)
    return folder


def install(packages: Path, name: str, points: str, **modules: str) -> Path:
    """Install the package *name* with *points* and *modules*; return where its metadata is."""
    packages.mkdir(exist_ok=True)
    for module, code in modules.items():
        (packages / f"{module}.py").write_text(code)
    about = packages / f"{name.replace('-', '_')}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(points)
    return about


READING = ("status", "history", "log", "inbox", "clean")
"""Commands that read every run."""
