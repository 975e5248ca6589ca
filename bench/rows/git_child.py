"""One of the two clones that hand over to each other through a bare repository, ours and raw."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from inotify_simple import INotify, flags

from bench.project import Marks, no_op_run
from bench.rows.handoff_child import LONGEST_WAIT_S
from bench.serving import Answer, serve
from sequencer import InvocationLimits, Mode, open_project
from sequencer.plugins.git.state.store import GitStore

RAW = "refs/heads/raw"
STATE = "README.md"


class RawPlayer:
    """One side of a ping-pong over a branch: commit-tree, push, fetch, read, and no more."""

    def __init__(self, clone: Path, remote: Path, parity: int) -> None:
        """Play the numbers of *parity* in *clone*; the branch is on *remote*."""
        self._clone = clone
        self._ref = remote / RAW
        self._watch = INotify()
        self._watch.add_watch(self._ref.parent, flags.MOVED_TO)
        self._tip = self._ref.read_text().strip()
        self._own = self._tip if parity else ""
        """What this side has pushed last, or what the other one is to begin with."""
        self._tree = self._git("rev-parse", f"{self._tip}^{{tree}}")
        self._next = parity

    def play(self, count: int) -> Marks:
        """Take *count* turns; one begins when its only push was accepted, as a claim does."""
        marks = Marks()
        for _ in range(count):
            # A file of the remote is all that is looked at for nothing.
            while (tip := self._ref.read_text().strip()) == self._own:
                self._watch.read()
            if tip != self._tip:
                self._fetch(tip)
            self._push()
            marks.entered[self._next] = marks.left[self._next] = time.monotonic()
            marks.accepted[self._next] = marks.entered[self._next]
            self._next += 2
        return marks

    def _fetch(self, tip: str) -> None:
        flag = "--no-write-fetch-head"
        self._git("fetch", "--quiet", "--no-tags", flag, "origin", f"+{RAW}:refs/raw/{RAW}")
        self._git("cat-file", "blob", f"{tip}:{STATE}")
        self._tip = tip

    def _push(self) -> None:
        commit = self._git("commit-tree", "-p", self._tip, "-m", str(self._next), self._tree)
        lease = f"--force-with-lease={RAW}:{self._tip}"
        # Noted before: the other side may be quicker than the end of the push.
        self._own = self._tip = commit
        self._git("push", "--porcelain", "--atomic", lease, "origin", f"{commit}:{RAW}")

    def _git(self, *argv: str) -> str:
        return subprocess.run(
            ["git", *argv],
            cwd=self._clone,
            check=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            text=True,
        ).stdout.strip()


class Side:
    """This process: at one position of the run, and at one parity of the raw game."""

    def __init__(self, folder: Path, position: str, parity: int) -> None:
        """Join the clone of *position* in *folder*."""
        clone = folder / position
        self._marks = Marks()
        self._run = no_op_run(open_project(clone, trust=True), self._marks)
        self._position = position
        self._raw = RawPlayer(clone, folder / "remote.git", parity)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer ``ours`` and ``raw``."""
        started = self._processes()
        if request["do"] == "raw":
            marks = self._raw.play(request["count"])
        else:
            self._marks.clear()
            limits = InvocationLimits(max_steps=request["count"], max_wait_s=LONGEST_WAIT_S)
            self._run.work(Mode.SYNC, limits, positions=[self._position])
            marks = self._marks
        return {
            "entered": marks.entered,
            "left": marks.left,
            "accepted": marks.accepted,
            "processes": self._processes() - started,
        }

    def _processes(self) -> int:
        store = self._run.store
        return store.branch.git.started if isinstance(store, GitStore) else 0


def begin() -> tuple[dict[str, Any], Answer]:
    """Join as the arguments say."""
    folder, position, parity = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    return {"pid": os.getpid()}, Side(folder, position, parity).answer


if __name__ == "__main__":
    serve(begin)
