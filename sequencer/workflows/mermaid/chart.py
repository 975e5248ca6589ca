"""The content of a Mermaid flowchart; whether it can run is checked elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import lru_cache
from html import unescape
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from sequencer.workflows.mermaid.text import (
    SPACES,
    TABLES,
    ChartText,
    Position,
    Unreadable,
    as_text,
    restore_entities,
)

_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)


def render_label(label: str) -> str:
    """Return *label* as the picture shows it, because people answer with that text.

    >>> render_label("it&#39;s<br/>5 &lt; 6 &amp; ok")
    "it's 5 < 6 & ok"
    """
    return unescape(_BREAK.sub(" ", label)) if "&" in label or "<" in label else label


class ChartNode(Struct, frozen=True):
    """A node of the chart."""

    id: str
    label: str
    shape: str | None
    """Mermaid's name of the shape; None: a bare id, drawn as a rectangle."""
    position: Position = (1, 1)
    """Position of the first mention."""

    @property
    def bracket(self) -> str | None:
        """Return the name of the bracket that draws the same shape, or else the shape itself.

        >>> [ChartNode("a", "", shape).bracket for shape in ("diam", "pill", "square", "cloud")]
        ['diamond', 'stadium', 'square', 'cloud']
        """
        return self.shape if self.shape is None else _BRACKET_OF.get(self.shape, self.shape)


class ChartEdge(Struct, frozen=True):
    """A drawn line between two nodes or groups."""

    source: str
    target: str
    label: str
    stroke: str
    """normal, dotted, thick or invisible."""
    type: str
    """arrow_point, arrow_open, arrow_circle, arrow_cross or double_arrow_…"""
    length: int
    position: Position = (1, 1)


class ChartSubgraph(Struct, frozen=True):
    """A group of nodes."""

    id: str
    title: str
    nodes: tuple[str, ...]
    """Members: nodes, and the ids of nested groups."""
    dir: str | None
    position: Position = (1, 1)


class Chart(Struct, frozen=True):
    """A whole flowchart."""

    direction: str
    nodes: tuple[ChartNode, ...]
    """In the order of first mention."""
    edges: tuple[ChartEdge, ...]
    subgraphs: tuple[ChartSubgraph, ...] = ()
    """In the order in which they are closed."""
    classes: frozenset[str] = frozenset()
    """Names that classDef, class or ``:::`` use; drawings of runs must avoid them."""
    colors: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Node or group -> the author's fill, stroke and color as ``#rrggbb``."""

    @property
    def names(self) -> frozenset[str]:
        """Return the ids of the nodes and of the groups."""
        return frozenset(node.id for node in self.nodes) | {group.id for group in self.subgraphs}

    def as_json(self) -> dict[str, Any]:
        """Return the graph as ``show --chart FILE --json`` prints it."""
        edges = []
        for edge in self.edges:
            line = {"stroke": edge.stroke, "type": edge.type, "length": edge.length}
            if not edge.length:
                # In Mermaid, a line with two different halves has no length.
                del line["length"]
            edges.append({"from": edge.source, "to": edge.target, "label": edge.label} | line)
        return {
            "direction": self.direction,
            "nodes": [
                {"id": node.id, "label": node.label, "shape": node.shape} for node in self.nodes
            ],
            "edges": edges,
            "subgraphs": [
                {"id": group.id, "title": group.title, "nodes": list(group.nodes), "dir": group.dir}
                for group in self.subgraphs
            ],
        }


_COLOR = re.compile(
    r"\s*(fill|stroke|color)\s*:\s*(?:#((?:[0-9a-f]{3}){1,2})|([a-z]+))\s*(?:!important\s*)?",
    re.IGNORECASE,
)


def parse_colors(styles: Iterable[str]) -> dict[str, str]:
    """Return fill, stroke and color from the *styles* of a statement; other values are ignored.

    >>> parse_colors(["fill:#F9f", "stroke: red", "stroke-width:4px", "color:url(x)"])
    {'fill': '#ff99ff', 'stroke': '#ff0000'}
    """
    colors = {}
    for match in filter(None, map(_COLOR.fullmatch, styles)):
        digits = (match[2] or TABLES["colors"].get(match[3].lower(), "")).lower()
        if digits:
            repeat = 6 // len(digits)
            colors[match[1].lower()] = "#" + "".join(digit * repeat for digit in digits)
    return colors


_HEADS = {"x": ("arrow_cross", "x"), ">": ("arrow_point", "<"), "o": ("arrow_circle", "o")}
_STARTS = {"x": "arrow_cross", "<": "arrow_point", "o": "arrow_circle"}
_MAX_LENGTH = 10


class Link(Struct, frozen=True):
    """The form of a line."""

    stroke: str
    type: str
    length: int


INVALID = Link("INVALID", "INVALID", 0)
"""A line with two different halves; Mermaid accepts it but can't draw it."""


