"""Saves the files of a run's worktree before an attempt, and restores them if the attempt fails.

Accepted steps are not committed before the end of the run, so a plain reset would lose their work.
The files before each attempt (tracked and untracked, not ignored) are saved in a separate commit.
If the attempt fails, its files are saved in another commit, and the files, HEAD and the index are
restored. Both commits use a separate index file; git compares each file again before it overwrites
it. A restoration that a kill interrupted is completed before the next attempt.

Not promised: that changes by a person during an attempt are told apart from the agent's (they are
in the commit too); anything about ignored files, empty folders and repositories inside.
"""

from __future__ import annotations

import contextlib
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Self

from msgspec import Struct, field

from sequencer.engine.attempt import Attempt
from sequencer.errors import SequencerError
from sequencer.files.textfile import is_branch_name, ref_part, slug
from sequencer.plugins.git.code.checkout import QUIET, stage
from sequencer.plugins.git.code.gathering import TaskTrees
from sequencer.plugins.git.code.tree import (
    STATUS,
    Change,
    find_git_operation,
    format_paths,
    parse_status,
)
from sequencer.plugins.git.code.worktrees import Worktree
from sequencer.plugins.git.process import Git, GitFailed
from sequencer.project.schema import MIB
from sequencer.store.folder import open_new_file, read_regular

ATTEMPTS = "refs/sequencer/attempts"
"""Prefix of the refs; the name of the run and the token of the attempt follow."""
LOOK_S = 30.0
"""How long saving the files before an attempt may take."""
SAVE_S = 120.0
"""How long saving the files of a failed attempt may take."""
MAX_BYTES = 1024 * MIB
"""Maximum bytes of files that differ from the commit; with more, nothing is saved."""
MAX_INDEX = 512 * MIB
FAST = "core.looseCompression=0"
"""Compression would take most of the time, for files that are mostly written once."""
DURABLE = ("core.fsync=all", "core.fsyncMethod=batch")
"""Files that are about to be removed from the work tree must survive a power cut."""
_ROLES = ("AUTHOR", "COMMITTER")
_IDENTITY = {
    **{f"GIT_{role}_NAME": "sequencer" for role in _ROLES},
    **{f"GIT_{role}_EMAIL": "sequencer@localhost" for role in _ROLES},
}
_FAILED = re.compile(r"Failed attempt [0-9]+ at iteration ([0-9]{1,19}) of run ([!-~]+)")
_OID = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_TOKEN = re.compile(r"[1-9][0-9]{0,18}")


def attempt_ref_prefix(run: str | None) -> str:
    """Return the prefix of the refs of *run*'s attempts, with a slash at its end."""
    return f"{ATTEMPTS}/{ref_part(slug(run or 'default'))}/"


class NotSaved(Exception):
    """The reason, for people, why files are not saved or not restored; only for this package."""


class TreeSnapshot(Struct, frozen=True):
    """A work tree at one moment."""

    tree: str
    head: str
    """The commit that is checked out."""
    branch: str
    """Empty: no branch is checked out."""
    index: str = ""
    """The tree of the staged files; empty: nothing was staged."""
    nested: tuple[str, ...] = ()
    """Repositories inside, which are left as they are."""


class PendingRestore(Struct, frozen=True):
    """A restoration that is not complete yet; the note of the worktree keeps it."""

    failed: str
    """The commit with the failed attempt's files."""
    tree: str
    head: str
    branch: str
    """Empty: no branch was checked out."""
    index: str
    left: str
    """The commit that was checked out after the attempt."""
    tip: str
    """The commit of the branch after the attempt."""

    @classmethod
    def from_fields(cls, fields: Mapping[str, str]) -> PendingRestore | None:
        """Return the restoration in a note's *fields*, or None if there is none that is valid."""
        try:
            plan = cls(**fields)
        except TypeError:
            return None
        oids = (plan.failed, plan.tree, plan.head, plan.index, plan.left, plan.tip)
        is_sound = all(isinstance(oid, str) and _OID.fullmatch(oid) for oid in oids)
        return plan if is_sound and (not plan.branch or is_branch_name(plan.branch)) else None

    def to_fields(self) -> dict[str, str]:
        """Return the fields for a note."""
        return {name: getattr(self, name) for name in self.__struct_fields__}


