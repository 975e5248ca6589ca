"""Merges the branch of a task into the checkout, which holds the whole of it afterwards or nothing.

The merge is made in the worktree of the task, on the commit that is checked out; only a
fast-forward touches the checkout, and that overwrites nothing. A commit that somebody makes
there meanwhile is merged with. Not promised: that what fits together line by line works.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum

from sequencer.checkout.shared import QUIET, Checkout
from sequencer.checkout.worktree import PlacedGit
from sequencer.store.git.command import GitFailed

TRIES = 5
"""So often somebody may commit in the checkout while a merge is made."""


class Verdict(StrEnum):
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

    verdict: Verdict
    commit: str = ""
    """The merge, or what is checked out."""
    files: tuple[str, ...] = ()
    """In conflict, or in the way."""
    reason: str = ""


def merge(checkout: Checkout, git: PlacedGit, tip: str, message: str) -> Merged:
    """Merge *tip* into *checkout*, in the worktree of *git*, whose own files are all committed.

    Whoever calls holds the lock of merges.

    Raises:
        GitFailed: git can't; the checkout is as it was.
    """
    for _ in range(TRIES):
        head = checkout.commit()
        begun = checkout.tree.under_way()
        if head is None or begun:
            return Merged(Verdict.IN_THE_WAY, reason=f"{begun or 'its first commit'} is under way")
        made = _made(checkout, git, head, tip, message)
        if made.verdict is not Verdict.MERGED:
            return made
        failed = checkout.forward(made.commit)
        after = checkout.commit()
        if failed is None and after is not None and checkout.contains(after, made.commit):
            return made
        if failed is not None and after == head:
            files = checkout.in_the_way(head, made.commit)
            return Merged(Verdict.IN_THE_WAY, head, files, failed.reason)
    return Merged(Verdict.IN_THE_WAY, reason="somebody else commits there all the time")


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
            return Merged(Verdict.IN_THE_WAY, head, (), failed.reason)
        return Merged(Verdict.CONFLICT, head, files, failed.reason)
    made = git.text("rev-parse", "HEAD")
    # git merges nothing where everything is there.
    return Merged(Verdict.NOTHING if made == head else Verdict.MERGED, made)
