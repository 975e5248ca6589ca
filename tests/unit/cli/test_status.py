from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sequencer.cli.views.text import width
from tests.acceptance.test_team_views import seen_on_terminal
from tests.forked import Forked
from tests.unit.cli.calling import call, project, worked

ROOT = Path(__file__).parents[3]
HEAD_FIELDS = {"schema_version", "run_id", "revision", "step_index", "status", "claims", "usage"}
HOLDER = """
import sys, time
import sequencer
with sequencer.open_run(".").turn():
    print("held", flush=True)
    sys.stdin.read()
"""


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


@contextmanager
def holder(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a process that holds the next step until its standard input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        cwd=folder,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_before_the_run_began(tmp_path: Path) -> None:
    folder = project(tmp_path / "p")
    facts = call(folder, "status", "--json").json
    assert set(facts) >= HEAD_FIELDS | {"next", "busy"}
    assert (facts["status"], facts["step_index"], facts["run_id"]) == ("idle", 0, None)
    assert facts["next"]["step"] == "supervisor"
    assert facts["busy"] is False
    text = call(folder, "status").out
    assert "not started" in text
    assert "review_cadence, review.every 2" in text
    assert not (folder / "sync").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("stop", "--pause"), "the run is paused"),
        (("stop", "--reason", "over and out"), "the run was stopped: over and out"),
        (("set", 'not_before="2999-01-01T00:00:00Z"'), "nothing starts before 2999-01-01"),
        (("skip", "--as-failed"), "1 in a row, limit 3"),
    ],
)
def test_status_shows_what_blocks_the_run(
    tmp_path: Path, change: tuple[str, ...], words: str
) -> None:
    folder = worked(tmp_path / "p", 1)
    assert call(folder, *change).code == 0
    assert words in call(folder, "status").out


def test_limits_and_how_much_of_them_is_used(tmp_path: Path) -> None:
    text = "agent: {default: rehearsal}\nlimits: {max_steps: 2, max_cost_usd: 5, max_seconds: 60}\n"
    folder = project(tmp_path / "p", text)
    assert call(folder, "run", "--quiet").code == 0
    out = call(folder, "status").out
    assert "2 of 2 steps, 0.00 of 5.00 USD" in out
    assert "the run's limit of 2 steps is reached" in out


def test_status_shows_the_holder_of_the_step(tmp_path: Path) -> None:
    folder = worked(tmp_path / "p", 1)
    with holder(folder) as process:
        facts = call(folder, "status", "--json").json
        assert (facts["status"], facts["busy"]) == ("running", True)
        assert facts["claims"][0]["owner"]["pid"] == process.pid
        out = call(folder, "status").out
        assert f"process {process.pid} on " in out
        assert "step main, token 2, attempt 1, for " in out
        assert out.rstrip().splitlines()[4].endswith("alive")
        process.kill()
        process.wait()
        assert call(folder, "status", "--json").json["busy"] is False
        assert "gone; the next run or tick takes over" in call(folder, "status").out


def test_a_changed_definition_is_reported_and_the_head_is_shown(tmp_path: Path) -> None:
    folder = worked(tmp_path / "p", 1)
    (folder / "orchestration.yaml").write_text(
        "workflow: {name: standard}\nagent: {default: rehearsal}\n"
    )
    ended = call(folder, "status", "--json")
    assert ended.code == 0
    assert ended.json["step_index"] == 1
    assert ended.json["next"] is None
    assert "started differently" in ended.err
    assert "sequencer adopt" in ended.err


def test_a_removed_workflow_is_reported_too(tmp_path: Path) -> None:
    text = "workflow: {name: mine}\nworkflows: {mine: {steps: [main]}}\n"
    folder = project(tmp_path / "p", text + "agent: {default: rehearsal}\n")
    assert call(folder, "run", "--max-steps", "1", "--quiet").code == 0
    (folder / "orchestration.yaml").write_text("agent: {default: rehearsal}\n")
    ended = call(folder, "status")
    assert ended.code == 0
    assert "unknown workflow 'mine'" in ended.err
    assert "default, workflow mine" in ended.out


