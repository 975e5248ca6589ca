"""What `start` shows before it works: tasks in words, as a chart, as a drawing."""

from __future__ import annotations

from pathlib import Path

import pytest

from sequencer.cli.views.text import width
from tests.acceptance.test_team_views import seen_on_terminal
from tests.unit.cli.calling import call, project

CONFIGURATION = """\
agent: {default: rehearsal}
routing: {classifier: rules}
"""
REQUEST = "Migrate the frontend and the backend across the codebase"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return project(tmp_path / "p", CONFIGURATION)


def started(folder: Path, *options: str) -> str:
    ended = call(folder, "start", REQUEST, *options)
    assert ended.code == 0, ended.err
    assert not (folder / "sync").exists() or "--no-run" in options
    return ended.out


def test_a_team_as_json_says_who_waits_for_whom(folder: Path) -> None:
    ended = call(folder, "start", REQUEST, "--team", "--dry-run", "--json")
    steps = {step["step"]: step for step in ended.json["steps"]}
    assert steps["implement"]["blocked_by"] == ["research", "plan"]
    assert steps["verify"]["role"] == "verifier"
    assert steps["verify"]["subject"] == "Verify the change"
    plain = call(folder, "start", REQUEST, "--no-team", "--dry-run", "--json").json["steps"]
    assert "blocked_by" not in plain[0]


def test_a_team_as_a_drawing(folder: Path) -> None:
    drawn = started(folder, "--team", "--dry-run", "--diagram")
    assert "Make the change" in drawn
    assert "(implement)" in drawn
    assert "+--" in drawn


def test_a_procedure_as_a_chart(folder: Path) -> None:
    lines = started(folder, "--no-team", "--dry-run", "--mermaid").splitlines()
    assert lines[0] == "flowchart TD"
    assert '    s0["coding-activity"]' in lines
    ended = call(folder, "start", REQUEST, "--no-team", "--dry-run", "--diagram")
    assert ended.code == 2
    assert "--diagram: is for teams" in ended.err


def test_a_run_that_is_made_can_be_drawn_as_well(folder: Path) -> None:
    made = started(folder, "--team", "--no-run", "--mermaid")
    assert made.startswith("flowchart TD\n")
    (name,) = [run["run"] for run in call(folder, "runs", "--json").json]
    # The same as it is drawn later, when no task has begun.
    assert call(folder, "--run", name, "show", "--mermaid").out == made


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--mermaid",), "add --dry-run or --no-run"),
        (("--diagram",), "--diagram: shows what would be made"),
        (("--dry-run", "--mermaid", "--diagram"), "exclude each other"),
        (("--dry-run", "--mermaid", "--json"), "a drawing is no JSON"),
    ],
)
def test_what_is_refused_makes_no_run(folder: Path, options: tuple[str, ...], words: str) -> None:
    ended = call(folder, "start", REQUEST, "--team", *options)
    assert (ended.code, ended.out) == (2, "")
    assert words in ended.err
    assert not (folder / "sync").exists()


@pytest.mark.parametrize("columns", [80, 200])
def test_tasks_fit_on_the_terminal(folder: Path, columns: int) -> None:
    text = seen_on_terminal(folder, columns, "start", REQUEST, "--team", "--dry-run")
    lines = text.splitlines()
    table = lines[next(n for n, line in enumerate(lines) if line.startswith("TASK ")) :]
    assert len(table) == 9
    assert all(width(line) <= columns for line in table), table
    assert ("Research what the request touches" in text) is (columns > 80)
    assert ("system prompt" in text) is (columns == 200)
