"""The files of a run's worktree before an attempt, and what a failed attempt did to them.

Steps that were accepted are not committed before the end of the run, so nothing may be reset. The
files before each attempt (tracked and untracked, not ignored) are kept in a commit of their own.
If the attempt fails, what it leaves is kept in another commit, and the files, HEAD and the index
are as before it. Both are written with an index file of their own; git compares each file once
more before it writes one. A kill in between is made up for before the next attempt.

Not promised: that a change of a person during an attempt is told from one of its agent (it is in
the commit, too); anything about ignored files, empty folders and repositories inside.
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
from sequencer.plugins.git.code.tree import STATUS, Change, listed, parse_status, under_way_in
from sequencer.plugins.git.code.worktrees import Worktree
from sequencer.plugins.git.process import Git, GitFailed
from sequencer.project.schema import MIB
from sequencer.store.folder import open_new, read_regular

ATTEMPTS = "refs/sequencer/attempts"
"""Below it, the name of the run, and the token of the attempt."""
LOOK_S = 30.0
"""So long it may take to keep the files before an attempt."""
SAVE_S = 120.0
"""So long it may take to keep what a failed attempt leaves."""
MOST_BYTES = 1024 * MIB
"""Of files that differ from the commit; nothing is kept of more than that."""
MOST_INDEX = 512 * MIB
FAST = "core.looseCompression=0"
"""Most of the time would go to packing files that are mostly written once."""
DURABLE = ("core.fsync=all", "core.fsyncMethod=batch")
"""What is about to be taken out of the work tree has to outlive a power cut."""
_PEOPLE = ("AUTHOR", "COMMITTER")
_BY = {
    **{f"GIT_{one}_NAME": "sequencer" for one in _PEOPLE},
    **{f"GIT_{one}_EMAIL": "sequencer@localhost" for one in _PEOPLE},
}
_FAILED = re.compile(r"Failed attempt [0-9]+ at iteration ([0-9]+) of run ([!-~]+)")
_OID = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_TOKEN = re.compile(r"[1-9][0-9]{0,18}")


def attempts_of(run: str | None) -> str:
    """Return the folder of the refs of the attempts of *run*."""
    return f"{ATTEMPTS}/{ref_part(slug(run or 'default'))}/"


class Unkept(Exception):
    """Why files are not kept or not restored, in words for people; inside this module only."""


class TreeLook(Struct, frozen=True):
    """A work tree at one moment."""

    tree: str
    head: str
    """The commit that is checked out."""
    branch: str
    """Empty: none is checked out."""
    index: str = ""
    """The tree of what was staged; empty: nothing was."""
    others: tuple[str, ...] = ()
    """Repositories inside, which are left as they are."""


class Restoring(Struct, frozen=True):
    """What is to be as before, until it is."""

    failed: str
    """The commit with what the failed attempt left."""
    tree: str
    head: str
    branch: str
    """Empty: none was checked out."""
    index: str
    left: str
    """The commit that was checked out after the attempt."""
    tip: str
    """Where the branch was then."""

    @classmethod
    def of(cls, kept: Mapping[str, str]) -> Restoring | None:
        """Return what a note has; None: nothing, or nothing that makes sense."""
        try:
            found = cls(**kept)
        except TypeError:
            return None
        oids = (found.failed, found.tree, found.head, found.index, found.left, found.tip)
        is_sound = all(isinstance(one, str) and _OID.fullmatch(one) for one in oids)
        return found if is_sound and (not found.branch or is_branch_name(found.branch)) else None

    def kept(self) -> dict[str, str]:
        """Return it as a note has it."""
        return {name: getattr(self, name) for name in self.__struct_fields__}


class WorktreeFiles(Struct):
    """Keeps and restores the files of one worktree."""

    worktree: Worktree
    git: Git
    """Runs in the worktree, whatever stands in its ``.git``."""
    is_own: Callable[[str], bool]
    """Whether a path is a file of the run."""
    folder: str
    """Of the refs of the run's attempts."""
    ends: float = field(default_factory=lambda: time.monotonic() + LOOK_S)
    settings: tuple[str, ...] = (*QUIET, FAST)

    @classmethod
    def of(cls, trees: TaskTrees, worktree: Worktree, run: str | None) -> Self:
        """Return those of *worktree*, in which *run* works.

        Raises:
            WorkTreeRefused: it is another repository's.
        """
        return cls(worktree, trees.git_of(worktree), trees.checkout.is_own, attempts_of(run))

    def save(self) -> None:
        """Take more time from now on, and let what is written outlive a power cut."""
        self.ends, self.settings = time.monotonic() + SAVE_S, (*QUIET, FAST, *DURABLE)

    def left_s(self) -> float:
        """Return how many seconds are left.

        Raises:
            Unkept: none are.
        """
        left = self.ends - time.monotonic()
        if left <= 0:
            raise Unkept("it took too long")
        return left

    def run_git(
        self, *argv: str, extra: Mapping[str, str] | None = None, stdin: bytes = b""
    ) -> str:
        """Run git with what is left of the time; return what it prints, without its line end."""
        made = self.git.run(
            *argv,
            stdin=stdin,
            extra={**_BY, **(extra or {})},
            settings=self.settings,
            timeout_s=self.left_s(),
        )
        return made.stdout.decode("utf-8", "surrogateescape").rstrip("\n")

    # --- looking -------------------------------------------------------------------

    @contextlib.contextmanager
    def index(self, token: int) -> Iterator[dict[str, str]]:
        """Give the block a copy of the worktree's index, as variables for git."""
        place = self.worktree.place
        path = place / f"sequencer-attempt-{token}.index"
        lock = path.with_name(f"{path.name}.lock")
        for left in (path, lock):  # of a git, or of a process, that was killed
            left.unlink(missing_ok=True)
        try:
            with contextlib.suppress(FileNotFoundError):
                data = read_regular(place / "index", max_bytes=MOST_INDEX)
                with open_new(path) as file:
                    file.write(data)
            yield {"GIT_INDEX_FILE": str(path)}
        finally:
            for left in (path, lock):
                left.unlink(missing_ok=True)

    def look(self, index: Mapping[str, str], before: str = "") -> TreeLook:
        """Return what the files are now, in git's objects; *index* holds them afterwards.

        *before* is the tree of an earlier look: a file that was ignored then, and was added by
        force since, is no file of the attempt's.

        Raises:
            Unkept: that can't be said, as it says.
            GitFailed: git can't.
        """
        git, place = self.git, self.worktree.place
        if (place / "index.lock").exists():
            raise Unkept("another git is at work there")
        status = parse_status(git.run(*STATUS, timeout_s=self.left_s()).stdout)
        if status.commit is None:
            raise Unkept("its branch has no commit")
        if begun := under_way_in(place):
            raise Unkept(f"{begun} is under way there")
        own = {e.path for e in status.entries if not e.is_tracked and self.is_own(e.path)}
        others = {e.path for e in status.entries if e.is_submodule or e.path.endswith("/")} - own
        entries = [e for e in status.entries if e.path not in own | others]
        changed = (e.path for e in entries if e.change is not Change.DELETED)
        if sum(map(partial(_size, git.folder), changed)) > MOST_BYTES:
            raise Unkept(f"more than {MOST_BYTES // MIB} MiB differ from the commit")
        staged, has_conflicts = "", any(entry.is_unmerged for entry in entries)
        if has_conflicts and not before:
            raise Unkept("there are conflicts of a merge")
        if any(entry.is_staged for entry in entries) and not has_conflicts:
            staged = self.run_git("write-tree", extra=index)
        if before:
            self.run_git("read-tree", "--reset", before, extra=index)
        if entries or before:
            stage(git, own | others, index, self.settings, self.left_s())
        tree = self.run_git("write-tree", extra=index)
        there = tuple(sorted(others))
        return TreeLook(tree, status.commit, status.branch or "", staged, there)

    def changed_rules(self, before: str, after: str) -> list[str]:
        """Return the files that say what git ignores and differ in the two trees."""
        argv = ("diff-tree", "-r", "-z", "--no-renames", "--name-only", before, after)
        told = self.run_git(*argv).split("\0")
        return [path for path in told if path.rpartition("/")[2] == ".gitignore"]

    def restore_rules(self, paths: Sequence[str], commit: str, index: Mapping[str, str]) -> None:
        """Make the files *paths* what *commit* has; it has none: remove them."""
        told = self.run_git("ls-tree", "-r", "-z", "--name-only", commit, "--", *paths)
        known = [path for path in told.split("\0") if path]
        if known:
            literal = {**index, "GIT_LITERAL_PATHSPECS": "1"}
            self.run_git("checkout", "--quiet", commit, "--", *known, extra=literal)
        for path in {*paths} - {*known}:
            with contextlib.suppress(FileNotFoundError):
                (self.git.folder / path).unlink()

    # --- refs ----------------------------------------------------------------------

    def commit(self, files: TreeLook, message: str, *parents: str) -> str:
        """Return a commit with *files* on *parents*, and behind it what was staged."""
        if files.index:
            staged = self._committed(files.index, "What was staged", [files.head])
            parents = (*parents, staged)
        return self._committed(files.tree, message, parents)

    def _committed(self, tree: str, message: str, parents: Sequence[str]) -> str:
        flags = [word for one in dict.fromkeys(parents) for word in ("-p", one)]
        text = f"{message}\n".encode()
        return self.run_git("commit-tree", tree, *flags, "-F", "-", stdin=text)

    def refs(self) -> dict[str, tuple[str, str]]:
        """Return the refs of the run's attempts, each with its commit and what that says."""
        form = "--format=%(refname) %(objectname) %(contents:subject)"
        told = self.run_git("for-each-ref", form, self.folder)
        found = (line.split(" ", 2) for line in told.splitlines())
        return {
            one[0]: (one[1], one[2] if one[2:] else "")
            for one in found
            if _TOKEN.fullmatch(one[0].removeprefix(self.folder))
        }

    def point(self, ref: str, commit: str, gone: Mapping[str, str]) -> None:
        """Let *ref* lead to *commit*, and remove the refs *gone*, each with its commit."""
        removed = "".join(f"delete {name} {old}\n" for name, old in gone.items())
        text = f"update {ref} {commit}\n"
        try:
            self.run_git("update-ref", "--stdin", stdin=f"{text}{removed}".encode())
        except GitFailed:
            if not gone:
                raise
            # Another time: somebody may hold one of them.
            self.run_git("update-ref", "--stdin", stdin=text.encode())