def read_link(end: str, start: str | None = None) -> Link:
    """Return the link of the operator *end*, or of its halves *start* and *end* around a label.

    >>> read_link("-.->"), read_link("<==>")
    (Link(stroke='dotted', type='arrow_point', length=1), Link(stroke='thick', type='double_arrow_point', length=1))
    >>> read_link("--x", "--"), read_link("-->", "x--")
    (Link(stroke='normal', type='arrow_cross', length=1), Link(stroke='INVALID', type='INVALID', length=0))
    """  # noqa: E501 - the output of a doctest can't be wrapped
    link = _parse_operator(end)
    if start is None:
        return link
    stroke = "dotted" if "." in start else "thick" if "=" in start else "normal"
    if stroke != link.stroke:
        return INVALID
    head = _STARTS.get(start[0])
    if head is None:
        return link
    return replace(link, type=f"double_{head}") if head == link.type else INVALID


@lru_cache(maxsize=256)
def _parse_operator(operator: str) -> Link:
    line, arrowhead = operator[:-1], operator[-1]
    kind, opening = _HEADS.get(arrowhead, ("arrow_open", ""))
    if opening and operator.startswith(opening):
        kind = f"double_{kind}"
        line = line[1:]
    dots = line.count(".")
    if dots:
        return Link("dotted", kind, min(dots, _MAX_LENGTH))
    stroke = {"=": "thick", "~": "invisible"}.get(line[:1], "normal")
    return Link(stroke, kind, min(len(line) - 1, _MAX_LENGTH))


BRACKETS: dict[str, tuple[str, dict[str, str]]] = {
    "[": ("]", {"]": "square"}),
    "(": (")", {")": "round"}),
    "((": ("))", {")": "circle"}),
    "(((": (")))", {")))": "doublecircle"}),
    "(-": ("-)", {"-)": "ellipse"}),
    "([": ("])", {"])": "stadium"}),
    "[[": ("]]", {"]]": "subroutine"}),
    "[(": (")]", {")]": "cylinder"}),
    "{": ("}", {"}": "diamond"}),
    "{{": ("}}", {"}": "hexagon"}),
    ">": ("]", {"]": "odd"}),
    "[/": ("/]' or '\\]", {"\\]": "trapezoid", "/]": "lean_right"}),
    "[\\": ("/]' or '\\]", {"/]": "inv_trapezoid", "\\]": "lean_left"}),
    "[|": ("]", {"]": "rect"}),
}
"""Opening bracket -> the closing one for messages, and the shape for each closing token.

``((`` and ``{{`` close with two tokens.
"""

NAMES: dict[str, tuple[str, ...]] = {
    "square": ("rect", "rectangle", "proc", "process"),
    "round": ("rounded", "event"),
    "stadium": ("stadium", "pill", "terminal"),
    "hexagon": ("hex", "hexagon", "prepare"),
    "circle": ("circle", "circ"),
    "doublecircle": ("dbl-circ", "double-circle", "doublecircle"),
    "diamond": ("diam", "diamond", "decision", "question"),
}
"""Shape with a meaning in workflows -> its names in ``@{ shape: NAME }``, from the table "Complete
List of New Shapes" in Mermaid's documentation of flowcharts, with aliases."""
_BRACKET_OF = {name: bracket for bracket, names in NAMES.items() for name in names}

SHAPES = frozenset(TABLES["shapes"])
"""Every valid name in ``@{ shape: NAME }``."""


MAX_EDGES = 100_000
"""Ten times the edges of the widest charts that can run; ``a & b --> c & d`` has four edges."""
MAX_DECLARED = 40_000
"""Maximum number of nodes and groups; a workflow has at most half as many nodes."""
SMALLER = "split it into several workflows"
"""The hint for a chart that exceeds a limit."""


