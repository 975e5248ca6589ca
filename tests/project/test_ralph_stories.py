"""The program of the page on ralph takes `prd.json` as it is found."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.project.documents import ROOT, fences
from tests.unit.cli.calling import call

PAGE = ROOT / "docs" / "coming-from" / "ralph.md"
(SCRIPT,) = [fence.text for fence in fences(PAGE) if fence.language == "python"]
STORY = {"title": "Limit it", "acceptanceCriteria": ["three tries"]}


def planned(folder: Path, prd: Any) -> list[dict[str, Any]]:
    """Return the tasks that the program makes of *prd*; `plan` takes them."""
    (folder / "prd.json").write_text(json.dumps(prd))
    (folder / "stories.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-IS", "stories.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    settings = json.loads((folder / "orchestration.yaml").read_text())
    plan = call(folder, "plan", "prd")
    assert plan.code == 0, plan.err
    tasks: list[dict[str, Any]] = settings["workflows"]["prd"]["tasks"]
    return tasks


@pytest.fixture(autouse=True)
def _trusting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQUENCER_TRUST", "all")


@pytest.mark.parametrize(
    ("prd", "ids"),
    [
        ({"userStories": [{"id": "US-2", **STORY, "passes": False}]}, ["us-2"]),
        ({"userStories": [{"id": "US-2", **STORY}]}, ["us-2"]),
        ({"userStories": [{"id": 7, **STORY}, {"id": 8, **STORY, "passes": True}]}, ["7"]),
        ([{"id": 1, **STORY}, {"id": 2, **STORY}], ["1", "2"]),
        ([{"id": "US 1: log in", **STORY}], ["us-1-log-in"]),
        ([STORY, {"id": None, **STORY}], ["story-1", "story-2"]),
        ({"id": "x", **STORY}, ["x"]),
        ({"stories": [{"id": "x", "name": "A name alone"}]}, ["x"]),
        ([{"id": "b", **STORY, "priority": 2}, {"id": "a", **STORY, "priority": 1}], ["a", "b"]),
        ([{"id": "b", **STORY, "priority": "P1"}, {"id": "a", **STORY}], ["b", "a"]),
        ([{"id": "x"}], ["x"]),
    ],
)
def test_each_story_that_does_not_pass_is_a_task(tmp_path: Path, prd: Any, ids: list[str]) -> None:
    assert [task["id"] for task in planned(tmp_path, prd)] == ids


def test_a_story_waits_for_those_that_are_not_done(tmp_path: Path) -> None:
    stories = [
        {"id": 1, **STORY, "passes": True},
        {"id": 2, **STORY},
        {"id": 3, **STORY, "dependencies": [1, 2]},
        {"id": 4, **STORY, "dependsOn": ["2", "gone"]},
    ]
    tasks = planned(tmp_path, stories)
    assert [task["blocked_by"] for task in tasks] == [[], ["2"], ["2"]]


def test_criteria_may_be_objects_or_one_text(tmp_path: Path) -> None:
    objects = {"title": "x", "acceptanceCriteria": [{"id": "AC1", "statement": "it works"}]}
    text = {"title": "y", "acceptanceCriteria": "it works"}
    first, second = planned(tmp_path, [objects, text])
    assert "it works" in first["description"]
    assert second["description"] == "it works"
