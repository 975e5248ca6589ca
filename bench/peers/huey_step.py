"""huey: enqueue, dequeue, execute and keep the result, in one process, with fsync on."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.serving import Answer, serve


def no_op() -> bool:
    """Do nothing; None would not be kept as a result."""
    return True


def begin(work: Callable[[], bool] = no_op, extra: str = "") -> tuple[dict[str, Any], Answer]:
    """Open a queue in the folder of the first argument, for tasks that do *work*."""
    module: Any = import_module("huey")
    queue = module.SqliteHuey("bench", filename=str(Path(sys.argv[1]) / "huey.db"), fsync=True)
    task = queue.task()(work)

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        seconds = []
        for _ in range(request["count"]):
            started = time.perf_counter()
            queue.enqueue(task.s())
            queue.execute(queue.dequeue())
            seconds.append(time.perf_counter() - started)
        return {"seconds": seconds}

    return {"what": f"huey {version('huey')}, SqliteHuey fsync{extra}"}, answer


if __name__ == "__main__":
    serve(begin)
