"""The worktrees of a team's tasks: adds them, commits the files left in them, removes them.

All files are committed, or none: if one can't be (it has a key, is too large, or has merge
conflicts), the worktree stays for a person. An agent's work is on a branch before its folder is
removed, and a branch is removed only when the checkout has all of it. Each step may be interrupted;
the next process that cleans up repeats it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterator

from msgspec import Struct

from sequencer.errors import SequencerError, WorkTreeRefused, format_other_command
from sequencer.executors.redaction import Redaction
from sequencer.files.textfile import ref_part, slug
from sequencer.plugins.git.code.checkout import LONG_TIMEOUT_S, QUIET, Checkout, stage
from sequencer.plugins.git.code.selection import (
    Content,
    FileNotCommitted,
    Skipped,
    ensure_fit_name,
    find_new_secrets,
    format_reasons,
    is_unchanged,
    make_secret_check,
    read_content,
)
from sequencer.plugins.git.code.stranded import (
    find_stranded,
    keep_on_branches,
    log_size,
    read_left_commits,
)
from sequencer.plugins.git.code.tree import (
    Change,
    StatusEntry,
    TreeStatus,
    find_git_operation,
    format_paths,
    read_status,
)
from sequencer.plugins.git.code.worktrees import (
    BRANCHES,
    RUN_BRANCHES,
    Phase,
    Worktree,
    Worktrees,
    branch_name,
    find_admin_dir,
    find_git_dirs,
    is_linked,
    relink,
    relink_problem,
    remove_folder,
    worktree_name,
)
from sequencer.plugins.git.process import Git, GitFailed
from sequencer.project.schema import MIB
from sequencer.project.worktrees import run_worktree_name
from sequencer.store.identity import this_process

MAX_FILE_BYTES, MAX_TOTAL_BYTES = 32 * MIB, 128 * MIB
"""Caps for one file and one commit: those of a tracked output and a commit elsewhere."""
_KEY_BLOCK = b"PRIVATE KEY"


class Gathered(Struct, frozen=True):
    """The result of committing a worktree's files."""

    tip: str
    """The commit that holds all of the work."""
    refused: tuple[Skipped, ...] = ()
    """Files that can't be committed; if there are any, nothing was committed."""
    nested: tuple[str, ...] = ()
    """Repositories inside the worktree, which its commits do not contain."""
    notices: tuple[str, ...] = ()
    has_agent_commits: bool = False
    """Whether the agent has made commits itself."""


def _old_content(git: Git, path: str, commit: str = "HEAD") -> bytes | None:
    """Return the content of *path* in *commit*, or None if there is no such file."""
    try:
        return git.run("cat-file", "blob", f"{commit}:{path}").stdout
    except GitFailed:
        return None


CLEANING_S = 60.0
"""After this time no more worktrees are cleaned up; the next cleanup continues."""


class Cleared(Struct, frozen=True):
    """The result of removing a worktree."""

    branch: str | None
    """The branch that keeps its work; None: the checkout has all of it, or there was no work."""
    notices: tuple[str, ...] = ()