def _size(folder: Path, path: str) -> int:
    with contextlib.suppress(OSError):
        found = (folder / path).lstat()
        return found.st_size if stat.S_ISREG(found.st_mode) else 0
    return 0


class AttemptFiles(Struct):
    """The files of a run's worktree before one attempt."""

    files: WorktreeFiles
    attempt: Attempt
    is_shared: Callable[[], bool]
    """Whether others work in the same folder, or have meanwhile."""
    tell: Callable[[str], object]
    """Takes what is said in the step's log."""
    note: Callable[[dict[str, str]], None]
    """Keeps with the worktree what is to be restored; empty: nothing."""
    notes: tuple[str, ...] = ()
    before: TreeLook | None = None
    kept: str = ""
    """The commit with the files before."""
    why_not: str = ""
    """Why they are not kept."""

    @property
    def ref(self) -> str:
        """Return the ref of this attempt."""
        return f"{self.files.folder}{self.attempt.token}"

    def begin(self) -> None:
        """Keep the files, and find what an earlier attempt at the same step has left."""
        attempt, files = self.attempt, self.files
        try:
            if self.is_shared():
                self.why_not = _SHARED
                return
            refs = files.refs()
            earlier = [
                ref
                for ref, (_, said) in refs.items()
                if (found := _FAILED.fullmatch(said))
                and (int(found[1]), found[2]) == (attempt.iteration, attempt.run_id)
            ]
            if earlier:
                self.notes = (_prompt_note(max(earlier, key=_token)),)
            with files.index(attempt.token) as index:
                self.before = files.look(index)
            said = f"The files before attempt {attempt.token}"
            self.kept = files.commit(self.before, said, self.before.head)
            stale = {ref: oid for ref, (oid, said) in refs.items() if not _FAILED.fullmatch(said)}
            stale.pop(self.ref, None)
            files.point(self.ref, self.kept, stale)
        except _FAILURES as error:
            self.before, self.why_not = None, _reason(error)
            self.tell(f"{_NOT_KEPT}: {self.why_not}; if it fails, its changes stay")

    def set_aside(self) -> bool:
        """Make the files what they were, and keep what they are now; return whether that was done.

        Nothing is restored where others work there, or where it can't be done; the log says so.
        """
        if self.before is None:
            self.tell(f"the changes of this attempt stay: {self.why_not}")
            return False
        try:
            return self._set_aside(self.before)
        except Unkept as error:
            self.tell(f"the changes of this attempt stay: {error}")
        except _FAILURES as error:
            self.tell(
                f"the changes of this attempt could not be set aside: {_reason(error)}; the next "
                "attempt completes what was started"
            )
        return False

    def _set_aside(self, before: TreeLook) -> bool:
        files = self.files
        if self.is_shared():
            raise Unkept(_SHARED)
        files.save()
        with files.index(self.attempt.token) as index:
            after = files.look(index, before.tree)
            if (after.tree, after.head, after.index) == (before.tree, before.head, before.index):
                return False
            plan = self._saved(before, after)
            self.note(plan.kept())
            if rules := files.changed_rules(before.tree, after.tree):
                # What git ignores is to be judged as it was before.
                files.restore_rules(rules, self.kept, index)
                after = files.look(index, before.tree)
                plan = self._saved(before, after, plan.failed)
                self.note(plan.kept())
            told = _SHARED if self.is_shared() else restored(files, plan, index)
        self.note({})
        if told is not None:
            raise Unkept(f"{told}; {self.ref} has them too")
        stays = f"; repositories inside stay: {listed(after.others)}" if after.others else ""
        self.tell(
            f"the changes of this attempt were set aside on {self.ref}, and the files are as they "
            f"were before it{stays}"
        )
        return True

    def _saved(self, before: TreeLook, after: TreeLook, *first: str) -> Restoring:
        """Keep what the files are *after* the attempt; return what is to be as *before*.

        The first parent of the commit are the files before, so that it shows what has changed.
        """
        files, tip = self.files, after.head
        if before.branch and after.branch != before.branch:
            tip = files.run_git("rev-parse", f"refs/heads/{before.branch}")
        moved = (one for one in (*first, tip, after.head) if one != before.head)
        failed = files.commit(after, self._subject(), self.kept, *moved)
        files.point(self.ref, failed, {})
        staged = before.index or files.run_git("rev-parse", f"{before.head}^{{tree}}")
        old = before.head, before.branch, staged
        return Restoring(failed, before.tree, *old, after.head, tip)

    def _subject(self) -> str:
        attempt = self.attempt
        first = f"Failed attempt {attempt.number} at iteration {attempt.iteration}"
        return f"{first} of run {attempt.run_id}\n\nStep {attempt.step.name}, token {attempt.token}"


