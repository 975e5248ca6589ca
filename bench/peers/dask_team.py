"""Dask: the same graph of tasks, by its distributed scheduler and by its local threads.

Both keep everything in memory: nothing of a run is left where its process dies. The
cluster is one worker with as many threads as there are places, in this process; its pages
for people are off.
"""

from __future__ import annotations

import time
from importlib import import_module
from importlib.metadata import version
from itertools import count
from typing import Any

from bench.layers import blocks
from bench.serving import Answer, serve

PLACES = 8


def no_op(*before: int) -> int:
    """Return how many tasks stood behind each other, this one included."""
    return 1 + max(before, default=0)


def depth_of(size: int) -> int:
    """Return what `no_op` says in the last of *size* tasks."""
    depths: dict[str, int] = {}
    for name, before in blocks(size).items():
        depths[name] = no_op(*(depths[other] for other in before))
    return max(depths.values())


def graph_of(size: int, run: int) -> tuple[dict[str, Any], list[str]]:
    """Return the graph of *size* tasks, and those that nobody waits for."""
    # The scheduler knows the keys that it has seen, so each run has keys of its own.
    tasks = blocks(size)
    graph: dict[str, Any] = {
        f"{run}-{name}": (no_op, *(f"{run}-{other}" for other in before))
        for name, before in tasks.items()
    }
    waited_for = {other for before in tasks.values() for other in before}
    return graph, [f"{run}-{name}" for name in tasks if name not in waited_for]


def begin() -> tuple[dict[str, Any], Answer]:
    """Start the cluster."""
    dask: Any = import_module("dask")
    distributed: Any = import_module("distributed")
    threaded: Any = import_module("dask.threaded")
    dask.config.set({"distributed.worker.profile.enabled": False})
    cluster = distributed.LocalCluster(
        n_workers=1, threads_per_worker=PLACES, processes=False, dashboard_address=None
    )
    client = distributed.Client(cluster)
    runs = count()

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        tasks = request["count"]
        graph, keys = graph_of(tasks, next(runs))
        is_local = request.get("how") == "threads"
        wall, cpu = time.perf_counter(), time.process_time()
        if is_local:
            found = threaded.get(graph, keys, num_workers=PLACES)
        else:
            found = client.get(graph, keys)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        if max(found) != depth_of(tasks):
            raise RuntimeError(found)
        return {"cpu": cpu / tasks, "wall": wall / tasks}

    return {"what": f"Dask {version('distributed')}, in memory"}, answer


if __name__ == "__main__":
    serve(begin)
