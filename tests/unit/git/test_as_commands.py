"""Attempts that end badly, and two runs in one clone, as a terminal sees them."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.acceptance.cli_process import cli, head, until
from tests.acceptance.two_clones import IDENTITY, ended, shared_project, start
from tests.clones import git

AGENT = """\
import os, sys, time
sys.stdin.read()
attempt = os.environ["SEQUENCER_ATTEMPT"]
with open("notes.md", "a") as file:
    file.write(f"attempt {attempt}\\n")
open("../running", "w").close()
deadline = time.monotonic() + 30
while os.path.exists("../hold") and time.monotonic() < deadline:
    time.sleep(0.02)
sys.exit(os.path.exists("../fail") and int(attempt) < 3)
"""
CONFIGURATION = """\
workflow: {name: standard}
store: {kind: git, retry_for_s: 0, poll: {fast_s: 0.1, slow_s: 1}}
agent: {default: script}
agents:
  script: {kind: command, argv: ["{python}", -IS, agent.py]}
commit: {paths: [notes.md]}
step_defaults: {retry: {max_attempts: 3}}
"""


def project(folder: Path) -> Path:
    """Return a clone of a project whose agent writes a declared file."""
    shared = shared_project(folder, CONFIGURATION)
    first = shared.clone("first")
    (first / "agent.py").write_text(AGENT)
    git(first, "commit", "-qam", "the agent")
    git(first, "push", "-q", "origin", "HEAD:main")
    git(folder / "a", "pull", "-q")
    git(folder / "b", "pull", "-q")
    return folder / "a"


def run(clone: Path, *arguments: str) -> tuple[int, str]:
    done = cli(clone, *arguments, "run", "--max-steps", "1", timeout_s=60.0, **IDENTITY)
    return done.returncode, done.stdout + done.stderr


def notes(clone: Path) -> list[str]:
    return git(clone, "show", "HEAD:notes.md").splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_a_restarted_run_continues_where_it_was_interrupted(
    tmp_path: Path, sent: signal.Signals
) -> None:
    clone = project(tmp_path)
    (tmp_path / "hold").touch()
    process = start(clone, "run", "--max-steps", "1")
    until((tmp_path / "running").exists)
    process.send_signal(sent)
    ended(process, 60)
    (tmp_path / "hold").unlink()
    assert git(clone, "status", "--porcelain") == "?? notes.md"
    code, said = run(clone)
    assert code == 0, said
    assert notes(clone) == ["attempt 1", "attempt 2"]


@pytest.mark.slow
def test_two_runs_in_one_work_tree(tmp_path: Path) -> None:
    clone = project(tmp_path)
    (tmp_path / "hold").touch()
    process = start(clone, "--run", "one", "run", "--max-steps", "1")
    until((tmp_path / "running").exists)
    code, said = run(clone, "--run", "two")
    assert code == 3
    assert "run 'one' is working in it" in said
    (tmp_path / "hold").unlink()
    assert ended(process, 60)[0] == 0
    assert run(clone, "--run", "two")[0] == 0
    assert notes(clone) == ["attempt 1", "attempt 1"]


@pytest.mark.slow
def test_hints_lead_out_when_the_code_of_the_state_is_lost(tmp_path: Path) -> None:
    clone, other = project(tmp_path), tmp_path / "b"
    first = git(clone, "rev-parse", "HEAD")
    assert run(clone)[0] == 0
    git(other, "push", "-q", "--force", "origin", f"{first}:refs/heads/main")
    code, said = run(other)
    assert code == 3
    assert "'sequencer reset'" in said
    assert "'sequencer set step_index=N'" in said
    index = head(other)["step_index"]
    for arguments in (("reset", "--yes"), ("set", f"step_index={index}")):
        assert cli(other, *arguments, timeout_s=60.0, **IDENTITY).returncode == 0
    code, said = run(other)
    assert code == 0, said
    assert head(other)["step_index"] == index + 1
