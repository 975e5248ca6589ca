"""Whoever asks a model: the call is counted in the run, and its process has the agent's mark."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.acceptance.charging import (
    Answers,
    calls_of,
    charged,
    charged_project,
    counted,
)
from tests.acceptance.cli_process import cli

ONE_STEP = {
    "workflows": {"mine": {"kind": "procedure", "steps": ["look"]}},
    "routing": {"procedures": {"code": "mine"}, "fallback": "mine"},
}
JUDGING = {
    "workflow": {"name": "judged"},
    "workflows": {
        "judged": {
            "kind": "procedure",
            "steps": [
                {"name": "verify", "validation": {"max_attempts": 3, "fixer": {"name": "fix"}}}
            ],
        }
    },
}
ROUTED = {"workflow": {"name": "standard"}, "router": {"enabled": True, "prompt": "router.md"}}
FLOW = """---
id: two
---

```mermaid
flowchart TD
a --> b
```

### a
x

### b
x
"""


def says(*answers: str, **more: object) -> list[dict[str, object]]:
    return [{"says": answer, **more} for answer in answers]


def ensure_counted(folder: Path, name: str | None) -> None:
    """Return if every view says what the model has charged, and every call was an agent's."""
    paid = charged(folder)
    assert paid != (0.0, 0)
    assert counted(folder, name) == dict.fromkeys(counted(folder, name), paid)
    ensure_marked(folder)


def ensure_marked(folder: Path) -> None:
    calls = calls_of(folder)
    assert calls
    assert [call for call in calls if not re.fullmatch(r"\d+", call["SEQUENCER_TOKEN"])] == []


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize(
    "answers",
    [
        says("code"),
        says("code", cost=None),
        says("code", cost=0),
        says("code", cost=-0.0),
        [{"says": "It is code.", "cost": 0.5}, {"says": "code", "cost": None}],
        [{"says": "no idea", "cost": 0.25}, {"says": "", "cost": 0.125, "exit": 1}],
    ],
)
def test_start_counts_each_classifier_call(
    answers: list[dict[str, object]], tmp_path: Path
) -> None:
    folder = charged_project(tmp_path / "p", {"classifier": answers}, **ONE_STEP)
    ended = cli(folder, "--run", "x", "start", "Improve it")
    assert ended.returncode == 0, ended.stderr
    calls = calls_of(folder)
    expected = 2 if answers[0]["says"] != "code" else 1
    assert [call["step"] for call in calls] == ["classifier"] * expected + ["look"]
    assert {(call["SEQUENCER_TOKEN"], call["SEQUENCER_RUN_ID"]) for call in calls[:-1]} == {
        ("0", None)
    }
    ensure_counted(folder, "x")
    beginning = json.loads(cli(folder, "--run", "x", "history", "--json").stdout.splitlines()[0])
    assert (beginning["event"], beginning["outcome"]["agent"]) == ("initialised", "model")


@pytest.mark.slow
def test_a_limit_of_the_run_counts_its_classification(tmp_path: Path) -> None:
    answers = {"classifier": says("code", cost=0.5)}
    folder = charged_project(tmp_path / "p", answers, **ONE_STEP, limits={"cost_usd": 0.5})
    ended = cli(folder, "--run", "x", "start", "Improve it")
    assert "the run's limit of 0.5 USD is reached" in ended.stdout + ended.stderr
    assert [call["step"] for call in calls_of(folder)] == ["classifier"]
    ensure_counted(folder, "x")
    ended = cli(folder, "--run", "y", "start", "Improve it", "--max-cost", "0.25")
    assert [call["step"] for call in calls_of(folder)] == ["classifier"] * 2
    assert "classifying the request cost 0.5000 USD, which is all of --max-cost" in ended.stderr


@pytest.mark.slow
def test_a_router_is_counted_each_time_it_is_asked(tmp_path: Path) -> None:
    answers: Answers = {"router": [*says("nonsense", cost=0.5), {"cost": None}, *says("main.md")]}
    folder = charged_project(tmp_path / "p", answers, **ROUTED)
    for code in (1, 1, 0):
        assert cli(folder, "run", "--max-steps", "1").returncode == code
    assert [call["step"] for call in calls_of(folder)] == ["router"] * 3 + ["supervisor"]
    ensure_counted(folder, None)


@pytest.mark.slow
def test_judges_and_fixers_are_counted_in_every_round(tmp_path: Path) -> None:
    no, yes = (json.dumps({"pass": one, "reason": "so"}) for one in (False, True))
    answers = {"verify": [*says(no, cost=0.5), *says(no, yes, cost=None)], "fix": says("mended")}
    folder = charged_project(tmp_path / "p", answers, **JUDGING)
    assert cli(folder, "run").returncode == 0
    assert [call["step"] for call in calls_of(folder)] == ["verify", "fix"] * 2 + ["verify"]
    ensure_counted(folder, None)


