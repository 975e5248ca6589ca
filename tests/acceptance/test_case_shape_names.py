"""The names that Mermaid gives to brackets mean what the brackets mean."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.unit.cli.calling import call

CASE = Path(__file__).parent / "cases" / "shape-names"
KINDS = {
    "agent": "rect rectangle proc process rounded event stadium pill terminal",
    "human": "hex hexagon prepare",
    "marker": "circle circ dbl-circ double-circle doublecircle",
    "decision": "diam diamond decision question",
}
MEANT = {name: kind for kind, names in KINDS.items() for name in names.split()}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SEQUENCER_TRUST", "all")
    return Path(shutil.copytree(CASE, tmp_path / "case"))


def read_kinds(project: Path, name: str) -> dict[str, str]:
    """Return what each node of the chart *name* is."""
    planned = call(project, "plan", name, "--json")
    assert planned.code == 0, planned.err
    return {node["id"]: node["kind"] for node in planned.json["nodes"]}


def test_a_chart_of_mermaids_own_editor_is_read(project: Path) -> None:
    assert call(project, "plan", "flow.mmd").code == 0
    kinds = read_kinds(project, "flow.mmd")
    assert kinds == {"start": "agent", "plan": "agent", "ok": "decision", "done": "marker"}


def written(project: Path, shape: str) -> Path:
    path = project / "one.md"
    chart = f'a[A] --> b\nb -->|x| c[C]\nb -->|y| a\nb@{{ shape: {shape}, label: "B" }}'
    prompts = "\n".join(f"### {name}\nDo it.\n" for name in ("a", "c"))
    own = "### b\nDo it.\n" if MEANT.get(shape) == "agent" else ""
    path.write_text(f"```mermaid\nflowchart TD\n{chart}\n```\n\n{prompts}\n{own}")
    return path


@pytest.mark.parametrize("shape", sorted(MEANT))
def test_each_name_means_what_its_bracket_means(project: Path, shape: str) -> None:
    assert read_kinds(project, written(project, shape).name)["b"] == MEANT[shape]


def test_an_unknown_shape_name_is_refused_and_known_ones_are_listed(project: Path) -> None:
    written(project, "cyl")
    refused = call(project, "plan", "one.md")
    assert refused.code == 2
    assert "E-SHAPE b: the shape 'cyl' has no meaning in a workflow" in refused.err
    listed = refused.err.rpartition("names of these:")[2].partition("\n")[0]
    assert sorted(re.split(r"[\s,]+", listed.strip(" .\n"))) == sorted(MEANT)


def test_a_picture_draws_named_shapes_like_brackets(project: Path) -> None:
    named = written(project, "diam")
    shown = call(project, "plan", "one.md", "--diagram").out
    named.write_text(named.read_text().replace('b@{ shape: diam, label: "B" }', "b{B}"))
    assert "<> B" in shown or "◇ B" in shown
    assert call(project, "plan", "one.md", "--diagram").out == shown
