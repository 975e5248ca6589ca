"""huey as in `huey_step`, whose task leaves what a step leaves: a log and a readable state file.

The files are written as the floor writes them, without a flush of their own.
"""

from __future__ import annotations

import os
import sys
import time
from importlib import import_module
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any

from bench.floor import LOG, Floor
from bench.serving import Answer, serve


def begin() -> tuple[dict[str, Any], Answer]:
    """Open a queue in the folder of the first argument."""
    module: Any = import_module("huey")
    folder = Path(sys.argv[1])
    queue = module.SqliteHuey("bench", filename=str(folder / "huey.db"), fsync=True)
    files = Floor(folder / "files", preallocates=True)
    head, temporary = str(folder / "head"), str(folder / "head.tmp")
    numbers = count(1)

    def step() -> bool:
        create = os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC | os.O_EXCL
        log = os.open(f"{folder}/files/logs/{next(numbers)}", create, 0o644)
        os.write(log, LOG)
        os.close(log)
        files.replace(temporary, head)
        return True  # None would not be kept as a result

    task = queue.task()(step)

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        seconds = []
        for _ in range(request["count"]):
            started = time.perf_counter()
            queue.enqueue(task.s())
            queue.execute(queue.dequeue())
            seconds.append(time.perf_counter() - started)
        return {"seconds": seconds}

    return {"what": f"huey {version('huey')}, SqliteHuey fsync, a log and a state file"}, answer


if __name__ == "__main__":
    serve(begin)
