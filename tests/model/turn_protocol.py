"""An explicit-state model of the turn protocol: every interleaving, every crash point.

The world is the journal, the published head and the lock; each critical section is split
into the moves of the real one: lock, read and decide, check the lock, append, sync, look
where the line landed, publish, unlock. A worker may crash between any two of them, in the
middle of an append, or the power may fail; anybody may delete the lock file. Any claim may
be believed to be expired at any moment, which covers clocks, pauses and slow heartbeats.

Not modelled: rotation, edits by hand and more than one run; the fault tests have those.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.model.world import GENESIS, Bounds, Head, Protocol, Record, Worker, World


@dataclass
class Verdict:
    """What the exploration found."""

    states: int
    violation: str | None = None
    path: list[World] = field(default_factory=list)


class Model:
    """Explores every world that the protocol can reach."""

    def __init__(self, protocol: Protocol, bounds: Bounds) -> None:
        self.protocol = protocol
        self.bounds = bounds

    # --- what a reader believes ------------------------------------------------------

    def winners(self, journal: tuple[Record, ...]) -> list[Record]:
        """Return the records that count."""
        chain: list[Record] = []
        if self.protocol.first_wins:
            for record in journal:
                if record.head is not None and record.head.revision == len(chain) + 1:
                    chain.append(record)
            return chain
        latest = {r.head.revision: r for r in journal if r.head is not None}
        while len(chain) + 1 in latest:
            chain.append(latest[len(chain) + 1])
        return chain

    def believed(self, world: World) -> Head | None:
        """Return the head that a reader takes for true; None: it can't read any."""
        if not self.protocol.has_journal:
            return world.head
        chain = self.winners(world.journal)
        newest = chain[-1].head if chain else GENESIS
        assert newest is not None
        head = world.head
        if head is None:
            return newest
        if head.revision > newest.revision:
            return head if self.protocol.trusts_head else None
        return newest if self.protocol.rolls_forward else head

    # --- moves -----------------------------------------------------------------------

    def moves(self, world: World) -> Iterator[World]:
        """Yield every world that can come next."""
        if world.crashes < self.bounds.crashes and self.bounds.power_loss:
            yield from self._power_loss(world)
        if world.lock is not None and world.deletions < self.bounds.deletions:
            yield world._replace(lock=None, deletions=world.deletions + 1)
        for number, worker in enumerate(world.workers):
            if worker.at != "idle" and world.crashes < self.bounds.crashes:
                yield from self._crash(world, number, worker)
            yield from self._step(world, number, worker)

    def _put(self, world: World, number: int, worker: Worker, **changes: Any) -> World:
        workers = (*world.workers[:number], worker, *world.workers[number + 1 :])
        return world._replace(workers=workers, **changes)

    def _crash(self, world: World, number: int, worker: Worker) -> Iterator[World]:
        lock = world.lock
        if lock == number and not self.protocol.lock_survives_crash:
            lock = None
        dead = self._put(world, number, Worker(), lock=lock, crashes=world.crashes + 1)
        yield dead
        if worker.at == "append" and self.protocol.has_journal:
            yield dead._replace(journal=(*world.journal, Record(None)))
        if worker.at == "publish" and not self.protocol.is_head_atomic:
            yield dead._replace(head=None)

    def _power_loss(self, world: World) -> Iterator[World]:
        """Everybody dies; what was not synced is gone, state.json may be old or new."""
        for head in {world.head, GENESIS}:
            yield world._replace(
                journal=world.journal[: world.durable],
                head=head,
                lock=None,
                workers=tuple(Worker() for _ in world.workers),
                crashes=world.crashes + 1,
            )

    def _step(self, world: World, number: int, worker: Worker) -> Iterator[World]:
        step: dict[str, Callable[[World, int, Worker], Iterator[World]]] = {
            "idle": self._lock,
            "run": self._lock,
            "claim": self._decide_claim,
            "commit": self._decide_commit,
            "fail": self._decide_fail,
            "check": self._check_lock,
            "append": self._append,
            "sync": self._sync,
            "landed": self._look,
            "publish": self._publish,
            "unlock": self._unlock,
        }
        yield from step[worker.at](world, number, worker)

    def _lock(self, world: World, number: int, worker: Worker) -> Iterator[World]:
        if self.protocol.has_lock and world.lock is not None:
            return
        lock = number if self.protocol.has_lock else None
        for at in ("claim",) if worker.at == "idle" else ("commit", "fail"):
            yield self._put(world, number, worker._replace(at=at, has_lock=True), lock=lock)

    def _give_up(self, world: World, number: int, worker: Worker) -> World:
        lock = None if world.lock == number else world.lock
        return self._put(world, number, worker._replace(has_lock=False, record=None), lock=lock)

    def _decided(
        self, world: World, number: int, worker: Worker, head: Head, committed: bool
    ) -> World:
        record = Record(head, worker.claim if committed else None, number)
        decided = worker._replace(at="check", expected=len(world.journal), record=record)
        return self._put(world, number, decided)

    def _claimed(self, base: Head, number: int) -> Head | None:
        if base.step >= self.bounds.steps or base.token >= self.bounds.tokens:
            return None
        if base.is_running and not self.protocol.takes_over:
            return None
        return Head(
            revision=base.revision + 1,
            step=base.step,
            is_running=True,
            token=base.token + 1,
            owner=self._name(number),
        )

    @staticmethod
    def _at_rest(base: Head, step: int, token: int) -> Head:
        return Head(base.revision + 1, step, is_running=False, token=token, owner=-1)

    def _name(self, number: int) -> int:
        return 0 if self.protocol.fences == "owner" else number

    def _decide_claim(self, world: World, number: int, worker: Worker) -> Iterator[World]:
        base = self.believed(world)
        yield self._give_up(world, number, Worker())
        claimed = self._claimed(base, number) if base is not None else None
        if claimed is not None:
            yield self._decided(world, number, worker, claimed, committed=False)

    def _is_holder(self, base: Head, number: int, claim: tuple[int, int]) -> bool:
        if self.protocol.fences == "nothing":
            return base.is_running
        if self.protocol.fences == "owner":
            return base.is_running and base.owner == self._name(number)
        return base.is_running and (base.step, base.token) == claim

    def _decide_commit(self, world: World, number: int, worker: Worker) -> Iterator[World]:
        base = self.believed(world)
        claim = worker.claim
        assert claim is not None
        if base is None or not self._is_holder(base, number, claim):
            yield self._give_up(world, number, Worker())
            return
        accepted = self._at_rest(base, base.step + 1, base.token)
        yield self._decided(world, number, worker, accepted, committed=True)
        following = self._claimed(accepted, number)
        if following is not None:
            # Accepting a step and claiming the next one is one record.
            fused = following._replace(revision=base.revision + 1)
            yield self._decided(world, number, worker, fused, committed=True)

    def _decide_fail(self, world: World, number: int, worker: Worker) -> Iterator[World]:
        base = self.believed(world)
        assert worker.claim is not None
        if base is None or not self._is_holder(base, number, worker.claim):
            yield self._give_up(world, number, Worker())
            return
        token = 0 if self.protocol.resets_token else base.token
        yield self._decided(
            world,
            number,
            worker,
            self._at_rest(base, base.step, token),
            committed=False,
        )

    def _check_lock(self, world: World, number: int, worker: Worker) -> Iterator[World]:
        is_lost = self.protocol.has_lock and self.protocol.checks_lock and world.lock != number
        if is_lost:
            yield self._again(world, number, worker)
        else:
            at = "append" if self.protocol.publishes_late else "publish"
            yield self._put(world, number, worker._replace(at=at))

    def _again(self, world: World, number: int, worker: Worker) -> World:
        """Return to where the change is decided anew, on the state as it is then."""
        claim = worker.claim
        restarted = Worker(at="run", claim=claim) if claim else Worker()
        return self._give_up(world, number, restarted)

    def _append(self, world: World, number: int, worker: Worker) -> Iterator[World]:
        if not self.protocol.has_journal:
            yield self._put(world, number, worker._replace(at="publish"))
            return
        if len(world.journal) >= self.bounds.lines:
            return
        assert worker.record is not None
        journal = (*world.journal, worker.record)
        at = "sync" if self.protocol.syncs else "landed"
        yield self._put(world, number, worker._replace(at=at), journal=journal)

    def _sync(self, world: World, number: int, worker: Worker) -> Iterator[World]:
        yield self._put(world, number, worker._replace(at="landed"), durable=len(world.journal))

    def _look(self, world: World, number: int, worker: Worker) -> Iterator[World]:
        # Where a line that does not count came between, the own one may have won all the same.
        has_won = worker.record in self.winners(world.journal)
        if self.protocol.checks_landing and self.protocol.has_journal and not has_won:
            yield self._again(world, number, worker)
            return
        at = "publish" if self.protocol.publishes_late else "unlock"
        yield self._put(world, number, worker._replace(at=at))

    def _publish(self, world: World, number: int, worker: Worker) -> Iterator[World]:
        assert worker.record is not None
        at = "unlock" if self.protocol.publishes_late else "append"
        yield self._put(world, number, worker._replace(at=at), head=worker.record.head)

    def _unlock(self, world: World, number: int, worker: Worker) -> Iterator[World]:
        """Free the lock and acknowledge: only here does anybody learn of the change."""
        record = worker.record
        assert record is not None
        assert record.head is not None
        claim = (record.head.step, record.head.token) if record.head.is_running else None
        granted = (*world.granted, claim[1]) if claim else world.granted
        told = world.acknowledged
        if record.committed is not None:
            told = (*told, record.committed)
        lock = None if world.lock == number else world.lock
        after = Worker(at="run", claim=claim) if claim else Worker()
        yield self._put(world, number, after, lock=lock, granted=granted, acknowledged=told)

    # --- what must hold --------------------------------------------------------------

    def violation(self, before: World | None, world: World) -> str | None:
        """Return which promise *world* breaks, or nothing."""
        head = self.believed(world)
        if head is None:
            return "the state can't be read"
        broken = _doubled(world) or self._lost(world, head)
        return broken or (None if before is None else self._gone_back(before, world, head))

    def _lost(self, world: World, head: Head) -> str | None:
        if any(step >= head.step for step, _ in world.acknowledged):
            return f"an accepted step was lost: {world.acknowledged}, the run is at {head.step}"
        if not self.protocol.has_journal:
            return None
        accepted = [r.committed for r in self.winners(world.journal) if r.committed]
        if [step for step, _ in accepted] != list(range(len(accepted))):
            return f"steps were accepted out of order: {accepted}"
        if any(told not in accepted for told in world.acknowledged):
            return f"somebody was told of a commit that does not count: {world.acknowledged}"
        return None

    def _gone_back(self, before: World, world: World, head: Head) -> str | None:
        earlier = self.believed(before)
        if earlier is None or world.crashes != before.crashes:
            return None
        is_back = (head.revision, head.token) < (earlier.revision, earlier.token)
        return f"the run went back from {earlier} to {head}" if is_back else None

    def explore(self) -> Verdict:
        """Visit every reachable world; the verdict has the shortest way to a violation."""
        start = World(workers=tuple(Worker() for _ in range(self.bounds.workers)))
        came_from: dict[World, World | None] = {start: None}
        leads_to: dict[World, list[World]] = {}
        waiting = deque([start])
        while waiting:
            world = waiting.popleft()
            leads_to[world] = following = list(self.moves(world))
            for found in following:
                if (broken := self.violation(world, found)) is not None:
                    return Verdict(len(came_from), broken, _path(came_from, world, found))
                if found not in came_from:
                    came_from[found] = world
                    waiting.append(found)
            if len(came_from) > self.bounds.states:
                return Verdict(len(came_from), "too many states to explore")
        stuck = self._stuck(leads_to)
        if stuck is not None:
            return Verdict(len(came_from), "a run can get stuck", _path(came_from, stuck, None))
        return Verdict(len(came_from))

    def _stuck(self, leads_to: dict[World, list[World]]) -> World | None:
        """Return a world from which the run can never be finished, tokens permitting."""
        back: dict[World, list[World]] = {}
        for world, following in leads_to.items():
            for found in following:
                back.setdefault(found, []).append(world)
        good = {w for w in leads_to if self._at(w).step >= self.bounds.steps}
        spreading = deque(good)
        while spreading:
            for world in back.get(spreading.popleft(), ()):
                if world not in good:
                    good.add(world)
                    spreading.append(world)
        for world in leads_to:
            head = self._at(world)
            has_tokens = head.token + self.bounds.steps - head.step <= self.bounds.tokens
            if world not in good and has_tokens:
                return world
        return None

    def _at(self, world: World) -> Head:
        head = self.believed(world)
        assert head is not None
        return head


def _doubled(world: World) -> str | None:
    if len(set(world.granted)) != len(world.granted):
        return f"a token was granted twice: {world.granted}"
    steps = [step for step, _ in world.acknowledged]
    if len(set(steps)) != len(steps):
        return f"a step was accepted twice: {world.acknowledged}"
    return None


def _path(came_from: dict[World, World | None], world: World, last: World | None) -> list[World]:
    path = [last] if last is not None else []
    step: World | None = world
    while step is not None:
        path.append(step)
        step = came_from[step]
    return path[::-1]
