"""Public complaints about agents in a loop: no end, a wrong end, no patience, leftovers.

Each test is named after the issue that it answers; the docstring says what happened there.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.acceptance.cli_process import cli, done, head, scripted_project
from tests.acceptance.test_cli_run import events, is_gone, pid_in
from tests.contract.client_cases import FAKE_CLIENTS

NOTE = """\
import os, sys
prompt = sys.stdin.read()
index = os.environ["SEQUENCER_STEP_INDEX"]
with open("done.txt", "a") as file:
    file.write(index + "\\n")
"""
# Claude Code as the fake one plays it, with an end of the test's choice.
CLAUDE = f"""\
#!{sys.executable}
import os, sys
sys.path.insert(0, {str(FAKE_CLIENTS)!r})
from event_streams import ENDS, OPENINGS, _print
sys.stdin.read()
calls = int(open("calls").read()) if os.path.exists("calls") else 0
open("calls", "w").write(str(calls + 1))
"""
LIMITED = """\
import time
_print(OPENINGS["claude"]("I begin"))
end, = ENDS["claude"]("I am done", fails=False)
if calls == 0:
    end.update(is_error=True, api_error_status=429)
    # From here on, so that a slow machine has the whole time as well.
    reset = int(time.time()) + int(open("reset_in_s").read())
    open("reset", "w").write(str(reset))
    end["result"] = f"Claude AI usage limit reached|{reset}"
