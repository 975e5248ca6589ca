"""A run on a real Temporal server says and does what one in files does."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from temporalio.client import Client, WorkflowExecutionStatus

from sequencer import Head, Transition, open_project
from tests.fleet.conftest import TTL_S
from tests.fleet.fleet_projects import (
    AGENTS,
    CYCLE,
    FLOW,
    PROCEDURE,
    FleetProject,
    started_by,
    steady,
    told,
    until,
)
from tests.fleet.server import CALL_TIMEOUT, ask

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(240)]
REPLAY = """\
import asyncio, os, sys
from temporalio.client import Client
from temporalio.worker import Replayer
from sequencer.plugins.temporal.worker import RUNNER
from sequencer.plugins.temporal.workflow import RunWorkflow

async def main(address, run):
    client = await Client.connect(address)
    history = await client.get_workflow_handle(run).fetch_history()
    await Replayer(workflows=[RunWorkflow], workflow_runner=RUNNER).replay_workflow(history)
    print("the same", flush=True)
    os._exit(0)

asyncio.run(main(*sys.argv[1:]))
"""
Make = Callable[[str], FleetProject]
Pair = Callable[[str], tuple[FleetProject, FleetProject]]


def same(pair: tuple[FleetProject, FleetProject], *arguments: str) -> str:
    """Run the same command on both; return what both have said."""
    fleet, files = (one.cli(*arguments) for one in pair)
    assert fleet.returncode == files.returncode, (fleet.stderr, files.stderr)
    assert steady(fleet.stdout) == steady(files.stdout)
    if arguments[0] not in ("run", "log"):
        assert steady(fleet.stderr) == steady(files.stderr)
    return fleet.stdout


def test_a_cycle_is_the_same_as_in_files(pair: Pair) -> None:
    both = pair(CYCLE)
    same(both, "status")
    for arguments in (["run", "--max-steps", "3"], ["run", "--max-steps", "2", "--json"]):
        same(both, *arguments)
    status = json.loads(same(both, "status", "--json"))
    assert (status["step_index"], status["revision"], status["status"]) == (5, 8, "waiting-next")
    for arguments in (
        ["status"],
        ["plan", "--count", "4"],
        ["plan", "--json"],
        ["status", "--all"],
    ):
        same(both, *arguments)
    fleet, files = (one.facts("history") for one in both)
    assert told(fleet) == told(files)
    logs = [[row["path"] for row in map(json.loads, one.cli("log", "--json").stdout.splitlines())]
            for one in both]  # fmt: skip
    assert [path.rsplit("/", 1)[1] for path in logs[0]] == [p.rsplit("/", 1)[1] for p in logs[1]]


def test_a_gate_is_decided_without_a_worker(pair: Pair) -> None:
    both = pair(PROCEDURE)
    for words in (
        "stop --pause", "run", "resume", "run", "status --json", "run", "answer again",
        "answer feedback more", "run", "inbox --json", "answer approve --note fine",
        "answer approve", "stop --reason enough", "run", "resume", "run", "run", "status",
        "answer reject", "rewind 1", "run", "status --json",
    ):  # fmt: skip
        same(both, *words.split())
    fleet, files = (one.facts("history") for one in both)
    assert told(fleet) == told(files)
    events = [one["event"] for one in fleet]
    assert (events.count("feedback"), events.count("approved")) == (1, 1)


def test_a_completed_run_calls_the_hook_with_the_step_that_has_ended_it(pair: Pair) -> None:
    hooks = """\
from pathlib import Path
from sequencer import Decision, Move, hookimpl

@hookimpl
def sequencer_transition(context, outcome):
    return Decision(Move.SKIP) if context.step.name == "second" else None

@hookimpl
def sequencer_completed(context, head):
    Path("ended.txt").write_text(f"{context.step.name} {context.step_index} {head.status}")
