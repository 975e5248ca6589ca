"""A cap on costs ends a run before a step that can't be paid, and never as a failure."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.cli_process import cli, head

CLIENT = f"""\
#!{sys.executable} -IS
import json, sys
sys.stdin.read()
with open("budgets", "a") as file:
    given = [float(word.partition("=")[2]) for word in sys.argv if "--max-budget-usd" in word]
    file.write(json.dumps(given) + "\\n")
cost = float(open("price").read())
event = {{"type": "result", "is_error": False, "result": "done", "total_cost_usd": cost}}
if given and given[0] < cost:
    event |= {{"subtype": "error_max_budget_usd", "is_error": True, "total_cost_usd": given[0]}}
    event["errors"] = [f"Reached maximum budget (${{given[0]}})"]
print(json.dumps(event), flush=True)
sys.exit(event["is_error"])
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a project whose step costs 0.4 USD, or all of its budget if that is less."""
    made = tmp_path / "p"
    made.mkdir()
    client = tmp_path / "client"
    client.write_text(CLIENT)
    client.chmod(0o755)
    (made / "price").write_text("0.4")
    return made


def configure(folder: Path, cap: float, **step: Any) -> None:
    entry = {"kind": "claude", "program": str(folder.parent / "client")}
    settings = {"agent": {"default": "model"}, "agents": {"model": entry}}
    steps = [{"name": "main", "text": "Go on.", "retry": {"max_attempts": 3}, **step}]
    document = settings | {"limits": {"cost_usd": cap}, "steps": steps}
    (folder / "orchestration.yaml").write_text(json.dumps(document))


def calls(folder: Path) -> int:
    return len((folder / "budgets").read_text().splitlines())


def events(folder: Path) -> list[str]:
    lines = cli(folder, "history", "--json").stdout.splitlines()
    return [json.loads(line)["event"] for line in lines]


def test_a_run_ends_when_less_is_left_than_its_step_usually_costs(folder: Path) -> None:
    configure(folder, 1.5)
    ended = cli(folder, "run")
    assert ended.returncode == 0, ended.stderr
    assert "the run's limit of 1.5 USD is reached (1.2000" in ended.stdout
    assert "a step usually takes more than is left" in ended.stdout
    assert "raise it in orchestration.yaml, then 'sequencer trust'" in ended.stdout
    assert calls(folder) == 3
    assert "the run's limit of 1.5 USD is reached" in cli(folder, "tick").stdout
    assert "the run's limit of 1.5 USD is reached" in cli(folder, "status").stdout
    assert calls(folder) == 3


@pytest.mark.slow
def test_a_step_ended_by_the_cap_is_released_and_continues_if_it_is_raised(
    folder: Path,
) -> None:
    configure(folder, 1.0)
    ended = cli(folder, "run")
    assert ended.returncode == 0, ended.stderr
    assert "the run's limit of 1.0 USD is reached" in ended.stdout
    assert "failed" not in ended.stdout + ended.stderr
    assert "failed" not in events(folder)
    assert events(folder)[-1] == "released"
    before = head(folder)
    assert (before["failures_in_row"], before["not_before"]) == (0, None)
    configure(folder, 10.0)
    again = cli(folder, "run", "--max-steps", "1")
    assert again.returncode == 0, again.stderr
    assert "waiting" not in again.stderr
    assert head(folder)["step_index"] == 3


def test_a_step_above_its_own_budget_fails(folder: Path) -> None:
    configure(folder, 10.0, max_cost_usd=0.1, retry={"max_attempts": 1})
    assert cli(folder, "run").returncode == 1
    assert events(folder)[-1] == "failed"


@pytest.mark.slow
def test_a_cheap_step_still_runs_on_the_last_cents(folder: Path) -> None:
    (folder / "price").write_text("0.01")
    configure(folder, 0.1)
    ended = cli(folder, "run", "--max-steps", "9")
    assert ended.returncode == 0, ended.stderr
    assert head(folder)["step_index"] == 9


@pytest.mark.slow
def test_an_invocation_ends_when_less_is_left_than_a_step_usually_costs(folder: Path) -> None:
    configure(folder, 10.0)
    assert cli(folder, "run", "--max-steps", "3").returncode == 0
    ended = cli(folder, "run", "--max-cost", "1")
    assert ended.returncode == 0, ended.stderr
    assert "0.8000 of 1.0 USD is spent" in ended.stdout
    assert calls(folder) == 5