class WorktreeFiles(Struct):
    """Saves and restores the files of one worktree."""

    worktree: Worktree
    git: Git
    """Runs in the worktree, even if its ``.git`` was changed."""
    is_own: Callable[[str], bool]
    """Whether a path is a file of the run."""
    folder: str
    """Prefix of the refs of the run's attempts."""
    ends: float = field(default_factory=lambda: time.monotonic() + LOOK_S)
    settings: tuple[str, ...] = (*QUIET, FAST)

    @classmethod
    def from_worktree(cls, trees: TaskTrees, worktree: Worktree, run: str | None) -> Self:
        """Return the files of *worktree*, in which *run* works.

        Raises:
            WorkTreeRefused: the worktree belongs to another repository.
        """
        return cls(
            worktree, trees.open_git(worktree), trees.checkout.is_own, attempt_ref_prefix(run)
        )

    def make_durable(self) -> None:
        """Allow more time from now on, and make all writes survive a power cut."""
        self.ends, self.settings = time.monotonic() + SAVE_S, (*QUIET, FAST, *DURABLE)

    def left_s(self) -> float:
        """Return the seconds that are left.

        Raises:
            NotSaved: the time limit is reached.
        """
        left_s = self.ends - time.monotonic()
        if left_s <= 0:
            raise NotSaved("it took too long")
        return left_s

    def run_git(
        self, *argv: str, extra: Mapping[str, str] | None = None, stdin: bytes = b""
    ) -> str:
        """Run git within the time that is left; return its output without the final newline."""
        result = self.git.run(
            *argv,
            stdin=stdin,
            extra={**_IDENTITY, **(extra or {})},
            settings=self.settings,
            timeout_s=self.left_s(),
        )
        return result.stdout.decode("utf-8", "surrogateescape").rstrip("\n")

    # --- looking -------------------------------------------------------------------

    @contextlib.contextmanager
    def copy_index(self, token: int) -> Iterator[dict[str, str]]:
        """Give the block a copy of the worktree's index, as environment variables for git."""
        admin_dir = self.worktree.admin_dir
        path = admin_dir / f"sequencer-attempt-{token}.index"
        lock = path.with_name(f"{path.name}.lock")
        for leftover in (path, lock):  # from a process that was killed
            leftover.unlink(missing_ok=True)
        try:
            with contextlib.suppress(FileNotFoundError):
                data = read_regular(admin_dir / "index", max_bytes=MAX_INDEX)
                with open_new_file(path) as file:
                    file.write(data)
            yield {"GIT_INDEX_FILE": str(path)}
        finally:
            for leftover in (path, lock):
                leftover.unlink(missing_ok=True)

    def snapshot_files(self, index: Mapping[str, str], before: str = "") -> TreeSnapshot:
        """Write the present files to git's objects and to *index*; return their trees.

        *before* is the tree of an earlier look: a file that was ignored then and was added by
        force since is not taken for the attempt's.

        Raises:
            NotSaved: the files can't be saved; the message says why.
            GitFailed: git failed.
        """
        git, admin_dir = self.git, self.worktree.admin_dir
        if (admin_dir / "index.lock").exists():
            raise NotSaved("another git is at work there")
        status = parse_status(git.run(*STATUS, timeout_s=self.left_s()).stdout)
        if status.commit is None:
            raise NotSaved("its branch has no commit")
        if operation := find_git_operation(admin_dir):
            raise NotSaved(f"{operation} is under way there")
        run_files = {
            entry.path
            for entry in status.entries
            if not entry.is_tracked and self.is_own(entry.path)
        }
        nested_paths = {
            entry.path for entry in status.entries if entry.is_submodule or entry.path.endswith("/")
        }
        nested_paths -= run_files
        entries = [entry for entry in status.entries if entry.path not in run_files | nested_paths]
        changed_paths = (entry.path for entry in entries if entry.change is not Change.DELETED)
        if sum(map(partial(_size, git.folder), changed_paths)) > MAX_BYTES:
            raise NotSaved(f"more than {MAX_BYTES // MIB} MiB differ from the commit")
        staged_tree, has_conflicts = "", any(entry.is_unmerged for entry in entries)
        if has_conflicts and not before:
            raise NotSaved("there are conflicts of a merge")
        if any(entry.is_staged for entry in entries) and not has_conflicts:
            staged_tree = self.run_git("write-tree", extra=index)
        if before:
            self.run_git("read-tree", "--reset", before, extra=index)
        if entries or before:
            stage(git, run_files | nested_paths, index, self.settings, self.left_s())
        tree = self.run_git("write-tree", extra=index)
        return TreeSnapshot(
            tree, status.commit, status.branch or "", staged_tree, tuple(sorted(nested_paths))
        )

    def find_changed_rules(self, before: str, after: str) -> list[str]:
        """Return the ``.gitignore`` files that differ between the two trees."""
        argv = ("diff-tree", "-r", "-z", "--no-renames", "--name-only", before, after)
        paths = self.run_git(*argv).split("\0")
        return [path for path in paths if path.rpartition("/")[2] == ".gitignore"]

    def restore_rules(self, paths: Sequence[str], commit: str, index: Mapping[str, str]) -> None:
        """Restore the files *paths* from *commit*; remove those that it does not have."""
        output = self.run_git("ls-tree", "-r", "-z", "--name-only", commit, "--", *paths)
        known_paths = [path for path in output.split("\0") if path]
        if known_paths:
            literal = {**index, "GIT_LITERAL_PATHSPECS": "1"}
            self.run_git("checkout", "--quiet", commit, "--", *known_paths, extra=literal)
        for path in {*paths} - {*known_paths}:
            with contextlib.suppress(FileNotFoundError):
                (self.git.folder / path).unlink()

    # --- refs ----------------------------------------------------------------------

    def commit(self, files: TreeSnapshot, message: str, *parents: str) -> str:
        """Write *files* on top of *parents*; staged files become the last parent."""
        if files.index:
            staged_commit = self._commit_tree(files.index, "What was staged", [files.head])
            parents = (*parents, staged_commit)
        return self._commit_tree(files.tree, message, parents)

    def _commit_tree(self, tree: str, message: str, parents: Sequence[str]) -> str:
        flags = [word for parent in dict.fromkeys(parents) for word in ("-p", parent)]
        text = f"{message}\n".encode()
        return self.run_git("commit-tree", tree, *flags, "-F", "-", stdin=text)

    def list_refs(self) -> dict[str, tuple[str, str]]:
        """Return ref -> (commit, subject of its message) for the run's attempts."""
        form = "--format=%(refname) %(objectname) %(contents:subject)"
        output = self.run_git("for-each-ref", form, self.folder)
        lines = (line.split(" ", 2) for line in output.splitlines())
        return {
            ref: (commit, subject[0] if subject else "")
            for ref, commit, *subject in lines
            if _TOKEN.fullmatch(ref.removeprefix(self.folder))
        }

    def update_ref(self, ref: str, commit: str, stale: Mapping[str, str]) -> None:
        """Point *ref* to *commit*, and remove the refs *stale* (ref -> commit) if possible."""
        deletions = "".join(f"delete {name} {oid}\n" for name, oid in stale.items())
        text = f"update {ref} {commit}\n"
        try:
            self.run_git("update-ref", "--stdin", stdin=f"{text}{deletions}".encode())
        except GitFailed:
            if not stale:
                raise
            # Another process may have locked a stale ref; it is removed another time.
            self.run_git("update-ref", "--stdin", stdin=text.encode())


