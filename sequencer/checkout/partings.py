"""What a person is told where a work tree and a remote have parted, with what to do about it.

Commands are written so that they can be typed as they stand, whatever a branch is called.
"""

from __future__ import annotations

import shlex

from sequencer.checkout.tree import WorkTree
from sequencer.errors import WorkTreeRefused


def diverged(
    tree: WorkTree, branch: str | None, remote: str, commit: str, theirs: str
) -> WorkTreeRefused:
    """Return that *branch* is at *commit* here and at *theirs* on *remote*, neither behind."""
    if tree.is_shallow:
        return _cut_short(tree, branch, remote, theirs)
    apart, there = tree.apart(commit, theirs), shlex.quote(f"{remote}/{branch}")
    return tree.refused(
        f"branch {branch} has diverged: {apart.ahead} commits are here alone, "
        f"{apart.behind} on {remote!r} alone",
        f"bring both together ('git fetch {remote}', then 'git rebase {there}'), "
        f"or leave yours ('git branch mine', then 'git reset --keep {there}')",
    )


def without(
    tree: WorkTree, branch: str | None, remote: str, theirs: str | None, wanted: str
) -> WorkTreeRefused:
    """Return that *remote* does not have the code that the state goes with, *wanted*."""
    if tree.is_shallow and theirs is not None:
        return _cut_short(tree, branch, remote, wanted)
    lacks = "is gone" if theirs is None else "was moved back"
    pushed = shlex.quote(f"{wanted}:refs/heads/{branch}")
    return tree.refused(
        f"branch {branch} of {remote!r} {lacks}: it does not hold commit "
        f"{wanted[:12]}, which the state goes with",
        f"'git push {remote} {pushed}' from "
        "a clone that has it; to go on without it, 'sequencer reset' begins a new run on what "
        "the branch has, and 'sequencer set step_index=N' puts that where this one was",
    )


def _cut_short(tree: WorkTree, branch: str | None, remote: str, commit: str) -> WorkTreeRefused:
    """Return that the history of *branch* which is here does not reach back to *commit*."""
    return tree.refused(
        f"this clone is shallow: its history of branch {branch} ends before commit "
        f"{commit[:12]}, so whether the branch holds that can't be told here",
        f"'git fetch --unshallow {shlex.quote(remote)}' brings the rest, then start again",
    )


def not_whole(tree: WorkTree, branch: str | None, remote: str, commit: str) -> WorkTreeRefused:
    """Return that *commit* lacks objects, here and in what *remote* has sent."""
    return tree.refused(
        f"commit {commit[:12]} of branch {branch} can't be had whole",
        f"look at both repositories with 'git fsck'; a fresh clone shows whether {remote!r} has it",
    )
