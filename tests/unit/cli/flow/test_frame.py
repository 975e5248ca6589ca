from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sequencer.cli.views.nodes import Frame, NodeProgress, select_nodes
from sequencer.cli.views.text import width
from sequencer.history.view import FlowView, NodeState, NodeView
from sequencer.model.graph.graph import Node, NodeKind
from tests.unit.cli.flow.terminals import Terminal, terminal
from tests.unit.cli.flow.views import chain, graph, of, views, with_node

NOW = datetime(2026, 11, 22, 12, 0, 0, tzinfo=UTC)
HALF_A_MINUTE_AGO = "2026-11-22T11:59:30Z"


@pytest.fixture(scope="module")
def screen() -> Iterator[Terminal]:
    with terminal() as made:
        yield made


def lines(
    screen: Terminal, view: FlowView, size: tuple[int, int], **heard: NodeProgress
) -> list[str]:
    screen.resize(*size)
    frame = Frame(screen.stream)
    assert frame.measure() == size
    return frame.render(view, heard, NOW).plain.split("\n")


def running(name: str = "a", **facts: Any) -> FlowView:
    view = of(graph(f"{name} --> b"), "running", **{name: "running"})
    return with_node(view, name, attempt=1, since=HALF_A_MINUTE_AGO, **facts)


HEADS = {
    120: "NODE STATE ATTEMPT RUNS TIME COST LAST LINE",
    65: "NODE STATE ATTEMPT RUNS TIME COST LAST LINE",
    64: "NODE STATE ATTEMPT TIME COST LAST LINE",
    58: "NODE STATE ATTEMPT TIME LAST LINE",
    52: "NODE STATE TIME LAST LINE",
    43: "NODE STATE TIME",
    30: "NODE STATE TIME",
}


@pytest.mark.parametrize("columns", list(HEADS))
def test_columns_disappear_as_the_terminal_gets_narrower(screen: Terminal, columns: int) -> None:
    found = lines(screen, running(last_line="x" * 300), (columns, 20))
    assert " ".join(found[0].split()) == HEADS[columns]
    assert all(width(line) < columns for line in found)
    assert "30.0 s" in found[1]


@pytest.mark.slow
@given(shown=views(), columns=st.integers(5, 140), rows=st.integers(3, 40))
@settings(max_examples=40)
def test_any_run_fits_any_terminal(
    screen: Terminal, shown: FlowView, columns: int, rows: int
) -> None:
    found = lines(screen, shown, (columns, rows))
    assert all(width(line) < columns for line in found)
    assert len(found) < max(rows, 3)
    assert not any("\x1b" in line for line in found)


def test_an_encoding_that_has_no_marks(tmp_path: Path) -> None:
    with (tmp_path / "x").open("w", encoding="ascii") as stream:
        text = Frame(stream).render(running(last_line="y" * 200), {}, NOW).plain
    assert text.isascii()
    assert text.split("\n")[1][0] in "|/-\\"


# --- which nodes -------------------------------------------------------------------------


def nodes_in(*states: NodeState) -> list[NodeView]:
    return [
        NodeView(Node(id=f"n{n}", kind=NodeKind.AGENT), state) for n, state in enumerate(states)
    ]


@pytest.mark.parametrize("crowd", [NodeState.RUNNING, NodeState.FAILED, NodeState.ASKED])
def test_a_crowd_of_one_kind_leaves_room_for_the_others(crowd: NodeState) -> None:
    others = [NodeState.RUNNING, NodeState.FAILED, NodeState.ASKED, NodeState.RETRYING]
    kept, rest = select_nodes(nodes_in(*[crowd] * 60, NodeState.READY, *others), 12)
    assert {node.state for node in kept} == set(others)
    assert len(kept) == 11
    assert Counter(node.state for node in rest)[crowd] == 61 - 8


# --- lines above and below ---------------------------------------------------------------


def between(
    screen: Terminal, shown: FlowView | None, size: tuple[int, int], above: int
) -> list[str]:
    screen.resize(*size)
    frame = Frame(screen.stream)
    frame.measure()
    lines = [(f"above {n} " + "x" * 200, "") for n in range(above)]
    text = frame.render(shown, {}, NOW, above=lines, below=[("the end", "dim")])
    return text.plain.split("\n")


@pytest.mark.parametrize("size", [(80, 10), (40, 12), (20, 6), (5, 3), (1, 1)])
def test_a_short_terminal_still_shows_the_running_node(
    screen: Terminal, size: tuple[int, int]
) -> None:
    shown = of(chain(60), "running", n30="running")
    found = between(screen, shown, size, 9)
    assert len(found) <= max(size[1] - 1, 3)
    if size[1] >= 10:
        assert any(" n30 " in line for line in found)
    if size[0] >= 20:
        assert found[-1] == "the end"


def test_without_a_graph_only_the_surrounding_lines_are_shown(screen: Terminal) -> None:
    found = between(screen, None, (80, 24), 3)
    assert [line.split()[0] for line in found] == ["above"] * 3 + ["the"]
