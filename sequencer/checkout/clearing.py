"""Removes worktrees: those whose tasks have ended, and those that a kill has left behind.

What an agent has done is on a branch before its folder goes, and a branch goes only when
the checkout has all of it. What can't be committed stays where it is. Each step may be cut
short and is made again by the next one who cleans.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from sequencer.checkout.gathering import Gathered, Gatherer, Refused
from sequencer.checkout.shared import PATIENCE_S, QUIET, Checkout
from sequencer.checkout.worktree import Phase, PlacedGit, Worktree, Worktrees, git_dirs, remove
from sequencer.errors import SequencerError
from sequencer.store.git.command import GitFailed

CLEANING_S = 60.0
"""After this no further worktree is begun with; the next one who cleans goes on."""
_SHOWN = 10
_OF_ATTEMPT = re.compile(r"(?P<name>[^/]+-[0-9]+(-again[0-9]+)?)(\.left)?")
"""The last part of a branch's name: that of the worktree, or of what its agent went away from."""


@dataclass(frozen=True, slots=True)
class Cleared:
    """What is left of a worktree."""

    branch: str | None
    """The branch with its work; None: the checkout has all of it, or there was none."""
    notices: tuple[str, ...] = ()


class Clearing:
    """Removes the worktrees of one run."""

    def __init__(
        self,
        checkout: Checkout,
        worktrees: Worktrees,
        gatherer: Gatherer,
        message: Callable[[Worktree], str],
        prefix: str,
    ) -> None:
        """Remove those of *worktrees*; *message* is that of a commit of what was left.

        The names of their branches begin with *prefix*.
        """
        self._checkout = checkout
        self._worktrees = worktrees
        self._gatherer = gatherer
        self._message = message
        self._prefix = f"refs/heads/{prefix}"

    def git_of(self, worktree: Worktree) -> PlacedGit:
        """Return what runs git in *worktree*."""
        folder = self._worktrees.folder(worktree)
        environment = self._checkout.environment
        allowed = self._checkout.allowed
        return PlacedGit(folder, worktree.place, environment, timeout_s=PATIENCE_S, allowed=allowed)

    def gather(self, worktree: Worktree) -> Gathered:
        """Commit what is in *worktree*; see `Gatherer.gather`."""
        return self._gatherer.gather(worktree, self.git_of(worktree), self._message(worktree))

    def with_keys(self, worktree: Worktree, gathered: Gathered) -> tuple[Refused, ...]:
        """Return what must not be merged of what the agent has committed itself."""
        if not gathered.has_own:
            return ()
        return self._gatherer.with_keys(worktree, self.git_of(worktree), gathered.tip)

    def remove(self, worktree: Worktree, merged: str | None) -> Cleared:
        """Remove the folder of *worktree*, and its branch if that ends in *merged*.

        Raises:
            GitFailed: git can't.
        """
        with self._checkout.repository_lock():
            return self._removed(worktree, lambda: self._without_branch(worktree, merged))

    def discard(self, worktree: Worktree) -> Cleared:
        """Remove the folder of *worktree*, and its branch if the checkout has all of it.

        For who has locked the repository.
        """
        return self._removed(worktree, lambda: self._settled(worktree))

    def _removed(self, worktree: Worktree, settle: Callable[[], str | None]) -> Cleared:
        folder = self._worktrees.folder(worktree)
        if not remove(folder):
            return Cleared(settle(), (f"can't be removed: {folder}",))
        for path in git_dirs(self._checkout.common_dir, folder):
            remove(path)
        branch = settle()
        self._worktrees.forget(worktree)
        return Cleared(branch)

    def _without_branch(self, worktree: Worktree, merged: str | None) -> str | None:
        """Remove the branch of *worktree* if it is at *merged*; else return its name."""
        if merged is None:
            return worktree.branch
        self._checkout.git.run("update-ref", "-d", f"refs/heads/{worktree.branch}", merged)
        return None

    def _settled(self, worktree: Worktree) -> str | None:
        """Remove the branch of *worktree* if it has nothing of its own; else return its name."""
        ref = f"refs/heads/{worktree.branch}"
        git = self._checkout.git
        tip = git.text("rev-parse", "--verify", "--quiet", ref, accepts=(0, 1))
        if not tip:
            return None
        head = self._checkout.commit()
        if tip != worktree.base and (head is None or not self._checkout.contains(head, tip)):
            return worktree.branch
        git.run("update-ref", "-d", ref, tip)
        return None

    def keep(self, worktree: Worktree) -> tuple[str, ...]:
        """Let *worktree* stay for a person, on its branch if that has what was merged."""
        if worktree.phase is Phase.MERGING:
            with contextlib.suppress(GitFailed, SequencerError):
                flags = ("--quiet", "--force")
                self.git_of(worktree).run("checkout", *flags, worktree.branch, settings=QUIET)
        with contextlib.suppress(OSError):
            self._worktrees.write(worktree.replace(phase=Phase.KEPT))
        return (f"stays until somebody has looked: {self._worktrees.folder(worktree)}",)

    def others_in(self, worktree: Worktree, gathered: Gathered) -> tuple[str, ...]:
        """Return the repositories in *worktree* that would be lost with it."""
        own = self._worktrees.folder(worktree) / ".git"
        found = [*gathered.others, *([".git"] if own.is_dir() and not own.is_symlink() else [])]
        if (worktree.place / "modules").exists() and not gathered.others:
            found.append("the submodules")
        return tuple(found)

    # --- branches that nobody needs ------------------------------------------------

    def remove_merged_branches(self) -> None:
        """Remove branches of attempts that have nothing which the checkout has not.

        Those stay that a worktree holds, of whomever, or a note. Once more, where git fails
        or somebody has begun something, is next time.
        """
        ends = time.monotonic() + CLEANING_S
        with contextlib.suppress(GitFailed, SequencerError, OSError):
            if not self._merged_branches() or self._checkout.tree.under_way():
                return
            with self._checkout.repository_lock():
                # Nobody adds a worktree, nor its note, from here on.
                for ref, tip in self._merged_branches().items():
                    if time.monotonic() > ends:
                        return
                    with contextlib.suppress(GitFailed):
                        self._checkout.git.run("update-ref", "--no-deref", "-d", ref, tip)

    def _merged_branches(self) -> dict[str, str]:
        """Return the branches that are behind the commit that is checked out, with their tips."""
        form = "--format=%(refname)%00%(objectname)%00%(symref)%00%(worktreepath)"
        told = self._checkout.git.text("for-each-ref", "--merged=HEAD", form, self._prefix)
        held = set(self._worktrees.names())
        found = {}
        for line in told.splitlines():
            ref, tip, *bound = line.split("\0")
            named = _OF_ATTEMPT.fullmatch(ref.removeprefix(self._prefix))
            if named is not None and named["name"] not in held and not any(bound):
                found[ref] = tip
        return found

    # --- after a kill --------------------------------------------------------------

    def clean(self, live: Collection[int]) -> tuple[str, ...]:
        """Remove the worktrees that nobody works in: those without a token in *live*."""
        notices: list[str] = []
        ends = time.monotonic() + CLEANING_S
        for name in self._worktrees.names():
            if time.monotonic() > ends:
                notices.append("more worktrees are to be removed than there was time for")
                break
            worktree = self._worktrees.read(name)
            if worktree is None or worktree.token in live:
                continue
            if not self._worktrees.is_abandoned(worktree):
                continue
            try:
                with self._checkout.repository_lock():
                    # Somebody else may have been faster.
                    present = self._worktrees.read(name)
                    found = () if present is None else self._cleaned(present)
            except (GitFailed, SequencerError, OSError) as error:
                found = (f"can't be cleaned up: {error}",)
            notices += [f"worktree of task {worktree.task!r}: {text}" for text in found]
        return tuple(notices)

    def _cleaned(self, worktree: Worktree) -> tuple[str, ...]:
        is_there = self._worktrees.folder(worktree).is_dir()
        if worktree.phase is Phase.KEPT and is_there:
            return ()
        notices: tuple[str, ...] = ()
        if worktree.phase is Phase.WORKING and is_there:
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
        cleared = self.discard(worktree)
        kept = () if cleared.branch is None else (f"its work is on branch {cleared.branch}",)
        return (*notices, *kept, *cleared.notices)

    def _unlock(self, worktree: Worktree) -> None:
        """Remove the locks of a git that was killed in *worktree*, where nobody works any more."""
        branch = self._checkout.common_dir / "refs" / "heads" / f"{worktree.branch}.lock"
        for path in (worktree.place / "index.lock", worktree.place / "HEAD.lock", branch):
            path.unlink(missing_ok=True)


def told(gathered: Gathered) -> str:
    """Return in words what of a worktree can't be committed."""
    return f"nothing was committed: {reasons(gathered.refused)}"


def reasons(refused: Sequence[Refused]) -> str:
    """Return in words what is *refused*, and why."""
    shown = [f"{one.path!r} {one.reason}" for one in refused[:_SHOWN]]
    more = len(refused) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def in_others(paths: Collection[str]) -> str:
    """Return in words that *paths* are repositories of their own."""
    return f"no commit holds the repositories in it: {listed(paths)}"


def listed(paths: Collection[str]) -> str:
    """Return *paths* for a message."""
    shown = ", ".join(map(repr, list(paths)[:_SHOWN]))
    return shown + (f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else "")
