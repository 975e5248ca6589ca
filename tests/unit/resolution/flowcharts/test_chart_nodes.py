"""Ids, labels, shapes and properties of nodes."""

from __future__ import annotations

import pytest

from tests.unit.resolution.flowcharts.chart_texts import edges, is_refused, nodes, read

IDS = [
    "a", "A1", "a-b", "a.b", "1", "1.2", "a_b", "a/b", "a\\b", "a+b", "a*b", "a!b", "a?b", "$a",
    "a%b", "a'b", "a,b", "a:b", "a&b", "été", "你好", "Ω", "a-", "#a", "-a", "v", "v1", "12b",
    "`a`",
    "End", "END", "END_node", "end_node", "endfoo", "backend", "week_end", "a_end", "default",
    "default_x", "style1", "styler", "direction", "classify", "class_a", "clicker", "callx",
    "subgraph1", "graphs", "flowchart1", "interpolated", "_selfish", "_x", "hrefs", "accTitle",
]  # fmt: skip
NOT_IDS = [
    "a b", "a@b", '"a"', "a😀", "a<b", "a|b", "a]b", "a}b", "a=b", "(a", "^", "a→b", "\u00d7",
    "end", "end-x", "graph", "graph-x", "flowchart", "flowchart-elk", "subgraph", "style",
    "style-x",
    "linkStyle", "classDef", "class", "class-a", "interpolate", "_self", "_blank", "_parent",
    "_top",
    "1end", "a:end", "href", "call", "a,style", "flowchart-x", "swimlane-beta",
]  # fmt: skip


@pytest.mark.parametrize("name", IDS)
def test_an_id_is_kept(name: str) -> None:
    assert edges(f"zz --> {name}") == [("zz", name, "")]
    assert nodes(f"{name} --> zz")[0] == (name, name, None)
    assert nodes(f"{name}[Label]")[0] == (name, "Label", "square")


@pytest.mark.parametrize("name", NOT_IDS)
def test_what_is_no_id_is_refused(name: str) -> None:
    assert is_refused(f"flowchart TD\nzz --> {name}\n")


def test_a_head_of_an_arrow_is_not_part_of_an_id() -> None:
    assert edges("a---oscar") == [("a", "scar", "")]
    assert edges("a--xray") == [("a", "ray", "")]
    assert edges("a --> oscar --> xray") == [("a", "oscar", ""), ("oscar", "xray", "")]


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("a[x]", "square"),
        ("a(x)", "round"),
        ("a([x])", "stadium"),
        ("a[[x]]", "subroutine"),
        ("a[(x)]", "cylinder"),
        ("a((x))", "circle"),
        ("a(((x)))", "doublecircle"),
        ("a{x}", "diamond"),
        ("a{{x}}", "hexagon"),
        ("a>x]", "odd"),
        ("a[/x/]", "lean_right"),
        ("a[\\x\\]", "lean_left"),
        ("a[/x\\]", "trapezoid"),
        ("a[\\x/]", "inv_trapezoid"),
        ("a(-x-)", "ellipse"),
        ("a[|p:q|x]", "rect"),
    ],
)
def test_brackets_mean_a_shape(text: str, shape: str) -> None:
    assert nodes(text) == [("a", "x", shape)]
    assert nodes(text.replace("x", '"x (y) [z]"')) == [("a", "x (y) [z]", shape)]
    assert nodes(text.replace("x", '"`x *y*`"')) == [("a", "x *y*", shape)]
    assert nodes(text.replace("x", " two words ")) == [("a", "two words", shape)]
    assert nodes(text + " --> b") == [("a", "x", shape), ("b", "b", None)]


@pytest.mark.parametrize(
    "text",
    [
        "a[x",
        "a(x",
        "a([x]",
        "a[[x]",
        "a[(x]",
        "a((x)",
        "a(((x))",
        "a{x",
        "a{{x}",
        "a>x",
        "a[/x]",
        "a(-x)",
        "a[|p|x]",
        "a[x)",
        "a[x]]",
        "a[x])",
        "a(x]",
        "a{x}}",
        "a((x)))",
        "a(x))",
        "a{{x} }",
        "a[|1:q|x]",
    ],
)
def test_brackets_have_to_fit(text: str) -> None:
    assert is_refused(f"flowchart TD\n{text}\n")
    assert is_refused(f"flowchart TD\n{text} --> b")


