"""What is added to a graph while it runs: nodes, the edges that they have, and their steps."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sequencer.model.graph import Edge, Graph, Node
from sequencer.model.step import Step
from sequencer.model.workflow import Workflow


class Growth(BaseModel):
    """One addition; frozen. It names nodes of the graph that it is added to in its edges only."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    nodes: tuple[Node, ...] = Field(min_length=1)
    edges: tuple[Edge, ...] = ()
    """Of the new nodes: among each other, and from and to those that were there."""
    steps: tuple[Step, ...] = ()
    """Of the new nodes where an agent works, in their order."""

    @property
    def added_by(self) -> str | None:
        """Return the node whose answer has asked for it; None: it was nobody's answer.

        Whatever waits for nothing else that is new waits for that node, before all others.
        """
        own = {node.id for node in self.nodes}
        behind = {edge.target for edge in self.edges if edge.source in own}
        first = own - behind
        from_outside = (edge.source for edge in self.edges if edge.target in first)
        return next(from_outside, None)

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data, without what is as ever."""
        return self.model_dump(mode="json", exclude_defaults=True, by_alias=True)


def grown_graph(graph: Graph, growth: Growth) -> Graph:
    """Return *graph* with *growth*.

    Raises:
        ValueError: a node is there already, or an edge leads to one that is not.
    """
    fields = {name: getattr(graph, name) for name in Graph.model_fields}
    more = {
        "nodes": (*graph.nodes, *growth.nodes),
        "edges": (*graph.edges, *growth.edges),
    }
    try:
        return Graph(**{**fields, **more})
    except ValidationError as error:
        raise ValueError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None


def grown(workflow: Workflow, growths: list[Growth]) -> Workflow:
    """Return *workflow* with *growths*, one after the other."""
    graph = workflow.graph
    if graph is None or not growths:
        return workflow
    steps = workflow.steps
    for growth in growths:
        graph = grown_graph(graph, growth)
        steps = (*steps, *growth.steps)
    return Workflow(workflow.name, steps, kind="graph", graph=graph)


def with_graph(workflow: Workflow, growths: list[Growth], graph: Graph) -> Workflow:
    """Return *workflow* with *growths*, where *graph* has grown by them already."""
    steps = (*workflow.steps, *(step for growth in growths for step in growth.steps))
    return Workflow(workflow.name, steps, kind="graph", graph=graph)
