"""From a chart and its sections to a graph and its steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import cached_property

from msgspec import Struct

from sequencer.frozen.fields import ValidationError
from sequencer.model.graph.choices import DEFAULT, TIMEOUT, normalise
from sequencer.model.graph.graph import MAX_NODES, Edge, Graph, Node, NodeKind, Option
from sequencer.model.step import Step
from sequencer.workflows.flowfile.joins import check_joins
from sequencer.workflows.flowfile.markdown import Heading
from sequencer.workflows.flowfile.problems import MAX_COMPARED, Diagnostics
from sequencer.workflows.flowfile.rules import FlowGraph, check, check_templates
from sequencer.workflows.flowfile.settings import (
    AGENT_KEYS,
    PERSON_KEYS,
    Front,
    NodeSource,
    Overrides,
    read_node,
    step_of,
)
from sequencer.workflows.mermaid.chart import MAX_EDGES, NAMES, Chart, ChartEdge, ChartNode, drawn
from sequencer.workflows.mermaid.text import Position

MAX_DEPTH = 32
_FLOW_TYPE = "arrow_point"
_LAYOUT = "invisible"


class Way(Struct, frozen=True):
    """An edge between two nodes, and where the line is that it comes from."""

    source: str
    target: str
    label: str
    position: Position


class Grouping:
    """The nodes, groups and edges of one chart."""

    def __init__(self, chart: Chart, findings: Diagnostics) -> None:
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
                    detail = f"line {line} already has this edge; both count as one"
                    self._findings.tell("W-TWICE", f"{source} {target}", detail, edge.position)
                found.setdefault(key, Way(source, target, label, edge.position))
            # Not what is found: the same edge between two large groups costs as much each time.
            if count > MAX_EDGES:
                detail = (
                    f"more than {MAX_EDGES} edges; an edge of a group counts once for each node"
                )
                subject = f"{edge.source} {edge.target}"
                self._findings.tell("E-SUBGRAPH", subject, detail, edge.position)
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
        hint = f"write {edge.source} --> {edge.target}, or ~~~ if it is only for the layout"
        detail = "only -->, -.-> and ==> are executable"
        self._findings.tell("E-EDGE", subject, detail, edge.position, hint)
        return False

    def _ends(self, edge: ChartEdge) -> Iterator[tuple[str, str]]:
        subject, targets = f"{edge.source} {edge.target}", self.entries(edge.target)
        sources: tuple[str, ...] = (edge.source,)
        if edge.source in self._groups:
            sources = self._exits.get(edge.source, ())
        if not targets or not (sources or self._leaves.get(edge.source)):
            empty = edge.source if targets else edge.target
            detail = f"the group {empty!r} has no nodes"
            self._findings.tell("E-SUBGRAPH", subject, detail, edge.position)
        elif not sources:
            detail = f"the group {edge.source!r} has no exit: each member leads to another member"
            hint = "draw the edge from the member where it starts"
            self._findings.tell("E-SUBGRAPH", subject, detail, edge.position, hint)
        elif len(sources) * len(targets) > MAX_EDGES:
            detail = f"more than {MAX_EDGES} edges from each exit to each entry"
            self._findings.tell("E-SUBGRAPH", subject, detail, edge.position)
        else:
            yield from ((source, target) for source in sources for target in targets)

    def _is_shallow(self) -> bool:
        """Return whether groups within groups end; says so if they don't."""
        for name, position in self._groups.items():
            if sum(1 for _ in self._above(name)) >= MAX_DEPTH:
                detail = f"groups are nested deeper than {MAX_DEPTH} levels"
                self._findings.tell("E-SUBGRAPH", name, detail, position)
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
_KIND_OF = {
    None: NodeKind.AGENT,
    "square": NodeKind.AGENT,
    "round": NodeKind.AGENT,
    "stadium": NodeKind.AGENT,
    "hexagon": NodeKind.HUMAN,
    "circle": NodeKind.MARKER,
    "doublecircle": NodeKind.MARKER,
    "diamond": NodeKind.DECISION,
}
"""By what the brackets draw; `ChartNode.bracket` knows the other names."""
_SHAPES = (
    "an agent is [text] or (text), a person {{text}}, a decision {text}, a start or an end "
    "([text]) or ((text))"
)
_NAMED = f"{_SHAPES}; names of these: " + ", ".join(
    name for names in NAMES.values() for name in names
)
_WITHOUT_MEANING = {
    "subroutine": "a box with double sides, [[text]],",
    "cylinder": "a cylinder, [(text)],",
    "ellipse": "an ellipse, (-text-),",
    "odd": "a flag, >text],",
    "lean_right": "a slanted box, [/text/],",
    "lean_left": "a slanted box, [\\text\\],",
    "trapezoid": "a box with slanted sides, [/text\\],",
    "inv_trapezoid": "a box with slanted sides, [\\text/],",
}
"""What is drawn, by Mermaid's name of it; an author has never seen that name."""
_ENDINGS = frozenset(
    ("start", "begin", "end", "done", "stop", "exit", "finish", "finished", "complete", "completed")
)
"""Titles of which nobody thinks that an agent works there."""