"""
    steps = ", ".join(f"{{name: {name}, prompt: main.md}}" for name in ("first", "second", "third"))
    release = f"{{kind: procedure, steps: [{steps}]}}"
    workflows = (
        f"hooks: [hooks.py]\nworkflow: {{name: release}}\nworkflows: {{release: {release}}}\n"
    )
    both = pair(AGENTS + workflows)
    for one in both:
        (one.folder / "hooks.py").write_text(hooks)
    same(both, "run")
    ended = [(one.folder / "ended.txt").read_text() for one in both]
    assert ended == ["second 1 complete"] * 2


def test_decisions_reach_a_run_whose_worker_lives(project: Make) -> None:
    here = project(PROCEDURE)
    with here.worker():
        assert here.cli("run").returncode == 4
        assert here.cli("answer", "do more").returncode == 0
        assert here.cli("run").returncode == 4
        assert here.cli("answer", "reject", "--note", "no").returncode == 0
    assert here.facts("status")["status"] == "complete"
    assert len(here.done) == 2


def test_two_workers_and_the_run_command_share_the_steps(project: Make) -> None:
    here = project(CYCLE)
    with here.worker(), here.worker():
        assert here.cli("run", "--max-steps", "8").returncode == 0
    assert [one[1] for one in here.done] == [str(index) for index in range(8)]
    assert here.facts("status")["usage"]["steps"] == 8


@pytest.mark.sample
def test_a_killed_worker_is_replaced_and_nothing_is_doubled(project: Make) -> None:
    here = project(CYCLE)
    gate = here.hold()
    with here.worker("--max-parallel", "1") as one:
        run = here.launched("run", "--max-steps", "3")
        until(lambda: here.done)
        victim, rest = (one, run) if started_by(int(here.done[0][3])) == one.pid else (run, one)
        os.kill(victim.pid, signal.SIGKILL)
        victim.wait()
        if rest is one:
            # Who let it go on is gone, and nobody else has.
            until(lambda: not here.facts("status")["busy"])
            run = here.launched("run", "--max-steps", "3")
        took = until(lambda: len(here.done) == 2, 60)
        gate.unlink()
        assert run.wait(60) == 0
        run.communicate()
    facts = here.facts("history")
    assert [one["step_index"] for one in facts if one["event"] == "succeeded"] == [0, 1, 2]
    taken = [one for one in facts if one["event"] == "taken-over"]
    assert [one["token"] for one in taken] == [1]
    # Heartbeat timeout and 3 s; here with the start of an agent on a machine that others use.
    assert rest is one or took < 3 * TTL_S + 3


def test_a_long_run_continues_as_a_new_execution_with_its_whole_history(project: Make) -> None:
    here = project(CYCLE)
    assert here.cli("run", "--max-steps", "40", timeout_s=120).returncode == 0
    facts = here.facts("history")
    accepted = [one["step_index"] for one in facts if one["event"] == "succeeded"]
    assert accepted == list(range(40))
    assert all(one["outcome"]["output"] for one in facts if one["event"] == "succeeded")
    revisions = [one["revision"] for one in facts]
    assert sorted(set(revisions)) == list(range(1, revisions[-1] + 1))
    assert [one["event"] for one in facts[:2]] == ["initialised", "claimed"]
    # It was more than one: what ends a step there claims no other.
    assert revisions[-1] > 42
    assert len(here.done) == 40


def _id(here: FleetProject, run: str = "default") -> str:
    """Return the id of a run on the server."""
    return f"seq/{here.folder.name}/{run}"


def _with_flow(here: FleetProject) -> FleetProject:
    (here.folder / "flows").mkdir()
    (here.folder / "flows" / "review.md").write_text(FLOW)
    return here


def test_a_flow_runs_two_nodes_at_once_and_asks_a_person(pair: Pair) -> None:
    both = pair(AGENTS)
    for one in both:
        _with_flow(one)
    same(both, "run", "flows/review.md", "--state", "who=Ann")
    fleet = both[0]
    assert fleet.facts("status", "--run", "review")["status"] == "waiting-approval"
    for words in ("status", "inbox", "answer fine nonsense", "answer fine approve"):
        same(both, "--run", "review", *words.split())
    same(both, "run", "flows/review.md")
    same(both, "--run", "review", "status")
    events = [[(f["event"], f["step"]) for f in one.facts("--run", "review", "history")]
              for one in both]  # fmt: skip
    assert sorted(events[0]) == sorted(events[1])
    last = fleet.facts("--run", "review", "history")
    published = [one for one in last if (one["event"], one["step"]) == ("succeeded", "publish")]
    assert published[0]["outcome"]["output"] == "published: prose of a draft for Ann"


@pytest.mark.sample
def test_two_workers_run_parallel_nodes(project: Make) -> None:
    here = _with_flow(project(AGENTS))
    hold = here.hold("prose"), here.hold("facts")
    with (
        here.worker("--max-parallel", "1"),
        here.worker("--max-parallel", "1"),
        here.process("run", "flows/review.md", "--max-parallel", "2") as run,
    ):
        until(lambda: len(here.done) == 3, 60)
        assert len(here.facts("status", "--run", "review")["claims"]) == 2
        for path in hold:
            path.unlink()
        assert run.wait(60) == 4
    assert sorted(one[0] for one in here.done) == ["draft", "facts", "prose"]


def test_two_positions_take_turns_and_a_tick_does_one_step(project: Make) -> None:
    here = project(AGENTS + "workflow: {name: standard}\n")
    with (
        here.process("run", "--mode", "sync", "--position", "supervisor", "--max-steps", "3"),
        here.process("run", "--mode", "sync", "--position", "main", "--max-steps", "3"),
    ):
        until(lambda: len(here.done) == 6, 90)
        until(lambda: not here.facts("status")["busy"])
    assert here.facts("status")["usage"]["steps"] == 6
    assert here.cli("tick").returncode == 0
    assert len(here.done) == 7


def test_two_runs_of_a_project_do_not_mix(project: Make) -> None:
    here = project(CYCLE)
    with (
        here.process("run", "--max-steps", "4", "--run", "one") as one,
        here.process("run", "--max-steps", "4", "--run", "two") as two,
    ):
        assert (one.wait(90), two.wait(90)) == (0, 0)
    for name in ("one", "two"):
        status = here.facts("status", "--run", name)
        assert (status["run_name"], status["step_index"]) == (name, 4)
    until(lambda: len(here.facts("status", "--all")) == 2)


def test_replaying_a_history_gives_the_same_decisions(project: Make, address: str) -> None:
    """A run's whole history is decided again, under other hash seeds: no set's order counts."""
    here = _with_flow(project(AGENTS))
    assert here.cli("run", "flows/review.md").returncode == 4
    assert here.cli("--run", "review", "answer", "fine", "send back").returncode == 0
    assert here.cli("run", "flows/review.md").returncode == 4
    for seed in ("1", "2", "3"):
        replayed = subprocess.run(
            [sys.executable, "-c", REPLAY, address, _id(here, "review")],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert replayed.stdout == "the same\n", replayed.stderr


def test_another_clone_continues_with_the_outputs_of_this_one(
    project: Make, tmp_path: Path
) -> None:
    here = _with_flow(project(AGENTS))
    text = (here.folder / "orchestration.yaml").read_text()
    there = _with_flow(FleetProject(tmp_path / "clone", "", text))
    assert here.cli("run", "flows/review.md", "--state", "who=Ann").returncode == 4
    until(lambda: there.facts("status", "--all"))
    assert there.facts("--run", "review", "inbox")[0]["node"] == "fine"
    assert there.cli("--run", "review", "answer", "fine", "approve").returncode == 0
    assert there.cli("run", "flows/review.md").returncode == 0
    facts = here.facts("--run", "review", "history")
    published = [one for one in facts if (one["event"], one["step"]) == ("succeeded", "publish")]
    assert published[0]["outcome"]["output"] == "published: prose of a draft for Ann"
    assert [one[0] for one in there.done] == ["publish"]
    cycle = here.facts("--run", "review", "status")
    assert cycle["status"] == "complete"


def test_two_clones_share_a_cycle(project: Make, tmp_path: Path) -> None:
    here = project(CYCLE)
    text = (here.folder / "orchestration.yaml").read_text()
    there = FleetProject(tmp_path / "clone", "", text)
    hold = here.hold()
    with there.worker(), here.process("run", "--max-steps", "4") as run:
        until(lambda: here.done or there.done)
        hold.unlink()
        assert run.wait(60) == 0
    made = sorted(int(one[1]) for one in [*here.done, *there.done])
    assert made == [0, 1, 2, 3]
    assert told(here.facts("history")) == told(there.facts("history"))


def test_workers_run_detached_steps_and_status_names_them(project: Make) -> None:
    here = project(CYCLE)
    hold = here.hold()
    ended = here.cli("run", "--detach", "--max-steps", "3")
    assert (ended.returncode, here.done) == (0, []), ended.stderr
    assert ended.stdout.startswith("detached: workers run the steps")
    status = here.cli("status").stdout
    assert "no worker has taken it yet; 'sequencer worker' starts one" in status
    assert "(max_steps 3): workers run the steps" in status
    with here.worker() as worker:
        until(lambda: here.done)
        assert f"process {worker.pid} on {socket.gethostname()}, step supervisor" in (
            here.cli("status").stdout
        )
        assert f"is held by process {worker.pid} on" in here.cli("takeover").stderr
        hold.unlink()
        until(lambda: "end" in here.facts("status")["detached"][0])
    facts = here.facts("status")
    assert [one["end"] for one in facts["detached"]] == ["3 steps are done (--max-steps)"]
    assert (facts["step_index"], facts["claims"], len(here.done)) == (3, [], 3)
    assert "3 steps are done" in here.cli("status").stdout


def test_a_work_order_is_not_issued_where_nothing_can_begin(project: Make) -> None:
    here = project(PROCEDURE)
    assert here.cli("run", "--detach").returncode == 0
    with here.worker():
        until(lambda: here.facts("status")["status"] == "waiting-approval")
    assert here.cli("run", "--detach").returncode == 4


def test_run_and_worker_report_every_step_once(project: Make) -> None:
    here = project(CYCLE)
    with here.worker() as worker:
        ended = here.cli("run", "--max-steps", "6")
        assert ended.returncode == 0
        worker.send_signal(signal.SIGTERM)
        made = worker.communicate(timeout=30)[0]
    for number in range(1, 7):
        starts = re.findall(rf"\[{number}\] \w+.*(?: with |: made by )", ended.stderr)
        ends = re.findall(rf"\[{number}\] \w+: (?:ended|accepted) after .*", ended.stderr)
        assert (len(starts), len(ends)) == (1, 1), ended.stderr
        is_elsewhere = f", by {worker.pid}@" in ends[0]
        assert (f"default [{number}]" in made) == is_elsewhere, (ends, made)


def test_log_names_the_machine_that_has_it(project: Make, tmp_path: Path) -> None:
    here = project(CYCLE)
    text = (here.folder / "orchestration.yaml").read_text()
    there = FleetProject(tmp_path / "clone", "", text)
    assert here.cli("run", "--max-steps", "2").returncode == 0
    assert "is on" not in here.cli("log").stderr
    told_there = there.cli("log", "main").stderr
    assert f"step 'main' (iteration 2, attempt 1) is on {socket.gethostname()}: " in told_there
    assert "supervisor" not in told_there


def test_a_restart_does_not_skip_another_one(project: Make, address: str) -> None:
    here = project(PROCEDURE)

    async def status(client: Client) -> WorkflowExecutionStatus | None:
        return (await client.get_workflow_handle(_id(here)).describe()).status

    with here.worker():
        assert here.cli("run").returncode == 4
        assert here.cli("answer", "reject").returncode == 0
        opened = open_project(here.folder, trust=True)
        one, other = opened.store(None), opened.store(None)
        until(lambda: ask(address, status) is WorkflowExecutionStatus.COMPLETED)
        calls: list[int] = []

        def touch(head: Head | None) -> Transition:
            assert head is not None
            calls.append(head.revision)
            return Transition(head, ())

        def late(head: Head | None) -> Transition:
            if not calls:
                calls.append(other.update(touch).revision)
                # So long the worker has time to end what has nothing to do.
                time.sleep(2)
            return touch(head)

        revision: int = here.facts("status")["revision"]
        assert one.update(late).revision == revision + 2
    # Seen by the other one, made by it, decided over again after it.
    assert calls == [revision, revision + 1, revision, revision + 1]


def test_the_server_shows_the_state_of_a_run(project: Make, address: str) -> None:
    here = project(PROCEDURE)

    async def seen(client: Client) -> tuple[str | None, str | None, str]:
        handle = client.get_workflow_handle(_id(here))
        described = await handle.describe()
        now = await handle.query("__temporal_workflow_metadata", rpc_timeout=CALL_TIMEOUT)
        return await described.static_summary(), await described.static_details(), str(now)

    with here.worker():
        assert here.cli("run").returncode == 4
        summary, details, now = ask(address, seen)
    assert summary == "workflow release"
    assert "'sequencer status' shows its state" in str(details)
    assert "waiting-approval; accepted steps: 1" in now