class TaskTrees:
    """Adds the worktrees of one run, commits what is left in them, and removes them."""

    def __init__(self, checkout: Checkout, run: str | None, redaction: Redaction) -> None:
        """Keep the worktrees of *run* next to its state; their work is merged into *checkout*.

        Files in which *redaction* finds a secret are never committed.
        """
        self.checkout = checkout
        self.notes = Worktrees(checkout.folders.state_file.parent, run, redaction.hide_text)
        self.run = run
        self._is_secret = make_secret_check(redaction)

    # --- adding --------------------------------------------------------------------

    def add(  # noqa: PLR0917 - the fields of a worktree's note
        self,
        task: str,
        token: int,
        run_id: str,
        status: TreeStatus,
        subject: str,
        phase: Phase = Phase.WORKING,
    ) -> Worktree:
        """Create a worktree on the commit of *status*; an empty *task* makes it the run's.

        Raises:
            WorkTreeRefused: git can't create it.
        """
        note = self._unused_note(task, token, run_id, status, subject)
        return self.add_from_note(note, phase, "--no-track", "-b", note.branch, start=note.base)

    def add_from_note(self, note: Worktree, phase: Phase, *flags: str, start: str) -> Worktree:
        """Create the worktree of *note* on *start*, with the *flags* of ``git worktree add``.

        Raises: see `add`.
        """
        checkout = self.checkout
        try:
            self.notes.prepare()
            with checkout.repository_lock():
                # The note comes first: after a kill it tells the next process what git was making.
                worktree = self.notes.write(note)
                folder = self.notes.folder(worktree)
                argv = ("worktree", "add", "--quiet", *flags, str(folder), start)
                try:
                    checkout.git.run(*argv, settings=QUIET)
                    git_dir = (folder / ".git").read_bytes().removeprefix(b"gitdir: ").strip()
                except (GitFailed, OSError):
                    self._remove_locked(worktree, lambda: self._drop_empty_branch(worktree))
                    raise
            (folder / checkout.prefix).mkdir(parents=True, exist_ok=True)
            worktree = worktree.replace(phase=phase, git_dir=os.fsdecode(git_dir))
            admin_dir = find_admin_dir(checkout.common_dir, worktree)
            return self.notes.write(worktree.replace(git_dir=str(admin_dir)))
        except GitFailed as failed:
            raise checkout.make_refusal(f"can't have another worktree: {failed.reason}") from failed
        except OSError as error:
            raise checkout.make_refusal(f"can't have another worktree: {error}") from error

    def _unused_note(
        self, task: str, token: int, run_id: str, status: TreeStatus, subject: str
    ) -> Worktree:
        """Return the note of a new worktree, with a folder and a branch that do not exist yet."""
        run_name = run_worktree_name(ref_part(slug(run_id)))
        base_name = name = worktree_name(task, token) if task else run_name
        number, branches = 1, BRANCHES if task else RUN_BRANCHES
        while self._tip(branch_name(self.run, name, branches)) or not self.notes.is_free(name):
            number += 1
            name = f"{base_name}-again{number}"
        return Worktree(
            name=name,
            task=task,
            subject=subject,
            token=token,
            run_id=run_id,
            branch=branch_name(self.run, name, branches),
            base=str(status.commit),
            checked_out=status.branch or "",
            owner=this_process(),
        )

    def _tip(self, branch: str) -> str | None:
        argv = ("rev-parse", "--verify", "--quiet", f"refs/heads/{branch}")
        return self.checkout.git.read_output(*argv, accepts=(0, 1)) or None

    # --- committing ----------------------------------------------------------------

    def open_git(self, worktree: Worktree) -> Git:
        """Return a `Git` for *worktree* that works even if its agent has changed the file ``.git``.

        Without that file, git alone would take the checkout around the worktree for it.
        """
        folder, admin_dir = self.notes.folder(worktree), worktree.admin_dir
        if admin_dir != find_admin_dir(self.checkout.common_dir, worktree):
            # In a copy of the project the note still names the original, where nothing may change.
            raise self._foreign_error(worktree, "its note names another repository")
        return self.checkout.git.with_folder(folder, timeout_s=LONG_TIMEOUT_S, git_dir=admin_dir)

    def link_problem(self, worktree: Worktree) -> tuple[str, bool] | None:
        """Return why git does not work in *worktree*, and whether `ensure_linked` can fix that.

        None: it works.
        """
        folder, common_dir = self.notes.folder(worktree), self.checkout.common_dir
        if folder.is_symlink() or not folder.is_dir():
            return "its folder is gone, or something else is in its place", False
        admin_dir = find_admin_dir(common_dir, worktree)
        if is_linked(admin_dir, folder) and worktree.admin_dir == admin_dir:
            return None
        if (reason := relink_problem(admin_dir, folder, common_dir)) is not None:
            return reason, False
        return "the project was moved or copied with it", True

    def ensure_linked(self, worktree: Worktree) -> Worktree:
        """Return *worktree*, whose git files and note lead to this repository.

        They are written again if needed and safe. Nothing else is changed.

        Raises:
            WorkTreeRefused: it is not this repository's, or that can't be known.
        """
        problem = self.link_problem(worktree)
        if problem is None:
            return worktree
        if not problem[1]:
            raise self._foreign_error(worktree, problem[0])
        admin_dir = find_admin_dir(self.checkout.common_dir, worktree)
        relink(admin_dir, self.notes.folder(worktree))
        return self.notes.write(worktree.replace(git_dir=str(admin_dir)))

    def link_refusal(self, worktree: Worktree) -> tuple[WorkTreeRefused, bool] | None:
        """Return the problem that `ensure_linked` raises or fixes, and whether it would fix it."""
        problem = self.link_problem(worktree)
        if problem is None or not problem[1]:
            return None if problem is None else (self._foreign_error(worktree, problem[0]), False)
        folder, hint = str(self.notes.folder(worktree)), "the next start of the run repairs it"
        message = "git does not work in this worktree: the project was moved or copied with it"
        return WorkTreeRefused(message, where=folder, hint=hint), True

    def _foreign_error(self, worktree: Worktree, reason: str) -> WorkTreeRefused:
        folder = self.notes.folder(worktree)
        repair = format_other_command(
            "git", "-C", str(self.checkout.top), "worktree", "repair", str(folder)
        )
        return WorkTreeRefused(
            f"is not a worktree of this repository as it is: {reason}. Nothing was started in it "
            "or changed there",
            where=str(folder),
            hint=f"{repair} repairs what git still knows; what was committed in it is on branch "
            f"{worktree.branch}. Else copy what you need of it and move it away: the next start "
            "makes a new one",
        )

    def gather(self, worktree: Worktree) -> Gathered:
        """Commit the files of *worktree*, and point its branch at the result.

        Raises:
            GitFailed: git failed; the files are unchanged.
        """
        git = self.open_git(worktree)
        status = read_status(git)
        if status.commit is None:
            return Gathered(worktree.base, (Skipped(".", "is on a branch without a commit"),))
        if operation := find_git_operation(worktree.admin_dir):
            return Gathered(status.commit, (Skipped(".", f"is in the middle of {operation}"),))
        is_own = self.checkout.is_own
        run_files = {e.path for e in status.entries if not e.is_tracked and is_own(e.path)}
        nested_paths = {e.path for e in status.entries if e.is_submodule or e.path.endswith("/")}
        nested_paths -= run_files
        entries = [e for e in status.entries if e.path not in run_files | nested_paths]
        contents: dict[str, Content] = {}
        refused_files = tuple(self._find_refused(git, entries, contents))
        if refused_files:
            return Gathered(status.commit, refused_files, tuple(sorted(nested_paths)))
        tip = status.commit
        if entries:
            stage(git, run_files | nested_paths)
            refused_files = tuple(
                Skipped(path, "was changed while it was read")
                for path, content in contents.items()
                if not is_unchanged(git.folder, path, content)
            )
            if refused_files:
                return Gathered(status.commit, refused_files, tuple(sorted(nested_paths)))
            tip = self._commit(git, tip, self.notes.left_message(worktree))
        notices = []
        if run_files:
            paths = ", ".join(sorted(run_files))
            notices.append(f"left out because they are files of a run: {paths}")
        notices += self._move_branch(worktree, git, status, tip)
        notices += self.keep_stranded_commits(worktree)[1]
        has_agent_commits = status.commit != worktree.base
        return Gathered(tip, (), tuple(sorted(nested_paths)), tuple(notices), has_agent_commits)

    def find_new_secrets(self, worktree: Worktree, gathered: Gathered) -> tuple[Skipped, ...]:
        """Return the paths that forbid a merge because one of the agent's commits adds a key.

        Raises:
            GitFailed: git failed.
        """
        if not gathered.has_agent_commits:
            return ()
        git = self.open_git(worktree)

        def is_new(path: str, data: bytes) -> bool:
            return self._is_new(git, path, data, worktree.base)

        known_commits = [worktree.base, *filter(None, [self.checkout.checked_out_commit()])]
        secrets = find_new_secrets(
            git,
            gathered.tip,
            known_commits,
            is_secret=self._is_secret,
            is_new=is_new,
            max_bytes=MAX_FILE_BYTES,
        )
        return tuple(Skipped(path, reason) for path, reason in dict(secrets).items())

    # --- files that may be committed -----------------------------------------------

    def _find_refused(
        self, git: Git, entries: list[StatusEntry], contents: dict[str, Content]
    ) -> Iterator[Skipped]:
        """Yield the *entries* that may not be committed; add the others to *contents*."""
        left_bytes = MAX_TOTAL_BYTES
        for entry in entries:
            try:
                content = self._read_entry(git, entry)
                if content is None:
                    continue
            except FileNotCommitted as unfit:
                yield Skipped(entry.path, str(unfit))
                continue
            left_bytes -= content.size
            if left_bytes < 0:
                reason = f"does not fit into the {MAX_TOTAL_BYTES} bytes of a commit"
                yield Skipped(entry.path, reason)
            contents[entry.path] = content

    def _read_entry(self, git: Git, entry: StatusEntry) -> Content | None:
        if entry.is_unmerged:
            raise FileNotCommitted("has conflicts of a merge")
        try:
            ensure_fit_name(entry.path, self._is_secret)
        except FileNotCommitted:
            # A file already committed under such a name is an example, or no longer secret.
            if not entry.is_tracked or _old_content(git, entry.path) is None:
                raise
        if entry.change is Change.DELETED:
            return None

        def is_new_secret(data: bytes) -> bool:
            return self._is_secret(data) and self._is_new(git, entry.path, data)

        return read_content(git.folder, entry.path, MAX_FILE_BYTES, is_new_secret)

    def _is_new(self, git: Git, path: str, data: bytes, commit: str = "HEAD") -> bool:
        """Return whether *data* has a key that *path* in *commit* does not have."""
        old_content = _old_content(git, path, commit)
        if old_content is None or _KEY_BLOCK in data:
            return True
        old_lines = frozenset(old_content.split(b"\n"))
        added_lines = [line for line in data.split(b"\n") if line not in old_lines]
        return self._is_secret(b"\n".join(added_lines))

    # --- the commit ----------------------------------------------------------------

    def _commit(self, git: Git, parent: str, message: str) -> str:
        """Commit the staged files on top of *parent*; return the new commit, or *parent*.

        Raises:
            GitFailed: git failed.
        """
        flags = ("--quiet", "--no-verify", "--no-gpg-sign", "--cleanup=verbatim", "--file=-")
        git.run(
            *("commit", *flags),
            stdin=message.encode("utf-8", "replace"),
            extra=self.checkout.identity,
            settings=QUIET,
            # 1: nothing to commit, for example because git normalized the line ends.
            accepts=(0, 1),
        )
        commit = git.read_output("rev-parse", "HEAD")
        if commit == parent:
            git.run("diff", "--cached", "--quiet")
        return commit

    def _move_branch(self, worktree: Worktree, git: Git, status: TreeStatus, tip: str) -> list[str]:
        """Point the branch of *worktree* at *tip*, even if its agent works on another branch.

        Commits that the branch had and *tip* does not have get their own branch; return notices.
        """
        if status.branch == worktree.branch:
            return []
        ref = f"refs/heads/{worktree.branch}"
        old_tip = git.read_output("rev-parse", "--verify", "--quiet", ref, accepts=(0, 1))
        notices = []
        if old_tip and not self.checkout.contains(tip, old_tip):
            for work in keep_on_branches(git, worktree.branch, [old_tip], [tip]):
                text = f"the agent continued from another commit; what it left is on {work.branch}"
                notices.append(text)
        git.run("update-ref", ref, tip)
        return notices

    def keep_stranded_commits(self, worktree: Worktree) -> tuple[Worktree, tuple[str, ...]]:
        """Keep the commits that agents made in *worktree* and then left, each on a branch.

        Returns the note, which remembers how far the log of HEAD was read, and notices. If git
        fails, the next call tries again.
        """
        size, notices = log_size(worktree.admin_dir), tuple[str, ...]()
        start = worktree.looked_at if worktree.looked_at < size else 0
        if size == worktree.looked_at:
            return worktree, ()
        try:
            if left_commits := read_left_commits(worktree.admin_dir, start):
                git, head = self.open_git(worktree), self.checkout.checked_out_commit()
                tip = git.read_output("rev-parse", "HEAD")
                known_commits = [commit for commit in (worktree.base, tip, head) if commit]
                oids = find_stranded(git, left_commits, known_commits)
                tips = [tip for tip in oids if not self._is_unfinished_merge(tip, worktree)]
                stranded_work = keep_on_branches(git, worktree.branch, tips, known_commits)
                notices = tuple(
                    f"{work.description}; {work.to_unmerged_work().hint}" for work in stranded_work
                )
            notices += self._follow_agent(worktree)
        except GitFailed:
            return worktree, ()
        return self.notes.write(worktree.replace(looked_at=size)), notices

    def _is_unfinished_merge(self, commit: str, worktree: Worktree) -> bool:
        """Return whether *commit* is a merge of *worktree* that was interrupted by a kill.

        Such a merge need not be kept: it adds nothing to the worktree and the checkout, and it is
        made again.
        """
        show = ("show", "--no-patch", "--format=%P%n%B", commit)
        parents, _, message = self.open_git(worktree).read_output(*show).partition("\n")
        is_merge = len(parents.split()) > 1
        return is_merge and message.strip() == self.notes.merge_message(worktree).strip()

    def _follow_agent(self, worktree: Worktree) -> tuple[str, ...]:
        """Fast-forward the branch of *worktree* to HEAD if its agent continued on another branch.

        Returns a notice if the branch was moved.
        """
        git, ref = self.open_git(worktree), f"refs/heads/{worktree.branch}"
        branch = git.read_output("symbolic-ref", "--quiet", "--short", "HEAD", accepts=(0, 1))
        old_tip, tip = self._tip(worktree.branch), git.read_output("rev-parse", "HEAD")
        has_all = branch == worktree.branch or old_tip in {None, tip}
        if has_all or not self.checkout.contains(tip, old_tip or tip):
            return ()
        git.run("update-ref", ref, tip, old_tip or "")
        location = f"on branch {branch}" if branch else "on no branch"
        notice = f"an agent has committed {location}; branch {worktree.branch} has its commits too"
        return (notice,)

    # --- removing ------------------------------------------------------------------

    def remove(self, worktree: Worktree, merged: str | None) -> Cleared:
        """Remove the folder of *worktree*, and its branch if that is at commit *merged*.

        Raises:
            GitFailed: git failed.
        """
        with self.checkout.repository_lock():
            return self._remove_locked(worktree, lambda: self._drop_branch_at(worktree, merged))

    def _remove_locked(self, worktree: Worktree, drop_branch: Callable[[], str | None]) -> Cleared:
        """Remove *worktree* under the repository's lock; *drop_branch* may remove its branch."""
        folder = self.notes.folder(worktree)
        if not remove_folder(folder):
            return Cleared(drop_branch(), (f"can't be removed: {folder}",))
        for path in find_git_dirs(self.checkout.common_dir, folder):
            remove_folder(path)
        branch = drop_branch()
        if branch is None or worktree.task:
            self.notes.remove_note(worktree)
        else:
            # The note stays, so that the branch is reported until it is merged.
            reason = f"is not merged: {self.checkout.describe_kept_work(worktree)}"
            hint = self.checkout.merge_command(worktree)
            self.notes.write(worktree.replace(phase=Phase.LEFT, why=reason, hint=hint))
        return Cleared(branch)

    def _drop_branch_at(self, worktree: Worktree, merged_tip: str | None) -> str | None:
        """Remove the branch, which must be at *merged_tip*; None keeps it and returns its name."""
        if merged_tip is None:
            return worktree.branch
        # Raises `GitFailed` if the branch is at another commit.
        self.checkout.git.run("update-ref", "-d", f"refs/heads/{worktree.branch}", merged_tip)
        return None

    def _drop_empty_branch(self, worktree: Worktree) -> str | None:
        """Remove the branch of *worktree* if it has no unmerged commits; else return its name."""
        ref = f"refs/heads/{worktree.branch}"
        git = self.checkout.git
        tip = git.read_output("rev-parse", "--verify", "--quiet", ref, accepts=(0, 1))
        if not tip:
            return None
        head = self.checkout.checked_out_commit()
        if tip != worktree.base and (head is None or not self.checkout.contains(head, tip)):
            return worktree.branch
        git.run("update-ref", "-d", ref, tip)
        return None

    def leave_to_person(self, worktree: Worktree) -> tuple[str, ...]:
        """Leave *worktree* to a person; after an unfinished merge, check out its branch again."""
        if worktree.phase is Phase.MERGING and self.link_problem(worktree) is None:
            with contextlib.suppress(GitFailed, SequencerError):
                flags = ("--quiet", "--force")
                self.open_git(worktree).run("checkout", *flags, worktree.branch, settings=QUIET)
        with contextlib.suppress(OSError):
            self.notes.write(worktree.replace(phase=Phase.KEPT))
        return (f"stays until you look at it: {self.notes.folder(worktree)}",)

    def find_nested_repositories(self, worktree: Worktree, gathered: Gathered) -> tuple[str, ...]:
        """Return the repositories inside *worktree* that would be lost with it."""
        nested_paths, git_path = [*gathered.nested], self.notes.folder(worktree) / ".git"
        # In a worktree .git is a file; a folder there is a repository that the agent has made.
        if git_path.is_dir() and not git_path.is_symlink():
            nested_paths.append(".git")
        if (worktree.admin_dir / "modules").exists() and not gathered.nested:
            nested_paths.append("the submodules")
        return tuple(nested_paths)

    # --- after a kill --------------------------------------------------------------

    def clean(self, live: Collection[int]) -> tuple[str, ...]:
        """Remove abandoned worktrees whose tokens are not in *live*; return notices for people."""
        notices: list[str] = []
        ends = time.monotonic() + CLEANING_S
        for name in self.notes.list_names():
            if time.monotonic() > ends:
                notices.append("there was not enough time to remove all old worktrees")
                break
            worktree = self.notes.read(name)
            if worktree is None or not worktree.task or worktree.token in live:
                continue
            if not self.notes.is_abandoned(worktree):
                continue
            try:
                texts = self.remove_unused(worktree)
            except (GitFailed, SequencerError, OSError) as error:
                texts = (f"can't be cleaned up: {error}",)
            notices += [f"worktree of task {worktree.task!r}: {text}" for text in texts]
        return tuple(notices)

    def remove_unused(self, worktree: Worktree) -> tuple[str, ...]:
        """Remove *worktree*, which no process uses anymore; its work is then on its branch.

        If files can't be committed, the worktree stays. Returns notices for people.
        """
        with self.checkout.repository_lock():
            # Another process may have removed it before this one got the lock.
            note = self.notes.read(worktree.name)
            return () if note is None else self._remove_unused_locked(note)

    def _remove_unused_locked(self, worktree: Worktree) -> tuple[str, ...]:
        has_folder = self.notes.folder(worktree).is_dir()
        if worktree.phase is Phase.LEFT or (worktree.phase is Phase.KEPT and has_folder):
            return ()
        notices: tuple[str, ...] = ()
        if worktree.phase is Phase.WORKING and has_folder:
            worktree = self.ensure_linked(worktree)
            self._remove_locks(worktree)
            try:
                gathering = self.gather(worktree)
            except GitFailed as failed:
                return (f"can't be committed: {failed.reason}", *self.leave_to_person(worktree))
            if gathering.refused:
                return (format_refusals(gathering), *self.leave_to_person(worktree))
            if paths := self.find_nested_repositories(worktree, gathering):
                return (format_nested(paths), *gathering.notices, *self.leave_to_person(worktree))
            notices = gathering.notices
        removal = self._remove_locked(worktree, lambda: self._drop_empty_branch(worktree))
        location = () if removal.branch is None else (f"its work is on branch {removal.branch}",)
        return (*notices, *location, *removal.notices)

    def _remove_locks(self, worktree: Worktree) -> None:
        """Remove the locks that a killed git left in *worktree*, which no process uses anymore."""
        branch = self.checkout.common_dir / "refs" / "heads" / f"{worktree.branch}.lock"
        for path in (worktree.admin_dir / "index.lock", worktree.admin_dir / "HEAD.lock", branch):
            path.unlink(missing_ok=True)


def format_refusals(gathered: Gathered) -> str:
    """Return a message that lists the files that can't be committed."""
    return f"nothing was committed: {format_reasons(gathered.refused)}"


def format_nested(paths: Collection[str]) -> str:
    """Return a message that lists *paths*, the repositories inside a worktree."""
    return f"it contains repositories that no commit holds: {format_paths(paths)}"
