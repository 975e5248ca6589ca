"""What a project's hook decides behind the attempts of a team and of a flowchart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.acceptance.cli_process import cli
from tests.acceptance.flow_projects import as_json

TEAM = """\
agent: {default: script}
hooks: [hooks.py]
agents:
  script: {kind: command, argv: [sh, -c, 'echo "$SEQUENCER_STEP" >> seen; test ! -e broken']}
limits: {max_attempts: 3}
workflow: {name: t}
workflows: {t: {size: 1, tasks: [{id: a, subject: A}, {id: b, subject: B, blocked_by: [a]}]}}
"""
FLOW = "```mermaid\nflowchart TD\na --> b\n```\n\n### a\n\nDo a.\n\n### b\n\nDo b.\n"
HOOK = """\
from sequencer import Decision, Move, hookimpl

@hookimpl
def sequencer_transition(context, outcome):
    if context.step.name == "a" and WHEN:
        return Decision(Move.MOVE, reason="because")
"""


@pytest.fixture(params=["team", "flow"])
def work(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, ...]:
    """Return the words that begin a run of two nodes, of either kind."""
    (tmp_path / "orchestration.yaml").write_text(TEAM)
    (tmp_path / "flow.md").write_text(FLOW)
    return ("run", "flow.md", "--quiet") if request.param == "flow" else ("run", "--quiet")


def ended(folder: Path, work: tuple[str, ...], move: str, when: str = "True") -> tuple[int, str]:
    """Work under a hook that decides *move*; return the exit code and what was said."""
    (folder / "hooks.py").write_text(HOOK.replace("MOVE", move).replace("WHEN", when))
    done = cli(folder, *work)
    return done.returncode, done.stderr


def seen(folder: Path) -> list[str]:
    """Return which nodes had an agent, as they came."""
    return (folder / "seen").read_text().split()


def events(folder: Path, work: tuple[str, ...]) -> list[str]:
    run = ["--run", "flow"] if "flow.md" in work else []
    told = cli(folder, *run, "history", "--json").stdout.splitlines()
    return [fact["event"] for fact in map(json.loads, told) if fact["step"] == "a"]


def test_a_next_decision_accepts_the_step(tmp_path: Path, work: tuple[str, ...]) -> None:
    assert ended(tmp_path, work, "NEXT") == (0, "")
    assert seen(tmp_path) == ["a", "b"]


def test_a_next_decision_accepts_even_a_failed_agent(tmp_path: Path, work: tuple[str, ...]) -> None:
    (tmp_path / "broken").touch()
    status, said = ended(tmp_path, work, "NEXT")
    assert status == 1
    assert "'b'" in said
    assert seen(tmp_path) == ["a", "b"]
    assert "succeeded" in events(tmp_path, work)


def test_a_fail_decision_fails_the_step(tmp_path: Path, work: tuple[str, ...]) -> None:
    status, said = ended(tmp_path, work, "FAIL")
    assert status == 1
    assert "a hook made it fail: because" in said
    assert seen(tmp_path) == ["a"]


@pytest.mark.slow(sample=1)
def test_a_retry_decision_repeats_the_step(tmp_path: Path, work: tuple[str, ...]) -> None:
    assert ended(tmp_path, work, "RETRY", "context.attempt < 3") == (0, "")
    assert seen(tmp_path) == ["a", "a", "a", "b"]
    assert events(tmp_path, work).count("released") == 2


def test_retry_decisions_have_a_limit(tmp_path: Path, work: tuple[str, ...]) -> None:
    status, said = ended(tmp_path, work, "RETRY")
    assert status in (1, 3)
    assert "limits.attempts" in said
    assert seen(tmp_path) == ["a", "a", "a"]


@pytest.mark.parametrize("move", ["GATE", "SKIP"])
def test_an_impossible_decision_fails_and_names_the_hook_and_its_place(
    tmp_path: Path, work: tuple[str, ...], move: str
) -> None:
    status, said = ended(tmp_path, work, move)
    assert status == 1
    assert f"{move.lower()}, which step 'a' of " in said
    assert "can't do; it can next, retry, fail, complete" in said
    assert "hooks.py:" in said
    assert seen(tmp_path) == ["a"]


def test_a_hook_ends_the_run(tmp_path: Path, work: tuple[str, ...]) -> None:
    assert ended(tmp_path, work, "COMPLETE") == (0, "")
    assert seen(tmp_path) == ["a"]
    run = ["--run", "flow"] if "flow.md" in work else []
    head = as_json(cli(tmp_path, *run, "--json", "status"))
    assert (head["status"], head["flow"]["status"]) == ("complete", "completed")


def test_a_hook_that_ends_the_run_cancels_what_else_runs(tmp_path: Path) -> None:
    slow = TEAM.replace("test ! -e broken", "case $SEQUENCER_STEP in z) sleep 100;; esac")
    (tmp_path / "orchestration.yaml").write_text(slow)
    flow = FLOW.replace("a --> b", "s((Go)) --> a & z\na --> b") + "\n### z\n\nZ.\n"
    (tmp_path / "flow.md").write_text(flow)
    work = ("run", "flow.md", "--quiet")
    assert ended(tmp_path, work, "COMPLETE") == (0, "")
    facts = map(json.loads, cli(tmp_path, "--run=flow", "history", "--json").stdout.splitlines())
    (done,) = [fact["outcome"] for fact in facts if fact["event"] == "succeeded"]
    assert (done["cancelled"], done["decision"]["move"]) == (["z"], "complete")
    assert "b" not in seen(tmp_path)


FORKED = """\
```mermaid
flowchart TD
a -->|left| b
a -->|right| c{{Sure?}}
a -->|both| b & c
c -->|yes| d
```
""" + "".join(f"\n### {name}\n\nDo {name}.\n" for name in "abd")


def test_a_hook_picks_the_edge(tmp_path: Path) -> None:
    (tmp_path / "orchestration.yaml").write_text(TEAM)
    (tmp_path / "flow.md").write_text(FORKED)
    there = ("run", "flow.md", "--quiet")
    assert ended(tmp_path, there, 'GOTO, target="b"')[0] == 0
    assert seen(tmp_path) == ["a", "b"]
    assert ended(tmp_path, (*there, "--new"), 'GOTO, target="c"')[0] == 4


def test_a_hook_can_not_go_where_no_edge_leads(tmp_path: Path) -> None:
    (tmp_path / "orchestration.yaml").write_text(TEAM)
    (tmp_path / "flow.md").write_text(FORKED)
    status, said = ended(tmp_path, ("run", "flow.md", "--quiet"), 'GOTO, target="d"')
    assert status == 1
    assert "a hook sent it to 'd', and no edge leads there" in said


def test_a_hook_cannot_choose_the_next_task_of_a_team(tmp_path: Path) -> None:
    (tmp_path / "orchestration.yaml").write_text(TEAM)
    status, said = ended(tmp_path, ("run", "--quiet"), 'GOTO, target="b"')
    assert status == 1
    assert "goto, which step 'a' of 't' can't do" in said
