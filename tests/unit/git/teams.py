"""Places for tasks in repositories of tests, and what has to hold after whatever happened."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from sequencer.engine.workspace import AttemptFolder
from sequencer.executors.redaction import Redaction
from sequencer.model.graph.graph import Node, NodeKind
from sequencer.model.graph.task import TaskTraits
from sequencer.plugins.git.code.checkout import Checkout, ClosedFolder
from sequencer.plugins.git.code.task_folders import OwnTaskFolder, SharedTaskFolder, TaskFolders
from sequencer.plugins.git.code.tree import Folders
from sequencer.plugins.git.process import Git
from sequencer.project.store_requests import EVERYTHING
from tests.unit.git.clones import ENVIRONMENT, everything, first_commit, git, said

RUN_ID = "01run"
IGNORED = "*.tmp\nignored/\nsync/\nlogs/\n"


def project(folder: Path, files: dict[str, str] | None = None) -> Path:
    """Make a repository whose run is ignored, as `sequencer init` does it."""
    return first_commit(folder, {"README.md": "read me\n", ".gitignore": IGNORED} | (files or {}))


def folders(folder: Path, below: str = "") -> Folders:
    home = folder / below
    return Folders(home, home / "sync" / "state.json", home / "logs")


def workplaces(
    folder: Path, run: str | None = None, below: str = "", **options: Any
) -> TaskFolders:
    git = options.pop("git", None) or Git(folder, ENVIRONMENT, allowed=EVERYTHING)
    redaction = Redaction(["hunter2-hunter2"])
    return TaskFolders(Checkout(folders(folder, below), git), run, redaction, **options)


def checkout_at(folder: Path) -> Checkout:
    return Checkout(folders(folder), Git(folder, ENVIRONMENT))


def placed(
    places: TaskFolders, task: str, token: int, subject: str = "", **traits: bool
) -> OwnTaskFolder | SharedTaskFolder:
    """Return where *task* works; it writes in a worktree unless *traits* say something else."""
    chosen = TaskTraits.model_validate({"worktree": True} | traits)
    node = Node.model_construct(id=task, kind=NodeKind.AGENT, label=subject, task=chosen)
    shared = partial(AttemptFolder, places.trees.checkout.folders.project)
    return places.open(node, token, RUN_ID, shared, is_first=True)


def opened(
    places: TaskFolders, task: str = "implement", token: int = 1, subject: str = "Add the thing"
) -> OwnTaskFolder:
    """Return a worktree for *task*."""
    place = placed(places, task, token, subject=subject)
    assert isinstance(place, OwnTaskFolder)
    return place


def closed(place: OwnTaskFolder, *, is_accepted: bool = True) -> ClosedFolder:
    return place.end(is_accepted=is_accepted, wait_for_turn=at_once)


def at_once() -> None:
    """Wait for no turn."""


def worked(
    places: TaskFolders, work: Callable[[Path], object], task: str = "implement", token: int = 1
) -> ClosedFolder:
    """Let *work* be done in a worktree, and be accepted."""
    place = opened(places, task, token)
    work(place.cwd)
    return closed(place)


def branches(folder: Path) -> list[str]:
    """Return the branches of tasks."""
    told = said(folder, "for-each-ref", "--format=%(refname:short)", "refs/heads/sequencer-team")
    return told.splitlines()


def remains(folder: Path, below: str = "") -> list[str]:
    """Return what is left of worktrees: folders and notes of ours, and what git has of them."""
    own = folder / below / "sync" / "worktrees"
    found = [path.name for path in own.iterdir()] if own.is_dir() else []
    kept = folder / ".git" / "worktrees"
    found += [f".git/{path.name}" for path in kept.iterdir()] if kept.is_dir() else []
    return sorted(name for name in found if name != ".gitignore")


def is_sound(folder: Path) -> bool:
    """Return whether git finds nothing wrong in the repository, and nothing begun."""
    git(folder, "fsck", "--connectivity-only", "--no-dangling")
    return not [
        name
        for name in ("MERGE_HEAD", "index.lock", "HEAD.lock")
        if os.path.lexists(folder / ".git" / name)
    ]


def users(folder: Path) -> dict[str, str]:
    """Return a digest of each file that is the user's, the index included."""
    own = ("sync/worktrees/", ".git/sequencer-", ".git/worktrees/", ".git/COMMIT_EDITMSG")
    ours = (".git/refs/heads/sequencer-team", ".git/logs/refs/heads/sequencer-team")
    return {n: state for n, state in everything(folder).items() if not n.startswith((*own, *ours))}


def on_disk(folder: Path) -> dict[str, str]:
    """Return mode and content of each file below *folder*, as a commit of them would have it."""
    found = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = f"120000 {path.readlink()}"
        elif path.is_file() and name != ".git":
            mode = "100755" if path.stat().st_mode & 0o100 else "100644"
            found[name] = f"{mode} {os.fsdecode(path.read_bytes())}"
    return found
