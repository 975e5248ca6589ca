"""A repository of hoidn/orchestration, whose turns go over to a branch of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.cli_process import AGENT, cli, environment, head
from tests.clones import Shared, git
from tests.forked import Forked

OLDER = {
    "iteration": 7,
    "expected_actor": "ralph",
    "status": "waiting-ralph",
    "last_update": "2026-03-01T09:00:00Z",
    "lease_expires_at": None,
    "galph_commit": "1f2e3d4c",
    "ralph_commit": "9a8b7c6d",
}
NEWER = {
    "workflow_name": "standard",
    "step_index": 13,
    "iteration": 14,
    "status": "waiting-main",
    "last_prompt": "main.md",
    "last_update": "2026-03-01T09:00:00Z",
}
STEP_INDEX = 13
"""Where both stand."""
THEIRS = """\
prompts_dir: prompts
supervisor_prompt: supervisor.md
main_prompt: main.md
state_file: sync/state.json
logs_dir: logs
auto_commit_docs: true
doc_whitelist: [docs/**]
"""
OURS = """\
agent: {default: script}
agents:
  script: {kind: command, argv: ["{python}", -IS, agent.py], pass_env: [SLOW]}
store: {kind: git}
"""


@pytest.fixture(params=["older", "newer"])
def theirs(tmp_path: Path, request: pytest.FixtureRequest) -> Shared:
    """Make a repository as their program keeps it: the state is tracked on the branch of code."""
    shared = Shared(tmp_path)
    first = shared.clone("first")
    (first / ".gitignore").write_text("logs/\ndone.txt\n")
    for folder in ("prompts", "sync"):
        (first / folder).mkdir()
    for name in ("supervisor", "main", "reviewer"):
        (first / "prompts" / f"{name}.md").write_text(f"# {name}\n")
    state = OLDER if request.param == "older" else NEWER
    (first / "sync" / "state.json").write_text(json.dumps(state, indent=2))
    (first / "orchestration.yaml").write_text(THEIRS)
    git(first, "add", ".")
    git(first, "commit", "-q", "-m", "[SYNC i=7] actor=galph → next=ralph status=ok")
    git(first, "push", "-q", "origin", "HEAD:main")
    return shared


def go_over(folder: Path) -> str:
    """Do what the how-to says in the first clone; return what `check` had said before."""
    (folder / "agent.py").write_text(AGENT)
    config = folder / "orchestration.yaml"
    config.write_text(config.read_text() + OURS)
    said = cli(folder, "check").stdout
    git(folder, "rm", "-r", "-q", "--cached", "sync")
    (folder / "sync" / ".gitignore").write_text("*\n!.gitignore\n")
    git(folder, "add", "-f", "sync/.gitignore")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "Turns are taken on a branch of their own")
    git(folder, "push", "-q", "origin", "HEAD:main")
    return said


@pytest.mark.slow(sample=1)
def test_one_machine_migrates_and_the_other_follows(theirs: Shared) -> None:
    a, b = theirs.clone("a"), theirs.clone("b")
    original = (a / "sync" / "state.json").read_bytes()
    said = go_over(a)
    assert "git tracks files of the run here (sync/state.json)" in said
    assert "git rm -r -q --cached sync" in said
    assert cli(a, "check").returncode == 0
    looked = cli(a, "status", "--json")
    assert json.loads(looked.stdout)["step_index"] == STEP_INDEX
    assert theirs.tip() == "", "a look pushes nothing"
    ran = cli(a, "run", "--max-steps", "1")
    assert ran.returncode == 0, ran.stderr
    assert head(a)["step_index"] == STEP_INDEX + 1
    assert (a / "sync" / "state.json.before-migration").read_bytes() == original

    git(b, "pull", "-q", "--ff-only", "origin", "main")
    assert not (b / "sync" / "state.json").exists(), "git takes its own copy away"
    ran = cli(b, "run", "--max-steps", "1")
    assert ran.returncode == 0, ran.stderr
    assert (head(b)["step_index"], head(b)["run_id"]) == (STEP_INDEX + 2, head(a)["run_id"])
    assert git(b, "status", "--porcelain") == ""
    assert json.loads(cli(a, "status", "--json").stdout)["step_index"] == STEP_INDEX + 1
    assert cli(a, "sync", "--fetch").returncode == 0
    assert json.loads(cli(a, "status", "--json").stdout)["step_index"] == STEP_INDEX + 2


@pytest.mark.slow(sample=1)
def test_both_machines_can_migrate_at_the_same_time(theirs: Shared) -> None:
    a, b = theirs.clone("a"), theirs.clone("b")
    kept = (b / "sync" / "state.json").read_bytes()
    go_over(a)
    git(b, "pull", "-q", "--ff-only", "origin", "main")
    (b / "sync" / "state.json").write_bytes(kept)
    command = [sys.executable, "-m", "sequencer", "tick", "--quiet"]
    working = [
        Forked(command, cwd=folder, env=environment(SLOW="0.5"), stderr=subprocess.PIPE, text=True)
        for folder in (a, b)
    ]
    told = [process.communicate(timeout=60)[1] for process in working]
    codes = sorted(process.returncode for process in working)
    # The second finds the step done or held; to do the next one is right as well.
    assert codes in ([0, 0], [0, 75]), told
    sides = [json.loads(cli(folder, "sync", "--fetch", "--json").stdout) for folder in (a, b)]
    assert [side["relation"] in ("equal", "behind") for side in sides] == [True, True]
    assert head(a) == head(b)
    facts = [json.loads(line) for line in cli(b, "history", "--json").stdout.splitlines()]
    done = [fact["step_index"] for fact in facts if fact["event"] == "succeeded"]
    assert done == list(range(STEP_INDEX, STEP_INDEX + len(done)))
    assert [fact["event"] for fact in facts].count("initialised") == 1
    worked = [(f / "done.txt").read_text().split() for f in (a, b) if (f / "done.txt").exists()]
    assert sorted(int(index) for lines in worked for index in lines) == done


@pytest.mark.slow(sample=1)
def test_an_outdated_copy_is_refused_and_set_aside(theirs: Shared) -> None:
    a, b = theirs.clone("a"), theirs.clone("b")
    go_over(a)
    assert cli(a, "run", "--max-steps", "1").returncode == 0
    git(b, "pull", "-q", "--ff-only", "origin", "main")
    (b / "sync" / "state.json").write_text(json.dumps(NEWER | {"step_index": 11, "iteration": 12}))
    refused = cli(b, "run", "--max-steps", "1")
    assert refused.returncode == 3
    assert not (b / "done.txt").exists()
    shown = cli(b, "sync", "--fetch")
    assert shown.returncode == 3
    assert "sequencer sync --take-theirs" in shown.stdout
    assert cli(b, "sync", "--fetch", "--take-theirs").returncode == 0
    assert head(b)["step_index"] == STEP_INDEX + 1
    (aside,) = (b / "sync").glob("set-aside-*")
    assert json.loads((aside / "state.json").read_text())["step_index"] == STEP_INDEX - 2
    assert cli(b, "run", "--max-steps", "1").returncode == 0
