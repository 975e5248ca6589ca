"""`status` of a team that another process works on: what counts is in sight on any terminal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.cli_process import cli, launched
from tests.acceptance.team_projects import make_project
from tests.terminal_width import count_columns
from tests.unit.cli.flow.terminals import Terminal, terminal

AGENT = """\
import os, sys, time

task = os.environ["SEQUENCER_STEP"]
print(f"{task} reads\\x1b]0;owned\\x07 the code", flush=True)
if task == "t-05":
    sys.exit("no such module")
deadline = time.monotonic() + 60
while task in ("t-30", "t-31", "t-32"):
    assert time.monotonic() < deadline
    time.sleep(0.01)
"""


FREE, HELD = [f"t-{n:02d}" for n in range(9)], ["t-30", "t-31", "t-32"]


def tasks(count: int) -> list[dict[str, Any]]:
    """Return *count* tasks: nine that are free, three behind most of them, and others behind."""
    found: list[dict[str, Any]] = []
    for n in range(count):
        name = f"t-{n:02d}"
        found.append({"id": name, "subject": f"Do part {n} of the whole"})
        if name in HELD:
            found[-1]["blocked_by"] = [one for one in FREE if one != "t-05"]
        elif name not in FREE:
            found[-1]["blocked_by"] = [HELD[n % 3]]
    return found


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, int]]:
    """Work on a run until three tasks hold; return the project, and the process that does."""
    folder = make_project(tmp_path_factory.mktemp("team"), tasks(60), size=3)
    (folder / "agent.py").write_text(AGENT)
    process = launched(folder, "run", "--quiet", text=True)
    try:
        deadline = time.monotonic() + 60
        while {claim["step"] for claim in head(folder)["claims"]} != set(HELD):
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.05)
        yield folder, process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


@pytest.fixture
def project(worker: tuple[Path, int]) -> Path:
    return worker[0]


def head(folder: Path) -> dict[str, Any]:
    path = folder / "sync" / "state.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"claims": []}
    return found


@contextmanager
def watched(folder: Path, screen: Terminal, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    process = launched(
        folder, "status", "--watch", variables={"TERM": "xterm", **variables}, stdout=screen.stream
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.wait(20)


@pytest.mark.parametrize(("columns", "rows"), [(100, 30), (80, 24), (40, 24), (80, 16)])
def test_running_and_failed_tasks_are_visible(project: Path, columns: int, rows: int) -> None:
    with terminal(columns, rows) as screen, watched(project, screen) as process:
        screen.wait_for("t-32")
        screen.wait_for("Ctrl-C ends this view")
        found = screen.screen()
        assert len([line for line in found if line]) < rows
        assert all(count_columns(line) < columns for line in found), found
        text = "\n".join(found)
        for name, state in (("t-30", "run"), ("t-31", "run"), ("t-32", "run"), ("t-05", "fail")):
            (line,) = (
                line
                for line in found
                if f" {name} " in line and not line.startswith(("held by", "failures"))
            )
            assert state in line
        assert "8 done, 3 running, 48 waiting, 1 failed" in text
        (folded,) = (line for line in found if line.startswith("and "))
        assert "more: " in folded
        if columns >= 80:
            assert "t-31 reads the code" in text or "t-31 reads" in text
            assert "3 steps: " in text
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0


def test_status_shows_the_last_lines_and_the_claim_holders(worker: tuple[Path, int]) -> None:
    project, pid = worker
    told = cli(project, "status").stdout
    assert f"process {pid} on {os.uname().nodename}, 3 steps: " in told
    assert told.count("held by") == 1
    assert "next step" not in told
    assert "t-31 reads the code" in told
    facts = json.loads(cli(project, "status", "--json").stdout)
    by_id = {node["id"]: node for node in facts["nodes"]}
    assert by_id["t-31"]["last_line"] == "t-31 reads the code"
    assert by_id["t-50"]["last_line"] == ""


def test_a_watch_line_names_the_running_tasks(project: Path) -> None:
    process = launched(project, "status", "--watch", stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
    named = line.rpartition(" · runs ")[2].strip()
    assert set(named.split(", ")) == set(HELD)


def test_the_last_frame_does_not_say_that_the_run_continues(tmp_path: Path) -> None:
    settings = "agent: {default: rehearsal}\nsteps: [{name: main, text: Do it.}]\n"
    (tmp_path / "orchestration.yaml").write_text(settings)
    assert cli(tmp_path, "run", "--max-steps", "1").returncode == 0
    with terminal(100, 24) as screen, watched(tmp_path, screen) as process:
        screen.wait_for("Ctrl-C ends this view")
        assert cli(tmp_path, "stop").returncode == 0
        assert process.wait(20) == 0
        screen.wait_for("next: sequencer resume")
        text = "\n".join(screen.screen())
    assert "the run was stopped" in text
    assert "Ctrl-C" not in text
