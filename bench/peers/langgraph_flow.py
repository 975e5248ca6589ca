"""LangGraph: a fan-out and fan-in, eight nodes at once, checkpointed by SqliteSaver.

``durability="sync"``: what a super-step has done is written before the next one begins; in
it, the saver is given what each node has returned as it comes. The graph is compiled before.
"""

from __future__ import annotations

import operator
import sqlite3
import sys
import time
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, TypedDict

from bench.serving import Answer, serve


class State(TypedDict):
    """What the nodes have returned, counted."""

    done: Annotated[int, operator.add]


def fan(width: int, saver: Any) -> Any:
    """Return the compiled graph of *width* nodes between a first and a last one."""
    graph_module: Any = import_module("langgraph.graph")
    graph = graph_module.StateGraph(State)
    graph.add_node("first", no_op)
    graph.add_node("last", no_op)
    graph.add_edge(graph_module.START, "first")
    names = [f"n{number}" for number in range(width)]
    for name in names:
        graph.add_node(name, no_op)
        graph.add_edge("first", name)
    graph.add_edge(names, "last")
    graph.add_edge("last", graph_module.END)
    return graph.compile(checkpointer=saver)


def no_op(state: State) -> dict[str, int]:
    """Count itself."""
    del state
    return {"done": 1}


def opened(graph_of: Callable[[int, Any], Any], ends: int) -> tuple[dict[str, Any], Answer]:
    """Open a database in the folder of the first argument; *graph_of* makes what is run.

    It has *ends* nodes more than it is asked for.
    """
    saver_module: Any = import_module("langgraph.checkpoint.sqlite")
    connection = sqlite3.connect(Path(sys.argv[1]) / "langgraph.db", check_same_thread=False)
    saver = saver_module.SqliteSaver(connection)
    saver.setup()
    graphs: dict[int, Any] = {}
    threads = iter(range(sys.maxsize))

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        count = request["count"]
        nodes = count + ends
        compiled = graphs.get(count) or graphs.setdefault(count, graph_of(count, saver))
        configuration = {
            "configurable": {"thread_id": str(next(threads))},
            "max_concurrency": request.get("places", 8),
            "recursion_limit": max(nodes, 25),
        }
        wall, cpu = time.perf_counter(), time.process_time()
        end = compiled.invoke({"done": 0}, configuration, durability="sync")
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        if end["done"] != nodes:
            raise RuntimeError(end)
        return {"cpu": cpu / nodes, "wall": wall / nodes}

    return {"what": f"LangGraph {version('langgraph')}, SqliteSaver sync"}, answer


if __name__ == "__main__":
    serve(lambda: opened(fan, ends=2))
