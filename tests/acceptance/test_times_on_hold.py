"""A run that a person has stopped or paused: its time limits wait for the person as well."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest

from tests.acceptance.flow_projects import cli, make_project, trace, write_flow

LATER_S = 3.2
"""Longer than the limits of time below, within which the steps before it have to end."""
SLOW = """\
config: {timeout: 3000}
retry: {maxAttempts: 3, initialDelay: 600000, maxDelay: 600000}
"""
GATED = """
workflow: asks
workflows:
  asks:
    kind: procedure
    steps: [{name: a, text: Say a, requires_approval: true, approval: {timeout_s: 3}}]
"""
QUESTION = "---\ntimeout: 3000\noptions: [approve]\n---\nFine?"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project(tmp_path)


def tick(project: Path) -> subprocess.CompletedProcess[str]:
    return cli(project, "--run", "slow", "tick")


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("hold", ["stop", "stop --pause", "set exit=true"])
def test_the_time_limit_of_a_graph_pauses_while_a_person_holds_it(project: Path, hold: str) -> None:
    write_flow(project, "slow", "a --> b", SLOW, a="Say a", b="please fail")
    assert cli(project, "run", "slow", "--max-steps", "1").returncode == 0
    failed = tick(project)
    assert "tried again at" in failed.stdout + failed.stderr, failed
    assert cli(project, "--run", "slow", *hold.split()).returncode == 0
    time.sleep(LATER_S)
    tick(project)
    assert cli(project, "--run", "slow", "resume").returncode == 0
    goes_on = tick(project)
    assert "the next try is at" in goes_on.stdout, goes_on
    assert "completed timed_out" not in trace(project, "slow")
    time.sleep(LATER_S)
    over = tick(project)
    assert over.returncode == 1, over
    assert "completed timed_out" in trace(project, "slow")


def asks(project: Path, kind: str) -> tuple[str, ...]:
    """Start a run that asks a person for three seconds, and pause it; return how to go on."""
    if kind == "graph":
        chart = "a{{Fine?}}\na -->|approve| b\na -->|timeout| c"
        write_flow(project, "asks", chart, a=QUESTION, b="Say b", c="Say c")
        command: tuple[str, ...] = ("--run", "asks", "run", "asks")
    else:
        path = project / "orchestration.yaml"
        path.write_text(path.read_text() + GATED)
        command = ("--run", "asks", "run")
    begun = cli(project, *command)
    assert begun.returncode == 4, begun
    assert cli(project, "--run", "asks", "stop", "--pause").returncode == 0
    time.sleep(LATER_S)
    return command


@pytest.mark.parametrize("kind", ["graph", "procedure"])
def test_an_unanswered_question_is_shown_with_the_command_to_continue(
    project: Path, kind: str
) -> None:
    asks(project, kind)
    what = "answered a (Fine?)" if kind == "graph" else "decided about 'a'"

    def look(way_on: str) -> None:
        told, row = cli(project, "inbox").stdout, json.loads(cli(project, "inbox", "--json").stdout)
        assert f"asks: no one {what} by 20" in told
        assert told.splitlines()[1:] == [f"  sequencer --run asks {way_on}"]
        assert [one["expired"] for one in row] == [True]
        for words in (("--run", "asks", "status"), ("status", "--all")):
            shown = cli(project, *words).stdout
            assert f"no one {what} by 20" in shown, shown
        assert cli(project, "--run", "asks", "status").stdout.endswith(f"run asks {way_on}\n")

    look("resume")
    resumed = cli(project, "--run", "asks", "resume").stdout
    assert f"no one {what} by 20" in resumed
    assert "waits for an answer" not in resumed
    look("run")


@pytest.mark.parametrize("kind", ["graph", "procedure"])
def test_a_late_answer_is_refused_and_resume_records_the_end(project: Path, kind: str) -> None:
    command = asks(project, kind)
    cli(project, "--run", "asks", "tick")
    before = trace(project, "asks")
    answer = ("answer", "a", "approve") if kind == "graph" else ("answer", "approve")
    late = cli(project, "--run", "asks", *answer)
    assert late.returncode == 3, late
    assert " 'a' ended at 20" in late.stderr
    assert trace(project, "asks") == before
    assert cli(project, "--run", "asks", "resume").returncode == 0
    ended = cli(project, *command)
    if kind == "graph":
        assert (ended.returncode, "start c" in trace(project, "asks")) == (0, True)
    else:
        assert "rejected at 'a': no one decided" in ended.stdout
