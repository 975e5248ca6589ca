"""The checkout that a team's tasks share: its locks, merges into it, and its changes.

Two locks keep processes and threads of all runs apart: the repository's for adding and removing
worktrees, and this checkout's for merges into it. A merge is made in the worktree of its task; the
checkout is only fast-forwarded, so it gets all of a merge or nothing. Comparing it before and after
a task that only reads shows what changed.

Not promised: that no other git works here at the same time (git compares again before it writes);
that code works because it merges without conflicts; to know who changed a file, or to see changes
that were undone or are in ignored files.
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

from msgspec import Struct, field

from sequencer.engine.attempt import Leftovers
from sequencer.errors import SequencerError, format_command, format_other_command
from sequencer.plugins.git.code.tree import (
    LOCK_POLL_S,
    RUN_FILES,
    Folders,
    Patterns,
    StatusEntry,
    TreeStatus,
    WorkTree,
    format_paths,
    parse_status,
    read_status,
)
from sequencer.plugins.git.code.worktrees import BRANCHES, FOLDER, RUN_BRANCHES, TRAILER, Worktree
from sequencer.plugins.git.process import Git, GitFailed
from sequencer.plugins.git.state.objects import Objects

LONG_TIMEOUT_S = 3600.0
"""Very long: a git that is killed while it writes leaves half of the files and a locked index."""
REPOSITORY_LOCK, MERGE_LOCK = "sequencer-worktrees.lock", "sequencer-merge.lock"
LOCK_WAIT_S = 600.0
INDEX_WAIT_S = 10.0
"""How long to wait for another git process that has locked the checkout's index."""
QUIET = (
    *("commit.gpgSign=false", "rerere.enabled=false", "submodule.recurse=false"),
    *("merge.autoStash=false", "merge.verifySignatures=false", "core.safecrlf=false"),
    *("advice.addEmbeddedRepo=false", "advice.detachedHead=false", "log.showSignature=false"),
)
"""Turns off user settings that would make git stop, ask, or print more here."""
_NAME, _ADDRESS = "sequencer", "sequencer@localhost"


