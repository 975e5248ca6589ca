from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sequencer.cli.views.nodes import Frame, Heard, chosen
from sequencer.cli.views.text import width
from sequencer.engine.view import FlowView, NodeState, NodeView
from sequencer.model.net.graph import Graph, Node, NodeKind
from tests.unit.cli.flow.terminals import Terminal, terminal
from tests.unit.cli.flow.views import chain, graph, of, views, with_node

NOW = datetime(2026, 11, 22, 12, 0, 0, tzinfo=UTC)
HALF_A_MINUTE_AGO = "2026-11-22T11:59:30Z"


@pytest.fixture(scope="module")
def screen() -> Iterator[Terminal]:
    with terminal() as made:
        yield made


def lines(screen: Terminal, view: FlowView, size: tuple[int, int], **heard: Heard) -> list[str]:
    screen.resize(*size)
    frame = Frame(screen.stream)
    assert frame.measure() == size
    return frame.drawn(view, heard, NOW).plain.split("\n")


def running(name: str = "a", **facts: Any) -> FlowView:
    view = of(graph(f"{name} --> b"), "running", **{name: "running"})
    return with_node(view, name, attempt=1, since=HALF_A_MINUTE_AGO, **facts)


HEADS = {
    120: "NODE STATE ATTEMPT RUNS TIME COST LAST LINE",
    61: "NODE STATE ATTEMPT RUNS TIME COST LAST LINE",
    60: "NODE STATE ATTEMPT TIME COST LAST LINE",
    54: "NODE STATE ATTEMPT TIME LAST LINE",
    48: "NODE STATE TIME LAST LINE",
    39: "NODE STATE TIME",
    30: "NODE STATE TIME",
}


@pytest.mark.parametrize("columns", list(HEADS))
def test_columns_go_as_the_terminal_gets_narrower(screen: Terminal, columns: int) -> None:
    found = lines(screen, running(last_line="x" * 300), (columns, 20))
    assert " ".join(found[0].split()) == HEADS[columns]
    assert all(width(line) < columns for line in found)
    assert "30.0 s" in found[1]


@given(shown=views(), columns=st.integers(5, 140), rows=st.integers(3, 40))
@settings(max_examples=40)
def test_any_run_fits_any_terminal(
    screen: Terminal, shown: FlowView, columns: int, rows: int
) -> None:
    found = lines(screen, shown, (columns, rows))
    assert all(width(line) < columns for line in found)
    assert len(found) < max(rows, 3)
    assert not any("\x1b" in line for line in found)


def test_what_is_heard_goes_before_what_is_known(screen: Terminal) -> None:
    view = running(last_line="from before", cost_usd=0.5)
    assert "from before" in lines(screen, view, (100, 20))[1]
    heard = lines(screen, view, (100, 20), a=Heard("just now", 0.25))[1]
    assert "just now" in heard
    assert "0.7500" in heard
    # Nothing said yet is no reason to show nothing.
    assert "from before" in lines(screen, view, (100, 20), a=Heard("", 0.0))[1]


def test_marks_of_states(screen: Terminal) -> None:
    nodes = tuple(Node(id=f"n{n}", kind=NodeKind.AGENT) for n in range(len(NodeState)))
    seen = tuple(NodeView(node, state) for node, state in zip(nodes, NodeState, strict=True))
    shown = FlowView("t", Graph(nodes=nodes, entries=("n0",)), seen, "running")
    marks = "".join(line[0] for line in lines(screen, shown, (100, 30))[1:-1])
    assert marks[:3] == "·○○"
    assert marks[3] in "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
    assert marks[4:] == "↻?✓✗–"  # noqa: RUF001 - a dash that is no minus


def test_an_encoding_that_has_no_marks(tmp_path: Path) -> None:
    with (tmp_path / "x").open("w", encoding="ascii") as stream:
        text = Frame(stream).drawn(running(last_line="y" * 200), {}, NOW).plain
    assert text.isascii()
    assert text.split("\n")[1][0] in "|/-\\"


# --- which nodes -------------------------------------------------------------------------


def nodes_in(*states: NodeState) -> list[NodeView]:
    return [
        NodeView(Node(id=f"n{n}", kind=NodeKind.AGENT), state) for n, state in enumerate(states)
    ]


