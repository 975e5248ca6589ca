"""Nodes of the graph: what the shape, the label and the section of each come to."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from sequencer.model.branching import DEFAULT, TIMEOUT, normalise
from sequencer.model.graph import Node, NodeKind, Option
from sequencer.resolution.flowcharts.chart import ChartNode, drawn
from sequencer.resolution.flowcharts.definition import AGENT_KEYS, PERSON_KEYS
from sequencer.resolution.flowcharts.grouping import Way
from sequencer.resolution.flowcharts.markdown import Heading, Section
from sequencer.resolution.flowcharts.problems import MAX_COMPARED, Findings
from sequencer.resolution.flowcharts.sections import NodeSource

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
