"""Charts with the answers of Mermaid 11.17 itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sequencer.workflows.mermaid.chart import BRACKETS, SHAPES
from sequencer.workflows.mermaid.parser import read_chart
from sequencer.workflows.mermaid.text import ChartError

DATA = Path(__file__).parents[3] / "data" / "flowcharts"
CHARTS = json.loads((DATA / "charts.json").read_text(encoding="utf-8"))


def is_invalid(entry: dict[str, Any]) -> bool:
    return bool(entry["expect"].get("invalid"))


VALID = [entry for entry in CHARTS if not is_invalid(entry)]
INVALID = [entry for entry in CHARTS if is_invalid(entry)]


def test_there_are_charts_of_both_kinds() -> None:
    assert len(VALID) == 116
    assert len(INVALID) == 34


@pytest.mark.parametrize("entry", VALID, ids=lambda entry: entry["name"])
def test_a_valid_chart_gives_the_same_graph(entry: dict[str, Any]) -> None:
    assert read_chart(entry["text"]).as_json() == entry["expect"]


@pytest.mark.parametrize("entry", INVALID, ids=lambda entry: entry["name"])
def test_an_invalid_chart_is_refused_with_its_place(entry: dict[str, Any]) -> None:
    with pytest.raises(ChartError) as caught:
        read_chart(entry["text"], file=Path("flow.mmd"), first_line=11)

    assert caught.value.where is not None
    file, line, column = caught.value.where.split(":")
    assert file == "flow.mmd"
    assert 11 <= int(line) <= 11 + entry["text"].count("\n") + 1
    assert int(column) >= 1
    assert caught.value.exit_code == 2


def test_every_shape_name_is_known_and_no_other() -> None:
    names = (DATA / "shapes.txt").read_text(encoding="utf-8").split()

    assert len(names) == 136
    assert sorted(names) == sorted(SHAPES)


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_a_shape_name_is_kept_as_written(name: str) -> None:
    chart = read_chart(f"flowchart TD\na@{{ shape: {name} }}")

    assert [(node.id, node.label, node.shape) for node in chart.nodes] == [("a", "a", name)]


@pytest.mark.parametrize("name", ["Circle", "sm_circ", "RECT", "square", "nothing", "5", "[rect]"])
def test_another_name_of_a_shape_is_refused(name: str) -> None:
    with pytest.raises(ChartError, match="no shape"):
        read_chart(f"flowchart TD\na@{{ shape: {name} }}")


def test_a_wrong_shape_brings_the_nearest_to_mind() -> None:
    with pytest.raises(ChartError, match="did you mean 'hexagon'"):
        read_chart("flowchart TD\na@{ shape: Hexagone }")


def test_no_shape_is_meant_by_two_brackets() -> None:
    shapes = [shape for _, ends in BRACKETS.values() for shape in ends.values()]

    assert len(shapes) == len(set(shapes)) == 16
