"""The same turns for clones of a repository: a run that is one ref of a remote.

There is no lock. A transition is a commit on top of the tip that was fetched, and
``push --force-with-lease=REF:OLD`` is the compare-and-swap. The answer to a push may be lost
although it was accepted; it was accepted if and only if the commit is the tip or an ancestor
of it. Any claim may be believed to be expired at any moment, and a clone may die anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from tests.model.exploring import Explorer, Parts, Verdict
from tests.model.world import GENESIS, Bounds, Head


class Commit(NamedTuple):
    """A transition in the history of the ref."""

    head: Head
    committed: tuple[int, int] | None = None
    """(step, token) that it accepts."""
    by: int = -1
    """Which clone made it; after its push only that clone has a use for it."""


Tip = tuple[Commit, ...]


class Clone(NamedTuple):
    """Where one process is; its clone may be gone with it."""

    at: str = "idle"
    claim: tuple[int, int] | None = None
    base: Tip = ()
    """The tip that it fetched, which is the lease of its push."""
    commit: Commit | None = None


class Remote(NamedTuple):
    """One state of everything."""

    tip: Tip = ()
    clones: tuple[Clone, ...] = ()
    granted: tuple[int, ...] = ()
    acknowledged: tuple[tuple[int, int], ...] = ()
    crashes: int = 0


@dataclass(frozen=True)
class Pushing:
    """The rules, each of which a mutant may break."""

    has_lease: bool = True
    """A push names the tip that it expects; without, it replaces whatever is there."""
    looks_after_lost_answer: bool = True
    """Whether the commit is in the ref decides; without, it is made again on the new tip."""
    has_fence: bool = True
    """A commit needs the claim with its own token."""
    takes_over: bool = True


class GitModel:
    """The moves of clones that race, and what must hold of the ref."""

    def __init__(self, protocol: Pushing, bounds: Bounds) -> None:
        self.protocol = protocol
        self.bounds = bounds

    def explore(self) -> Verdict[Remote]:
        """Visit every reachable state of the remote and its clones."""
        return Explorer(self).explore(self.bounds.states)

    # --- moves -----------------------------------------------------------------------

    def moves(self, world: Remote) -> Iterator[Remote]:
        """Yield every state that can come next."""
        step: dict[str, Callable[[Remote, int, Clone], Iterator[Remote]]] = {
            "idle": self._claim,
            "run": self._finish,
            "push": self._push,
            "lost answer": self._look,
            "accepted": self._tell,
        }
        for number, clone in enumerate(world.clones):
            if clone.at != "idle" and world.crashes < self.bounds.crashes:
                yield self._put(world, number, Clone(), crashes=world.crashes + 1)
            yield from step[clone.at](world, number, clone)

    def _put(self, world: Remote, number: int, clone: Clone, **changes: Any) -> Remote:
        clones = (*world.clones[:number], clone, *world.clones[number + 1 :])
        return world._replace(clones=clones, **changes)

    def _decided(
        self, world: Remote, number: int, clone: Clone, head: Head, *, accepts: bool
    ) -> Remote:
        commit = Commit(head, clone.claim if accepts else None, number)
        return self._put(world, number, clone._replace(at="push", base=world.tip, commit=commit))

    def _claimed(self, base: Head) -> Head | None:
        is_over = base.step >= self.bounds.steps or base.token >= self.bounds.tokens
        if is_over or (base.is_running and not self.protocol.takes_over):
            return None
        return Head(base.revision + 1, base.step, is_running=True, token=base.token + 1)

    def _claim(self, world: Remote, number: int, clone: Clone) -> Iterator[Remote]:
        claimed = self._claimed(head_of(world.tip))
        if claimed is not None:
            yield self._decided(world, number, clone, claimed, accepts=False)

    def _finish(self, world: Remote, number: int, clone: Clone) -> Iterator[Remote]:
        """Fetch, and accept the step, or say that it failed, if the claim is still there."""
        base, claim = head_of(world.tip), clone.claim
        assert claim is not None
        is_own = (base.step, base.token) == claim or not self.protocol.has_fence
        if not base.is_running or not is_own:
            yield self._put(world, number, Clone())
            return
        accepted = Head(base.revision + 1, base.step + 1, is_running=False, token=base.token)
        yield self._decided(world, number, clone, accepted, accepts=True)
        following = self._claimed(accepted)
        if following is not None:
            fused = following._replace(revision=base.revision + 1)
            yield self._decided(world, number, clone, fused, accepts=True)
        failed = accepted._replace(step=base.step)
        yield self._decided(world, number, clone, failed, accepts=False)

    def _push(self, world: Remote, number: int, clone: Clone) -> Iterator[Remote]:
        assert clone.commit is not None
        if len(clone.base) >= self.bounds.lines:
            return
        if self.protocol.has_lease and world.tip != clone.base:
            yield self._put(world, number, _again(clone))
            return
        tip = (*clone.base, clone.commit)
        for at in ("accepted", "lost answer"):
            yield self._put(world, number, clone._replace(at=at, base=()), tip=tip)
        # The connection may as well have broken before the push got there.
        yield self._put(world, number, clone._replace(at="lost answer", base=()))

    def _look(self, world: Remote, number: int, clone: Clone) -> Iterator[Remote]:
        """Fetch, and find out whether the push was accepted."""
        commit = clone.commit
        assert commit is not None
        if self.protocol.looks_after_lost_answer:
            at = clone._replace(at="accepted") if commit in world.tip else _again(clone)
            yield self._put(world, number, at)
            return
        base = head_of(world.tip)
        step = base.step + 1 if commit.committed else base.step
        redone = commit.head._replace(revision=base.revision + 1, step=step)
        again = clone._replace(at="push", base=world.tip, commit=commit._replace(head=redone))
        yield self._put(world, number, again)

    def _tell(self, world: Remote, number: int, clone: Clone) -> Iterator[Remote]:
        """Only here does anybody learn of the change."""
        commit = clone.commit
        assert commit is not None
        head = commit.head
        claim = (head.step, head.token) if head.is_running else None
        granted = (*world.granted, claim[1]) if claim else world.granted
        told = world.acknowledged
        if commit.committed is not None:
            told = (*told, commit.committed)
        after = Clone(at="run", claim=claim) if claim else Clone()
        yield self._put(world, number, after, granted=granted, acknowledged=told)

    # --- what must hold --------------------------------------------------------------

    def violation(self, before: Remote, world: Remote) -> str | None:
        """Return which promise *world* breaks, or nothing."""
        if world.tip[: len(before.tip)] != before.tip:
            return f"history was replaced: {before.tip} by {world.tip}"
        for what in (world.granted, world.acknowledged):
            if len(set(what)) != len(what):
                return f"granted or accepted twice: {what}"
        accepted = [commit.committed for commit in world.tip if commit.committed]
        if [step for step, _ in accepted] != list(range(len(accepted))):
            return f"steps were accepted out of order: {accepted}"
        if head_of(world.tip).step != len(accepted):
            return f"the run is at {head_of(world.tip)}, but {accepted} were accepted"
        if any(told not in accepted for told in world.acknowledged):
            return f"somebody was told of a commit that does not count: {world.acknowledged}"
        return None

    # --- what the exploration asks ---------------------------------------------------

    def start(self) -> Remote:
        return Remote(clones=tuple(Clone() for _ in range(self.bounds.workers)))

    def is_finished(self, world: Remote) -> bool:
        return head_of(world.tip).step >= self.bounds.steps

    def may_finish(self, world: Remote) -> bool:
        head = head_of(world.tip)
        return head.token + self.bounds.steps - head.step <= self.bounds.tokens

    def parts(self, world: Remote) -> Parts:
        """Take *world* apart, its clones in an order of their own; nobody looks at numbers."""
        order = sorted(range(len(world.clones)), key=lambda n: _rank(world.clones[n]))
        place = {number: at for at, number in enumerate(order)}
        waiting = {n for n in order if world.clones[n].commit is not None}

        def renamed(commit: Commit) -> Commit:
            return commit._replace(by=place[commit.by] if commit.by in waiting else -1)

        def known(tip: Tip) -> Tip:
            return tuple(renamed(commit) for commit in tip)

        clones = [
            clone._replace(base=known(clone.base), commit=clone.commit and renamed(clone.commit))
            for clone in (world.clones[number] for number in order)
        ]
        told = (tuple(sorted(world.granted)), tuple(sorted(world.acknowledged)), world.crashes)
        return (known(world.tip), told, *clones)

    def put_together(self, parts: Parts) -> Remote:
        tip, (granted, told, crashes), *clones = cast("Any", parts)
        return Remote(tip, tuple(clones), granted, told, crashes)


def head_of(tip: Tip) -> Head:
    return tip[-1].head if tip else GENESIS


def _again(clone: Clone) -> Clone:
    """Return to where the change is decided anew, on the tip as it is then."""
    return Clone(at="run", claim=clone.claim) if clone.claim else Clone()


def _rank(clone: Clone) -> tuple[object, ...]:
    """Return a key that sorts clones alike whatever their numbers are."""
    head = clone.commit.head if clone.commit else GENESIS
    bases = tuple((commit.head, commit.committed or ()) for commit in clone.base)
    accepts = clone.commit is not None and clone.commit.committed is not None
    return (clone.at, clone.claim or (), head, accepts, bases)
