"""`tick --all`: one timer works through all runs, so many at a time, each in its order."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.acceptance.cli_process import cli, launched, until
from tests.unit.cli.calling import call, project

AGENT = """\
import os, sys, time
sys.stdin.read()
name = os.environ["SEQUENCER_RUN_NAME"] + " " + os.environ["SEQUENCER_STEP"]
with open("order.txt", "a") as file:
    file.write(name + "\\n")
while os.path.exists("hold"):
    time.sleep(0.02)
sys.exit(os.path.exists("fail " + name))
"""
CONFIGURATION = """\
agent: script
agents:
  script: {kind: command, argv: ["{python}", -IS, agent.py], free: true}
workflows:
  two: {kind: procedure, steps: [supervisor, main]}
  asks: {kind: procedure, steps: [{name: supervisor, requires_approval: true}, main]}
schedules:
  yearly: {workflow: two, at: "0 2 1 1 *"}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = project(tmp_path / "p", CONFIGURATION)
    (made / "agent.py").write_text(AGENT)
    return made


def waiting_in_line(folder: Path, name: str, workflow: str = "two") -> None:
    """Start a run of that *name* whose first step is due."""
    assert call(folder, "--run", name, "reset", "--workflow", workflow, "--yes").code in (0, 2)
    first = call(folder, "--run", name, "run", "--workflow", workflow, "--max-steps", "1")
    assert first.code in (0, 4), first.err


def order(folder: Path) -> list[str]:
    path = folder / "order.txt"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.slow
def test_the_oldest_run_goes_first_and_a_waiting_run_blocks_no_other(folder: Path) -> None:
    waiting_in_line(folder, "first", "asks")
    waiting_in_line(folder, "second")
    waiting_in_line(folder, "third")
    (folder / "order.txt").unlink()
    for _ in range(2):
        ended = cli(folder, "tick", "--all")
        assert ended.returncode == 0, ended.stderr
    assert order(folder) == ["second main", "third main"]
    assert "first:" in ended.stderr
    assert cli(folder, "tick", "--all").returncode == 4, "nothing is due, and one asks"
    assert call(folder, "answer", "approve").code == 0
    assert cli(folder, "tick", "--all").returncode == 0
    assert order(folder)[2:] == ["first main"]
    nothing = cli(folder, "tick", "--all")
    assert (nothing.returncode, nothing.stdout.strip()[:24]) == (0, "nothing due: it starts a")


