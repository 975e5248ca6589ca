"""Checks a graph before it may run: errors, and warnings about possible mistakes.

The rules are about labels, options, defaults, reachable nodes, keys of the state, nodes that may
run at once, and templates. Each rule checks the whole graph and reports every problem.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache, reduce
from graphlib import TopologicalSorter
from itertools import islice
from operator import or_
from typing import Any

from msgspec import Struct

from sequencer.model.graph.choices import (
    DEFAULT,
    TIMEOUT,
    NoMatchingBranch,
    choose,
    group_edges,
    has_fallback_branch,
    is_choice,
    normalize,
)
from sequencer.model.graph.graph import Graph, Node, NodeKind
from sequencer.workflows.flowfile.problems import Diagnostics
from sequencer.workflows.flowfile.settings import NodeSource, ParsedFrontMatter
from sequencer.workflows.mermaid.text import Position
from sequencer.workflows.prompts import GRAPH_ROOTS as ROOTS
from sequencer.workflows.prompts import MAX_DEPTH, get_child, parse_loose_json

RESERVED = "_"
"""Keys of the state with this prefix belong to the run."""
MAX_COMPARED = 256
"""At most this many nodes are compared with each other; later nodes of the chart are ignored."""
_MAX_SPLITS = 200
"""At most this many splits of a run are checked; later ones in the chart are ignored."""


class FlowGraph(Struct, frozen=True):
    """A graph with the position of each of its parts in the file."""

    graph: Graph
    front: ParsedFrontMatter
    sources: Mapping[str, NodeSource]
    node_positions: Mapping[str, Position]
    edge_positions: tuple[Position, ...]
    incomplete: frozenset[str]
    """Nodes with a refused edge; a missing edge there is not reported again."""

    def find_position(self, name: str, *path: str | int) -> Position | None:
        """Return the position of *path* of node *name*, or else of its section or mention."""
        return self.sources[name].find_position(*path) or self.node_positions[name]


def check(flow: FlowGraph, diagnostics: Diagnostics) -> None:
    """Add all problems of *flow* to *diagnostics*."""
    for name, node in flow.graph.by_id.items():
        _check_labels(flow, name, diagnostics)
        if node.kind is NodeKind.HUMAN:
            _check_person(flow, name, diagnostics)
    _check_reach(flow, diagnostics)
    _check_state(flow, diagnostics)
    _check_shared_keys(flow, diagnostics)


def _check_labels(flow: FlowGraph, name: str, diagnostics: Diagnostics) -> None:
    graph = flow.graph
    labels = group_edges(graph, name)
    if DEFAULT in labels and "" in labels:
        second_edge = max(labels[DEFAULT][0], labels[""][0])
        detail = 'both a "default" edge and an unlabeled edge'
        hint = "an edge without a label is for all other answers, just like default; keep one"
        diagnostics.add("E-DEFAULT", name, detail, flow.edge_positions[second_edge], hint)
    is_marker = graph.by_id[name].kind is NodeKind.MARKER
    if len(labels) == 1 and "" not in labels and not is_marker and not is_choice(graph, name):
        place = graph.outgoing[name][0]
        label = graph.edges[place].label
        detail = (
            f"the label {label!r} is not a condition: it is the only one, so it is always taken"
        )
        hint = "draw an edge with another label, or an unlabeled one for all other answers"
        diagnostics.add("W-LABEL", name, detail, flow.edge_positions[place], hint)
    if is_marker and len(labels) > 1:
        place = graph.outgoing[name][0]
        detail = "a start or an end gives no answer: the output that reached it picks the way"
        diagnostics.add("W-LABEL", name, detail, flow.edge_positions[place], "draw {text} instead")


def _check_person(flow: FlowGraph, name: str, diagnostics: Diagnostics) -> None:
    graph, node, source = flow.graph, flow.graph.by_id[name], flow.sources[name]
    labels = group_edges(graph, name)
    if TIMEOUT in labels and node.timeout_ms is None and name not in flow.incomplete:
        detail = "there is an edge 'timeout' but no time limit, so it is never taken"
        position = flow.edge_positions[labels[TIMEOUT][0]]
        diagnostics.add("W-LABEL", name, detail, position, "timeout: MILLISECONDS in its section")
    if not has_fallback_branch(graph, name):
        _check_other_answers(flow, name, diagnostics)
    if not source.values.options or not is_choice(graph, name):
        return
    taken_labels: set[str] = set()
    for place, option in enumerate(source.values.options):
        value = option.value or option.label
        try:
            taken_labels.add(normalize(graph.edges[choose(graph, name, value)[0]].label))
        except NoMatchingBranch:
            if name not in flow.incomplete:
                edge_labels = [graph.edges[places[0]].label for places in labels.values()]
                detail = f"the option {value!r} leads nowhere: no edge has that label"
                hint = diagnostics.hint_for(value, edge_labels)
                diagnostics.add(
                    "E-OPTION", name, detail, source.find_position("options", place), hint
                )
    if node.allows_custom_input:
        return
    option_labels = [option.label for option in node.options]
    for label, places in labels.items():
        if label not in taken_labels and label not in ("", DEFAULT, TIMEOUT):
            edge_label = graph.edges[places[0]].label
            detail = f"the label {edge_label!r} is not one of its options"
            hint = f"{diagnostics.hint_for(edge_label, option_labels)}; or allowCustomInput: true"
            diagnostics.add("E-OPTION", name, detail, flow.edge_positions[places[0]], hint)


def _check_other_answers(flow: FlowGraph, name: str, diagnostics: Diagnostics) -> None:
    """Report answers that are accepted from the person *name* although they fit no edge."""
    graph, node = flow.graph, flow.graph.by_id[name]
    if name in flow.incomplete:
        return
    consequence = f"the run goes to {graph.on_error!r}" if graph.on_error else "the run fails"
    hint = "draw an edge 'default', or one without a label"
    if node.allows_custom_input:
        detail = (
            f"any text is an answer, but no edge takes one that is not an option: {consequence}"
        )
        position = flow.find_position(name, *flow.sources[name].find_key_path("allowCustomInput"))
        diagnostics.add("W-ANSWER", name, detail, position, hint)
    has_limit = node.timeout_ms is not None and node.on_timeout is None
    if has_limit and TIMEOUT not in group_edges(graph, name):
        detail = f"after its timeout no edge is taken: {consequence}"
        hint = f"onTimeout: NODE, an edge 'timeout', or {hint.removeprefix('draw ')}"
        position = flow.find_position(name, *flow.sources[name].find_key_path("timeout"))
        diagnostics.add("W-ANSWER", name, detail, position, hint)


def _check_reach(flow: FlowGraph, diagnostics: Diagnostics) -> None:
    reachable_names = flow.graph.reachable
    entries_text = ", ".join(flow.graph.entries[:5])
    for name, node in flow.graph.by_id.items():
        if node.works and name not in reachable_names and name not in flow.incomplete:
            detail = f"it never runs: nothing leads to it from {entries_text}"
            diagnostics.add("W-UNREACHABLE", name, detail, flow.node_positions[name])


def _check_state(flow: FlowGraph, diagnostics: Diagnostics) -> None:
    state = flow.graph.state
    for key in state:
        if key.startswith(RESERVED):
            detail = f"the key {key!r} is the run's own: it starts with {RESERVED!r}"
            name = diagnostics.file.name
            diagnostics.add("E-STATE", name, detail, flow.front.find_position("state", key))
    for name, node in flow.graph.by_id.items():
        if node.output_key is None:
            continue
        parts = node.output_key.split(".")
        problem: str | None = None
        if not all(parts):
            problem = "a part between its dots is empty"
        elif parts[0].startswith(RESERVED):
            problem = f"keys that start with {RESERVED!r} are the run's own"
        elif (scalar := _find_scalar_above(state, parts)) is not None:
            problem = f"state.{scalar} isn't a mapping, so nothing can be put below it"
        if problem is not None:
            detail = f"output.key {node.output_key!r}: {problem}"
            diagnostics.add("E-STATE", name, detail, _key_position(flow, name))


def _find_scalar_above(state: Mapping[str, Any], parts: list[str]) -> str | None:
    value: Any = state
    for length, part in enumerate(parts[:-1], start=1):
        if part not in value or value[part] is None:
            return None
        value = value[part]
        if not isinstance(value, Mapping):
            return ".".join(parts[:length])
    return None


def _check_shared_keys(flow: FlowGraph, diagnostics: Diagnostics) -> None:
    by_key: dict[str, list[str]] = {}
    for name, node in flow.graph.by_id.items():
        if node.output_key is not None:
            by_key.setdefault(node.output_key, []).append(name)
    names_by_key = {key: names for key, names in by_key.items() if len(names) > 1}
    for key, first, second in find_parallel_pairs(flow.graph, names_by_key):
        detail = f"both may run at once and write state.{key}; the last one to finish wins"
        diagnostics.add("W-KEY", f"{first} {second}", detail, _key_position(flow, second))
    for key, names in by_key.items():
        parts = key.split(".")
        for outer in (".".join(parts[:length]) for length in range(1, len(parts))):
            if outer in by_key:
                detail = f"its output.key {key!r} is below {outer!r}, which {by_key[outer][0]} sets"
                hint = "that value is text, and nothing can be put below text"
                diagnostics.add("W-KEY", names[0], detail, _key_position(flow, names[0]), hint)


def _key_position(flow: FlowGraph, name: str) -> Position | None:
    source = flow.sources[name]
    flat = source.has_value("output.key")
    return (
        flow.find_position(name, "output.key")
        if flat
        else flow.find_position(name, "output", "key")
    )


RUN_STATE: Mapping[str, Any] = {
    "_completed_nodes": (),
    "_current_node": None,
    "_error": {"node": None, "type": None, "message": None, "attempts": None},
    "_iteration_count": 0,
    "_pending_parallel": (),
    "_started_at": None,
    "_workflow_id": None,
}
"""The keys that a run sets in its state, with the known part of their values."""


class StatePaths:
    """The paths that exist in the state: the initial state and the outputs of nodes."""

    def __init__(self, graph: Graph) -> None:
        """Collect the paths from the initial state of *graph* and its nodes' output keys."""
        self._state = {**graph.state, **RUN_STATE}
        keys = (node.output_key for node in graph.nodes if node.output_key)
        self._keys = frozenset(tuple(key.split(".")) for key in keys)
        self.reached: set[str | None] = {edge.target for edge in graph.edges}
        self.reached |= {node.on_timeout for node in graph.nodes}
        """Nodes that the output of another node may reach."""
        # Path of a map on the way to an output -> its known keys.
        self._above: dict[tuple[str, ...], dict[str, None]] = {}
        for key in self._keys:
            for length in range(len(key)):
                self._above.setdefault(key[:length], {})[key[length]] = None

    def find_missing(self, path: tuple[str, ...]) -> tuple[str, list[str]] | None:
        """Return the part of *path* that nothing sets, and the known keys there."""
        max_length = min(len(path), MAX_DEPTH)
        if any(path[:length] in self._keys for length in range(1, max_length + 1)):
            return None
        value: Any = self._state
        for depth, part in enumerate(path):
            outputs = self._above.get(path[:depth], {})
            if isinstance(value, Mapping) and part in value:
                value = value[part]
            elif part in outputs:
                value = {}
            elif depth and not outputs and _may_get(value, part):
                return None
            else:
                return ".".join(path[: depth + 1]), _list_known_keys(value, outputs)
        return None


