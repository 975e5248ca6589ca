"""A run that tells a webhook what happens, as timers and people start it.

The receiver is a real server on the loopback: slow, failing, gone, or hanging.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests import forked
from tests.acceptance.cli_process import cli, environment, scripted_project
from tests.acceptance.team_projects import make_project
from tests.loopback import free_ports
from tests.unit.cli.calling import idle_record
from tests.unit.posting.desk import Desk, Reply, open_desk

SINKS = """\
limits: {{max_steps: {steps}}}
activity:
  thoughts: false
  drain_s: {drain_s}
  sinks:
    hook: {{kind: webhook, url: "http://127.0.0.1:{port}/"}}
"""


def project(folder: Path, port: int, *, steps: int = 2, drain_s: float = 0.2) -> Path:
    made = scripted_project(folder)
    config = made / "orchestration.yaml"
    more = SINKS.format(port=port, steps=steps, drain_s=drain_s)
    config.write_text(config.read_text().replace("{python}", sys.executable) + more)
    return made


def tick(folder: Path) -> subprocess.CompletedProcess[str]:
    found = cli(folder, "tick")
    assert found.returncode == 0, found.stderr
    return found


def steps(desk: Desk) -> list[int]:
    return [seen.body["step_index"] for seen in desk.seen]


def status(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(cli(folder, "status", "--json").stdout)
    return found


@pytest.mark.slow
def test_a_slow_receiver_gets_each_result_once_and_in_order(tmp_path: Path) -> None:
    with open_desk(Reply(after_s=1.0)) as desk:
        folder = project(tmp_path, desk.port)
        shown = [tick(folder).stderr for _ in range(2)]
        assert steps(desk) == [0, 1]
        tick(folder)
        assert steps(desk) == [0, 1]
    assert "for activity sink 'hook' to answer" in shown[0]
    assert status(folder)["posts"] == []


def test_a_failed_slow_post_is_sent_again_with_the_same_key(tmp_path: Path) -> None:
    with open_desk(Reply(after_s=1.5)) as desk:
        desk.answers.append(Reply(500, after_s=1.5))
        # The second try begins before this is over, whatever the pause, and ends after it.
        folder = project(tmp_path, desk.port, steps=1, drain_s=3.5)
        for _ in range(2):
            tick(folder)
        keys = [seen.headers["idempotency-key"] for seen in desk.seen]
    assert len(keys) == 2
    # The receiver would have known it again.
    assert keys[0] == keys[1]


def test_pending_posts_are_shown_and_idle_ticks_keep_them(tmp_path: Path) -> None:
    port = free_ports(1)[0]
    folder = project(tmp_path, port, steps=3)
    for _ in range(4):
        assert "results are kept and posted later" in tick(folder).stderr
    assert not idle_record(folder).exists()
    (waiting,) = status(folder)["posts"]
    assert (waiting["sink"], waiting["pending"], waiting["refused"]) == ("hook", 3, 0)
    assert waiting["tries"] >= 4
    assert "ConnectError" in waiting["error"]
    assert "3 posts wait for sink 'hook' for " in cli(folder, "status").stdout
    assert "(default): 3 posts wait for sink 'hook' for " in cli(folder, "status", "--all").stdout
    (row,) = json.loads(cli(folder, "status", "--all", "--json").stdout)
    assert row["posts"][0]["pending"] == 3
    with open_desk(port=port) as desk:
        assert "can be reached again" in tick(folder).stderr
        # In order, and as many as drain_s had room for: one at least.
        while len(desk.seen) < 3:
            before = len(desk.seen)
            tick(folder)
            assert len(desk.seen) > before
        assert steps(desk) == [0, 1, 2]
        tick(folder)
        assert len(desk.seen) == 3
    assert "wait for sink" not in cli(folder, "status").stdout
    assert idle_record(folder).exists()


@pytest.mark.slow
def test_a_receivers_retry_after_is_respected(tmp_path: Path) -> None:
    with open_desk(Reply(429, headers={"Retry-After": "120"})) as desk:
        folder = project(tmp_path, desk.port)
        for _ in range(3):
            shown = tick(folder)
        assert len(desk.seen) == 1
    # Nothing was said, and still the next tick has to look whether the pause is over.
    assert (shown.stderr, idle_record(folder).exists()) == ("", False)
    (waiting,) = status(folder)["posts"]
    assert (waiting["pending"], waiting["tries"], waiting["error"]) == (2, 1, "HTTP 429")


def test_permanently_refused_posts_are_recorded_and_shown(tmp_path: Path) -> None:
    with open_desk(Reply(422)) as desk:
        folder = project(tmp_path, desk.port, steps=1)
        tick(folder)
        tick(folder)
        assert len(desk.seen) == 1
    assert "sink 'hook' refused 1 permanently; see activity/refused.jsonl" in (
        cli(folder, "status").stdout
    )


@contextmanager
def started(folder: Path, verb: str) -> Iterator[forked.Forked]:
    command = [sys.executable, "-m", "sequencer", verb]
    pipe = subprocess.PIPE
    with forked.Forked(command, cwd=folder, env=environment(), stderr=pipe, text=True) as process:
        yield process


def until_it_waits_for_an_answer(process: forked.Forked) -> None:
    assert process.stderr is not None
    assert any("for activity sink 'hook' to answer" in line for line in process.stderr)


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_a_post_leaves_it_finished(tmp_path: Path, number: signal.Signals) -> None:
    with open_desk(Reply(waits=True)) as desk:
        folder = project(tmp_path, desk.port, steps=3)
        agent = folder / "agent.py"
        slow = "if os.environ['SEQUENCER_STEP_INDEX'] == '1': time.sleep(60)\n"
        agent.write_text(agent.read_text() + slow)
        with started(folder, "run") as process:
            desk.wait_for(1)
            os.kill(process.pid, number)
            until_it_waits_for_an_answer(process)
            desk.let_go.set()
            assert process.wait(30) == 130
        assert status(folder)["posts"] == []
        assert steps(desk) == [0]


def test_a_timer_that_is_stopped_while_it_posts_finishes_the_post(tmp_path: Path) -> None:
    with open_desk(Reply(waits=True)) as desk:
        folder = project(tmp_path, desk.port, drain_s=0)
        with started(folder, "tick") as process:
            # By then the step is accepted, and the post is all that it waits for.
            until_it_waits_for_an_answer(process)
            os.kill(process.pid, signal.SIGTERM)
            desk.let_go.set()
            assert process.wait(30) == 0
        assert status(folder)["posts"] == []
        assert steps(desk) == [0]


# --- the end of an execution ---------------------------------------------------------------

USED = {"usage": {"input_tokens": 1000, "output_tokens": 50, "cost_usd": 0.25}}


@pytest.mark.slow
def test_the_outcome_of_a_team_is_posted_even_by_a_later_tick(
    tmp_path: Path,
) -> None:
    port = free_ports(1)[0]
    tasks: list[dict[str, Any]] = [
        {"id": "plan", "subject": "Plan it"},
        {"id": "code", "subject": "Build it", "blocked_by": ["plan"]},
        {"id": "docs", "subject": "Write it", "blocked_by": ["plan"]},
        {"id": "sum", "subject": "Sum it up", "blocked_by": ["code", "docs"]},
    ]
    plan = {"plan": USED, "code": {"seconds": 0.5, **USED}, "sum": {"says": "All is done."}}
    sinks = {"hook": {"kind": "webhook", "url": f"http://127.0.0.1:{port}/"}}
    folder = make_project(
        tmp_path, tasks, plan, activity={"thoughts": False, "drain_s": 0.2, "sinks": sinks}
    )
    assert cli(folder, "run").returncode == 0
    (waiting,) = status(folder)["posts"]
    assert waiting["pending"] == 5
    with open_desk(port=port) as desk:
        while len(desk.seen) < 5:
            tick(folder)
        end = desk.seen[-1].body
    assert [seen.body.get("event") for seen in desk.seen] == ["succeeded"] * 4 + ["completed"]
    assert end["body"] == "All is done."
    told = end["metrics"]
    assert (told["steps"], told["attempts"], told["failed"]) == (4, 4, 0)
    assert (told["input_tokens"], told["output_tokens"]) == (2000, 100)
    assert (told["cost_usd"], told["unpriced"]) == (0.5, 2)
    assert told["agents"] == ["script"]
    assert (told["peak"], told["critical_path"]) == (2, ["plan", "code", "sum"])
    assert told["wall_s"] >= told["critical_s"] >= 0.5
    assert told["speed_up"] > 0
