"""What a graph has to be before it may run, and what in it may not be meant.

Labels, options, defaults, reach, keys of the state, which nodes may run at once, and templates.
Each rule looks at the whole graph and tells everything that it finds.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache, reduce
from graphlib import TopologicalSorter
from itertools import islice
from operator import or_
from typing import Any, NamedTuple

from msgspec import Struct

from sequencer.model.graph.choices import (
    DEFAULT,
    TIMEOUT,
    NoMatchingBranch,
    choose,
    groups,
    is_choice,
    normalise,
    takes_other_answers,
)
from sequencer.model.graph.graph import Graph, Node, NodeKind
from sequencer.workflows.flowfile.problems import Diagnostics
from sequencer.workflows.flowfile.settings import Front, NodeSource
from sequencer.workflows.mermaid.text import Position
from sequencer.workflows.prompts import GRAPH_ROOTS as ROOTS
from sequencer.workflows.prompts import MAX_DEPTH, parsed

RESERVED = "_"
"""Keys of the state that begin with it are the run's own."""
MAX_COMPARED = 256
"""Nodes that are compared with each other; those that come later in the chart are not."""
_MAX_SPLITS = 200
"""Places where a run divides; those that come later in the chart are not looked at."""


class FlowGraph(Struct, frozen=True):
    """A graph, and where each part of it is written."""

    graph: Graph
    front: Front
    sources: Mapping[str, NodeSource]
    node_positions: Mapping[str, Position]
    edge_positions: tuple[Position, ...]
    incomplete: frozenset[str]
    """Nodes of which an edge was refused, so that what it lacks is no second problem."""

    def at(self, name: str, *path: str | int) -> Position | None:
        """Return where *path* of node *name* is written, else its section, else the chart."""
        return self.sources[name].at(*path) or self.node_positions[name]


def check(flow: FlowGraph, findings: Diagnostics) -> None:
    """Add everything that is wrong with *flow* to *findings*."""
    for name, node in flow.graph.by_id.items():
        _check_labels(flow, name, findings)
        if node.kind is NodeKind.HUMAN:
            _check_person(flow, name, findings)
    _check_reach(flow, findings)
    _check_state(flow, findings)
    _check_shared_keys(flow, findings)


def _check_labels(flow: FlowGraph, name: str, findings: Diagnostics) -> None:
    graph = flow.graph
    labels = groups(graph, name)
    if DEFAULT in labels and "" in labels:
        second = max(labels[DEFAULT][0], labels[""][0])
        detail = 'both a "default" edge and an unlabelled edge'
        hint = "an edge without a label is for all other answers, just like default; keep one"
        findings.tell("E-DEFAULT", name, detail, flow.edge_positions[second], hint)
    is_marker = graph.by_id[name].kind is NodeKind.MARKER
    if len(labels) == 1 and "" not in labels and not is_marker and not is_choice(graph, name):
        place = graph.outgoing[name][0]
        shown = graph.edges[place].label
        detail = (
            f"the label {shown!r} is not a condition: it is the only one, so it is always taken"
        )
        hint = "draw an edge with another label, or an unlabelled one for all other answers"
        findings.tell("W-LABEL", name, detail, flow.edge_positions[place], hint)
    if is_marker and len(labels) > 1:
        place = graph.outgoing[name][0]
        detail = "a start or an end gives no answer: the output that reached it picks the way"
        findings.tell("W-LABEL", name, detail, flow.edge_positions[place], "draw {text} instead")


def _check_person(flow: FlowGraph, name: str, findings: Diagnostics) -> None:
    graph, node, source = flow.graph, flow.graph.by_id[name], flow.sources[name]
    labels = groups(graph, name)
    if TIMEOUT in labels and node.timeout_ms is None and name not in flow.incomplete:
        detail = "there is an edge 'timeout' but no time limit, so it is never taken"
        at = flow.edge_positions[labels[TIMEOUT][0]]
        findings.tell("W-LABEL", name, detail, at, "timeout: MILLISECONDS in its section")
    if not takes_other_answers(graph, name):
        _check_other_answers(flow, name, findings)
    if not source.values.options or not is_choice(graph, name):
        return
    taken: set[str] = set()
    for place, option in enumerate(source.values.options):
        value = option.value or option.label
        try:
            taken.add(normalise(graph.edges[choose(graph, name, value)[0]].label))
        except NoMatchingBranch:
            if name not in flow.incomplete:
                drawn = [graph.edges[places[0]].label for places in labels.values()]
                detail = f"the option {value!r} leads nowhere: no edge has that label"
                hint = findings.known(value, drawn)
                findings.tell("E-OPTION", name, detail, source.at("options", place), hint)
    if node.allows_custom_input:
        return
    known = [option.label for option in node.options]
    for label, places in labels.items():
        if label not in taken and label not in ("", DEFAULT, TIMEOUT):
            shown = graph.edges[places[0]].label
            detail = f"the label {shown!r} is not one of its options"
            hint = f"{findings.known(shown, known)}; or allowCustomInput: true"
            findings.tell("E-OPTION", name, detail, flow.edge_positions[places[0]], hint)


