"""From a chart and its sections to a graph and its steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import Any

from pydantic import ValidationError

from sequencer.model.net.graph import MAX_NODES, Edge, Graph, Node, NodeKind, Option
from sequencer.model.net.rules import DEFAULT, TIMEOUT, normalise
from sequencer.model.step import Step
from sequencer.workflows.flowfile.markdown import Heading, Section
from sequencer.workflows.flowfile.problems import MAX_COMPARED, Findings
from sequencer.workflows.flowfile.rules import Flowgraph, check, check_templates
from sequencer.workflows.flowfile.settings import (
    AGENT_KEYS,
    PERSON_KEYS,
    Front,
    NodeSource,
    step_of,
    without_section,
)
from sequencer.workflows.mermaid.chart import MAX_EDGES, Chart, ChartEdge, ChartNode, drawn
from sequencer.workflows.mermaid.text import Position

MAX_DEPTH = 32
_FLOW_TYPE = "arrow_point"
_LAYOUT = "invisible"


@dataclass(frozen=True, slots=True)
class Way:
    """An edge between two nodes, and where the line is that it comes from."""

    source: str
    target: str
    label: str
    position: Position


class Grouping:
    """The nodes, groups and edges of one chart."""

    def __init__(self, chart: Chart, findings: Findings) -> None:
        """Take *chart* apart; what can't be run is added to *findings*."""
        self._findings = findings
        self._groups = {group.id: group.position for group in chart.subgraphs}
        self._order = {name: place for place, name in enumerate(self._groups)}
        self.nodes: tuple[ChartNode, ...] = tuple(
            node for node in chart.nodes if node.id not in self._groups
        )
        """Without groups; in the order of first mention."""
        self._parents = self._found_parents(chart)
        if not self._is_shallow():
            self._parents = {}
        self._lines = [edge for edge in chart.edges if self._is_flow(edge)]
        self.refused: frozenset[str] = frozenset(
            end
            for edge in chart.edges
            if edge.stroke != _LAYOUT and edge.type != _FLOW_TYPE
            for end in (edge.source, edge.target)
        )
        """The ends of lines that were refused; what is missing there is no second problem."""
        self._entries: dict[str, tuple[str, ...]] = {}
        self._exits: dict[str, tuple[str, ...]] = {}
        self._circular: dict[str, str] = {}
        if self._groups:
            self._find_ends()

    @property
    def groups(self) -> tuple[str, ...]:
        """Return the ids of the groups."""
        return tuple(self._groups)

    def entries(self, name: str) -> tuple[str, ...]:
        """Return the nodes where an edge to *name*, a node or a group, arrives."""
        return self._entries.get(name, ()) if name in self._groups else (name,)

    @cached_property
    def ways(self) -> tuple[Way, ...] | None:
        """Return the edges between nodes, in text order; None if there are too many."""
        found: dict[tuple[str, str, str], Way] = {}
        count = 0
        for edge in self._lines:
            label = drawn(edge.label)
            for source, target in self._ends(edge):
                count += 1
                key = (source, target, label)
                if key in found:
                    line = found[key].position[0]
                    detail = f"the same edge is there already, in line {line}; it is one edge"
                    self._findings.warn("W-TWICE", f"{source} {target}", detail, edge.position)
                found.setdefault(key, Way(source, target, label, edge.position))
            # Not what is found: the same edge between two large groups costs as much each time.
            if count > MAX_EDGES:
                detail = f"more than {MAX_EDGES} edges, those of groups counted for each node"
                subject = f"{edge.source} {edge.target}"
                self._findings.error("E-SUBGRAPH", subject, detail, edge.position)
                return None
        return tuple(found.values())

    def _found_parents(self, chart: Chart) -> dict[str, str]:
        """Return the group that each node and each group is in directly."""
        closed: dict[str, str] = {}
        for group in chart.subgraphs:
            for member in group.nodes:
                # A node stays with the group that is closed first. A group that is not closed
                # yet is most often the one around this one, and an edge leads back to it.
                if member not in self._groups or self._order[member] < self._order[group.id]:
                    closed.setdefault(member, group.id)
        self._parents = closed
        for group in chart.subgraphs:
            for member in group.nodes:
                is_around = member == group.id or member in self._above(group.id)
                if member not in closed and not is_around:
                    closed[member] = group.id
        return closed

    def _is_flow(self, edge: ChartEdge) -> bool:
        if edge.stroke == _LAYOUT:
            return False
        if edge.type == _FLOW_TYPE:
            return True
        subject = f"{edge.source} {edge.target}"
        hint = f"write {edge.source} --> {edge.target}, or ~~~ if it is for the layout alone"
        detail = "only -->, -.-> and ==> are executable"
        self._findings.error("E-EDGE", subject, detail, edge.position, hint)
        return False

    def _ends(self, edge: ChartEdge) -> Iterator[tuple[str, str]]:
        subject = f"{edge.source} {edge.target}"
        sources = (
            self._exits.get(edge.source, ()) if edge.source in self._groups else (edge.source,)
        )
        targets = self.entries(edge.target)
        if not targets or not (sources or self._leaves.get(edge.source)):
            empty = edge.source if targets else edge.target
            detail = f"the group {empty!r} has no nodes"
            self._findings.error("E-SUBGRAPH", subject, detail, edge.position)
        elif not sources:
            detail = f"the group {edge.source!r} has no exit: each member leads to another one"
            hint = "draw the edge from the member that it leaves from"
            self._findings.error("E-SUBGRAPH", subject, detail, edge.position, hint)
        elif len(sources) * len(targets) > MAX_EDGES:
            detail = f"more than {MAX_EDGES} edges from each exit to each entry"
            self._findings.error("E-SUBGRAPH", subject, detail, edge.position)
        else:
            yield from ((source, target) for source in sources for target in targets)

    def _is_shallow(self) -> bool:
        """Return whether groups within groups end; says so if they don't."""
        for name, position in self._groups.items():
            if sum(1 for _ in self._above(name)) >= MAX_DEPTH:
                detail = f"groups are nested deeper than {MAX_DEPTH} levels"
                self._findings.error("E-SUBGRAPH", name, detail, position)
                return False
        return True

    def _above(self, name: str) -> Iterator[str]:
        """Yield the groups that *name* is in, from the inside; at most `MAX_DEPTH`."""
        here = self._parents.get(name)
        for _ in range(MAX_DEPTH):
            if here is None:
                return
            yield here
            here = self._parents.get(here)

    @cached_property
    def _leaves(self) -> dict[str, list[str]]:
        """Return the nodes of each group, those of groups within it included, in order."""
        found: dict[str, list[str]] = {name: [] for name in self._groups}
        for node in self.nodes:
            for name in self._above(node.id):
                found[name].append(node.id)
        return found

    def _find_ends(self) -> None:
        """Find the entries and exits of each group, inner groups first."""
        inside: dict[str, set[tuple[str, str]]] = {name: set() for name in self._groups}
        for edge in self._lines:
            over = set(self._above(edge.target))
            for name in self._above(edge.source):
                if name in over:
                    inside[name].add((edge.source, edge.target))
        depths = {name: sum(1 for _ in self._above(name)) for name in self._groups}
        for name in sorted(self._groups, key=depths.__getitem__, reverse=True):
            self._find_ends_of(name, inside[name])

    def _find_ends_of(self, name: str, inside: set[tuple[str, str]]) -> None:
        leading: set[str] = set()
        reached: set[str] = set()
        senders: dict[str, set[tuple[str, ...]]] = {}
        for source, target in inside:
            leaving = self._exits[source] if source in self._groups else (source,)
            if leaving and self.entries(target):
                senders.setdefault(target, set()).add(leaving)
                reached |= {target, *self._above(target)} - {source, *self._above(source)}
        for leaving in {each for found in senders.values() for each in found}:
            leading.update(leaving)
        led_to = {
            node
            for target, found in senders.items()
            for node in self.entries(target)
            # A node that leads to itself may still be where the group begins.
            if len(found) > 1 or (node,) not in found
        }
        leaves = self._leaves[name]
        self._exits[name] = tuple(leaf for leaf in leaves if leaf not in leading)
        begins = {leaf for leaf in leaves if leaf not in led_to}
        for inner, first in self._circular.items():
            if inner not in reached and name in self._above(inner):
                begins.add(first)
        if not begins and leaves:
            self._circular[name] = leaves[0]
            begins = {leaves[0]}
        self._entries[name] = tuple(leaf for leaf in leaves if leaf in begins)


