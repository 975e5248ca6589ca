"""Many workers on one run, some of them killed; run as ``python -m tests.concurrency.herd JSON``.

Workers append what was acknowledged to them to a file, so that a kill can't tear more than
a line that was not written yet. Readers look at the run all the time and write down what
they could not read. Everybody ends when the parent has gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sequencer import FileStore, Head
from sequencer.errors import ClaimHeld, StaleClaim
from tests.concurrency import children
from tests.contract import store_cases as cases


@dataclass(frozen=True)
class Herd:
    """What to do to the run in *folder*."""

    folder: str
    workers: int = 8
    readers: int = 1
    steps: int = 200
    """At least; it goes on until the last kill."""
    kills: int = 0
    kill_every_s: float = 0.015
    """On average."""
    seed: int = 0
    rotate_bytes: int = 1_000_000
    delete_lock_every_s: float = 0.0
    limit_s: float = 60.0

    @property
    def run(self) -> Path:
        return Path(self.folder) / "sync"

    def store(self) -> FileStore:
        return FileStore(
            self.run / "state.json", ttl_s=20.0, rotate_bytes=self.rotate_bytes, keep=100_000
        )

    @property
    def is_over(self) -> bool:
        return (Path(self.folder) / "enough").exists()

    def note(self, name: str, text: str) -> None:
        children.append(Path(self.folder) / name, text)


def work(herd: Herd) -> None:
    """Take turns until all steps are done."""
    store, chance = herd.store(), random.Random(os.getpid())  # noqa: S311 (chance, no secret)
    parent = os.getppid()
    while os.getppid() == parent:
        head = store.view().head
        assert head is not None
        if head.step_index >= herd.steps and herd.is_over:
            return
        held = head.claims[0] if head.claims else None
        if held is not None and not store.liveness(held).allows_take_over:
            store.wait(head.revision, 1.0, claim=held)
            continue
        with contextlib.suppress(ClaimHeld, StaleClaim):
            _take_turns(herd, store, chance)


def _take_turns(herd: Herd, store: FileStore, chance: random.Random) -> None:
    granted = cases.claim(store)
    herd.note("granted", f"{granted.token} {granted.owner.nonce}")
    while chance.random() < 0.3:
        following = cases.commit_and_claim(store, granted.token)
        herd.note("accepted", f"{granted.step_index} {granted.token}")
        granted = following
        herd.note("granted", f"{granted.token} {granted.owner.nonce}")
    time.sleep(chance.random() * 0.002)
    if chance.random() < 0.1:
        (cases.fail if chance.random() < 0.5 else cases.release)(store, granted.token)
    else:
        cases.commit(store, granted.token)
        herd.note("accepted", f"{granted.step_index} {granted.token}")


def read(herd: Herd) -> None:
    """Look at the run over and over; it never goes back and can always be read."""
    store, newest, parent = herd.store(), 0, os.getppid()
    while os.getppid() == parent:
        head: Head | None = store.view().head
        assert head is not None
        assert head.revision >= newest, (head.revision, newest)
        newest = head.revision
        revisions = [fact["revision"] for fact in store.history()]
        assert revisions[-1] >= newest
        herd.note("reads", "")
        time.sleep(0.01)


def delete_lock(herd: Herd) -> None:
    """Remove the lock file again and again."""
    parent = os.getppid()
    while os.getppid() == parent:
        (herd.run / "state.json.lock").unlink(missing_ok=True)
        time.sleep(herd.delete_lock_every_s)


def main(herd: Herd) -> int:
    """Let the herd work, kill some of it, and return how many were killed."""
    cases.begin(herd.store())
    errors = Path(herd.folder) / "errors"
    roles = [read] * herd.readers + [delete_lock] * bool(herd.delete_lock_every_s)
    helpers = [children.start(partial(role, herd), errors) for role in roles]
    workers = {children.start(partial(work, herd), errors) for _ in range(herd.workers)}
    chance, killed = random.Random(herd.seed), 0  # noqa: S311 (same)
    deadline, parent = time.monotonic() + herd.limit_s, os.getppid()
    while workers and time.monotonic() < deadline and os.getppid() == parent:
        if killed < herd.kills:
            time.sleep(chance.random() * 2 * herd.kill_every_s)
            victim = chance.choice(sorted(workers))
            # Reap it at once. Otherwise the same process could be drawn again, and a second one
            # would replace it.
            children.end([victim])
            workers.remove(victim)
            killed += 1
            workers.add(children.start(partial(work, herd), errors))
        else:
            (Path(herd.folder) / "enough").touch()
            time.sleep(0.01)
        workers -= children.ended(workers)
    children.end([*helpers, *workers])
    return killed


if __name__ == "__main__":
    print(main(Herd(**json.loads(sys.argv[1]))))