class GraphBuilder:
    """What one file comes to; everything that is wrong goes to its findings."""

    def __init__(
        self,
        chart: Chart,
        front: Front,
        written: Mapping[str, NodeSource],
        overrides: Overrides,
        findings: Diagnostics,
    ) -> None:
        """Build *chart* as *front*, the sections *written* and *overrides* say."""
        self._agents = overrides.agents
        self._front = front
        self._findings = findings
        self._grouping = Grouping(chart, findings)
        self._nodes = {node.id: node for node in self._grouping.nodes}
        self._kinds: dict[str, NodeKind] = {}
        timeouts = overrides.timeouts
        self.sources: dict[str, NodeSource] = {
            name: written.get(name) or read_node(name, None, timeouts, findings)
            for name in self._nodes
        }
        """What the file says about each node of the chart."""
        for name, source in written.items():
            if name not in self._nodes:
                detail = "the chart has no node of this id"
                if name in self._grouping.groups:
                    detail = "this is a group of nodes, but a section belongs to one node"
                hint = findings.known(name, list(self._nodes))
                findings.tell("E-SECTION", name or "###", detail, source.at(), hint)
        for name in timeouts:
            if name not in self._nodes:
                self._unknown(name, "E-TIMEOUT", name, "", None)

    def graph_and_steps(self, *, needs_sections: bool) -> tuple[Graph | None, tuple[Step, ...]]:
        """Return the graph and the steps of its agents; None where there can't be a graph."""
        if not 0 < len(self._nodes) <= MAX_NODES:
            detail = f"more than {MAX_NODES} nodes" if self._nodes else "the chart has no node"
            self._findings.tell("E-CHART", self._findings.file.name, detail)
            return None, ()
        is_usable = [self._has_usable_id(node) for node in self._nodes.values()]
        if not all(is_usable):
            return None, ()
        headings = self._headings()
        ways = self._grouping.ways
        ends = {way.source for way in ways or ()} ^ {way.target for way in ways or ()}
        for name, node in self._nodes.items():
            kind = self._kind_of(node)
            is_bare = node.bracket == "stadium" and self.sources[name].section is None
            if needs_sections and is_bare and name in ends:
                kind = NodeKind.MARKER
            is_agent = kind is NodeKind.DECISION and name in self._agents
            self._kinds[name] = NodeKind.AGENT if is_agent else kind
            if needs_sections:
                self._ensure_section_fits(node, kind, headings)
        if ways is None:
            return None, ()
        leaving: dict[str, list[Way]] = {}
        for way in ways:
            leaving.setdefault(way.source, []).append(way)
        nodes = tuple(self._node(node, leaving.get(node.id, ())) for node in self._nodes.values())
        retry = self._front.values.retry
        steps = tuple(
            step_of(name, self.sources[name], retry, self._findings)
            for name, kind in self._kinds.items()
            if kind is NodeKind.AGENT
        )
        drawn = self._graph(nodes, ways)
        if drawn is not None:
            places = {name: node.position for name, node in self._nodes.items()}
            at, refused = tuple(way.position for way in ways), self._grouping.refused
            flow = FlowGraph(drawn, self._front, self.sources, places, at, refused)
            check(flow, self._findings)
            check_joins(flow, self._findings, has_sections=needs_sections)
            check_templates(flow, self._findings)
        return drawn, steps

    def _has_usable_id(self, node: ChartNode) -> bool:
        """Return whether the id of *node* can name a step; says so if not."""
        if len(node.id) <= MAX_ID and node.id.isprintable():
            return True
        detail = f"an id is one printable line of at most {MAX_ID} characters"
        subject = ascii(node.id[:MAX_ID])[1:-1]
        self._findings.tell("E-NODE", subject, detail, node.position)
        return False

    def _kind_of(self, node: ChartNode) -> NodeKind:
        """Return what happens at *node*; a shape that says nothing is told."""
        kind = _KIND_OF.get(node.bracket)
        if kind is None:
            drawing = _WITHOUT_MEANING.get(str(node.shape))
            shape, hint = (drawing, _SHAPES) if drawing else (f"the shape {node.shape!r}", _NAMED)
            detail = f"{shape} has no meaning in a workflow"
            self._findings.tell("E-SHAPE", node.id, detail, node.position, hint)
            return NodeKind.MARKER
        # With a section, an agent's answer picks the branch.
        has_section = self.sources[node.id].section is not None
        return NodeKind.AGENT if kind is NodeKind.DECISION and has_section else kind

    def _headings(self) -> dict[str, Heading]:
        """Return the headings of prompts, some of which may have been meant to name a node."""
        sections = [source.section for source in self.sources.values() if source.section]
        found = [heading for section in sections for heading in section.headings]
        return {normalise(heading.text): heading for heading in reversed(found)}

    def _ensure_section(
        self, node: ChartNode, kind: NodeKind, headings: Mapping[str, Heading]
    ) -> None:
        """Tell that *node* has no section, where it needs one or there is one by another name."""
        findings, heading = self._findings, None
        # Comparing thousands of names with each other would take minutes for a hostile file.
        if not findings.is_full and not findings.is_silent:
            wanted = normalise(node.id)
            is_near = wanted in headings or len(headings) > MAX_COMPARED
            near = [wanted] if is_near else get_close_matches(wanted, headings, n=1, cutoff=0.8)
            heading = headings.get(near[0]) if near else None
        hint = "each agent has one, with its prompt; a start or an end, ((text)), needs none"
        if heading is not None:
            hint = f"is it the heading in line {heading.line}? write '### {node.id}' there"
        if kind is NodeKind.AGENT:
            detail = f"there is no section '### {node.id}'"
            findings.tell("E-SECTION", node.id, detail, node.position, hint)
        elif heading is not None:
            detail = f"{heading.text!r} is part of the prompt above it, so it names no node"
            findings.tell("W-SECTION", node.id, detail, (heading.line, 1), hint)
        elif kind is NodeKind.MARKER and normalise(drawn(node.label)) not in _ENDINGS:
            detail = "it has no section, so it is a start or an end and no agent works there"
            hint = f"write '### {node.id}' with a prompt, or draw it as ((text))"
            findings.tell("W-SECTION", node.id, detail, node.position, hint)

    def _ensure_section_fits(
        self, node: ChartNode, kind: NodeKind, headings: Mapping[str, Heading]
    ) -> None:
        """Tell what the section of *node* lacks, and what it says that would have no effect."""
        source, findings = self.sources[node.id], self._findings
        if source.section is None:
            if kind is not NodeKind.MARKER or node.bracket == "stadium":
                self._ensure_section(node, kind, headings)
            return
        at = (source.section.line, 1)
        if kind is NodeKind.AGENT and not source.prompt:
            hint = "write it below the settings"
            findings.tell("E-SECTION", node.id, "its section has no prompt", at, hint)
        # A shape without meaning is no circle, and is told already.
        is_circle = kind is NodeKind.MARKER and node.bracket in _KIND_OF
        if is_circle and (source.prompt or source.document.data.keys() - {"description"}):
            detail = "a circle does no work, but its section asks for some"
            hint = "draw an agent, as [text], or keep only the description"
            findings.tell("E-SECTION", node.id, detail, at, hint)
        foreign = {NodeKind.AGENT: PERSON_KEYS, NodeKind.HUMAN: AGENT_KEYS}.get(kind, ())
        whose = "a person, drawn as {{text}}" if kind is NodeKind.AGENT else "an agent"
        for path in foreign:
            if source.written(*path):
                detail = f"{'.'.join(path)} is only for {whose}"
                findings.tell("E-NODE", node.id, detail, source.at(*path))

    def _node(self, node: ChartNode, leaving: Iterable[Way]) -> Node:
        """Return *node* of the graph; *leaving* are the edges that leave it."""
        name, kind, source = node.id, self._kinds[node.id], self.sources[node.id]
        values, label = source.values, drawn(node.label)
        made = Node(id=name, kind=kind, label=label, description=values.description or "")
        if kind not in (NodeKind.AGENT, NodeKind.HUMAN):
            return made
        said = {"input": values.input or {}, "output_key": values.whole_output.key}
        made = made.replace(**said)
        if kind is NodeKind.AGENT:
            return made
        target, at = values.timeout_target, source.at(*source.path_of("onTimeout"))
        if target is not None and values.limit_ms is None:
            detail, hint = "onTimeout without timeout has no effect", "timeout: MILLISECONDS"
            self._findings.tell("E-TIMEOUT", name, detail, at, hint)
        options = self._options(name, source) or _options_of_edges(leaving)
        if target is not None:
            target = self._one(target, "E-TIMEOUT", name, "onTimeout: ", at)
        person = {
            "question": source.prompt,
            "options": options,
            "allows_custom_input": values.allows_custom_input,
            "timeout_ms": values.limit_ms,
            "on_timeout": target,
        }
        return made.replace(**person)

    def _options(self, name: str, source: NodeSource) -> tuple[Option, ...]:
        found: dict[str, Option] = {}
        for place, option in enumerate(source.values.options or ()):
            value = option.value or option.label
            if normalise(value) in found:
                detail = f"two options have the value {value!r}"
                self._findings.tell("E-OPTION", name, detail, source.at("options", place))
            made = Option(label=option.label, value=value, description=option.description)
            found.setdefault(normalise(value), made)
        return tuple(found.values())

    def _graph(self, nodes: tuple[Node, ...], ways: tuple[Way, ...]) -> Graph | None:
        values, findings = self._front.values, self._findings
        said = values.config.model_dump(exclude_none=True) if values.config else {}
        if "timeout" in said:
            said["timeout_ms"] = said.pop("timeout")
        if values.on_error is not None:
            at = self._front.at("onError")
            said["on_error"] = self._one(values.on_error, "E-ONERROR", values.on_error, "", at)
        try:
            return Graph(
                nodes=nodes,
                edges=tuple(
                    Edge(source=way.source, target=way.target, label=way.label) for way in ways
                ),
                entries=self._entries(),
                state=values.state or {},
                **said,
            )
        except ValidationError as refused:
            if not findings.has_errors:
                detail = str(refused.errors()[0]["msg"])
                findings.tell("E-CHART", findings.file.name, detail)
            return None

    def _entries(self) -> tuple[str, ...]:
        asked = self._front.values.entrypoint
        first = (next(iter(self._nodes)),)
        if asked is None:
            return first
        entries = self._grouping.entries(asked)
        if entries and all(name in self._nodes for name in entries):
            return entries
        self._unknown(asked, "E-ENTRY", asked, "", self._front.at("entrypoint"))
        return first

    def _one(
        self, name: str, code: str, subject: str, said: str, at: Position | None
    ) -> str | None:
        """Return the node that *name* means: itself, or the one entry of a group."""
        entries = self._grouping.entries(name)
        if name not in self._grouping.groups and name not in self._nodes:
            self._unknown(name, code, subject, said, at)
            return None
        if len(entries) == 1:
            return entries[0]
        listed = ", ".join(entries[:10]) or "none"
        detail = f"{said}the group {name!r} needs exactly one entry; its entries: {listed}"
        self._findings.tell(code, subject, detail, at, "name a node")
        return None

    def _unknown(self, name: str, code: str, subject: str, said: str, at: Position | None) -> None:
        hint = self._findings.known(name, list(self._nodes))
        self._findings.tell(code, subject, f"{said}there is no node {name!r}", at, hint)


def _options_of_edges(ways: Iterable[Way]) -> tuple[Option, ...]:
    found: dict[str, Option] = {}
    for way in ways:
        label = normalise(way.label)
        if label not in ("", DEFAULT, TIMEOUT) and label not in found:
            text = " ".join(way.label.split())[:200]
            found[label] = Option(label=text, value=text)
    return tuple(found.values())