MAX_ID = 100
_KINDS = {
    NodeKind.AGENT: (None, "square", "round", "stadium", "rect", "rectangle", "proc", "process"),
    NodeKind.HUMAN: ("hexagon", "hex", "prepare"),
    NodeKind.MARKER: ("circle", "circ"),
    NodeKind.DECISION: ("diamond",),
}
_KIND_OF = {shape: kind for kind, shapes in _KINDS.items() for shape in shapes}
_SHAPES = (
    "an agent is [text], (text) or ([text]), a person {{text}}, a start or end ((text)), "
    "a decision {text}"
)


def has_usable_id(node: ChartNode, findings: Findings) -> bool:
    """Return whether the id of *node* can name a step; says so if not."""
    if len(node.id) <= MAX_ID and node.id.isprintable():
        return True
    detail = f"an id is one printable line of at most {MAX_ID} characters"
    findings.error("E-NODE", ascii(node.id[:MAX_ID])[1:-1], detail, node.position)
    return False


def kind_of(node: ChartNode, source: NodeSource, findings: Findings) -> NodeKind:
    """Return what happens at *node*; a shape that says nothing is told."""
    kind = _KIND_OF.get(node.shape)
    if kind is None:
        detail = f"the shape {node.shape!r} has no meaning in a workflow"
        findings.error("E-SHAPE", node.id, detail, node.position, _SHAPES)
        return NodeKind.MARKER
    # With a section, an agent's answer picks the branch.
    if kind is NodeKind.DECISION and source.section is not None:
        return NodeKind.AGENT
    return kind