_print([end])
sys.exit(1 if calls == 0 else 0)
"""

SAYS_THE_WORD = """\
said = [
    "I shall say LOOP_COMPLETE when I am done",
    "LOOP_COMPLETE: not yet",
    prompt,
    "loop_complete",
    "",
]
print(said[int(index)])
print("LOOP_COMPLETE", file=sys.stderr)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a project whose agent notes each step_index in done.txt."""
    made = scripted_project(tmp_path)
    (made / "agent.py").write_text(NOTE)
    return made


def configure(folder: Path, more: str) -> None:
    path = folder / "orchestration.yaml"
    path.write_text(path.read_text() + more)


def agent(folder: Path, script: str) -> None:
    """Let the agent note its step_index and then do what *script* says."""
    (folder / "agent.py").write_text(NOTE + script + "\n")


def claude(folder: Path, script: str) -> None:
    """Let the agent be a Claude Code that does what *script* says."""
    program = folder / "claude"
    program.write_text(CLAUDE + script)
    program.chmod(0o755)
    (folder / "orchestration.yaml").write_text(
        f"workflow: {{name: standard}}\nagent: {{default: claude}}\n"
        f"agents:\n  claude: {{program: {program}}}\n"
    )


# --- loops without an end ----------------------------------------------------------------


@pytest.mark.slow
def test_claude_plugins_1699_a_run_without_a_configured_limit_ends(folder: Path) -> None:
    """6,239 iterations in a night, because "0" meant unlimited and was the default."""
    ran = cli(folder, "run")
    assert ran.returncode == 0
    assert done(folder) == list(range(20))
    assert "20 steps" in ran.stdout + ran.stderr


@pytest.mark.parametrize("value", ["0", "-1"])
def test_claude_plugins_1699_no_number_means_without_limit(folder: Path, value: str) -> None:
    """Neither 0 nor anything else switches the limit off."""
    assert cli(folder, "run", f"--max-steps={value}").returncode == 2
    configure(folder, f"run: {{max_steps: {value}}}\n")
    assert cli(folder, "run").returncode == 2
    assert done(folder) == []


@pytest.mark.parametrize(
    "words",
    [
        ("--max-iterations=3",),
        ("-max-steps=3",),
        ("fix the tests --max-steps 3",),
        ("fix the tests", "--max-steps", "3"),
    ],
)
def test_claude_code_18646_an_option_is_never_taken_for_text(
    folder: Path, words: tuple[str, ...]
) -> None:
    """--max-iterations=3 became a part of the prompt, and the loop ran 460 times."""
    refused = cli(folder, "run", *words)
    assert refused.returncode == 2
    assert words[0][:2] in refused.stderr, "it says what it did not understand"
    assert done(folder) == []
    assert not (folder / "sync" / "state.json").exists()


@pytest.mark.slow
def test_ralph_234_a_step_with_repeated_output_is_not_stopped(folder: Path) -> None:
    """A detector of "stale" loops killed repetitions that were meant."""
    agent(folder, 'print("nothing new; looked again")')
    for _ in range(2):
        assert cli(folder, "run", "--max-steps", "15").returncode == 0
    assert done(folder) == list(range(30))
    assert head(folder)["status"] == "waiting-next"


# --- completion --------------------------------------------------------------------------


@pytest.mark.parametrize("answer", ["Tests pass.\nALL DONE", "  ALL DONE  \nBye."])
def test_claude_plugins_1682_the_mark_of_completion_is_not_missed(
    folder: Path, answer: str
) -> None:
    """The tag was looked for in a transcript that was not flushed yet: on to the cap."""
    claude(folder, f'_print(OPENINGS["claude"]({answer!r}))\n')
    with (folder / "claude").open("a") as program:
        # The result comes last and without a line's end, and the program is gone at once.
        program.write(f'end, = ENDS["claude"]({answer!r}, fails=False)\nimport json\n')
        program.write("sys.stdout.write(json.dumps(end))\nsys.stdout.flush()\nos._exit(0)\n")
    configure(folder, "step_defaults: {complete_when: ALL DONE}\n")
    assert cli(folder, "run").returncode == 0
    assert (head(folder)["status"], head(folder)["step_index"]) == ("complete", 1)
    assert cli(folder, "tick").returncode == 0
    assert (folder / "calls").read_text() == "1"


def test_ralph_187_mentioning_the_promise_does_not_complete_a_loop(folder: Path) -> None:
    """Events that nobody had sent cascaded to LOOP_COMPLETE, and no work was done."""
    for prompt in (folder / "prompts").iterdir():
        prompt.write_text("Work. When all is done, say LOOP_COMPLETE on a line.\n")
    configure(folder, "step_defaults: {complete_when: LOOP_COMPLETE}\n")
    agent(folder, SAYS_THE_WORD)
    assert cli(folder, "run", "--max-steps", "5").returncode == 0
    assert head(folder)["status"] == "waiting-next"
    assert done(folder) == [0, 1, 2, 3, 4]


def test_ralph_187_a_step_that_failed_completes_nothing(folder: Path) -> None:
    """Whatever an agent says before it fails."""
    configure(folder, "step_defaults: {complete_when: LOOP_COMPLETE}\n")
    agent(folder, 'print("LOOP_COMPLETE", flush=True)\nsys.exit(1)')
    assert cli(folder, "run").returncode == 1
    assert (head(folder)["status"], head(folder)["step_index"]) == ("failed", 0)


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("limit", ["--max-steps", "limits"])
def test_ralph_369_completion_on_the_last_allowed_step_is_completion(
    folder: Path, limit: str
) -> None:
    """It was reported as max_iterations, with exit code 2."""
    configure(folder, "step_defaults: {complete_when: ALL DONE}\n")
    agent(folder, 'print("ALL DONE" if index == "2" else "more")')
    options = ["--max-steps", "3"]
    if limit == "limits":
        configure(folder, "limits: {max_steps: 3}\n")
        options = []
    ran = cli(folder, "run", *options)
    assert ran.returncode == 0
    assert (head(folder)["status"], head(folder)["step_index"]) == ("complete", 3)
    assert "complete" in ran.stdout
    assert "limit" not in ran.stdout
    assert events(folder)[-1] in {"succeeded", "completed"}


def test_ralph_143_failed_work_is_not_marked_as_success(folder: Path) -> None:
    """A merge ended in a conflict, was marked as a success, and the work was stranded."""
    agent(
        folder,
        "import json\n"
        'json.dump({"status": "ok"}, open(os.environ["SEQUENCER_RESULT"], "w"))\n'
        'print("CONFLICT (content)\\nsuccess!", flush=True)\nsys.exit(1)',
    )
    assert cli(folder, "run").returncode == 1
    assert (head(folder)["status"], head(folder)["step_index"]) == ("failed", 0)
    assert cli(folder, "run", "--position", "main").returncode != 0
    assert set(done(folder)) == {0}, "nothing behind it has begun"


def test_ralph_143_exit_code_0_alone_is_not_success(folder: Path) -> None:
    """A client that breaks off without its result has not succeeded, whatever it returns."""
    claude(folder, '_print(OPENINGS["claude"]("I merged it"))\n')
    assert cli(folder, "run").returncode == 1
    assert (head(folder)["status"], head(folder)["step_index"]) == ("failed", 0)


# --- limits of a subscription ------------------------------------------------------------


def test_ralph_168_a_timer_meets_a_reached_quota_without_spending(folder: Path) -> None:
    """A cap on cost does not see the quota of a subscription; the client's word does."""
    claude(folder, LIMITED)
    (folder / "reset_in_s").write_text("7200")
    ticks = [cli(folder, "tick") for _ in range(4)]
    reset = int((folder / "reset").read_text())
    assert [tick.returncode for tick in ticks] == [0] * 4
    assert (folder / "calls").read_text() == "1"
    found = head(folder)
    until_then = datetime.fromisoformat(found["not_before"])
    assert until_then.timestamp() == pytest.approx(reset, abs=120)
    # It counts as an attempt, so that nobody is asked forever, and as no failure.
    assert (found["failures_in_row"], found["attempt"], found["step_index"]) == (0, 1, 0)
    assert until_then > datetime.now(UTC)
    assert "nothing due" in ticks[-1].stdout + ticks[-1].stderr


# --- processes ---------------------------------------------------------------------------


def test_agentflow_41_a_timeout_leaves_no_process_of_the_tree(folder: Path) -> None:
    """The agent was ended, and what it had started ran on (also snarktank/ralph 79)."""
    agent(
        folder,
        "import subprocess, time\n"
        'nested = ["sh", "-c", "echo $$ > shell.pid; sleep 300 & echo $! > leaf.pid; wait"]\n'
        "subprocess.Popen(nested, start_new_session=True)\n"
        'open("agent.pid", "w").write(str(os.getpid()))\n'
        "time.sleep(300)",
    )
    ran = cli(folder, "run", "--step-timeout", "1.5")
    assert ran.returncode == 1
    for name in ("agent", "shell", "leaf"):
        assert is_gone(pid_in(folder / f"{name}.pid")), name