@pytest.mark.slow
def test_an_endless_cycle_does_not_starve_requests_and_dates(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert call(folder, "run", "--max-steps", "1").code == 0
    waiting_in_line(folder, "request")
    (folder / "orchestration.yaml").write_text(CONFIGURATION.replace("0 2 1 1 *", "* * * * *"))
    assert call(folder, "--run", "yearly", "tick").code == 0
    (record,) = (tmp_path / "state" / "sequencer" / "schedules").iterdir()
    record.write_text('{"since": 0.0}')
    (folder / "order.txt").unlink()
    for _ in range(5):
        assert cli(folder, "tick", "--all").returncode == 0
    # A date comes first, then what ends, then the cycle; each waits for one round.
    assert order(folder)[:4] == ["yearly supervisor", "request main", " main", "yearly main"]


@pytest.mark.slow
def test_runs_started_at_the_same_time_keep_their_order(folder: Path) -> None:
    for name in ("b", "a", "c"):
        waiting_in_line(folder, name)
    (folder / "order.txt").unlink()
    for _ in range(3):
        assert cli(folder, "tick", "--all").returncode == 0
    assert order(folder) == ["b main", "a main", "c main"]


def test_a_step_that_fails_is_the_ticks_failure(folder: Path) -> None:
    waiting_in_line(folder, "first")
    (folder / "fail first main").touch()
    assert cli(folder, "tick", "--all").returncode == 1
    assert cli(folder, "tick", "--all", "--run", "first").returncode == 2
    assert cli(folder, "tick", "--at-most", "2").returncode == 2


def test_at_most_limits_parallel_ticks_and_a_killed_one_frees_its_place(
    folder: Path,
) -> None:
    for name in ("first", "second", "third"):
        waiting_in_line(folder, name)
    (folder / "order.txt").unlink()
    (folder / "hold").touch()
    one, two = (launched(folder, "tick", "--all", "--at-most", "2") for _ in range(2))
    until(lambda: len(order(folder)) == 2)
    assert sorted(order(folder)) == ["first main", "second main"]
    third = cli(folder, "tick", "--all", "--at-most", "2")
    assert third.returncode == 75
    assert "--at-most" in third.stderr
    one.send_signal(signal.SIGTERM)
    assert one.wait(timeout=30) == 130
    # Its step was given back, and its place with it.
    (folder / "hold").unlink()
    assert two.wait(timeout=30) == 0
    for _ in range(2):
        assert cli(folder, "tick", "--all", "--at-most", "2").returncode == 0
    assert sorted({*order(folder)}) == ["first main", "second main", "third main"]
    ended = json.loads(cli(folder, "status", "--all", "--ended", "--json").stdout)
    assert [run["status"] for run in ended if run["run"] != "yearly"] == ["complete"] * 3


@pytest.mark.slow
def test_with_a_log_each_run_reports_once_in_its_own_log(folder: Path) -> None:
    waiting_in_line(folder, "first", "asks")
    waiting_in_line(folder, "second")
    told = [cli(folder, "tick", "--all", "--log", "logs/tick-all.log") for _ in range(3)]
    assert [one.returncode for one in told] == [0, 0, 0]
    assert "waits for a decision" in told[0].stderr
    assert "complete" not in told[0].stderr
    assert (told[1].stderr, told[2].stderr) == ("", "")
    for name in ("first", "second"):
        assert (folder / "logs" / f"tick.{name}.log").exists()


@pytest.mark.slow
def test_a_changed_project_is_reported_once_for_all_its_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting_in_line(folder, "first")
    waiting_in_line(folder, "second")
    monkeypatch.delenv("SEQUENCER_TRUST")
    assert call(folder, "trust", "--yes").code == 0
    path = folder / "orchestration.yaml"
    path.write_text(path.read_text().replace("free: true", "free: true, env: {A: b}"))
    tick = ("tick", "--all", "--log", "logs/tick-all.log")
    said = [call(folder, *tick).err for _ in range(2)]
    assert said[0].count("the project has changed since you trusted it") == 1
    assert said[1] == ""
    assert call(folder, "trust", "--yes").code == 0
    assert [call(folder, *tick).err for _ in range(3)] == ["", "", ""]
    path.write_text(path.read_text().replace("A: b", "A: c"))
    assert call(folder, *tick).err.count("the project has changed since you trusted it") == 1


@pytest.mark.slow
def test_one_timer_is_for_all_and_check_knows_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    waiting_in_line(folder, "first")
    printed = call(folder, "schedule", "print", "--all", "--at-most", "2").out
    (line,) = [one for one in printed.splitlines() if "tick" in one and not one.startswith("#")]
    assert "--all" in line
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "crontab").write_text(f"#!/bin/sh\ncat <<'END'\n{line}\nEND\n")
    (programs / "crontab").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    assert "no timer" not in call(folder, "check").out
    command = line.split(maxsplit=5)[5].rpartition(" # ")[0]
    env = {"HOME": str(tmp_path), "SEQUENCER_TRUST": "all"}
    (folder / "order.txt").unlink()
    ended = subprocess.run(["sh", "-c", command], cwd="/", env=env, check=False, timeout=60)
    assert ended.returncode == 0
    assert order(folder) == ["first main"]
    assert call(folder, "--run", "first", "schedule", "print", "--all").code == 2
    assert shlex.split(command)[0] == "cd"


def test_a_signal_ends_all_ticks_even_while_one_is_starting(folder: Path) -> None:
    for name in ("first", "second"):
        waiting_in_line(folder, name)
    (folder / "order.txt").unlink()
    with launched(folder, "tick", "--all") as ticks:
        until(lambda: psutil.Process(ticks.pid).children())
        ticks.send_signal(signal.SIGTERM)
        assert ticks.wait(30) == 130
    assert order(folder) == []
