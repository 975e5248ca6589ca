"""`status --all`: what each run waits for, its turn, its step and its age."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sequencer.plugins.schedules import every_run, schedules
from tests.unit.cli.calling import call, project

CONFIGURATION = """\
agent: rehearsal
workflow: standard
workflows:
  two: {kind: procedure, steps: [supervisor, main]}
  asks: {kind: procedure, steps: [{name: supervisor, requires_approval: true}]}
schedules:
  night: {workflow: two, at: "0 2 * * *"}
"""
DAY_S = 24 * 60 * 60


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = project(tmp_path / "p", CONFIGURATION)
    monkeypatch.setattr(
        every_run,
        "_run_tick",
        lambda _, __, run, *___, **____: (
            call(made, *(() if run.name is None else ("--run", run.name)), "tick").code
        ),
    )
    for name, workflow in (("letter", "asks"), ("docs", "two")):
        call(made, "--run", name, "run", "--workflow", workflow, "--max-steps", "1", "--quiet")
    assert call(made, "run", "--max-steps", "1", "--quiet").code == 0
    return made


def listed(folder: Path) -> dict[str | None, Any]:
    return {one["run"]: one for one in call(folder, "status", "--all", "--json").json}


def test_status_shows_what_each_run_waits_for_and_whose_turn_it_is(folder: Path) -> None:
    runs = listed(folder)
    assert {name: runs[name]["waits_for"]["kind"] for name in runs} == {
        None: "ready",
        "letter": "person",
        "docs": "ready",
        "night": "date",
    }
    assert [runs[name]["turn"] for name in runs] == [None] * 4, "no tick of all runs came"
    assert call(folder, "tick", "--all").code == 0
    # The request was first, and is over.
    runs = listed(folder)
    assert {name: runs[name]["turn"] for name in runs} == {None: 1, "letter": None, "night": None}
    shown = call(folder, "status", "--all").out
    assert "\n(default): waits for its turn: 1 in the line of 'tick --all'\n" in shown
    assert re.search(r"(?m)^letter: waits: 'supervisor' waits for a decision; ", shown)


def test_a_run_at_its_last_gate_is_at_its_last_step(folder: Path) -> None:
    assert re.search(r"(?m)^letter +asks +1/1 ", call(folder, "status", "--all").out)


def test_the_age_of_a_scheduled_run_counts_from_its_newest_start(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for day in (0, 1, 1):
        moved = SimpleNamespace(time=lambda day=day: time.time() + day * DAY_S)
        monkeypatch.setattr(schedules, "time", moved)
        assert call(folder, "--run", "night", "tick").code == 0
    first = listed(folder).get("night")
    assert first is not None
    time.sleep(1.1)  # times are kept in whole seconds
    moved = SimpleNamespace(time=lambda: time.time() + 2 * DAY_S)
    monkeypatch.setattr(schedules, "time", moved)
    assert call(folder, "--run", "night", "tick").code == 0
    facts = [
        json.loads(line)
        for line in call(folder, "--run", "night", "history", "--json").out.splitlines()
    ]
    (reset,) = [one["at"] for one in facts if one["event"] == "reset"]
    begun = [one["at"] for one in facts if one["event"] == "initialised"]
    assert listed(folder)["night"]["began_at"] == reset
    assert begun != [reset]