def restored(files: WorktreeFiles, plan: Restoring, index: Mapping[str, str]) -> str | None:
    """Bring files, HEAD and index to what *plan* says; return why they are left as they are.

    *index* has the files as they are now.

    Raises:
        GitFailed: git can't, or not in time; half of it may be done.
    """
    head = files.run_git("rev-parse", "HEAD")
    if head not in {plan.head, plan.left}:
        return "somebody has committed there meanwhile"
    now = files.run_git("write-tree", extra=index)
    if now != plan.tree:
        if foreign := _foreign(files, plan, now):
            return f"somebody has changed {listed(foreign)} meanwhile"
        try:
            files.run_git("read-tree", "-m", "-u", now, plan.tree, extra=index)
        except GitFailed as failed:
            if "not uptodate" in failed.stderr or "would be overwritten" in failed.stderr:
                return "somebody has changed files there meanwhile"
            raise
    _move_head(files, plan)
    files.run_git("read-tree", "--reset", plan.index)
    return None


def _foreign(files: WorktreeFiles, plan: Restoring, now: str) -> list[str]:
    """Return the paths that are neither as the attempt left them nor as they were before."""
    changed = [
        set(
            filter(
                None, files.run_git("diff-tree", "-r", "-z", "--name-only", one, now).split("\0")
            )
        )
        for one in (f"{plan.failed}^{{tree}}", plan.tree)
    ]
    return sorted(changed[0] & changed[1])


