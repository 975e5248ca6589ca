"""Which branch of a graph an output selects: labels, and how answers are compared with them.

Pure functions of a graph. They don't import the marking, so that a run without a graph does not
load it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sequencer.model.answers import find_decision
from sequencer.model.graph.graph import Graph, NodeKind

DEFAULT = "default"
TIMEOUT = "timeout"
_QUOTES = "\"'`*"
_BLANK_CHARS = "".join(filter(str.isspace, map(chr, range(0x3001))))
"""The whitespace that ``strip`` removes: one call removes it and quotes in any order."""
_MARKED = re.compile(r"[^\W\d_][^:\n]{0,60}:\s*(?P<label>.+)", re.DOTALL)
_ITEM = re.compile(r"\s*(?:[-*+]|\d{1,9}[.)])\s+")
_BLANKS = re.compile(r"[\s_-]+")
_UNSEEN = re.compile("\x1b\\[[0-?]*[ -/]*[@-~]|[\u200b\u2060\ufeff]")
"""Characters that a terminal doesn't show: colors, and byte-order marks at the start of a file."""


class NoMatchingBranch(Exception):
    """An output matches no label, and there is no default branch."""


def normalize(text: str) -> str:
    r"""Return *text* in the form in which labels are compared.

    >>> normalize(' **"Needs_Info".** '), normalize("needs-info!")
    ('needs info', 'needs info')
    """
    core = text.lstrip(_BLANK_CHARS + _QUOTES).rstrip(_BLANK_CHARS + _QUOTES + ".!")
    return _BLANKS.sub(" ", core).strip().casefold()


def find_candidates(output: str) -> Iterator[str]:
    """Yield the parts of *output* that may be a label, normalized, the best one first.

    These are the decision of the last JSON object, the whole text, its last line that is not
    blank, and the part of both after ``Word:``.
    """
    text = _UNSEEN.sub("", output).strip()
    if (decision := find_decision(text)) is not None:
        yield normalize(decision)
    # Ignore the end of a code block, and the marker of a list item.
    last_line = next((line for line in reversed(text.splitlines()) if line.strip("`~ \t")), "")
    for candidate in dict.fromkeys((text, last_line, _ITEM.sub("", last_line, count=1))):
        yield normalize(candidate)
        core = candidate.strip().strip(_QUOTES).strip()
        if (mark_match := _MARKED.fullmatch(core)) is not None:
            yield normalize(mark_match["label"])


def group_edges(graph: Graph, name: str) -> dict[str, tuple[int, ...]]:
    """Return the indexes of the edges that leave *name* by normalized label, in text order."""
    by_label: dict[str, list[int]] = {}
    for index in graph.outgoing[name]:
        by_label.setdefault(normalize(graph.edges[index].label), []).append(index)
    return {label: tuple(indexes) for label, indexes in by_label.items()}


def is_choice(graph: Graph, name: str) -> bool:
    """Return whether the output of *name* selects one of several branches."""
    if name not in graph.labeled:
        return False
    labels = group_edges(graph, name)
    is_human = graph.by_id[name].kind is NodeKind.HUMAN
    return len(labels) > 1 or (is_human and any(labels))


def has_choice_ahead(graph: Graph, name: str) -> bool:
    """Return whether the output of *name* selects a branch, at *name* or at a later node.

    Nodes that do no work pass the output on. After a node that works, its own output counts.
    """
    if not graph.labeled:
        return False
    seen_names, stack = {name}, [name]
    while stack:
        node_id = stack.pop()
        if is_choice(graph, node_id):
            return True
        new_names = {
            node for node in graph.forward[node_id] if not graph.by_id[node].works
        } - seen_names
        seen_names |= new_names
        stack += new_names
    return False


def find_choice_nodes(graph: Graph, name: str) -> Iterator[str]:
    """Yield the nodes where the output of *name* alone selects a branch.

    That is *name* itself, or a later node that only passes the output on and has no other source.
    """
    stack = [name] if graph.labeled else []
    while stack:
        node_id = stack.pop()
        if is_choice(graph, node_id):
            yield node_id
            continue
        for index in graph.outgoing[node_id]:
            target = graph.edges[index].target
            if not graph.by_id[target].works and graph.incoming[target] == (node_id,):
                stack.append(target)


