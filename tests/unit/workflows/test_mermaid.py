"""The reader of Mermaid flowcharts: answers as Mermaid 11.17 gives them, and words of our own."""

from __future__ import annotations

import json
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequencer.workflows.mermaid import text as mermaid_text
from sequencer.workflows.mermaid.chart import MAX_DECLARED, Chart
from sequencer.workflows.mermaid.parser import MAX_CHARACTERS, read_chart
from sequencer.workflows.mermaid.text import (
    ChartError,
    ChartText,
    Unreadable,
    as_text,
    prepare,
    read_properties,
    read_shape_data,
    restore_entities,
)

DATA = Path(__file__).parents[2] / "data" / "flowcharts"
CHARTS: list[dict[str, Any]] = [
    entry
    for name in ("charts.json", "more_charts.json")
    for entry in json.loads((DATA / name).read_text(encoding="utf-8"))
]
"""Each with the answer of Mermaid itself."""
HEADER = "flowchart TD\n"


def read(body: str) -> Chart:
    """Return the chart whose statements are *body*."""
    return read_chart(HEADER + body)


def is_refused(text: str) -> bool:
    try:
        read_chart(text)
    except ChartError:
        return True
    return False


def refusal(body: str) -> tuple[str | None, str, str]:
    """Return where *body* is refused, the message and the hint."""
    with pytest.raises(ChartError) as caught:
        read(body)
    return caught.value.where, caught.value.message, caught.value.hint or ""


def answer(text: str) -> dict[str, Any]:
    try:
        return read_chart(text).as_json()
    except ChartError:
        return {"invalid": True}


@pytest.mark.parametrize("first", range(0, len(CHARTS), 50))
def test_a_chart_is_read_as_mermaid_reads_it(first: int) -> None:
    for entry in CHARTS[first : first + 50]:
        assert answer(entry["text"]) == entry["expect"], entry["name"]


def test_a_refusal_has_a_place_in_the_file() -> None:
    refused = [entry["text"] for entry in CHARTS if entry["expect"].get("invalid")]
    assert len(refused) > 200
    for text in refused:
        with pytest.raises(ChartError) as caught:
            read_chart(text, file=Path("flow.mmd"), first_line=11)
        file, line, column = (caught.value.where or "").split(":")
        assert (file, caught.value.exit_code) == ("flow.mmd", 2)
        assert 11 <= int(line) <= 11 + text.count("\n") + 1
        assert int(column) >= 1


@pytest.mark.parametrize(
    "text",
    [
        "swimlane-beta TD\na-->b",
        HEADER + "a@{ label: &x y }",
        HEADER + "a@{ label: !!str x }",
        HEADER + "a@{ a: " + "[" * 40 + "]" * 40 + " }",
        HEADER + "a@{ label: \ud800 }",
    ],
)
def test_some_charts_that_mermaid_reads_are_refused(text: str) -> None:
    assert is_refused(text)


