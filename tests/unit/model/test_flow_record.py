from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from sequencer.history.trace import trace_line
from sequencer.model.graph.graph import Edge, Graph, Node, NodeKind
from sequencer.model.graph.marking import Marking
from sequencer.model.graph.record import Chain, StoredMarking, read, write
from sequencer.model.graph.rules import MarkingEditor
from sequencer.model.head import Flow, Status
from sequencer.model.transitions import Event
from tests.contract.store_cases import new_head
from tests.flows import graph
from tests.unit.model.graph.flow_rehearsal import ensure_same

REST = Status.WAITING_NEXT


class Records:
    """What a run's files would be, after each change of one course."""

    def __init__(self, made: Graph) -> None:
        self.editor = MarkingEditor(Marking(made))
        self.documents: dict[str, bytes] = {}
        self.last: StoredMarking | None = None
        self.sizes: list[int] = []
        """Of the head, in bytes."""
        self.total = 0

    def keep(self, *, is_read: bool = True) -> StoredMarking:
        """Write down what has happened since the last time."""
        before = self.last
        written = write(
            self.editor.marking,
            REST,
            before.flow if before else None,
            before.chain if before else Chain(),
            self.editor.operations,
        )
        self.editor.operations.clear()
        self.last = written
        if written.document is not None:
            name, data = written.document
            self.documents[name] = data
            self.total += len(data)
        # As the store writes it; the claims of a run come on top.
        head = new_head(flow=written.flow)
        self.sizes.append(len(head.model_dump_json(indent=2).encode()))
        if is_read:
            found, chain = self.read()
            ensure_same(found, self.editor.marking)
            assert (chain.names, chain.operations) == (
                written.chain.names,
                written.chain.operations,
            )
        return written

    def read(self) -> tuple[Marking, Chain]:
        assert self.last is not None
        return read(self.editor.graph, self.last.flow, self.documents.__getitem__)

    def go(self, name: str, reference: str | None = None) -> None:
        self.editor.start(name)
        self.editor.do("claim", name, 1)
        self.editor.succeed(name, "", reference)
        self.editor.facts.clear()


# --- damage --------------------------------------------------------------------------------


def chained() -> tuple[Graph, Flow, dict[str, bytes]]:
    """Return a flow of a base, a document on it and operations since."""
    made = graph("a --> b --> c")
    base = json.dumps({"marking": {"waiting": {"a": []}}}).encode()
    next_one = json.dumps({"base": "marking-1", "since": [["start", "a"]]}).encode()
    flow = Flow(base="marking-2", since=(["token", "b", "a"], ["leave", "a"]))
    return made, flow, {"marking-1": base, "marking-2": next_one}


DAMAGED: list[Any] = [
    None,
    5,
    "text",
    [],
    {},
    {"marking": None},
    {"marking": 5},
    {"marking": []},
    {"marking": {"waiting": 5}},
    {"marking": {"waiting": {"x": []}}},
    {"marking": {"waiting": {"a": 5}}},
    {"marking": {"active": {"x": {"from": []}}}},
    {"marking": {"active": {"a": {}}}},
    {"marking": {"active": {"a": {"from": [], "more": 1}}}},
    {"marking": {"active": {"a": 5}}},
    {"marking": {"active": ["a"]}},
    {"marking": {"done": 5}},
    {"marking": {"repeated": 5}},
    {"marking": {"outputs": 5}},
    {"marking": {"keys": [1]}},
    {"marking": {"ended_at": 5}},
    {"base": "marking-1"},
    {"since": []},
    {"base": "marking-1", "since": 5},
    {"base": "marking-2", "since": []},
    {"base": "marking-0", "since": []},
    {"base": ["marking-1"], "since": []},
    {"base": "marking-1", "since": [[]]},
    {"base": "marking-1", "since": [5]},
    {"base": "marking-1", "since": [["fly", "a"]]},
    {"base": "marking-1", "since": [["start"]]},
    {"base": "marking-1", "since": [["start", "x"]]},
    {"base": "marking-1", "since": [["start", ["a"]]]},
    {"base": "marking-1", "since": [["start", "b"]]},
    {"base": "marking-1", "since": [["start", "a", 1, 2]]},
    {"base": "marking-1", "since": [["token", "x", None]]},
    {"base": "marking-1", "since": [["end", "gone"]]},
    {"base": "marking-1", "since": [["leave", "c"]]},
    {"base": "marking-1", "since": [["__class__"]]},
]