def find_missing_below(value: Any, path: tuple[str, ...]) -> tuple[str, list[str]] | None:
    """Return the part of *path* that is not in *value*, which never changes, and the known keys.

    >>> node_input = {"list": ["a"], "text": '{"key": 1}'}
    >>> [find_missing_below(node_input, ("list", number)) for number in ("0", "1", "x")]
    [None, ('list.1', []), ('list.x', [])]
    >>> find_missing_below(node_input, ("text", "name"))
    ('text.name', ['key'])
    """
    for depth, part in enumerate(path):
        if isinstance(value, str) and "{{" in value:
            return None
        try:
            value = parse_loose_json(value) if isinstance(value, str) else value
            value = get_child(value, part)
        except KeyError:
            return ".".join(path[: depth + 1]), _list_known_keys(value, {})
    return None


def _may_get(value: Any, part: str) -> bool:
    """Return whether a run may start with a different value that has *part*."""
    if isinstance(value, Mapping):
        return not value
    if isinstance(value, (list, tuple)):
        return not value or part.isdecimal()
    return value is None or isinstance(value, str)


def _list_known_keys(value: Any, outputs: Mapping[str, None]) -> list[str]:
    keys = [*map(str, value)] if isinstance(value, Mapping) else []
    # The author's own keys first: the author most likely meant one of them.
    return sorted({*keys, *outputs}, key=lambda key: (key in RUN_STATE, key))