def _check_other_answers(flow: FlowGraph, name: str, findings: Diagnostics) -> None:
    """Tell which answers fit none of the edges of the person *name*, and are accepted."""
    graph, node = flow.graph, flow.graph.by_id[name]
    if name in flow.incomplete:
        return
    then = f"the run goes to {graph.on_error!r}" if graph.on_error else "the run fails"
    hint = "draw an edge 'default', or one without a label"
    if node.allows_custom_input:
        detail = f"any text is an answer, but no edge takes one that is not an option: {then}"
        at = flow.at(name, *flow.sources[name].path_of("allowCustomInput"))
        findings.tell("W-ANSWER", name, detail, at, hint)
    has_limit = node.timeout_ms is not None and node.on_timeout is None
    if has_limit and TIMEOUT not in groups(graph, name):
        detail = f"after its timeout no edge is taken: {then}"
        hint = f"onTimeout: NODE, an edge 'timeout', or {hint.removeprefix('draw ')}"
        at = flow.at(name, *flow.sources[name].path_of("timeout"))
        findings.tell("W-ANSWER", name, detail, at, hint)


def _check_reach(flow: FlowGraph, findings: Diagnostics) -> None:
    reachable = flow.graph.reachable
    begin = ", ".join(flow.graph.entries[:5])
    for name, node in flow.graph.by_id.items():
        if node.works and name not in reachable and name not in flow.incomplete:
            detail = f"it never runs: nothing leads to it from {begin}"
            findings.tell("W-UNREACHABLE", name, detail, flow.node_positions[name])


def _check_state(flow: FlowGraph, findings: Diagnostics) -> None:
    state = flow.graph.state
    for key in state:
        if key.startswith(RESERVED):
            detail = f"the key {key!r} is the run's own: it starts with {RESERVED!r}"
            name = findings.file.name
            findings.tell("E-STATE", name, detail, flow.front.at("state", key))
    for name, node in flow.graph.by_id.items():
        if node.output_key is None:
            continue
        parts = node.output_key.split(".")
        problem: str | None = None
        if not all(parts):
            problem = "a part between its dots is empty"
        elif parts[0].startswith(RESERVED):
            problem = f"keys that start with {RESERVED!r} are the run's own"
        elif (scalar := _in_the_way(state, parts)) is not None:
            problem = f"state.{scalar} isn't a mapping, so nothing can be put below it"
        if problem is not None:
            detail = f"output.key {node.output_key!r}: {problem}"
            findings.tell("E-STATE", name, detail, _key_position(flow, name))


def _in_the_way(state: Mapping[str, Any], parts: list[str]) -> str | None:
    here: Any = state
    for length, part in enumerate(parts[:-1], start=1):
        if part not in here or here[part] is None:
            return None
        here = here[part]
        if not isinstance(here, Mapping):
            return ".".join(parts[:length])
    return None


def _check_shared_keys(flow: FlowGraph, findings: Diagnostics) -> None:
    by_key: dict[str, list[str]] = {}
    for name, node in flow.graph.by_id.items():
        if node.output_key is not None:
            by_key.setdefault(node.output_key, []).append(name)
    shared = {key: names for key, names in by_key.items() if len(names) > 1}
    for key, one, other in at_once(flow.graph, shared):
        detail = f"both may run at once and write state.{key}; the last one to finish wins"
        findings.tell("W-KEY", f"{one} {other}", detail, _key_position(flow, other))
    for key, names in by_key.items():
        parts = key.split(".")
        for outer in (".".join(parts[:length]) for length in range(1, len(parts))):
            if outer in by_key:
                detail = f"its output.key {key!r} is below {outer!r}, which {by_key[outer][0]} sets"
                hint = "that value is text, and nothing can be put below text"
                findings.tell("W-KEY", names[0], detail, _key_position(flow, names[0]), hint)


def _key_position(flow: FlowGraph, name: str) -> Position | None:
    source = flow.sources[name]
    flat = source.written("output.key")
    return flow.at(name, "output.key") if flat else flow.at(name, "output", "key")


