from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.calling import call, project, worked

CONFIGURATION = """\
workflow: {name: review_cadence, review_every_n: 2}
agent: {default: a, roles: {main: b}}
agents:
  a: {kind: command, argv: [cat]}
  b: {kind: command, argv: [no-such-program-at-all]}
workflows: {mine: {steps: [{name: main, timeout_s: 60}]}}
"""


def report(folder: Path, *options: str) -> dict[str, Any]:
    ended = call(folder, "run", "--dry-run", "--json", *options)
    assert ended.code == 0, ended.err
    found: dict[str, Any] = ended.json
    return found


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_options_and_the_fields_of_the_step(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", CONFIGURATION)
    found = report(folder, "--agent-step", "supervisor=rehearsal")
    assert (found["agent"], found["chosen_by"]) == ("rehearsal", "--agent-step")
    found = report(folder, "--workflow", "mine", "--review-every", "0")
    assert found["budget"] == {"timeout_s": 60.0}
    assert (found["agent"], found["chosen_by"]) == ("b", "agent.roles")


def test_everything_that_blocks_the_step_is_reported(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", CONFIGURATION)
    (folder / "prompts" / "supervisor.md").unlink()
    (way,) = report(folder)["in_the_way"]
    assert "unknown prompt 'supervisor.md'" in way
    found = report(folder, "--mode", "async", "--step-index", "1")
    assert any("no-such-program-at-all" in line for line in found["in_the_way"])


def test_a_step_whose_text_is_in_the_workflow_needs_no_prompt_file(tmp_path: Path) -> None:
    steps = "{kind: procedure, steps: [{name: tell, text: Tell all.}]}"
    configuration = CONFIGURATION.replace("workflows: {", f"workflows: {{told: {steps}, ")
    found = report(project(tmp_path / "p", configuration), "--workflow", "told")
    assert found["prompt"] == "the text of step 'tell'"
    assert found["in_the_way"] == []


def broken_definition(folder: Path) -> None:
    (folder / "orchestration.yaml").write_text(
        "workflow: {name: standard}\nagent: {default: rehearsal}\n"
    )


def pause(folder: Path) -> None:
    assert call(folder, "stop", "--pause").code == 0


def fail_often(folder: Path) -> None:
    for _ in range(3):
        assert call(folder, "skip", "--as-failed").code == 0


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (broken_definition, "started differently"),
        (pause, "paused"),
        (fail_often, "3 times in a row"),
    ],
)
def test_the_state_of_the_run(tmp_path: Path, change: Any, word: str) -> None:
    folder = worked(tmp_path / "p", 1)
    change(folder)
    before = contents(folder)
    (way,) = report(folder)["in_the_way"]
    assert word in way
    assert contents(folder) == before


@pytest.mark.parametrize("position", ["7", "9" * 5000, "nowhere"])
def test_a_position_that_does_not_exist(tmp_path: Path, position: str) -> None:
    (way,) = report(worked(tmp_path / "p", 1), "--position", position)["in_the_way"]
    assert f"unknown position '{position}'" in way


def test_a_position_that_is_not_due(tmp_path: Path) -> None:
    folder = worked(tmp_path / "p", 1)
    (way,) = report(folder, "--position", "supervisor")["in_the_way"]
    assert "position main" in way
    assert report(folder, "--position", "main")["in_the_way"] == []
    assert report(folder, "--position", "1")["in_the_way"] == []