_TEMPLATE = re.compile(r"\{\{\s*([A-Za-z_][\w.\-]*)\s*\}\}")
_SIMILAR = re.compile(r"\{\{\s*(?:" + "|".join(ROOTS) + r")\b[^{}\n]{0,200}\}\}")
_INPUT = re.compile(r"\{\{\s*input(?:\.[\w.\-]*)?\s*\}\}")


class _Text(Struct, frozen=True):
    """A text with templates."""

    text: str
    at: Position | None
    is_input: bool = False
    is_prompt: bool = False
    """True: *at* is the position of its first character; False: of the setting that contains it."""


def check_templates(flow: FlowGraph, diagnostics: Diagnostics) -> None:
    """Add the problems of the templates in *flow* to *diagnostics*."""
    state = StatePaths(flow.graph)
    for node in flow.graph.nodes:
        if not node.works:
            continue
        for text in _iter_texts(flow, node):
            for match in _SIMILAR.finditer(text.text):
                if _TEMPLATE.fullmatch(match[0]) is None and not diagnostics.is_silent:
                    detail = f"{match[0]} is not read as a template; it stays as it is"
                    hint = "a template is a path of names and numbers with dots: {{state.a.0}}"
                    position = _locate_offset(text, match.start())
                    diagnostics.add("W-TEMPLATE", node.id, detail, position, hint)
            for match in _TEMPLATE.finditer(text.text):
                path = tuple(match[1].split("."))
                if diagnostics.is_full:
                    return
                if (problem := _find_problem(flow, node, path, state, diagnostics)) is None:
                    continue
                position = _locate_offset(text, match.start())
                diagnostics.add(
                    "E-TEMPLATE", node.id, f"{match[0]}: {problem[0]}", position, problem[1]
                )
            for match in _INPUT.finditer(text.text) if text.is_input else ():
                detail = f"{match[0]}: input can't hold itself"
                diagnostics.add("E-TEMPLATE", node.id, detail, text.at)