class Headings:
    """The headings of prompts, some of which may have been meant to name a node."""

    def __init__(self, sections: Iterable[Section | None]) -> None:
        """Look at those within *sections*."""
        found = [one for section in sections if section for one in section.headings]
        self._by_name = {normalise(one.text): one for one in reversed(found)}

    def near(self, name: str) -> Heading | None:
        """Return the heading that was most likely meant to be that of node *name*."""
        wanted, known = normalise(name), self._by_name
        if wanted in known or len(known) > MAX_COMPARED:
            return known.get(wanted)
        nearest = get_close_matches(wanted, known, n=1, cutoff=0.8)
        return known[nearest[0]] if nearest else None


def _ensure_section(
    node: ChartNode, kind: NodeKind, headings: Headings, findings: Findings
) -> None:
    """Tell that *node* has no section, where it needs one or there is one by another name."""
    if kind is NodeKind.MARKER:
        return
    # Comparing thousands of names with each other would take minutes for a hostile file.
    heading = None if findings.is_full or findings.is_silent else headings.near(node.id)
    hint = "each agent has one, with its prompt; a circle, ((text)), needs none"
    if heading is not None:
        hint = f"is it the heading in line {heading.line}? write '### {node.id}' there"
    detail = f"there is no section '### {node.id}'"
    if kind is NodeKind.AGENT:
        findings.error("E-SECTION", node.id, detail, node.position, hint)
    elif heading is not None:
        detail = f"{heading.text!r} is part of the prompt above it, and names no node"
        findings.warn("W-SECTION", node.id, detail, (heading.line, 1), hint)


def ensure_section_fits(
    node: ChartNode, kind: NodeKind, source: NodeSource, headings: Headings, findings: Findings
) -> None:
    """Tell what the section of *node* lacks, and what it says that would have no effect."""
    section = source.section
    if section is None:
        _ensure_section(node, kind, headings, findings)
        return
    at = (section.line, 1)
    if kind is NodeKind.AGENT and not source.prompt:
        detail, hint = "its section has no prompt", "write it below the settings"
        findings.error("E-SECTION", node.id, detail, at, hint)
    # A shape without meaning is no circle, and is told already.
    is_circle = kind is NodeKind.MARKER and node.shape in _KIND_OF
    if is_circle and (source.prompt or source.document.data.keys() - {"description"}):
        detail = "a circle does no work, and its section asks for some"
        hint = "draw an agent, as [text], or leave nothing but a description"
        findings.error("E-SECTION", node.id, detail, at, hint)
    foreign = {NodeKind.AGENT: PERSON_KEYS, NodeKind.HUMAN: AGENT_KEYS}.get(kind, ())
    whose = "a person, drawn as {{text}}" if kind is NodeKind.AGENT else "an agent"
    for path in foreign:
        if source.written(*path):
            detail = f"{'.'.join(path)} is only for {whose}"
            findings.error("E-NODE", node.id, detail, source.at(*path))


def node_of(
    node: ChartNode, kind: NodeKind, source: NodeSource, ways: Iterable[Way], findings: Findings
) -> Node:
    """Return the node of the graph; *ways* are the edges that leave it."""
    values, label = source.values, drawn(node.label)
    if kind in (NodeKind.MARKER, NodeKind.DECISION):
        about = values.description or ""
        return Node(id=node.id, kind=kind, label=label, description=about)
    key = values.whole_output.key
    made = Node(
        id=node.id,
        kind=kind,
        label=label,
        description=values.description or "",
        input=values.input or {},
        output_key=key,
    )
    if kind is NodeKind.AGENT:
        return made
    if values.timeout_target is not None and values.limit_ms is None:
        detail, hint = "onTimeout without timeout has no effect", "timeout: MILLISECONDS"
        at = source.at(*source.path_of("onTimeout"))
        findings.error("E-TIMEOUT", node.id, detail, at, hint)
    person = {
        "question": source.prompt,
        "options": _options(node.id, source, findings) or _options_of_edges(ways),
        "allows_custom_input": values.allows_custom_input,
        "timeout_ms": values.limit_ms,
        "on_timeout": values.timeout_target,
    }
    return made.model_copy(update=person)


def _options(name: str, source: NodeSource, findings: Findings) -> tuple[Option, ...]:
    found: dict[str, Option] = {}
    for place, option in enumerate(source.values.options or ()):
        value = option.value or option.label
        if normalise(value) in found:
            detail = f"two options have the value {value!r}"
            findings.error("E-OPTION", name, detail, source.at("options", place))
        made = Option(label=option.label, value=value, description=option.description)
        found.setdefault(normalise(value), made)
    return tuple(found.values())


def _options_of_edges(ways: Iterable[Way]) -> tuple[Option, ...]:
    found: dict[str, Option] = {}
    for way in ways:
        label = normalise(way.label)
        if label not in ("", DEFAULT, TIMEOUT) and label not in found:
            text = " ".join(way.label.split())[:200]
            found[label] = Option(label=text, value=text)
    return tuple(found.values())


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
