"""LangGraph: one super-step of a graph that loops, checkpointed by SqliteSaver.

``durability="sync"``: the checkpoint is written before the next step begins. The saver's
own connection is used as it makes it: WAL, with SQLite's default ``synchronous=FULL``.
"""

from __future__ import annotations

import sqlite3
import sys
import time
from importlib import import_module
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any, TypedDict

from bench.serving import Answer, serve


class State(TypedDict):
    """What the loop carries."""

    done: int
    wanted: int


def begin() -> tuple[dict[str, Any], Answer]:
    """Build the graph on a database in the folder of the first argument."""
    graph_module: Any = import_module("langgraph.graph")
    saver_module: Any = import_module("langgraph.checkpoint.sqlite")
    connection = sqlite3.connect(Path(sys.argv[1]) / "langgraph.db", check_same_thread=False)
    saver = saver_module.SqliteSaver(connection)
    saver.setup()
    times: list[float] = []

    def step(state: State) -> dict[str, int]:
        times.append(time.perf_counter())
        return {"done": state["done"] + 1}

    def following(state: State) -> str:
        return "step" if state["done"] < state["wanted"] else str(graph_module.END)

    graph = graph_module.StateGraph(State)
    graph.add_node("step", step)
    graph.add_edge(graph_module.START, "step")
    graph.add_conditional_edges("step", following)
    compiled = graph.compile(checkpointer=saver)

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        times.clear()
        count = request["count"] + 1
        compiled.invoke(
            {"done": 0, "wanted": count},
            {"configurable": {"thread_id": "bench"}, "recursion_limit": count + 10},
            durability="sync",
        )
        return {"seconds": [after - before for before, after in pairwise(times)]}

    mode = connection.execute("pragma journal_mode").fetchone()[0]
    level = connection.execute("pragma synchronous").fetchone()[0]
    what = f"LangGraph {version('langgraph')}, SqliteSaver sync ({mode}, synchronous={level})"
    return {"what": what}, answer


if __name__ == "__main__":
    serve(begin)
