"""The checkout that the tasks of a team share: its locks, merges into it, and looks for changes.

Two locks keep processes and threads apart, of any run: one of the repository, for adding and
removing worktrees, and one of this checkout, for what is merged into it. A merge is made in the
worktree of its task; only a fast-forward touches the checkout, which holds the whole of it
afterwards or nothing. Two looks find what a task that only reads has changed.

Not promised: that nobody else's git works here meanwhile (git itself compares once more before it
writes); that what fits together line by line works; to know who has changed a file, or to see a
change that was undone, or of a file that git ignores.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct, field

from sequencer.engine.attempt import Leftovers
from sequencer.errors import SequencerError, command, typed_command
from sequencer.plugins.git.code.tree import (
    LOCK_POLL_S,
    RUN_FILES,
    Folders,
    Patterns,
    StatusEntry,
    TreeStatus,
    WorkTree,
    listed,
    parse_status,
    status_of,
)
from sequencer.plugins.git.code.worktrees import BRANCHES, FOLDER, RUN_BRANCHES, TRAILER, Worktree
from sequencer.plugins.git.process import Git, GitFailed
from sequencer.plugins.git.state.objects import Objects

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
_NAME, _ADDRESS = "sequencer", "sequencer@localhost"


class Checkout(WorkTree):
    """The work tree of a project, as a team sees it."""

    called = "the checkout"
    """In messages."""
    elsewhere = ""
    """The path from the project's folder; empty: the project's folder is in this one."""

    def __init__(self, folders: Folders, git: Git) -> None:
        """Look with *git* at the work tree around ``folders.project``."""
        super().__init__(folders, Objects(git))
        self.project_git = git

    def ensure_in_place(self) -> None:
        """Check that the folder is still the same work tree.

        Raises:
            WorkTreeRefused: it is not.
        """

    @cached_property
    def git(self) -> Git:
        """Return what runs git at the top, for as long as it takes."""
        return self.patient_git

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

    def kept_on(self, worktree: Worktree) -> str:
        """Return in words where the work of *worktree* is."""
        return f"its work is on branch {worktree.branch}, and none of it is in {self.called}"

    def by_hand(self, worktree: Worktree) -> str:
        """Return the command that merges the work of *worktree*."""
        return self.typed("merge", worktree.branch)

    def typed(self, *argv: str) -> str:
        """Return ``git ARGV`` for this work tree, as a person types it in the project's folder."""
        return typed_command("git", *(["-C", self.elsewhere] if self.elsewhere else []), *argv)

    def commit(self) -> str | None:
        """Return the commit that is checked out; None: there is none yet."""
        done = self.git.run("rev-parse", "--verify", "--quiet", "HEAD^{commit}", accepts=(0, 1))
        return done.stdout.decode("ascii").strip() or None

    def checked_out(self) -> str:
        """Return the branch that is checked out; empty: none is."""
        told = self.git.text("symbolic-ref", "--quiet", "HEAD", accepts=(0, 1))
        return told.removeprefix("refs/heads/")

    def tracked_changes(self) -> TreeStatus:
        """Return what differs from the commit, without files that git does not know."""
        flags = ("--porcelain=v2", "--branch", "-z", "--untracked-files=no", "--no-renames")
        return parse_status(self.git.run("status", *flags).stdout)

    def line_of(self, span: str, most: int) -> list[tuple[list[str], str]]:
        """Return parents and message of the commits in *span*, along first parents, newest first.

        Raises:
            GitFailed: git can't tell.
        """
        argv = ("log", "--first-parent", "--format=%P%n%B%x00", "-n", str(most), span)
        told = self.git.run(*argv, settings=QUIET).stdout.decode("utf-8", "replace")
        commits = (one.lstrip("\n").partition("\n") for one in told.split("\0")[:-1])
        return [(parents.split(), message) for parents, _, message in commits]

    # --- locks ---------------------------------------------------------------------

    def repository_lock(self) -> contextlib.AbstractContextManager[None]:
        """Keep other processes from adding or removing worktrees while the block runs.

        git's own locks fail where they should wait.
        """
        return self._locked(self.common_dir / REPOSITORY_LOCK)

    def merge_lock(self) -> contextlib.AbstractContextManager[None]:
        """Keep other processes from merging into this checkout while the block runs."""
        return self._locked(self.git_dir / MERGE_LOCK)

    def _locked(self, path: Path) -> contextlib.AbstractContextManager[None]:
        hint = "another process is working there; start again when it has ended"
        return self.locked(path, LOCK_WAIT_S, hint)

    # --- moving --------------------------------------------------------------------

    def move_to(self, commit: str) -> GitFailed | None:
        """Fast-forward to *commit*, or return what git says against it.

        Nothing that no commit holds is overwritten, not even files that git ignores.
        """
        ends = time.monotonic() + INDEX_WAIT_S
        while failed := self._locked_ref() or self._forwarded(commit):
            if ".lock': File exists" not in failed.stderr or time.monotonic() > ends:
                return failed
            time.sleep(LOCK_POLL_S)
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
        locks = [self.git_dir / "HEAD.lock"]
        if branch := self.checked_out():
            locks.append(self.common_dir / "refs" / "heads" / f"{branch}.lock")
        found = next((path for path in locks if os.path.lexists(path)), None)
        text = f"fatal: Unable to create '{found}': File exists."
        return None if found is None else GitFailed(("merge",), 128, text)

    def in_the_way(self, before: str, commit: str) -> tuple[str, ...]:
        """Return the files that a step from *before* to *commit* would overwrite here."""
        told = self.git.run("diff", "--name-status", "-z", "--no-renames", before, commit).stdout
        fields = told.decode("utf-8", "surrogateescape").split("\0")
        kinds = dict(zip(fields[1::2], fields[::2], strict=False))
        changed = {entry.path for entry in self.status().entries}
        found = []
        for path, kind in kinds.items():
            # Of what is new there, that git ignores it here is no reason to write over it.
            is_there = kind == "A" and os.path.lexists(self.top / path)
            # Or a changed path is a folder of it, or something below it.
            is_beside = any(
                path.startswith(f"{one.rstrip('/')}/") or one.startswith(f"{path}/")
                for one in changed
            )
            if path in changed or is_there or is_beside:
                found.append(path)
        return tuple(sorted(found))


