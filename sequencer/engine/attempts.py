"""The attempts that this process makes at once, each in a thread that it has for itself.

A thread that is done waits for the next attempt: to make one takes longer than the rest of
what starts a short attempt. A thread performs and keeps the output; it decides nothing.
What an attempt means for the run is recorded by the one thread that started it, in the
order in which they ended.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable

from sequencer.engine.attempt import Attempt
from sequencer.engine.heartbeat import Heartbeat
from sequencer.executors.cancellation import StopReason
from sequencer.model.head import Claim
from sequencer.store.watch import readable

WAIT_S = 1.0
_RESERVE = 4
"""Descriptors that are kept for the records of what has ended: where an agent gets none any
more, its claim can still be released."""
Perform = Callable[[Attempt], None]


class Attempts:
    """The threads, and the queue of those that are done."""

    def __init__(self, heartbeat: Heartbeat) -> None:
        """Begin with none; *heartbeat* keeps their claims alive."""
        self._heartbeat = heartbeat
        self._begun: queue.SimpleQueue[tuple[Attempt, Perform] | None] = queue.SimpleQueue()
        """What the threads take from; None ends one of them."""
        self._ended: queue.SimpleQueue[Attempt] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self.running: dict[int, Attempt] = {}
        """By the tokens of their claims; those included that have ended and wait for a record."""
        self._taken: list[Claim] = []
        """Claims that are kept alive until their ends are recorded."""
        self._is_drained = False
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        os.set_blocking(self._write_fd, False)
        self._reserve = [os.open(os.devnull, os.O_RDONLY) for _ in range(_RESERVE)]

    def fileno(self) -> int:
        """Return a descriptor that is readable when an attempt has ended or somebody woke us."""
        return self._read_fd

    def wake(self) -> None:
        """Make the descriptor readable; safe in a signal handler."""
        with contextlib.suppress(OSError):
            os.write(self._write_fd, b"x")

    def drain(self) -> None:
        """Make the descriptor unreadable until the next one."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self._read_fd, 4096):
                pass

    def wait(self) -> None:
        """Sleep until an attempt has ended, or somebody woke us."""
        readable((self._read_fd,), WAIT_S)
        self.drain()

    def start(self, running: Attempt, perform: Perform) -> None:
        """Let *perform* make the attempt in a thread; where there is none, it has ended."""
        self.running[running.claim.token] = running
        if len(self._threads) < len(self.running):
            name = f"attempt-{len(self._threads)}"
            thread = threading.Thread(target=self._make_attempts, name=name, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                running.error = error
                self._ended.put(running)
                self.wake()
                return
            self._threads.append(thread)
        self._begun.put((running, perform))

    def _make_attempts(self) -> None:
        while (begun := self._begun.get()) is not None:
            self._run(*begun)
            # Else what the attempt has held lives until the next one comes.
            del begun

    def _run(self, running: Attempt, perform: Perform) -> None:
        try:
            self._heartbeat.begin(running.claim, running.cancellation)
            perform(running)
        except BaseException as error:  # noqa: BLE001 - the claim has to end in a record
            running.error = error
        finally:
            self._heartbeat.end(running.claim)
            self._heartbeat.go_on(running.claim)
            self._ended.put(running)
            self.wake()

    def next_ended(self) -> Attempt | None:
        """Return the attempt that ended first and was not taken yet.

        After a None those that were taken before have been recorded with the next call.
        """
        if self._is_drained:
            self._is_drained = False
            while self._taken:
                self._heartbeat.end(self._taken.pop())
        try:
            ended = self._ended.get_nowait()
        except queue.Empty:
            self._is_drained = True
            return None
        self._taken.append(ended.claim)
        self.running.pop(ended.claim.token, None)
        ended.cancellation.close()
        return ended

    def cancel(self, reason: StopReason, but: frozenset[int] = frozenset()) -> None:
        """Ask all attempts to end whose tokens are not in *but*; safe in a signal handler."""
        for token, running in tuple(self.running.items()):
            if token not in but:
                running.cancellation.set(reason)

    def free_reserve(self) -> None:
        """Let the last records have the descriptors that were kept for them."""
        while self._reserve:
            os.close(self._reserve.pop())

    def close(self) -> None:
        """End the threads and free the descriptors; every attempt was taken."""
        for _ in self._threads:
            self._begun.put(None)
        # After an error in between one may still run; its thread ends with the process.
        for thread in () if self.running else self._threads:
            thread.join()
        self._threads.clear()
        self.free_reserve()
        for fd in (self._read_fd, self._write_fd):
            os.close(fd)
        self._read_fd = self._write_fd = -1
