"""Keeps the lease of a claim alive while its step runs.

Each process has one thread for all its claims, started with the first. It asks for the end of
a step if its claim is no longer in the head (a person has stopped it), or if the lease could not
be renewed for so long that others may soon believe that this worker is gone. Pushing the end of a
step to a remote may take long, so the beats continue until that is done.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator

from msgspec import Struct

from sequencer.errors import MachineBusy, SequencerError, out_of_resources
from sequencer.executors.cancellation import Cancellation, StopReason
from sequencer.model.head import Claim
from sequencer.store.protocol import ReportsWaiting, Store

BEATS_PER_LEASE = 3
GIVE_UP_LEASES = 0.8
"""Share of the lease without a written beat after which the worker stops its own agent."""
LOOK_S = 1.0
"""How soon a step that a person has stopped is to end."""
ENDING_S = 5.0
"""How long somebody waits for a beat that is being written. One for a remote that hangs takes
longer; it comes too late then, and nobody asks for it any more."""


_NOTHING = contextlib.nullcontext()


class _Beating(Struct):
    """One claim that is kept alive."""

    claim: Claim
    cancellation: Cancellation | None
    """None: its agent has ended, and only the record is still to be made."""
    next_at: float
    """When to beat, on the monotonic clock."""
    renewed_at: float
    number: int = 0

    @property
    def pause_s(self) -> float:
        return self.claim.ttl_s / BEATS_PER_LEASE

    @property
    def is_cancelled(self) -> bool:
        return self.cancellation is not None and self.cancellation.is_set()


class Heartbeat:
    """Beats for each claim that this process holds."""

    def __init__(self, store: Store, *, looks: bool = False) -> None:
        """Beat in *store*; if it *looks*, it notices within `LOOK_S` that a claim is gone.

        A graph's process looks at each change of the head anyway, and a look at a store that
        pushes may take long.
        """
        self._store = store
        self._looks = looks and not isinstance(store, ReportsWaiting)
        self._is_pushing = isinstance(store, ReportsWaiting)
        """Whether the end of a step may take long to record."""
        self._lock = lock = threading.RLock()
        """Of both conditions; taken itself where nobody waits, which costs less."""
        self._condition = threading.Condition(lock)
        """Wakes the thread."""
        self._written = threading.Condition(lock)
        """Wakes who waits for the end of a beat."""
        self._writing: _Beating | None = None
        """What the thread is at; it does not hold the lock meanwhile."""
        self._thread: threading.Thread | None = None
        self._beating: dict[int, _Beating] = {}
        """By the claims' tokens."""
        self._numbers: dict[int, int] = {}
        """Of the last beat of claims that will go on to beat."""
        self._wakes_at = 0.0
        self._is_closed = False

    def begin(self, claim: Claim, cancellation: Cancellation | None) -> None:
        """Renew the lease of *claim* from now on; the claim itself is its first beat.

        *cancellation* hears when its step has to end.

        Raises:
            MachineBusy: there is no thread to be had for it.
        """
        now = time.monotonic()
        beating = _Beating(claim, cancellation, now, now)
        beating.next_at += beating.pause_s
        with self._lock:
            # Others see by a new number that it was renewed.
            beating.number = self._numbers.pop(claim.token, 0)
            self._beating[claim.token] = beating
            if self._thread is None:
                self._start_thread(claim)
            elif self._wakes_at > beating.next_at:
                # Only then: to wake a thread costs more than the rest of a short step's claim.
                self._condition.notify()

    def _start_thread(self, claim: Claim) -> None:
        thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            self._beating.pop(claim.token)
            if (busy := out_of_resources(error)) is not None:
                raise busy from error
            raise
        self._thread = thread

    def end(self, claim: Claim) -> None:
        """Stop renewing; returns when no beat of *claim* is being written, or in `ENDING_S`."""
        with self._lock:
            ended = self._beating.pop(claim.token, None)
            if ended is not None:
                if self._writing is ended:
                    self._written.wait_for(lambda: self._writing is not ended, ENDING_S)
                if ended.cancellation is not None and ended.number and self._is_pushing:
                    self._numbers[claim.token] = ended.number

    @contextlib.contextmanager
    def of(self, claim: Claim, cancellation: Cancellation) -> Iterator[None]:
        """Renew the lease of *claim* in the block; see `begin`."""
        self.begin(claim, cancellation)
        try:
            yield
        finally:
            self.end(claim)

    def going_on(self, claim: Claim) -> contextlib.AbstractContextManager[None]:
        """Renew the lease of *claim* in the block too, where its end is collected and pushed."""
        return self._going_on(claim) if self._is_pushing else _NOTHING

    @contextlib.contextmanager
    def _going_on(self, claim: Claim) -> Iterator[None]:
        self.go_on(claim)
        try:
            yield
        finally:
            self.end(claim)

    def go_on(self, claim: Claim) -> None:
        """Begin again behind an agent, if its end is pushed; nobody hears that the claim is lost.

        The push itself finds that out.
        """
        if self._is_pushing:
            # A push without beats is mostly short enough; without the push all is lost.
            with contextlib.suppress(MachineBusy):
                self.begin(claim, None)

    def close(self) -> None:
        """End the thread; one that hangs in a beat ends with it, or with this process."""
        with self._condition:
            self._is_closed = True
            self._beating.clear()
            self._condition.notify()
        if self._thread is not None:
            self._thread.join(ENDING_S)

    def _run(self) -> None:
        """Hold the lock, but for a beat and for the time between two beats."""
        with self._condition:
            while not self._is_closed:
                beating = min(self._beating.values(), key=lambda one: one.next_at, default=None)
                left = None if beating is None else beating.next_at - time.monotonic()
                if beating is None or left is None or left > 0:
                    pause = left if left is None or not self._looks else min(left, LOOK_S)
                    self._wakes_at = math.inf if pause is None else time.monotonic() + pause
                    is_woken = self._condition.wait(pause)
                    if beating is not None and pause != left and not is_woken:
                        self._act(beating, self._look)
                else:
                    self._act(beating, self._beat)

    def _act(self, beating: _Beating, act: Callable[[_Beating], StopReason | None]) -> None:
        """Beat without the lock: a remote that hangs must not hold up who ends another claim."""
        self._writing = beating
        self._condition.release()
        try:
            reason = act(beating)
        finally:
            self._condition.acquire()
            self._writing = None
            self._written.notify_all()
        # What has ended meanwhile is not to be cancelled any more.
        if self._beating.get(beating.claim.token) is beating:
            if reason is not None and beating.cancellation is not None:
                beating.cancellation.set(reason)
            if reason is not None or beating.is_cancelled:
                del self._beating[beating.claim.token]

    def _beat(self, beating: _Beating) -> StopReason | None:
        """Renew the lease; return why the step has to end, if it has to."""
        claim = beating.claim
        if beating.is_cancelled:
            return None
        if self._is_lost(claim):
            return StopReason.CLAIM_LOST
        beating.number += 1
        now = time.monotonic()
        try:
            self._store.beat(claim, beating.number)
        except (OSError, SequencerError):
            left = beating.renewed_at + GIVE_UP_LEASES * claim.ttl_s - now
            if left <= 0:
                return StopReason.LEASE_LOST
            beating.next_at = now + min(left, beating.pause_s)
        else:
            beating.renewed_at, beating.next_at = now, now + beating.pause_s
        return None

    def _look(self, beating: _Beating) -> StopReason | None:
        """Return why the step has to end, if somebody has taken its claim away."""
        return StopReason.CLAIM_LOST if self._is_lost(beating.claim) else None

    def _is_lost(self, claim: Claim) -> bool:
        try:
            head = self._store.view().head
        except (SequencerError, OSError):
            # An unreadable state says nothing about the claim; the commit will find out.
            return False
        held = None if head is None else head.claim_with(claim.token)
        # A run that was begun in the place of a lost one grants the same tokens again.
        return held is None or held.owner.nonce != claim.owner.nonce
