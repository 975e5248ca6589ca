from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sequencer.cli.views.states import ACTIVE, PICTURES, STATE_DISPLAYS, sanitize_text, wrap_text
from sequencer.cli.views.text import cut, width
from sequencer.errors import StorageFailed
from sequencer.history.view import FlowView, NodeState
from sequencer.model.graph.graph import Graph
from sequencer.plugins.drawing.diagram import draw_flow, list_nodes, print_diagram
from sequencer.plugins.drawing.mermaid import add_state_classes, format_view_chart
from sequencer.workflows.mermaid.parser import read_chart
from tests.unit.cli.flow.terminals import Terminal, terminal
from tests.unit.cli.flow.views import RELEASE, chain, drawn_by_hand, flows, graph, of, view, views


def text(picture: str) -> str:
    return dedent(picture).strip("\n")


def drawn(shape: Graph, **states: str) -> str:
    status = "running" if states else "not-started"
    return dedent(draw_flow(of(shape, status, **states)).to_text())


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


def test_directions_shapes_and_strokes_come_from_the_author() -> None:
    shown, chart = drawn_by_hand("LR")
    whole = draw_flow(shown, chart=chart)
    assert dedent(whole.to_text()) == text("""
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
    assert "▶" not in draw_flow(shown, chart=chart, columns=40).to_text()
    for direction, head in (("RL", "◀"), ("BT", "▲"), ("TD", "▼")):
        turned, chart = drawn_by_hand(direction)
        assert draw_flow(turned, chart=chart).to_text().count(head) == len(turned.graph.edges)


@pytest.mark.slow
@given(views())
@settings(max_examples=40)
def test_any_graph_can_be_drawn_in_both_alphabets(found: FlowView) -> None:
    for is_ascii in (False, True):
        for picture in (draw_flow(found, is_ascii=is_ascii), list_nodes(found, is_ascii=is_ascii)):
            plain = picture.to_text()
            assert plain.isascii() or not is_ascii
            assert "\x1b" not in plain
            assert "\u202e" not in plain
            # Nothing but the drawing's own colours.
            colours = re.sub(r"\x1b\[[0-9;]+m", "", picture.to_text(has_colors=True))
            assert "\x1b" not in colours
            assert [line.rstrip() for line in colours.splitlines()] == plain.splitlines()


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_it_gets_narrower_where_it_can(columns: int) -> None:
    found = draw_flow(view(RELEASE), columns=columns)
    assert found.width <= max(columns, draw_flow(view(RELEASE), columns=1).width)
    if columns >= 80:
        assert found.width <= columns


def test_a_graph_that_is_too_large_to_draw_is_listed_in_words() -> None:
    many = chain(3001)
    rows = draw_flow(of(many)).to_text().splitlines()
    assert len(rows) == 3001
    assert rows[0] == " · n0 → n1"


def test_lines_that_were_followed_stand_out() -> None:
    run = of(graph("a --> b\na --> c"), "running", a="done", b="running")
    followed = replace(run, followed=frozenset({0}))
    heads = [style for row in draw_flow(followed).rows for piece, style in row if "▼" in piece]
    assert sorted(heads) == ["", "dim"]
    still = draw_flow(of(run.graph)).rows
    assert all(style == "" for row in still for _, style in row)


# --- texts ---------------------------------------------------------------------------


def test_a_text_that_fits_stays_whole() -> None:
    assert wrap_text("one two three", 7, 3) == ["one two", "three"]
    assert wrap_text("", 5, 3) == [""]
    assert wrap_text("abcdefgh", 3, 3) == ["abc", "def", "gh"]
    assert wrap_text("one two three four", 5, 2) == ["one", "two…"]


# --- on a stream -----------------------------------------------------------------------


@pytest.fixture(params=[100])
def screen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    with terminal(request.param) as made:
        yield made


SMALL = "a --> b --> c"


def test_a_terminal_gets_colours(screen: Terminal) -> None:
    print_diagram(view(SMALL, "running", a="done"), screen.stream)
    screen.wait_for("\x1b[32m│ ✓ a │\x1b[0m".encode())


@pytest.mark.parametrize("screen", [40], indirect=True)
def test_a_drawing_too_wide_for_the_terminal_becomes_a_list(screen: Terminal) -> None:
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


def test_a_full_disk_is_reported() -> None:
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
    text = draw_flow(shown, chart=chart).to_text()
    lines = text.splitlines()
    assert "╭ One of them ╌╮" in text
    top, bottom = (n for n, line in enumerate(lines) if "╌╌" in line or "One of" in line)
    (inside,) = (n for n, line in enumerate(lines) if "│ b │" in line)
    assert top < inside < bottom
    assert ". One of them -." in draw_flow(shown, chart=chart, is_ascii=True).to_text()


def test_the_authors_colors_are_shown_until_a_run_has_its_own() -> None:
    chart = read_chart(COLORED)
    text = draw_flow(of(graph("a --> b")), chart=chart).to_text(has_colors=True)
    # A dark ground gets light letters.
    assert "\x1b[38;2;255;255;255;48;2;17;34;51m┌" in text
    assert "\x1b[38;2;0;255;0m│ b │" in text
    ran = of(graph("a --> b"), "running", a="done", b="failed")
    assert "48;2" not in draw_flow(ran, chart=chart).to_text(has_colors=True)


CHART = "flowchart TD\n  a[One] --> b\n  b -->|x| c((End))\n"


def shape(chart: str = CHART) -> Graph:
    return graph(chart.partition("\n")[2])


@pytest.mark.parametrize("end", ["", "\n", "\n\n", "\n%% the end", "\n  "])
def test_state_classes_are_added_however_the_text_ends(end: str) -> None:
    text = CHART.rstrip("\n") + end
    found = add_state_classes(text, of(shape(), "running", a="done"))
    assert found.startswith(text)
    assert read_chart(found).classes == {"seqDone"}
    assert read_chart(found).edges == read_chart(text).edges


@pytest.mark.parametrize(
    "line",
    ["classDef seqDone fill:#000", "b:::seqDone", "class b seqDone", "seqDone --> b", "%% seqDone"],
)
def test_names_of_the_author_are_avoided(line: str) -> None:
    text = f"{CHART}  {line}\n"
    found = add_state_classes(text, of(graph(text.partition("\n")[2]), "running", a="done"))
    assert "    class a seq2Done\n" in found
    assert add_state_classes(found, of(shape(), "running", a="done")).endswith("class a seq3Done\n")


def test_an_id_with_a_comma_gets_its_own_style() -> None:
    # In a class statement it would be two names.
    text = "flowchart TD\n  a,b --> c\n"
    found = add_state_classes(text, of(shape(text), "running", **{"a,b": "failed", "c": "done"}))
    assert f"    style a,b {PICTURES[NodeState.FAILED]}\n" in found
    assert "classDef seqFailed" not in found
    assert [node.id for node in read_chart(found).nodes] == ["a,b", "c"]


@pytest.mark.parametrize(
    "name", ["a-b", "a.b", "1", "a&b", "a'b", "ключ", "計画", "default", "a#b", "a:b", "x", "$a"]
)
def test_other_ids_are_named_as_they_are(name: str) -> None:
    text = f"flowchart TD\n  q --> {name}\n"
    found = add_state_classes(text, of(shape(text), "running", **{name: "done"}))
    assert f"    class {name} seqDone\n" in found
    assert read_chart(found).nodes == read_chart(text).nodes


@given(views())
@settings(max_examples=30)
def test_a_generated_chart_has_the_same_graph_for_any_names(found: FlowView) -> None:
    chart = read_chart(format_view_chart(found))
    number = {node.id: f"n{place}" for place, node in enumerate(found.graph.nodes)}
    assert [node.id for node in chart.nodes] == list(number.values())
    assert [(e.source, e.target) for e in chart.edges] == [
        (number[e.source], number[e.target]) for e in found.graph.edges
    ]


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours as WCAG 2.1 counts it."""

    def light(colour: str) -> float:
        parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
        red, green, blue = (
            p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("state", list(PICTURES))
def test_texts_can_be_read_on_their_colours(state: NodeState) -> None:
    looks = dict(part.split(":") for part in PICTURES[state].split(","))
    # 4.5 is what WCAG asks for; the text's colour is given, so a dark theme changes nothing.
    assert contrast(looks["fill"], looks["color"]) >= 4.5
    assert contrast(looks["fill"], looks["stroke"]) >= 2.5


def test_states_that_matter_look_different() -> None:
    told_apart = set(NodeState) - {NodeState.READY}
    assert len({STATE_DISPLAYS[state].mark for state in told_apart}) == len(told_apart)
    assert len({STATE_DISPLAYS[state].ascii_mark for state in told_apart}) == len(told_apart)
    assert NodeState.RUNNING in ACTIVE
    assert NodeState.DONE not in ACTIVE


@given(st.text(), st.integers(0, 40))
def test_a_text_is_cut_to_what_fits(text: str, columns: int) -> None:
    found = cut(text, columns)
    assert width(found) <= columns
    assert found in {text, ""} or found.endswith("…")


@given(st.text(max_size=80), st.integers(2, 30), st.integers(1, 4))
def test_wrapping_loses_nothing_where_there_is_room(text: str, columns: int, lines: int) -> None:
    safe = sanitize_text(text)
    found = wrap_text(safe, columns, lines)
    assert all(width(line) <= columns for line in found)
    assert len(found) <= lines
    whole = wrap_text(safe, columns, 1000)
    assert "".join(whole).replace(" ", "") == "".join(safe.split())
    if len(whole) <= lines:
        assert found == whole
    else:
        assert found[-1].endswith("…")


@given(st.text())
def test_sanitized_text_is_one_line_for_xml_and_terminals(text: str) -> None:
    found = sanitize_text(text)
    assert found == sanitize_text(found)
    assert len(found.splitlines()) <= 1
    assert not set(found) & set("\x1b\u202e\u200f\ufffe\uffff\ud800\x00")
