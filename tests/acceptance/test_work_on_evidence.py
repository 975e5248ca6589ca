"""Steps that have to show something, as a person meets them: with a client, in a repository."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.cli_process import cli, head

CLIENT = """\
#!/usr/bin/env python3
import json, os, subprocess, sys
prompt = sys.stdin.read()
act = open("act.txt").read().split()
answer = "I looked at everything."
if "write" in act:
    open("work.txt", "a").write("more\\n")
if "commit" in act:
    subprocess.run(["git", "add", "-A"], check=True)
    subprocess.run(["git", "commit", "-qm", "work"], check=True)
if "idle" in act:
    answer += "\\n\\nNothing to do: every issue is closed."
if "file" in act:
    told = {"status": "nothing", "output": "every issue is closed"}
    open(os.environ["SEQUENCER_RESULT"], "w").write(json.dumps(told))
if "obey" in act and "did not count" in prompt:
    open("work.txt", "a").write("more\\n")
print(json.dumps({"type": "result", "subtype": "success", "is_error": False, "result": answer,
                  "stop_reason": "end_turn", "session_id": "s1", "total_cost_usd": 0.01}))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a project in a repository, whose one step has to change something."""
    program = tmp_path / "client"
    program.write_text(CLIENT)
    program.chmod(0o755)
    folder = tmp_path / "project"
    folder.mkdir()
    write(folder, expects="change")
    for words in ("init -q", "config user.name a", "config user.email a@b", "add -A",
                  "commit -qm first"):  # fmt: skip
        subprocess.run(["git", *words.split(maxsplit=2)], cwd=folder, check=True)
    return folder


def write(folder: Path, agent: str = "claude", **step: Any) -> None:
    entry = {"program": str(folder.parent / "client")}
    settings: dict[str, Any] = {
        "agent": agent,
        "agents": {agent: entry},
        "steps": [{"name": "work", "text": "Work.", **step}],
    }
    (folder / "orchestration.yaml").write_text(json.dumps(settings))


def run(folder: Path, act: str, *more: str) -> subprocess.CompletedProcess[str]:
    (folder / "act.txt").write_text(act)
    return cli(folder, "run", "--max-steps", "1", *more)


def test_success_without_a_change_is_a_failure(folder: Path) -> None:
    done = run(folder, "look")
    assert done.returncode == 1
    assert "it has changed nothing, and its step expects a change" in done.stderr
    assert "set expects: nothing for step 'work'" in done.stderr
    assert head(folder)["step_index"] == 0
    assert "no change" in cli(folder, "history").stdout


@pytest.mark.slow
def test_the_work_done_is_reported_in_one_line(folder: Path) -> None:
    done = run(folder, "write commit")
    assert done.returncode == 0, done.stderr
    line = "2 files, 1 commit"  # what it wrote, and act.txt, which was new
    assert line in done.stderr
    assert f"work: {line}" in cli(folder, "status").stdout
    assert line in cli(folder, "history").stdout
    assert line in cli(folder, "report").stdout
    assert f"# shown: {line}" in cli(folder, "log").stdout
    shown = json.loads(cli(folder, "history", "--json").stdout.splitlines()[-1])
    assert (shown["outcome"]["evidence"]["files"], shown["event"]) == (2, "succeeded")


def test_the_next_prompt_names_what_was_missing(folder: Path) -> None:
    retry = {"max_attempts": 2}
    write(folder, expects="change", retry=retry)
    done = run(folder, "obey")
    assert done.returncode == 0, done.stderr
    assert "ended after" in done.stderr
    assert head(folder)["step_index"] == 1
    prompt = cli(folder, "log", "--prompt").stdout
    assert "changed no file and made no commit" in prompt


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("act", ["idle", "file"])
def test_nothing_to_do_is_a_valid_answer(folder: Path, act: str) -> None:
    for _ in range(6):
        done = run(folder, act)
        assert done.returncode == 0, done.stderr
    assert "nothing to do" in cli(folder, "status").stdout


def test_an_agent_that_repeats_itself_is_stopped_with_exit_code_4(folder: Path) -> None:
    write(folder, stagnation={"attempts": 3})
    (folder / "act.txt").write_text("look")
    codes = [cli(folder, "tick").returncode for _ in range(4)]
    assert codes == [0, 0, 4, 4]
    told = cli(folder, "status").stdout
    assert "the run is paused: step 'work' gave the same answer 3 times in a row" in told
    assert cli(folder, "resume").returncode == 0
    assert cli(folder, "tick").returncode == 0


def test_a_change_is_not_expected_of_an_agent_that_only_reads(folder: Path) -> None:
    write(folder, agent="codex", expects="change")
    for command in ("check", "run"):
        done = cli(folder, command)
        assert done.returncode == 2
        assert "can't change files: its entry says sandbox read-only" in done.stdout + done.stderr


def test_expects_has_no_effect_on_a_command(folder: Path) -> None:
    settings = {
        "agent": "tests",
        "agents": {"tests": {"kind": "command", "argv": ["true"]}},
        "steps": [{"name": "work", "text": "Work.", "expects": "change"}],
    }
    (folder / "orchestration.yaml").write_text(json.dumps(settings))
    assert "expects of a command says nothing: its exit code counts" in cli(folder, "check").stdout
    assert run(folder, "").returncode == 0
