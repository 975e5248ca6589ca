"""One child process: started whole, waited for up to a limit, and killed with its children."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType

SLICE_S = 0.2
"""How long nobody looks whether a process has ended or is not waited for any more."""
LATE_S = 0.5
"""How long after a process its pipes are read, if a child of it still holds them open."""


def never() -> bool:
    """Return that nobody has been told to stop."""
    return False


def unbroken(start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    """Return what *start* starts; Ctrl-C comes when that is known, and ends it with the rest.

    In the middle of a start it would leave a process behind that nobody knows.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        return start()
    came: list[FrameType | None] = []
    process = None
    try:
        signal.signal(signal.SIGINT, lambda _, frame: came.append(frame))
        try:
            process = start()
        finally:
            signal.signal(signal.SIGINT, handler)
            if came:
                handler(signal.SIGINT, came[0])
    except BaseException:
        if process is not None:
            end(process)
        raise
    return process


class Limit:
    """Until when a process is waited for."""

    def __init__(self, limit_s: float, stopped: Callable[[], bool], stopped_s: float) -> None:
        self._ends = time.monotonic() + limit_s
        self._stopped, self._stopped_s = stopped, stopped_s
        self.is_cut = False

    def left_s(self) -> float:
        """Return how many seconds are left; less once it has been told to stop."""
        now = time.monotonic()
        if not self.is_cut and self._stopped():
            self.is_cut, self._ends = True, min(self._ends, now + self._stopped_s)
        return self._ends - now


def answer(
    process: subprocess.Popen[bytes], argv: Sequence[str], stdin: bytes, limit: Limit
) -> tuple[bytes, bytes]:
    """Return what *process* has printed until it ended, or closed both pipes and ended.

    Not until the pipes are closed: what ssh leaves behind for the next connection may hold
    them for minutes.
    """
    if stdin:
        # Only what works here is given something, and leaves nobody behind.
        return process.communicate(stdin, timeout=limit.left_s())
    while (left := limit.left_s()) > 0:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=min(left, SLICE_S))
        if process.poll() is None:
            continue
        try:
            return process.communicate(timeout=LATE_S)
        except subprocess.TimeoutExpired as late:
            _close_pipes(process)
            # Both are bytes or nothing, whatever the type says.
            return bytes(late.stdout or b""), bytes(late.stderr or b"")
    raise subprocess.TimeoutExpired(argv, left)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill *process* with everything that it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    _close_pipes(process)
    process.wait()


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
