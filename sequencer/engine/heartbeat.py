"""Keeps the lease of a claim alive while its step runs.

Each process has one thread for all its claims, started with the first. The thread cancels a step
if its claim is no longer in the head (a person has stopped it), or if the lease could not be
renewed for so long that other processes may soon believe that this worker is dead. Pushing the
end of a step to a remote may take long, so the heartbeats continue until that is done.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator

from msgspec import Struct

from sequencer.errors import MachineBusy, SequencerError, to_machine_busy
from sequencer.executors.cancellation import Cancellation, StopReason
from sequencer.model.head import Claim
from sequencer.store.protocol import ReportsWaiting, Store

BEATS_PER_LEASE = 3
GIVE_UP_LEASES = 0.8
"""Share of the lease without a written heartbeat after which the worker stops its own agent."""
LOOK_S = 1.0
"""How soon a step that a person has stopped must end."""
ENDING_S = 5.0
"""How long to wait for a heartbeat that is being written. If a remote hangs for longer, the
heartbeat is too late to matter."""


_NO_CONTEXT = contextlib.nullcontext()


class _Beating(Struct):
    """One claim that is kept alive."""

    claim: Claim
    cancellation: Cancellation | None
    """None: its agent has ended, and only the record is missing."""
    next_at: float
    """When the next heartbeat is due, on the monotonic clock."""
    renewed_at: float
    """When the lease was renewed last, on the monotonic clock."""
    number: int = 0
    """The number of the last heartbeat."""

    @property
    def pause_s(self) -> float:
        return self.claim.ttl_s / BEATS_PER_LEASE

    @property
    def is_canceled(self) -> bool:
        return self.cancellation is not None and self.cancellation.is_set()


class Heartbeat:
    """Writes heartbeats for each claim that this process holds."""

    def __init__(self, store: Store, *, looks: bool = False) -> None:
        """Write heartbeats to *store*; if *looks*, notice a lost claim within `LOOK_S`.

        A graph's process sees each change of the head anyway. A store that pushes may be slow to
        read, so its head is never read here.
        """
        self._store = store
        self._looks = looks and not isinstance(store, ReportsWaiting)
        self._is_pushing = isinstance(store, ReportsWaiting)
        """Whether the end of a step may take long to record."""
        self._lock = lock = threading.RLock()
        """The lock of both conditions; taken directly where no one waits, which is faster."""
        self._condition = threading.Condition(lock)
        """Wakes the thread."""
        self._written = threading.Condition(lock)
        """Wakes callers that wait for the end of a heartbeat."""
        self._writing: _Beating | None = None
        """The claim that the thread is writing for, without holding the lock."""
        self._thread: threading.Thread | None = None
        self._beating: dict[int, _Beating] = {}
        """By the tokens of the claims."""
        self._numbers: dict[int, int] = {}
        """Number of the last heartbeat, by token, for claims whose heartbeats will continue."""
        self._wakes_at = 0.0
        """When the thread wakes by itself, on the monotonic clock."""
        self._is_closed = False

    def begin(self, claim: Claim, cancellation: Cancellation | None) -> None:
        """Renew the lease of *claim* from now on; the claim itself is its first heartbeat.

        *cancellation* is set when the step must end.

        Raises:
            MachineBusy: this machine can't start the thread.
        """
        now = time.monotonic()
        entry = _Beating(claim, cancellation, now, now)
        entry.next_at += entry.pause_s
        with self._lock:
            # Other processes see a renewal by a new number, so the count must not restart.
            entry.number = self._numbers.pop(claim.token, 0)
            self._beating[claim.token] = entry
            if self._thread is None:
                self._start_thread(claim)
            elif self._wakes_at > entry.next_at:
                # Only then: waking a thread costs more than the rest of a short step's claim.
                self._condition.notify()

    def _start_thread(self, claim: Claim) -> None:
        thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            self._beating.pop(claim.token)
            if (busy_error := to_machine_busy(error)) is not None:
                raise busy_error from error
            raise
        self._thread = thread

    def end(self, claim: Claim) -> None:
        """Stop renewing; wait for a heartbeat that is being written, at most `ENDING_S`."""
        with self._lock:
            entry = self._beating.pop(claim.token, None)
            if entry is not None:
                if self._writing is entry:
                    self._written.wait_for(lambda: self._writing is not entry, ENDING_S)
                if entry.cancellation is not None and entry.number and self._is_pushing:
                    self._numbers[claim.token] = entry.number

    @contextlib.contextmanager
    def keep_alive(self, claim: Claim, cancellation: Cancellation) -> Iterator[None]:
        """Renew the lease of *claim* in the block; see `begin`."""
        self.begin(claim, cancellation)
        try:
            yield
        finally:
            self.end(claim)

    def keep_alive_while_pushing(self, claim: Claim) -> contextlib.AbstractContextManager[None]:
        """Renew the lease of *claim* in the block, in which its end is collected and pushed."""
        return self._keep_alive_while_pushing(claim) if self._is_pushing else _NO_CONTEXT

    @contextlib.contextmanager
    def _keep_alive_while_pushing(self, claim: Claim) -> Iterator[None]:
        self.resume_for_push(claim)
        try:
            yield
        finally:
            self.end(claim)

    def resume_for_push(self, claim: Claim) -> None:
        """Continue after the agent has ended, if its end is pushed.

        A lost claim is not reported: the push itself detects it.
        """
        if self._is_pushing:
            # A push without heartbeats is usually short enough; without the push the work is lost.
            with contextlib.suppress(MachineBusy):
                self.begin(claim, None)

    def close(self) -> None:
        """End the thread; if it hangs in a heartbeat, it ends later, or with this process."""
        with self._condition:
            self._is_closed = True
            self._beating.clear()
            self._condition.notify()
        if self._thread is not None:
            self._thread.join(ENDING_S)

    def _run(self) -> None:
        """Hold the lock, except during a heartbeat and between two heartbeats."""
        with self._condition:
            while not self._is_closed:
                entry = min(self._beating.values(), key=lambda claim: claim.next_at, default=None)
                left_s = None if entry is None else entry.next_at - time.monotonic()
                if entry is None or left_s is None or left_s > 0:
                    pause = left_s if left_s is None or not self._looks else min(left_s, LOOK_S)
                    self._wakes_at = math.inf if pause is None else time.monotonic() + pause
                    is_woken = self._condition.wait(pause)
                    if entry is not None and pause != left_s and not is_woken:
                        self._act(entry, self._check_claim)
                else:
                    self._act(entry, self._beat)

    def _act(self, entry: _Beating, act: Callable[[_Beating], StopReason | None]) -> None:
        """Call *act* without the lock: a hanging remote must not delay `end` of another claim."""
        self._writing = entry
        self._condition.release()
        try:
            reason = act(entry)
        finally:
            self._condition.acquire()
            self._writing = None
            self._written.notify_all()
        # A claim that has ended meanwhile must not be canceled.
        if self._beating.get(entry.claim.token) is entry:
            if reason is not None and entry.cancellation is not None:
                entry.cancellation.set(reason)
            if reason is not None or entry.is_canceled:
                del self._beating[entry.claim.token]

    def _beat(self, entry: _Beating) -> StopReason | None:
        """Renew the lease; return why the step must end, None: it need not."""
        claim = entry.claim
        if entry.is_canceled:
            return None
        if self._is_lost(claim):
            return StopReason.CLAIM_LOST
        entry.number += 1
        now = time.monotonic()
        try:
            self._store.beat(claim, entry.number)
        except (OSError, SequencerError):
            left_s = entry.renewed_at + GIVE_UP_LEASES * claim.ttl_s - now
            if left_s <= 0:
                return StopReason.LEASE_LOST
            entry.next_at = now + min(left_s, entry.pause_s)
        else:
            entry.renewed_at, entry.next_at = now, now + entry.pause_s
        return None

    def _check_claim(self, entry: _Beating) -> StopReason | None:
        """Return why the step must end if its claim is lost; None: it is not."""
        return StopReason.CLAIM_LOST if self._is_lost(entry.claim) else None

    def _is_lost(self, claim: Claim) -> bool:
        try:
            head = self._store.view().head
        except (SequencerError, OSError):
            # An unreadable state says nothing about the claim; the record will find out.
            return False
        current_claim = None if head is None else head.find_claim(claim.token)
        # A run that replaced a lost one grants the same tokens again.
        return current_claim is None or current_claim.owner.nonce != claim.owner.nonce
