"""Builds a graph and its steps from a chart and its sections."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import cached_property

from msgspec import Struct

from sequencer.frozen.fields import ValidationError
from sequencer.model.graph.choices import DEFAULT, TIMEOUT, normalize
from sequencer.model.graph.graph import MAX_NODES, Edge, Graph, Node, NodeKind, Option
from sequencer.model.step import Step
from sequencer.workflows.flowfile.joins import check_joins
from sequencer.workflows.flowfile.markdown import Heading
from sequencer.workflows.flowfile.problems import MAX_COMPARED, Diagnostics
from sequencer.workflows.flowfile.rules import FlowGraph, check, check_templates
from sequencer.workflows.flowfile.settings import (
    AGENT_KEYS,
    PERSON_KEYS,
    NodeSource,
    Overrides,
    ParsedFrontMatter,
    build_step,
    read_node,
)
from sequencer.workflows.mermaid.chart import (
    MAX_EDGES,
    NAMES,
    Chart,
    ChartEdge,
    ChartNode,
    render_label,
)
from sequencer.workflows.mermaid.text import Position

MAX_DEPTH = 32
_FLOW_TYPE = "arrow_point"
_LAYOUT = "invisible"


class LocatedEdge(Struct, frozen=True):
    """An edge between two nodes, with the position of its line in the chart."""

    source: str
    target: str
    label: str
    position: Position


class ChartStructure:
    """The nodes, groups and edges of one chart."""

    def __init__(self, chart: Chart, diagnostics: Diagnostics) -> None:
        """Read *chart*; problems are added to *diagnostics*."""
        self._diagnostics = diagnostics
        self._groups = {group.id: group.position for group in chart.subgraphs}
        self._order = {name: index for index, name in enumerate(self._groups)}
        self.nodes: tuple[ChartNode, ...] = tuple(
            node for node in chart.nodes if node.id not in self._groups
        )
        """The nodes, but not the groups, in the order of first mention."""
        self._parents = self._find_parents(chart)
        if not self._is_shallow():
            self._parents = {}
        self._lines = [edge for edge in chart.edges if self._is_flow(edge)]
        self.refused: frozenset[str] = frozenset(
            end
            for edge in chart.edges
            if edge.stroke != _LAYOUT and edge.type != _FLOW_TYPE
            for end in (edge.source, edge.target)
        )
        """The ends of refused lines; a missing edge there is not reported again."""
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
    def ways(self) -> tuple[LocatedEdge, ...] | None:
        """Return the edges between nodes, in the order of the text; None: there are too many."""
        ways: dict[tuple[str, str, str], LocatedEdge] = {}
        count = 0
        for edge in self._lines:
            label = render_label(edge.label)
            for source, target in self._resolve_ends(edge):
                count += 1
                key = (source, target, label)
                if key in ways:
                    line = ways[key].position[0]
                    detail = f"line {line} already has this edge; both count as one"
                    self._diagnostics.add("W-TWICE", f"{source} {target}", detail, edge.position)
                ways.setdefault(key, LocatedEdge(source, target, label, edge.position))
            # Count repeated edges too: an edge between two large groups takes time each time.
            if count > MAX_EDGES:
                detail = (
                    f"more than {MAX_EDGES} edges; an edge of a group counts once for each node"
                )
                subject = f"{edge.source} {edge.target}"
                self._diagnostics.add("E-SUBGRAPH", subject, detail, edge.position)
                return None
        return tuple(ways.values())

    def _find_parents(self, chart: Chart) -> dict[str, str]:
        """Return node or group -> the innermost group that contains it."""
        parents: dict[str, str] = {}
        for group in chart.subgraphs:
            for member in group.nodes:
                # A node belongs to the group that closes first. A member group that is not closed
                # yet is usually the group around this one, to which an edge leads back.
                if member not in self._groups or self._order[member] < self._order[group.id]:
                    parents.setdefault(member, group.id)
        self._parents = parents
        for group in chart.subgraphs:
            for member in group.nodes:
                is_around = member == group.id or member in self._iter_enclosing_groups(group.id)
                if member not in parents and not is_around:
                    parents[member] = group.id
        return parents

    def _is_flow(self, edge: ChartEdge) -> bool:
        if edge.stroke == _LAYOUT:
            return False
        if edge.type == _FLOW_TYPE:
            return True
        subject = f"{edge.source} {edge.target}"
        hint = f"write {edge.source} --> {edge.target}, or ~~~ if it is only for the layout"
        detail = "only -->, -.-> and ==> are executable"
        self._diagnostics.add("E-EDGE", subject, detail, edge.position, hint)
        return False

    def _resolve_ends(self, edge: ChartEdge) -> Iterator[tuple[str, str]]:
        subject, targets = f"{edge.source} {edge.target}", self.entries(edge.target)
        sources: tuple[str, ...] = (edge.source,)
        if edge.source in self._groups:
            sources = self._exits.get(edge.source, ())
        if not targets or not (sources or self._leaves.get(edge.source)):
            group = edge.source if targets else edge.target
            detail = f"the group {group!r} has no nodes"
            self._diagnostics.add("E-SUBGRAPH", subject, detail, edge.position)
        elif not sources:
            detail = f"the group {edge.source!r} has no exit: each member leads to another member"
            hint = "draw the edge from the member where it starts"
            self._diagnostics.add("E-SUBGRAPH", subject, detail, edge.position, hint)
        elif len(sources) * len(targets) > MAX_EDGES:
            detail = f"more than {MAX_EDGES} edges from each exit to each entry"
            self._diagnostics.add("E-SUBGRAPH", subject, detail, edge.position)
        else:
            yield from ((source, target) for source in sources for target in targets)

    def _is_shallow(self) -> bool:
        """Return whether groups are not nested too deeply; report it if they are."""
        for name, position in self._groups.items():
            if sum(1 for _ in self._iter_enclosing_groups(name)) >= MAX_DEPTH:
                detail = f"groups are nested deeper than {MAX_DEPTH} levels"
                self._diagnostics.add("E-SUBGRAPH", name, detail, position)
                return False
        return True

    def _iter_enclosing_groups(self, name: str) -> Iterator[str]:
        """Yield the groups that contain *name*, from the inside; at most `MAX_DEPTH`."""
        group = self._parents.get(name)
        for _ in range(MAX_DEPTH):
            if group is None:
                return
            yield group
            group = self._parents.get(group)

    @cached_property
    def _leaves(self) -> dict[str, list[str]]:
        """Return group -> its nodes and the nodes of groups inside it, in order."""
        leaves: dict[str, list[str]] = {name: [] for name in self._groups}
        for node in self.nodes:
            for name in self._iter_enclosing_groups(node.id):
                leaves[name].append(node.id)
        return leaves

    def _find_ends(self) -> None:
        """Find the entries and exits of each group, inner groups first."""
        inner_edges: dict[str, set[tuple[str, str]]] = {name: set() for name in self._groups}
        for edge in self._lines:
            common_groups = set(self._iter_enclosing_groups(edge.target))
            for name in self._iter_enclosing_groups(edge.source):
                if name in common_groups:
                    inner_edges[name].add((edge.source, edge.target))
        depths = {name: sum(1 for _ in self._iter_enclosing_groups(name)) for name in self._groups}
        for name in sorted(self._groups, key=depths.__getitem__, reverse=True):
            self._find_group_ends(name, inner_edges[name])

    def _find_group_ends(self, name: str, inner_edges: set[tuple[str, str]]) -> None:
        leading: set[str] = set()
        reached_names: set[str] = set()
        senders: dict[str, set[tuple[str, ...]]] = {}
        for source, target in inner_edges:
            exits_of_source = self._exits[source] if source in self._groups else (source,)
            if exits_of_source and self.entries(target):
                senders.setdefault(target, set()).add(exits_of_source)
                reached_names |= {target, *self._iter_enclosing_groups(target)} - {
                    source,
                    *self._iter_enclosing_groups(source),
                }
        for exits_of_source in {exits for sources in senders.values() for exits in sources}:
            leading.update(exits_of_source)
        targets_inside = {
            node
            for target, sources in senders.items()
            for node in self.entries(target)
            # A node that leads to itself may still be an entry of the group.
            if len(sources) > 1 or (node,) not in sources
        }
        leaves = self._leaves[name]
        self._exits[name] = tuple(leaf for leaf in leaves if leaf not in leading)
        entries = {leaf for leaf in leaves if leaf not in targets_inside}
        for group, first_node in self._circular.items():
            if group not in reached_names and name in self._iter_enclosing_groups(group):
                entries.add(first_node)
        if not entries and leaves:
            self._circular[name] = leaves[0]
            entries = {leaves[0]}
        self._entries[name] = tuple(leaf for leaf in leaves if leaf in entries)


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
"""Shape -> kind; `ChartNode.bracket` maps the other names of shapes to these."""
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
"""Mermaid's internal name of a shape, which authors never see -> a description for messages."""
_ENDINGS = frozenset(
    ("start", "begin", "end", "done", "stop", "exit", "finish", "finished", "complete", "completed")
)
"""Labels of nodes where no one expects an agent to work."""


