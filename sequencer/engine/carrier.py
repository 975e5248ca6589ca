"""What the engine asks of whoever moves code together with the state of a run.

A step begins on the code that the state goes with, and its code moves in the same push
as the state, or neither does. Where a run is not shared through git nothing is moved, and
the work tree is nobody's business but the agents'.
"""

from __future__ import annotations

from collections.abc import Callable
from shlex import quote
from typing import Protocol

from sequencer.errors import WorkTreeRefused
from sequencer.model.head import Claim, Head, Work


class Carrier(Protocol):
    """Moves the code of a run between the work tree and the remote."""

    @property
    def refs(self) -> dict[str, str]:
        """Return the refs of the remote that are to be fetched with the state, and to where."""

    def ready(self, head: Head) -> None:
        """Look whether a step may begin in this work tree; before it is claimed.

        Raises:
            WorkTreeRefused: there is something that the step would overwrite, mix up with
                its own, or build on though nobody else has it.
            WorkTreeBusy: agents of another process work there; it is free in a while.
        """

    def arrive(self, head: Head) -> None:
        """Bring the work tree to the code that *head* goes with; after the claim.

        From now on it is kept for this process, until `leave`.

        Raises:
            WorkTreeRefused: it can't be brought there without losing something.
            RemoteUnreachable: the code had to be fetched, and there was no answer.
        """

    def collect(self, claim: Claim, step: str, head: Head) -> Work | None:
        """Commit what is declared, and return what the head is to name; after a successful *step*.

        It moves with the state whose head names it. None: there is nothing that the remote does
        not have, and the run knows its branch.

        Raises:
            WorkTreeRefused: the agent has left another branch or another history.
        """

    def keep(self, claim: Claim, step: str, head: Head) -> str | None:
        """Put the work of a *step* that was not accepted on a branch of its own.

        Returns its name, or None if there was no work. Index, HEAD and work tree stay as
        they are.
        """

    def leave(self, head: Head | None) -> None:
        """Note that no agent of this process works in the work tree any more.

        *head* is the run as it is now; None: that is not known.
        """


class NothingCarried:
    """The carrier of a run whose code is not moved."""

    @property
    def refs(self) -> dict[str, str]:
        """See `Carrier.refs`: none."""
        return {}

    def ready(self, head: Head) -> None:
        """See `Carrier.ready`: always."""

    def arrive(self, head: Head) -> None:
        """See `Carrier.arrive`: the work tree is right as it is."""

    def collect(self, claim: Claim, step: str, head: Head) -> Work | None:
        """See `Carrier.collect`: nothing moves."""

    def keep(self, claim: Claim, step: str, head: Head) -> str | None:
        """See `Carrier.keep`: what the step did is where the step did it."""

    def leave(self, head: Head | None) -> None:
        """See `Carrier.leave`: it was kept for nobody."""


class BranchGuard(NothingCarried):
    """The carrier of a run whose code is not moved, and belongs to one branch all the same."""

    def __init__(self, branch: str, checked_out: Callable[[], str | None]) -> None:
        """Let steps begin while *checked_out* returns *branch*."""
        self._branch = branch
        self._checked_out = checked_out

    def ready(self, head: Head) -> None:  # noqa: ARG002 - whatever the run has come to
        """See `Carrier.ready`.

        Raises:
            WorkTreeRefused: another branch is checked out, or none.
        """
        if (problem := self.problem()) is not None:
            raise WorkTreeRefused(problem[0], where="store.work.branch", hint=problem[1])

    def problem(self) -> tuple[str, str] | None:
        """Return why no step may begin, and what to do about it."""
        there = self._checked_out()
        if there == self._branch:
            return None
        told = "there is no git repository" if there is None else f"{there} is checked out"
        hint = f"'git switch {quote(self._branch)}', or set store.work.branch"
        return f"{told}, and steps run on branch {self._branch} only", hint


NOTHING_CARRIED = NothingCarried()
