"""What the end of a push means: refused for good, for now, or not known at all.

A push without an answer may land as long as every ref that it moves is where it found it.
Till then no refusal of a later one is the last word: nobody can tell what was accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sequencer.errors import (
    RemoteRefused,
    RemoteUnreachable,
    StateRefused,
    StorageFailed,
    WorkTreeRefused,
)
from sequencer.store.git.command import Git
from sequencer.store.git.local_remote import remote_folder
from sequencer.store.git.locks import in_the_way
from sequencer.store.git.remote import Move, Pushed, Remote

REBUILDS = 5
"""How often one transition is pushed, or built anew on a newer tip, in one go."""
WHO_MAY_PUSH = "whoever runs steps has to push there: a key or token that may write"
_MOVED = "was moved on the remote by somebody else while the step ran"
_PASSING = ("lock", "failed to update ref", "unable to", "cannot update", "atomic transaction")
"""Words of a refusal that another try may not get: two pushes met on the server."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A transition that was pushed."""

    commit: str
    line: bytes
    """Its record, newline included."""
    moves: tuple[Move, ...] = ()
    is_of_change: bool = True
    """Whether it is what was asked for, and not what had to come before."""

    def may_land(self, tips: Mapping[str, str], looked_at: Iterable[str]) -> bool:
        """Return whether it may still be accepted, the refs *looked_at* being at *tips*."""
        refs = set(looked_at)
        return all(tips.get(move.ref) == move.old for move in self.moves if move.ref in refs)


def ensure_passing(
    git: Git, remote: Remote, pushed: Pushed, moves: list[Move], tips: Mapping[str, str]
) -> None:
    """Return if the refusal of *moves*, the state's first, may not come the next time.

    Where an agent has pushed some of its commits itself, *moves* begins there afterwards.

    Raises:
        WorkTreeRefused: the code is what was refused.
        RemoteRefused: the state is.
        RemoteUnreachable: nobody may push with these credentials.
    """
    if pushed.is_denied:
        message = f"takes no push: {pushed.reason}"
        where = f"remote {remote.name!r}"
        raise RemoteUnreachable(message, where=where, hint=WHO_MAY_PUSH, is_denied=True)
    said = f" ({pushed.said})" if pushed.said else ""
    for place, move in enumerate(moves[1:], 1):
        there, name = tips.get(move.ref), move.ref.removeprefix("refs/heads/")
        if there != move.old and _is_between(git, move, there):
            moves[place] = Move(move.ref, there, move.new)
            return
        told = pushed.refused.get(move.ref, "")
        is_passing = any(word in told for word in _PASSING)
        if there == move.old and (not told or is_passing):
            continue
        what = f"takes no push: {told}{said}" if there == move.old else _MOVED
        raise WorkTreeRefused(
            f"{name} {what}",
            where=f"remote {remote.name!r}",
            hint="bring both together, then run the step again"
            if what is _MOVED
            else "look at the remote's rules for it, or set store.work.branch to another one",
        )
    if any(word in pushed.reason for word in _PASSING):
        return
    raise RemoteRefused(
        f"does not take the state of the run: {pushed.reason}{said}",
        where=_branch(moves, remote),
        hint="whoever runs this needs to push there: look at the rules for branches "
        "(protected names, hooks), or choose another name with store.branch",
    )


def _is_between(git: Git, move: Move, there: str | None) -> bool:
    """Return whether *there* is on the way that *move* goes."""
    if there is None or move.new is None:
        return False
    return all(
        not git.run("merge-base", "--is-ancestor", *pair, accepts=(0, 1, 128)).code
        for pair in ((move.old or there, there), (there, move.new))
    )


def of_the_state(ref: str) -> WorkTreeRefused:
    """Return the refusal of code that would be on *ref*, a branch of the state."""
    return WorkTreeRefused(
        f"the branch {ref.removeprefix('refs/heads/')!r} is that of the state; code needs "
        "another one",
        hint="'git switch BRANCH', or set store.branch",
    )


def not_atomic(remote: Remote) -> RemoteRefused:
    """Return the refusal of a *remote* that moves one branch after the other."""
    return RemoteRefused(
        "can't move several branches at once, and code was to move with the state",
        where=f"remote {remote.name!r}",
        hint="store.work.branch: none leaves code alone; or use a remote with atomic push",
    )


def in_doubt(refusal: StateRefused) -> RemoteUnreachable:
    """Return what is told of a *refusal* while an earlier push of the same may still land."""
    return RemoteUnreachable(
        "whether the change was accepted can't be told: an earlier push of it had no answer and "
        f"may still land, and now it is refused: {refusal.message}",
        where=refusal.where,
        hint=f"it is looked at again; {refusal.hint}",
        is_denied=isinstance(refusal, RemoteUnreachable) and refusal.is_denied,
    )


def not_taken(pushed: Pushed, moves: list[Move], remote: Remote, *, has_doubts: bool) -> Exception:
    """Return what is told when no try was accepted and none was refused for good."""
    if pushed.failure is not None:
        return RemoteUnreachable(
            f"whether the change was accepted can't be told: {pushed.failure.message}",
            hint=pushed.failure.hint,
            is_denied=pushed.failure.is_denied,
        )
    message = f"the remote did not take a push {REBUILDS} times: {pushed.reason}"
    hint = "nothing was accepted; 'sequencer check' tells what it can find, then start again"
    if "cannot create" in pushed.reason:
        hint = "nothing was accepted; 'sequencer check' tells which branch is in the way"
    elif "File exists" in pushed.reason:
        hint = "nothing was accepted; where no git is at work there, remove that lock by hand"
        folder = remote_folder(remote.git, remote.name)
        if folder is not None and (lock := in_the_way(pushed.reason, folder)) is not None:
            message, hint = f"{message}: {lock.words}", f"nothing was accepted; {lock.hint}"
    failed = StorageFailed(message, where=_branch(moves, remote), hint=hint)
    return in_doubt(failed) if has_doubts else failed


def _branch(moves: list[Move], remote: Remote) -> str:
    return f"branch {moves[0].ref.removeprefix('refs/heads/')} of {remote.name!r}"