def _iter_texts(flow: FlowGraph, node: Node) -> Iterator[_Text]:
    source = flow.sources[node.id]
    if source.section is not None and source.prompt:
        yield _Text(source.prompt, (source.section.prompt.line, 1), is_prompt=True)
    elif node.kind is NodeKind.HUMAN:
        yield _Text(node.label, flow.node_positions[node.id])
    yield from _iter_texts_below(flow, node.id, node.input, ("input",))


def _iter_texts_below(
    flow: FlowGraph, name: str, value: Any, path: tuple[str | int, ...]
) -> Iterator[_Text]:
    if isinstance(value, str):
        yield _Text(value, flow.find_position(name, *path), is_input=True)
    elif isinstance(value, Mapping):
        for key, child in value.items():
            yield from _iter_texts_below(flow, name, child, (*path, key))
    elif isinstance(value, list):
        for place, child in enumerate(value):
            yield from _iter_texts_below(flow, name, child, (*path, place))


def _locate_offset(text: _Text, offset: int) -> Position | None:
    if not text.is_prompt or text.at is None:
        return text.at
    line_breaks = text.text.count("\n", 0, offset)
    return text.at[0] + line_breaks, offset - text.text.rfind("\n", 0, offset)


_Problem = tuple[str, str | None]
"""Detail and hint of a problem."""


def _find_problem(
    flow: FlowGraph,
    node: Node,
    path: tuple[str, ...],
    state: StatePaths,
    diagnostics: Diagnostics,
) -> _Problem | None:
    """Return the problem of *path* in a text of *node*; None: it is valid."""
    root, *path_rest = path
    if root not in ROOTS:
        return None
    if "" in path:
        return "a name between its dots is empty", None
    if root == "nodes":
        return _find_node_problem(flow, path_rest, diagnostics)
    if len(path_rest) > MAX_DEPTH:
        return f"at most {MAX_DEPTH} parts are looked up", None
    return (
        _find_problem_below(node, root, tuple(path_rest), state, diagnostics) if path_rest else None
    )


def _find_problem_below(
    node: Node, root: str, path: tuple[str, ...], state: StatePaths, diagnostics: Diagnostics
) -> _Problem | None:
    """Return the problem of *path* below output, input or state; None: it is valid."""
    if root == "output":
        detail = "nothing leads to this node, so the output that reached it is empty"
        return None if node.id in state.reached else (detail, None)
    is_input = root == "input"
    missing_part = find_missing_below(node.input, path) if is_input else state.find_missing(path)
    if missing_part is None:
        return None
    part, known_keys = path[missing_part[0].count(".")], missing_part[1]
    if is_input:
        return f"input has no key {missing_part[0]!r}", diagnostics.hint_for(part, known_keys)
    # Suggest the run's own keys only for a name with their prefix.
    names = (
        known_keys
        if part.startswith(RESERVED)
        else [key for key in known_keys if key not in RUN_STATE]
    )
    hint = "set it under 'state:' in the front matter"
    if names:
        hint += f"; {diagnostics.hint_for(part, names)}"
    return f"nothing sets state.{missing_part[0]}", hint