def test_a_lost_orchestration_yaml_is_named_as_the_cause(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", "agent: {default: rehearsal}\nsteps: [main]\n")
    assert call(folder, "run", "--max-steps", "1", "--quiet").code == 0
    (folder / "orchestration.yaml").unlink()
    ended = call(folder, "status")
    assert "unknown workflow 'default'; there is no orchestration.yaml in " in ended.err


def test_status_shows_refused_tool_calls(tmp_path: Path) -> None:
    text = (
        "agent: {default: strict}\nagents: {strict: {kind: scripted, outcomes: [{denials: "
        '["Bash: one", "Bash: two\\x1b[2J", "Bash: three", "Bash: four"]}]}}\n'
    )
    folder = project(tmp_path / "p", text)
    assert call(folder, "run", "--max-steps", "1", "--quiet").code == 0
    out = call(folder, "status").out
    assert out.count("refused by the agent's permissions") == 3
    assert "and 1 more refused tool calls" in out
    assert "\x1b" not in out


@contextmanager
def watching(folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    process = Forked(
        [sys.executable, "-m", "sequencer", "status", "--watch", *options],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_watching_prints_one_line_per_change_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    folder = worked(tmp_path / "p", 1)
    with watching(folder) as process:
        assert "waiting-next · step_index 1 · next main" in line_of(process)
        assert call(folder, "stop", "--pause").code == 0
        assert "paused · step_index 1" in line_of(process)
        assert call(folder, "resume").code == 0
        assert "waiting-next" in line_of(process)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


DENIED = """\
agent: {default: strict}
agents:
  strict:
    kind: scripted
    outcomes:
      - {denials: ["Bash: rm -rf build", "Edit: secrets"], output: done}
"""


def facts(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    ended = call(folder, "history", "--json", *arguments)
    assert ended.code == 0, ended.err
    return [json.loads(line) for line in ended.out.splitlines()]


def test_history_warns_about_refused_tool_calls(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", DENIED)
    assert call(folder, "run", "--max-steps", "1", "--quiet").code == 0
    ended = call(folder, "history")
    assert "2 tool calls refused" in ended.out
    assert "warning: the agents' permissions refused 2 tool calls" in ended.err
    assert facts(folder)[-1]["outcome"]["denials"] == ["Bash: rm -rf build", "Edit: secrets"]
    assert call(folder, "history", "--json").err == ""


@pytest.mark.parametrize("left", [b"", b"rubbish\n"])
@pytest.mark.parametrize("flags", [(), ("--json",), ("-n", "1")])
def test_a_journal_without_its_records_is_not_an_empty_history(
    tmp_path: Path, left: bytes, flags: tuple[str, ...]
) -> None:
    folder = worked(tmp_path / "p", 1)
    (folder / "sync" / "journal.jsonl").write_bytes(left)
    ended = call(folder, "history", *flags)
    assert ended.code == 3
    assert "repair" in ended.err
    assert "has not started" not in ended.out + ended.err


def test_history_warns_about_refused_tool_calls_of_a_graph(tmp_path: Path) -> None:
    text = (
        "workflow: {name: crew}\nworkflows: {crew: {tasks: [{id: a, subject: A}]}}\n"
        "agent: {default: strict}\nagents: {strict: {kind: scripted, outcomes: [{denials: "
        '["Bash: one", "Bash: two"]}]}}\n'
    )
    folder = project(tmp_path / "p", text)
    assert call(folder, "run", "--quiet").code == 0
    ended = call(folder, "history")
    assert "done a" in ended.out
    assert "permissions refused 2 tool calls" in ended.err


# --- what a request would become: tasks in words, as a chart, as a drawing ---------------------

CONFIGURATION = """\
agent: {default: rehearsal}
routing: {classifier: rules}
"""
REQUEST = "Migrate the frontend and the backend across the codebase"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return project(tmp_path / "p", CONFIGURATION)


PLAN = ("plan", "--request", REQUEST)


def planned(folder: Path, *options: str) -> str:
    ended = call(folder, *PLAN, *options)
    assert ended.code == 0, ended.err
    assert not (folder / "sync").exists()
    return ended.out


def test_the_json_of_a_team_shows_which_tasks_block_which(folder: Path) -> None:
    ended = call(folder, *PLAN, "--team", "--json")
    steps = {step["step"]: step for step in ended.json["steps"]}
    assert steps["implement"]["blocked_by"] == ["research", "plan"]
    assert steps["verify"]["role"] == "verifier"
    assert steps["verify"]["subject"] == "Verify the change"
    plain = call(folder, *PLAN, "--no-team", "--json").json["steps"]
    assert "blocked_by" not in plain[0]


def test_a_team_as_a_drawing(folder: Path) -> None:
    drawn = planned(folder, "--team", "--diagram")
    assert "Make the change" in drawn
    assert "(implement)" in drawn
    assert "┌──" in drawn


def test_a_procedure_as_a_chart(folder: Path) -> None:
    lines = planned(folder, "--no-team", "--mermaid").splitlines()
    assert lines[0] == "flowchart TD"
    assert '    s0["coding-activity"]' in lines
    ended = call(folder, *PLAN, "--no-team", "--diagram")
    assert ended.code == 2
    assert "--diagram: works only with a flowchart or a team" in ended.err


def test_a_created_run_is_drawn_as_it_was_planned(folder: Path) -> None:
    drawn = planned(folder, "--team", "--mermaid")
    assert drawn.startswith("flowchart TD\n")
    name = call(folder, "start", REQUEST, "--team", "--no-run", "--json").json["run"]
    assert call(folder, "--run", name, "plan", "--mermaid").out == drawn


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--mermaid", "--diagram"), "can't be used together"),
        (("--mermaid", "--json"), "--json: can't be used with a drawing"),
        (("--no-team", "--team-size", "3"), "--team-size and --no-team can't be used together"),
        (("--svg", "x.svg"), "--svg and --request can't be used together"),
        (("--comment", "x", "--count", "3"), "--count and --request can't be used together"),
    ],
)
def test_conflicting_options_are_refused(
    folder: Path, options: tuple[str, ...], words: str
) -> None:
    ended = call(folder, *PLAN, "--team", *options)
    assert (ended.code, ended.out) == (2, "")
    assert words in ended.err
    ended = call(folder, "plan", "--no-team", "--count", "3")
    assert (ended.code, ended.out) == (2, "")
    assert "can't be used together" in ended.err


@pytest.mark.parametrize("columns", [80, 200])
def test_tasks_fit_on_the_terminal(folder: Path, columns: int) -> None:
    text = seen_on_terminal(folder, columns, *PLAN, "--team")
    lines = text.splitlines()
    table = lines[next(n for n, line in enumerate(lines) if line.startswith("TASK ")) :]
    assert len(table) == 9
    assert all(width(line) <= columns for line in table), table
    assert ("Research what the request touches" in text) is (columns > 80)
    assert ("system prompt" in text) is (columns == 200)
