"""A workflow as a Mermaid flowchart.

Node ids are our own numbers. A name appears only inside quotes, with an entity for every
character that Mermaid could read as syntax, so that a name can't change the chart.
"""

from __future__ import annotations

from itertools import pairwise

from sequencer.cli.views.states import PICTURES, sanitize_text
from sequencer.history.view import FlowView, NodeState
from sequencer.model.graph.graph import Graph, NodeKind
from sequencer.model.workflow import Workflow

_PLAIN = frozenset(" _-.,:/'+?")


def quote_text(text: str) -> str:
    """Return *text* as a Mermaid string.

    >>> quote_text('say "hi" <b>')
    '"say #34;hi#34; #60;b#62;"'
    """
    return (
        '"'
        + "".join(
            character if character.isalnum() or character in _PLAIN else f"#{ord(character)};"
            for character in text
        )
        + '"'
    )


def format_workflow_chart(workflow: Workflow) -> str:
    """Return the chart: the steps in order, and next to them the review cycle.

    >>> from sequencer.model.step import Step
    >>> print(format_workflow_chart(Workflow("demo", (Step(name="plan"), Step(name="build")))))
    flowchart TD
        s0["plan"]
        s1["build"]
        s0 --> s1
        s1 --> s0
    """
    steps = [(f"s{place}", step.name) for place, step in enumerate(workflow.steps)]
    lines = [f"{node}[{quote_text(name)}]" for node, name in steps]
    first_step, last_step = steps[0][0], steps[-1][0]
    edges = [f"{a} --> {b}" for (a, _), (b, _) in pairwise(steps)]
    every, review = workflow.review_every, workflow.review
    if workflow.has_end:
        lines.append('done(["complete"])')
        edges.append(f"{last_step} --> done")
    elif review is None or not every:
        edges.append(f"{last_step} --> {first_step}")
    else:
        kinds = [(f"r{place}", review.step.name, name) for place, (_, name) in enumerate(steps)]
        lines += [
            f"{node}[[{quote_text(f'{name} at {position}')}]]" for node, name, position in kinds
        ]
        question = "next cycle: a review?" if every > 1 else "always a review"
        lines.append(f"cadence{{{quote_text(question)}}}")
        edges += [f"{a} --> {b}" for (a, _, _), (b, _, _) in pairwise(kinds)]
        if every > 1:
            edges.append(
                f"cadence -->|{quote_text(f'{every - 1} of {every} cycles')}| {first_step}"
            )
            edges.append(f"{last_step} --> cadence")
        frequency = f"1 of {every} cycles" if every > 1 else "every cycle"
        edges.append(f"cadence -->|{quote_text(frequency)}| {kinds[0][0]}")
        edges.append(f"{kinds[-1][0]} --> cadence")
        if every == 1:
            # Then the steps themselves never run.
            lines = [line for line in lines if not line.startswith("s")]
            edges = [edge for edge in edges if not edge.startswith("s")]
    return "\n".join(["flowchart TD", *(f"    {line}" for line in (*lines, *edges))])


PREFIX = "seq"

_SAME = {NodeState.READY: NodeState.WAITING}
_SHAPES = {
    NodeKind.AGENT: ("[", "]"),
    NodeKind.HUMAN: ("{{", "}}"),
    NodeKind.MARKER: ("((", "))"),
    NodeKind.DECISION: ("{", "}"),
}


def add_state_classes(text: str, view: FlowView) -> str:
    """Return the chart *text* with the nodes of *view* colored by their states."""
    ids = {node.id: node.id for node in view.graph.nodes}
    return _with_classes(text, view, ids)


def format_view_chart(view: FlowView) -> str:
    """Return a chart of *view*, for a graph without a chart; its states color the nodes.

    The ids in the chart are n0, n1, …, because not every node's name is a valid id in Mermaid.
    """
    ids = {node.id: f"n{number}" for number, node in enumerate(view.graph.nodes)}
    return _with_classes(_format_graph_chart(view.graph, ids), view, ids)


def _format_graph_chart(graph: Graph, ids: dict[str, str]) -> str:
    lines = ["flowchart TD"]
    for node in graph.nodes:
        start_mark, end_mark = _SHAPES[node.kind]
        # Mermaid does not allow an empty label.
        label = sanitize_text(node.label) or sanitize_text(node.id) or "?"
        lines.append(f"    {ids[node.id]}{start_mark}{quote_text(label)}{end_mark}")
    for edge in graph.edges:
        label = f"|{quote_text(sanitize_text(edge.label))}|" if sanitize_text(edge.label) else ""
        lines.append(f"    {ids[edge.source]} -->{label} {ids[edge.target]}")
    return "\n".join(lines) + "\n"


def _with_classes(text: str, view: FlowView, ids: dict[str, str]) -> str:
    """Return the chart *text* with the colors of states; *ids* maps node names to chart ids."""
    end = "\r\n" if "\r\n" in text else "\n"
    prefix = _find_unused_prefix(text)
    names_by_state: dict[NodeState, list[str]] = {}
    style_lines: list[str] = []
    for node in view.nodes:
        state, name = _SAME.get(node.state, node.state), ids[node.node.id]
        if state not in PICTURES:
            continue
        if "," in name:
            # A class statement would take it for several names.
            style_lines.append(f"    style {name} {PICTURES[state]}")
        else:
            names_by_state.setdefault(state, []).append(name)
    states = [state for state in PICTURES if state in names_by_state]
    class_lines = [f"    classDef {prefix}{state.title()} {PICTURES[state]}" for state in states]
    class_lines += [
        f"    class {','.join(names_by_state[state])} {prefix}{state.title()}" for state in states
    ]
    class_lines += style_lines
    if not class_lines:
        return text
    gap = "" if text.endswith("\n") else end
    return text + gap + "".join(f"{line}{end}" for line in class_lines)


def _find_unused_prefix(text: str) -> str:
    """Return a prefix for class names that does not occur in *text*."""
    number, prefix = 1, PREFIX
    while any(f"{prefix}{state.title()}" in text for state in PICTURES):
        number += 1
        prefix = f"{PREFIX}{number}"
    return prefix
