from __future__ import annotations

import pytest
from hypothesis import given, settings

from sequencer.cli.views.mermaid import LOOKS, charted, classed
from sequencer.engine.view import FlowView, NodeState
from sequencer.model.net.graph import Graph
from sequencer.workflows.mermaid.parser import read_chart
from tests.unit.cli.flow.views import graph, of, views

CHART = "flowchart TD\n  a[One] --> b\n  b -->|x| c((End))\n"


def shape(chart: str = CHART) -> Graph:
    return graph(chart.partition("\n")[2])


@pytest.mark.parametrize("end", ["", "\n", "\n\n", "\n%% the end", "\n  "])
def test_however_the_text_ends(end: str) -> None:
    text = CHART.rstrip("\n") + end
    found = classed(text, of(shape(), "running", a="done"))
    assert found.startswith(text)
    assert read_chart(found).classes == {"seqDone"}
    assert read_chart(found).edges == read_chart(text).edges


@pytest.mark.parametrize(
    "line",
    ["classDef seqDone fill:#000", "b:::seqDone", "class b seqDone", "seqDone --> b", "%% seqDone"],
)
def test_names_of_the_author_are_avoided(line: str) -> None:
    text = f"{CHART}  {line}\n"
    found = classed(text, of(graph(text.partition("\n")[2]), "running", a="done"))
    assert "    class a seq2Done\n" in found
    assert classed(found, of(shape(), "running", a="done")).endswith("class a seq3Done\n")


def test_an_id_with_a_comma_gets_a_style_of_its_own() -> None:
    # In a class statement it would be two names.
    text = "flowchart TD\n  a,b --> c\n"
    found = classed(text, of(shape(text), "running", **{"a,b": "failed", "c": "done"}))
    assert f"    style a,b {LOOKS[NodeState.FAILED]}\n" in found
    assert "classDef seqFailed" not in found
    assert [node.id for node in read_chart(found).nodes] == ["a,b", "c"]


@pytest.mark.parametrize(
    "name", ["a-b", "a.b", "1", "a&b", "a'b", "ключ", "計画", "default", "a#b", "a:b", "x", "$a"]
)
def test_other_ids_are_named_as_they_are(name: str) -> None:
    text = f"flowchart TD\n  q --> {name}\n"
    found = classed(text, of(shape(text), "running", **{name: "done"}))
    assert f"    class {name} seqDone\n" in found
    assert read_chart(found).nodes == read_chart(text).nodes


@given(views())
@settings(max_examples=30)
def test_a_made_chart_says_the_same_whatever_the_names_are(found: FlowView) -> None:
    chart = read_chart(charted(found))
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


@pytest.mark.parametrize("state", list(LOOKS))
def test_texts_can_be_read_on_their_colours(state: NodeState) -> None:
    looks = dict(part.split(":") for part in LOOKS[state].split(","))
    # 4.5 is what WCAG asks for; the text's colour is given, so a dark theme changes nothing.
    assert contrast(looks["fill"], looks["color"]) >= 4.5
    assert contrast(looks["fill"], looks["stroke"]) >= 2.5