def _find_node_problem(
    flow: FlowGraph, path: list[str], diagnostics: Diagnostics
) -> _Problem | None:
    # Ids may contain dots, so the longest match wins.
    for length in range(min(len(path), 10), 0, -1):
        name = ".".join(path[:length])
        if name in flow.graph.by_id:
            if path[length : length + 1] != ["output"]:
                return "a node has nothing but its output", f"{{{{nodes.{name}.output}}}}"
            return None
    node_name = path[0] if path else ""
    return f"there is no node {node_name!r}", diagnostics.hint_for(
        node_name, list(flow.graph.by_id)
    )


def find_parallel_pairs(
    graph: Graph, shared: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, str, str]]:
    """Yield (key, first, second) for each key of *shared* with two nodes that may run at once.

    Two nodes may run at once if neither leads to the other, and a run splits somewhere (at
    several edges with one label, or at several entries) into paths that reach the two nodes
    without meeting first. Loops may let further nodes run at once.
    """
    pairs = [(key, name) for key, names in shared.items() for name in names][:MAX_COMPARED]
    if not pairs:
        return
    bits = {name: 1 << index for index, (_, name) in enumerate(pairs)}
    sources_of: dict[str, list[str]] = {name: [] for name in graph.by_id}
    for name, targets in graph.forward.items():
        for target in targets:
            sources_of[target].append(name)
    order = tuple(TopologicalSorter(sources_of).static_order())
    bits_below = {name: bits.get(name, 0) for name in order}
    for name in reversed(order):
        bits_below[name] = reduce(
            or_, map(bits_below.__getitem__, graph.forward[name]), bits_below[name]
        )
    splits = tuple(islice(_iter_splits(graph, bits_below), _MAX_SPLITS))
    branches = cache(lambda index: _find_branches(order, sources_of, splits[index], bits))
    done_keys: set[str] = set()
    for key, name in pairs:
        other_names = [
            other_name for other_key, other_name in pairs if other_key == key and other_name != name
        ]
        independent_names = [
            other_name
            for other_name in other_names
            if not (bits_below[name] & bits[other_name] or bits_below[other_name] & bits[name])
        ]
        for branch in map(
            branches, range(len(splits) if independent_names and key not in done_keys else 0)
        ):
            parallel_names = [
                other_name
                for other_name in independent_names
                if other_name in branch and name in branch
            ]
            parallel_names = [
                other_name for other_name in parallel_names if branch[other_name] != branch[name]
            ]
            if parallel_names:
                done_keys.add(key)
                yield key, name, parallel_names[0]
                break


def _find_branches(
    order: Sequence[str],
    sources_of: Mapping[str, Sequence[str]],
    targets: Collection[str],
    compared_names: Collection[str],
) -> dict[str, str]:
    """Return node of *compared_names* after *targets* -> the last node that all paths to it pass.

    Where paths through different such nodes meet, their tokens merge, so the meeting point is
    such a node itself.
    """
    branches: dict[str, str] = {}
    for name in order:
        source_branches = {branches[source] for source in sources_of[name] if source in branches}
        if name in targets or len(source_branches) > 1:
            branches[name] = name
        elif source_branches:
            branches[name] = source_branches.pop()
    return {name: branch for name, branch in branches.items() if name in compared_names}


def _iter_splits(graph: Graph, bits_below: Mapping[str, int]) -> Iterator[Sequence[str]]:
    """Yield the targets of each split of which at least two lead to compared nodes."""
    divisions = [graph.entries] if len(graph.entries) > 1 else []
    for name in graph.by_id:
        if len(graph.outgoing[name]) > 1:
            for edges in group_edges(graph, name).values():
                forward_edges = [index for index in edges if index not in graph.back_edges]
                divisions.append(tuple(graph.edges[index].target for index in forward_edges))
    yield from (
        targets for targets in divisions if sum(bool(bits_below[target]) for target in targets) > 1
    )
