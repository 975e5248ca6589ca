"""The page about workflow files says what the reader does: keys, codes, shapes, the example."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from sequencer.files.keys import fields_by_key
from sequencer.workflows.flowfile.reader import read_flow
from sequencer.workflows.flowfile.settings import TOOLS, FlowKeys, FrontMatter, NodeSettings
from tests.project.documents import ROOT

PAGE = (ROOT / "docs" / "reference" / "flowcharts.md").read_text()
SOURCES = sorted((ROOT / "sequencer" / "workflows").rglob("*.py"))


def part(heading: str) -> str:
    """Return what stands below *heading*, up to the next one of its level."""
    return PAGE.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]


def first_cells(text: str) -> set[str]:
    """Return what is in backquotes in the first cells of the tables of *text*."""
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def keys(model: type[FlowKeys], path: str = "") -> Iterator[str]:
    for name, field in fields_by_key(model).items():
        inner = [
            each
            for each in FlowKeys.__subclasses__()
            if each.__name__ in str(field.annotation) and "list[" not in str(field.annotation)
        ]
        if inner:
            yield from keys(inner[0], f"{path}{name}.")
        else:
            yield f"{path}{name}"


def test_all_front_matter_keys_are_listed() -> None:
    assert first_cells(part("Front matter")) == set(keys(FrontMatter))


def test_all_settings_of_nodes_are_listed() -> None:
    known = set(keys(NodeSettings))
    written = {key for key in known if not key.startswith("config.retry.")} | {"config.retry"}
    assert first_cells(part("Sections")) == written


def test_all_tools_are_listed() -> None:
    row = next(line for line in part("Sections").splitlines() if line.startswith("| `tools`"))
    assert set(re.findall(r"`(\w+)`", row)) - {"tools", "true", "false"} == set(TOOLS)


def test_the_listed_codes_are_the_used_ones() -> None:
    used = {code for path in SOURCES for code in re.findall(r'"([EW]-[A-Z]+)"', path.read_text())}
    assert first_cells(part("Errors")) == used


def test_the_example_is_a_workflow_without_a_warning() -> None:
    example = PAGE.split("````markdown\n", 1)[1].split("````\n", 1)[0]
    flow = read_flow(example, file=Path("example.md"))
    assert flow.warnings == ()
    assert flow.title == "Fix until green"
    assert [step.name for step in flow.workflow.steps] == ["write", "test", "publish"]
    assert len(flow.graph.back_edges) == 1


@pytest.mark.parametrize(
    ("row", "kind"), [(0, "agent"), (1, "human"), (2, "marker"), (3, "decision")]
)
def test_the_shapes_match_the_table(row: int, kind: str) -> None:
    table = [line for line in part("The chart").splitlines() if line.startswith("| `a")]
    shapes = re.findall(r"`(a[^`]*)`", table[row].split("|")[1])
    assert shapes
    for shape in shapes:
        graph = read_flow(f"flowchart TD\n{shape}\n", file=Path("c.mmd")).graph
        assert graph.by_id["a"].kind == kind, shape
