from __future__ import annotations

from pathlib import Path

import pytest

from sequencer import open_run
from sequencer.errors import DefinitionChanged
from tests.unit.cli.calling import call, project, worked

FIELDS = {"step_index", "iteration", "cycle_index", "position", "step", "prompt", "review"}
S, M, R = "supervisor", "main", "reviewer"


def steps(folder: Path, *arguments: str) -> list[str]:
    ended = call(folder, "plan", "--json", *arguments)
    assert ended.code == 0, ended.err
    return [step["step"] for step in ended.json]


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        (0, [S, M] * 6),
        (-3, [S, M] * 6),
        (1, [R] * 12),
        (2, [S, M, R, R] * 3),
        (3, [S, M, S, M, R, R] * 2),
        (5, [S, M] * 4 + [R, R] + [S, M]),
    ],
)
def test_the_cadences_in_an_empty_folder(tmp_path: Path, every: int, expected: list[str]) -> None:
    options = ("--count", "12", "--workflow", "review_cadence", "--review-every", str(every))
    assert steps(tmp_path, *options) == expected
    assert list(tmp_path.iterdir()) == []


def test_a_procedure_ends(tmp_path: Path) -> None:
    text = "workflow: {name: once}\nworkflows: {once: {kind: procedure, steps: [main, done]}}\n"
    folder = project(tmp_path / "p", text + "agent: {default: rehearsal}\n", "main.md", "done.md")
    assert steps(folder) == ["main", "done"]
    assert call(folder, "run", "--quiet").code == 0
    ended = call(folder, "plan")
    assert (ended.code, ended.out) == (0, "")
    assert "complete" in ended.err
    assert steps(folder) == []
    beyond = call(folder, "plan", "--step-index", "9")
    assert beyond.code == 2
    assert "2 steps" in beyond.err


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--workflow", "nightly"), "review_cadence2, simple-question, standard, standard2"),
        (("--workflow", "standard", "--review-every", "2"), "review"),
        (("--step-index", "-1"), "--step-index"),
        (("--count", "0"), "--count"),
        (("--review-every", "x"), "--review-every"),
    ],
)
def test_wrong_options_are_refused(tmp_path: Path, arguments: tuple[str, ...], word: str) -> None:
    ended = call(tmp_path, "plan", *arguments)
    assert ended.code == 2
    assert word in ended.err


def test_plan_under_a_changed_definition_shows_the_steps_after_adopt(tmp_path: Path) -> None:
    folder = worked(tmp_path / "p", 1)
    (folder / "orchestration.yaml").write_text(
        "workflow: {name: standard}\nagent: {default: rehearsal}\n"
    )
    ended = call(folder, "plan", "--count", "2", "--json")
    assert (ended.code, [step["step"] for step in ended.json]) == (0, ["main", "supervisor"])
    assert "started differently" in ended.err
    assert "sequencer adopt" in ended.err


# --- graphs ------------------------------------------------------------------------------

TEAM = """\
agent: {default: rehearsal}
workflow: {name: crew}
workflows:
  crew:
    tasks:
      - {id: left, subject: Look to the left, role: researcher, agent: other}
      - {id: right, subject: "Look to the right\\e[2J", weight: 5}
      - {id: cross, subject: Cross the street, blocked_by: [left, right]}
  chart: flows/chart.md
agents: {other: {kind: rehearsal}}
"""
CHART = """\
```mermaid
flowchart TD
  ask{{Fine?}} --> both[Both]
```

### both

Do both.

### ask

Is it?
"""


def crew(folder: Path) -> Path:
    project(folder, TEAM)
    (folder / "flows").mkdir()
    (folder / "flows" / "chart.md").write_text(CHART)
    return folder


def test_plan_of_a_team_shows_tasks_that_may_start_and_their_subjects(tmp_path: Path) -> None:
    folder = crew(tmp_path / "p")
    lines = call(folder, "plan").out.splitlines()
    assert lines[0].split() == ["TASK", "STATE", "SUBJECT", "ROLE", "BY"]
    # Whose way to the end is the longest goes first, as in a run.
    assert [" ".join(line.split()) for line in lines[1:]] == [
        "left ready Look to the left researcher other",
        "right ready Look to the right - rehearsal",
    ]
    first = call(folder, "plan", "--json", "-n", "1").json
    assert set(first[0]) == FIELDS | {"label", "kind", "role", "agent", "state"}
    assert (first[0]["label"], first[0]["role"]) == ("Look to the left", "researcher")
    assert not (folder / "sync").exists()


def test_a_changed_graph_is_refused_until_it_is_adopted(tmp_path: Path) -> None:
    folder = crew(tmp_path / "p")
    assert call(folder, "run", "--max-steps", "1", "--quiet").code == 0
    config = folder / "orchestration.yaml"
    config.write_text(config.read_text().replace("[left, right]", "[left]"))
    with pytest.raises(DefinitionChanged):
        open_run(folder).next()
    assert call(folder, "plan").code == 3


def test_plan_of_a_team_follows_the_position_of_the_run(tmp_path: Path) -> None:
    folder = crew(tmp_path / "p")
    assert call(folder, "tick", "--quiet").code == 0
    assert call(folder, "tick", "--quiet").code == 0
    assert steps(folder) == ["cross"]
    assert call(folder, "tick", "--quiet").code == 0
    ended = call(folder, "plan")
    assert (ended.code, ended.out) == (0, "")
    assert "complete" in ended.err


def test_a_person_is_named_as_a_person(tmp_path: Path) -> None:
    folder = crew(tmp_path / "p")
    found = call(folder, "plan", "--workflow", "chart").out.splitlines()
    assert found[0].split() == ["NODE", "STATE", "TITLE", "BY"]
    assert found[1].split() == ["ask", "ready", "Fine?", "a", "person"]


def test_another_workflow_is_shown_from_its_beginning(tmp_path: Path) -> None:
    folder = crew(tmp_path / "p")
    assert call(folder, "tick", "--quiet").code == 0
    assert steps(folder, "--workflow", "chart") == ["ask"]
    assert steps(folder, "--workflow", "standard", "--count", "2") == ["main", "supervisor"]


def test_step_index_is_refused_for_a_graph(tmp_path: Path) -> None:
    folder = crew(tmp_path / "p")
    ended = call(folder, "plan", "--step-index", "3")
    assert ended.code == 2
    assert "--step-index: is for cycles and procedures" in ended.err
    assert "sequencer plan --simulate" in ended.err


def test_a_message_reports_that_no_node_can_start(tmp_path: Path) -> None:
    folder = crew(tmp_path / "p")
    assert call(folder, "run", "chart", "--quiet").code == 4
    ended = call(folder, "--run", "chart", "plan")
    assert (ended.code, ended.out) == (0, "")
    assert "no node can start now" in ended.err
    assert call(folder, "--run", "chart", "plan", "--json").json == []


def test_an_unknown_workflow_lists_flowcharts_too(tmp_path: Path) -> None:
    folder = project(tmp_path)
    (folder / "flows").mkdir()
    (folder / "flows" / "repair.md").write_text(CHART)
    refused = call(folder, "plan", "repare")
    assert refused.code == 2
    assert "unknown workflow 'repare'\n  did you mean 'repair'? known workflows: " in refused.err
    assert ", repair, review_cadence, " in refused.err
