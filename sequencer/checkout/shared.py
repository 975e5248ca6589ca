"""The checkout that the tasks of a team share: its commit, its locks, and how it moves forward.

Two locks keep processes and threads apart, of any run: one of the repository, for adding and
removing worktrees, and one of this checkout, for what is merged into it. Not promised: that
nobody else's git works here meanwhile; git itself compares once more before it writes.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

from filelock import FileLock, Timeout

from sequencer.checkout.status import Status, parse
from sequencer.checkout.tree import Folders, WorkTree
from sequencer.store.git.command import Git, GitFailed
from sequencer.store.git.objects import Objects

PATIENCE_S = 3600.0
"""Killed while it writes files, git would leave half of them and a locked index."""
REPOSITORY_LOCK, MERGE_LOCK = "sequencer-worktrees.lock", "sequencer-merge.lock"
LOCK_WAIT_S = 600.0
INDEX_WAIT_S = 10.0
"""How long somebody else's git may work on the index of the checkout."""
QUIET = (
    *("commit.gpgSign=false", "rerere.enabled=false", "submodule.recurse=false"),
    *("merge.autoStash=false", "merge.verifySignatures=false", "core.safecrlf=false"),
    *("advice.addEmbeddedRepo=false", "advice.detachedHead=false", "log.showSignature=false"),
)
"""What a user may have configured for work by hand, and would stop, ask or print more here."""
_POLL_S = 0.02
_MODE = 0o644
_NAME, _ADDRESS = "sequencer", "sequencer@localhost"


class Checkout:
    """The work tree of a project, as a team sees it."""

    def __init__(
        self,
        folders: Folders,
        environment: Mapping[str, str] | None = None,
        allowed: Mapping[str, str] | None = None,
    ) -> None:
        """Look at the work tree around ``folders.project``; nothing is started before.

        *allowed*: see `Git`.
        """
        self.folders = folders
        self.environment = environment
        self.allowed = allowed
        git = Git(folders.project, environment, allowed=allowed)
        self.tree = WorkTree(folders, Objects(git), environment, allowed)

    @cached_property
    def git(self) -> Git:
        """Return what runs git at the top of the checkout, for as long as it takes."""
        return Git(self.tree.top, self.environment, timeout_s=PATIENCE_S, allowed=self.allowed)

    @cached_property
    def common_dir(self) -> Path:
        """Return where the repository is that all its worktrees share."""
        told = self.git.run("rev-parse", "--git-common-dir").stdout.removesuffix(b"\n")
        return self.tree.top / os.fsdecode(told)

    @cached_property
    def identity(self) -> dict[str, str]:
        """Return the variables without which git would not know who commits; mostly none."""
        try:
            for name in ("GIT_AUTHOR_IDENT", "GIT_COMMITTER_IDENT"):
                self.git.run("var", name, settings=("user.useConfigOnly=true",))
        except GitFailed:
            people = ("AUTHOR", "COMMITTER")
            names = {f"GIT_{person}_NAME": _NAME for person in people}
            return names | {f"GIT_{person}_EMAIL": _ADDRESS for person in people}
        return {}

    def commit(self) -> str | None:
        """Return the commit that is checked out; None: there is none yet."""
        done = self.git.run("rev-parse", "--verify", "--quiet", "HEAD^{commit}", accepts=(0, 1))
        return done.stdout.decode("ascii").strip() or None

    def branch(self) -> str:
        """Return the branch that is checked out; empty: none is."""
        told = self.git.text("symbolic-ref", "--quiet", "HEAD", accepts=(0, 1))
        return told.removeprefix("refs/heads/")

    def tracked_changes(self) -> Status:
        """Return what differs from the commit, without files that git does not know."""
        flags = ("--porcelain=v2", "--branch", "-z", "--untracked-files=no", "--no-renames")
        return parse(self.git.run("status", *flags).stdout)

    def contains(self, commit: str, ancestor: str) -> bool:
        """Return whether *ancestor* is *commit* or behind it."""
        argv = ("merge-base", "--is-ancestor", ancestor, commit)
        return commit == ancestor or self.git.run(*argv, accepts=(0, 1)).code == 0

    # --- locks ---------------------------------------------------------------------

    def repository_lock(self) -> contextlib.AbstractContextManager[None]:
        """Keep other processes from adding or removing worktrees while the block runs.

        git's own locks fail where they should wait.
        """
        return self._locked(self.common_dir / REPOSITORY_LOCK)

    def merge_lock(self) -> contextlib.AbstractContextManager[None]:
        """Keep other processes from merging into this checkout while the block runs."""
        return self._locked(self.tree.git_dir / MERGE_LOCK)

    @contextlib.contextmanager
    def _locked(self, path: Path) -> Iterator[None]:
        # A new object each time: one that is held already would let its own thread in again.
        lock = FileLock(
            path, timeout=LOCK_WAIT_S, mode=_MODE, poll_interval=_POLL_S, fallback_to_soft=False
        )
        try:
            lock.acquire()
        except Timeout:
            hint = "another process works there; start again when it has ended"
            raise self.tree.refused(f"is kept locked by {path}", hint) from None
        try:
            yield
        finally:
            lock.release()

    # --- moving --------------------------------------------------------------------

    def forward(self, commit: str) -> GitFailed | None:
        """Fast-forward to *commit*, or return what git says against it.

        Nothing that no commit holds is overwritten, not even files that git ignores.
        """
        ends = time.monotonic() + INDEX_WAIT_S
        while failed := self._locked_ref() or self._forwarded(commit):
            if ".lock': File exists" not in failed.stderr or time.monotonic() > ends:
                return failed
            time.sleep(_POLL_S)
        return None

    def _forwarded(self, commit: str) -> GitFailed | None:
        # Some of them against what a user has set for merges by hand into this branch.
        flags = ("--no-squash", "--commit", "--ff-only", "--quiet", "--no-stat")
        try:
            self.git.run("merge", *flags, "--no-overwrite-ignore", commit, settings=QUIET)
        except GitFailed as failed:
            return failed
        return None

    def _locked_ref(self) -> GitFailed | None:
        """Return what git would say of a locked HEAD, if only after it had changed the files."""
        locks = [self.tree.git_dir / "HEAD.lock"]
        if branch := self.branch():
            locks.append(self.common_dir / "refs" / "heads" / f"{branch}.lock")
        found = next((path for path in locks if os.path.lexists(path)), None)
        text = f"fatal: Unable to create '{found}': File exists."
        return None if found is None else GitFailed(("merge",), 128, text)

    def in_the_way(self, before: str, commit: str) -> tuple[str, ...]:
        """Return the files that a step from *before* to *commit* would overwrite here."""
        told = self.git.run("diff", "--name-status", "-z", "--no-renames", before, commit).stdout
        fields = told.decode("utf-8", "surrogateescape").split("\0")
        kinds = dict(zip(fields[1::2], fields[::2], strict=False))
        changed = {entry.path for entry in self.tree.status().entries}
        found = []
        for path, kind in kinds.items():
            # Of what is new there, that git ignores it here is no reason to write over it.
            is_there = kind == "A" and os.path.lexists(self.tree.top / path)
            if path in changed or is_there or self._is_below_file(path, changed):
                found.append(path)
        return tuple(sorted(found))

    def _is_below_file(self, path: str, changed: set[str]) -> bool:
        """Return whether a changed path is a folder of *path*, or something below it."""
        return any(
            path.startswith(f"{one.rstrip('/')}/") or one.startswith(f"{path}/") for one in changed
        )