def _move_head(files: WorktreeFiles, plan: Restoring) -> None:
    """Let HEAD be what it was, with its branch."""
    why, ref = ("-m", "sequencer: an attempt failed"), f"refs/heads/{plan.branch}"
    if not plan.branch:
        files.run_git("update-ref", *why, "--no-deref", "HEAD", plan.head)
        return
    if files.run_git("rev-parse", ref) == plan.tip != plan.head:
        files.run_git("update-ref", *why, ref, plan.head, plan.tip)
    files.run_git("symbolic-ref", *why, "HEAD", ref)


def complete(files: WorktreeFiles, tell: Callable[[str], object]) -> None:
    """Make up for a restoration that was cut off.

    Raises:
        Unkept: it can't be made up for.
    """
    plan = Restoring.of(files.worktree.restoring)
    if plan is None:
        return
    files.save()
    try:
        with files.index(0) as index:
            files.look(index, plan.tree)
            told = restored(files, plan, index)
    except _FAILURES as error:
        raise Unkept(_reason(error)) from error
    if told is not None:
        tell(f"the changes of a failed attempt stay: {told}; {plan.failed} has them too")
    else:
        tell(f"the changes of a failed attempt were set aside in commit {plan.failed[:12]}")


def forget(git: Git, run: str | None) -> None:
    """Remove the refs of all attempts of *run*; where git fails, they stay."""
    folder = attempts_of(run)
    with contextlib.suppress(GitFailed, SequencerError):
        told = git.text("for-each-ref", "--format=delete %(refname) %(objectname)", folder)
        if told:
            git.run("update-ref", "--stdin", stdin=f"{told}\n".encode())


_FAILURES = (Unkept, GitFailed, SequencerError, OSError)
_SHARED = "another node works in the same folder, or has meanwhile"
_NOT_KEPT = "the files before this attempt can't be kept"


def _reason(error: BaseException) -> str:
    if isinstance(error, GitFailed):
        return f"git {error.argv[0]}: {error.reason}"
    return error.message if isinstance(error, SequencerError) else str(error)


def _token(ref: str) -> int:
    return int(ref.rpartition("/")[2])


def _prompt_note(ref: str) -> str:
    return (
        "# Your last attempt failed\n\nIts changes were set aside: the files are as they were "
        f"before it. `git diff {ref}^ {ref}` shows what it had changed; take over what is of use."
    )