class GraphBuilder:
    """Builds the graph of one file and adds all problems to its diagnostics."""

    def __init__(
        self,
        chart: Chart,
        front: ParsedFrontMatter,
        written: Mapping[str, NodeSource],
        overrides: Overrides,
        diagnostics: Diagnostics,
    ) -> None:
        """Build *chart* with *front*, the sections *written* and *overrides*."""
        self._agents = overrides.agents
        self._front = front
        self._diagnostics = diagnostics
        self._grouping = ChartStructure(chart, diagnostics)
        self._nodes = {node.id: node for node in self._grouping.nodes}
        self._kinds: dict[str, NodeKind] = {}
        timeouts = overrides.timeouts
        self.sources: dict[str, NodeSource] = {
            name: written.get(name) or read_node(name, None, timeouts, diagnostics)
            for name in self._nodes
        }
        """Node of the chart -> its section."""
        for name, source in written.items():
            if name not in self._nodes:
                detail = "the chart has no node of this id"
                if name in self._grouping.groups:
                    detail = "this is a group of nodes, but a section belongs to one node"
                hint = diagnostics.hint_for(name, list(self._nodes))
                diagnostics.add("E-SECTION", name or "###", detail, source.find_position(), hint)
        for name in timeouts:
            if name not in self._nodes:
                self._report_unknown_node(name, "E-TIMEOUT", name, "", None)

    def build(self, *, needs_sections: bool) -> tuple[Graph | None, tuple[Step, ...]]:
        """Return the graph and the steps of its agents; None: the file has no valid graph."""
        if not 0 < len(self._nodes) <= MAX_NODES:
            detail = f"more than {MAX_NODES} nodes" if self._nodes else "the chart has no node"
            self._diagnostics.add("E-CHART", self._diagnostics.file.name, detail)
            return None, ()
        is_usable = [self._has_usable_id(node) for node in self._nodes.values()]
        if not all(is_usable):
            return None, ()
        headings = self._collect_headings()
        ways = self._grouping.ways
        ends = {way.source for way in ways or ()} ^ {way.target for way in ways or ()}
        for name, node in self._nodes.items():
            kind = self._find_kind(node)
            is_bare = node.bracket == "stadium" and self.sources[name].section is None
            if needs_sections and is_bare and name in ends:
                kind = NodeKind.MARKER
            is_agent = kind is NodeKind.DECISION and name in self._agents
            self._kinds[name] = NodeKind.AGENT if is_agent else kind
            if needs_sections:
                self._ensure_section_fits(node, kind, headings)
        if ways is None:
            return None, ()
        ways_by_source: dict[str, list[LocatedEdge]] = {}
        for way in ways:
            ways_by_source.setdefault(way.source, []).append(way)
        nodes = tuple(
            self._build_node(node, ways_by_source.get(node.id, ())) for node in self._nodes.values()
        )
        retry = self._front.values.retry
        steps = tuple(
            build_step(name, self.sources[name], retry, self._diagnostics)
            for name, kind in self._kinds.items()
            if kind is NodeKind.AGENT
        )
        flow_graph = self._build_graph(nodes, ways)
        if flow_graph is not None:
            positions = {name: node.position for name, node in self._nodes.items()}
            edge_positions, refused_groups = (
                tuple(way.position for way in ways),
                self._grouping.refused,
            )
            flow = FlowGraph(
                flow_graph, self._front, self.sources, positions, edge_positions, refused_groups
            )
            check(flow, self._diagnostics)
            check_joins(flow, self._diagnostics, has_sections=needs_sections)
            check_templates(flow, self._diagnostics)
        return flow_graph, steps

    def _has_usable_id(self, node: ChartNode) -> bool:
        """Return whether the id of *node* can name a step; report it if it can't."""
        if len(node.id) <= MAX_ID and node.id.isprintable():
            return True
        detail = f"an id is one printable line of at most {MAX_ID} characters"
        subject = ascii(node.id[:MAX_ID])[1:-1]
        self._diagnostics.add("E-NODE", subject, detail, node.position)
        return False

    def _find_kind(self, node: ChartNode) -> NodeKind:
        """Return the kind of *node*; report a shape without meaning."""
        kind = _KIND_OF.get(node.bracket)
        if kind is None:
            drawing = _WITHOUT_MEANING.get(str(node.shape))
            shape, hint = (drawing, _SHAPES) if drawing else (f"the shape {node.shape!r}", _NAMED)
            detail = f"{shape} has no meaning in a workflow"
            self._diagnostics.add("E-SHAPE", node.id, detail, node.position, hint)
            return NodeKind.MARKER
        # A decision with a section is an agent, whose answer picks the branch.
        has_section = self.sources[node.id].section is not None
        return NodeKind.AGENT if kind is NodeKind.DECISION and has_section else kind

    def _collect_headings(self) -> dict[str, Heading]:
        """Return the headings inside prompts; some may be misspelled names of nodes."""
        sections = [source.section for source in self.sources.values() if source.section]
        headings = [heading for section in sections for heading in section.headings]
        return {normalize(heading.text): heading for heading in reversed(headings)}

    def _ensure_section(
        self, node: ChartNode, kind: NodeKind, headings: Mapping[str, Heading]
    ) -> None:
        """Report that *node* has no section, if it needs one or one has a similar name."""
        diagnostics, heading = self._diagnostics, None
        # Comparing thousands of names with each other would take minutes for a hostile file.
        if not diagnostics.is_full and not diagnostics.is_silent:
            normalized_id = normalize(node.id)
            is_near = normalized_id in headings or len(headings) > MAX_COMPARED
            matches = (
                [normalized_id]
                if is_near
                else get_close_matches(normalized_id, headings, n=1, cutoff=0.8)
            )
            heading = headings.get(matches[0]) if matches else None
        hint = "each agent has one, with its prompt; a start or an end, ((text)), needs none"
        if heading is not None:
            hint = f"is it the heading in line {heading.line}? write '### {node.id}' there"
        if kind is NodeKind.AGENT:
            detail = f"there is no section '### {node.id}'"
            diagnostics.add("E-SECTION", node.id, detail, node.position, hint)
        elif heading is not None:
            detail = f"{heading.text!r} is part of the prompt above it, so it names no node"
            diagnostics.add("W-SECTION", node.id, detail, (heading.line, 1), hint)
        elif kind is NodeKind.MARKER and normalize(render_label(node.label)) not in _ENDINGS:
            detail = "it has no section, so it is a start or an end and no agent works there"
            hint = f"write '### {node.id}' with a prompt, or draw it as ((text))"
            diagnostics.add("W-SECTION", node.id, detail, node.position, hint)

    def _ensure_section_fits(
        self, node: ChartNode, kind: NodeKind, headings: Mapping[str, Heading]
    ) -> None:
        """Report what is missing in the section of *node*, and keys without effect."""
        source, diagnostics = self.sources[node.id], self._diagnostics
        if source.section is None:
            if kind is not NodeKind.MARKER or node.bracket == "stadium":
                self._ensure_section(node, kind, headings)
            return
        position = (source.section.line, 1)
        if kind is NodeKind.AGENT and not source.prompt:
            hint = "write it below the settings"
            diagnostics.add("E-SECTION", node.id, "its section has no prompt", position, hint)
        # A shape without meaning is not a circle, and was reported before.
        is_circle = kind is NodeKind.MARKER and node.bracket in _KIND_OF
        if is_circle and (source.prompt or source.document.data.keys() - {"description"}):
            detail = "a circle does no work, but its section asks for some"
            hint = "draw an agent, as [text], or keep only the description"
            diagnostics.add("E-SECTION", node.id, detail, position, hint)
        foreign_keys = {NodeKind.AGENT: PERSON_KEYS, NodeKind.HUMAN: AGENT_KEYS}.get(kind, ())
        owner = "a person, drawn as {{text}}" if kind is NodeKind.AGENT else "an agent"
        for path in foreign_keys:
            if source.has_value(*path):
                detail = f"{'.'.join(path)} is only for {owner}"
                diagnostics.add("E-NODE", node.id, detail, source.find_position(*path))

    def _build_node(self, node: ChartNode, outgoing_ways: Iterable[LocatedEdge]) -> Node:
        """Return *node* as a node of the graph; *outgoing_ways* are the edges that leave it."""
        name, kind, source = node.id, self._kinds[node.id], self.sources[node.id]
        values, label = source.values, render_label(node.label)
        result = Node(id=name, kind=kind, label=label, description=values.description or "")
        if kind not in (NodeKind.AGENT, NodeKind.HUMAN):
            return result
        fields = {"input": values.input or {}, "output_key": values.whole_output.key}
        result = result.replace(**fields)
        if kind is NodeKind.AGENT:
            return result
        target, position = (
            values.timeout_target,
            source.find_position(*source.find_key_path("onTimeout")),
        )
        if target is not None and values.limit_ms is None:
            detail, hint = "onTimeout without timeout has no effect", "timeout: MILLISECONDS"
            self._diagnostics.add("E-TIMEOUT", name, detail, position, hint)
        options = self._build_options(name, source) or _options_of_edges(outgoing_ways)
        if target is not None:
            target = self._single_node(target, "E-TIMEOUT", name, "onTimeout: ", position)
        person = {
            "question": source.prompt,
            "options": options,
            "allows_custom_input": values.allows_custom_input,
            "timeout_ms": values.limit_ms,
            "on_timeout": target,
        }
        return result.replace(**person)

    def _build_options(self, name: str, source: NodeSource) -> tuple[Option, ...]:
        options: dict[str, Option] = {}
        for index, source_option in enumerate(source.values.options or ()):
            value = source_option.value or source_option.label
            if normalize(value) in options:
                detail = f"two options have the value {value!r}"
                self._diagnostics.add(
                    "E-OPTION", name, detail, source.find_position("options", index)
                )
            option = Option(
                label=source_option.label, value=value, description=source_option.description
            )
            options.setdefault(normalize(value), option)
        return tuple(options.values())

    def _build_graph(self, nodes: tuple[Node, ...], ways: tuple[LocatedEdge, ...]) -> Graph | None:
        values, diagnostics = self._front.values, self._diagnostics
        fields = values.config.model_dump(exclude_none=True) if values.config else {}
        if "timeout" in fields:
            fields["timeout_ms"] = fields.pop("timeout")
        if values.on_error is not None:
            position = self._front.find_position("onError")
            target = self._single_node(values.on_error, "E-ONERROR", values.on_error, "", position)
            fields["on_error"] = target
        try:
            return Graph(
                nodes=nodes,
                edges=tuple(
                    Edge(source=way.source, target=way.target, label=way.label) for way in ways
                ),
                entries=self._find_entries(),
                state=values.state or {},
                **fields,
            )
        except ValidationError as error:
            if not diagnostics.has_errors:
                detail = str(error.errors()[0]["msg"])
                diagnostics.add("E-CHART", diagnostics.file.name, detail)
            return None

    def _find_entries(self) -> tuple[str, ...]:
        entrypoint = self._front.values.entrypoint
        first_names = (next(iter(self._nodes)),)
        if entrypoint is None:
            return first_names
        entries = self._grouping.entries(entrypoint)
        if entries and all(name in self._nodes for name in entries):
            return entries
        self._report_unknown_node(
            entrypoint, "E-ENTRY", entrypoint, "", self._front.find_position("entrypoint")
        )
        return first_names

    def _single_node(
        self, name: str, code: str, subject: str, prefix: str, position: Position | None
    ) -> str | None:
        """Return the node that *name* means: the node itself, or the single entry of a group."""
        entries = self._grouping.entries(name)
        if name not in self._grouping.groups and name not in self._nodes:
            self._report_unknown_node(name, code, subject, prefix, position)
            return None
        if len(entries) == 1:
            return entries[0]
        entries_text = ", ".join(entries[:10]) or "none"
        detail = f"{prefix}the group {name!r} needs exactly one entry; its entries: {entries_text}"
        self._diagnostics.add(code, subject, detail, position, "name a node")
        return None

    def _report_unknown_node(
        self, name: str, code: str, subject: str, prefix: str, position: Position | None
    ) -> None:
        hint = self._diagnostics.hint_for(name, list(self._nodes))
        self._diagnostics.add(code, subject, f"{prefix}there is no node {name!r}", position, hint)


def _options_of_edges(ways: Iterable[LocatedEdge]) -> tuple[Option, ...]:
    options: dict[str, Option] = {}
    for way in ways:
        label = normalize(way.label)
        if label not in ("", DEFAULT, TIMEOUT) and label not in options:
            text = " ".join(way.label.split())[:200]
            options[label] = Option(label=text, value=text)
    return tuple(options.values())
