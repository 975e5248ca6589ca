"""Public complaints about programs of this kind: lost state, stuck runs, wrong resumption.

Each test is named after the issue that it answers; the docstring says what happened there.
"""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

import sequencer
from sequencer import commands
from sequencer.errors import ClaimHeld, StaleClaim
from tests.acceptance.cli_process import cli, done, head, scripted_project, until
from tests.acceptance.test_cli_run import is_gone, pid_in, started

SLOW_AT_STEP_2 = """\
import os, time
index = os.environ["SEQUENCER_STEP_INDEX"]
with open("done.txt", "a") as file:
    file.write(index + "\\n")
with open("agent.pid", "w") as file:
    file.write(str(os.getpid()))
if index == "2" and os.environ["SEQUENCER_ATTEMPT"] == "1":
    time.sleep(60)
"""
PAID = """\
import json, os
with open(os.environ["SEQUENCER_RESULT"], "w") as file:
    cost = 0.25 * (1 + int(os.environ["SEQUENCER_STEP_INDEX"]))
    json.dump({"usage": {"cost_usd": cost, "input_tokens": 700}}, file)
"""
SCRIPTED = """\
workflow: {name: standard}
agent: {default: canned}
agents:
  canned: {kind: scripted, outcomes: [{output: "the same as ever"}]}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a project whose agent notes each step_index in done.txt."""
    return scripted_project(tmp_path / "project")


def configure(folder: Path, more: str) -> None:
    path = folder / "orchestration.yaml"
    path.write_text(path.read_text() + more)


def facts(folder: Path, run: str | None = None) -> list[dict[str, Any]]:
    """Return what `history` shows, without a process for it."""
    return list(sequencer.open_run(folder, name=run).history())


def accepted(folder: Path, run: str | None = None) -> list[int]:
    found = facts(folder, run)
    return [fact["step_index"] for fact in found if fact["event"] == "succeeded"]


def killed_in_step_2(folder: Path) -> int:
    """Let the sequencer be killed in its third step; return the agent's process id."""
    (folder / "agent.py").write_text(SLOW_AT_STEP_2)
    with started(folder, "run") as process:
        until(lambda: done(folder) == [0, 1, 2])
        agent = pid_in(folder / "agent.pid")
        process.kill()
        process.wait()
    return agent


# --- state that is lost ------------------------------------------------------------------


