"""Templates that can't have a value: unknown nodes, unknown keys, no path at all.

What a run's outputs will look like nobody knows when the file is read, so a path is
followed as far as the file itself says what there is.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from sequencer.model.graph import Node, NodeKind
from sequencer.resolution.flowcharts.chart import Position
from sequencer.resolution.flowcharts.problems import Findings
from sequencer.resolution.flowcharts.rules import Flowgraph
from sequencer.resolution.flowcharts.template_paths import StatePaths, missing_below
from sequencer.resolution.templates import GRAPH_ROOTS as ROOTS
from sequencer.resolution.templates import MAX_DEPTH

_TEMPLATE = re.compile(r"\{\{\s*([A-Za-z_][\w.\-]*)\s*\}\}")
_LIKE_ONE = re.compile(r"\{\{\s*(?:" + "|".join(ROOTS) + r")\b[^{}\n]{0,200}\}\}")
_INPUT = re.compile(r"\{\{\s*input(?:\.[\w.\-]*)?\s*\}\}")


class _Text(NamedTuple):
    """A text in which templates are filled in."""

    text: str
    at: Position | None
    is_input: bool = False
    is_prompt: bool = False
    """Its position is that of its first character; else that of what holds it."""


class _Known(NamedTuple):
    """What is the same for all templates of a flow."""

    state: StatePaths
    reached: Collection[str | None]
    """Nodes that another one's output may come to."""


def check_templates(flow: Flowgraph, findings: Findings) -> None:
    """Add what is wrong with the templates of *flow* to *findings*."""
    keys = (node.output_key for node in flow.graph.nodes if node.output_key)
    known = _Known(
        StatePaths(flow.graph.state, keys),
        frozenset(edge.target for edge in flow.graph.edges)
        | {node.on_timeout for node in flow.graph.nodes},
    )
    for node in flow.graph.nodes:
        if not node.works:
            continue
        for text in _texts(flow, node):
            for found in _LIKE_ONE.finditer(text.text):
                if _TEMPLATE.fullmatch(found[0]) is None and not findings.is_silent:
                    detail = f"{found[0]} is not read as a template, it stays as it is"
                    hint = "a template is a path of names and numbers with dots: {{state.a.0}}"
                    at = _place(text, found.start())
                    findings.warn("W-TEMPLATE", node.id, detail, at, hint)
            for found in _TEMPLATE.finditer(text.text):
                path = tuple(found[1].split("."))
                if findings.is_full:
                    return
                if (problem := _problem(flow, node, path, known, findings)) is None:
                    continue
                at = _place(text, found.start())
                findings.error("E-TEMPLATE", node.id, f"{found[0]}: {problem[0]}", at, problem[1])
            for found in _INPUT.finditer(text.text) if text.is_input else ():
                findings.error(
                    "E-TEMPLATE", node.id, f"{found[0]}: input can't hold itself", text.at
                )


def _texts(flow: Flowgraph, node: Node) -> Iterator[_Text]:
    source = flow.sources[node.id]
    if source.section is not None and source.prompt:
        yield _Text(source.prompt, (source.section.prompt.line, 1), is_prompt=True)
    elif node.kind is NodeKind.HUMAN:
        yield _Text(node.label, flow.node_positions[node.id])
    yield from _texts_below(flow, node.id, node.input, ("input",))


def _texts_below(
    flow: Flowgraph, name: str, value: Any, path: tuple[str | int, ...]
) -> Iterator[_Text]:
    if isinstance(value, str):
        yield _Text(value, flow.at(name, *path), is_input=True)
    elif isinstance(value, Mapping):
        for key, below in value.items():
            yield from _texts_below(flow, name, below, (*path, key))
    elif isinstance(value, list):
        for place, below in enumerate(value):
            yield from _texts_below(flow, name, below, (*path, place))


def _place(text: _Text, offset: int) -> Position | None:
    if not text.is_prompt or text.at is None:
        return text.at
    before = text.text.count("\n", 0, offset)
    return text.at[0] + before, offset - text.text.rfind("\n", 0, offset)


_Problem = tuple[str, str | None]
"""What is wrong, and what to write instead."""


def _problem(
    flow: Flowgraph,
    node: Node,
    path: tuple[str, ...],
    known: _Known,
    findings: Findings,
) -> _Problem | None:
    """Return what is wrong with *path* in a text of *node*."""
    root, *rest = path
    if root not in ROOTS:
        return None
    if "" in path:
        return "a name between its dots is empty", None
    if root == "nodes":
        return _node_problem(flow, rest, findings)
    if len(rest) > MAX_DEPTH:
        return f"at most {MAX_DEPTH} parts are looked into", None
    return _below_problem(node, root, tuple(rest), known, findings) if rest else None


def _below_problem(
    node: Node, root: str, path: tuple[str, ...], known: _Known, findings: Findings
) -> _Problem | None:
    """Return what is wrong with *path* below output, input or state."""
    if root == "output":
        detail = "nothing leads to this node, so the output that reached it is empty"
        return None if node.id in known.reached else (detail, None)
    is_input = root == "input"
    missing = missing_below(node.input, path) if is_input else known.state.missing(path)
    if missing is None:
        return None
    hint = findings.known(path[missing[0].count(".")], missing[1])
    if is_input:
        return f"input has no key {missing[0]!r}", hint
    return f"nothing sets state.{missing[0]}", f"{hint}; or set it under 'state:'"


def _node_problem(flow: Flowgraph, rest: list[str], findings: Findings) -> _Problem | None:
    # Ids may have dots, so the longest id that fits is meant.
    for length in range(min(len(rest), 10), 0, -1):
        name = ".".join(rest[:length])
        if name in flow.graph.by_id:
            if rest[length : length + 1] != ["output"]:
                return "a node has nothing but its output", f"{{{{nodes.{name}.output}}}}"
            return None
    named = rest[0] if rest else ""
    return f"there is no node {named!r}", findings.known(named, list(flow.graph.by_id))
