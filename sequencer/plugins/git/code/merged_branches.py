"""Removes branches of attempts that are fully merged into the checkout."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Collection

from sequencer.errors import SequencerError
from sequencer.plugins.git.code.checkout import Checkout
from sequencer.plugins.git.code.worktrees import Worktrees, branch_name
from sequencer.plugins.git.process import GitFailed

CLEANING_S = 60.0
"""After this time no more branches are removed; the next cleanup continues."""
_OF_ATTEMPT = re.compile(r"(?P<name>[^/]+-[0-9]+(-again[0-9]+)?)(\.left[0-9]*)?")
"""The last part of a branch's name: a worktree's name, with ``.left`` for commits it has left."""


def remove_merged_branches(checkout: Checkout, run: str | None, notes: Worktrees) -> None:
    """Remove branches of attempts of *run* whose commits are all in *checkout*.

    Branches that a worktree or one of the *notes* still uses stay. If git fails, or a person has
    started something there, the next call tries again.
    """
    ends = time.monotonic() + CLEANING_S
    with contextlib.suppress(GitFailed, SequencerError, OSError):
        if (
            not _find_merged_branches(checkout, run, notes.list_names())
            or checkout.find_operation()
        ):
            return
        with checkout.repository_lock():
            # Read again under the lock: no process can add a worktree or a note now.
            for ref, tip in _find_merged_branches(checkout, run, notes.list_names()).items():
                if time.monotonic() > ends:
                    return
                with contextlib.suppress(GitFailed):
                    checkout.git.run("update-ref", "--no-deref", "-d", ref, tip)


def _find_merged_branches(
    checkout: Checkout, run: str | None, held_names: Collection[str]
) -> dict[str, str]:
    """Return ref -> tip for the run's branches that the checked-out commit contains."""
    prefix = f"refs/heads/{branch_name(run, '')}"
    form = "--format=%(refname)%00%(objectname)%00%(symref)%00%(worktreepath)"
    output = checkout.git.read_output("for-each-ref", "--merged=HEAD", form, prefix)
    merged_refs = {}
    for line in output.splitlines():
        ref, tip, *users = line.split("\0")
        match = _OF_ATTEMPT.fullmatch(ref.removeprefix(prefix))
        if match is not None and match["name"] not in held_names and not any(users):
            merged_refs[ref] = tip
    return merged_refs
