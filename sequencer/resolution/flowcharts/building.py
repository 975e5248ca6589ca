"""From a chart and its sections to a graph and its steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from sequencer.model.graph import MAX_NODES, Edge, Graph, Node, NodeKind
from sequencer.model.step import Step
from sequencer.resolution.flowcharts.chart import Chart, ChartNode, Position
from sequencer.resolution.flowcharts.grouping import Grouping, Way
from sequencer.resolution.flowcharts.nodes import (
    Headings,
    ensure_section_fits,
    has_usable_id,
    kind_of,
    node_of,
)
from sequencer.resolution.flowcharts.problems import Findings
from sequencer.resolution.flowcharts.rules import Flowgraph, check
from sequencer.resolution.flowcharts.sections import Front, NodeSource, without_section
from sequencer.resolution.flowcharts.steps import step_of
from sequencer.resolution.flowcharts.template_rules import check_templates


class Building:
    """What one file comes to; everything that is wrong goes to its findings."""

    def __init__(
        self,
        chart: Chart,
        front: Front,
        written: Mapping[str, NodeSource],
        timeouts: Mapping[str, int],
        findings: Findings,
        *,
        agents: frozenset[str] = frozenset(),
    ) -> None:
        """Build *chart* as *front* and the sections *written* say.

        Decisions of the names *agents* work like an agent's node.
        """
        self._agents = agents
        self._front = front
        self._findings = findings
        self._grouping = Grouping(chart, findings)
        self._nodes = {node.id: node for node in self._grouping.nodes}
        self._kinds: dict[str, NodeKind] = {}
        self.sources: dict[str, NodeSource] = {
            name: written.get(name) or without_section(name, timeouts, findings)
            for name in self._nodes
        }
        """What the file says about each node of the chart."""
        self._ensure_known(written, timeouts)

    def graph_and_steps(self, *, needs_sections: bool) -> tuple[Graph | None, tuple[Step, ...]]:
        """Return the graph and the steps of its agents; None where there can't be a graph."""
        findings, name = self._findings, self._findings.file.name
        if not self._nodes or len(self._nodes) > MAX_NODES:
            detail = f"more than {MAX_NODES} nodes" if self._nodes else "the chart has no node"
            findings.error("E-CHART", name, detail)
            return None, ()
        usable = {name for name, node in self._nodes.items() if has_usable_id(node, findings)}
        if len(usable) < len(self._nodes):
            return None, ()
        headings = Headings(one.section for one in self.sources.values())
        for node in self._nodes.values():
            kind = kind_of(node, self.sources[node.id], findings)
            is_agent = kind is NodeKind.DECISION and node.id in self._agents
            self._kinds[node.id] = NodeKind.AGENT if is_agent else kind
            if needs_sections:
                ensure_section_fits(node, kind, self.sources[node.id], headings, findings)
        ways = self._grouping.ways
        if ways is None:
            return None, ()
        leaving: dict[str, list[Way]] = {}
        for way in ways:
            leaving.setdefault(way.source, []).append(way)
        nodes = [self._node(node, leaving.get(node.id, [])) for node in self._nodes.values()]
        steps = self._steps()
        graph = self._graph(nodes, ways)
        if graph is not None:
            self._check(graph, ways)
        return graph, steps

    def _node(self, node: ChartNode, leaving: list[Way]) -> Node:
        source, findings = self.sources[node.id], self._findings
        made = node_of(node, self._kinds[node.id], source, leaving, findings)
        target = source.values.timeout_target
        if made.on_timeout is None or target is None:
            return made
        found = self._one(
            target, "E-TIMEOUT", node.id, "onTimeout: ", source.at(*source.path_of("onTimeout"))
        )
        return made.model_copy(update={"on_timeout": found})

    def _steps(self) -> tuple[Step, ...]:
        retry = self._front.values.retry
        return tuple(
            step_of(name, self.sources[name], retry, self._findings)
            for name, kind in self._kinds.items()
            if kind is NodeKind.AGENT
        )

    def _graph(self, nodes: list[Node], ways: tuple[Way, ...]) -> Graph | None:
        values, findings = self._front.values, self._findings
        on_error = None
        if values.on_error is not None:
            at = self._front.at("onError")
            on_error = self._one(values.on_error, "E-ONERROR", values.on_error, "", at)
        config = values.config
        limits: dict[str, Any] = {}
        if config is not None:
            limits = {"timeout_ms": config.timeout, "max_parallel": config.max_parallel}
            if config.max_iterations is not None:
                limits["max_iterations"] = config.max_iterations
        try:
            return Graph(
                nodes=tuple(nodes),
                edges=tuple(
                    Edge(source=way.source, target=way.target, label=way.label) for way in ways
                ),
                entries=self._begin(),
                on_error=on_error,
                state=values.state or {},
                **limits,
            )
        except ValidationError as refused:
            if not findings.has_errors:
                detail = str(refused.errors()[0]["msg"])
                findings.error("E-CHART", findings.file.name, detail)
            return None

    def _begin(self) -> tuple[str, ...]:
        asked = self._front.values.entrypoint
        first = next(iter(self._nodes))
        if asked is None:
            return (first,)
        entries = self._grouping.entries(asked)
        if entries and all(name in self._nodes for name in entries):
            return entries
        self._unknown(asked, "E-ENTRY", asked, "", self._front.at("entrypoint"))
        return (first,)

    def _one(
        self, name: str, code: str, subject: str, said: str, at: Position | None
    ) -> str | None:
        """Return the node that *name* means: itself, or the one entry of a group."""
        entries = self._grouping.entries(name)
        if name not in self._grouping.groups and name not in self._nodes:
            self._unknown(name, code, subject, said, at)
            return None
        if len(entries) != 1:
            listed = ", ".join(entries[:10]) or "none"
            detail = f"{said}the group {name!r} has not one entry: {listed}"
            self._findings.error(code, subject, detail, at, "name a node")
            return None
        return entries[0]

    def _unknown(self, name: str, code: str, subject: str, said: str, at: Position | None) -> None:
        hint = self._findings.known(name, list(self._nodes))
        self._findings.error(code, subject, f"{said}there is no node {name!r}", at, hint)

    def _ensure_known(self, written: Mapping[str, NodeSource], timeouts: Mapping[str, int]) -> None:
        names = list(self._nodes)
        for name, source in written.items():
            if name in self._nodes:
                continue
            detail = "the chart has no node of this id"
            if name in self._grouping.groups:
                detail = "this is a group of nodes, and a section belongs to one node"
            hint = self._findings.known(name, names)
            self._findings.error("E-SECTION", name or "###", detail, source.at(), hint)
        for name in timeouts:
            if name not in self._nodes:
                self._unknown(name, "E-TIMEOUT", name, "", None)

    def _check(self, graph: Graph, ways: tuple[Way, ...]) -> None:
        flow = Flowgraph(
            graph=graph,
            front=self._front,
            sources=self.sources,
            node_positions={name: node.position for name, node in self._nodes.items()},
            edge_positions=tuple(way.position for way in ways),
            incomplete=self._grouping.refused,
        )
        check(flow, self._findings)
        check_templates(flow, self._findings)
