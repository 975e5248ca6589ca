"""The page about workflow files says what the reader does: keys, codes, shapes, the example."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sequencer.testing import CommandOutput, ScratchProject
from tests.project.documents import ROOT, offered, refusal_of

PAGE = (ROOT / "docs" / "reference" / "flowcharts.md").read_text()
SOURCES = sorted((ROOT / "sequencer" / "workflows").rglob("*.py"))


def part(heading: str) -> str:
    """Return what stands below *heading*, up to the next one of its level."""
    return PAGE.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]


def first_cells(text: str) -> set[str]:
    """Return what is in backquotes in the first cells of the tables of *text*."""
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


WRONG = """\
---
zork: 1
config: {zork: 1}
retry: {zork: 1}
---

```mermaid
flowchart TD
    a[A]
```

### a
---
zork: 1
config: {zork: 1}
output: {zork: 1}
tools: {zork: true}
---
Do it.
"""


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return what is said about a file with wrong keys: each time the ones that there are."""
    return refusal_of(tmp_path_factory.mktemp("wrong"), "wrong.md", WRONG)


def known_at(refused: str, place: str) -> set[str]:
    """Return what is said to be known at the *place* of a wrong key or tool."""
    return set(offered(refused, f"{place} 'zork'"))


def planned(folder: Path, name: str, text: str) -> CommandOutput:
    """Return what `plan` prints about the workflow file *text*."""
    project = ScratchProject(folder)
    (folder / name).write_text(text)
    return project.run_command("plan", name, "--json")


def test_all_front_matter_keys_are_listed(refused: str) -> None:
    known = known_at(refused, "wrong.md: unknown key") - {"config", "retry"}
    for key in ("config", "retry"):
        known |= {f"{key}.{inner}" for inner in known_at(refused, f"{key}: unknown key")}
    assert first_cells(part("Front matter")) == known


def test_all_settings_of_nodes_are_listed(refused: str) -> None:
    known = known_at(refused, "a: unknown key") - {"config", "output"}
    for key in ("config", "output"):
        known |= {f"{key}.{inner}" for inner in known_at(refused, f"a: {key}: unknown key")}
    assert first_cells(part("Sections")) == known


def test_all_tools_are_listed(refused: str) -> None:
    row = next(line for line in part("Sections").splitlines() if line.startswith("| `tools`"))
    written = set(re.findall(r"`(\w+)`", row)) - {"tools", "true", "false"}
    assert written == known_at(refused, "there is no tool")


def test_the_listed_codes_are_the_used_ones() -> None:
    used = {code for path in SOURCES for code in re.findall(r'"([EW]-[A-Z]+)"', path.read_text())}
    assert first_cells(part("Errors")) == used


def test_the_example_is_a_workflow_without_a_warning(tmp_path: Path) -> None:
    example = PAGE.split("````markdown\n", 1)[1].split("````\n", 1)[0]
    ran = planned(tmp_path, "example.md", example)
    assert ran.stderr == ""
    assert ran.json["title"] == "Fix until green"
    agents = [node["id"] for node in ran.json["nodes"] if node["kind"] == "agent"]
    assert agents == ["write", "test", "publish"]
    assert sum(edge["is_back"] for edge in ran.json["edges"]) == 1


@pytest.mark.parametrize(
    ("row", "kind"), [(0, "agent"), (1, "human"), (2, "marker"), (3, "decision")]
)
def test_the_shapes_match_the_table(tmp_path: Path, row: int, kind: str) -> None:
    table = [line for line in part("The chart").splitlines() if line.startswith("| `a")]
    shapes = re.findall(r"`(a[^`]*)`", table[row].split("|")[1])
    assert shapes
    for number, shape in enumerate(shapes):
        ran = planned(tmp_path, f"c{number}.mmd", f"flowchart TD\n{shape}\n")
        assert [node["kind"] for node in ran.json["nodes"]] == [kind], shape