@pytest.mark.parametrize(
    ("body", "place", "message", "hint"),
    [
        ("a[x", (2, 2), "the label is not closed with ']'", "double quotes"),
        ("b\n  a[x (y)] --> b", (3, 7), "not closed with ']'; '(' is in it", "double quotes"),
        ("a((x)", (2, 2), "not closed with '))'", "double quotes"),
        ("a[/x]", (2, 2), "'/]' or '\\]'", "double quotes"),
        ('a["x" "y"]', (2, 8), "not closed with ']'", "#quot;"),
        ("a[x@y]", (2, 4), "'@' ends the id of an edge", "double quotes"),
        ("a[]", (2, 2), "the label is empty", "leave it out"),
        ("a -->|| b", (2, 6), "the label is empty", "leave it out"),
        ("a -->|f(x)| b", (2, 8), "not closed with '|'; '(' is in it", "double quotes"),
        ("a -> b", (2, 3), "'-' is not an edge", "'-->'"),
        ("a => b", (2, 3), "'=' alone is not an edge", "'-->'"),
        ("a ..> b", (2, 3), "'..' is not an edge", "'-->'"),
        ("a -->> b", (2, 6), "'>' can't follow an edge", "'-->'"),
        ("a -- x", (2, 3), "'--' starts an edge with a label", "-- label -->"),
        ("a == x=y ==> b", (2, 7), "the label after '==' does not end", "== label ==>"),
        ("a -. v1.2 .-> b", (2, 8), "the label after '-.' does not end", "-. label .->"),
        ("a --> end", (2, 7), "'end' is a reserved word", "end_node"),
        (
            "a --> b\nclass-x --> b",
            (3, 6),
            "is not allowed here in a 'class' statement",
            "class ID",
        ),
        ("a\nend", (3, 1), "'end' closes no subgraph", "end_node"),
        ("a --> b %% note", (2, 9), "a comment can't follow a statement", "separate line"),
        ("a [x] --> b", (2, 3), "there is a space between", "a[Label]"),
        ("a b", (2, 3), "'b' can't follow a node", "new line"),
        ('"a b" --> c', (2, 2), "an id can't be in quotes", 'a["text"]'),
        ("a 😀", (2, 3), "'😀' can't be in an id", "double quotes"),
        ("a --> 😀", (2, 7), "the edge leads to no node", ""),
        ("a]", (2, 2), "']' closes nothing", "double quotes"),
        ("--> b", (2, 1), "'-->' has no node before it", "write the node first"),
        ("a --> |x|\nb", (2, 10), "leads to the end of the line", "one space"),
        ("a & b &\n", (2, 8), "after '&' there is the end of the line", "both sides"),
        ("a:::x:::y", (2, 6), "a node can have only one ':::'", "class ID NAME"),
        ("a:::", (2, 5), "instead of the name of a class", ""),
        ("a e1@", (2, 6), "after '@'", "a e1@--> b"),
        ("a@{ shape: rect", (2, 2), "'@{' is not closed with '}'", ""),
        ("a@{ shape: Foo }", (2, 2), "there is no shape 'Foo'", "shape: hexagon"),
        ("a@{ label: x^y }", (2, 13), "'^' is not allowed in", "double quotes"),
        ("a[|b|c]", (2, 5), "'[|' needs a property", "[|name:value|Label]"),
        ("subgraph\na\nend", (2, 1), "the subgraph has no name", "subgraph name"),
        ("subgraph a (x)\nend", (2, 12), "'(' is not allowed in a subgraph's line", "Title"),
        ("b\nsubgraph a\nc", (3, 1), "the subgraph is not closed with 'end'", "'end'"),
        ("linkStyle 3 a:b", (2, 11), "no edge number 3; there are none so far", ""),
        ("a-->b\nlinkStyle 3 a:b", (3, 11), "there are 0 to 0", ""),
        ("style a", (2, 8), "in a 'style' statement", "style ID"),
        ("click a", (2, 8), "in a 'click' statement", "click ID"),
        ("^", (2, 1), "no statement starts with '^'", "expected an id"),
    ],
)
def test_a_refusal_has_a_place_a_message_and_a_hint(
    body: str, place: tuple[int, int], message: str, hint: str
) -> None:
    where, said, advice = refusal(body)

    assert where == f"line {place[0]}, column {place[1]}"
    assert message in said
    assert hint in advice


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("sequenceDiagram\n", (1, 1), "starts with 'flowchart' or 'graph'"),
        ("", (1, 1), "not with the end of the chart"),
        (
            "flowchart lr\na",
            (1, 11),
            "expected a direction after the header's first word, not 'lr'",
        ),
        ("flowchart LR a --> b", (1, 14), "'a' is in the header's line"),
        ("flowchart TD\no--o p", (2, 1), "'o--o' has no node before it"),
        ("---\na: [\n---\ngraph TD\n", (2, 1), "the front matter is not YAML"),
        ("flowchart TD\r\na\r\n  b c", (3, 5), "'c' can't follow a node"),
        ("%% one\n\n%%{init: {}}%%\n%% two\nflowchart TD\n%% three\na b", (7, 3), "can't follow"),
        ("---\nt: x\n---\n\nflowchart TD\na b", (6, 3), "can't follow"),
        ("graph TD\na@{}  \n\n\nb c", (5, 3), "can't follow"),
        ("graph TD\nstyle a fill:#fff;\nclassDef b fill:#fff;\nb c", (4, 3), "can't follow"),
        ('graph TD\na["#amp; #35;"] b', (2, 17), "can't follow"),
    ],
)
def test_the_place_of_an_error_is_that_in_the_file(
    text: str, place: tuple[int, int], message: str
) -> None:
    with pytest.raises(ChartError) as caught:
        read_chart(text, file=Path("flows/x.md"), first_line=20)

    assert caught.value.where == f"flows/x.md:{place[0] + 19}:{place[1]}"
    assert message in caught.value.message


