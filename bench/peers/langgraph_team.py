"""LangGraph: the same graph of tasks, eight at once, checkpointed by SqliteSaver.

As in `langgraph_flow`; a task that waits for several has one edge from all of them, so it
runs once.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from bench.layers import blocks
from bench.peers.langgraph_flow import State, no_op, opened
from bench.serving import serve


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


if __name__ == "__main__":
    serve(lambda: opened(graph_of, ends=0))