def find_required_labels(graph: Graph, name: str) -> tuple[str, ...]:
    """Return the labels that the output of *name* has to match; empty if any output is valid.

    >>> from sequencer.model.graph.graph import Edge, Node
    >>> nodes = tuple(Node(id=name, kind=NodeKind.AGENT) for name in "abc")
    >>> edges = tuple(Edge(source="a", target=to, label=f"to {to}") for to in "bc")
    >>> find_required_labels(Graph(nodes=nodes, edges=edges, entries=("a",)), "a")
    ('to b', 'to c')
    """
    labels = (
        graph.edges[indexes[0]].label
        for node_id in find_choice_nodes(graph, name)
        if not has_fallback_branch(graph, node_id)
        for indexes in group_edges(graph, node_id).values()
    )
    return tuple(dict.fromkeys(labels))


def forward_label(graph: Graph, name: str) -> str | None:
    """Return the first label at *name* whose branch does not go back.

    If all branches go back, return None if there is a default branch, else the first label. Also
    return None if the output selects no branch.
    """
    node_id = next(find_choice_nodes(graph, name), None)
    if node_id is None:
        return None
    by_label = {label: indexes for label, indexes in group_edges(graph, node_id).items() if label}
    by_label.pop(TIMEOUT, None)
    forward_indexes = (
        indexes for indexes in by_label.values() if graph.back_edges.isdisjoint(indexes)
    )
    default_indexes = (
        None if has_fallback_branch(graph, node_id) else next(iter(by_label.values()), None)
    )
    indexes = next(forward_indexes, default_indexes)
    return None if indexes is None else graph.edges[indexes[0]].label


def is_unmatched(graph: Graph, name: str, output: str) -> bool:
    """Return whether *output* of *name* matches no label at a node where it has to match one."""
    for node_id in find_choice_nodes(graph, name):
        try:
            choose(graph, node_id, output)
        except NoMatchingBranch:
            return True
    return False


def has_fallback_branch(graph: Graph, name: str) -> bool:
    """Return whether there is a branch for outputs of *name* that match no label."""
    labels = group_edges(graph, name)
    return not is_choice(graph, name) or DEFAULT in labels or "" in labels


def choose(graph: Graph, name: str, output: str) -> tuple[int, ...]:
    """Return the indexes of the edges to follow after *output* of *name*.

    Raises:
        NoMatchingBranch: *output* has to match a label, but matches none.
    """
    if not is_choice(graph, name):
        return graph.outgoing[name]
    labels = group_edges(graph, name)
    for candidate in _find_answer_labels(graph, name, output):
        if candidate and candidate in labels:
            return labels[candidate]
    for fallback in (DEFAULT, ""):
        if fallback in labels:
            return labels[fallback]
    raise NoMatchingBranch(f"no matching branch for {shorten(output)!r}")


def find_edges_to(graph: Graph, name: str, target: str) -> tuple[int, ...]:
    """Return the indexes of the edges from *name* to *target*.

    Raises:
        NoMatchingBranch: there is no such edge.
    """
    if indexes := tuple(
        index for index in graph.outgoing[name] if graph.edges[index].target == target
    ):
        return indexes
    raise NoMatchingBranch(f"a hook sent it to {target!r}, and no edge leads there")


def _find_answer_labels(graph: Graph, name: str, output: str) -> Iterator[str]:
    """Yield the candidates, then the label of the option whose value a person has chosen."""
    yield from find_candidates(output)
    value = normalize(output)
    for option in graph.by_id[name].options:
        if normalize(option.value) == value:
            yield normalize(option.label)


def shorten(text: str, limit: int = 200) -> str:
    """Return *text*, cut to *limit* characters."""
    return text if len(text) <= limit else f"{text[:limit]}…"
