"""What a graph has to be before it may run, and what in it may not be meant.

Labels, options, defaults, reach, and keys of the state; templates are in `template_rules`.
Each rule looks at the whole graph and tells everything that it finds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sequencer.model.branching import (
    DEFAULT,
    TIMEOUT,
    NoMatchingBranch,
    choose,
    groups,
    is_choice,
    normalise,
    takes_other_answers,
)
from sequencer.model.graph import Graph, NodeKind
from sequencer.resolution.flowcharts.chart import Position
from sequencer.resolution.flowcharts.concurrency import at_once
from sequencer.resolution.flowcharts.problems import Findings
from sequencer.resolution.flowcharts.sections import Front, NodeSource

RESERVED = "_"
"""Keys of the state that begin with it are the run's own."""


@dataclass(frozen=True, slots=True)
class Flowgraph:
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


def check(flow: Flowgraph, findings: Findings) -> None:
    """Add everything that is wrong with *flow* to *findings*."""
    for name, node in flow.graph.by_id.items():
        _check_labels(flow, name, findings)
        if node.kind is NodeKind.HUMAN:
            _check_person(flow, name, findings)
    _check_reach(flow, findings)
    _check_state(flow, findings)
    _check_shared_keys(flow, findings)


def _check_labels(flow: Flowgraph, name: str, findings: Findings) -> None:
    graph = flow.graph
    labels = groups(graph, name)
    if DEFAULT in labels and "" in labels:
        second = max(labels[DEFAULT][0], labels[""][0])
        detail = 'both a "default" edge and an unlabelled edge'
        hint = "an edge without a label is the way for all other answers, as default is; keep one"
        findings.error("E-DEFAULT", name, detail, flow.edge_positions[second], hint)
    is_marker = graph.by_id[name].kind is NodeKind.MARKER
    if len(labels) == 1 and "" not in labels and not is_marker and not is_choice(graph, name):
        place = graph.outgoing[name][0]
        shown = graph.edges[place].label
        detail = f"the label {shown!r} is no condition: it is the only one, so it is always taken"
        hint = "draw an edge with another label, or an unlabelled one for all other answers"
        findings.warn("W-LABEL", name, detail, flow.edge_positions[place], hint)
    if is_marker and len(labels) > 1:
        place = graph.outgoing[name][0]
        detail = "a circle gives no answer, so the output that reached it picks the way"
        findings.warn("W-LABEL", name, detail, flow.edge_positions[place], "draw {text} instead")


def _check_person(flow: Flowgraph, name: str, findings: Findings) -> None:
    graph, node, source = flow.graph, flow.graph.by_id[name], flow.sources[name]
    labels = groups(graph, name)
    if TIMEOUT in labels and node.timeout_ms is None and name not in flow.incomplete:
        detail = "there is an edge 'timeout' and no time limit, so it is never taken"
        at = flow.edge_positions[labels[TIMEOUT][0]]
        findings.warn("W-LABEL", name, detail, at, "timeout: MILLISECONDS in its section")
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
                findings.error("E-OPTION", name, detail, source.at("options", place), hint)
    if node.allows_custom_input:
        return
    known = [option.label for option in node.options]
    for label, places in labels.items():
        if label not in taken and label not in ("", DEFAULT, TIMEOUT):
            shown = graph.edges[places[0]].label
            detail = f"the label {shown!r} is none of its options"
            hint = f"{findings.known(shown, known)}; or allowCustomInput: true"
            findings.error("E-OPTION", name, detail, flow.edge_positions[places[0]], hint)


def _check_other_answers(flow: Flowgraph, name: str, findings: Findings) -> None:
    """Tell which answers fit none of the edges of the person *name*, and are accepted."""
    graph, node = flow.graph, flow.graph.by_id[name]
    if name in flow.incomplete:
        return
    then = f"the run goes to {graph.on_error!r}" if graph.on_error else "the run fails"
    hint = "draw an edge 'default', or one without a label"
    if node.allows_custom_input:
        detail = f"any text is an answer, but no edge takes one that is no option: {then}"
        at = flow.at(name, *flow.sources[name].path_of("allowCustomInput"))
        findings.warn("W-ANSWER", name, detail, at, hint)
    has_limit = node.timeout_ms is not None and node.on_timeout is None
    if has_limit and TIMEOUT not in groups(graph, name):
        detail = f"when its timeout is over no edge is taken: {then}"
        hint = f"onTimeout: NODE, an edge 'timeout', or {hint.removeprefix('draw ')}"
        at = flow.at(name, *flow.sources[name].path_of("timeout"))
        findings.warn("W-ANSWER", name, detail, at, hint)


def _check_reach(flow: Flowgraph, findings: Findings) -> None:
    reachable = flow.graph.reachable
    begin = ", ".join(flow.graph.entries[:5])
    for name, node in flow.graph.by_id.items():
        if node.works and name not in reachable and name not in flow.incomplete:
            detail = f"it is never run: nothing leads to it from {begin}"
            findings.warn("W-UNREACHABLE", name, detail, flow.node_positions[name])


def _check_state(flow: Flowgraph, findings: Findings) -> None:
    state = flow.graph.state
    for key in state:
        if key.startswith(RESERVED):
            detail = f"the key {key!r} is the run's own: it begins with {RESERVED!r}"
            name = findings.file.name
            findings.error("E-STATE", name, detail, flow.front.at("state", key))
    for name, node in flow.graph.by_id.items():
        if node.output_key is None:
            continue
        parts = node.output_key.split(".")
        problem: str | None = None
        if not all(parts):
            problem = "a part between its dots is empty"
        elif parts[0].startswith(RESERVED):
            problem = f"keys that begin with {RESERVED!r} are the run's own"
        elif (scalar := _in_the_way(state, parts)) is not None:
            problem = f"state.{scalar} is no mapping, so nothing can be put below it"
        if problem is not None:
            detail = f"output.key {node.output_key!r}: {problem}"
            findings.error("E-STATE", name, detail, _key_position(flow, name))


def _in_the_way(state: Mapping[str, Any], parts: list[str]) -> str | None:
    here: Any = state
    for length, part in enumerate(parts[:-1], start=1):
        if part not in here or here[part] is None:
            return None
        here = here[part]
        if not isinstance(here, Mapping):
            return ".".join(parts[:length])
    return None


def _check_shared_keys(flow: Flowgraph, findings: Findings) -> None:
    by_key: dict[str, list[str]] = {}
    for name, node in flow.graph.by_id.items():
        if node.output_key is not None:
            by_key.setdefault(node.output_key, []).append(name)
    shared = {key: names for key, names in by_key.items() if len(names) > 1}
    for key, one, other in at_once(flow.graph, shared):
        detail = f"both may run at once and write state.{key}; the last one to finish wins"
        findings.warn("W-KEY", f"{one} {other}", detail, _key_position(flow, other))
    for key, names in by_key.items():
        for outer in _outer_keys(key):
            if outer in by_key:
                detail = f"its output.key {key!r} is below {outer!r}, which {by_key[outer][0]} sets"
                hint = "that is a text, and nothing can be put below a text"
                findings.warn("W-KEY", names[0], detail, _key_position(flow, names[0]), hint)


def _outer_keys(key: str) -> Iterator[str]:
    parts = key.split(".")
    yield from (".".join(parts[:length]) for length in range(1, len(parts)))


def _key_position(flow: Flowgraph, name: str) -> Position | None:
    source = flow.sources[name]
    flat = source.written("output.key")
    return flow.at(name, "output.key") if flat else flow.at(name, "output", "key")