def test_cyrus_1444_a_truncated_state_file_orphans_nothing(folder: Path) -> None:
    """A kill in mid-write left half a state file, and all sessions in it were lost."""
    names = ("a", "b", "c", "d")
    for steps, name in enumerate(names, start=1):
        assert cli(folder, "run", "--run", name, "--max-steps", str(steps)).returncode == 0
    states = [folder / "sync" / "runs" / name / "state.json" for name in names]
    whole = states[0].stat().st_size
    for state, size in zip(states, (0, 1, whole // 2, whole - 2), strict=True):
        state.write_bytes(state.read_bytes()[:size])
    for steps, name in enumerate(names, start=1):
        ticked = cli(folder, "tick", "--run", name)
        assert ticked.returncode == 0, ticked.stderr
        assert accepted(folder, name) == list(range(steps + 1))
    assert done(folder) == [0, 0, 1, 0, 1, 2, 0, 1, 2, 3, 1, 2, 3, 4]


def test_langgraph_8039_a_head_behind_its_journal_replays_no_step(folder: Path) -> None:
    """Without an order of writes, a crash between two of them replayed side effects."""
    cli(folder, "run", "--max-steps", "2")
    before = (folder / "sync" / "state.json").read_bytes()
    cli(folder, "tick")
    (folder / "sync" / "state.json").write_bytes(before)
    assert cli(folder, "tick").returncode == 0
    assert done(folder) == accepted(folder) == [0, 1, 2, 3]


def test_langgraph_8796_two_writers_can_not_fork_the_history(folder: Path) -> None:
    """Two writers on one thread each wrote on from the same point."""
    one = sequencer.open_run(folder)
    other = sequencer.open_run(folder)
    slow = one.turn()
    slow.__enter__()
    with pytest.raises(ClaimHeld), other.turn():
        pass
    other.do(commands.TakeOver())
    with other.turn() as quick:
        quick.output = "the step, done by whoever owns it now"
    with pytest.raises(StaleClaim):
        slow.__exit__(None, None, None)
    found = facts(folder)
    assert [fact["step_index"] for fact in found if fact["event"] == "succeeded"] == [0]
    assert found[-1]["outcome"]["output"] == "the step, done by whoever owns it now"
    assert len({fact["token"] for fact in found if fact["event"] == "claimed"}) == 2
    revisions = [fact["revision"] for fact in found]
    assert revisions == sorted(revisions)


@pytest.mark.slow
def test_claude_code_33764_a_restart_wipes_nothing_and_leaves_no_ghosts(folder: Path) -> None:
    """Tasks vanished with a restart, while members that had died were still listed."""
    cli(folder, "set", "ticket=ABC-1")
    agent = killed_in_step_2(folder)
    until(lambda: is_gone(agent))
    assert cli(folder, "tick").returncode == 0
    after = head(folder)
    assert (after["ticket"], after["step_index"], after["claims"]) == ("ABC-1", 3, [])
    assert accepted(folder) == [0, 1, 2]


# --- stuck for ever ----------------------------------------------------------------------


@pytest.mark.slow
def test_dagu_1103_a_killed_run_does_not_stay_running_forever(folder: Path) -> None:
    """After a restart the run was "running" for ever and blocked the next schedule."""
    killed_in_step_2(folder)
    assert head(folder)["status"] == "running", "the kill left it so"
    assert json.loads(cli(folder, "status", "--json").stdout)["busy"] is False
    ticked = cli(folder, "tick")
    assert ticked.returncode == 0, ticked.stderr
    assert head(folder)["status"] == "waiting-next"
    assert facts(folder)[-1]["attempt"] == 2


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("way_out", [("skip",), ("rewind", "1")])
def test_dagu_2298_a_step_that_died_running_blocks_no_retry(
    folder: Path, way_out: tuple[str, ...]
) -> None:
    """A child that died stayed Running, and each retry of its parent was a "deadlock"."""
    killed_in_step_2(folder)
    asked = cli(folder, "takeover")
    assert "gone; the next run takes over" in asked.stderr
    assert cli(folder, "takeover", "--force").returncode == 0
    assert cli(folder, *way_out).returncode == 0
    ran = cli(folder, "tick")
    assert ran.returncode == 0, ran.stderr
    assert head(folder)["claims"] == []


def test_ralph_202_a_run_whose_folder_is_removed_ends(folder: Path) -> None:
    """The work tree was removed under a loop, which stayed as a running zombie."""
    (folder / "agent.py").write_text(SLOW_AT_STEP_2.replace("time.sleep(60)", "time.sleep(1)"))
    with started(folder, "run") as process:
        until(lambda: done(folder) == [0, 1, 2])
        agent = pid_in(folder / "agent.pid")
        shutil.rmtree(folder)
        _, said = process.communicate(timeout=20)
    assert process.returncode == 3, said
    assert "Traceback" not in said
    assert is_gone(agent)


@pytest.mark.parametrize("end", ["os._exit(1)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_claude_plugins_5536_an_agent_that_ends_silently_is_a_failure(
    folder: Path, end: str
) -> None:
    """A hook exited silently and left ``active: true`` behind."""
    (folder / "agent.py").write_text(f"import os, signal\n{end}\n")
    ran = cli(folder, "run")
    assert ran.returncode == 1
    assert "supervisor" in ran.stderr
    after = head(folder)
    assert (after["status"], after["claims"], after["step_index"]) == ("failed", [], 0)
    assert facts(folder)[-1]["outcome"]["error"]


# --- resumption --------------------------------------------------------------------------


@pytest.mark.slow
def test_ralph_244_run_caps_keep_counting_after_a_restart(folder: Path) -> None:
    """--continue set iterations and cost to 0, so that each restart had the whole cap again."""
    (folder / "agent.py").write_text(PAID)
    configure(folder, "limits: {max_cost_usd: 1.4}\n")
    steps = []
    for _ in range(4):
        ran = cli(folder, "run", "--max-steps", "2")
        assert ran.returncode == 0, ran.stderr
        steps.append(head(folder)["step_index"])
    assert steps == [2, 3, 3, 3]
    assert head(folder)["usage"]["cost_usd"] == 1.5
    assert "limit of 1.4" in ran.stdout + ran.stderr


@pytest.mark.slow
def test_tradingagents_1089_a_changed_workflow_is_not_resumed_unasked(folder: Path) -> None:
    """A checkpoint was resumed under another graph and went on with the wrong one."""
    flow = "workflows:\n  mine: {steps: [supervisor, main]}\n"
    path = folder / "orchestration.yaml"
    path.write_text(path.read_text().replace("review_cadence, review_every_n: 2", "mine") + flow)
    assert cli(folder, "run", "--max-steps", "1").returncode == 0
    path.write_text(path.read_text().replace("[supervisor, main]", "[supervisor, reviewer, main]"))
    before = (folder / "sync" / "state.json").read_bytes()
    for verb in ("run", "tick"):
        refused = cli(folder, verb)
        assert refused.returncode == 3
        assert "adopt" in refused.stderr
    assert (folder / "sync" / "state.json").read_bytes() == before
    assert done(folder) == [0]
    assert cli(folder, "adopt").returncode == 0
    assert cli(folder, "tick").returncode == 0
    assert facts(folder)[-1]["step"] == "reviewer"


@pytest.mark.slow
def test_dagu_2388_a_step_and_all_after_it_run_again(folder: Path) -> None:
    """Wished for: run one step again, and everything downstream of it."""
    cli(folder, "run", "--max-steps", "4")
    assert cli(folder, "rewind", "1").returncode == 0
    cli(folder, "run", "--max-steps", "3")
    assert done(folder) == [0, 1, 2, 3, 1, 2, 3]
    assert "rewound" in {fact["event"] for fact in facts(folder)}


def test_cyrus_1389_the_result_of_a_step_asked_to_stop_is_saved(folder: Path) -> None:
    """After stop and resume the result of the step that had run was silently discarded."""
    agent = (folder / "agent.py").read_text()
    held = 'while not os.path.exists("go"):\n    time.sleep(0.02)\n'
    (folder / "agent.py").write_text(agent + held + 'print("the hard-won answer")\n')
    with started(folder, "run") as process:
        until(lambda: done(folder) == [0])
        assert cli(folder, "stop").returncode == 0
        (folder / "go").touch()
        process.wait(20)
    assert facts(folder)[-1]["outcome"]["output"].strip() == "the hard-won answer"
    assert cli(folder, "resume").returncode == 0
    assert cli(folder, "tick").returncode == 0
    assert done(folder) == accepted(folder) == [0, 1]


def test_cyrus_1389_a_result_that_comes_too_late_is_not_thrown_away(folder: Path) -> None:
    """What can't be accepted any more is refused aloud, and kept beside the run."""
    agent = (folder / "agent.py").read_text()
    (folder / "agent.py").write_text(agent + 'print("the hard-won answer")\n')
    (folder / "hold").touch()
    with started(folder, "tick") as process:
        until(lambda: done(folder) == [0])
        # Within a second: after that, the worker notices that it lost the step, and ends its agent.
        run = sequencer.open_run(folder)
        run.do(commands.TakeOver())
        run.do(commands.Skip())
        (folder / "hold").unlink()
        _, said = process.communicate(timeout=20)
    assert process.returncode == 3
    assert "stale" in said
    (kept,) = (folder / "sync" / "results").glob("0-1-*/output.txt")
    assert kept.read_text().strip() == "the hard-won answer"


# --- several sessions, timers, growth ----------------------------------------------------


@pytest.mark.slow
def test_claude_plugins_64_one_session_does_not_hijack_another(folder: Path) -> None:
    """One state file a project: whoever came next went on with somebody else's loop."""
    with started(folder, "run", "--run", "docs", SLOW="60") as docs:
        until(lambda: done(folder) == [0])
        assert cli(folder, "run", "--run", "fixes", "--max-steps", "2").returncode == 0
        assert cli(folder, "run", "--max-steps", "1").returncode == 0
        assert cli(folder, "stop", "--run", "fixes").returncode == 0
        assert docs.poll() is None, "stopping one stops no other"
        docs.send_signal(signal.SIGTERM)
        assert docs.wait(20) == 130
    assert [accepted(folder, name) for name in ("docs", "fixes")] == [[], [0, 1]]
    assert accepted(folder) == [0]
    ids = {json.loads(path.read_text())["run_id"] for path in folder.glob("sync/**/state.json")}
    assert len(ids) == 3


def test_dagu_1180_a_late_tick_runs_only_the_one_step_that_is_due(folder: Path) -> None:
    """Schedules that were missed while the scheduler was down were lost."""
    cli(folder, "tick")
    assert cli(folder, "set", "not_before=2020-01-01T00:00:00Z").returncode == 0
    late = cli(folder, "tick", "--json")
    assert late.returncode == 0, late.stderr
    assert json.loads(late.stdout)["steps"] == 1
    assert done(folder) == [0, 1], "neither lost nor made up for by a heap of steps"


def test_dagu_1180_a_tick_that_was_started_twice_runs_its_step_once(folder: Path) -> None:
    """The timer and the person who could not wait: one runs, the other says who does."""
    (folder / "hold").touch()
    with started(folder, "tick") as first:
        until(lambda: done(folder) == [0])
        second = cli(folder, "tick")
        (folder / "hold").unlink()
        assert first.wait(20) == 0
    assert second.returncode == 75
    assert str(first.pid) in second.stderr
    assert done(folder) == accepted(folder) == [0]


@pytest.mark.slow
def test_langgraphjs_1138_a_long_run_does_not_grow_without_bound(folder: Path) -> None:
    """A hundred rows a run, and no retention: here the head is small and journals end."""
    journals = "store: {journal: {rotate_bytes: 65536, keep: 2}}\n"
    (folder / "orchestration.yaml").write_text(SCRIPTED + journals)
    run = sequencer.open_run(folder)
    sizes = []
    for _ in range(2):
        run.work(limits=sequencer.InvocationLimits(max_steps=150))
        files = [path for path in (folder / "sync").rglob("*") if path.is_file()]
        sizes.append(sum(path.stat().st_size for path in files))
        assert (folder / "sync" / "state.json").stat().st_size < 4096
    assert head(folder)["step_index"] == 300
    assert max(sizes) < 4 * 65536 + 8192
    assert cli(folder, "tick").returncode == 0


def test_ralph_claude_code_110_tokens_and_cost_of_each_step(folder: Path) -> None:
    """Wished for: tokens and cost for each task and iteration, not one sum at the end."""
    (folder / "agent.py").write_text(PAID)
    cli(folder, "run", "--max-steps", "3")
    usages = [fact["outcome"]["usage"] for fact in facts(folder) if fact["event"] == "succeeded"]
    assert [usage["cost_usd"] for usage in usages] == [0.25, 0.5, 0.75]
    assert [usage["input_tokens"] for usage in usages] == [700] * 3
    assert all(cost in cli(folder, "history").stdout for cost in ("0.25", "0.50", "0.75"))
    assert head(folder)["usage"]["cost_usd"] == 1.5
