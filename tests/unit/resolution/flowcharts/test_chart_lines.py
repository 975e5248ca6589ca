"""Lines between nodes: every operator, labels, groups, ids."""

from __future__ import annotations

import pytest

from tests.unit.resolution.flowcharts.chart_texts import edges, is_refused, nodes, read

POINT, OPEN, CIRCLE, CROSS = "arrow_point", "arrow_open", "arrow_circle", "arrow_cross"
OPERATORS = [
    ("-->", "normal", POINT, 1),
    ("--->", "normal", POINT, 2),
    ("---->", "normal", POINT, 3),
    ("---", "normal", OPEN, 1),
    ("----", "normal", OPEN, 2),
    ("-----", "normal", OPEN, 3),
    ("--o", "normal", CIRCLE, 1),
    ("--x", "normal", CROSS, 1),
    ("<-->", "normal", "double_arrow_point", 1),
    ("o--o", "normal", "double_arrow_circle", 1),
    ("x--x", "normal", "double_arrow_cross", 1),
    ("-.->", "dotted", POINT, 1),
    ("-..->", "dotted", POINT, 2),
    ("-...->", "dotted", POINT, 3),
    (".->", "dotted", POINT, 1),
    ("-.-", "dotted", OPEN, 1),
    ("-.-o", "dotted", CIRCLE, 1),
    ("-.-x", "dotted", CROSS, 1),
    ("<-.->", "dotted", "double_arrow_point", 1),
    ("==>", "thick", POINT, 1),
    ("===", "thick", OPEN, 1),
    ("====>", "thick", POINT, 3),
    ("==o", "thick", CIRCLE, 1),
    ("==x", "thick", CROSS, 1),
    ("<==>", "thick", "double_arrow_point", 1),
    ("~~~", "invisible", OPEN, 1),
    ("~~~~", "invisible", OPEN, 2),
    ("<---", "normal", OPEN, 2),
    ("-" * 30 + ">", "normal", POINT, 10),
    ("-" + "." * 30 + "->", "dotted", POINT, 10),
    ("x-->", "normal", POINT, 2),
    ("o--x", "normal", CROSS, 2),
]


@pytest.mark.parametrize(("operator", "stroke", "kind", "length"), OPERATORS)
def test_an_operator(operator: str, stroke: str, kind: str, length: int) -> None:
    for body in (
        f"a {operator} b",
        f"a{{q}} {operator} b",
        f"a\n{operator}\nb",
        f"a {operator}|t| b",
    ):
        (edge,) = read(body).edges
        assert (edge.source, edge.target) == ("a", "b")
        assert (edge.stroke, edge.type, edge.length) == (stroke, kind, length)


@pytest.mark.parametrize(
    "operator", ["->", "=>", "<--", "o--", "-->>", "..>", "-.>", "--", "==", "=", "~~"]
)
def test_what_is_no_operator_is_refused(operator: str) -> None:
    assert is_refused(f"flowchart TD\na {operator} b")


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("-->|text|", "text"),
        ("--> |text here|", "text here"),
        ("-->| |", ""),
        ('-->|"a (b) | c"|', "a (b) | c"),
        ('-->|"`md *x*`"|', "md *x*"),
        ("-->|x > 3|", "x > 3"),
        ("-->|a < b = c: d/e|", "a < b = c: d/e"),
        ("-->|x #amp; y|", "x &amp; y"),
        ('-->|"{{state.x}} > 3"|', "{{state.x}} > 3"),
        ("-- text -->", "text"),
        ("--text-->", "text"),
        ("-- a-b -->", "a-b"),
        ("-- f(x) [y] -->", "f(x) [y]"),
        ("-- two\nlines -->", "two\nlines"),
        ('-- "x--y" -->', "x--y"),
        ('-- "x" y -->', "x y"),
        ("-. text .->", "text"),
        ("-. text -.->", "text"),
        ("== text ==>", "text"),
        ("-- text ---", "text"),
        ("-- box-->", "bo"),
        ('-- "`md`" -->', "md"),
    ],
)
def test_a_label(text: str, label: str) -> None:
    assert edges(f"a {text} b") == [("a", "b", label)]
    assert edges(f"a{text}b") == [("a", "b", label)]


@pytest.mark.parametrize(
    "text",
    [
        "-->||",
        '-->|""|',
        "-->|f(x)|",
        "-->|[x]|",
        "-->|{x}|",
        '-->|say "x" y|',
        "-->|x",
        "-->|x|  ",
        "-->|x|\n",
        "-- x",
        "-- yes ->",
        "-- x -- y -->",
        "-. v1.2 .->",
        "== x=y ==>",
        '-- x "y" -->',
        "--  -->|x",
        "-->|{{state.x}}|",
    ],
)
def test_a_label_that_does_not_end_or_needs_quotes_is_refused(text: str) -> None:
    assert is_refused(f"flowchart TD\na {text} b")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("<-- t -->", "double_arrow_point"),
        ("x-- t --x", "double_arrow_cross"),
        ("o-- t --o", "double_arrow_circle"),
        ("<== t ==>", "double_arrow_point"),
        ("<-. t .->", "double_arrow_point"),
        ("-- t --x", "arrow_cross"),
        ("x-- t -->", "INVALID"),
        ("== t x==>", "INVALID"),
        ("-- t x--x", "double_arrow_cross"),
    ],
)
def test_the_head_is_that_of_the_second_half(text: str, kind: str) -> None:
    (edge,) = read(f"a {text} b").edges

    assert edge.type == kind
    assert ("length" in read(f"a {text} b").as_json()["edges"][0]) == (kind != "INVALID")


def test_groups_are_joined_each_with_each_in_order() -> None:
    assert edges("a & b --> c & d") == [
        ("a", "c", ""), ("a", "d", ""), ("b", "c", ""), ("b", "d", ""),
    ]  # fmt: skip
    assert edges("A-->B-->C & D-->E") == [
        ("A", "B", ""), ("B", "C", ""), ("B", "D", ""), ("C", "E", ""), ("D", "E", ""),
    ]  # fmt: skip
    assert nodes("a[x]  &  b{y} -->|l| c")[:2] == [("a", "x", "square"), ("b", "y", "diamond")]


@pytest.mark.parametrize("text", ["a &b", "a& b", "a & --> b", "a &", "a & & b"])
def test_an_ampersand_needs_blanks_and_nodes(text: str) -> None:
    assert is_refused(f"flowchart TD\n{text}")


def test_a_line_may_go_on_in_the_next_line_on_either_side() -> None:
    for body in (
        "a -->\nb",
        "a\n  --> b",
        "a\n\n-->\n\nb",
        "a -->\n%% note\nb",
        "a --> b;",
        "a\t-->\tb",
    ):
        assert edges(body) == [("a", "b", "")]


def test_equal_lines_are_two_lines() -> None:
    assert edges("a --> b\na --> b") == [("a", "b", ""), ("a", "b", "")]


def test_the_id_of_a_line_is_no_node() -> None:
    body = "a e1@-->|yes| b e2@-- no --> c\ne1@{ animate: true }\ne1[nothing]"

    assert [node[0] for node in nodes(body)] == ["a", "b", "c"]
    assert edges(body) == [("a", "b", "yes"), ("b", "c", "no")]
    assert nodes("a --> b\nL_a_b_0[x]") == [("a", "a", None), ("b", "b", None)]


def test_a_head_at_the_beginning_of_a_statement_is_refused() -> None:
    assert is_refused("flowchart TD\nx-->y")
    assert edges("x --> y") == [("x", "y", "")]