def test_a_chart_of_a_mebibyte_is_refused_at_once() -> None:
    text = HEADER + "a --> b\n" * 131_072
    started = time.process_time()

    with pytest.raises(ChartError, match="more than 999,999 characters") as caught:
        read_chart(text, first_line=3)

    assert caught.value.where == "line 3, column 1"
    assert time.process_time() - started < 0.1
    assert is_refused("x" * (MAX_CHARACTERS + 1))


PIECES = [
    " ", "\n", "a", "a-", "-", "=", ".", "~", "a;", "a[b]\n", "a-->b-->", "a & ", "direction LR ",
    "@", "@{",
    "a@", "a@b", "a@{", 'a@{"a^"b', '"', '"`', '`"', "%%", "\n%%x", "%%{", "%%{a", "<a",
    '<a b="c', "#",
    "style a:#b;", "style:", "classDef", "#a", "} \n", "}", "subgraph a\n", "subgraph a\nend\n",
    "call x(",
    "click a b\n", "a -- x", "-- x", "a -. x ", "a == b", "(-", "a(-", "a[", "a((", "a[/", "a[/x/]",
    "|",
    "a-->|x", ":::", "accTitle:", "accDescr{", "---\n", "--- ", "x--", "xo<", "v", "1", "é",
    "style a b:c,",
    "e1@-->", "a[~~~", "a(-~~", '"a"', "a{{b}} ", "\u2028", "\ufeff", "L_a_b_0 --> a\n",
]  # fmt: skip


@pytest.mark.slow(sample=12)
@pytest.mark.parametrize("piece", PIECES)
def test_no_repetition_takes_more_than_linear_time(piece: str) -> None:
    def seconds(size: int) -> float:
        text = HEADER + piece * (size // len(piece))
        started = time.process_time()
        is_refused(text)
        return time.process_time() - started

    # The square would be minutes; linear time is well below a second.
    assert seconds(60_000) < 2


def crossed(count: int, groups: int) -> str:
    """Return a chart of *groups* rows of *count* nodes, each joined with all of the next."""
    rows = (" & ".join(f"n{row}_{place}" for place in range(count)) for row in range(groups))
    return " --> ".join(rows)


@pytest.mark.slow
def test_a_short_line_cannot_fill_the_memory() -> None:
    tracemalloc.start()
    try:
        assert is_refused(HEADER + crossed(300, 24))
        assert tracemalloc.get_traced_memory()[1] < 100 * 1024 * 1024
    finally:
        tracemalloc.stop()


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("declared", ["n{}\n", "subgraph n{}\nend\n", "n{} & m{}\n"])
def test_nodes_and_groups_are_counted_before_they_are_created(declared: str) -> None:
    lines = "".join(declared.format(place, place) for place in range(MAX_DECLARED + 1))
    where, message, _ = refusal(lines)
    assert message == f"the chart has more than {MAX_DECLARED:,} nodes and groups"
    assert where is not None
    assert int(where.split()[1].rstrip(",")) <= 2 + 2 * MAX_DECLARED


# The text before it is scanned


def prepared(text: str) -> str:
    source = ChartText(text, None, 1)
    prepare(source)
    return restore_entities(source.text)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("graph TD\na", "graph TD\na\n"),
        ("\n  \n graph", "graph\n"),
        ("a\n%% x\nb", "a\nb\n"),
        ("a\n\n  \n  %% x\n\nb", "a\n\nb\n"),
        ("a\n%%\nb", "a\n%%\nb\n"),
        ("a %% x", "a %% x\n"),
        ("%%{init: {}}%%a", "a\n"),
        ("%%{a}%%b%%{c: d}%%e", "be\n"),
        ("%%{init: word more}%%a", "more}%%a\n"),
        ("a%%{open", "a\n"),
        ("---\nx: y\n---\na", "a\n"),
        ("---\nx: y\n---\n\n\na", "a\n"),
        ("---\nx: y\na", "---\nx: y\na\n"),
        ("---x\ny: z\n---\na", "---x\ny: z\n---\na\n"),
        ("\t---\n\tx: y\n\t---\na", "a\n"),
        ("}  \n\n b", "}\n b\n"),
        ("} b", "} b\n"),
        ("style a fill:#fff;\nb;", "style a fill:#fff\nb;\n"),
        ("style a fill:red;", "style a fill:red;\n"),
        ("classDef a fill:#fff,b:#000;c;", "classDef a fill:#fff,b:&#000;c\n"),
        ("#35;#amp;#no", "&#35;&amp;#no\n"),
        ('<a b="c" d="e">f="g"', "<a b='c' d='e'>f=\"g\"\n"),
        ('< a b="c">', '< a b="c">\n'),
        ('<a b="c"', '<a b="c"\n'),
    ],
)
def test_text_mermaid_removes_before_reading_is_removed(text: str, left: str) -> None:
    assert prepared(text) == left


