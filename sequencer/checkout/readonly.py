"""Notices that a task which only reads has changed the shared checkout, by two looks at it.

What differs from the commit is compared by content, so merges of other tasks, which leave
that alone, are no changes. Not promised: to know who it was, to see a change that was undone,
or a file that git ignores. Without a repository only sizes and times are looked at.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

from sequencer.checkout.patterns import Patterns
from sequencer.checkout.shared import QUIET, Checkout
from sequencer.checkout.status import ARGUMENTS, Entry, parse
from sequencer.checkout.tree import RUN_FILES
from sequencer.checkout.worktree import BRANCHES, FOLDER
from sequencer.errors import SequencerError
from sequencer.store.git.command import GitFailed

MAX_FILES = 20_000
"""Of one look."""
MAX_HASHED_BYTES = 64 * 1024 * 1024
"""Of one look; what is beyond is known by its size and times."""
TRAILER = "Sequencer-Token:"
_OWN_BRANCHES = ("sequencer/", "sequencer-beats/", "sequencer-kept/", f"{BRANCHES}/")
_PIECE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Look:
    """What a checkout was like."""

    commit: str | None
    branch: str | None
    files: Mapping[str, str]
    """Path -> what tells two states of it apart: of what differs from the commit, or of all."""
    heads: Mapping[str, str] = field(default_factory=dict)
    """Branch -> its commit."""
    is_partial: bool = False
    is_walk: bool = False
    """git was not asked, or has not answered."""

    @property
    def notices(self) -> tuple[str, ...]:
        """Return what a person should know about the look."""
        if not self.is_partial:
            return ()
        return (f"only {MAX_FILES:,} files are watched for changes by tasks that only read",)


class Watch:
    """Looks at one checkout."""

    def __init__(self, checkout: Checkout, max_files: int = MAX_FILES) -> None:
        """Look at *checkout*, at no more than *max_files*."""
        self._checkout = checkout
        self._max_files = max_files

    def look(self) -> Look:
        """Return what is there now: two processes of git, or a walk where there is no repository.

        Not while a merge writes there.
        """
        try:
            with self._checkout.merge_lock():
                return self._look()
        except (SequencerError, GitFailed, OSError):
            return self._walked()

    def _look(self) -> Look:
        git = self._checkout.git
        status = parse(git.run(*ARGUMENTS).stdout)
        told = git.run("for-each-ref", "--format=%(refname:lstrip=2) %(objectname)", "refs/heads")
        heads = dict(
            line.rsplit(" ", 1)
            for line in told.stdout.decode("utf-8", "surrogateescape").splitlines()
            if not line.startswith(_OWN_BRANCHES)
        )
        tree = self._checkout.tree
        dirty = [entry for entry in status.entries if not tree.is_own(entry.path)]
        left, files = MAX_HASHED_BYTES, {}
        for entry in dirty[: self._max_files]:
            state, used = _state(tree.top / entry.path, left)
            left -= used
            files[entry.path] = f"{_kind(entry)} {state}"
        is_partial = len(dirty) > self._max_files
        return Look(status.commit, status.branch, files, heads, is_partial)

    # --- without a repository ------------------------------------------------------

    def _walked(self) -> Look:
        files: dict[str, str] = {}
        for path in self._walk(self._checkout.folders.project):
            if len(files) >= self._max_files:
                return Look(None, None, files, is_partial=True, is_walk=True)
            files[os.path.relpath(path, self._checkout.folders.project)] = _times(path)
        return Look(None, None, files, is_walk=True)

    def _walk(self, folder: Path) -> Iterator[str]:
        folders = self._checkout.folders
        state = folders.state_file.parent
        own = {folders.logs, *folders.others, *([state] if state != folders.project else [])}
        left_out = {os.path.abspath(path) for path in (*own, state / FOLDER)}  # noqa: PTH100
        name = folders.state_file.name
        is_beside = state == folders.project
        written = Patterns((*RUN_FILES, name, f"{name}.*") if is_beside else ())
        waiting = [os.path.abspath(folder)]  # noqa: PTH100 - links stay as they are
        while waiting:
            try:
                found = sorted(os.scandir(waiting.pop()), key=lambda one: one.name)
            except OSError:
                continue
            for one in found:
                below = os.path.relpath(one.path, folder)
                if one.path in left_out or one.name == ".git" or written.match(below):
                    continue
                if one.is_dir(follow_symlinks=False):
                    waiting.append(one.path)
                else:
                    yield one.path

    # --- comparing -----------------------------------------------------------------

    def changes_between(self, before: Look, after: Look) -> tuple[str, ...]:
        """Return what has changed from *before* to *after*, each path with how.

        Merges of tasks have moved the branch, and are no changes; new branches neither.
        """
        if before.is_walk != after.is_walk:
            return ()
        found = list(_changed_files(before, after))
        if before.commit != after.commit and not self._has_merged(before, after):
            name = f"branch {after.branch!r}" if after.branch else "HEAD"
            found.append(f"{name} (moved to {(after.commit or 'nothing')[:12]})")
        if before.branch != after.branch:
            found.append(f"branch {after.branch!r} (checked out)" if after.branch else "HEAD")
        for name, commit in before.heads.items():
            if name not in after.heads:
                found.append(f"branch {name!r} (removed)")
            elif after.heads[name] != commit and name != after.branch:
                found.append(f"branch {name!r} (moved to {after.heads[name][:12]})")
        return tuple(found)

    def _has_merged(self, before: Look, after: Look) -> bool:
        """Return whether all that is new on the branch are merges of tasks."""
        if before.commit is None or after.commit is None or before.branch != after.branch:
            return False
        argv = ("log", "--first-parent", "--format=%P%n%B%x00", "-n", "1000")
        try:
            span = f"{before.commit}..{after.commit}"
            told = self._checkout.git.run(*argv, span, settings=QUIET).stdout
        except GitFailed:
            return False
        commits = told.decode("utf-8", "replace").split("\0")[:-1]
        parents = [one.lstrip("\n").partition("\n")[0].split() for one in commits]
        is_ours = all(TRAILER in one for one in commits) and all(len(p) > 1 for p in parents)
        # Moved back and on again, there would be merges, too.
        return bool(parents) and is_ours and parents[-1][0] == before.commit


def _changed_files(before: Look, after: Look) -> Iterator[str]:
    for path in sorted(before.files.keys() | after.files.keys()):
        old, new = before.files.get(path), after.files.get(path)
        if old == new or ((before.is_partial or after.is_partial) and None in (old, new)):
            continue
        if before.is_walk:
            yield f"{path} ({'added' if old is None else 'removed' if new is None else 'changed'})"
        elif new is None:
            yield f"{path} (as in the commit)"
        else:
            yield f"{path} ({new.partition(' ')[0]})"


def _kind(entry: Entry) -> str:
    kind = str(entry.change)
    return f"{kind}-and-staged" if entry.is_staged else kind


def _state(path: Path, left: int) -> tuple[str, int]:
    """Return what tells the state of *path* from another, and how many bytes were read."""
    try:
        found = path.lstat()
        if stat.S_ISLNK(found.st_mode):
            return f"-> {path.readlink()}", 0
        if not stat.S_ISREG(found.st_mode):
            return "other", 0
        if found.st_size > left:
            return _times(path), 0
        digest = blake2b(digest_size=16)
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            while piece := file.read(_PIECE):
                digest.update(piece)
    except OSError:
        return "gone", 0
    return f"{found.st_mode & stat.S_IXUSR} {digest.hexdigest()}", found.st_size


def _times(path: str | Path) -> str:
    try:
        found = os.lstat(path)
    except OSError:
        return "gone"
    return f"{found.st_mtime_ns} {found.st_size} {found.st_ino}"