class Checkout(WorkTree):
    """The work tree of a project, into which a team's work is merged."""

    label = "the checkout"
    """What messages call it."""
    elsewhere = ""
    """Its path from the project's folder; empty: the project's folder is inside this checkout."""

    def __init__(self, folders: Folders, git: Git) -> None:
        """Use *git* on the work tree around ``folders.project``."""
        super().__init__(folders, Objects(git))
        self.project_git = git

    def ensure_in_place(self) -> None:
        """Check that the folder is still the same work tree.

        Raises:
            WorkTreeRefused: it is not.
        """

    @cached_property
    def git(self) -> Git:
        """Return a `Git` that runs at the top and has no short time limit."""
        return self.slow_git

    @cached_property
    def identity(self) -> dict[str, str]:
        """Return environment variables with an author, if git has none configured; else none."""
        try:
            for name in ("GIT_AUTHOR_IDENT", "GIT_COMMITTER_IDENT"):
                self.git.run("var", name, settings=("user.useConfigOnly=true",))
        except GitFailed:
            roles = ("AUTHOR", "COMMITTER")
            names = {f"GIT_{role}_NAME": _NAME for role in roles}
            return names | {f"GIT_{role}_EMAIL": _ADDRESS for role in roles}
        return {}

    def describe_kept_work(self, worktree: Worktree) -> str:
        """Return a message that says where the work of *worktree* is."""
        return f"its work is on branch {worktree.branch}, and none of it is in {self.label}"

    def merge_command(self, worktree: Worktree) -> str:
        """Return the command that merges the work of *worktree*."""
        return self.format_git_command("merge", worktree.branch)

    def format_git_command(self, *argv: str) -> str:
        """Return ``git ARGV`` for this work tree, to be typed in the project's folder."""
        return format_other_command(
            "git", *(["-C", self.elsewhere] if self.elsewhere else []), *argv
        )

    def checked_out_commit(self) -> str | None:
        """Return the commit that is checked out; None: there is none yet."""
        result = self.git.run("rev-parse", "--verify", "--quiet", "HEAD^{commit}", accepts=(0, 1))
        return result.stdout.decode("ascii").strip() or None

    def checked_out_branch(self) -> str:
        """Return the branch that is checked out; empty: none is."""
        ref = self.git.read_output("symbolic-ref", "--quiet", "HEAD", accepts=(0, 1))
        return ref.removeprefix("refs/heads/")

    def tracked_changes(self) -> TreeStatus:
        """Return the status of tracked files only."""
        flags = ("--porcelain=v2", "--branch", "-z", "--untracked-files=no", "--no-renames")
        return parse_status(self.git.run("status", *flags).stdout)

    def first_parent_log(self, span: str, most: int) -> list[tuple[list[str], str]]:
        """Return (parents, message) of at most *most* commits in *span*, newest first.

        Follows first parents only.

        Raises:
            GitFailed: git failed.
        """
        argv = ("log", "--first-parent", "--format=%P%n%B%x00", "-n", str(most), span)
        log = self.git.run(*argv, settings=QUIET).stdout.decode("utf-8", "replace")
        commits = (entry.lstrip("\n").partition("\n") for entry in log.split("\0")[:-1])
        return [(parents.split(), message) for parents, _, message in commits]

    # --- locks ---------------------------------------------------------------------

    def repository_lock(self) -> contextlib.AbstractContextManager[None]:
        """Keep other processes from adding or removing worktrees while the block runs."""
        # Needed because git's own locks fail at once instead of waiting.
        return self._hold_lock(self.common_dir / REPOSITORY_LOCK)

    def merge_lock(self) -> contextlib.AbstractContextManager[None]:
        """Keep other processes from merging into this checkout while the block runs."""
        return self._hold_lock(self.git_dir / MERGE_LOCK)

    def _hold_lock(self, path: Path) -> contextlib.AbstractContextManager[None]:
        hint = "another process is working there; start again when it has ended"
        return self.hold_lock(path, LOCK_WAIT_S, hint)

    # --- moving --------------------------------------------------------------------

    def move_to(self, commit: str) -> GitFailed | None:
        """Fast-forward to *commit*; return git's error if that fails.

        Uncommitted changes are never overwritten, not even files that git ignores.
        """
        ends = time.monotonic() + INDEX_WAIT_S
        while failure := self._ref_lock_error() or self._fast_forward(commit):
            if ".lock': File exists" not in failure.local_stderr or time.monotonic() > ends:
                return failure
            time.sleep(LOCK_POLL_S)
        return None

    def _fast_forward(self, commit: str) -> GitFailed | None:
        # Some of these flags override the user's settings for merges into this branch.
        flags = ("--no-squash", "--commit", "--ff-only", "--quiet", "--no-stat")
        try:
            self.git.run("merge", *flags, "--no-overwrite-ignore", commit, settings=QUIET)
        except GitFailed as failed:
            return failed
        return None

    def _ref_lock_error(self) -> GitFailed | None:
        """Return the error that a locked HEAD or branch would cause.

        Git itself would find the lock only after it had changed the files.
        """
        locks = [self.git_dir / "HEAD.lock"]
        if branch := self.checked_out_branch():
            locks.append(self.common_dir / "refs" / "heads" / f"{branch}.lock")
        lock = next((path for path in locks if os.path.lexists(path)), None)
        text = f"fatal: Unable to create '{lock}': File exists."
        return None if lock is None else GitFailed(("merge",), 128, text)

    def find_overwritten_files(self, before: str, commit: str) -> tuple[str, ...]:
        """Return the files that a move from *before* to *commit* would overwrite here."""
        output = self.git.run("diff", "--name-status", "-z", "--no-renames", before, commit).stdout
        fields = output.decode("utf-8", "surrogateescape").split("\0")
        kinds = dict(zip(fields[1::2], fields[::2], strict=False))
        changed_paths = {entry.path for entry in self.read_status().entries}
        obstacles = []
        for path, kind in kinds.items():
            # A new file must not overwrite a file here, even one that git ignores.
            is_present = kind == "A" and os.path.lexists(self.top / path)
            # A changed path may also be a folder above *path*, or something below it.
            is_nested = any(
                path.startswith(f"{changed_path.rstrip('/')}/")
                or changed_path.startswith(f"{path}/")
                for changed_path in changed_paths
            )
            if path in changed_paths or is_present or is_nested:
                obstacles.append(path)
        return tuple(sorted(obstacles))


