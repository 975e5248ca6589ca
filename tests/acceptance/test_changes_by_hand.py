"""What a person changes beside the program: it is told as it is, and nothing else comes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.cli_process import cli, done, head, scripted_project
from tests.boundary.forging import forge

TIRED = """\
agent: {default: tired}
agents:
  tired:
    kind: scripted
    outcomes: [{status: limited, not_before: "2999-01-01T00:00:00Z", usage: {cost_usd: 0.5}}]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return scripted_project(tmp_path)


def edit(folder: Path, **fields: Any) -> None:
    path = folder / "sync" / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def told(folder: Path) -> list[tuple[str, str, int]]:
    """Return event, step and step_index of what has happened."""
    lines = cli(folder, "history", "--json").stdout.splitlines()
    return [(f["event"], f["step"], f["step_index"]) for f in map(json.loads, lines)]


def test_only_resume_ends_a_pause(folder: Path) -> None:
    assert cli(folder, "run", "--max-steps", "1").returncode == 0
    cli(folder, "stop", "--pause")
    for arguments in (
        ("skip", "--as-done"),
        ("skip",),
        ("rewind", "1"),
        ("skip", "--as-failed"),
        ("retry",),
    ):
        changed = cli(folder, *arguments)
        assert changed.returncode == 0, changed.stderr
        assert "the run is paused" in changed.stdout
        assert head(folder)["status"] == "paused"
    ended = cli(folder, "run", "--max-steps", "1")
    assert (ended.returncode, done(folder)) == (0, [0])
    assert cli(folder, "resume").returncode == 0
    assert cli(folder, "run", "--max-steps", "1").returncode == 0
    assert done(folder) == [0, 1]
    cli(folder, "stop", "--pause")
    # Another run has no pause, and that is said.
    assert "paused, and the new one is not" in cli(folder, "reset", "--yes").stdout
    assert head(folder)["status"] == "idle"


def test_the_history_names_the_step_that_is_at_an_edited_step_index(folder: Path) -> None:
    assert cli(folder, "run", "--max-steps", "1").returncode == 0
    assert "step_index is 3" in cli(folder, "set", "step_index=3").stdout
    assert head(folder)["expected_step"] == "reviewer"
    assert cli(folder, "skip").returncode == 0
    assert cli(folder, "set", "step_index=1").returncode == 0
    looked = json.loads(cli(folder, "status", "--json").stdout)
    assert (looked["expected_step"], looked["iteration"]) == ("main", 2)
    assert cli(folder, "skip", "--as-done").returncode == 0
    assert head(folder)["expected_step"] == "reviewer"
    assert told(folder)[3:] == [
        ("edited", "main", 1),
        ("skipped", "reviewer", 3),
        ("edited", "supervisor", 4),
        ("stamped", "main", 1),
    ]


def test_a_false_status_is_refused_by_set_and_corrected_in_the_file(folder: Path) -> None:
    assert cli(folder, "run", "--max-steps", "1").returncode == 0
    before = head(folder)
    for status, command in (("running", "run"), ("waiting-approval", "stop --pause")):
        refused = cli(folder, "set", f"status={status}")
        assert refused.returncode == 3
        assert f"went from waiting-next to {status}" in refused.stderr
        assert f"'sequencer {command}'" in refused.stderr
    assert head(folder) == before
    edit(folder, status="running")
    ran = cli(folder, "run", "--max-steps", "1")
    assert (ran.returncode, done(folder)) == (0, [0, 1])
    assert "status can't be changed there" in ran.stderr
    assert "'sequencer stop --pause'" in ran.stderr


def test_a_tick_without_work_reports_no_usage(folder: Path) -> None:
    (folder / "orchestration.yaml").write_text(TIRED)
    first, second, third = (cli(folder, "tick") for _ in range(3))
    assert [one.returncode for one in (first, second, third)] == [0, 0, 0]
    assert "0.50" in first.stdout
    assert second.stdout == third.stdout
    assert second.stdout.startswith("nothing due: usage limit of agent 'tired'")
    assert "·" not in second.stdout


def test_a_changed_cadence_does_not_block_plan(folder: Path) -> None:
    assert cli(folder, "run", "--max-steps", "2").returncode == 0
    config = folder / "orchestration.yaml"
    config.write_text(config.read_text().replace("review_every_n: 2", "review_every_n: 3"))
    looked = cli(folder, "plan", "--count", "3", "--json")
    assert looked.returncode == 0
    assert [step["step"] for step in json.loads(looked.stdout)] == [
        "supervisor",
        "main",
        "reviewer",
    ]
    assert "started differently" in looked.stderr
    assert "'sequencer adopt'" in looked.stderr
    assert cli(folder, "run", "--max-steps", "1").returncode == 3
    assert cli(folder, "adopt").returncode == 0
    assert cli(folder, "plan").stderr == ""


def test_a_second_approval_reports_that_no_run_is_waiting(folder: Path) -> None:
    config = folder / "orchestration.yaml"
    steps = "[{name: main, requires_approval: true}, supervisor]"
    text = f"workflows:\n  gated: {{kind: procedure, steps: {steps}}}\n"
    config.write_text(config.read_text() + text)
    asked = cli(folder, "run", "--run", "docs", "--workflow", "gated")
    assert asked.returncode == 4
    # The kind of answer in front of it, where nothing asked is called that.
    told = cli(folder, "answer", "feedback", "Say how to test it.")
    assert "feedback was given to 'main'" in told.stdout
    assert cli(folder, "run", "--run", "docs").returncode == 4
    first = cli(folder, "answer", "approve")
    assert first.returncode == 0
    assert "this answers run 'docs', the only one that waits" in first.stderr
    second = cli(folder, "answer", "approve")
    assert second.returncode == 3
    assert "no run waits for a decision" in second.stderr
    assert "'sequencer status --all'" in second.stderr
    assert not (folder / "sync" / "state.json").exists()


def test_a_run_with_a_date_at_the_end_of_the_calendar_waits(folder: Path) -> None:
    date = "9999-12-31T23:59:59-12:00"
    assert cli(folder, "set", f"not_before={date}").returncode == 3
    assert cli(folder, "set", "not_before=2030-01-01").returncode == 0
    assert cli(folder, "stop", "--pause").returncode == 0
    # An earlier version accepted the other date as well.
    forge(folder / "sync", lambda record: record["head"].update(not_before=date))
    assert cli(folder, "resume").returncode == 0
    for words in (("status",), ("tick",), ("inbox",), ("status", "--json")):
        called = cli(folder, *words)
        assert called.returncode == 0, called.stderr
    assert done(folder) == []
    assert head(folder)["not_before"] == date


def test_the_history_is_shown_beside_an_edit_of_an_old_state(folder: Path) -> None:
    assert cli(folder, "run", "--max-steps", "1").returncode == 0
    old = (folder / "sync" / "state.json").read_text()
    assert cli(folder, "run", "--max-steps", "1").returncode == 0
    (folder / "sync" / "state.json").write_text(old)
    edit(folder, not_before="2999-01-01T00:00:00Z")
    said = cli(folder, "history")
    assert said.returncode == 0
    assert said.stdout.count("succeeded") == 2
    assert "was edited at revision" in said.stderr
    assert cli(folder, "status").returncode == 3