@pytest.mark.parametrize("content", DAMAGED, ids=json.dumps)
def test_a_damaged_document_raises_one_of_three_errors(content: Any) -> None:
    made, flow, documents = chained()
    documents["marking-2"] = json.dumps(content).encode()
    with pytest.raises((KeyError, TypeError, ValueError)):
        read(made, flow, documents.__getitem__)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[" * 200_000, b'{"marking": NaN}'])
def test_invalid_json_raises_one_of_three_errors(data: bytes) -> None:
    made, flow, documents = chained()
    documents["marking-1"] = data
    with pytest.raises((KeyError, TypeError, ValueError)):
        read(made, flow, documents.__getitem__)


MAPPINGS = [one["marking"] for one in DAMAGED if isinstance(one, dict) and one.get("marking")]
IN_THE_HEAD = [content for content in MAPPINGS if isinstance(content, dict)]
"""Anything else than a mapping is refused with the head itself."""


@pytest.mark.parametrize("content", IN_THE_HEAD, ids=json.dumps)
def test_damage_in_the_head_raises_one_of_three_errors(content: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        read(graph("a --> b"), Flow(marking=content), dict[str, bytes]().__getitem__)


def test_an_unknown_status_is_an_error() -> None:
    made, flow, documents = chained()
    for damaged in (flow.replace(status="gone"), Flow(status="gone", marking={})):
        with pytest.raises(ValueError, match="gone"):
            read(made, damaged, documents.__getitem__)


def test_any_single_damage_to_the_bytes_raises_nothing_else() -> None:
    made, flow, documents = chained()
    changes: list[Callable[[bytes, int], bytes]] = [
        lambda data, at: data[:at],
        lambda data, at: data[:at] + data[at + 1 :],
        lambda data, at: data[:at] + b"7" + data[at + 1 :],
        lambda data, at: data[:at] + b'"' + data[at + 1 :],
    ]
    for name, data in tuple(documents.items()):
        for at in range(len(data)):
            for change in changes:
                damaged = {**documents, name: change(data, at)}
                try:
                    read(made, flow, damaged.__getitem__)
                except (KeyError, TypeError, ValueError):
                    continue


# --- size ----------------------------------------------------------------------------------


def test_names_of_other_scripts_do_not_make_the_head_larger() -> None:
    names = [f"{'進行状況の報告' * 12}{number}" for number in range(40)]
    made = graph("; ".join(f"s --> {name}{{{{Q}}}}" for name in names))
    records = Records(made)
    records.editor.begin()
    records.go("s")
    for number, name in enumerate(names, 1):
        records.editor.start(name)
        records.editor.do("ask", name, number, "2026-01-01T00:00:00Z", None)
        records.keep()
    assert max(records.sizes) < 4096


@pytest.mark.parametrize(
    ("event", "node", "details", "expected"),
    [
        ("claimed", "a", {"from": []}, "start a"),
        ("claimed", "a", {"from": ["b"]}, "start a"),
        ("claimed", "a", {"from": ["c", "b"]}, "start a <- c+b"),
        ("claimed", "a", {}, "start a"),
        ("started", "m", {"from": ["x", "y", "z"]}, "start m <- x+y+z"),
        ("asked", "h", {"from": ["x"]}, "start h"),
        ("asked", "h", {"again": True}, "again h"),
        ("claimed", "a", {"retry": 3}, "retry a attempt 3"),
        ("claimed", "a", {"again": True}, "again a"),
        ("succeeded", "a", {}, "done a"),
        ("answered", "h", {"choice": "yes"}, "done h = yes"),
        ("passed", "m", {"choice": ""}, "done m = "),
        ("failed", "a", {"try": 2, "error": "boom"}, "fail a attempt 2: boom"),
        ("failed", "a", {"error": "no branch", "type": "X"}, "fail a: no branch"),
        ("failed", "a", {}, "fail a: "),
        ("looped", "a", {"to": "b", "number": 4}, "loop a -> b #4"),
        ("expired", "h", {}, "timeout h"),
        ("expired", "h", {"to": "x"}, "timeout h -> x"),
        ("diverted", "a", {"to": "h", "cancelled": []}, "onError -> h"),
        ("diverted", "a", {"to": "h", "cancelled": ["b", "c"]}, "onError -> h; cancelled b, c"),
        (
            "exhausted",
            "a",
            {"to": "b", "limit": 2, "cancelled": []},
            "maxIterations 2 exceeded at a -> b",
        ),
        (
            "exhausted",
            "a",
            {"to": "b", "limit": 0, "cancelled": ["c"]},
            "maxIterations 0 exceeded at a -> b; cancelled c",
        ),
        ("timed-out", "", {"cancelled": ["a"]}, "workflow timeout; cancelled a"),
        ("cancelled", "", {"cancelled": []}, "stopped by hand"),
    ],
)
def test_an_event_has_its_line(
    event: str, node: str, details: dict[str, Any], expected: str
) -> None:
    assert trace_line(Event(event), node, details) == expected
    assert trace_line(event, node, details) == expected


# --- how large the operations in the head are: told without encoding them all at each transition

OPERATIONS = some.lists(
    some.lists(some.text(max_size=5) | some.integers(0, 99) | some.none(), min_size=1, max_size=4),
    max_size=5,
)


def encoded(value: Any) -> int:
    return len(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode())


@settings(max_examples=30)
@given(OPERATIONS, OPERATIONS)
def test_the_size_covers_all_operations(before: list[list[Any]], more: list[list[Any]]) -> None:
    since, chain = tuple(before), Chain()
    whole = encoded([*before, *more])
    assert chain.size_with(since, more) == whole
    chain.remember_size(since, encoded(before))
    assert chain.size_with(since, more) == whole


def fan(width: int) -> Graph:
    names = ["first", *(f"näme-{i}" for i in range(width)), "last"]
    edges = [Edge(source="first", target=name) for name in names[1:-1]]
    edges += [Edge(source=name, target="last") for name in names[1:-1]]
    nodes = tuple(Node(id=name, kind=NodeKind.AGENT) for name in names)
    return Graph(nodes=nodes, edges=tuple(edges), entries=("first",))
