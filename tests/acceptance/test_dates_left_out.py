"""A date of a schedule that starts nothing is said once, with the reason, and stays in `status`."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.wrong_clock import DAY_S, Later, mover
from tests.unit.cli.calling import call, project

CONFIGURATION = """\
agent: script
limits: {failures_in_row: 1}
agents:
  script: {kind: command, free: true, argv: [sh, -c, 'echo done; test ! -e fail']}
workflows:
  two: {kind: procedure, steps: [supervisor, main]}
  asks: {kind: procedure, steps: [{name: supervisor, requires_approval: true}]}
schedules:
  night: {workflow: two, at: "0 2 * * *"}
  letter: {workflow: asks, at: "0 2 * * *"}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return project(tmp_path / "p", CONFIGURATION)


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Later:
    """Return what moves the clock that many days after now."""
    return mover(monkeypatch, DAY_S)


def records() -> Path:
    """Return where the dates of schedules are kept, see docs/reference/files.md."""
    return Path(os.environ["XDG_STATE_HOME"], "sequencer", "schedules")


def tick(folder: Path, run: str = "night") -> str:
    """Let a timer's tick come; return what a person is told."""
    return call(folder, "--run", run, "tick", "--log", f"logs/tick.{run}.log").err


def started(folder: Path, later: Later, run: str = "night") -> None:
    tick(folder, run)
    later(1)
    tick(folder, run)


def left_out(folder: Path, run: str = "night") -> Any:
    facts = call(folder, "--run", run, "status", "--json").json
    (listed,) = [one for one in call(folder, "status", "--all", "--json").json if one["run"] == run]
    assert listed["left_out"] == facts.get("left_out")
    return facts.get("left_out")


REASONS: dict[str, tuple[list[list[str]], str]] = {
    "under way": ([], "it is under way"),
    "paused": ([["stop", "--pause"]], "it is paused"),
    "stopped": ([["stop"]], "it was stopped"),
}


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("case", REASONS)
def test_a_date_during_an_unfinished_run_is_reported_once_with_the_reason(
    folder: Path, later: Later, case: str
) -> None:
    commands, reason = REASONS[case]
    started(folder, later)
    assert left_out(folder) is None
    for command in commands:
        assert call(folder, "--run", "night", *command).code == 0
    later(3)
    # `status` knows it before a tick has come.
    assert left_out(folder)["reason"] == reason
    said = tick(folder)
    pattern = rf"run 'night' did not start at 20..-..-.. 02:00: {reason}\n"
    # If it goes on by itself, nobody has to act.
    assert bool(re.search(pattern, said)) is bool(commands)
    assert re.search(pattern, (folder / "logs/tick.night.log").read_text())
    assert "did not start" not in tick(folder)
    shown = call(folder, "--run", "night", "status").out
    assert re.search(rf"(?m)^left out    20..-..-.. 02:00: {reason}$", shown)
    assert re.search(
        rf"night: did not start at .* 02:00: {reason}", call(folder, "status", "--all").out
    )


def test_each_date_blocked_by_a_question_is_reported(folder: Path, later: Later) -> None:
    started(folder, later, "letter")
    for day in (2, 3):
        later(day)
        said = tick(folder, "letter")
        assert "run 'letter' did not start at " in said
        assert ": it waits for you\n" in said
    assert call(folder, "--run", "letter", "answer", "approve").code == 0
    later(3.1)
    tick(folder, "letter")
    later(4)
    tick(folder, "letter")
    # The newest start has made good for them.
    assert left_out(folder, "letter") is None


def test_a_date_blocked_by_a_failure_is_reported(folder: Path, later: Later) -> None:
    (folder / "fail").touch()
    started(folder, later)
    later(2)
    assert ": it failed\n" in tick(folder)


def test_a_date_before_the_end_of_the_last_start_is_reported(
    folder: Path, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    three_days_ago = time.time() - 3 * DAY_S
    tick(folder)
    later(-1.5)
    (record,) = (path for path in records().iterdir() if str(folder) in path.read_text())
    note = json.loads(record.read_text())
    record.write_text(json.dumps({**note, "since": three_days_ago}))
    tick(folder)
    later(0)
    monkeypatch.undo()
    monkeypatch.setenv("SEQUENCER_TRUST", "all")
    call(folder, "--run", "night", "run")
    assert "it was under way until 20" in left_out(folder)["reason"]


def test_dates_skipped_by_a_wrong_clock_are_forgotten(folder: Path, later: Later) -> None:
    started(folder, later)
    later(3650)
    tick(folder)
    assert "did not start at 203" in (folder / "logs/tick.night.log").read_text()
    later(0)
    tick(folder)
    assert left_out(folder) is None
    later(1.1)
    tick(folder)
    for day in (3, 4):
        later(day)
        tick(folder)
        tick(folder)
    listed = call(folder, "--run", "night", "history", "--json").out.splitlines()
    assert [json.loads(line)["event"] for line in listed].count("reset") == 2


def test_dates_count_from_the_time_of_trust_even_without_a_tick(
    folder: Path, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SEQUENCER_TRUST", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(folder.parent / "state"))
    assert call(folder, "trust", "--yes").code == 0
    assert not records().exists()
    later(1)
    assert call(folder, "--run", "night", "tick").code == 0
    assert call(folder, "--run", "night", "status", "--json").json["usage"]["steps"] == 1
