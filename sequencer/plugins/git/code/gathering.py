"""The worktrees of a team's tasks: added, what is left in them committed, and removed.

Committed is all of it or nothing: where one file can't be (a key, too large, conflicts of a
merge), the worktree is left to a person. What an agent has done is on a branch before its folder
goes, and a branch goes only when the checkout has all of it. Each step may be cut short and is
made again by the next one who cleans.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterator

from msgspec import Struct

from sequencer.errors import SequencerError, WorkTreeRefused, typed_command
from sequencer.executors.redaction import Redaction
from sequencer.files.textfile import ref_part, slug
from sequencer.plugins.git.code.checkout import (
    PATIENCE_S,
    QUIET,
    Checkout,
    stage,
)
from sequencer.plugins.git.code.selection import (
    Content,
    Skipped,
    Unfit,
    ensure_fit_name,
    is_unchanged,
    read_content,
    reasons,
    secrets_by,
    with_keys,
)
from sequencer.plugins.git.code.stranded import keep, left_in, log_size, stranded
from sequencer.plugins.git.code.tree import (
    Change,
    StatusEntry,
    TreeStatus,
    listed,
    status_of,
    under_way_in,
)
from sequencer.plugins.git.code.worktrees import (
    BRANCHES,
    RUN_BRANCHES,
    Phase,
    Worktree,
    Worktrees,
    branch_of,
    git_dirs,
    is_linked,
    mend,
    name_of,
    place_in,
    remove,
    why_not_mended,
)
from sequencer.plugins.git.process import Git, GitFailed
from sequencer.project.schema import MIB
from sequencer.project.worktrees import run_worktree_name
from sequencer.store.identity import this_process

MAX_FILE_BYTES, MAX_TOTAL_BYTES = 32 * MIB, 128 * MIB
"""As large as a tracked output and a commit may be elsewhere."""
_KEY_BLOCK = b"PRIVATE KEY"


class Gathered(Struct, frozen=True):
    """What became of a worktree's files."""

    tip: str
    """The commit that holds all of it."""
    refused: tuple[Skipped, ...] = ()
    """Not empty: nothing was committed."""
    others: tuple[str, ...] = ()
    """Repositories in the worktree, which no commit of it holds."""
    notices: tuple[str, ...] = ()
    has_own: bool = False
    """The agent has committed itself."""


def _old_content(git: Git, path: str, commit: str = "HEAD") -> bytes | None:
    """Return what *commit* has at *path*; None: nothing, or nothing that is a file."""
    try:
        return git.run("cat-file", "blob", f"{commit}:{path}").stdout
    except GitFailed:
        return None


CLEANING_S = 60.0
"""After this no further worktree is begun with; the next one who cleans goes on."""


class Cleared(Struct, frozen=True):
    """What is left of a worktree."""

    branch: str | None
    """The branch with its work; None: the checkout has all of it, or there was none."""
    notices: tuple[str, ...] = ()