MAX_FILES = 20_000
"""How many files one look covers."""
MAX_HASHED_BYTES = 64 * 1024 * 1024
"""How much one look hashes; further files are identified by their size and times."""
_OWN_BRANCHES = (
    "sequencer/",
    "sequencer-beats/",
    "sequencer-kept/",
    f"{BRANCHES}/",
    f"{RUN_BRANCHES}/",
)
_PIECE = 1024 * 1024


class CheckoutState(Struct, frozen=True):
    """The state of a checkout at one moment."""

    commit: str | None
    branch: str | None
    files: Mapping[str, str]
    """Path -> fingerprint, for files that differ from the commit; in a walk, for all files."""
    heads: Mapping[str, str] = field(default_factory=dict)
    """Branch -> its commit."""
    is_partial: bool = False
    is_walk: bool = False
    """Whether the files were listed by walking the folder, because git could not be used."""

    @property
    def notices(self) -> tuple[str, ...]:
        """Return notices for a person about the limits of the look."""
        if not self.is_partial:
            return ()
        return (f"only {MAX_FILES:,} files are watched for changes by tasks that only read",)


class CheckoutWatch:
    """Looks at one checkout and compares looks."""

    def __init__(self, checkout: Checkout) -> None:
        """Watch *checkout*, at most `MAX_FILES` of its files."""
        self._checkout = checkout

    def read_state(self) -> CheckoutState:
        """Return the present state: from two git processes, or from a walk without a repository.

        Waits for a merge that is writing there.
        """
        try:
            with self._checkout.merge_lock():
                return self._read_git_state()
        except (SequencerError, GitFailed, OSError):
            return self._read_folder_state()

    def _read_git_state(self) -> CheckoutState:
        git = self._checkout.git
        status = read_status(git)
        refs = git.run("for-each-ref", "--format=%(refname:lstrip=2) %(objectname)", "refs/heads")
        heads = dict(
            line.rsplit(" ", 1)
            for line in refs.stdout.decode("utf-8", "surrogateescape").splitlines()
            if not line.startswith(_OWN_BRANCHES)
        )
        dirty_entries = [entry for entry in status.entries if not self._checkout.is_own(entry.path)]
        left_bytes, files = MAX_HASHED_BYTES, {}
        for entry in dirty_entries[:MAX_FILES]:
            state, used_bytes = _fingerprint_file(self._checkout.top / entry.path, left_bytes)
            left_bytes -= used_bytes
            files[entry.path] = f"{_kind(entry)} {state}"
        is_partial = len(dirty_entries) > MAX_FILES
        return CheckoutState(status.commit, status.branch, files, heads, is_partial)

    # --- without a repository ------------------------------------------------------

    def _read_folder_state(self) -> CheckoutState:
        files: dict[str, str] = {}
        for path in self._walk(self._checkout.folders.project):
            if len(files) >= MAX_FILES:
                return CheckoutState(None, None, files, is_partial=True, is_walk=True)
            files[os.path.relpath(path, self._checkout.folders.project)] = _stat_fingerprint(path)
        return CheckoutState(None, None, files, is_walk=True)

    def _walk(self, folder: Path) -> Iterator[str]:
        folders = self._checkout.folders
        state = folders.state_file.parent
        run_paths = {folders.logs, *folders.others, *([state] if state != folders.project else [])}
        left_out = {os.path.abspath(path) for path in (*run_paths, state / FOLDER)}  # noqa: PTH100
        name = folders.state_file.name
        is_same_folder = state == folders.project
        run_files = Patterns((*RUN_FILES, name, f"{name}.*") if is_same_folder else ())
        waiting = [os.path.abspath(folder)]  # noqa: PTH100 - links stay as they are
        while waiting:
            try:
                entries = sorted(os.scandir(waiting.pop()), key=lambda entry: entry.name)
            except OSError:
                continue
            for entry in entries:
                relative_path = os.path.relpath(entry.path, folder)
                if entry.path in left_out or entry.name == ".git" or run_files.match(relative_path):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                else:
                    yield entry.path

    # --- comparing -----------------------------------------------------------------

    def describe_changes(self, before: CheckoutState, after: CheckoutState) -> tuple[str, ...]:
        """Return "PATH (how)" for each change from *before* to *after*.

        Merges of tasks, which move the branch, are left out, and so are new branches.
        """
        if before.is_walk != after.is_walk:
            return ()
        changes = list(_changed_files(before, after))
        if before.commit != after.commit and not self._has_merged(before, after):
            name = f"branch {after.branch!r}" if after.branch else "HEAD"
            changes.append(f"{name} (moved to {(after.commit or 'nothing')[:12]})")
        if before.branch != after.branch:
            changes.append(f"branch {after.branch!r} (checked out)" if after.branch else "HEAD")
        for name, commit in before.heads.items():
            if name not in after.heads:
                changes.append(f"branch {name!r} (removed)")
            elif after.heads[name] != commit and name != after.branch:
                changes.append(f"branch {name!r} (moved to {after.heads[name][:12]})")
        return tuple(changes)

    def _has_merged(self, before: CheckoutState, after: CheckoutState) -> bool:
        """Return whether the branch's new commits are all merges of tasks."""
        if before.commit is None or after.commit is None or before.branch != after.branch:
            return False
        try:
            log = self._checkout.first_parent_log(f"{before.commit}..{after.commit}", 1000)
        except GitFailed:
            return False
        is_ours = all(TRAILER in message and len(parents) > 1 for parents, message in log)
        # The oldest must continue *before*: a branch that was reset and moved on has merges too.
        return bool(log) and is_ours and log[-1][0][0] == before.commit


