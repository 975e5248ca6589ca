"""A loop of hoidn/orchestration is moved here: what its people see, and get to work again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.cli_process import cli, head

THEIRS = """\
workflow: {name: standard, review_every_n: 0}
prompts_dir: prompts
supervisor_prompt: supervisor.md
main_prompt: main.md
state_file: sync/state.json
doc_whitelist: [input.md]
tracked_output_globs: ["tests/fixtures/**/*.npy"]
findings_file: docs/findings.md
input_file: input.md
logs_dir: logs
tmp_dir: tmp
report_extensions: [.png]
tracked_output_extensions: [.npy]
agent:
  default: auto
  roles: {supervisor: codex, loop: claude}
spec_bootstrap: {templates_dir: ~/project-templates}
"""
CLAUDE = f"""\
#!{sys.executable} -IS
# Edits only where it is told that it may, as the real one does when nobody is there to ask.
import json, sys
sys.stdin.read()
may = "--permission-mode=acceptEdits" in sys.argv
if may:
    open("edited.txt", "a").write("claude\\n")
denials = [] if may else [{{"tool_name": "Edit", "tool_input": {{}}}}]
print(json.dumps({{"type": "result", "subtype": "success", "is_error": False, "result": "done",
                  "permission_denials": denials, "total_cost_usd": 0.1, "usage": {{}}}}))
"""
CODEX = f"""\
#!{sys.executable} -IS
import json, sys
sys.stdin.read()
if any('"workspace-write"' in word for word in sys.argv):
    open("edited.txt", "a").write("codex\\n")
for event in ({{"type": "thread.started", "thread_id": "t"}},
              {{"type": "item.completed", "item": {{"type": "agent_message", "text": "done"}}}},
              {{"type": "turn.completed", "usage": {{"input_tokens": 1, "output_tokens": 1}}}}):
    print(json.dumps(event))
"""


@pytest.fixture
def moved(tmp_path: Path) -> Path:
    """Return a project with their file, and both clients on PATH."""
    folder = tmp_path / "project"
    for name in ("supervisor", "main", "reviewer"):
        path = folder / "prompts" / f"{name}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"Be the {name}.\n")
    (folder / "orchestration.yaml").write_text(THEIRS)
    (tmp_path / "bin").mkdir()
    for name, script in (("claude", CLAUDE), ("codex", CODEX)):
        program = tmp_path / "bin" / name
        program.write_text(script)
        program.chmod(0o755)
    return folder


def run(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    path = f"{folder.parent / 'bin'}:{os.environ['PATH']}"
    return cli(folder, *arguments, timeout_s=60.0, PATH=path, **variables)


@pytest.mark.slow
def test_a_moved_loop_warns_it_cannot_edit_and_names_the_fix(moved: Path) -> None:
    checked = run(moved, "check").stdout
    assert "warning: agent: agent codex: can't edit files in step supervisor: sandbox" in checked
    assert "warning: agent: agent claude: can't edit files in step main: no permission" in checked
    started = run(moved, "run", "--max-steps", "2")
    assert started.returncode == 0
    assert "warning: agent 'claude' can't edit files in step main" in started.stderr
    assert not (moved / "edited.txt").exists()
    # The lines that it names, as they are.
    lines = [
        line.removeprefix("      ")
        for line in checked.splitlines()
        if line.startswith(("      codex: {", "      claude: {"))
    ]
    assert len(lines) == 2
    (moved / "orchestration.yaml").write_text(
        THEIRS + "agents:\n" + "".join(f"  {line}\n" for line in lines)
    )
    again = run(moved, "check").stdout
    assert "can't edit" not in again
    assert "notice: agent: agent codex: permissions: sandbox workspace-write" in again
    started = run(moved, "run", "--max-steps", "2")
    assert "can't edit" not in started.stderr
    assert "permissions: claude: permission_mode acceptEdits; allowed_tools Bash(git *)" in (
        started.stderr
    )
    assert (moved / "edited.txt").read_text() == "codex\nclaude\n"
    assert head(moved)["step_index"] == 4


def test_a_timer_warns_only_when_the_run_starts(moved: Path) -> None:
    assert "can't edit files" in run(moved, "tick").stderr
    assert "can't edit files" not in run(moved, "tick").stderr


def test_an_explicit_choice_is_not_warned_about(moved: Path) -> None:
    agents = "agents:\n  codex: {sandbox: read-only}\n  claude: {permission_mode: plan}\n"
    (moved / "orchestration.yaml").write_text(THEIRS + agents)
    checked = run(moved, "check").stdout
    assert "can't edit" not in checked
    assert "permissions: sandbox read-only" in checked
    assert "permissions: permission_mode plan" in checked
    (moved / "orchestration.yaml").write_text(
        THEIRS.replace("{name: standard, review_every_n: 0}", "looking")
        + "workflows: {looking: {steps: [{name: main, single_turn: true}]}}\n"
    )
    assert "can't edit" not in run(moved, "check").stdout


def test_settings_without_effect_are_one_notice_and_check_lists_them(moved: Path) -> None:
    looked = run(moved, "plan", SYNC_LOOPS="5", ORCHESTRATION_BRANCH="main", POLL_INTERVAL="2")
    told = "notice: 11 settings have no effect here; 'sequencer check' lists them\n"
    assert looked.stderr == told
    checked = run(moved, "check", SYNC_LOOPS="5", ORCHESTRATION_BRANCH="main", POLL_INTERVAL="2")
    listed = [line for line in checked.stdout.splitlines() if "has no effect" in line]
    assert len(listed) == 11
    assert any("SYNC_LOOPS has no effect here: use run.max_steps" in line for line in listed)
