"""Runs several attempts at the same time, each in its own thread.

Threads are reused, because starting one takes longer than everything else at the start of a
short attempt. A thread runs an attempt and keeps its output, but decides nothing. The thread
that started the attempts records all results, in the order in which the attempts ended.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable

from sequencer.engine.attempt import Attempt
from sequencer.engine.heartbeat import Heartbeat
from sequencer.executors.cancellation import StopReason
from sequencer.model.head import Claim
from sequencer.store.wake_up import WakeUp
from sequencer.store.watch import wait_readable

WAIT_S = 1.0
_RESERVE = 4
"""Descriptors that are reserved for records. When an agent can't get any more descriptors, its
claim can still be released."""
Perform = Callable[[Attempt], None]


class AttemptThreads:
    """The threads of one process, and the queue of attempts that have ended."""

    def __init__(self, heartbeat: Heartbeat) -> None:
        """Start without threads; *heartbeat* keeps the claims alive."""
        self._heartbeat = heartbeat
        self._started: queue.SimpleQueue[tuple[Attempt, Perform] | None] = queue.SimpleQueue()
        """The threads take their work from it; None ends one thread."""
        self._ended: queue.SimpleQueue[Attempt] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self.running: dict[int, Attempt] = {}
        """By token, until `pop_ended` returns them; some may have ended already."""
        self._unrecorded: list[Claim] = []
        """Claims that are kept alive until the ends of their attempts are recorded."""
        self._is_drained = False
        self._wake_up = WakeUp()
        self._reserve = [os.open(os.devnull, os.O_RDONLY) for _ in range(_RESERVE)]

    def fileno(self) -> int:
        """Return a descriptor that is readable after an attempt has ended, or after `wake`."""
        return self._wake_up.fileno()

    def wake(self) -> None:
        """Make the descriptor readable; safe in a signal handler."""
        self._wake_up.set()

    def drain(self) -> None:
        """Make the descriptor unreadable until the next attempt ends."""
        self._wake_up.clear()

    def wait(self) -> None:
        """Sleep until an attempt has ended, `wake` is called, or `WAIT_S` has passed."""
        wait_readable((self._wake_up.fileno(),), WAIT_S)
        self.drain()

    def start(self, running: Attempt, perform: Perform) -> None:
        """Call *perform* with the attempt in a thread; if no thread can start, end the attempt."""
        self.running[running.claim.token] = running
        if len(self._threads) < len(self.running):
            name = f"attempt-{len(self._threads)}"
            thread = threading.Thread(target=self._run_attempts, name=name, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                running.error = error
                self._ended.put(running)
                self.wake()
                return
            self._threads.append(thread)
        self._started.put((running, perform))

    def _run_attempts(self) -> None:
        while (attempt := self._started.get()) is not None:
            self._run(*attempt)
            # Otherwise the attempt stays in memory until the next one comes.
            del attempt

    def _run(self, attempt: Attempt, perform: Perform) -> None:
        try:
            self._heartbeat.begin(attempt.claim, attempt.cancellation)
            perform(attempt)
        except BaseException as error:  # noqa: BLE001 - the claim has to end in a record
            attempt.error = error
        finally:
            self._heartbeat.end(attempt.claim)
            self._heartbeat.resume_for_push(attempt.claim)
            self._ended.put(attempt)
            self.wake()

    def pop_ended(self) -> Attempt | None:
        """Return the attempt that ended first, and remove it from the queue; None: it is empty.

        The first call after a None means that all attempts returned before it are recorded, so
        their heartbeats stop.
        """
        if self._is_drained:
            self._is_drained = False
            while self._unrecorded:
                self._heartbeat.end(self._unrecorded.pop())
        try:
            attempt = self._ended.get_nowait()
        except queue.Empty:
            self._is_drained = True
            return None
        self._unrecorded.append(attempt.claim)
        self.running.pop(attempt.claim.token, None)
        attempt.cancellation.close()
        return attempt

    def cancel(self, reason: StopReason, but: frozenset[int] = frozenset()) -> None:
        """Ask all attempts to end, except the tokens in *but*; safe in a signal handler."""
        for token, attempt in tuple(self.running.items()):
            if token not in but:
                attempt.cancellation.set(reason)

    def free_reserve(self) -> None:
        """Close the reserved descriptors, so that the last records can use them."""
        while self._reserve:
            os.close(self._reserve.pop())

    def close(self) -> None:
        """End the threads and free the descriptors; `pop_ended` has returned every attempt."""
        for _ in self._threads:
            self._started.put(None)
        # After an error, an attempt may still be running; its thread ends with the process.
        for thread in () if self.running else self._threads:
            thread.join()
        self._threads.clear()
        self.free_reserve()
        self._wake_up.close()
