"""Finds the processes of an attempt by their mark when nothing else can.

Used where a guard was killed or is stopped, and on systems without a subreaper. What
descends from a marked process belongs to it, whatever its environment. Not promised:
processes of another user or pid namespace, and orphans with an environment of their own.
"""

from __future__ import annotations

import time
from signal import SIGKILL, SIGSTOP

import psutil

from sequencer.executors.pump import MARK

_ROUNDS = 100
_PAUSE_S = 0.02
_EMPTY_LOOKS = 2
"""What forks all the time may pass one look by."""


def end_marked(*marks: str) -> int:
    """KILL every process with one of *marks* until none is found; return how many are left.

    They are stopped first: so nothing forks meanwhile, and no orphan loses its parent, by
    which it is known. This process and those that it descends from are left alone.
    """
    if not marks:
        return 0
    spared = {psutil.Process().pid, *(one.pid for one in psutil.Process().parents())}
    left: list[psutil.Process] = []
    stopped: set[int] = set()
    empty = 0
    for _ in range(_ROUNDS):
        left = _marked(frozenset(marks))
        ours = [process for process in left if process.pid not in spared]
        if not ours:
            empty += 1
            if empty == _EMPTY_LOOKS:
                break
        elif {process.pid for process in ours} <= stopped:
            _send(ours, SIGKILL)
        else:
            _send(ours, SIGSTOP)
            stopped |= {process.pid for process in ours}
            continue
        time.sleep(_PAUSE_S)
    return len(left)


def _send(processes: list[psutil.Process], number: int) -> None:
    for process in processes:
        try:
            # Looks at the start time too: a number that has a new owner gets nothing.
            process.send_signal(number)
        except psutil.Error:
            continue


def _marked(marks: frozenset[str]) -> list[psutil.Process]:
    parents: dict[psutil.Process, int] = {}
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        try:
            parents[process] = process.ppid()
            if process.environ().get(MARK) in marks:
                found[process.pid] = process
        except (psutil.Error, OSError):
            continue
    size = -1
    while found and size != len(found):
        size = len(found)
        found |= {one.pid: one for one, parent in parents.items() if parent in found}
    return [process for process in found.values() if _is_alive(process)]


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
