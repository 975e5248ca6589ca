"""DBOS: one step of a workflow, recorded in a SQLite system database."""

from __future__ import annotations

import sys
import time
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.serving import Answer, serve


def begin() -> tuple[dict[str, Any], Answer]:
    """Launch DBOS on a database in the folder of the first argument."""
    dbos: Any = import_module("dbos").DBOS
    dbos(
        config={
            "name": "bench",
            "system_database_url": f"sqlite:///{Path(sys.argv[1]) / 'dbos.db'}",
            "run_admin_server": False,
        }
    )

    def no_op() -> None:
        return None

    step = dbos.step()(no_op)

    def loop(count: int) -> list[float]:
        seconds = []
        for _ in range(count):
            started = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - started)
        return seconds

    workflow = dbos.workflow()(loop)
    dbos.launch()

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        return {"seconds": workflow(request["count"])}

    return {"what": f"DBOS {version('dbos')}, SQLite"}, answer


if __name__ == "__main__":
    serve(begin)