def _size(folder: Path, path: str) -> int:
    with contextlib.suppress(OSError):
        info = (folder / path).lstat()
        return info.st_size if stat.S_ISREG(info.st_mode) else 0
    return 0


class AttemptFiles(Struct):
    """The files of a run's worktree before one attempt."""

    files: WorktreeFiles
    attempt: Attempt
    is_shared: Callable[[], bool]
    """Whether other attempts work in the same folder, or have worked there meanwhile."""
    notify: Callable[[str], object]
    """Writes a message to the step's log."""
    note: Callable[[dict[str, str]], None]
    """Writes an unfinished restoration to the worktree's note; an empty dict removes it."""
    notes: tuple[str, ...] = ()
    before: TreeSnapshot | None = None
    kept: str = ""
    """The commit with the files before the attempt."""
    why_not: str = ""
    """Why the files were not saved."""

    @property
    def ref(self) -> str:
        """Return the ref of this attempt."""
        return f"{self.files.folder}{self.attempt.token}"

    def begin(self) -> None:
        """Save the files, and find the refs of earlier failed attempts at the same step."""
        attempt, files = self.attempt, self.files
        try:
            if self.is_shared():
                self.why_not = _SHARED
                return
            refs = files.list_refs()
            earlier_refs = [
                ref
                for ref, (_, subject) in refs.items()
                if (match := _FAILED.fullmatch(subject))
                and (int(match[1]), match[2]) == (attempt.iteration, attempt.run_id)
            ]
            if earlier_refs:
                self.notes = (_prompt_note(max(earlier_refs, key=_parse_token)),)
            with files.copy_index(attempt.token) as index:
                self.before = files.snapshot_files(index)
            message = f"The files before attempt {attempt.token}"
            self.kept = files.commit(self.before, message, self.before.head)
            stale_refs = {
                ref: oid for ref, (oid, subject) in refs.items() if not _FAILED.fullmatch(subject)
            }
            stale_refs.pop(self.ref, None)
            files.update_ref(self.ref, self.kept, stale_refs)
        except _FAILURES as error:
            self.before, self.why_not = None, _format_reason(error)
            self.notify(f"{_NOT_KEPT}: {self.why_not}; if it fails, its changes stay")

    def set_aside(self) -> bool:
        """Save the files as they are now and restore those from before; return whether that worked.

        If others work there too, or it can't be done, nothing is restored and the log says why.
        """
        if self.before is None:
            self.notify(f"the changes of this attempt stay: {self.why_not}")
            return False
        try:
            return self._set_aside(self.before)
        except NotSaved as error:
            self.notify(f"the changes of this attempt stay: {error}")
        except _FAILURES as error:
            self.notify(
                f"the changes of this attempt could not be set aside: {_format_reason(error)}; "
                "the next attempt completes what was started"
            )
        return False

    def _set_aside(self, before: TreeSnapshot) -> bool:
        files = self.files
        if self.is_shared():
            raise NotSaved(_SHARED)
        files.make_durable()
        with files.copy_index(self.attempt.token) as index:
            after = files.snapshot_files(index, before.tree)
            if (after.tree, after.head, after.index) == (before.tree, before.head, before.index):
                return False
            plan = self._save_attempt(before, after)
            self.note(plan.to_fields())
            if rules := files.find_changed_rules(before.tree, after.tree):
                # First, because the old rules for ignored files must apply to the rest.
                files.restore_rules(rules, self.kept, index)
                after = files.snapshot_files(index, before.tree)
                plan = self._save_attempt(before, after, plan.failed)
                self.note(plan.to_fields())
            obstacle = _SHARED if self.is_shared() else restore(files, plan, index)
        self.note({})
        if obstacle is not None:
            raise NotSaved(f"{obstacle}; {self.ref} has them too")
        nested_text = (
            f"; repositories inside stay: {format_paths(after.nested)}" if after.nested else ""
        )
        self.notify(
            f"the changes of this attempt were set aside on {self.ref}, and the files are as they "
            f"were before it{nested_text}"
        )
        return True

    def _save_attempt(
        self, before: TreeSnapshot, after: TreeSnapshot, *first_commits: str
    ) -> PendingRestore:
        """Save the files *after* the attempt; return the plan that restores those of *before*.

        The first parent of the commit has the files from before, so ``git show`` shows the changes.
        """
        files, tip = self.files, after.head
        if before.branch and after.branch != before.branch:
            tip = files.run_git("rev-parse", f"refs/heads/{before.branch}")
        moved_tips = (
            commit for commit in (*first_commits, tip, after.head) if commit != before.head
        )
        failed_commit = files.commit(after, self._subject(), self.kept, *moved_tips)
        files.update_ref(self.ref, failed_commit, {})
        staged_tree = before.index or files.run_git("rev-parse", f"{before.head}^{{tree}}")
        old_state = before.head, before.branch, staged_tree
        return PendingRestore(failed_commit, before.tree, *old_state, after.head, tip)

    def _subject(self) -> str:
        attempt = self.attempt
        title = f"Failed attempt {attempt.number} at iteration {attempt.iteration}"
        return f"{title} of run {attempt.run_id}\n\nStep {attempt.step.name}, token {attempt.token}"