MAX_FILES = 20_000
"""Of one look."""
MAX_HASHED_BYTES = 64 * 1024 * 1024
"""Of one look; what is beyond is known by its size and times."""
_OWN_BRANCHES = (
    "sequencer/",
    "sequencer-beats/",
    "sequencer-kept/",
    f"{BRANCHES}/",
    f"{RUN_BRANCHES}/",
)
_PIECE = 1024 * 1024


class CheckoutLook(Struct, frozen=True):
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


class CheckoutWatch:
    """Looks at one checkout."""

    def __init__(self, checkout: Checkout) -> None:
        """Look at *checkout*, at no more than `MAX_FILES`."""
        self._checkout = checkout

    def look(self) -> CheckoutLook:
        """Return what is there now: two processes of git, or a walk where there is no repository.

        Not while a merge writes there.
        """
        try:
            with self._checkout.merge_lock():
                return self._look()
        except (SequencerError, GitFailed, OSError):
            return self._walked()

    def _look(self) -> CheckoutLook:
        git = self._checkout.git
        status = status_of(git)
        told = git.run("for-each-ref", "--format=%(refname:lstrip=2) %(objectname)", "refs/heads")
        heads = dict(
            line.rsplit(" ", 1)
            for line in told.stdout.decode("utf-8", "surrogateescape").splitlines()
            if not line.startswith(_OWN_BRANCHES)
        )
        dirty = [entry for entry in status.entries if not self._checkout.is_own(entry.path)]
        left, files = MAX_HASHED_BYTES, {}
        for entry in dirty[:MAX_FILES]:
            state, used = _state(self._checkout.top / entry.path, left)
            left -= used
            files[entry.path] = f"{_kind(entry)} {state}"
        is_partial = len(dirty) > MAX_FILES
        return CheckoutLook(status.commit, status.branch, files, heads, is_partial)

    # --- without a repository ------------------------------------------------------

    def _walked(self) -> CheckoutLook:
        files: dict[str, str] = {}
        for path in self._walk(self._checkout.folders.project):
            if len(files) >= MAX_FILES:
                return CheckoutLook(None, None, files, is_partial=True, is_walk=True)
            files[os.path.relpath(path, self._checkout.folders.project)] = _times(path)
        return CheckoutLook(None, None, files, is_walk=True)

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

    def changes_between(self, before: CheckoutLook, after: CheckoutLook) -> tuple[str, ...]:
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

    def _has_merged(self, before: CheckoutLook, after: CheckoutLook) -> bool:
        """Return whether all that is new on the branch are merges of tasks."""
        if before.commit is None or after.commit is None or before.branch != after.branch:
            return False
        try:
            line = self._checkout.line_of(f"{before.commit}..{after.commit}", 1000)
        except GitFailed:
            return False
        is_ours = all(TRAILER in message and len(parents) > 1 for parents, message in line)
        # Moved back and on again, there would be merges, too.
        return bool(line) and is_ours and line[-1][0][0] == before.commit