class TaskTrees:
    """Adds the worktrees of one run, commits what is left in them, and removes them."""

    def __init__(self, checkout: Checkout, run: str | None, redaction: Redaction) -> None:
        """Keep those of *run* beside its state; their work is merged into *checkout*.

        *redaction* knows what is never committed.
        """
        self.checkout = checkout
        self.notes = Worktrees(checkout.folders.state_file.parent, run, redaction.hide_text)
        self.run = run
        self._is_secret = secrets_by(redaction)

    # --- adding --------------------------------------------------------------------

    def add(  # noqa: PLR0917 - what a note says of a worktree
        self,
        task: str,
        token: int,
        run_id: str,
        status: TreeStatus,
        subject: str,
        phase: Phase = Phase.WORKING,
    ) -> Worktree:
        """Make a worktree on what is checked out, as *status* has it; without *task*, the run's.

        Raises:
            WorkTreeRefused: git can't.
        """
        noted = self._named(task, token, run_id, status, subject)
        return self.make(noted, phase, "--no-track", "-b", noted.branch, start=noted.base)

    def make(self, noted: Worktree, phase: Phase, *flags: str, start: str) -> Worktree:
        """Make *noted* on the commit or branch *start*, with the *flags* of ``git worktree add``.

        Raises: see `add`.
        """
        checkout = self.checkout
        try:
            self.notes.prepare()
            with checkout.repository_lock():
                worktree = self.notes.write(noted)
                folder = self.notes.folder(worktree)
                argv = ("worktree", "add", "--quiet", *flags, str(folder), start)
                try:
                    checkout.git.run(*argv, settings=QUIET)
                    git_dir = (folder / ".git").read_bytes().removeprefix(b"gitdir: ").strip()
                except (GitFailed, OSError):
                    self._removed(worktree, lambda: self._settled(worktree))
                    raise
            (folder / checkout.prefix).mkdir(parents=True, exist_ok=True)
            made = worktree.replace(phase=phase, git_dir=os.fsdecode(git_dir))
            place = place_in(checkout.common_dir, made)
            return self.notes.write(made.replace(git_dir=str(place)))
        except GitFailed as failed:
            raise checkout.refused(f"can't have another worktree: {failed.reason}") from failed
        except OSError as error:
            raise checkout.refused(f"can't have another worktree: {error}") from error

    def _named(
        self, task: str, token: int, run_id: str, status: TreeStatus, subject: str
    ) -> Worktree:
        """Return the note of a worktree whose folder and branch are nobody's."""
        first = name = name_of(task, token) if task else run_worktree_name(ref_part(slug(run_id)))
        number, branches = 1, BRANCHES if task else RUN_BRANCHES
        while self._tip(branch_of(self.run, name, branches)) or not self.notes.is_free(name):
            number += 1
            name = f"{first}-again{number}"
        return Worktree(
            name=name,
            task=task,
            subject=subject,
            token=token,
            run_id=run_id,
            branch=branch_of(self.run, name, branches),
            base=str(status.commit),
            checked_out=status.branch or "",
            owner=this_process(),
        )

    def _tip(self, branch: str) -> str | None:
        argv = ("rev-parse", "--verify", "--quiet", f"refs/heads/{branch}")
        return self.checkout.git.text(*argv, accepts=(0, 1)) or None

    # --- committing ----------------------------------------------------------------

    def git_of(self, worktree: Worktree) -> Git:
        """Return what runs git in *worktree*, whatever its agent has done to the file ``.git``.

        Without that file git would take the checkout around it for the worktree.
        """
        folder, place = self.notes.folder(worktree), worktree.place
        if place != place_in(self.checkout.common_dir, worktree):
            # A copy's note names the original's: nothing is committed there.
            raise self._foreign(worktree, "its note names another repository")
        return self.checkout.git.at(folder, timeout_s=PATIENCE_S, git_dir=place)

    def link_problem(self, worktree: Worktree) -> tuple[str, bool] | None:
        """Return why git would not work in *worktree* as it is, and whether that can be mended."""
        folder, common_dir = self.notes.folder(worktree), self.checkout.common_dir
        if folder.is_symlink() or not folder.is_dir():
            return "its folder is gone, or something else is in its place", False
        place = place_in(common_dir, worktree)
        if is_linked(place, folder) and worktree.place == place:
            return None
        if (why := why_not_mended(place, folder, common_dir)) is not None:
            return why, False
        return "the project was moved or copied with it", True

    def linked(self, worktree: Worktree) -> Worktree:
        """Return *worktree* with git's files and its note leading to this repository.

        They are written anew where that is safe. Nothing else is touched.

        Raises:
            WorkTreeRefused: it is not this repository's, or nobody can say.
        """
        problem = self.link_problem(worktree)
        if problem is None:
            return worktree
        if not problem[1]:
            raise self._foreign(worktree, problem[0])
        folder, place = self.notes.folder(worktree), place_in(self.checkout.common_dir, worktree)
        mend(place, folder)
        return self.notes.write(worktree.replace(git_dir=str(place)))

    def link_refusal(self, worktree: Worktree) -> tuple[WorkTreeRefused, bool] | None:
        """Return what `linked` would say or mend, in words, and whether it would mend it."""
        problem = self.link_problem(worktree)
        if problem is None or not problem[1]:
            return None if problem is None else (self._foreign(worktree, problem[0]), False)
        where, hint = str(self.notes.folder(worktree)), "the next start of the run repairs it"
        message = "git does not work in this worktree: the project was moved or copied with it"
        return WorkTreeRefused(message, where=where, hint=hint), True

    def _foreign(self, worktree: Worktree, why: str) -> WorkTreeRefused:
        folder = self.notes.folder(worktree)
        repair = typed_command(
            "git", "-C", str(self.checkout.top), "worktree", "repair", str(folder)
        )
        return WorkTreeRefused(
            f"is not a worktree of this repository as it is: {why}. Nothing was started in it or "
            "changed there",
            where=str(folder),
            hint=f"{repair} repairs what git still knows; what was committed in it is on branch "
            f"{worktree.branch}. Else copy what you need of it and move it away: the next start "
            "makes a new one",
        )

    def gather(self, worktree: Worktree) -> Gathered:
        """Commit what is in *worktree*, and point its branch at everything that was done.

        Raises:
            GitFailed: git can't; what was there is there still.
        """
        git = self.git_of(worktree)
        status = status_of(git)
        if status.commit is None:
            return Gathered(worktree.base, (Skipped(".", "is on a branch without a commit"),))
        if begun := under_way_in(worktree.place):
            return Gathered(status.commit, (Skipped(".", f"is in the middle of {begun}"),))
        is_own = self.checkout.is_own
        own = {e.path for e in status.entries if not e.is_tracked and is_own(e.path)}
        others = {e.path for e in status.entries if e.is_submodule or e.path.endswith("/")} - own
        entries = [e for e in status.entries if e.path not in own | others]
        read_before: dict[str, Content] = {}
        refused = tuple(self._refused(git, entries, read_before))
        if refused:
            return Gathered(status.commit, refused, tuple(sorted(others)))
        tip = status.commit
        if entries:
            stage(git, own | others)
            refused = tuple(
                Skipped(path, "was changed while it was read")
                for path, content in read_before.items()
                if not is_unchanged(git.folder, path, content)
            )
            if refused:
                return Gathered(status.commit, refused, tuple(sorted(others)))
            tip = self._committed(git, tip, self.notes.left_message(worktree))
        notices = (
            [f"left out because they are files of a run: {', '.join(sorted(own))}"] if own else []
        )
        notices += self._moved_branch(worktree, git, status, tip)
        notices += self.look_for_left(worktree)[1]
        has_own = status.commit != worktree.base
        return Gathered(tip, (), tuple(sorted(others)), tuple(notices), has_own)

    def with_keys(self, worktree: Worktree, gathered: Gathered) -> tuple[Skipped, ...]:
        """Return what must not be merged, because a commit of the agent's own adds a key.

        Raises:
            GitFailed: git can't.
        """
        if not gathered.has_own:
            return ()
        git = self.git_of(worktree)

        def is_new(path: str, data: bytes) -> bool:
            return self._is_new(git, path, data, worktree.base)

        known = [worktree.base, *filter(None, [self.checkout.commit()])]
        found = with_keys(
            git,
            gathered.tip,
            known,
            is_secret=self._is_secret,
            is_new=is_new,
            max_bytes=MAX_FILE_BYTES,
        )
        return tuple(Skipped(path, reason) for path, reason in dict(found).items())

    # --- what may be committed -----------------------------------------------------

    def _refused(
        self, git: Git, entries: list[StatusEntry], found: dict[str, Content]
    ) -> Iterator[Skipped]:
        """Yield what of *entries* may not be committed; keep in *found* how the others were."""
        left = MAX_TOTAL_BYTES
        for entry in entries:
            try:
                content = self._content(git, entry)
                if content is None:
                    continue
            except Unfit as unfit:
                yield Skipped(entry.path, str(unfit))
                continue
            left -= content.size
            if left < 0:
                reason = f"does not fit into the {MAX_TOTAL_BYTES} bytes of a commit"
                yield Skipped(entry.path, reason)
            found[entry.path] = content

    def _content(self, git: Git, entry: StatusEntry) -> Content | None:
        if entry.is_unmerged:
            raise Unfit("has conflicts of a merge")
        try:
            ensure_fit_name(entry.path, self._is_secret)
        except Unfit:
            # What is committed under such a name already is an example, or no secret any more.
            if not entry.is_tracked or _old_content(git, entry.path) is None:
                raise
        if entry.change is Change.DELETED:
            return None

        def is_new_secret(data: bytes) -> bool:
            return self._is_secret(data) and self._is_new(git, entry.path, data)

        return read_content(git.folder, entry.path, MAX_FILE_BYTES, is_new_secret)

    def _is_new(self, git: Git, path: str, data: bytes, commit: str = "HEAD") -> bool:
        """Return whether *data*, which holds a key, has one that *commit* has not."""
        old = _old_content(git, path, commit)
        if old is None or _KEY_BLOCK in data:
            return True
        known = frozenset(old.split(b"\n"))
        added = [line for line in data.split(b"\n") if line not in known]
        return self._is_secret(b"\n".join(added))

    # --- the commit ----------------------------------------------------------------

    def _committed(self, git: Git, parent: str, message: str) -> str:
        """Commit what is staged on top of *parent*; return the new commit, or *parent*.

        Raises:
            GitFailed: git can't.
        """
        flags = ("--quiet", "--no-verify", "--no-gpg-sign", "--cleanup=verbatim", "--file=-")
        git.run(
            *("commit", *flags),
            stdin=message.encode("utf-8", "replace"),
            extra=self.checkout.identity,
            settings=QUIET,
            # 1: there is nothing to commit after all, a line end that git makes the same.
            accepts=(0, 1),
        )
        commit = git.text("rev-parse", "HEAD")
        if commit == parent:
            git.run("diff", "--cached", "--quiet")
        return commit

    def _moved_branch(
        self, worktree: Worktree, git: Git, status: TreeStatus, tip: str
    ) -> list[str]:
        """Point the branch of *worktree* at *tip*, wherever its agent has committed that."""
        if status.branch == worktree.branch:
            return []
        ref = f"refs/heads/{worktree.branch}"
        old = git.text("rev-parse", "--verify", "--quiet", ref, accepts=(0, 1))
        notices = []
        if old and not self.checkout.contains(tip, old):
            for left in keep(git, worktree.branch, [old], [tip]):
                text = f"the agent continued from another commit; what it left is on {left.branch}"
                notices.append(text)
        git.run("update-ref", ref, tip)
        return notices

    def look_for_left(self, worktree: Worktree) -> tuple[Worktree, tuple[str, ...]]:
        """Keep what agents have committed in *worktree* and went away from; say what is new.

        Returns also the note, which has how far the log of HEAD was looked through. Where git
        fails, once more is next time.
        """
        size, told = log_size(worktree.place), tuple[str, ...]()
        start = worktree.looked_at if worktree.looked_at < size else 0
        if size == worktree.looked_at:
            return worktree, ()
        try:
            if left := left_in(worktree.place, start):
                git, here = self.git_of(worktree), self.checkout.commit()
                known = [worktree.base, git.text("rev-parse", "HEAD"), *([here] if here else [])]
                lost = stranded(git, left, known)
                tips = [commit for commit in lost if not self._is_own(commit, worktree)]
                made = keep(git, worktree.branch, tips, known)
                told = tuple(f"{one.words}; {one.told().hint}" for one in made)
            told += self._followed(worktree)
        except GitFailed:
            return worktree, ()
        return self.notes.write(worktree.replace(looked_at=size)), told

    def _is_own(self, commit: str, worktree: Worktree) -> bool:
        """Return whether *commit* is a merge of *worktree* that a kill has cut off.

        It has nothing that the worktree and the checkout do not have, and is made again.
        """
        told = self.git_of(worktree).text("show", "--no-patch", "--format=%P%n%B", commit)
        parents, _, message = told.partition("\n")
        is_merge = len(parents.split()) > 1
        return is_merge and message.strip() == self.notes.merge_message(worktree).strip()

    def _followed(self, worktree: Worktree) -> tuple[str, ...]:
        """Let the branch of *worktree* follow an agent that has gone on elsewhere, and say so."""
        git, ref = self.git_of(worktree), f"refs/heads/{worktree.branch}"
        branch = git.text("symbolic-ref", "--quiet", "--short", "HEAD", accepts=(0, 1))
        old, tip = self._tip(worktree.branch), git.text("rev-parse", "HEAD")
        is_there = branch == worktree.branch or old in {None, tip}
        if is_there or not self.checkout.contains(tip, old or tip):
            return ()
        git.run("update-ref", ref, tip, old or "")
        where = f"on branch {branch}" if branch else "on no branch"
        told = f"an agent has committed {where}; branch {worktree.branch} has its commits too"
        return (told,)

    # --- removing ------------------------------------------------------------------

    def remove(self, worktree: Worktree, merged: str | None) -> Cleared:
        """Remove the folder of *worktree*, and its branch if that ends in *merged*.

        Raises:
            GitFailed: git can't.
        """
        with self.checkout.repository_lock():
            return self._removed(worktree, lambda: self._without_branch(worktree, merged))

    def _removed(self, worktree: Worktree, settle: Callable[[], str | None]) -> Cleared:
        folder = self.notes.folder(worktree)
        if not remove(folder):
            return Cleared(settle(), (f"can't be removed: {folder}",))
        for path in git_dirs(self.checkout.common_dir, folder):
            remove(path)
        branch = settle()
        if branch is None or worktree.task:
            self.notes.forget(worktree)
        else:
            # Named until somebody has merged it.
            why, hint = (
                f"is not merged: {self.checkout.kept_on(worktree)}",
                self.checkout.by_hand(worktree),
            )
            self.notes.write(worktree.replace(phase=Phase.LEFT, why=why, hint=hint))
        return Cleared(branch)

    def _without_branch(self, worktree: Worktree, merged: str | None) -> str | None:
        """Remove the branch of *worktree* if it is at *merged*; else return its name."""
        if merged is None:
            return worktree.branch
        self.checkout.git.run("update-ref", "-d", f"refs/heads/{worktree.branch}", merged)
        return None

    def _settled(self, worktree: Worktree) -> str | None:
        """Remove the branch of *worktree* if it has nothing of its own; else return its name."""
        ref = f"refs/heads/{worktree.branch}"
        git = self.checkout.git
        tip = git.text("rev-parse", "--verify", "--quiet", ref, accepts=(0, 1))
        if not tip:
            return None
        head = self.checkout.commit()
        if tip != worktree.base and (head is None or not self.checkout.contains(head, tip)):
            return worktree.branch
        git.run("update-ref", "-d", ref, tip)
        return None

    def keep(self, worktree: Worktree) -> tuple[str, ...]:
        """Let *worktree* stay for a person, on its branch if that has what was merged."""
        if worktree.phase is Phase.MERGING and self.link_problem(worktree) is None:
            with contextlib.suppress(GitFailed, SequencerError):
                flags = ("--quiet", "--force")
                self.git_of(worktree).run("checkout", *flags, worktree.branch, settings=QUIET)
        with contextlib.suppress(OSError):
            self.notes.write(worktree.replace(phase=Phase.KEPT))
        return (f"stays until you look at it: {self.notes.folder(worktree)}",)

    def others_in(self, worktree: Worktree, gathered: Gathered) -> tuple[str, ...]:
        """Return the repositories in *worktree* that would be lost with it."""
        own = self.notes.folder(worktree) / ".git"
        found = [*gathered.others, *([".git"] if own.is_dir() and not own.is_symlink() else [])]
        if (worktree.place / "modules").exists() and not gathered.others:
            found.append("the submodules")
        return tuple(found)

    # --- after a kill --------------------------------------------------------------

    def clean(self, live: Collection[int]) -> tuple[str, ...]:
        """Remove the worktrees that nobody works in: those without a token in *live*."""
        notices: list[str] = []
        ends = time.monotonic() + CLEANING_S
        for name in self.notes.names():
            if time.monotonic() > ends:
                notices.append("there was not enough time to remove all old worktrees")
                break
            worktree = self.notes.read(name)
            if worktree is None or not worktree.task or worktree.token in live:
                continue
            if not self.notes.is_abandoned(worktree):
                continue
            try:
                found = self.put_away(worktree)
            except (GitFailed, SequencerError, OSError) as error:
                found = (f"can't be cleaned up: {error}",)
            notices += [f"worktree of task {worktree.task!r}: {text}" for text in found]
        return tuple(notices)

    def put_away(self, worktree: Worktree) -> tuple[str, ...]:
        """Remove *worktree*, in which nobody works; its work is on its branch then.

        What can't be committed stays where it is; returned is what a person should know.
        """
        with self.checkout.repository_lock():
            # Somebody else may have been faster.
            present = self.notes.read(worktree.name)
            return () if present is None else self._cleaned(present)

    def _cleaned(self, worktree: Worktree) -> tuple[str, ...]:
        is_there = self.notes.folder(worktree).is_dir()
        if worktree.phase is Phase.LEFT or (worktree.phase is Phase.KEPT and is_there):
            return ()
        notices: tuple[str, ...] = ()
        if worktree.phase is Phase.WORKING and is_there:
            worktree = self.linked(worktree)
            self._unlock(worktree)
            try:
                gathered = self.gather(worktree)
            except GitFailed as failed:
                return (f"can't be committed: {failed.reason}", *self.keep(worktree))
            if gathered.refused:
                return (told(gathered), *self.keep(worktree))
            if others := self.others_in(worktree, gathered):
                return (in_others(others), *gathered.notices, *self.keep(worktree))
            notices = gathered.notices
        cleared = self._removed(worktree, lambda: self._settled(worktree))
        kept = () if cleared.branch is None else (f"its work is on branch {cleared.branch}",)
        return (*notices, *kept, *cleared.notices)

    def _unlock(self, worktree: Worktree) -> None:
        """Remove the locks of a git that was killed in *worktree*, where nobody works any more."""
        branch = self.checkout.common_dir / "refs" / "heads" / f"{worktree.branch}.lock"
        for path in (worktree.place / "index.lock", worktree.place / "HEAD.lock", branch):
            path.unlink(missing_ok=True)


def told(gathered: Gathered) -> str:
    """Return in words what of a worktree can't be committed."""
    return f"nothing was committed: {reasons(gathered.refused)}"


def in_others(paths: Collection[str]) -> str:
    """Return in words that *paths* are repositories of their own."""
    return f"it contains repositories that no commit holds: {listed(paths)}"