@pytest.mark.slow
def test_the_nodes_of_a_flow_and_the_tasks_of_a_team_are_counted(tmp_path: Path) -> None:
    answers = {"a": says("done", cost=None), "classifier": says("code", cost=0.5)}
    folder = charged_project(tmp_path / "p", answers)
    (folder / "flows").mkdir()
    (folder / "flows" / "two.md").write_text(FLOW)
    assert cli(folder, "--run", "two", "run", "flows/two.md").returncode == 0
    ensure_counted(folder, "two")
    (folder.parent / "p-bank" / "charges.jsonl").unlink()
    made = cli(folder, "--run", "t", "start", "Improve it", "--team", "--no-run")
    assert made.returncode == 0, made.stderr
    cli(folder, "--run", "t", "run", "--max-steps", "3")
    assert {call["step"] for call in calls_of(folder)} == {
        *("classifier", "research", "plan", "implement")
    }
    ensure_counted(folder, "t")
    # Its classification is no task's, and part of the sum below the table all the same.
    *_, summed, _, following = cli(folder, "--run", "t", "status").stdout.splitlines()
    assert ("0.8750 USD" in summed, following) == (True, "next: sequencer --run t run")


def test_the_cost_of_planning_is_reported_but_counted_in_no_run(tmp_path: Path) -> None:
    answers = {"classifier": [*says("what?", cost=0.5), *says("code", cost=None)]}
    folder = charged_project(tmp_path / "p", answers, **ONE_STEP)
    ended = cli(folder, "plan", "--request", "Improve it")
    told = "classifying the request by model: 0.5000 USD and 1 call of unknown cost"
    assert ended.returncode == 0
    assert told in ended.stderr
    ended = cli(folder, "plan", "--request", "Improve it", "--json")
    found = json.loads(ended.stdout)
    assert (found["asked"], found["usage"]["unpriced"]) == ("model", 1)
    assert not (folder / "sync").exists()
    ensure_marked(folder)


def test_an_agent_that_plans_asks_no_model(tmp_path: Path) -> None:
    folder = charged_project(tmp_path / "p", {}, **ONE_STEP)
    mark = {"SEQUENCER_TOKEN": "0"}
    ended = cli(folder, "plan", "--request", "How does it work?", "--json", timeout_s=60.0, **mark)
    assert ended.returncode == 0
    assert "notice: an agent asks, so keyword rules classify the request" in ended.stderr
    assert json.loads(ended.stdout)["source"] == "rules"
    assert calls_of(folder) == []


def test_the_cost_of_a_failed_start_is_reported(tmp_path: Path) -> None:
    folder = charged_project(tmp_path / "p", {"classifier": says("code", cost=0.5)}, **ONE_STEP)
    (folder / "sync").write_text("in the way")
    ended = cli(folder, "--run", "x", "start", "Improve it", "--no-run")
    assert ended.returncode != 0
    assert "notice: classifying the request cost 0.5000 USD" in (ended.stderr)


@pytest.mark.slow
def test_the_cost_of_an_interrupted_start_is_counted_when_its_run_starts(tmp_path: Path) -> None:
    folder = charged_project(tmp_path / "p", {"classifier": says("code", cost=0.5)}, **ONE_STEP)
    assert cli(folder, "--run", "x", "start", "Improve it", "--no-run").returncode == 0
    # Killed between the definition and the head, it has left only the definition.
    for path in (folder / "sync" / "runs" / "x").iterdir():
        if path.is_file() and path.name != "definition.json":
            path.unlink()
    assert cli(folder, "--run", "x", "run").returncode == 0
    assert [call["step"] for call in calls_of(folder)] == ["classifier", "look"]
    ensure_counted(folder, "x")


def test_a_step_of_mode_async_has_the_mark(tmp_path: Path) -> None:
    folder = charged_project(tmp_path / "p", {}, workflow={"name": "standard"})
    assert cli(folder, "run", "--mode", "async", "--max-steps", "1").returncode == 0
    assert [call["SEQUENCER_TOKEN"] for call in calls_of(folder)] == ["0"]


def test_a_rehearsal_and_a_dry_run_ask_no_model(tmp_path: Path) -> None:
    folder = charged_project(tmp_path / "p", {}, **ROUTED)
    assert cli(folder, "run", "--dry-run").returncode == 0
    assert cli(folder, "run", "--rehearse", "--max-steps", "1").returncode == 0
    assert cli(folder, "start", "Improve it", "--rehearse").returncode == 0
    assert calls_of(folder) == []
