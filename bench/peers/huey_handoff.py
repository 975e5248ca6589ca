"""huey between two processes: this one enqueues, a consumer that polls every 1 ms takes it.

The consumer is the same module with two more arguments, in a process that ends when its
standard input does, so that it can't outlive this one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.serving import Answer, serve

POLL_S = 0.001
PAUSE_S = 0.002
"""So that the consumer sleeps when the next task comes, as it does in real life."""


def make_queue(folder: Path, notes_fd: int) -> tuple[Any, Any]:
    """Return the queue in *folder* and the task that tells *notes_fd* when it begins."""
    module: Any = import_module("huey")
    queue = module.SqliteHuey("bench", filename=str(folder / "huey.db"), fsync=True)

    def note() -> None:
        os.write(notes_fd, f"{time.monotonic()!r}\n".encode())

    return queue, queue.task()(note)


def consume(folder: Path, notes_fd: int) -> None:
    """Run tasks until standard input ends."""

    def end_with_the_parent() -> None:
        sys.stdin.read()
        os._exit(0)

    threading.Thread(target=end_with_the_parent, daemon=True).start()
    queue, _ = make_queue(folder, notes_fd)
    queue.create_consumer(
        workers=1, periodic=False, initial_delay=POLL_S, max_delay=POLL_S, backoff=1.0
    ).run()


def begin() -> tuple[dict[str, Any], Answer]:
    """Start the consumer on a queue in the folder of the first argument."""
    folder = Path(sys.argv[1])
    read_fd, write_fd = os.pipe()
    queue, task = make_queue(folder, -1)
    consumer = subprocess.Popen(
        [sys.executable, "-m", "bench.peers.huey_handoff", str(folder), "consume", str(write_fd)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        pass_fds=(write_fd,),
    )
    os.close(write_fd)
    notes = os.fdopen(read_fd, encoding="ascii")

    def hand_over() -> float:
        time.sleep(PAUSE_S)
        started = time.monotonic()
        queue.enqueue(task.s())
        line = notes.readline()
        if not line:
            message = "the consumer ended"
            raise RuntimeError(message)
        return float(line) - started

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        return {"seconds": [hand_over() for _ in range(request["count"])]}

    hand_over()
    what = f"huey {version('huey')}, SqliteHuey fsync, 1 ms polling"
    return {"what": what, "waiting_pid": consumer.pid}, answer


if __name__ == "__main__":
    if "consume" in sys.argv[2:]:
        consume(Path(sys.argv[1]), int(sys.argv[3]))
    else:
        serve(begin)
