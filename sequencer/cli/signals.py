"""SIGINT, SIGTERM and SIGHUP end the running step first, and then the program.

Python runs signal handlers on the main thread between any two instructions, even while that
thread holds a lock that is needed to end a step. So a signal only wakes another thread through a
descriptor, and that thread asks the work to end. Further signals change nothing: before the
program ends, the claim is released and the agent has ended.

A server that does not answer, or a lock held by a stopped process, may block the end. Then
`ForcedExit` ends the process, as a kill would: accepted steps stay accepted, and a claim that was
not released expires.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

from sequencer.engine.run import Run
from sequencer.errors import Interrupted, RemoteUnreachable, SequencerError
from sequencer.executors.launch import GRACE_S
from sequencer.project.project import Project

WORDS_S = 0.5
"""Time for the last message, in seconds: the terminal may be stopped too."""
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class EndOnSignal:
    """A context in which a signal asks the work to end. Use it only on the main thread."""

    def __init__(
        self, show: Callable[[str], None], is_working: Callable[[], bool] = lambda: True
    ) -> None:
        """Report the first signal through *show*; *is_working* says whether a step is running."""
        self._show, self._is_working = show, is_working
        self._lock = threading.Lock()
        self._interrupt: Callable[[], None] | None = None
        self._has_come = False

    def on_ready(self, interrupt: Callable[[], None]) -> None:
        """Set the function that asks the work to end, and call it if a signal has already come."""
        with self._lock:
            self._interrupt = interrupt
            has_come = self._has_come
        if has_come:
            interrupt()

    @property
    def has_come(self) -> bool:
        """Return whether a signal has asked for the end."""
        return self._has_come

    def __enter__(self) -> Self:
        """Take over the signals."""
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._write_fd, False)
        self._thread = threading.Thread(target=self._listen, name="signals", daemon=True)
        self._thread.start()
        self._wakeup_before = signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        # A signal that was ignored when the program started (nohup) stays ignored.
        self._before: dict[signal.Signals, Any] = {
            # The handler does nothing: the wake-up descriptor does the work.
            number: signal.signal(number, lambda *_: None)
            for number in ENDING
            if signal.getsignal(number) is not signal.SIG_IGN
        }
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the signal handlers; if a signal has come, ignore further signals instead."""
        for number, handler in self._before.items():
            # Otherwise an impatient Ctrl-C would kill the program and lose its exit code.
            signal.signal(number, signal.SIG_IGN if self._has_come else handler)
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._write_fd)
        self._thread.join()
        os.close(self._read_fd)

    def _listen(self) -> None:
        while data := self._read():
            if not any(number in data for number in ENDING):
                continue
            with self._lock:
                is_first, self._has_come = not self._has_come, True
                interrupt = self._interrupt
            if is_first:
                action = "stopping the running step and releasing it"
                self._show(f"ending: {action if self._is_working() else 'no step is running'}")
            if interrupt is not None:
                interrupt()

    def _read(self) -> bytes:
        """Return the numbers of the signals that have come; empty: no more will come."""
        while True:
            try:
                return os.read(self._read_fd, 64)
            except OSError as error:
                # Without this thread, no signal would end the work.
                if error.errno == errno.EBADF:
                    return b""


class ForcedExit:
    """A context manager that ends this process if it does not end soon after it was asked to.

    Not promised: that the claim was released by then.
    """

    def __init__(self, within_s: float) -> None:
        """End the process *within_s* seconds after `begin`."""
        self._timer = threading.Timer(within_s, self._end)
        self._timer.daemon = True
        self._lock = threading.Lock()
        self._is_over = False
        self.has_started = False
        """Whether this process was asked to end."""
        self.words: Callable[[], None] = lambda: None
        """Prints the last message: that the state of the run is unknown."""

    def __enter__(self) -> Self:
        """Start no timer yet; `begin` does."""
        return self

    def __exit__(self, *_: object) -> None:
        """Cancel the timer: the work has ended."""
        with self._lock:
            self._is_over = True
        self._timer.cancel()

    def begin(self) -> None:
        """Start the timer, once."""
        with self._lock:
            if self._is_over or self.has_started:
                return
            self.has_started = True
            # If no thread can be started, there is no time limit; the work still ends on its own.
            with suppress(RuntimeError):
                self._timer.start()

    def note(self) -> None:
        """Note that the process was asked to end; the remaining work has its own time limit."""
        self.has_started = True

    def begin_before(self, show: Callable[[str], None]) -> Callable[[str], None]:
        """Return a function that calls `begin` and then *show*.

        In this order, because a stopped terminal may block *show*.
        """

        def begin_and_show(text: str) -> None:
            self.begin()
            show(text)

        return begin_and_show

    def _end(self) -> None:
        with self._lock:
            if self._is_over:
                return
        thread = threading.Thread(target=self.words, daemon=True)
        thread.start()
        thread.join(WORDS_S)
        os._exit(Interrupted.exit_code)


RELEASE_S = 6.0
"""Seconds that the work may take to end after a signal, in addition to an agent's grace period.
10 s are promised; the rest is for the last message and for a machine that is slow to wake this
process."""


def max_shutdown_s(project: Project) -> float:
    """Return how many seconds after a signal the work may take to end by itself."""
    settings = project.settings
    graces_s = [agent.options.get("grace_s", GRACE_S) for agent in settings.agents.values()]
    if settings.agent.default not in settings.agents:
        graces_s.append(GRACE_S)
    return max((s for s in graces_s if isinstance(s, int | float)), default=GRACE_S) + RELEASE_S


def unknown_end_error(run: Run) -> Interrupted:
    """Return the error for work on *run* that something keeps from ending as it should."""
    return Interrupted(
        "interrupted, but no answer came in time, so the run's state is unknown: if this process "
        f"has a claim, the run releases it when {run.store.ttl_s:g} s have passed without a "
        "heartbeat",
        hint="start again to continue",
    )


def as_interruption(error: SequencerError, run: Run, last: ForcedExit) -> SequencerError:
    """Return *error*; if this process was asked to end, return it as an interruption.

    Only an unreachable remote is changed, because then the release of the claim is unknown.
    """
    if not last.has_started or not isinstance(error, RemoteUnreachable):
        return error
    interruption = unknown_end_error(run)
    interruption.message += f" ({error.where or 'the remote'}: {error.message})"
    interruption.__cause__ = error
    return interruption
