"""`run` and `tick` as a person or a timer starts them; the agents are real scripts."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.acceptance.cli_process import cli, environment, head, launched, until

AGENT = """\
#!{python} -IS
import os, subprocess, sys, time
prompt = sys.stdin.read()
with open("turns.log", "a") as turns:
    turns.write("%s start %s %f\\n" % (os.environ["SEQUENCER_STEP"],
                os.environ["SEQUENCER_STEP_INDEX"], time.monotonic()))
if os.environ.get("CHILD"):
    child = subprocess.Popen(["sleep", "300"], start_new_session=True)
    open("child.pid", "w").write(str(child.pid))
open("agent.pid", "w").write(str(os.getpid()))
print("working on", prompt.strip(), flush=True)
time.sleep(float(os.environ.get("SLOW", "0")))
while os.environ.get("GATE") and not os.path.exists(os.environ["GATE"]):
    time.sleep(0.02)
with open("turns.log", "a") as turns:
    turns.write("%s end %s %f\\n" % (os.environ["SEQUENCER_STEP"],
                os.environ["SEQUENCER_STEP_INDEX"], time.monotonic()))
"""
CONFIGURATION = """\
workflow: {name: standard}
agent: {default: script}
agents:
  script: {kind: command, argv: [./agent], pass_env: [SLOW, CHILD, GATE]}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a project with an agent that notes when it began and ended."""
    made = tmp_path / "project"
    (made / "prompts").mkdir(parents=True)
    for name in ("supervisor", "main", "reviewer"):
        (made / "prompts" / f"{name}.md").write_text(f"the {name}'s prompt\n")
    agent = made / "agent"
    agent.write_text(AGENT.replace("{python}", sys.executable))
    agent.chmod(0o755)
    (made / "orchestration.yaml").write_text(CONFIGURATION)
    return made


@contextlib.contextmanager
def started(folder: Path, *arguments: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """Start the command line; end it, if need be, when the block does."""
    process = launched(
        folder,
        *arguments,
        variables=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=20)


def turns(folder: Path) -> list[tuple[str, str, int, float]]:
    """Return (step, start or end, step_index, monotonic time) of every agent run."""
    lines = (line.split() for line in (folder / "turns.log").read_text().splitlines())
    return [(step, what, int(index), float(at)) for step, what, index, at in lines]


def facts(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in cli(folder, "history", "--json").stdout.splitlines()]


def events(folder: Path) -> list[str]:
    return [fact["event"] for fact in facts(folder)]


def pid_in(path: Path) -> int:
    until(lambda: path.exists() and path.read_text().strip())
    return int(path.read_text())


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_eight_steps(folder: Path) -> None:
    ended = cli(folder, "run", "--max-steps", "8")
    assert ended.returncode == 0, ended.stderr
    logs = sorted(path.name for path in (folder / "logs" / "local" / "steps").iterdir())
    steps = ("supervisor", "main") * 4
    assert logs == [f"iter-{n:05d}_{step}.log" for n, step in enumerate(steps, start=1)]
    assert (head(folder)["step_index"], head(folder)["status"]) == (8, "waiting-next")
    assert events(folder)[0] == "initialised"
    assert events(folder)[1:] == ["claimed", "succeeded"] * 8
    assert "working on the main's prompt" in ended.stderr
    assert "8 steps" in ended.stdout
    assert [index for _, what, index, _ in turns(folder) if what == "start"] == list(range(8))


def test_two_terminals_take_turns(folder: Path) -> None:
    options = ("run", "--mode", "sync", "--max-steps", "6", "--quiet")
    with (
        started(folder, *options, "--position", "supervisor") as one,
        started(folder, *options, "--position", "main") as other,
    ):
        assert one.wait(60) == 0
        assert other.wait(60) == 0
    found = turns(folder)
    assert [(step, what) for step, what, _, _ in found] == [
        (step, what) for step in ("supervisor", "main") * 6 for what in ("start", "end")
    ]
    assert [index for _, _, index, _ in found] == [n for n in range(12) for _ in range(2)]
    assert head(folder)["step_index"] == 12


def test_many_processes_on_one_run_accept_each_step_once(folder: Path) -> None:
    (folder / "orchestration.yaml").write_text(CONFIGURATION + "limits: {max_steps: 20}\n")
    options = ("run", "--mode", "sync", "--quiet", "--max-steps", "20")
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(started(folder, *options)) for _ in range(4)]
        assert [process.wait(90) for process in processes] == [0] * 4
    accepted = [fact["step_index"] for fact in facts(folder) if fact["event"] == "succeeded"]
    assert accepted == list(range(20))


def test_only_one_of_two_simultaneous_ticks_runs(folder: Path) -> None:
    with started(folder, "tick", GATE="go") as first:
        pid_in(folder / "agent.pid")
        second = cli(folder, "tick")
        assert second.returncode == 75
        assert f"process {first.pid} on " in second.stderr
        as_json = cli(folder, "tick", "--json")
        assert json.loads(as_json.stdout)["exit_code"] == as_json.returncode == 75
        (folder / "go").touch()
        assert first.wait(20) == 0
    assert head(folder)["step_index"] == 1


@pytest.mark.slow
def test_waiting_for_a_turn_ends_at_the_timeout(folder: Path) -> None:
    with started(folder, "tick", GATE="go") as first:
        pid_in(folder / "agent.pid")
        with started(folder, "run", "--max-steps", "1", "--max-wait", "20") as waits:
            assert waits.stderr is not None
            assert waits.stderr.readline().startswith("waiting: ")
            (folder / "go").touch()
            assert waits.wait(20) == 0
        assert first.wait(20) == 0
    assert head(folder)["step_index"] == 2
    with started(folder, "tick", GATE="again"):
        until(lambda: head(folder)["status"] == "running")
        assert cli(folder, "run", "--max-wait", "0.3").returncode == 75
        (folder / "again").touch()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_releases_the_step_and_leaves_no_processes(
    folder: Path, number: signal.Signals
) -> None:
    with started(folder, "run", SLOW="60", CHILD="1") as process:
        agent, child = pid_in(folder / "agent.pid"), pid_in(folder / "child.pid")
        process.send_signal(number)
        out, err = process.communicate(timeout=20)
        assert process.returncode == 130, err
    assert "interrupted in step 'supervisor'; the claim was released" in err
    assert out == ""
    until(lambda: is_gone(agent) and is_gone(child))
    assert (head(folder)["claims"], head(folder)["step_index"]) == ([], 0)
    assert head(folder)["failures_in_row"] == 0
    assert events(folder) == ["initialised", "claimed", "released"]
    assert cli(folder, "tick").returncode == 0


def test_many_signals_work_like_one(folder: Path) -> None:
    with started(folder, "run", "--json", SLOW="60") as process:
        agent = pid_in(folder / "agent.pid")
        for _ in range(20):
            if process.poll() is not None:
                break
            process.send_signal(signal.SIGINT)
            time.sleep(0.01)
        out, err = process.communicate(timeout=20)
        assert process.returncode == 130, err
    assert "Traceback" not in err
    summary = json.loads(out)
    assert (summary["exit_code"], summary["steps"]) == (130, 0)
    assert summary["head"]["step_index"] == 0
    until(lambda: is_gone(agent))
    assert events(folder) == ["initialised", "claimed", "released"]


def test_a_signal_while_waiting_for_a_turn(folder: Path) -> None:
    with (
        started(folder, "tick", GATE="go") as holder,
        started(folder, "run", "--mode", "sync", "--position", "main") as process,
    ):
        assert process.stderr is not None
        assert process.stderr.readline().startswith("waiting for ")
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 130
        (folder / "go").touch()
        assert holder.wait(20) == 0
    assert head(folder)["step_index"] == 1


def test_a_killed_run_is_taken_over_at_once(folder: Path) -> None:
    with started(folder, "run", SLOW="60", CHILD="1") as process:
        agent, child = pid_in(folder / "agent.pid"), pid_in(folder / "child.pid")
        process.kill()
        process.wait()
    until(lambda: is_gone(agent) and is_gone(child))
    assert head(folder)["status"] == "running"
    ended = cli(folder, "tick", "--json")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["head"]["step_index"] == 1
    newest = facts(folder)[-1]
    assert (newest["event"], newest["token"], newest["attempt"]) == ("succeeded", 2, 2)
    assert "taken-over" in events(folder)


@pytest.mark.slow
def test_a_closed_output_pipe_stops_no_step(folder: Path) -> None:
    line = f"{sys.executable} -m sequencer run --max-steps 2 2>&1 | head -n 1"
    ended = subprocess.run(
        ["bash", "-c", line], cwd=folder, env=environment(), capture_output=True, text=True,
        timeout=60, check=True,
    )  # fmt: skip
    assert ended.stdout.count("\n") == 1
    until(lambda: head(folder)["step_index"] == 2)


@pytest.mark.slow
def test_flooding_output_neither_fills_memory_nor_blocks_the_agent(folder: Path) -> None:
    flood = folder / "agent"
    flood.write_text(
        "#!/bin/bash\ncat >/dev/null\nhead -c 64M /dev/zero | tr '\\0' x | fold -w 99\n"
    )
    with started(folder, "run", "--max-steps", "1") as process:
        seen = 0
        largest = 0
        assert process.stderr is not None
        measured = psutil.Process(process.pid)
        while data := process.stderr.read(65536):
            seen += len(data)
            with contextlib.suppress(psutil.Error):
                largest = max(largest, measured.memory_info().rss)
        assert process.wait(60) == 0
    assert seen < 40 * 1024 * 1024
    assert largest < 200 * 1024 * 1024


def test_a_failing_agent(folder: Path) -> None:
    (folder / "agent").write_text("#!/bin/sh\necho the reason >&2\nexit 7\n")
    ended = cli(folder, "run")
    assert ended.returncode == 1
    assert "iter-00001_supervisor.log" in ended.stderr
    assert (head(folder)["step_index"], head(folder)["failures_in_row"]) == (0, 1)
    assert [cli(folder, "tick").returncode for _ in range(3)] == [1, 1, 3]


def test_quiet_ticks_print_nothing_and_others_one_line(folder: Path) -> None:
    ended = cli(folder, "tick", "--quiet")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    cli(folder, "stop", "--pause")
    first, second = cli(folder, "tick"), cli(folder, "tick")
    assert first.stdout.startswith("nothing due: ")
    assert (second.stdout, second.returncode) == (first.stdout, 0)
