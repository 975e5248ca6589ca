"""Keeps the lease of a claim alive while its step runs.

One thread a process, started with the first claim. It asks for the end of the step when
the claim is not in the head any more, and when it could not renew the lease for so long
that others may soon believe that this worker is gone.
"""

from __future__ import annotations

import threading
import time

from sequencer.errors import SequencerError
from sequencer.executors.protocol import Cancellation, StopReason
from sequencer.model.head import Claim
from sequencer.store.protocol import Store

BEATS_PER_LEASE = 3
GIVE_UP_LEASES = 0.8
"""Share of the lease without a written beat after which the worker stops its own agent."""


class Heartbeat:
    """Beats for one claim at a time."""

    def __init__(self, store: Store) -> None:
        """Beat in *store*."""
        self._store = store
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        self._current: tuple[Claim, Cancellation] | None = None
        self._is_closed = False

    def begin(self, claim: Claim, cancellation: Cancellation) -> None:
        """Renew the lease of *claim* from now on; the store wrote its first beat."""
        with self._condition:
            self._current = (claim, cancellation)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
                self._thread.start()
            self._condition.notify()

    def end(self) -> None:
        """Stop renewing; returns when no beat of the claim can be written any more."""
        with self._condition:
            self._current = None
            self._condition.notify()

    def close(self) -> None:
        """End the thread."""
        with self._condition:
            self._current, self._is_closed = None, True
            self._condition.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        with self._condition:
            while not self._is_closed:
                if self._current is None:
                    self._condition.wait()
                else:
                    self._beat_while_current(*self._current)

    def _beat_while_current(self, claim: Claim, cancellation: Cancellation) -> None:
        """Beat for *claim* until another one is current; holds the condition between waits."""
        mine, number, renewed_at = self._current, 0, time.monotonic()
        pause = claim.ttl_s / BEATS_PER_LEASE
        while self._current is mine and not cancellation.is_set():
            self._condition.wait(pause)
            if self._current is not mine:
                return
            number += 1
            if self._is_lost(claim):
                cancellation.set(StopReason.CLAIM_LOST)
                return
            try:
                self._store.beat(claim, number)
            except OSError:
                left = renewed_at + GIVE_UP_LEASES * claim.ttl_s - time.monotonic()
                if left <= 0:
                    cancellation.set(StopReason.LEASE_LOST)
                    return
                pause = min(left, claim.ttl_s / BEATS_PER_LEASE)
            else:
                renewed_at, pause = time.monotonic(), claim.ttl_s / BEATS_PER_LEASE
        if self._current is mine:
            self._current = None

    def _is_lost(self, claim: Claim) -> bool:
        try:
            head = self._store.view().head
        except SequencerError:
            # An unreadable state says nothing about the claim; the commit will find out.
            return False
        return head is None or head.claim_with(claim.token) is None