def _changed_files(before: CheckoutState, after: CheckoutState) -> Iterator[str]:
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


def _fingerprint_file(path: Path, left_bytes: int) -> tuple[str, int]:
    """Return a fingerprint of *path*, and how many bytes were read for it."""
    try:
        info = path.lstat()
        if stat.S_ISLNK(info.st_mode):
            return f"-> {path.readlink()}", 0
        if not stat.S_ISREG(info.st_mode):
            return "other", 0
        if info.st_size > left_bytes:
            return _stat_fingerprint(path), 0
        digest = blake2b(digest_size=16)
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            while piece := file.read(_PIECE):
                digest.update(piece)
    except OSError:
        return "gone", 0
    return f"{info.st_mode & stat.S_IXUSR} {digest.hexdigest()}", info.st_size


def _stat_fingerprint(path: str | Path) -> str:
    try:
        info = os.lstat(path)
    except OSError:
        return "gone"
    return f"{info.st_mtime_ns} {info.st_size} {info.st_ino}"


TRIES = 5
"""How many times a merge is tried, because someone may commit in the checkout meanwhile."""
_LOCKED = re.compile(r"Unable to create '(.+\.lock)': File exists")


class FolderResult(StrEnum):
    """What became of an attempt's changes."""

    SHARED = "shared"
    """The attempt has worked in the shared checkout."""
    UNCHANGED = "unchanged"
    MERGED = "merged"
    KEPT = "kept"
    """The attempt was not accepted, or it adds a key: its work is kept on a branch."""
    CONFLICT = "conflict"
    IN_THE_WAY = "in-the-way"
    """The checkout can't be moved, because that would overwrite uncommitted changes."""
    REFUSED = "refused"
    """A file in the worktree can't be committed, so the worktree stays."""