def restore(files: WorktreeFiles, plan: PendingRestore, index: Mapping[str, str]) -> str | None:
    """Restore files, HEAD and index from *plan*, or return why they are left unchanged.

    *index* has the files as they are now.

    Raises:
        GitFailed: git failed or was too slow; half of the work may be done.
    """
    head = files.run_git("rev-parse", "HEAD")
    if head not in {plan.head, plan.left}:
        return "someone has committed there meanwhile"
    current_tree = files.run_git("write-tree", extra=index)
    if current_tree != plan.tree:
        if foreign_paths := _find_foreign_changes(files, plan, current_tree):
            return f"someone has changed {format_paths(foreign_paths)} meanwhile"
        try:
            files.run_git("read-tree", "-m", "-u", current_tree, plan.tree, extra=index)
        except GitFailed as failed:
            text = failed.local_stderr
            if "not uptodate" in text or "would be overwritten" in text:
                return "someone has changed files there meanwhile"
            raise
    _move_head(files, plan)
    files.run_git("read-tree", "--reset", plan.index)
    return None


def _find_foreign_changes(
    files: WorktreeFiles, plan: PendingRestore, current_tree: str
) -> list[str]:
    """Return the paths that are neither as the attempt left them nor as they were before it."""

    def changed_since(tree: str) -> set[str]:
        output = files.run_git("diff-tree", "-r", "-z", "--name-only", tree, current_tree)
        return {path for path in output.split("\0") if path}

    return sorted(changed_since(f"{plan.failed}^{{tree}}") & changed_since(plan.tree))


