"""A stranger's project in the clone, and the table into which each trap puts itself."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tests import forked
from tests.boundary.world import World

LARGE = "x" * 6000
"""An answer that does not fit into the journal."""
AGENT = f"import sys; sys.stdin.read(); print('an answer ' + {LARGE!r})"


class Clones:
    """Makes projects in a world, each with a run that has begun."""

    def __init__(self, world: World) -> None:
        self.world = world

    @cached_property
    def _template(self) -> Path:
        folder = self.world.folder / "template"
        made = Project(self.world, folder)
        (folder / "prompts").mkdir(parents=True)
        for step in ("supervisor", "main"):
            (folder / "prompts" / f"{step}.md").write_text(f"Do the work of {step}.\n")
        made.document["agents"]["script"]["argv"] = [sys.executable, "-IS", "-c", AGENT]
        made.write()
        forked.run(
            [sys.executable, "-m", "sequencer", "run", "--max-steps", "3"],
            cwd=folder,
            env=self.world.environment(SEQUENCER_TRUST="all"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=120,
        ).check_returncode()
        return folder

    def make(self, name: str, *traps: Trap) -> Project:
        """Return the project *name*, with *traps* in it."""
        folder = self.world.clone / name
        shutil.copytree(self._template, folder)
        project = Project(self.world, folder)
        for trap in traps:
            trap.build(project)
        project.write()
        return project


class Project:
    """One project; what stands in ``document`` becomes its orchestration.yaml."""

    def __init__(self, world: World, folder: Path) -> None:
        self.world, self.folder = world, folder
        self.sync = folder / "sync"
        self.workplace = folder
        """Where the commands are called."""
        self.document: dict[str, Any] = {
            "workflow": {"name": "standard"},
            "agent": {"default": "script"},
            "agents": {"script": {"kind": "command", "argv": [str(world.evil("agent"))]}},
        }
        """What `write` makes the orchestration.yaml of."""
        self.has_own_file = False
        """A trap has put something in its place."""

    def write(self) -> None:
        if not self.has_own_file:
            path = self.folder / "orchestration.yaml"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(self.document, indent=1))

    def link(self, name: str, target: Path) -> None:
        """Put a link to *target* in the place of *name*."""
        path = self.folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)

    def git(self, *arguments: str) -> str:
        """Run git as the stranger did, before the clone was made."""
        done = subprocess.run(
            ["git", *arguments],
            cwd=self.folder,
            env=self.world.environment(),
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        return done.stdout.strip()


@dataclass(frozen=True, slots=True)
class Trap:
    """One thing that a stranger can prepare."""

    name: str
    build: Callable[[Project], None]
    codes: tuple[int, ...] = ()
    """How a step ends if the project is trusted; nothing: that is not tried."""
    looks: tuple[tuple[str, ...], ...] = ()
    """Commands that are for this trap in particular."""
    names: str = ""
    """What a refusal to act tells the person of it."""


TRAPS: dict[str, Trap] = {}
"""Each trap by its name."""


def trap(
    name: str,
    *,
    codes: tuple[int, ...] = (),
    looks: tuple[tuple[str, ...], ...] = (),
    names: str = "",
) -> Callable[[Callable[[Project], None]], Callable[[Project], None]]:
    """Put what is decorated into `TRAPS`."""

    def keep(build: Callable[[Project], None]) -> Callable[[Project], None]:
        add(Trap(name, build, codes, looks, names))
        return build

    return keep


def add(new: Trap) -> None:
    """Put *new* into `TRAPS`."""
    assert new.name not in TRAPS, f"two traps are called {new.name}"
    TRAPS[new.name] = new
