"""Keeps the lease of a claim alive while its step runs.

One thread a process for all its claims, started with the first. It asks for the end of a
step when its claim is not in the head any more, and when it could not renew the lease for
so long that others may soon believe that this worker is gone.
"""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass

from sequencer.errors import SequencerError
from sequencer.executors.protocol import Cancellation, StopReason
from sequencer.model.head import Claim
from sequencer.store.protocol import Store

BEATS_PER_LEASE = 3
GIVE_UP_LEASES = 0.8
"""Share of the lease without a written beat after which the worker stops its own agent."""


@dataclass(slots=True)
class _Beating:
    """One claim that is kept alive."""

    claim: Claim
    cancellation: Cancellation
    next_at: float
    """When to beat, on the monotonic clock."""
    renewed_at: float
    number: int = 0

    @property
    def pause_s(self) -> float:
        return self.claim.ttl_s / BEATS_PER_LEASE


class Heartbeat:
    """Beats for each claim that this process holds."""

    def __init__(self, store: Store) -> None:
        """Beat in *store*."""
        self._store = store
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        self._beating: dict[int, _Beating] = {}
        """By the claims' tokens."""
        self._wakes_at = 0.0
        self._is_closed = False

    def begin(self, claim: Claim, cancellation: Cancellation) -> None:
        """Renew the lease of *claim* from now on; the claim itself is its first beat."""
        now = time.monotonic()
        beating = _Beating(claim, cancellation, now, now)
        beating.next_at += beating.pause_s
        with self._condition:
            self._beating[claim.token] = beating
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
                self._thread.start()
            elif self._wakes_at > beating.next_at:
                # Only then: to wake a thread costs more than the rest of a short step's claim.
                self._condition.notify()

    def end(self, claim: Claim) -> None:
        """Stop renewing; returns when no beat of *claim* can be written any more."""
        with self._condition:
            self._beating.pop(claim.token, None)

    def close(self) -> None:
        """End the thread."""
        with self._condition:
            self._is_closed = True
            self._beating.clear()
            self._condition.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        """Hold the condition, but for the time between two beats."""
        with self._condition:
            while not self._is_closed:
                beating = min(self._beating.values(), key=lambda one: one.next_at, default=None)
                left = None if beating is None else beating.next_at - time.monotonic()
                if beating is None or left is None or left > 0:
                    self._wakes_at = math.inf if left is None else time.monotonic() + left
                    self._condition.wait(left)
                elif not self._beat(beating):
                    self._beating.pop(beating.claim.token, None)

    def _beat(self, beating: _Beating) -> bool:
        """Renew the lease and return whether there is something left to renew."""
        claim, cancellation = beating.claim, beating.cancellation
        if cancellation.is_set():
            return False
        if self._is_lost(claim):
            cancellation.set(StopReason.CLAIM_LOST)
            return False
        beating.number += 1
        now = time.monotonic()
        try:
            self._store.beat(claim, beating.number)
        except OSError:
            left = beating.renewed_at + GIVE_UP_LEASES * claim.ttl_s - now
            if left <= 0:
                cancellation.set(StopReason.LEASE_LOST)
                return False
            beating.next_at = now + min(left, beating.pause_s)
        else:
            beating.renewed_at, beating.next_at = now, now + beating.pause_s
        return True

    def _is_lost(self, claim: Claim) -> bool:
        try:
            head = self._store.view().head
        except SequencerError:
            # An unreadable state says nothing about the claim; the commit will find out.
            return False
        held = None if head is None else head.claim_with(claim.token)
        # A run that was begun in the place of a lost one grants the same tokens again.
        return held is None or held.owner.nonce != claim.owner.nonce