def _changed_files(before: CheckoutLook, after: CheckoutLook) -> Iterator[str]:
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


def _kind(entry: StatusEntry) -> str:
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


TRIES = 5
"""So often somebody may commit in the checkout while a merge is made."""
_LOCKED = re.compile(r"Unable to create '(.+\.lock)': File exists")


class FolderResult(StrEnum):
    """What became of an attempt's changes."""

    SHARED = "shared"
    """It has worked in the shared checkout."""
    UNCHANGED = "unchanged"
    MERGED = "merged"
    KEPT = "kept"
    """The attempt was not accepted, or adds a key: its work is on a branch."""
    CONFLICT = "conflict"
    IN_THE_WAY = "in-the-way"
    """The checkout can't be moved: it would overwrite changes that no commit holds."""
    REFUSED = "refused"
    """Something in the worktree can't be committed; it stays."""


class ClosedFolder(Struct, frozen=True):
    """What an attempt has left."""

    result: FolderResult
    error: str | None = None
    """Not None: the attempt has failed, even if its agent was content."""
    hint: str | None = None
    branch: str | None = None
    """Where work is that the checkout has not."""
    folder: Path | None = None
    """The worktree, where that stays."""
    commit: str | None = None
    """The merge."""
    files: tuple[str, ...] = ()
    """In conflict, in the way, or refused."""
    written: tuple[str, ...] = ()
    """What was changed in the shared checkout during an attempt that only reads, each with how."""
    writers: tuple[str, ...] = ()
    """Tasks of this process that may have written it, because they work there too."""
    notices: tuple[str, ...] = ()

    def told(self, *, fails_on_write: bool) -> Leftovers:
        """Return the same in words, for the engine; *fails_on_write*: `written` is a failure."""
        error, notices = self.error, list(self.notices)
        if error is not None and self.hint is not None:
            error = f"{error}; {self.hint}"
        if self.written:
            told = f"a task that only reads has changed files: {', '.join(self.written)}"
            if self.writers:
                told += f" (or {', '.join(self.writers)} did, at the same time)"
            elif fails_on_write:
                error = error or f"{told} (teams.on_write: fail)"
            notices.append(told)
        kept = {"merged": self.commit, "branch": self.branch, "worktree": self.folder}
        found = tuple((name, str(value)) for name, value in kept.items() if value is not None)
        return Leftovers(error, tuple(notices), found)