def test_what_a_person_waits_for_comes_first() -> None:
    nodes = nodes_in(
        *(NodeState.PENDING, NodeState.CANCELLED, NodeState.DONE, NodeState.WAITING),
        *(NodeState.READY, NodeState.FAILED, NodeState.RETRYING, NodeState.ASKED),
        *(NodeState.RUNNING,),
    )
    order = []
    for room in range(2, len(nodes)):
        kept, rest = chosen(nodes, room)
        assert len(kept) == room - 1
        assert len(kept) + len(rest) == len(nodes)
        order += [node.state for node in kept if node.state not in order]
        # In the graph's order, whichever they are.
        assert kept == [node for node in nodes if node in kept]
    assert order[3:] == [NodeState.FAILED, NodeState.READY, NodeState.WAITING, NodeState.DONE]
    assert set(order[:3]) == {NodeState.RETRYING, NodeState.ASKED, NodeState.RUNNING}


@pytest.mark.parametrize("crowd", [NodeState.RUNNING, NodeState.FAILED, NodeState.ASKED])
def test_a_crowd_of_one_kind_leaves_room_for_the_others(crowd: NodeState) -> None:
    others = [NodeState.RUNNING, NodeState.FAILED, NodeState.ASKED, NodeState.RETRYING]
    kept, rest = chosen(nodes_in(*[crowd] * 60, NodeState.READY, *others), 12)
    assert {node.state for node in kept} == set(others)
    assert len(kept) == 11
    assert Counter(node.state for node in rest)[crowd] == 61 - 8


def test_the_others_are_those_around_what_runs() -> None:
    states = [NodeState.DONE] * 50 + [NodeState.RUNNING] + [NodeState.PENDING] * 50
    kept, _ = chosen(nodes_in(*states), 8)
    assert [node.node.id for node in kept] == [f"n{n}" for n in range(47, 54)]


def test_the_rest_is_told_in_a_line_of_its_own(screen: Terminal) -> None:
    shown = of(chain(40), "running", n3="running", n39="asked")
    found = lines(screen, replace(shown, title="big"), (80, 10))
    assert len(found) == 8
    # Of the others those that stand nearest to what a person has to see.
    assert [line.split()[1] for line in found[1:6]] == ["n2", "n3", "n4", "n38", "n39"]
    assert found[6] == "and 35 more: 35 pending"
    assert found[7].startswith("big · running · 0 of 40 nodes done · 2 active")


# --- lines above and below ---------------------------------------------------------------


def between(
    screen: Terminal, shown: FlowView | None, size: tuple[int, int], above: int
) -> list[str]:
    screen.resize(*size)
    frame = Frame(screen.stream)
    frame.measure()
    lines = [(f"above {n} " + "x" * 200, "") for n in range(above)]
    text = frame.drawn(shown, {}, NOW, above=lines, below=[("the end", "dim")])
    return text.plain.split("\n")


def test_what_stands_above_takes_rows_from_the_table(screen: Terminal) -> None:
    shown = of(chain(60), "running", n30="running", n31="failed", n58="asked")
    found = between(screen, shown, (80, 24), 6)
    assert len(found) == 22
    assert [line.split()[0] for line in found[:6]] == ["above"] * 6
    assert found[6] == ""
    assert found[7].split()[0] == "NODE"
    names = [line.split()[1] for line in found[8:19]]
    assert {"n30", "n31", "n58"} <= set(names)
    assert found[19] == "and 49 more: 49 pending"
    assert found[20].startswith("demo · running · 0 of 60 nodes done")
    assert found[21] == "the end"
    assert all(width(line) < 80 for line in found)


@pytest.mark.parametrize("size", [(80, 10), (40, 12), (20, 6), (5, 3), (1, 1)])
def test_on_a_low_terminal_the_table_keeps_half_of_it(
    screen: Terminal, size: tuple[int, int]
) -> None:
    shown = of(chain(60), "running", n30="running")
    found = between(screen, shown, size, 9)
    assert len(found) <= max(size[1] - 1, 3)
    if size[1] >= 10:
        assert any(" n30 " in line for line in found)
    if size[0] >= 20:
        assert found[-1] == "the end"


def test_without_a_graph_there_is_only_what_stands_around(screen: Terminal) -> None:
    found = between(screen, None, (80, 24), 3)
    assert [line.split()[0] for line in found] == ["above"] * 3 + ["the"]