RUN_STATE: Mapping[str, Any] = {
    "_completed_nodes": (),
    "_current_node": None,
    "_error": {"node": None, "type": None, "message": None, "attempts": None},
    "_iteration_count": 0,
    "_pending_parallel": (),
    "_started_at": None,
    "_workflow_id": None,
}
"""What a run sets itself in its state, as far as it has a form."""


class StatePaths:
    """What there will be in the state: what it begins with, and where outputs go."""

    def __init__(self, graph: Graph) -> None:
        """Look into what *graph* begins with, and where its nodes put their outputs."""
        self._state = {**graph.state, **RUN_STATE}
        keys = (node.output_key for node in graph.nodes if node.output_key)
        self._keys = frozenset(tuple(key.split(".")) for key in keys)
        self.reached: set[str | None] = {edge.target for edge in graph.edges}
        self.reached |= {node.on_timeout for node in graph.nodes}
        """Nodes that another one's output may come to."""
        # For each map on the way to an output, what is known to be in it.
        self._above: dict[tuple[str, ...], dict[str, None]] = {}
        for key in self._keys:
            for length in range(len(key)):
                self._above.setdefault(key[:length], {})[key[length]] = None

    def missing(self, path: tuple[str, ...]) -> tuple[str, list[str]] | None:
        """Return the part of *path* that nothing sets, and what there is in its place."""
        longest = min(len(path), MAX_DEPTH)
        if any(path[:length] in self._keys for length in range(1, longest + 1)):
            return None
        here: Any = self._state
        for place, part in enumerate(path):
            outputs = self._above.get(path[:place], {})
            if isinstance(here, Mapping) and part in here:
                here = here[part]
            elif part in outputs:
                here = {}
            elif place and not outputs and _may_become_another(here, part):
                return None
            else:
                return ".".join(path[: place + 1]), _names(here, outputs)
        return None


def missing_below(value: Any, path: tuple[str, ...]) -> tuple[str, list[str]] | None:
    """Return the part of *path* that is not in *value*, which no run changes."""
    here = value
    for place, part in enumerate(path):
        if isinstance(here, str):
            if "{{" in here:
                return None
            try:
                here = parsed(here)
            except KeyError:
                here = None
        if isinstance(here, Mapping) and part in here:
            here = here[part]
        elif isinstance(here, list) and part.isdecimal() and int(part[:MAX_DEPTH]) < len(here):
            here = here[int(part[:MAX_DEPTH])]
        else:
            return ".".join(path[: place + 1]), _names(here, {})
    return None


def _may_become_another(here: Any, part: str) -> bool:
    """Return whether a run may begin with something else, in which there is *part*."""
    if isinstance(here, Mapping):
        return not here
    if isinstance(here, (list, tuple)):
        return not here or part.isdecimal()
    return here is None or isinstance(here, str)


def _names(here: Any, outputs: Mapping[str, None]) -> list[str]:
    known = [*map(str, here)] if isinstance(here, Mapping) else []
    # The author's own keys first: they are what was meant.
    return sorted({*known, *outputs}, key=lambda key: (key in RUN_STATE, key))


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


def check_templates(flow: FlowGraph, findings: Diagnostics) -> None:
    """Add what is wrong with the templates of *flow* to *findings*."""
    state = StatePaths(flow.graph)
    for node in flow.graph.nodes:
        if not node.works:
            continue
        for text in _texts(flow, node):
            for found in _LIKE_ONE.finditer(text.text):
                if _TEMPLATE.fullmatch(found[0]) is None and not findings.is_silent:
                    detail = f"{found[0]} is not read as a template; it stays as it is"
                    hint = "a template is a path of names and numbers with dots: {{state.a.0}}"
                    at = _place(text, found.start())
                    findings.tell("W-TEMPLATE", node.id, detail, at, hint)
            for found in _TEMPLATE.finditer(text.text):
                path = tuple(found[1].split("."))
                if findings.is_full:
                    return
                if (problem := _problem(flow, node, path, state, findings)) is None:
                    continue
                at = _place(text, found.start())
                findings.tell("E-TEMPLATE", node.id, f"{found[0]}: {problem[0]}", at, problem[1])
            for found in _INPUT.finditer(text.text) if text.is_input else ():
                findings.tell(
                    "E-TEMPLATE", node.id, f"{found[0]}: input can't hold itself", text.at
                )


def _texts(flow: FlowGraph, node: Node) -> Iterator[_Text]:
    source = flow.sources[node.id]
    if source.section is not None and source.prompt:
        yield _Text(source.prompt, (source.section.prompt.line, 1), is_prompt=True)
    elif node.kind is NodeKind.HUMAN:
        yield _Text(node.label, flow.node_positions[node.id])
    yield from _texts_below(flow, node.id, node.input, ("input",))


