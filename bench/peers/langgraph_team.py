"""LangGraph: the same graph of tasks, eight at once, checkpointed by SqliteSaver.

As in `langgraph_flow`; a task that waits for several has one edge from all of them, so it
runs once.
"""

from __future__ import annotations

import sqlite3
import sys
import time
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.layers import blocks
from bench.peers.langgraph_flow import State, no_op
from bench.serving import Answer, serve


def graph_of(count: int, saver: Any) -> Any:
    """Return the compiled graph of *count* tasks."""
    graph_module: Any = import_module("langgraph.graph")
    graph, tasks = graph_module.StateGraph(State), blocks(count)
    for name in tasks:
        graph.add_node(name, no_op)
    for name, before in tasks.items():
        if len(before) > 1:
            graph.add_edge(list(before), name)
        else:
            graph.add_edge(before[0] if before else graph_module.START, name)
    return graph.compile(checkpointer=saver)


def begin() -> tuple[dict[str, Any], Answer]:
    """Open a database in the folder of the first argument."""
    saver_module: Any = import_module("langgraph.checkpoint.sqlite")
    connection = sqlite3.connect(Path(sys.argv[1]) / "langgraph.db", check_same_thread=False)
    saver = saver_module.SqliteSaver(connection)
    saver.setup()
    graphs: dict[int, Any] = {}
    threads = iter(range(sys.maxsize))

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        count = request["count"]
        compiled = graphs.get(count) or graphs.setdefault(count, graph_of(count, saver))
        configuration = {
            "configurable": {"thread_id": str(next(threads))},
            "max_concurrency": request.get("places", 8),
            "recursion_limit": count,
        }
        wall, cpu = time.perf_counter(), time.process_time()
        end = compiled.invoke({"done": 0}, configuration, durability="sync")
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        if end["done"] != count:
            raise RuntimeError(end)
        return {"cpu": cpu / count, "wall": wall / count}

    return {"what": f"LangGraph {version('langgraph')}, SqliteSaver sync"}, answer


if __name__ == "__main__":
    serve(begin)