class ClosedFolder(Struct, frozen=True):
    """What became of an attempt's folder and of the work in it."""

    result: FolderResult
    error: str | None = None
    """Not None: the attempt has failed, even if its agent reported success."""
    hint: str | None = None
    branch: str | None = None
    """The branch with work that the checkout does not have."""
    folder: Path | None = None
    """The worktree, if it stays."""
    commit: str | None = None
    """The merge commit."""
    files: tuple[str, ...] = ()
    """Files that are in conflict, in the way, or refused."""
    written: tuple[str, ...] = ()
    """Changes in the shared checkout during an attempt that only reads, as "PATH (how)"."""
    writers: tuple[str, ...] = ()
    """Tasks of this process that may have made these changes, because they work there too."""
    notices: tuple[str, ...] = ()

    def to_leftovers(self, *, fails_on_write: bool) -> Leftovers:
        """Return it for the engine; *fails_on_write*: changes in `written` are an error."""
        error, notices = self.error, list(self.notices)
        if error is not None and self.hint is not None:
            error = f"{error}; {self.hint}"
        if self.written:
            notice = f"a task that only reads has changed files: {', '.join(self.written)}"
            if self.writers:
                notice += f" (or {', '.join(self.writers)} did, at the same time)"
            elif fails_on_write:
                error = error or f"{notice} (teams.on_write: fail)"
            notices.append(notice)
        facts = {"merged": self.commit, "branch": self.branch, "worktree": self.folder}
        pairs = tuple((name, str(value)) for name, value in facts.items() if value is not None)
        return Leftovers(error, tuple(notices), pairs)


