"""Header, comments, separators, subgraphs and the statements that only change looks."""

from __future__ import annotations

import pytest

from sequencer.workflows.mermaid.parser import read_chart
from tests.unit.resolution.flowcharts.chart_texts import edges, is_refused, nodes, read


@pytest.mark.parametrize(
    ("header", "direction"),
    [
        ("flowchart TD\n", "TB"),
        ("flowchart TB\n", "TB"),
        ("graph LR\n", "LR"),
        ("graph RL\n", "RL"),
        ("flowchart BT\n", "BT"),
        ("flowchart-elk LR\n", "LR"),
        ("flowchart\n", "TB"),
        ("graph\n\n", "TB"),
        ("graph <\n", "RL"),
        ("graph >\n", "LR"),
        ("graph ^\n", "BT"),
        ("flowchart v\n", "TB"),
        ("graph TD;", "TB"),
        ("graph LR; ", "LR"),
        ("flowchart   LR  \n", "LR"),
        ("flowchart\tLR\r\n", "LR"),
        ("\n\n  flowchart LR\n\n", "LR"),
        ("%% note\nflowchart LR\n", "LR"),
        ("flowchart BR\n", "BR"),
        ('%%{init: {"theme":"dark"}}%%\ngraph LR\n', "LR"),
        ("%%{\n init: {}\n}%%\ngraph LR\n", "LR"),
        ("---\ntitle: Hi\nconfig:\n  theme: dark\n---\ngraph LR\n", "LR"),
        ("---\n\n---\ngraph LR\n", "LR"),
        ("  ---\n  a: b\n  ---\ngraph LR\n", "LR"),
        ("%%{wrap}%% graph LR\n", "LR"),
    ],
)
def test_a_header(header: str, direction: str) -> None:
    chart = read_chart(header + "a-->b")

    assert chart.direction == direction
    assert [node.id for node in chart.nodes] == ["a", "b"]


@pytest.mark.parametrize(
    "header",
    [
        "",
        "flowchart td\n",
        "flowchart lr\n",
        "flowchart XX\n",
        "flowchart LR ",
        "graph TD ;",
        "graph;",
        "Graph TD\n",
        "flowcharts\n",
        "sequenceDiagram\n",
        "---\nfoo\nflowchart TD\n",
        "%%\nflowchart TD\n",
        "---\na: [\n---\ngraph TD\n",
        "---\na: b\na: c\n---\ngraph TD\n",
        "swimlane-beta TD\n",
        "\n---\na: b\n---\ngraph TD\n",
        "flowchart TDx\n",
    ],
)
def test_another_header_is_refused(header: str) -> None:
    assert is_refused(header + "a-->b")


def test_a_chart_may_be_empty() -> None:
    assert nodes("") == []


@pytest.mark.parametrize(
    "body", ["a-->b\nc", "a-->b;c", "a-->b;c;", "a-->b ;\n c \n", "a-->b\r\nc\r\n", "a-->b\rc"]
)
def test_statements_end_at_a_line_or_a_semicolon(body: str) -> None:
    assert [node[0] for node in nodes(body)] == ["a", "b", "c"]


def test_a_comment_is_a_line_of_its_own() -> None:
    assert edges("%% first\na --> b\n   %% x --> y\n%%% z\nb --> c\n%% last") == [
        ("a", "b", ""),
        ("b", "c", ""),
    ]
    assert is_refused("flowchart TD\na --> b %% note")
    assert nodes("%%\na") == [("%%", "%%", None), ("a", "a", None)]
    assert is_refused("flowchart TD\n%%{}\na")
    assert nodes("a[x %% y]") == [("a", "x %% y", "square")]


@pytest.mark.parametrize(
    "statement",
    [
        "style a fill:#f9f,stroke:#333,stroke-width:4px",
        "style a fill:#f9f;",
        "linkStyle 0 stroke:#333",
        "linkStyle default stroke:red",
        "linkStyle 0,0 a:b",
        "linkStyle 0 interpolate basis a:b",
        "linkStyle default interpolate basis",
        "classDef k fill:#f96,stroke:#333;",
        "class a k",
        "class a,b k;",
        'click a "http://x;y" _blank',
        'click a "u" "tip" _self',
        'click a href "u" "t" _top',
        "click a call f()",
        'click a call f(1, "x") "t"',
        "click a f",
        'click a f "tip"',
        "accTitle: title; a-->z",
        "accDescr: text",
        "accDescr {\n several --> lines\n}",
        "direction LR",
        "direction TD",
        "accDescr {}",
        "%%{init: {}}%%",
    ],
)
def test_statements_about_looks_add_nothing(statement: str) -> None:
    body = f"a --> b\n{statement}\nb --> c"

    assert edges(body) == [("a", "b", ""), ("b", "c", "")]
    assert [node[0] for node in nodes(body)] == ["a", "b", "c"]


