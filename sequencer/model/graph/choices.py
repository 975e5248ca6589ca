"""Which way an output picks where a graph branches: labels, and how answers are compared.

Pure functions of a graph. They know no marking, so that a run without a graph loads none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sequencer.model.answers import decision_in
from sequencer.model.graph.graph import Graph, NodeKind

DEFAULT = "default"
TIMEOUT = "timeout"
_QUOTES = "\"'`*"
_BLANK_CHARS = "".join(filter(str.isspace, map(chr, range(0x3001))))
"""What ``strip`` takes away; taking turns with it would be slow for a long run of marks."""
_MARKED = re.compile(r"[^\W\d_][^:\n]{0,60}:\s*(?P<label>.+)", re.DOTALL)
_ITEM = re.compile(r"\s*(?:[-*+]|\d{1,9}[.)])\s+")
_BLANKS = re.compile(r"[\s_-]+")
_UNSEEN = re.compile("\x1b\\[[0-?]*[ -/]*[@-~]|[\u200b\u2060\ufeff]")
"""What a terminal doesn't show: colors of a command's output, marks at a file's beginning."""


class NoMatchingBranch(Exception):
    """An output fits no label, and there is no way for all others."""


def normalise(text: str) -> str:
    r"""Return *text* as labels are compared.

    >>> normalise(' **"Needs_Info".** '), normalise("needs-info!")
    ('needs info', 'needs info')
    """
    stripped = text.lstrip(_BLANK_CHARS + _QUOTES).rstrip(_BLANK_CHARS + _QUOTES + ".!")
    return _BLANKS.sub(" ", stripped).strip().casefold()


def candidates(output: str) -> Iterator[str]:
    """Yield what in *output* may be a label, normalised, the best first.

    What the last JSON object decides, the whole text, its last line that is not blank; of the
    text and the line also what stands behind ``Word:``.
    """
    text = _UNSEEN.sub("", output).strip()
    if (decided := decision_in(text)) is not None:
        yield normalise(decided)
    # What ends a code block is no line, and a label may be an item of a list.
    last_line = next((line for line in reversed(text.splitlines()) if line.strip("`~ \t")), "")
    for candidate in dict.fromkeys((text, last_line, _ITEM.sub("", last_line, count=1))):
        yield normalise(candidate)
        bare = candidate.strip().strip(_QUOTES).strip()
        if (marked := _MARKED.fullmatch(bare)) is not None:
            yield normalise(marked["label"])


def groups(graph: Graph, name: str) -> dict[str, tuple[int, ...]]:
    """Return the edges that leave *name* by their normalised label, in text order."""
    found: dict[str, list[int]] = {}
    for place in graph.outgoing[name]:
        found.setdefault(normalise(graph.edges[place].label), []).append(place)
    return {label: tuple(places) for label, places in found.items()}


def is_choice(graph: Graph, name: str) -> bool:
    """Return whether the output of *name* picks one of several ways."""
    if name in graph.without_labels:
        return False
    labels = groups(graph, name)
    is_human = graph.by_id[name].kind is NodeKind.HUMAN
    return len(labels) > 1 or (is_human and any(labels))


def picks_a_way(graph: Graph, name: str) -> bool:
    """Return whether the output of *name* picks a way, there or where it is handed on to.

    Nodes that do no work hand it on; what a person answers behind it is the person's.
    """
    seen, pending = {name}, [name]
    while pending:
        here = pending.pop()
        if is_choice(graph, here):
            return True
        fresh = {node for node in graph.forward[here] if not graph.by_id[node].works} - seen
        seen |= fresh
        pending += fresh
    return False


def own_choices(graph: Graph, name: str) -> Iterator[str]:
    """Yield the nodes where the output of *name* picks a way alone, or could.

    That is *name* itself, or what no other node leads to and only hands the output on.
    """
    pending = [name]
    while pending:
        here = pending.pop()
        if is_choice(graph, here):
            yield here
            continue
        for place in graph.outgoing[here]:
            target = graph.edges[place].target
            if not graph.by_id[target].works and graph.incoming[target] == (here,):
                pending.append(target)


def labels_of(graph: Graph, name: str) -> tuple[str, ...]:
    """Return the labels of which the output of *name* has to be one; none where all will do.

    >>> from sequencer.model.graph.graph import Edge, Node
    >>> nodes = tuple(Node(id=name, kind=NodeKind.AGENT) for name in "abc")
    >>> edges = tuple(Edge(source="a", target=to, label=f"to {to}") for to in "bc")
    >>> labels_of(Graph(nodes=nodes, edges=edges, entries=("a",)), "a")
    ('to b', 'to c')
    """
    places = (
        places
        for here in own_choices(graph, name)
        if not takes_other_answers(graph, here)
        for places in groups(graph, here).values()
    )
    return tuple(dict.fromkeys(graph.edges[of[0]].label for of in places))


def forward_label(graph: Graph, name: str) -> str | None:
    """Return the first label that takes the output of *name* no way back.

    Where all lead back: None if any other answer has a way, else the first of them. None as
    well where the output picks no way.
    """
    here = next(own_choices(graph, name), None)
    if here is None:
        return None
    ways = {label: places for label, places in groups(graph, here).items() if label}
    ways.pop(TIMEOUT, None)
    ahead = (one for one in ways.values() if graph.back_edges.isdisjoint(one))
    back = None if takes_other_answers(graph, here) else next(iter(ways.values()), None)
    places = next(ahead, back)
    return None if places is None else graph.edges[places[0]].label


def picks_none(graph: Graph, name: str, output: str) -> bool:
    """Return whether *output* of *name* fits no label where it alone has to pick a way."""
    for here in own_choices(graph, name):
        try:
            choose(graph, here, output)
        except NoMatchingBranch:
            return True
    return False


def takes_other_answers(graph: Graph, name: str) -> bool:
    """Return whether an output of *name* that fits no label has a way to go."""
    labels = groups(graph, name)
    return not is_choice(graph, name) or DEFAULT in labels or "" in labels


def choose(graph: Graph, name: str, output: str) -> tuple[int, ...]:
    """Return the places of the edges that are followed after *name* said *output*.

    Raises:
        NoMatchingBranch: it is a choice, nothing fits, and there is no default.
    """
    if not is_choice(graph, name):
        return graph.outgoing[name]
    labels = groups(graph, name)
    for candidate in _answers(graph, name, output):
        if candidate and candidate in labels:
            return labels[candidate]
    for fallback in (DEFAULT, ""):
        if fallback in labels:
            return labels[fallback]
    raise NoMatchingBranch(f"no matching branch for {shortened(output)!r}")


def ways_to(graph: Graph, name: str, to: str) -> tuple[int, ...]:
    """Return the places of the edges that lead from *name* to *to*.

    Raises:
        NoMatchingBranch: there is none.
    """
    if found := tuple(place for place in graph.outgoing[name] if graph.edges[place].target == to):
        return found
    raise NoMatchingBranch(f"a hook sent it to {to!r}, and no edge leads there")


def _answers(graph: Graph, name: str, output: str) -> Iterator[str]:
    """Yield the candidates; after a person's value, the label of the option that has it."""
    yield from candidates(output)
    value = normalise(output)
    for option in graph.by_id[name].options:
        if normalise(option.value) == value:
            yield normalise(option.label)


def shortened(text: str, limit: int = 200) -> str:
    """Return *text*, cut to what a message can hold."""
    return text if len(text) <= limit else f"{text[:limit]}…"
