"""Charts that nobody wrote: printed and read back, mutated, and no charts at all."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from sequencer.workflows.mermaid.chart import Chart
from sequencer.workflows.mermaid.parser import read_chart
from sequencer.workflows.mermaid.text import ChartError

HEADER = "flowchart TD\n"

DATA = Path(__file__).parents[2] / "data" / "flowcharts" / "charts.json"
CHARTS = [entry["text"] for entry in json.loads(DATA.read_text(encoding="utf-8"))]
PAIRS = {
    "square": ("[", "]"), "round": ("(", ")"), "stadium": ("([", "])"), "subroutine": ("[[", "]]"),
    "cylinder": ("[(", ")]"), "circle": ("((", "))"), "doublecircle": ("(((", ")))"),
    "diamond": ("{", "}"),
    "hexagon": ("{{", "}}"), "odd": (">", "]"), "lean_right": ("[/", "/]"),
    "lean_left": ("[\\", "\\]"),
    "trapezoid": ("[/", "\\]"), "inv_trapezoid": ("[\\", "/]"), "ellipse": ("(-", "-)"),
}  # fmt: skip
LINES = {
    ("normal", "arrow_point"): "-->", ("normal", "arrow_open"): "---",
    ("dotted", "arrow_point"): "-.->",
    ("thick", "arrow_point"): "==>", ("invisible", "arrow_open"): "~~~",
    ("normal", "arrow_cross"): "--x",
    ("normal", "double_arrow_point"): "<-->", ("thick", "arrow_open"): "===",
}  # fmt: skip
IDS = st.from_regex(r"[a-np-wyzé][a-z0-9_]{0,6}", fullmatch=True).map(lambda text: text + "_")
# What a label may hold in quotes without a special meaning anywhere.
LABELS = st.text(
    st.characters(
        exclude_characters='"`#<%\r\n\x0b\x0c', exclude_categories=["Cs", "Cc", "Cn", "Z"]
    )
    | st.just(" "),
    min_size=1,
    max_size=12,
).filter(lambda text: bool(text.strip()) and "direction" not in text and "}" not in text)

Node = tuple[str, str | None, str | None]
Edge = tuple[str, str, str, str, str]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[Node], list[Edge]]:
    names = draw(st.lists(IDS, min_size=1, max_size=6, unique=True))
    nodes: list[Node] = []
    for name in names:
        shape = draw(st.none() | st.sampled_from(sorted(PAIRS)))
        nodes.append((name, draw(LABELS) if shape else None, shape))
    edges: list[Edge] = []
    for _ in range(draw(st.integers(0, 6))):
        stroke, kind = draw(st.sampled_from(sorted(LINES)))
        ends = draw(st.sampled_from(names)), draw(st.sampled_from(names))
        edges.append((*ends, draw(st.just("") | LABELS), stroke, kind))
    return nodes, edges


def printed(nodes: list[Node], edges: list[Edge], blank: str, end: str) -> str:
    statements = []
    for name, label, shape in nodes:
        opening, closing = PAIRS[shape] if shape else ("", "")
        statements.append(f'{name}{opening}"{label}"{closing}' if shape else name)
    for source, target, label, stroke, kind in edges:
        text = f'|"{label}"|' if label else ""
        statements.append(
            f"{source}{blank}{LINES[stroke, kind]}{text}{blank if not label else ''}{target}"
        )
    return HEADER + "".join(statement + end for statement in statements)


@given(
    graphs(),
    st.sampled_from([" ", "  ", "\t", "\n"]),
    st.sampled_from(["\n", ";", "\r\n", "\n\n  ", " \n", "\n%% note [\n"]),
)
def test_a_printed_chart_is_read_back(
    graph: tuple[list[Node], list[Edge]], blank: str, end: str
) -> None:
    nodes, edges = graph
    chart = read_chart(printed(nodes, edges, blank, end))

    assert [(node.id, node.label, node.shape) for node in chart.nodes] == [
        (name, name if label is None else label.strip(), shape) for name, label, shape in nodes
    ]
    assert [
        (edge.source, edge.target, edge.label, edge.stroke, edge.type) for edge in chart.edges
    ] == [
        (source, target, label.strip(), stroke, kind)
        for source, target, label, stroke, kind in edges
    ]


def read_or_refuse(text: str) -> Chart | None:
    """Return the chart, or None with a refusal that names a place in the text."""
    try:
        return read_chart(text, file=Path("x"), first_line=1)
    except ChartError as caught:
        error = caught
    assert error.message
    assert error.where is not None
    _, line, column = error.where.split(":")
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    assert 1 <= int(line) <= len(lines) + 1
    length = len(lines[int(line) - 1]) if int(line) <= len(lines) else 0
    assert 1 <= int(column) <= length + 2
    return None


@given(st.text(max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    read_or_refuse(text)
    read_or_refuse(HEADER + text)


WORDS = """
a b end subgraph style class click call direction LR graph v 1 é 😀 accDescr{ accTitle: #amp;
--> --- -- == -. .-> ==> ~~~ x-- o-- - = . & [ ] ( ) { } | " ` @{ @ } ::: ; : , # %% %%{ }%%
<b > / \\ ' ^ *
"""
TOKENS = st.sampled_from(WORDS.split()) | st.sampled_from(
    [" ", "\n", "\r\n", "\t", "\u2028", "\ud800"]
)


@given(st.lists(TOKENS, max_size=25).map("".join))
@settings(max_examples=200)
def test_any_tokens_are_read_or_refused(text: str) -> None:
    read_or_refuse(HEADER + text)


@given(st.sampled_from(CHARTS), st.data())
@settings(max_examples=200)
def test_mutated_charts_are_read_or_refused(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 4)))
    changed = text[:start] + data.draw(TOKENS | st.just("")) + text[end:]

    chart = read_or_refuse(changed)
    if chart is not None:
        nodes = {node.id for node in chart.nodes}
        assert len(nodes) == len(chart.nodes)
        assert all(edge.stroke and edge.type for edge in chart.edges)


@given(st.sampled_from(CHARTS), st.sampled_from(["\n\n", "%% note\n", "%%{init: {}}%%\n", "  \n"]))
def test_text_above_a_chart_changes_only_line_numbers(text: str, above: str) -> None:
    # Front matter has to be the first thing, so a chart with it is another one below a line.
    if text.startswith("---"):
        return
    try:
        expected = read_chart(text).as_json()
    except ChartError:
        expected = {}
    chart = read_or_refuse(above + text)

    assert (chart.as_json() if chart else {}) == expected
