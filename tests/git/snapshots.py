"""Everything of a clone that belongs to its user, byte by byte."""

from __future__ import annotations

import os
import re
from pathlib import Path

from tests.clones import git

OURS = ("sync", "logs")
"""Folders of a run in a project."""
PRIVATE = ("index", "HEAD", "config", "ORIG_HEAD", "MERGE_HEAD", "MERGE_MSG", "rebase-merge")
"""Of all below .git: what a person's commands rest on."""


def snapshot(clone: Path) -> dict[str, object]:
    """Return the work tree, the index, HEAD, branches, stash, reflogs and what is under way."""
    git_dir = clone / ".git"
    if git_dir.is_file():
        git_dir = clone / git_dir.read_text().split()[1]
    found: dict[str, object] = {"work": _files(clone, {".git", *OURS})}
    found |= {name: _files(git_dir / name, set()) for name in (*PRIVATE, "hooks")}
    refs = git(clone, "for-each-ref", *("refs/heads", "refs/tags", "refs/stash", "refs/remotes"))
    found["refs"] = [line for line in refs.splitlines() if not _is_of_run(line.split()[-1])]
    found["logs"] = {
        name: told for name, told in _files(git_dir / "logs", set()).items() if not _is_of_run(name)
    }
    return found


def _is_of_run(ref: str) -> bool:
    """Return whether *ref* is our own, or git's note of where a push has moved our branches."""
    return (
        re.match(r"refs/(worktree(/sequencer)?|remotes/[^/]+/sequencer(-beats)?)(/|$)", ref)
        is not None
    )


def _files(top: Path, left_out: set[str]) -> dict[str, object]:
    """Return mode, time and content of *top* and of all below it."""
    if not top.is_dir():
        return {"": _told(top)} if os.path.lexists(top) else {}
    found: dict[str, object] = {}
    for folder, folders, names in os.walk(top):
        out = left_out if Path(folder) == top else set()
        folders[:] = [name for name in folders if name not in out]
        for name in (*folders, *(name for name in names if name not in out)):
            path = Path(folder) / name
            found[str(path.relative_to(top))] = _told(path)
    return found


def _told(path: Path) -> tuple[object, ...]:
    status = path.lstat()
    if path.is_symlink():
        return (status.st_mode, path.readlink())
    content = None if path.is_dir() else path.read_bytes()
    return (status.st_mode, None if path.is_dir() else status.st_mtime_ns, content)
