from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from sequencer.cli.views.diagram import drawing, listing, print_diagram
from sequencer.engine.view import FlowView
from sequencer.errors import StorageFailed
from sequencer.model.net.graph import Graph
from sequencer.workflows.mermaid.parser import read_chart
from tests.unit.cli.flow.terminals import Terminal, terminal
from tests.unit.cli.flow.views import RELEASE, chain, drawn_by_hand, flows, graph, of, view, views


def text(picture: str) -> str:
    return dedent(picture).strip("\n")


def drawn(shape: Graph, **states: str) -> str:
    status = "running" if states else "not-started"
    return dedent(drawing(of(shape, status, **states)).text())


def test_a_fork_and_a_join() -> None:
    assert drawn(flows()["03-fork-join"]) == text("""
               ┌─────┐
               │  a  │
               └┬─┬─┬┘
          ┌─────┘ │ └─────┐
          ▼       ▼       ▼
        ┌───┐   ┌───┐   ┌───┐
        │ b │   │ c │   │ d │
        └─┬─┘   └─┬─┘   └─┬─┘
          └─────┐ │ ┌─────┘
                ▼ ▼ ▼
               ┌─────┐
               │  j  │
               └─────┘
    """)


def test_a_person_decides_and_a_loop_goes_back() -> None:
    assert drawn(flows()["12-human-approve"]) == text("""
               ╭╌╌╌╮
               ▼   ╎
         ┌───────┐ ╎
         │ Draft │ ╎
         │  (d)  │ ╎
         └───┬───┘ ╎
             ▼     ╎
          ╔═════╗  ╎
          ║ OK? ║  ╎
          ║ (h) ║  ╎ ↺ reject
          ╚══╤═╤╝  ╎
             │ ╰╌╌╌╯
          approve
             ▼
        ┌─────────┐
        │ Publish │
        │   (p)   │
        └────┬────┘
             ▼
          ╭─────╮
          │ End │
          │ (e) │
          ╰─────╯
    """)


def test_a_loop_crosses_the_branch_beside_it() -> None:
    assert drawn(flows()["16-parallel-with-loop"]) == text("""
             ┌───┐
             │ s │
             └┬─┬┘
           ┌──┘ └───┐
           │ ╭╌╌╌╌╌╌┼╌╌╌╮
           ▼ ▼      ▼   ╎
        ┌─────┐   ┌───┐ ╎
        │  a  │   │ b │ ╎
        └──┬──┘   └─┬─┘ ╎
           ▼        │   ╎
        ┌─────┐     │   ╎
        │  k  │     │   ╎ ↺ retry
        └──┬─┬┘     │   ╎
           │ ╰╌╌╌╌╌╌┼╌╌╌╯
          ok        │
           └──┐ ┌───┘
              ▼ ▼
             ┌───┐
             │ j │
             └───┘
    """)


def test_directions_shapes_and_strokes_are_the_authors() -> None:
    shown, chart = drawn_by_hand("LR")
    whole = drawing(shown, chart=chart)
    assert dedent(whole.text()) == text("""
                    ╭───────╮
                    │ Build │
                  ╭▶│  (b)  ├┐
                  ╎ │       ││ ┌──────────┐
          ┌──────┐╎ ╰───────╯└▶│          │       ╭─────╮
          │ Plan ├╯            │ ◇ Which? │       │ End │
          │ (a)  │             │   (d)    ├─small▶│ (e) │
        ╭▶│      ├┓            │          │       │     │
        ╎ └──────┘┃ ╭───────╮┌▶│          ├╮      ╰─────╯
        ╎         ┃ │ Check ││ └──────────┘╎
        ╎         ┗▶│  (c)  ├┘             ╎
        ╎           │       │              ╎
        ╎           ╰───────╯              ╎
        ╎                                  ╎
        ╰╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╯

                                  ↺ again
    """)
    assert "▶" not in drawing(shown, chart=chart, columns=40).text()
    for direction, head in (("RL", "◀"), ("BT", "▲"), ("TD", "▼")):
        turned, chart = drawn_by_hand(direction)
        assert drawing(turned, chart=chart).text().count(head) == len(turned.graph.edges)