@pytest.mark.parametrize(
    ("label", "shown"),
    [
        ("x < 5 && y > 3", "x < 5 && y > 3"),
        ("a - b", "a - b"),
        ("a--b", "a--b"),
        ("x = y", "x = y"),
        ("line1\nline2", "line1\nline2"),
        ("x;y", "x;y"),
        ("x: y", "x: y"),
        ("end", "end"),
        ('"x | y"', "x | y"),
        ('" x "', "x"),
        ('"x" y', "x y"),
        (" ", ""),
        ("50%", "50%"),
        ('"#35; #amp; #x"', "&#35; &amp; #x"),
        ("say #quot;x#quot;", "say &quot;x&quot;"),
        ('"<b class="k">t</b>"', "<b class='k'>t</b>"),
        ("a\\nb", "a\\nb"),
        ("x ~~~ y", "x ~~~ y"),
        ('"{{state.x}} > 3"', "{{state.x}} > 3"),
        ("\u00a0x\u2003", "x"),
        ("a\n%% gone\nb", "a\nb"),
    ],
)
def test_a_label_is_kept(label: str, shown: str) -> None:
    assert nodes(f"a[{label}] --> b")[0] == ("a", shown, "square")


@pytest.mark.parametrize(
    "label",
    [
        "",
        '""',
        "x (y)",
        "x [y]",
        "x {y}",
        "x | y",
        'x "y"',
        "{{x}}",
        "~~~ x",
        " ~~~",
        '"x" "y"',
        "x@y",
    ],
)
def test_what_needs_quotes_or_is_empty_is_refused(label: str) -> None:
    assert is_refused(f"flowchart TD\na[{label}]")


def test_a_slanted_label_in_quotes_inside_of_blanks_loses_them() -> None:
    assert nodes('a[/ "x" /]') == [("a", "x", "lean_right")]


def test_the_last_label_and_the_last_shape_win_and_the_first_place() -> None:
    assert nodes("a --> b\nb[B]\na(first)\na{second}\na") == [
        ("a", "second", "diamond"),
        ("b", "B", "square"),
    ]
    assert nodes("a[x]@{ shape: circle } --> b") == [("a", "x", "circle"), ("b", "b", None)]


def test_a_node_takes_one_class() -> None:
    chart = read("a:::foo --> b[x]:::bar & c\nclassDef k,l fill:#f96\nclass a m")

    assert chart.classes == {"foo", "bar", "k", "l", "m"}
    assert is_refused("flowchart TD\na:::x:::y")
    assert is_refused("flowchart TD\na:::")


@pytest.mark.parametrize(
    ("data", "label", "shape"),
    [
        ('{ shape: hexagon, label: "Hi" }', "Hi", "hexagon"),
        ("{ label: Hi there }", "Hi there", None),
        ('{\n  shape: manual-file\n  label: "File"\n}', "File", "manual-file"),
        ('{ label: "two\n   lines" }', "two<br/>lines", None),
        ("{ label: 5 }", "5", None),
        ("{ label: 1.50 }", "1.5", None),
        ("{ label: true }", "true", None),
        ("{ label: null }", "a", None),
        ('{ label: "" }', "a", None),
        ("{}", "a", None),
        ("{ shape:rect }", "a", None),
        ("{ animate: true, other: [1, 2] }", "a", None),
        ('{ label: "}" }', "}", None),
        ('{ icon: "fa:x" }', "", None),
        ('{ icon: "fa:x", label: "I" }', "I", None),
        ("{ label: '#35;' }", "&#35;", None),
    ],
)
def test_properties(data: str, label: str, shape: str | None) -> None:
    assert nodes(f"a@{data}\nb") == [("a", label, shape), ("b", "b", None)]


@pytest.mark.parametrize(
    "data",
    [
        "{ shape: rect, shape: rect }",
        "{ shape: [ }",
        "{ label: *x }",
        "{ label: &x y }",
        "{ label: !!str x }",
        "{ label: x^y }",
        "{ shape: rect",
        '{ label: "x }',
        "{\n}",
        "{\nnull\n}",
        "{\n a: b\n---\n c: d\n}",
        "{ a: " + "[" * 40 + "]" * 40 + " }",
        "{ label: " + "x" * 70_000 + " }",
        "{ icon: x, label: 5 }",
        "{ a: b }x",
        "{ label: \ud800 }",
    ],
)
def test_properties_that_say_nothing_clear_are_refused(data: str) -> None:
    assert is_refused(f"flowchart TD\na@{data}\n")


def test_properties_of_several_nodes() -> None:
    body = 'a@{ label: "A" } & b@{ label: "B" } --> c@{ label: "C" }'

    assert nodes(body) == [("a", "A", None), ("b", "B", None), ("c", "C", None)]
    assert edges(body) == [("a", "c", ""), ("b", "c", "")]
    assert nodes('a@{ label: "first" } & a[last]') == [("a", "first", "square")]


def test_blanks_after_a_brace_end_no_statement() -> None:
    assert nodes("a@{ shape: rect }  \n\n  b") == [("a", "a", "rect"), ("b", "b", None)]
    assert is_refused("flowchart TD\na@{ shape: rect } ; b")
