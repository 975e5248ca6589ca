"""Merges the branch of a task into the checkout, which holds the whole of it afterwards or nothing.

The merge is made in the worktree of the task, on the commit that is checked out; only a
fast-forward touches the checkout, and that overwrites nothing. A commit that somebody makes
there meanwhile is merged with. Not promised: that what fits together line by line works.
"""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from enum import StrEnum

from sequencer.git.checkout import QUIET, Checkout
from sequencer.git.process import GitFailed
from sequencer.git.worktrees import PlacedGit, Worktree

TRIES = 5
"""So often somebody may commit in the checkout while a merge is made."""
_LOCKED = re.compile(r"Unable to create '(.+\.lock)': File exists")


class MergeVerdict(StrEnum):
    """How a merge ended."""

    MERGED = "merged"
    NOTHING = "nothing"
    """The checkout has it all."""
    CONFLICT = "conflict"
    IN_THE_WAY = "in-the-way"
    """The checkout can't be moved."""


@dataclass(frozen=True, slots=True)
class Merged:
    """What a merge has come to."""

    verdict: MergeVerdict
    commit: str = ""
    """The merge, or what is checked out."""
    files: tuple[str, ...] = ()
    """In conflict, or in the way."""
    reason: str = ""
    hint: str = ""
    """What has to be done first, where that is known."""


def merge(checkout: Checkout, git: PlacedGit, tip: str, worktree: Worktree, message: str) -> Merged:
    """Merge *tip* into *checkout*, in *worktree*, where *git* runs and all is committed.

    Whoever calls holds the lock of merges.

    Raises:
        GitFailed: git can't; the checkout is as it was.
    """
    for _ in range(TRIES):
        merged = _tried(checkout, git, tip, worktree, message)
        if merged is not None:
            return merged
    return Merged(MergeVerdict.IN_THE_WAY, reason="somebody else commits there all the time")


def _tried(
    checkout: Checkout, git: PlacedGit, tip: str, worktree: Worktree, message: str
) -> Merged | None:
    """Merge, as `merge` does it; None: the checkout has another commit by now."""
    head = checkout.commit()
    begun = checkout.tree.under_way()
    if head is None or begun:
        return Merged(MergeVerdict.IN_THE_WAY, reason=f"{begun or 'its first commit'} is under way")
    if elsewhere := _elsewhere(checkout, head, worktree):
        return elsewhere
    made = _made(checkout, git, head, tip, message)
    # That takes a while; and a branch that is far behind could be moved to the merge as well.
    end = _elsewhere(checkout, head, worktree) if made.verdict is MergeVerdict.MERGED else made
    if end is not None:
        return end
    failed = checkout.forward(made.commit)
    after = checkout.commit()
    # What git has failed at may have come behind that.
    if after is not None and checkout.contains(after, made.commit):
        return made
    if failed is None or after != head:
        return None
    files = checkout.in_the_way(head, made.commit)
    return Merged(MergeVerdict.IN_THE_WAY, head, files, *_told(failed))


def _elsewhere(checkout: Checkout, head: str, worktree: Worktree) -> Merged | None:
    """Return that *worktree* was begun on something else than *head*; None: it was not.

    A merge would bring along what its branch has from there.
    """
    begun, present = worktree.checked_out, checkout.branch()
    if begun is not None and begun != present:
        was, now = (name or "none, a commit alone" for name in (begun, present))
        reason = f"another branch is checked out than the work was begun on: {now}, not {was}"
        target = shlex.quote(begun) if begun else f"--detach {worktree.base}"
        hint = f"go back with 'git switch {target}'"
        return Merged(MergeVerdict.IN_THE_WAY, head, (), reason, hint)
    if checkout.contains(head, worktree.base):
        return None
    short = worktree.base[:12]
    reason = f"what is checked out has no longer the commit {short} that the work was begun on"
    own = shlex.quote(f"{short}..{worktree.branch}")
    hint = f"'git cherry-pick {own}' brings the work alone; else bring that commit back"
    return Merged(MergeVerdict.IN_THE_WAY, head, (), reason, hint)


def _told(failed: GitFailed) -> tuple[str, str]:
    """Return why git could not move the checkout, and what to do first where that is known."""
    lock = _LOCKED.search(failed.stderr)
    if lock is None:
        return failed.reason, ""
    # Long messages are cut at their ends: what to do comes with the path.
    reason = f"{lock[1]} is a lock of git: remove it if no git runs there"
    return reason, "let git end there, or remove its lock"


def _made(checkout: Checkout, git: PlacedGit, head: str, tip: str, message: str) -> Merged:
    """Return a merge of *tip* into *head*, which nobody but the worktree has yet."""
    git.run("checkout", "--quiet", "--detach", head, settings=QUIET)
    flags = ("--no-ff", "--no-edit", "--quiet", "--no-stat", "--no-verify", "--no-log")
    try:
        git.run("merge", *flags, "-m", message, tip, extra=checkout.identity, settings=QUIET)
    except GitFailed as failed:
        told = git.run("diff", "--name-only", "--diff-filter=U", "-z").stdout
        files = tuple(sorted({os.fsdecode(path) for path in told.split(b"\0") if path}))
        if not files:
            return Merged(MergeVerdict.IN_THE_WAY, head, (), failed.reason)
        return Merged(MergeVerdict.CONFLICT, head, files, failed.reason)
    made = git.text("rev-parse", "HEAD")
    # git merges nothing where everything is there.
    return Merged(MergeVerdict.NOTHING if made == head else MergeVerdict.MERGED, made)
