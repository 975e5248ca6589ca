"""Takes a branch back to where an attempt found it, when the attempt's code was not accepted.

What the attempt did is on a branch of its own before anything moves. That an attempt's code is
to be pushed is noted before its commit is written, so that who comes after a kill knows which
commits nobody has accepted. Not promised: that files are taken back which have changes besides
(they stay as they are, as if no commit held them), or a branch on which a person has gone on.
"""

from __future__ import annotations

import re

from sequencer.checkout.committing import Committer, RefMoved
from sequencer.checkout.selection import Selection
from sequencer.checkout.tenancy import Collecting, Note, Tenancy
from sequencer.checkout.tree import WorkTree
from sequencer.model.head import Head
from sequencer.model.names import ref_part, slug
from sequencer.store.git.command import GitFailed

KEPT = "sequencer-kept"
"""Where branches with work that was not accepted are."""
_NAMES = 20
_PARENT = re.compile(r"^parent ([0-9a-f]+)$", re.MULTILINE)


class TakeBack:
    """The way back of one work tree."""

    def __init__(self, tree: WorkTree, tenancy: Tenancy, committer: Committer) -> None:
        """Take back the branch that is checked out in *tree*, as the note of *tenancy* says."""
        self._tree = tree
        self._tenancy = tenancy
        self._committer = committer
        self.base: str | None = None
        """The commit on which the agents that are at work here have begun; None: none are."""

    def plan(
        self,
        theirs: str | None,
        commit: str,
        *,
        has_more: bool,
        ref: str,
        kept: str,
        token: int,
    ) -> None:
        """Note that an attempt's code is to be pushed to *ref*: up to *commit*, or *has_more*.

        *theirs* is what was accepted last; *kept* is to be the name of the branch that has the
        code if it is not.

        Raises:
            WorkTreeRefused: it can't be written.
        """
        base = self.base
        if base is not None and theirs is not None and self._tree.contains(theirs, base):
            base = theirs
        if base is not None and (has_more or commit != base):
            plan = Collecting(base=base, commit=commit, ref=ref, kept=kept, token=token)
            self._tenancy.collect(plan)

    def is_due(self, note: Note | None, theirs: str | None) -> bool:
        """Return whether the branch has code of the attempt in *note* that *theirs* has not."""
        return self._due(note, theirs) is not None

    def _due(self, note: Note | None, theirs: str | None) -> tuple[Collecting, str] | None:
        plan = None if note is None else note.collecting
        commit = None if plan is None else self._tree.resolve("HEAD")
        if plan is None or commit is None or commit == plan.base:
            return None
        is_accepted = theirs is not None and self._tree.contains(theirs, commit)
        return None if is_accepted or not self._is_of_attempt(plan, commit) else (plan, commit)

    def settle(self, note: Note | None, theirs: str | None) -> list[str]:
        """Take the branch back if that is due; return what is told of it, or nothing.

        For one process at a time, while no agent works.

        Raises:
            WorkTreeRefused: it can't be done.
        """
        due = self._due(note, theirs)
        if due is None:
            return []
        plan, commit = due
        base = plan.base
        if theirs is not None and self._tree.contains(theirs, base):
            base = theirs if self._tree.contains(commit, theirs) else base
        name = self.kept(plan.kept, commit)
        self._reset(base)
        self._tenancy.collect(None)
        branch = plan.ref.removeprefix("refs/heads/")
        told = f"branch {branch} is at {base[:12]} again, what was accepted last"
        return [f"{told}; the work that was not is on branch {name}"]

    def _is_of_attempt(self, plan: Collecting, commit: str) -> bool:
        """Return whether *commit* is what the attempt of *plan* has left, with nothing on top."""
        if self._tree.resolve(plan.ref) != commit:
            return False
        if commit == plan.commit:
            return True
        head, _, message = self._tree.commit_text(commit).partition("\n\n")
        is_next = _PARENT.findall(head) == [plan.commit]
        return is_next and f"Token: {plan.token}" in message.splitlines()

    def _reset(self, base: str) -> None:
        git = self._tree.patient_git
        try:
            git.run("reset", "--quiet", "--keep", base)
        except GitFailed:
            try:
                git.run("reset", "--quiet", "--mixed", base, accepts=(0, 1))
            except GitFailed as failed:
                raise self._tree.refused(
                    f"can't be taken back to {base[:12]}, what was accepted last: {failed.reason}",
                    f"'git reset --keep {base}', then start again",
                ) from failed

    def kept(
        self, base: str, commit: str, selection: Selection | None = None, text: str = ""
    ) -> str:
        """Have a branch called like *base* hold *selection* on top of *commit*; return its name.

        Raises:
            WorkTreeRefused: git can't write it.
        """
        for number in range(1, _NAMES):
            name = base if number == 1 else f"{base}.{number}"
            ref = f"refs/heads/{name}"
            there = self._tree.resolve(ref)
            if selection is None and there is not None and self._tree.contains(there, commit):
                return name
            if there not in (None, commit):
                continue
            try:
                self._committer.snapshot(selection or Selection(), commit, ref, text)
            except RefMoved:
                continue
            return name
        raise self._tree.refused(f"has too many branches {base}.N", "remove those that are old")


def kept_name(run: str | None, step_index: int, token: int) -> str:
    """Return what the branch of an attempt's work is called; see `TakeBack.kept`."""
    return f"{KEPT}/{ref_part(slug(run or 'default'))}/{step_index}-{token}"


def accepted_in(tree: WorkTree, head: Head, theirs: str | None) -> str | None:
    """Return the newest commit that the state *head* or the remote, at *theirs*, has accepted."""
    work = None if head.work is None else head.work.commit
    if work is None or tree.resolve(work) is None:
        return theirs
    return work if theirs is None or tree.contains(work, theirs) else theirs
