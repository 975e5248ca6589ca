"""One of the two processes that hand over to each other, ours and raw."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from inotify_simple import INotify, flags

from bench.floor import Floor
from bench.project import Marks, no_op_run
from bench.serving import Answer, serve
from sequencer import InvocationLimits, Mode, open_project
from sequencer.errors import ClaimHeld

LONGEST_WAIT_S = 60.0
WAKE_S = 0.2


class RawPlayer:
    """One side of a ping-pong over a file that is replaced: nothing but the system calls."""

    def __init__(self, folder: Path, parity: int) -> None:
        """Play the numbers of *parity* in *folder*, which both sides use."""
        folder.mkdir(exist_ok=True)
        self._parity = parity
        self._folder = folder
        self._floor = Floor(folder / f"side-{parity}")
        self._ball = str(folder / "ball")
        self._temporary = str(folder / f"ball.{parity}")
        self._inotify = INotify()
        self._inotify.add_watch(folder, flags.MOVED_TO)
        self._next = parity

    def play(self, count: int, durable: int) -> Marks:
        """Take *count* turns of *durable* transitions each; 2 is a claim and a commit."""
        marks = Marks()
        for _ in range(count):
            while self._accepted() != self._next:
                self._inotify.read()
            if durable > 1:
                self._put(self._next)
            marks.entered[self._next] = marks.left[self._next] = time.monotonic()
            self._put(self._next + 1)
            marks.accepted[self._next] = time.monotonic()
            if durable == 1:
                # The one transition stands before the begin, as a claim does.
                marks.entered[self._next] = marks.accepted[self._next]
            self._next += 2
        return marks

    def sleep(self, seconds: float) -> None:
        """Wait for nothing, and wake up five times a second."""
        ends_at = time.monotonic() + seconds
        while (left := ends_at - time.monotonic()) > 0:
            self._inotify.read(timeout=min(left, WAKE_S) * 1e3)

    def _accepted(self) -> int:
        try:
            fd = os.open(self._ball, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return 0
        try:
            return int(os.read(fd, 2048).split()[0])
        finally:
            os.close(fd)

    def _put(self, number: int) -> None:
        self._floor.append()
        self._floor.replace(self._temporary, self._ball, b"%d\n" % number)


class Side:
    """This process: at one position of the run, and at one parity of the raw game."""

    def __init__(self, folder: Path, position: str, parity: int) -> None:
        """Join the project in *folder*."""
        self._marks = Marks()
        self._run = no_op_run(open_project(folder / "project", trust=True), self._marks)
        self._position = position
        self._raw = RawPlayer(folder / "raw", parity)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer ``ours``, ``raw``, ``wait`` and ``sleep``."""
        if request["do"] == "sleep":
            self._raw.sleep(request["seconds"])
            return {}
        if request["do"] == "raw":
            marks = self._raw.play(request["count"], request["durable"])
        else:
            self._marks.clear()
            wait_s = request.get("seconds", LONGEST_WAIT_S)
            limits = InvocationLimits(max_steps=request.get("count", 1), max_wait_s=wait_s)
            try:
                self._run.work(Mode.SYNC, limits, positions=[self._position])
            except ClaimHeld:
                if request["do"] != "wait":
                    raise
            marks = self._marks
        return {"entered": marks.entered, "left": marks.left, "accepted": marks.accepted}


def begin() -> tuple[dict[str, Any], Answer]:
    """Join as the arguments say."""
    folder, position, parity = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    return {"pid": os.getpid()}, Side(folder, position, parity).answer


if __name__ == "__main__":
    serve(begin)