@pytest.mark.parametrize(
    "statement",
    [
        "style a",
        "style",
        "style a a:(b)",
        "style  a a:b",
        "linkStyle 1 a:b",
        "linkStyle 00 a:b",
        "class a",
        "linkStyle x a:b",
        "linkStyle 0, 0 a:b",
        "classDef k",
        "classDef end a:b",
        "class a k ",
        "click a",
        "click a call f",
        "click a  f",
        'click a "u" _other',
        "linkStyle 99999999999999999999999 a:b",
        "linkStyle 0 interpolate",
        "style a a:b,",
        "click a f g",
        'click a href "u" "t" "v"',
        "direction XX",
    ],
)
def test_statements_about_looks_have_to_be_right(statement: str) -> None:
    assert is_refused(f"flowchart TD\na --> b\n{statement}")


def test_style_creates_a_node_and_class_does_not() -> None:
    assert nodes("style z fill:red\nclass y k\na") == [("z", "z", None), ("a", "a", None)]


def test_a_click_swallows_its_line() -> None:
    assert nodes("click --> b") == []
    assert nodes("clicker --> b")[0][0] == "clicker"


def test_a_direction_swallows_its_line() -> None:
    assert nodes("a[the direction LR of it] --> b\nc") == [("c", "c", None)]
    assert nodes("a --> direction\nb") != []
    assert read("subgraph s\n a[direction TB] --> direction  LR\nend").subgraphs[0].dir == "TB"


def groups(body: str) -> list[tuple[str, str, tuple[str, ...], str | None]]:
    return [(group.id, group.title, group.nodes, group.dir) for group in read(body).subgraphs]


@pytest.mark.parametrize(
    ("head", "name", "title"),
    [
        ("one", "one", "one"),
        ("one [A title]", "one", "A title"),
        ('one["A (title)"]', "one", "A (title)"),
        ("one[A]", "one", "A"),
        ('"A title"', "subGraph0", "A title"),
        ("A title", "subGraph0", "A title"),
        ('"One"', "One", "One"),
        (" one", "subGraph0", "one"),
        ("one ", "subGraph0", "one"),
        ("1", "1", "1"),
        ('"`*md* t`"', "subGraph0", "*md* t"),
        ("a b[T]", "a b", "T"),
        ("class-a", "class-a", "class-a"),
        ('one["#35;"]', "one", "&#35;"),
        ("é", "é", "é"),
        ("graph", "graph", "graph"),
    ],
)
def test_the_name_of_a_subgraph(head: str, name: str, title: str) -> None:
    assert groups(f"subgraph {head}\n a\nend") == [(name, title, ("a",), None)]


@pytest.mark.parametrize(
    "text",
    [
        "subgraph\n a\nend",
        "subgraph one\n a",
        "subgraph one (x)\n a\nend",
        "subgraph a, b\n a\nend",
        "subgraph one[x] y\n a\nend",
        "end",
        "subgraph one\n a\nend\nend",
        "subgraph one[]\n a\nend",
        "subgraph one a\n END\n",
        "subgraph ;end",
    ],
)
def test_a_subgraph_has_a_name_and_an_end(text: str) -> None:
    assert is_refused(f"flowchart TD\n{text}")


def test_subgraphs_are_numbered_in_closing_order() -> None:
    body = "subgraph A outer\n subgraph B inner\n  a\n end\n b\nend\nsubgraph C last\n c\nend"

    assert groups(body) == [
        ("subGraph0", "B inner", ("a",), None),
        ("subGraph1", "A outer", ("subGraph0", "b"), None),
        ("subGraph2", "C last", ("c",), None),
    ]


def test_a_node_stays_in_the_group_that_is_closed_first() -> None:
    assert groups("subgraph x\n a\nend\nsubgraph y\n a-->b\nend") == [
        ("x", "x", ("a",), None),
        ("y", "y", ("b",), None),
    ]


def test_members_stand_in_mermaids_order() -> None:
    body = "subgraph s\n a --> b & c --> d\n direction LR\n direction BT\n e;f\n a\nend"

    assert groups(body) == [("s", "s", ("d", "b", "c", "a", "e", "f"), "BT")]
    assert groups("subgraph s\n accTitle: T\n a;;b\nend") == [
        ("s", "s", ("T", "a", ";", "b"), None)
    ]


def test_a_line_to_a_subgraph_lists_it_as_a_node() -> None:
    body = "subgraph one\n a\nend\nz --> one"

    assert [node[0] for node in nodes(body)] == ["a", "z", "one"]
    assert edges(body) == [("z", "one", "")]


def test_what_follows_end_may_stand_in_its_line() -> None:
    assert edges("subgraph s\n a\nend b --> c") == [("b", "c", "")]
    assert nodes("subgraph s;a;end;b") == [("a", "a", None), ("b", "b", None)]


def test_directives_may_hold_anything() -> None:
    assert edges("a --> b\n%%{init: {'x': \"end }\"} }%%\nb --> c") == [
        ("a", "b", ""),
        ("b", "c", ""),
    ]
    # One that is not closed takes the rest with it, as in Mermaid.
    assert edges("a --> b\n%%{init: {\nb --> c") == [("a", "b", "")]
