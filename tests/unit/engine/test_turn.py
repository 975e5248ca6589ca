"""Steps that the caller performs, and async mode beside the run."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sequencer.engine.invocation_budget import Mode
from sequencer.errors import (
    ClaimHeld,
    Interrupted,
    StaleClaim,
    StepFailed,
    TransitionRefused,
    UnsafeFolder,
)
from sequencer.executors.cancellation import StopReason
from sequencer.model.commands import SetField, TakeOver
from sequencer.model.limits import InvocationLimits
from tests.unit.engine.projects import (
    FAILED,
    Recorder,
    events,
    head_of,
    open_scripted,
    reopen,
    write_project,
)


def facts(folder: Path) -> list[dict[str, Any]]:
    return list(reopen(folder).history())


def test_an_interrupt_in_the_block_releases(tmp_path: Path) -> None:
    run = open_scripted(tmp_path)
    with pytest.raises(KeyboardInterrupt), run.turn():
        raise KeyboardInterrupt
    assert events(run) == ["initialised", "claimed", "released"]
    assert head_of(run).failures_in_row == 0


def test_a_failure_and_the_end_can_be_set_without_raising(tmp_path: Path) -> None:
    run = open_scripted(tmp_path)
    with run.turn() as turn:
        turn.failure = "no good"
    assert events(run)[-1] == "failed"
    with run.turn() as turn:
        turn.is_complete = True
    assert head_of(run).status == "complete"
    with pytest.raises(TransitionRefused, match="complete"), run.turn():
        pass


def test_a_lost_claim_is_noticed_and_the_output_is_saved(tmp_path: Path) -> None:
    run = open_scripted(tmp_path, store={"ttl_s": 1})
    other = reopen(tmp_path)

    def lose() -> None:
        with run.turn() as turn:
            turn.output = "my work"
            other.do(TakeOver())
            assert turn.cancellation.wait(3)
            assert turn.cancellation.reason is StopReason.CLAIM_LOST

    with pytest.raises(StaleClaim, match="token 1 is stale"):
        lose()
    (kept,) = (tmp_path / "sync/results").glob("0-1-*/output.txt")
    assert kept.read_text() == "my work"
    assert events(other)[-1] == "taken-over"
    assert head_of(other).step_index == 0


def test_a_turn_held_by_another_process_or_position_is_refused(tmp_path: Path) -> None:
    run, other = open_scripted(tmp_path), reopen(tmp_path)
    with run.turn():
        with pytest.raises(ClaimHeld, match=r"run by process(.|\n)*wait=True"), other.turn():
            pass
        with pytest.raises(ClaimHeld, match="at another position"):
            _try_position(other, "main")
    with pytest.raises(ClaimHeld, match="at another position"):
        _try_position(other, "supervisor")


def _try_position(run: Any, position: str) -> None:
    with run.turn(position):
        pass


def test_turns_that_wait_alternate(tmp_path: Path) -> None:
    write_project(tmp_path)
    order: list[str] = []

    def take(position: str) -> None:
        for _ in range(3):
            with reopen(tmp_path).turn(position, wait=True) as turn:
                order.append(turn.step)

    threads = [
        threading.Thread(target=take, args=(name,), daemon=True) for name in ("main", "supervisor")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert order == ["supervisor", "main"] * 3


def test_a_turn_that_waits_for_a_date_starts_when_it_comes(tmp_path: Path) -> None:
    run = open_scripted(tmp_path, FAILED, step_defaults={"retry": {"max_attempts": 2}})
    soon = (datetime.now(UTC) + timedelta(seconds=0.5)).isoformat()
    run.do(SetField("not_before", soon))
    with pytest.raises(TransitionRefused, match="nothing starts before"):
        _try_position(run, "supervisor")
    started = time.monotonic()
    with run.turn(wait=True):
        assert 0.2 < time.monotonic() - started < 3


def test_a_log_folder_that_is_a_link_leaves_no_claim(tmp_path: Path) -> None:
    run = open_scripted(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "logs").symlink_to("elsewhere")
    with pytest.raises(Exception, match="is a link, but it has to be a folder") as caught:
        run.work()
    assert getattr(caught.value, "exit_code", 70) == 3
    assert run.head is None  # refused before anything was begun
    assert not list((tmp_path / "elsewhere").rglob("*.log"))
    (tmp_path / "logs").unlink()
    run.work(limits=InvocationLimits(max_steps=1))
    (tmp_path / "logs").rename(tmp_path / "aside")
    (tmp_path / "logs").symlink_to("elsewhere")
    with pytest.raises(UnsafeFolder, match="logs: is a link"):
        run.work()
    head = head_of(run)
    assert (head.step_index, head.claims, head.failures_in_row) == (1, (), 0)
    assert not list((tmp_path / "elsewhere").rglob("*.log"))


# --- async mode --------------------------------------------------------------------


def test_async_mode_gives_up_when_no_try_remains(tmp_path: Path) -> None:
    run = open_scripted(tmp_path, FAILED, step_defaults={"retry": {"max_attempts": 2}})
    seen = Recorder()
    with pytest.raises(StepFailed, match="it broke") as caught:
        run.work(Mode.ASYNC, on_event=seen, step_index=4)
    assert len(seen.steps) == 2
    assert "--step-index 4" in str(caught.value.hint)


def test_async_mode_sleeps_until_it_is_interrupted(tmp_path: Path) -> None:
    limited = {"status": "limited", "not_before": "2999-01-01T00:00:00Z"}
    run = open_scripted(tmp_path, limited)
    stops: list[Any] = []

    def ready(stop: Any) -> None:
        stops.append(stop)
        threading.Timer(0.2, stop).start()

    started = time.monotonic()
    with pytest.raises(Interrupted, match="no step is running"):
        run.work(Mode.ASYNC, on_ready=ready)
    assert time.monotonic() - started < 3
    stops[0]()
