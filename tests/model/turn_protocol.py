"""An explicit-state model of the turn protocol: every interleaving, every crash point.

The world is the journal, the published head and the lock; each critical section is split
into the moves of the real one: lock, read and decide, roll state.json forward, check the lock,
append, sync, look where the line landed, publish, unlock. A worker may crash between any two
of them, in the middle of an append, or the power may fail; anybody may delete the lock file.
Any claim may be believed to be expired at any moment: clocks, pauses, slow heartbeats.

Whether a worker claims is what the product's own decider says; see `deciding`.

Not modelled: rotation, edits by hand and more than one run; the fault tests have those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

from tests.model.deciding import claims
from tests.model.exploring import Explorer, Parts, Verdict
from tests.model.world import (
    GENESIS,
    TORN,
    UNREADABLE,
    Bounds,
    Head,
    Protocol,
    Record,
    Worker,
    World,
)

IN_FLIGHT = ("roll", "restore", "check", "append", "sync", "landed", "publish", "unlock")


class Model:
    """The moves of a run in files, and what must hold of it."""

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
            yield dead._replace(journal=(*world.journal, TORN))
        if worker.at == "publish" and not self.protocol.is_head_atomic:
            yield dead._replace(head=None)

    def _power_loss(self, world: World) -> Iterator[World]:
        """Everybody dies; what was not synced may be gone, state.json may be old or new."""
        dead = world._replace(
            lock=None,
            workers=tuple(Worker() for _ in world.workers),
            crashes=world.crashes + 1,
        )
        for head in {world.head, GENESIS}:
            for lines in range(world.durable, len(world.journal) + 1):
                left = world.journal[:lines]
                yield dead._replace(journal=left, durable=lines, head=head)
                if lines < len(world.journal):
                    yield dead._replace(journal=(*left, TORN), durable=lines + 1, head=head)

    def _step(self, world: World, number: int, worker: Worker) -> Iterator[World]:
        step: dict[str, Callable[[World, int, Worker], Iterator[World]]] = {
            "idle": self._lock,
            "run": self._lock,
            "claim": self._decide_claim,
            "commit": self._decide_commit,
            "fail": self._decide_fail,
            "roll": self._sync_forward,
            "restore": self._restore,
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
            yield self._put(world, number, worker._replace(at=at), lock=lock)

    def _give_up(self, world: World, number: int, worker: Worker) -> World:
        lock = None if world.lock == number else world.lock
        return self._put(world, number, worker, lock=lock)

    def _decided(
        self, world: World, number: int, worker: Worker, head: Head, committed: bool
    ) -> World:
        record = Record(head, worker.claim if committed else None, number)
        decided = worker._replace(at="check", expected=len(world.journal), record=record)
        newest = self.believed(world) or GENESIS
        is_behind = world.head is None or world.head.revision < newest.revision
        if is_behind and self.protocol.has_journal and self.protocol.rolls_forward:
            at = "roll" if self.protocol.syncs_forward else "restore"
            decided = decided._replace(at=at, newest=newest)
        return self._put(world, number, decided)

    def _sync_forward(self, world: World, number: int, worker: Worker) -> Iterator[World]:
        durable = len(world.journal)
        yield self._put(world, number, worker._replace(at="restore"), durable=durable)

    def _restore(self, world: World, number: int, worker: Worker) -> Iterator[World]:
        decided = worker._replace(at="check", newest=None)
        yield self._put(world, number, decided, head=worker.newest)

    def _claimed(self, base: Head, number: int) -> Head | None:
        if base.token >= self.bounds.tokens or not claims(
            base.step,
            self.bounds.steps,
            is_running=base.is_running,
            takes_over=self.protocol.takes_over,
        ):
            return None
        return Head(
            revision=base.revision + 1,
            step=base.step,
            is_running=True,
            token=base.token + 1,
            owner=self._owner(number),
        )

    @staticmethod
    def _at_rest(base: Head, step: int, token: int) -> Head:
        return Head(base.revision + 1, step, is_running=False, token=token)

    def _owner(self, number: int) -> int:
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
            return base.is_running and base.owner == self._owner(number)
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
        line, place = worker.record, len(world.journal)
        assert line is not None
        if world.journal and world.journal[-1].is_torn and place > worker.expected:
            # Its writer did not see that a line was torn, so did not close it: they are one.
            line = UNREADABLE
        at = "sync" if self.protocol.syncs else "landed"
        landed = worker._replace(at=at, has_landed=place == worker.expected)
        yield self._put(world, number, landed, journal=(*world.journal, line))

    def _sync(self, world: World, number: int, worker: Worker) -> Iterator[World]:
        yield self._put(world, number, worker._replace(at="landed"), durable=len(world.journal))

    def _look(self, world: World, number: int, worker: Worker) -> Iterator[World]:
        # Where a line that does not count came between, the own one may have won all the same.
        has_won = worker.has_landed or worker.record in self.winners(world.journal)
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
        assert record is not None and record.head is not None  # noqa: PT018
        claim = (record.head.step, record.head.token) if record.head.is_running else None
        granted = (*world.granted, claim[1]) if claim else world.granted
        told = world.acknowledged
        if record.committed is not None:
            told = (*told, record.committed)
        lock = None if world.lock == number else world.lock
        after = Worker(at="run", claim=claim) if claim else Worker()
        yield self._put(world, number, after, lock=lock, granted=granted, acknowledged=told)

    # --- what must hold --------------------------------------------------------------

    def violation(self, before: World, world: World) -> str | None:
        """Return which promise *world* breaks, or nothing."""
        head = self.believed(world)
        if head is None:
            return "the state can't be read"
        broken = _doubled(world) or self._lost(world, head)
        return broken or self._gone_back(before, world, head)

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

    def explore(self) -> Verdict[World]:
        """Visit every reachable world."""
        return Explorer(self).explore(self.bounds.states)

    # --- what the exploration asks ---------------------------------------------------

    def start(self) -> World:
        return World(workers=tuple(Worker() for _ in range(self.bounds.workers)))

    def is_finished(self, world: World) -> bool:
        return self._at(world).step >= self.bounds.steps

    def may_finish(self, world: World) -> bool:
        head = self._at(world)
        return head.token + self.bounds.steps - head.step <= self.bounds.tokens

    def _at(self, world: World) -> Head:
        head = self.believed(world)
        assert head is not None
        return head

    def parts(self, world: World) -> Parts:
        """Take *world* apart, its workers in an order of their own.

        Nobody looks at a worker's number but to know its own line again and who has the
        lock; nor at a line that lost but to see that it is there.
        """
        order = sorted(range(len(world.workers)), key=lambda n: _rank(world, n))
        place = {number: at for at, number in enumerate(order)}
        in_flight = {n for n in order if world.workers[n].at in IN_FLIGHT}

        def renamed(record: Record) -> Record:
            head, writer = record.head, record.writer
            if head is not None and head.owner >= 0 and self.protocol.fences == "token":
                head = head._replace(owner=-1)
            return record._replace(head=head, writer=place[writer] if writer in in_flight else -1)

        journal = tuple(renamed(record) for record in world.journal)
        if self.protocol.first_wins:
            journal = _without_losers(journal)
        workers = (world.workers[number] for number in order)
        return (
            journal,
            (world.durable, world.lock if world.lock is None else place[world.lock]),
            world.head if self.protocol.fences != "token" or not world.head else world.head[:4],
            (tuple(sorted(world.granted)), tuple(sorted(world.acknowledged))),
            (world.crashes, world.deletions),
            *(w._replace(record=renamed(w.record)) if w.record else w for w in workers),
        )

    def put_together(self, parts: Parts) -> World:
        journal, (durable, lock), head, (granted, told), ended, *workers = cast("Any", parts)
        read = head if head is None else Head(*head)
        return World(journal, durable, read, lock, tuple(workers), granted, told, *ended)


def _rank(world: World, number: int) -> tuple[object, ...]:
    worker = world.workers[number]
    line = worker.record.head if worker.record else None
    return (
        worker.at,
        worker.claim or (),
        worker.expected,
        worker.has_landed,
        (line or GENESIS)[:4],
        (worker.newest or GENESIS)[:4],
        world.lock == number,
    )


def _without_losers(journal: tuple[Record, ...]) -> tuple[Record, ...]:
    """Return *journal* with each line that can never count as one that can't be read."""
    kept, revision = [], 0
    for record in journal:
        if record.head is not None and record.head.revision == revision + 1:
            kept.append(record)
            revision += 1
        else:
            kept.append(record if record.is_torn else UNREADABLE)
    return tuple(kept)


def _doubled(world: World) -> str | None:
    if len(set(world.granted)) != len(world.granted):
        return f"a token was granted twice: {world.granted}"
    steps = [step for step, _ in world.acknowledged]
    if len(set(steps)) != len(steps):
        return f"a step was accepted twice: {world.acknowledged}"
    return None