def _texts_below(
    flow: FlowGraph, name: str, value: Any, path: tuple[str | int, ...]
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
    flow: FlowGraph,
    node: Node,
    path: tuple[str, ...],
    state: StatePaths,
    findings: Diagnostics,
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
        return f"at most {MAX_DEPTH} parts are looked up", None
    return _below_problem(node, root, tuple(rest), state, findings) if rest else None


def _below_problem(
    node: Node, root: str, path: tuple[str, ...], state: StatePaths, findings: Diagnostics
) -> _Problem | None:
    """Return what is wrong with *path* below output, input or state."""
    if root == "output":
        detail = "nothing leads to this node, so the output that reached it is empty"
        return None if node.id in state.reached else (detail, None)
    is_input = root == "input"
    missing = missing_below(node.input, path) if is_input else state.missing(path)
    if missing is None:
        return None
    part, known = path[missing[0].count(".")], missing[1]
    if is_input:
        return f"input has no key {missing[0]!r}", findings.known(part, known)
    # What the run keeps itself is hardly meant by a name that does not begin as they do.
    own = known if part.startswith(RESERVED) else [key for key in known if key not in RUN_STATE]
    hint = "set it under 'state:' in the front matter"
    if own:
        hint += f"; {findings.known(part, own)}"
    return f"nothing sets state.{missing[0]}", hint


def _node_problem(flow: FlowGraph, rest: list[str], findings: Diagnostics) -> _Problem | None:
    # Ids may have dots, so the longest id that fits is meant.
    for length in range(min(len(rest), 10), 0, -1):
        name = ".".join(rest[:length])
        if name in flow.graph.by_id:
            if rest[length : length + 1] != ["output"]:
                return "a node has nothing but its output", f"{{{{nodes.{name}.output}}}}"
            return None
    named = rest[0] if rest else ""
    return f"there is no node {named!r}", findings.known(named, list(flow.graph.by_id))


def at_once(graph: Graph, shared: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, str, str]]:
    """Yield each key of *shared* of whose nodes two may run at once, with the first two.

    Two nodes may if neither leads to the other, and a run divides somewhere (several edges
    of one label, or a beginning of several nodes) into ways that come to the two without
    meeting before. Loops may let more nodes meet than this says.
    """
    pairs = [(key, name) for key, names in shared.items() for name in names][:MAX_COMPARED]
    if not pairs:
        return
    bits = {name: 1 << place for place, (_, name) in enumerate(pairs)}
    before: dict[str, list[str]] = {name: [] for name in graph.by_id}
    for name, targets in graph.forward.items():
        for target in targets:
            before[target].append(name)
    order = tuple(TopologicalSorter(before).static_order())
    below = {name: bits.get(name, 0) for name in order}
    for name in reversed(order):
        below[name] = reduce(or_, map(below.__getitem__, graph.forward[name]), below[name])
    splits = tuple(islice(_splits(graph, below), _MAX_SPLITS))
    branches = cache(lambda place: _branches(order, before, splits[place], bits))
    done: set[str] = set()
    for key, name in pairs:
        others = [other for one, other in pairs if one == key and other != name]
        apart = [o for o in others if not (below[name] & bits[o] or below[o] & bits[name])]
        for branch in map(branches, range(len(splits) if apart and key not in done else 0)):
            met = [other for other in apart if other in branch and name in branch]
            met = [other for other in met if branch[other] != branch[name]]
            if met:
                done.add(key)
                yield key, name, met[0]
                break


def _branches(
    order: Sequence[str],
    before: Mapping[str, Sequence[str]],
    targets: Collection[str],
    compared: Collection[str],
) -> dict[str, str]:
    """Return, for the *compared* nodes behind *targets*, the node that all ways to it pass.

    What can be reached past each other node is such a node itself: tokens merge there.
    """
    found: dict[str, str] = {}
    for name in order:
        passed = {found[source] for source in before[name] if source in found}
        if name in targets or len(passed) > 1:
            found[name] = name
        elif passed:
            found[name] = passed.pop()
    return {name: branch for name, branch in found.items() if name in compared}


def _splits(graph: Graph, below: Mapping[str, int]) -> Iterator[Sequence[str]]:
    """Yield the targets of each division of which two lead to some of the compared nodes."""
    divided = [graph.entries] if len(graph.entries) > 1 else []
    for name in graph.by_id:
        if len(graph.outgoing[name]) > 1:
            for places in groups(graph, name).values():
                ahead = [place for place in places if place not in graph.back_edges]
                divided.append(tuple(graph.edges[place].target for place in ahead))
    yield from (targets for targets in divided if sum(bool(below[one]) for one in targets) > 1)
