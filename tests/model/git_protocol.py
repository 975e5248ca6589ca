"""The same turns for clones of a repository: a run that is one ref of a remote.

There is no lock. A transition is a commit on top of the tip that was fetched, and
``push --force-with-lease=REF:OLD`` is the compare-and-swap. The answer to a push may be
lost although it was accepted, and the push itself may arrive long afterwards; it was
accepted if and only if the commit is the tip or an ancestor of it. Any claim may be believed
to be expired at any moment, and a clone may die anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from tests.model.deciding import claims
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
    pending: Commit | None = None
    """What it pushed for the same change before, gave up to hear of, and is under way."""


class Remote(NamedTuple):
    """One state of everything."""

    tip: Tip = ()
    clones: tuple[Clone, ...] = ()
    granted: tuple[int, ...] = ()
    acknowledged: tuple[tuple[int, int], ...] = ()
    refused: tuple[tuple[int, int], ...] = ()
    """The claims whose holders were told that somebody else has their step."""
    crashes: int = 0
    arrivals: int = 0
    under_way: tuple[Tip, Commit] | None = None
    """A push that may still arrive: the tip that it expects, and what it brings."""


@dataclass(frozen=True)
class Pushing:
    """The rules, each of which a mutant may break."""

    has_lease: bool = True
    """A push names the tip that it expects; without, it replaces whatever is there."""
    looks_after_lost_answer: bool = True
    """Whether the commit is in the ref decides; without, it is made again on the new tip."""
    remembers_pushes: bool = True
    """A change that is tried again knows what was pushed for it before."""
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
        if world.under_way is not None:
            yield self._arrived(world, *world.under_way)
        for number, clone in enumerate(world.clones):
            if clone.at != "idle" and world.crashes < self.bounds.crashes:
                yield self._put(world, number, Clone(), crashes=world.crashes + 1)
            yield from step[clone.at](world, number, clone)

    def _arrived(self, world: Remote, base: Tip, commit: Commit) -> Remote:
        is_taken = world.tip == base or not self.protocol.has_lease
        tip = (*base, commit) if is_taken else world.tip
        return world._replace(tip=tip, under_way=None)

    def _put(self, world: Remote, number: int, clone: Clone, **changes: Any) -> Remote:
        clones = (*world.clones[:number], clone, *world.clones[number + 1 :])
        return world._replace(clones=clones, **changes)

    def _decided(
        self, world: Remote, number: int, clone: Clone, head: Head, *, accepts: bool
    ) -> Remote:
        commit = Commit(head, clone.claim if accepts else None, number)
        return self._put(world, number, clone._replace(at="push", base=world.tip, commit=commit))

    def _claimed(self, base: Head) -> Head | None:
        if base.token >= self.bounds.tokens or not claims(
            base.step,
            self.bounds.steps,
            is_running=base.is_running,
            takes_over=self.protocol.takes_over,
        ):
            return None
        return Head(base.revision + 1, base.step, is_running=True, token=base.token + 1)

    def _claim(self, world: Remote, number: int, clone: Clone) -> Iterator[Remote]:
        if clone.pending is not None and clone.pending in world.tip:
            yield self._put(world, number, Clone(at="accepted", commit=clone.pending))
            return
        claimed = self._claimed(head_of(world.tip))
        if claimed is not None:
            yield self._decided(world, number, clone, claimed, accepts=False)

    def _finish(self, world: Remote, number: int, clone: Clone) -> Iterator[Remote]:
        """Fetch, and accept the step, or say that it failed, if the claim is still there."""
        base, claim = head_of(world.tip), clone.claim
        assert claim is not None
        if clone.pending is not None and clone.pending in world.tip:
            found = clone._replace(at="accepted", commit=clone.pending, pending=None)
            yield self._put(world, number, found)
            return
        is_own = (base.step, base.token) == claim or not self.protocol.has_fence
        if not base.is_running or not is_own:
            yield self._put(world, number, Clone(), refused=(*world.refused, claim))
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
        unanswered = clone._replace(at="lost answer")
        if self.protocol.has_lease and world.tip != clone.base:
            yield from self._look(world, number, unanswered)
            return
        tip = (*clone.base, clone.commit)
        yield self._put(world, number, clone._replace(at="accepted", base=()), tip=tip)
        yield self._put(world, number, unanswered, tip=tip)
        # The connection may as well have broken before the push got there,
        yield self._put(world, number, unanswered)
        if world.under_way is None and world.arrivals < self.bounds.arrivals:
            # or it is on its way.
            flight = (clone.base, clone.commit)
            yield self._put(
                world, number, unanswered, under_way=flight, arrivals=world.arrivals + 1
            )

    def _look(self, world: Remote, number: int, clone: Clone) -> Iterator[Remote]:
        """Fetch, and find out whether the push was accepted."""
        commit = clone.commit
        assert commit is not None
        if not self.protocol.looks_after_lost_answer:
            yield self._rebuilt(world, number, clone, commit)
            return
        if commit in world.tip:
            yield self._put(world, number, clone._replace(at="accepted", base=(), pending=None))
            return
        if world.tip == clone.base:
            # The same commit once more; or that is given up, and later the same change is tried.
            yield self._put(world, number, clone._replace(at="push"))
            pending = clone.pending
            if self.protocol.remembers_pushes and (world.under_way or ((), None))[1] == commit:
                pending = commit
            yield self._put(world, number, _again(clone)._replace(pending=pending))
            return
        yield self._put(world, number, _again(clone))

    def _rebuilt(self, world: Remote, number: int, clone: Clone, commit: Commit) -> Remote:
        base = head_of(world.tip)
        step = base.step + 1 if commit.committed else base.step
        redone = commit.head._replace(revision=base.revision + 1, step=step)
        again = clone._replace(at="push", base=world.tip, commit=commit._replace(head=redone))
        return self._put(world, number, again)

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
        return _mistold(world, accepted)

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
        waiting = {n for n in order if world.clones[n].commit or world.clones[n].pending}

        def renamed(commit: Commit) -> Commit:
            return commit._replace(by=place[commit.by] if commit.by in waiting else -1)

        def known(tip: Tip) -> Tip:
            return tuple(renamed(commit) for commit in tip)

        clones = [
            clone._replace(
                base=known(clone.base),
                commit=clone.commit and renamed(clone.commit),
                pending=clone.pending and renamed(clone.pending),
            )
            for clone in (world.clones[number] for number in order)
        ]
        flight = world.under_way and (known(world.under_way[0]), renamed(world.under_way[1]))
        told = tuple(tuple(sorted(t)) for t in (world.granted, world.acknowledged, world.refused))
        return (known(world.tip), (told, world.crashes, world.arrivals, flight), *clones)

    def put_together(self, parts: Parts) -> Remote:
        tip, ((granted, told, refused), crashes, arrivals, flight), *clones = cast("Any", parts)
        return Remote(
            tip, tuple(clones), granted, told, refused, crashes, arrivals, under_way=flight
        )


def _mistold(world: Remote, accepted: list[tuple[int, int]]) -> str | None:
    """Return who was told something else than what became of a step."""
    if any(told not in accepted for told in world.acknowledged):
        return f"somebody was told of a commit that does not count: {world.acknowledged}"
    if any(told in accepted for told in world.refused):
        return f"somebody was refused, whose commit counts: {world.refused}"
    return None


def head_of(tip: Tip) -> Head:
    return tip[-1].head if tip else GENESIS


def _again(clone: Clone) -> Clone:
    """Return to where the change is decided anew, on the tip as it is then."""
    again = Clone(pending=clone.pending)
    return again._replace(at="run", claim=clone.claim) if clone.claim else again


def _rank(clone: Clone) -> tuple[object, ...]:
    """Return a key that sorts clones alike whatever their numbers are."""
    head = clone.commit.head if clone.commit else GENESIS
    bases = tuple((commit.head, commit.committed or ()) for commit in clone.base)
    accepts = clone.commit is not None and clone.commit.committed is not None
    pending = clone.pending.head if clone.pending else GENESIS
    return (clone.at, clone.claim or (), head, accepts, bases, pending)