# YAML


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: b", {"a": "b"}),
        ("", None),
        ("# note", None),
        ("a: {b: [1, 2.5, .5, -3]}", {"a": {"b": [1, 2.5, 0.5, -3]}}),
        (
            "a: true\nb: False\nc: null\nd: ~\ne:",
            {"a": True, "b": False, "c": None, "d": None, "e": None},
        ),
        (
            "a: no\nb: yes\nc: 2026-01-01\nd: 12:30",
            {"a": "no", "b": "yes", "c": "2026-01-01", "d": "12:30"},
        ),
        ("a: '5'\nb: \"true\"", {"a": "5", "b": "true"}),
        ("5: x\ntrue: y", {"5": "x", "true": "y"}),
        ("<<: x", {"<<": "x"}),
        ("- a\n- b", ["a", "b"]),
        ("plain", "plain"),
        ("a: |\n  two\n  lines\n", {"a": "two\nlines\n"}),
        ("a: " + "9" * 400, {"a": "9" * 400}),
        ("{ : a, b: c}", {"null": "a", "b": "c"}),
        ("[:]", [{"null": None}]),
    ],
)
def test_property_values_are_read(text: str, value: Any) -> None:
    assert read_properties(text) == value


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: &x b\nc: *x", "anchors"),
        ("*x", "anchors"),
        ("a: !!python/object x", "tags"),
        ("!x {}", "tags"),
        ("a: b\na: c", "duplicate key 'a'"),
        ("a: {b: c, b: d}", "duplicate key 'b'"),
        ("---\na: b\n---\nc: d", "second document"),
        ("[" * (mermaid_text.MAX_DEPTH + 1) + "]" * (mermaid_text.MAX_DEPTH + 1), "deeper than 32"),
        ("a: " + "x" * 70_000, "more than 65536 characters"),
        ("a: [", "node"),
        ("a: b: c", "not allowed"),
        ("{ : a, : b}", "duplicate key 'null'"),
        (": a", "expected key"),
        ("{" + "? : a," * 9 + "}", "without a key|duplicate key"),
        ("\x00", "control characters|special characters"),
        ("\ud800", "not text"),
    ],
)
def test_invalid_yaml_in_a_chart_is_refused(text: str, problem: str) -> None:
    with pytest.raises(Unreadable, match=problem) as caught:
        read_properties(text)

    assert str(caught.value)


def test_classes_and_styles_set_the_colors() -> None:
    chart = read_chart(
        "flowchart TD\nclassDef default fill:#eee\n"
        "classDef hot,cold fill:#F96,stroke:#333,stroke-width:4px,color:white;\n"
        "a:::hot --> b --> c\nclass b,g hot\nclassDef cold fill:blue\nclass b cold\n"
        "style c fill:#123456 !important,color:#abcd\nstyle a stroke:url\nclass nobody hot\n"
        "subgraph g[One]\nd\nend\nsubgraph h\ne:::unknown\nend"
    )

    hot = {"fill": "#ff9966", "stroke": "#333333", "color": "#ffffff"}
    assert chart.colors == {
        "a": hot,
        "b": {**hot, "fill": "#0000ff"},
        "c": {"fill": "#123456"},
        "g": hot,
        "d": {"fill": "#eeeeee"},
        "e": {"fill": "#eeeeee"},
    }
    assert chart.classes == {"default", "hot", "cold", "unknown"}


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    for reader in (read_properties, read_shape_data):
        try:
            assert isinstance(as_text(reader(text)), str)
        except Unreadable as error:
            problem = str(error)
            assert problem