class Merge(Struct, frozen=True):
    """The merge of a worktree into the checkout that it came from."""

    checkout: Checkout
    git: Git
    """Runs in the worktree, where everything is committed."""
    worktree: Worktree
    message: str
    run: str | None
    """The run of the worktree; None: the default run."""

    def perform(self, tip: str) -> ClosedFolder:
        """Merge *tip*, which has all work of the worktree; the caller holds the merge lock.

        Raises:
            GitFailed: git failed; the checkout is unchanged.
        """
        for _ in range(TRIES):
            result = self.try_merge(tip)
            if result is not None:
                return result
        return self.refuse_move("someone else keeps committing there")

    def try_merge(self, tip: str) -> ClosedFolder | None:
        """Merge *tip* once; None: the checkout's commit has changed, so the caller tries again."""
        checkout = self.checkout
        checkout.ensure_in_place()
        head = checkout.checked_out_commit()
        operation = checkout.find_operation()
        if head is None or operation:
            return self.refuse_move(f"{operation or 'its first commit'} is under way")
        result = self.check_start(head) or self.create_merge_commit(head, tip)
        if result.commit is None:
            return result
        # Check again: the merge takes a while, and git would fast-forward an older branch too.
        if refusal := self.check_start(head):
            return refusal
        checkout.ensure_in_place()
        failure = checkout.move_to(result.commit)
        after = checkout.checked_out_commit()
        # Git may have failed only after it had moved the branch.
        if after is not None and checkout.contains(after, result.commit):
            return result
        if failure is None or after != head:
            return None
        files, reason, first_step = (
            checkout.find_overwritten_files(head, result.commit),
            failure.reason,
            "",
        )
        if lock := _LOCKED.search(failure.local_stderr):
            # Long messages are cut at the end, so the advice comes right after the path.
            reason = f"{lock[1]} is a git lock: remove it if no git runs there"
            first_step = "wait for git there to finish, or remove its lock"
        return self.refuse_move(reason, files, first_step)

    def check_start(self, head: str) -> ClosedFolder | None:
        """Return a refusal if the work did not start on the branch of *head*, else None.

        A merge would also bring the other branch's commits.
        """
        worktree = self.worktree
        start, current_branch = worktree.checked_out, self.checkout.checked_out_branch()
        if start is not None and start != current_branch:
            start_name, current_name = (name or "no branch" for name in (start, current_branch))
            reason = f"the work was started on {start_name}, but {current_name} is checked out"
            target = [start] if start else ["--detach", worktree.base]
            switch_back = self.checkout.format_git_command("switch", *target)
            return self.refuse_move(reason, first=f"go back with {switch_back}")
        if self.checkout.contains(head, worktree.base):
            return None
        oid = worktree.base[:12]
        reason = f"{self.checkout.label} no longer has commit {oid}, which the work was started on"
        cherry_pick = self.checkout.format_git_command("cherry-pick", f"{oid}..{worktree.branch}")
        hint = f"{cherry_pick} applies only the work; or bring that commit back"
        return self.refuse_move(reason, first=hint)

    def create_merge_commit(self, head: str, tip: str) -> ClosedFolder:
        """Merge *tip* into *head* in the worktree; the checkout does not have the merge yet."""
        git, worktree, checkout = self.git, self.worktree, self.checkout
        git.run("checkout", "--quiet", "--detach", head, settings=QUIET)
        flags = ("--no-ff", "--no-edit", "--quiet", "--no-stat", "--no-verify", "--no-log")
        argv = ("merge", *flags, "-m", self.message, tip)
        try:
            git.run(*argv, extra=checkout.identity, settings=QUIET)
        except GitFailed as failed:
            output = git.run("diff", "--name-only", "--diff-filter=U", "-z").stdout
            files = tuple(sorted({os.fsdecode(path) for path in output.split(b"\0") if path}))
            if not files:
                return self.refuse_move(failed.reason)
            return ClosedFolder(
                FolderResult.CONFLICT,
                f"can't be merged: conflicts in {format_paths(files)}; "
                f"{checkout.describe_kept_work(worktree)}",
                f"merge it by hand with {checkout.merge_command(worktree)}{self.continue_hint}",
                files=files,
            )
        commit = git.read_output("rev-parse", "HEAD")
        if commit == head:  # git makes no merge if *head* has everything already
            return ClosedFolder(FolderResult.UNCHANGED)
        return ClosedFolder(FolderResult.MERGED, commit=commit)

    def refuse_move(
        self, reason: str, files: tuple[str, ...] = (), first: str = ""
    ) -> ClosedFolder:
        """Return a refusal: the checkout can't be moved for *reason*; *first* says what to do."""
        checkout, worktree = self.checkout, self.worktree
        paths = f": {format_paths(files)}" if files else ""
        first, reason = first or "commit or stash these changes", reason.rstrip(":")
        location = checkout.describe_kept_work(worktree)
        return ClosedFolder(
            FolderResult.IN_THE_WAY,
            f"{checkout.label} is in the way of the merge{paths} ({reason}); {location}",
            f"{first}, then {checkout.merge_command(worktree)}{self.continue_hint}",
            files=files,
        )

    @property
    def continue_hint(self) -> str:
        """Return how to continue the team after a person has merged a task's work."""
        if not (task := self.worktree.task):
            return ""
        skip = format_command(self.run, f"skip {task} --as-done")
        return f" and then {skip}, or have the task done again"


def stage(
    git: Git,
    without: Collection[str],
    extra: Mapping[str, str] | None = None,
    settings: Sequence[str] = QUIET,
    timeout_s: float | None = None,
) -> None:
    """Stage all files of the worktree except the paths in *without*.

    Raises: see `Git.run`, which gets *extra*, *settings* and *timeout_s*.
    """
    specs = [":/", *(f":(top,exclude,literal){path.rstrip('/')}" for path in sorted(without))]
    stdin = "".join(f"{spec}\0" for spec in specs).encode("utf-8", "surrogateescape")
    argv = ("add", "--all", "--pathspec-from-file=-", "--pathspec-file-nul")
    git.run(*argv, stdin=stdin, extra=extra, settings=settings, timeout_s=timeout_s)