class ChartBuilder:
    """Collects nodes, edges and groups, and the changes of later mentions.

    The last label and the last shape of a node win; its position is the first mention. The id of
    an edge is never a node.
    """

    def __init__(self, source: ChartText) -> None:
        self.direction = "TB"
        self.classes: dict[str, dict[str, str]] = {}
        """Class -> its colors from classDef."""
        self.classes_of: dict[str, list[str]] = {}
        """Node or group -> its classes."""
        self.styles: dict[str, dict[str, str]] = {}
        """Node or group -> its colors from ``style``."""
        self._source = source
        self.edges: list[ChartEdge] = []
        """The edges so far."""
        self._nodes: dict[str, ChartNode] = {}
        self._edge_ids: set[str] = set()
        self._pairs: dict[tuple[str, str], int] = {}
        self._subgraphs: list[ChartSubgraph] = []
        self._subgraph_ids: set[str] = set()
        self._members: set[str] = set()

    def build(self) -> Chart:
        """Return the chart with everything that was collected."""
        parts = tuple(self._nodes.values()), tuple(self.edges), tuple(self._subgraphs)
        return Chart(self.direction, *parts, frozenset(self.classes), self._resolve_colors())

    def _resolve_colors(self) -> dict[str, dict[str, str]]:
        default, result = self.classes.get("default", {}), {}
        for name in (*self._nodes, *(self._subgraph_ids - self._nodes.keys())):
            colors = dict(default) if name not in self._subgraph_ids else {}
            for class_name in self.classes_of.get(name, ()):
                colors |= self.classes[class_name]
            if colors := colors | self.styles.get(name, {}):
                result[name] = colors
        return result

    def add_class(self, names: Iterable[str], class_name: str) -> None:
        """Give the class *class_name* to the nodes and groups *names*."""
        self.classes.setdefault(class_name, {})
        for name in names:
            self.classes_of.setdefault(name, []).append(class_name)

    def add_node(
        self, name: str, start: int, label: str | None = None, shape: str | None = None
    ) -> None:
        """Declare the node *name*, or give it another *label* and *shape*.

        Raises:
            ChartError: the chart has too many nodes and groups.
        """
        if name in self._edge_ids:
            return
        text = None if label is None else clean_label(label)
        node = self._nodes.get(name)
        if node is None:
            self._ensure_below_limit(start)
            position = self._source.position(start)
            self._nodes[name] = ChartNode(name, name if text is None else text, shape, position)
        elif text is not None:
            self._nodes[name] = replace(node, label=text, shape=shape)

    def add_properties(self, name: str, properties: Any) -> None:
        """Apply ``@{ … }`` to the node *name*; properties of edges and groups are ignored.

        Raises:
            Unreadable: the properties are empty or name an unknown shape.
        """
        if (name in self._subgraph_ids and properties) or name in self._edge_ids:
            return
        if properties is None:
            raise Unreadable("it is empty")
        if not isinstance(properties, dict):
            return
        node, shape, label = self._nodes[name], properties.get("shape"), properties.get("label")
        if shape and (not isinstance(shape, str) or shape not in SHAPES):
            raise Unreadable(_describe_unknown_shape(as_text(shape)))
        text = restore_entities(as_text(label)) if label else node.label
        if properties.get("icon") or properties.get("img"):
            if label is not None and not isinstance(label, str):
                raise Unreadable("the label is not text; put it in double quotes")
            if not (label or "").strip(SPACES) and text == name:
                text = ""
        self._nodes[name] = replace(node, label=text, shape=shape or node.shape)

    def add_edges(
        self,
        sources: list[str],
        targets: list[str],
        link: Link,
        *,
        label: str | None,
        name: str | None,
        start: int,
    ) -> None:
        """Add an edge from each of *sources* to each of *targets*.

        Raises:
            ChartError: the chart would have too many edges. None of them is added, because a line
                of a few hundred characters can have millions.
        """
        if len(self.edges) + len(sources) * len(targets) > MAX_EDGES:
            text = "counting each edge between nodes that '&' joins"
            message = f"the chart has more than {MAX_EDGES:,} edges, {text}"
            raise self._source.error_at(message, start, SMALLER)
        text = "" if label is None else clean_label(label)
        position = self._source.position(start)
        for source in sources:
            for target in targets:
                is_named = source == sources[-1] and target == targets[0]
                self._name_edge(source, target, name if is_named else None)
                self.edges.append(
                    ChartEdge(source, target, text, link.stroke, link.type, link.length, position)
                )

    def _name_edge(self, source: str, target: str, name: str | None) -> None:
        count = self._pairs.get((source, target), 0)
        self._pairs[source, target] = count + 1
        if not name or name in self._edge_ids:
            name = f"L_{source}_{target}_{count + 1 if count else 0}"
        self._edge_ids.add(name)

    def add_subgraph(
        self,
        name: str | None,
        title: str,
        mentioned: Iterable[str],
        direction: str | None,
        start: int,
    ) -> str:
        """Close a group and return its id; a member of an earlier group stays there.

        Raises:
            ChartError: the chart has too many nodes and groups.
        """
        self._ensure_below_limit(start)
        if name is None:
            name = f"subGraph{len(self._subgraphs)}"
        members = tuple(
            member
            for member in dict.fromkeys(mentioned)
            if member.strip(SPACES) and member not in self._members
        )
        self._members.update(members)
        label, position = restore_entities(title).strip(SPACES), self._source.position(start)
        self._subgraphs.append(ChartSubgraph(name, label, members, direction, position))
        self._subgraph_ids.add(name)
        return name

    def _ensure_below_limit(self, start: int) -> None:
        if len(self._nodes) + len(self._subgraphs) >= MAX_DECLARED:
            message = f"the chart has more than {MAX_DECLARED:,} nodes and groups"
            raise self._source.error_at(message, start, SMALLER)


def _describe_unknown_shape(name: str) -> str:
    matches = get_close_matches(name.lower().replace("_", "-"), SHAPES, n=1)
    return f"there is no shape {name!r}" + (f"; did you mean {matches[0]!r}?" if matches else "")


def clean_label(text: str) -> str:
    """Return *text* without blanks around it, and without quotes if they enclose it.

    >>> clean_label('  "a b" ')
    'a b'
    """
    text = text.strip(SPACES)
    if text.startswith('"') and text.endswith('"'):
        text = text[1:-1] or text[:1]
    return restore_entities(text)