@given(views())
@settings(max_examples=40)
def test_any_graph_can_be_drawn_in_both_alphabets(found: FlowView) -> None:
    for is_ascii in (False, True):
        for picture in (drawing(found, is_ascii=is_ascii), listing(found, is_ascii=is_ascii)):
            plain = picture.text()
            assert plain.isascii() or not is_ascii
            assert "\x1b" not in plain
            assert "\u202e" not in plain
            # Nothing but the drawing's own colours.
            colours = re.sub(r"\x1b\[[0-9;]+m", "", picture.text(has_colours=True))
            assert "\x1b" not in colours
            assert [line.rstrip() for line in colours.splitlines()] == plain.splitlines()


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_it_gets_narrower_where_it_can(columns: int) -> None:
    found = drawing(view(RELEASE), columns=columns)
    assert found.width <= max(columns, drawing(view(RELEASE), columns=1).width)
    if columns >= 80:
        assert found.width <= columns


def test_a_graph_that_nobody_could_follow_is_told_in_words() -> None:
    many = chain(3001)
    rows = drawing(of(many)).text().splitlines()
    assert len(rows) == 3001
    assert rows[0] == " · n0 → n1"


def test_lines_that_were_followed_stand_out() -> None:
    run = of(graph("a --> b\na --> c"), "running", a="done", b="running")
    followed = replace(run, followed=frozenset({0}))
    heads = [style for row in drawing(followed).rows for piece, style in row if "▼" in piece]
    assert sorted(heads) == ["", "dim"]
    still = drawing(of(run.graph)).rows
    assert all(style == "" for row in still for _, style in row)


# --- texts ---------------------------------------------------------------------------


# --- on a stream -----------------------------------------------------------------------


@pytest.fixture(params=[100])
def screen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.delenv("NO_COLOR", raising=False)
    with terminal(request.param) as made:
        yield made


SMALL = "a --> b --> c"


def test_a_terminal_gets_colours(screen: Terminal) -> None:
    print_diagram(view(SMALL, "running", a="done"), screen.stream)
    screen.wait_for("\x1b[32m│ ✓ a │\x1b[0m".encode())


@pytest.mark.parametrize("screen", [40], indirect=True)
def test_what_does_not_fit_the_terminal_is_told_in_words(screen: Terminal) -> None:
    print_diagram(view(RELEASE), screen.stream)
    seen = screen.wait_for(b"less -S").decode()
    assert "· gate → docs [approve]" in re.sub(r"\x1b\[[0-9;]*m", "", seen)
    assert "this terminal has 40" in seen


def test_an_encoding_without_lines_gets_ascii(tmp_path: Path) -> None:
    path = tmp_path / "flow.txt"
    with path.open("w", encoding="latin-1") as stream:
        print_diagram(view("a[naïve 計画] --> b"), stream)
    assert path.read_text(encoding="latin-1").isascii()
    assert "+---" in path.read_text(encoding="latin-1")


def test_a_full_disk_is_said_so() -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as stream:
        with pytest.raises(StorageFailed, match="No space left"):
            print_diagram(view(SMALL), stream)
        # What is left in the buffer can't be written either.
        with pytest.raises(OSError, match="No space left"):
            stream.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


# --- groups and colors -------------------------------------------------------------------


COLORED = """flowchart TD
a --> b
subgraph one [One of them]
b
end
style a fill:#112233,stroke:#ff0000
classDef hot stroke:#00ff00
class b hot
"""


def test_groups_have_frames_with_their_titles() -> None:
    chart = read_chart(COLORED)
    shown = of(graph("a --> b"))
    text = drawing(shown, chart=chart).text()
    lines = text.splitlines()
    assert "╭ One of them ╌╮" in text
    top, bottom = (n for n, line in enumerate(lines) if "╌╌" in line or "One of" in line)
    (inside,) = (n for n, line in enumerate(lines) if "│ b │" in line)
    assert top < inside < bottom
    assert ". One of them -." in drawing(shown, chart=chart, is_ascii=True).text()


def test_an_authors_colors_are_seen_until_a_run_has_its_own() -> None:
    chart = read_chart(COLORED)
    text = drawing(of(graph("a --> b")), chart=chart).text(has_colours=True)
    # A dark ground gets light letters.
    assert "\x1b[38;2;255;255;255;48;2;17;34;51m┌" in text
    assert "\x1b[38;2;0;255;0m│ b │" in text
    ran = of(graph("a --> b"), "running", a="done", b="failed")
    assert "48;2" not in drawing(ran, chart=chart).text(has_colours=True)