class Merge(NamedTuple):
    """The merge of a worktree into the checkout it came from."""

    checkout: Checkout
    git: Git
    """Runs in the worktree, where all is committed."""
    worktree: Worktree
    message: str
    run: str | None
    """Of the worktree; None: the default run."""

    def make(self, tip: str) -> ClosedFolder:
        """Merge *tip*, which has all of the worktree; the caller holds the lock of merges.

        Raises:
            GitFailed: git can't; the checkout is as it was.
        """
        for _ in range(TRIES):
            merged = self.tried(tip)
            if merged is not None:
                return merged
        return self.in_the_way("someone else keeps committing there")

    def tried(self, tip: str) -> ClosedFolder | None:
        """Merge *tip* once; None: the checkout has another commit by now."""
        checkout = self.checkout
        checkout.ensure_in_place()
        head = checkout.commit()
        begun = checkout.under_way()
        if head is None or begun:
            return self.in_the_way(f"{begun or 'its first commit'} is under way")
        made = self.elsewhere(head) or self.made(head, tip)
        if made.commit is None:
            return made
        # That takes a while; and a branch that is far behind could be moved to the merge as well.
        if elsewhere := self.elsewhere(head):
            return elsewhere
        checkout.ensure_in_place()
        failed = checkout.move_to(made.commit)
        after = checkout.commit()
        # What git has failed at may have come behind that.
        if after is not None and checkout.contains(after, made.commit):
            return made
        if failed is None or after != head:
            return None
        files, reason, first = checkout.in_the_way(head, made.commit), failed.reason, ""
        if lock := _LOCKED.search(failed.stderr):
            # Long messages are cut at their ends: what to do comes with the path.
            reason = f"{lock[1]} is a git lock: remove it if no git runs there"
            first = "wait for git there to finish, or remove its lock"
        return self.in_the_way(reason, files, first)

    def elsewhere(self, head: str) -> ClosedFolder | None:
        """Return that the work was begun on something else than *head*; None: it was not.

        A merge would bring along what its branch has from there.
        """
        worktree = self.worktree
        begun, present = worktree.checked_out, self.checkout.checked_out()
        if begun is not None and begun != present:
            was, now = (name or "no branch" for name in (begun, present))
            reason = f"the work was started on {was}, but {now} is checked out"
            target = [begun] if begun else ["--detach", worktree.base]
            back = self.checkout.typed("switch", *target)
            return self.in_the_way(reason, first=f"go back with {back}")
        if self.checkout.contains(head, worktree.base):
            return None
        short = worktree.base[:12]
        reason = (
            f"{self.checkout.called} no longer has commit {short}, which the work was started on"
        )
        own = self.checkout.typed("cherry-pick", f"{short}..{worktree.branch}")
        hint = f"{own} applies only the work; or bring that commit back"
        return self.in_the_way(reason, first=hint)

    def made(self, head: str, tip: str) -> ClosedFolder:
        """Return a merge of *tip* into *head*, which nobody but the worktree has yet."""
        git, worktree = self.git, self.worktree
        git.run("checkout", "--quiet", "--detach", head, settings=QUIET)
        flags = ("--no-ff", "--no-edit", "--quiet", "--no-stat", "--no-verify", "--no-log")
        argv = ("merge", *flags, "-m", self.message, tip)
        try:
            git.run(*argv, extra=self.checkout.identity, settings=QUIET)
        except GitFailed as failed:
            told = git.run("diff", "--name-only", "--diff-filter=U", "-z").stdout
            files = tuple(sorted({os.fsdecode(path) for path in told.split(b"\0") if path}))
            if not files:
                return self.in_the_way(failed.reason)
            return ClosedFolder(
                FolderResult.CONFLICT,
                f"can't be merged: conflicts in {listed(files)}; {self.checkout.kept_on(worktree)}",
                f"merge it by hand with {self.checkout.by_hand(worktree)}{self.then}",
                files=files,
            )
        made = git.text("rev-parse", "HEAD")
        if made == head:  # git merges nothing where everything is there
            return ClosedFolder(FolderResult.UNCHANGED)
        return ClosedFolder(FolderResult.MERGED, commit=made)

    def in_the_way(self, reason: str, files: tuple[str, ...] = (), first: str = "") -> ClosedFolder:
        """Return that the checkout can't be moved, for *reason*; *first* is what to do about it."""
        checkout, worktree = self.checkout, self.worktree
        about = f": {listed(files)}" if files else ""
        first, reason = first or "commit or stash these changes", reason.rstrip(":")
        kept = checkout.kept_on(worktree)
        return ClosedFolder(
            FolderResult.IN_THE_WAY,
            f"{checkout.called} is in the way of the merge{about} ({reason}); {kept}",
            f"{first}, then {checkout.by_hand(worktree)}{self.then}",
            files=files,
        )

    @property
    def then(self) -> str:
        """Return the command that continues a team after a person has merged a task's work."""
        if not (task := self.worktree.task):
            return ""
        done = command(self.run, f"skip {task} --as-done")
        return f" and then {done}, or have the task done again"


def stage(
    git: Git,
    without: Collection[str],
    extra: Mapping[str, str] | None = None,
    settings: Sequence[str] = QUIET,
    timeout_s: float | None = None,
) -> None:
    """Bring the index to what is in the worktree, but for the paths *without*.

    Raises: see `Git.run`, to which *extra* and the others go.
    """
    specs = [":/", *(f":(top,exclude,literal){path.rstrip('/')}" for path in sorted(without))]
    told = "".join(f"{spec}\0" for spec in specs).encode("utf-8", "surrogateescape")
    argv = ("add", "--all", "--pathspec-from-file=-", "--pathspec-file-nul")
    git.run(*argv, stdin=told, extra=extra, settings=settings, timeout_s=timeout_s)