def _move_head(files: WorktreeFiles, plan: PendingRestore) -> None:
    """Restore HEAD and its branch."""
    log_message, ref = ("-m", "sequencer: an attempt failed"), f"refs/heads/{plan.branch}"
    if not plan.branch:
        files.run_git("update-ref", *log_message, "--no-deref", "HEAD", plan.head)
        return
    if files.run_git("rev-parse", ref) == plan.tip != plan.head:
        files.run_git("update-ref", *log_message, ref, plan.head, plan.tip)
    files.run_git("symbolic-ref", *log_message, "HEAD", ref)


def complete_restoration(files: WorktreeFiles, notify: Callable[[str], object]) -> None:
    """Complete a restoration that was interrupted, if there is one.

    Raises:
        NotSaved: it can't be completed.
    """
    plan = PendingRestore.from_fields(files.worktree.restoring)
    if plan is None:
        return
    files.make_durable()
    try:
        with files.copy_index(0) as index:
            files.snapshot_files(index, plan.tree)
            obstacle = restore(files, plan, index)
    except _FAILURES as error:
        raise NotSaved(_format_reason(error)) from error
    if obstacle is not None:
        notify(f"the changes of a failed attempt stay: {obstacle}; {plan.failed} has them too")
    else:
        notify(f"the changes of a failed attempt were set aside in commit {plan.failed[:12]}")


def remove_attempt_refs(git: Git, run: str | None) -> None:
    """Remove the refs of all attempts of *run*; if git fails, they stay."""
    folder = attempt_ref_prefix(run)
    with contextlib.suppress(GitFailed, SequencerError):
        commands = git.read_output(
            "for-each-ref", "--format=delete %(refname) %(objectname)", folder
        )
        if commands:
            git.run("update-ref", "--stdin", stdin=f"{commands}\n".encode())


_FAILURES = (NotSaved, GitFailed, SequencerError, OSError)
_SHARED = "another node works in the same folder, or has meanwhile"
_NOT_KEPT = "the files before this attempt can't be kept"


def _format_reason(error: BaseException) -> str:
    if isinstance(error, GitFailed):
        return f"git {error.argv[0]}: {error.reason}"
    return error.message if isinstance(error, SequencerError) else str(error)


def _parse_token(ref: str) -> int:
    return int(ref.rpartition("/")[2])


def _prompt_note(ref: str) -> str:
    return (
        "# Your last attempt failed\n\nIts changes were set aside: the files are as they were "
        f"before it. `git diff {ref}^ {ref}` shows what it had changed; take over what is of use."
    )
