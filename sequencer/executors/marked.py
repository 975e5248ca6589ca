"""Finds the processes of an attempt by their mark when nothing else can.

Used where a guard was killed, and on systems without a subreaper. Not promised: processes
of another user, and those that replaced their whole environment.
"""

from __future__ import annotations

import time

import psutil

from sequencer.executors.guarding import MARK

_ROUNDS = 100
_PAUSE_S = 0.02


def end_marked(mark: str) -> int:
    """KILL every process with *mark* until none is found; return how many are left."""
    left: list[psutil.Process] = []
    for _ in range(_ROUNDS):
        left = _marked(mark)
        if not left:
            break
        for process in left:
            try:
                process.kill()
            except psutil.Error:
                continue
        time.sleep(_PAUSE_S)
    return len(left)


def _marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found
