"""A run in the memory of this process.

Every `MemoryStore` that shares a `MemoryRun` sees the same run, as two processes with one
folder do; each is a worker of its own, and `leave` plays its death. Safe between threads.

Not promised: anything after the process has ended. ``state_path`` names a file that is
never written.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator
from itertools import count
from pathlib import Path
from typing import Any

from sequencer.model.head import Claim, Head, Owner
from sequencer.store import results
from sequencer.store.identity import boottime
from sequencer.store.journal import decode, encode, fact_fields, facts_of
from sequencer.store.protocol import Change, Liveness, View
from sequencer.store.watch import readable

RECHECK_S = 1.0
"""How often `MemoryStore.wait` looks at the lease of a claim, which runs out by itself."""


class MemoryRun:
    """What the workers of one run share."""

    def __init__(self, clock: Callable[[], float] = boottime) -> None:
        """Begin empty; *clock*, in seconds, decides when a lease is over."""
        self.clock = clock
        self.lock = threading.RLock()
        self.head: Head | None = None
        self.lines: list[bytes] = []
        """The records, as a journal has them."""
        self.documents: dict[str, bytes] = {}
        self.deadlines: dict[int, float] = {}
        self.gone: set[str] = set()
        """Nonces of the workers that have left."""
        self.queues: dict[frozenset[str], list[str]] = {}
        """Nonces of the workers in each turnstile, the first first."""
        self._wakers: set[int] = set()
        self._numbers = count(1)
        self._folder: Path | None = None

    def next_number(self) -> int:
        """Return another number for each worker."""
        return next(self._numbers)

    def folder(self) -> Path:
        """Return a folder for outputs, made when it is first needed."""
        with self.lock:
            if self._folder is None:
                self._folder = Path(tempfile.mkdtemp(prefix="sequencer-memory-")).resolve()
            return self._folder

    def wake(self) -> None:
        """Wake everybody who waits."""
        with self.lock:
            for fd in self._wakers:
                # A full pipe wakes as well as a written one.
                with contextlib.suppress(BlockingIOError):
                    os.write(fd, b"x")

    @contextlib.contextmanager
    def waker(self) -> Iterator[int]:
        """Give a descriptor that becomes readable with the next change."""
        read_fd, write_fd = os.pipe()
        os.set_blocking(write_fd, False)
        with self.lock:
            self._wakers.add(write_fd)
        try:
            yield read_fd
        finally:
            with self.lock:
                self._wakers.discard(write_fd)
            os.close(read_fd)
            os.close(write_fd)

    def close(self) -> None:
        """Remove the folder of outputs."""
        with self.lock:
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
                self._folder = None


class MemoryStore:
    """One worker's view of a `MemoryRun`; see `protocol.Store`."""

    def __init__(self, run: MemoryRun | None = None, *, ttl_s: float = 60.0) -> None:
        """Join *run*, or begin one of its own, which `close` then removes."""
        self.ttl_s, self.patience_s = ttl_s, 0.0
        self.run = run or MemoryRun()
        self._owns_run = run is None
        number = self.run.next_number()
        self._owner = Owner(
            host="memory",
            boot_id="memory",
            pid_ns="memory",
            pid=number,
            pid_start=0,
            nonce=f"worker-{number}",
        )

    @property
    def state_path(self) -> Path:
        """See `Store.state_path`."""
        return self.run.folder() / "state.json"

    def close(self) -> None:
        """Free what belongs to this worker alone."""
        if self._owns_run:
            self.run.close()

    def leave(self) -> None:
        """Be gone, as a worker that was killed: its claims may be taken over at once."""
        with self.run.lock:
            self.run.gone.add(self._owner.nonce)
            for queue in self.run.queues.values():
                queue[:] = [nonce for nonce in queue if nonce != self._owner.nonce]
        self.run.wake()

    def view(self) -> View:
        """See `Store.view`."""
        return View(self.run.head)

    def update(self, change: Change) -> Head:
        """See `Store.update`."""
        with self.run.lock:
            before = self.run.head
            transition = change(before)
            if transition is None:
                if before is None:
                    message = "a change of a run that was never begun has to begin it"
                    raise ValueError(message)
                return before
            revision = (before.revision if before else 0) + 1
            head = transition.head.replace(revision=revision)
            facts = [fact_fields(fact) for fact in transition.facts]
            line = encode(revision, head.last_update, facts, head.model_dump_json().encode())
            # Through JSON, as every other store: what it does not keep is not kept here.
            kept = Head.model_validate(decode(line[:-1])["head"])
            self.run.head = kept
            self.run.lines.append(line)
            standing = {claim.token for claim in kept.claims}
            for claim in kept.claims:
                self.run.deadlines.setdefault(claim.token, self.run.clock() + claim.ttl_s)
            for token in self.run.deadlines.keys() - standing:
                del self.run.deadlines[token]
        self.run.wake()
        return kept

    def history(self, after: int = 0) -> Iterator[dict[str, Any]]:
        """See `Store.history`."""
        with self.run.lock:
            lines = list(self.run.lines)
        for line in lines:
            yield from (f for f in facts_of(json.loads(line)) if f["revision"] > after)

    def document(self, name: str) -> bytes | None:
        """See `Store.document`."""
        return self.run.documents.get(name)

    def keep_document(self, name: str, data: bytes) -> None:
        """See `Store.keep_document`."""
        self.run.documents[name] = data

    def forget_documents(self, prefix: str, keep: Collection[str]) -> None:
        """See `Store.forget_documents`."""
        for name in [name for name in self.run.documents if name.startswith(prefix)]:
            if name not in keep:
                del self.run.documents[name]

    def take_notices(self) -> list[str]:
        """Return nothing: nothing here is restored or edited by hand."""
        return []

    def owner(self) -> Owner:
        """See `Store.owner`."""
        return self._owner

    def liveness(self, claim: Claim) -> Liveness:
        """See `Store.liveness`."""
        with self.run.lock:
            if claim.owner.nonce in self.run.gone:
                return Liveness.DEAD
            deadline = self.run.deadlines.get(claim.token)
            if deadline is None:
                return Liveness.UNKNOWN
            return Liveness.EXPIRED if self.run.clock() > deadline else Liveness.ALIVE

    def beat(self, claim: Claim, number: int) -> None:
        """See `Store.beat`; *number* is of no use where everybody has the same clock."""
        del number
        with self.run.lock:
            if claim.token in self.run.deadlines:
                self.run.deadlines[claim.token] = self.run.clock() + claim.ttl_s

    def kept_result(self, name: str) -> Path:
        """See `Store.kept_result`."""
        return results.kept(self.run.folder() / results.NAME, name)

    def result_folder(self, step_index: int, token: int) -> Path:
        """See `Store.result_folder`."""
        return results.folder(self.run.folder() / results.NAME, step_index, token)

    def wait(
        self,
        revision: int,
        timeout_s: float | None,
        *,
        wake_fd: int | None = None,
        claim: Claim | None = None,
    ) -> bool:
        """See `Store.wait`."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self.run.waker() as waker:
            fds = [waker] if wake_fd is None else [waker, wake_fd]
            while True:
                head = self.run.head
                if (head.revision if head else 0) != revision:
                    return True
                if claim is not None and self.liveness(claim).allows_take_over:
                    return False
                left = RECHECK_S if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    return False
                ready = readable(fds, min(left, RECHECK_S))
                if wake_fd in ready:
                    return False
                if waker in ready:
                    os.read(waker, 65536)

    def turnstile(self, positions: Collection[str]) -> MemoryTurnstile:
        """See `Store.turnstile`."""
        return MemoryTurnstile(self.run, frozenset(positions), self._owner.nonce)


class MemoryTurnstile:
    """One worker's way into a queue of a `MemoryRun`; see `protocol.Turnstile`."""

    def __init__(self, run: MemoryRun, positions: frozenset[str], nonce: str) -> None:
        """Queue as *nonce* with those that work at *positions*."""
        self._run = run
        self._nonce = nonce
        with run.lock:
            self._queue = run.queues.setdefault(positions, [])

    def is_awaited(self) -> bool:
        """See `Turnstile.is_awaited`."""
        return bool(self._queue)

    def enter(self) -> bool:
        """See `Turnstile.enter`."""
        with self._run.lock:
            if self._nonce not in self._queue:
                self._queue.append(self._nonce)
            return self._queue[0] == self._nonce

    def wait(self, timeout_s: float, wake_fd: int) -> bool:
        """See `Turnstile.wait`."""
        deadline = time.monotonic() + timeout_s
        with self._run.waker() as waker:
            while not self.enter() and (left := deadline - time.monotonic()) > 0:
                ready = readable((waker, wake_fd), left)
                if wake_fd in ready:
                    break
                if waker in ready:
                    os.read(waker, 65536)
        return self.enter()

    def leave(self) -> None:
        """See `Turnstile.leave`."""
        with self._run.lock:
            if self._nonce in self._queue:
                self._queue.remove(self._nonce)
        self._run.wake()
