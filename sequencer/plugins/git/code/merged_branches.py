"""Removes branches of attempts that are fully merged into the checkout."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Collection

from sequencer.errors import SequencerError
from sequencer.plugins.git.code.checkout import Checkout
from sequencer.plugins.git.code.worktrees import Worktrees, branch_of
from sequencer.plugins.git.process import GitFailed

CLEANING_S = 60.0
"""After this, no more branches are removed; the next one who cleans up goes on."""
_OF_ATTEMPT = re.compile(r"(?P<name>[^/]+-[0-9]+(-again[0-9]+)?)(\.left[0-9]*)?")
"""The last part of a branch's name: that of the worktree, or of what its agent went away from."""


def remove_merged_branches(checkout: Checkout, run: str | None, notes: Worktrees) -> None:
    """Remove branches of attempts of *run* that have nothing which *checkout* has not.

    Branches that a worktree or one of the *notes* still uses stay. If git fails, or a person has
    started something there, the next call tries again.
    """
    ends = time.monotonic() + CLEANING_S
    with contextlib.suppress(GitFailed, SequencerError, OSError):
        if not _merged(checkout, run, notes.names()) or checkout.under_way():
            return
        with checkout.repository_lock():
            # Nobody adds a worktree, nor its note, from here on.
            for ref, tip in _merged(checkout, run, notes.names()).items():
                if time.monotonic() > ends:
                    return
                with contextlib.suppress(GitFailed):
                    checkout.git.run("update-ref", "--no-deref", "-d", ref, tip)


def _merged(checkout: Checkout, run: str | None, held: Collection[str]) -> dict[str, str]:
    """Return the branches whose commits the checked out one has, with their tips."""
    prefix = f"refs/heads/{branch_of(run, '')}"
    form = "--format=%(refname)%00%(objectname)%00%(symref)%00%(worktreepath)"
    told = checkout.git.text("for-each-ref", "--merged=HEAD", form, prefix)
    found = {}
    for line in told.splitlines():
        ref, tip, *bound = line.split("\0")
        named = _OF_ATTEMPT.fullmatch(ref.removeprefix(prefix))
        if named is not None and named["name"] not in held and not any(bound):
            found[ref] = tip
    return found
