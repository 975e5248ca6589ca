"""Who takes the next step when several processes may: who has waited longest."""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sequencer.engine import queue as queueing
from sequencer.engine.invocation_budget import Mode
from sequencer.engine.queue import Queue
from sequencer.errors import ClaimHeld, Interrupted
from sequencer.model.head import Head
from sequencer.model.limits import InvocationLimits
from sequencer.store.protocol import Store
from sequencer.store.queue import queue_file_name
from tests.concurrency import children
from tests.contract import store_cases as cases
from tests.played import PlayedRun, PlayedStore
from tests.unit.engine.projects import (
    OK,
    Recorder,
    head_of,
    in_background,
    open_scripted,
    reopen,
    until,
    until_queued,
    write_project,
)

SHORT = {**OK, "delay_s": 0.05}
EVERYBODY = InvocationLimits(max_steps=None)


def position_at(step_index: int) -> str:
    return ("supervisor", "main")[step_index % 2]


def present(store: Store) -> Head:
    head = store.view().head
    assert head is not None
    return head


def queue_in(run: PlayedRun, *positions: str) -> Queue:
    return Queue(PlayedStore(run), positions, position_at)


@pytest.fixture
def run() -> PlayedRun:
    run = PlayedRun()
    cases.begin(PlayedStore(run))
    return run


# --- the place of one process -----------------------------------------------------------


def test_a_worker_yields_a_step_only_to_those_waiting_for_it(run: PlayedRun) -> None:
    mixed, main, both = queue_in(run), queue_in(run, "main"), queue_in(run, "supervisor", "main")
    main.enter()
    for worker in (mixed, both):
        assert worker.needs_to_yield(1)
        assert not worker.needs_to_yield(2)
    main.leave()
    mixed.enter()
    assert both.needs_to_yield(2)
    assert queue_in(run, "main").needs_to_yield(1)


def test_a_worker_that_yielded_a_step_lets_the_others_claim_it(run: PlayedRun, asleep: int) -> None:
    store = PlayedStore(run)
    worker, other = queue_in(run), queue_in(run, "main")
    other.enter()
    head = cases.commit(store, cases.claim(store).token)
    assert worker.needs_to_yield(head.step_index)
    # First in its own queue, and yet not the one whose turn it is.
    assert worker.enter()
    assert not worker.may_claim(head)
    assert other.may_claim(head)
    assert not worker.wait(head, 0.05, asleep)
    claim = cases.claim(PlayedStore(run))
    assert worker.wait(head, 5.0, asleep)
    assert worker.may_claim(cases.commit(store, claim.token))


def test_a_worker_that_does_not_respond_is_passed_for_a_while(
    run: PlayedRun, asleep: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queueing, "YIELD_S", 0.2)
    stopped, mine, head = queue_in(run), queue_in(run), present(PlayedStore(run))
    stopped.enter()
    assert mine.needs_to_yield(head.step_index)
    started = time.monotonic()
    while not mine.may_claim(head):
        assert not mine.wait(head, None, asleep)
    # Only who gets the claim has passed; who was too late has not.
    assert mine.needs_to_yield(head.step_index)
    assert mine.may_claim(head)
    assert 0.2 <= time.monotonic() - started < 1
    mine.leave()
    assert not mine.needs_to_yield(head.step_index + 1)
    monkeypatch.setattr(mine, "_passes_until", 0.0)
    assert mine.needs_to_yield(head.step_index + 1)


def test_a_worker_moved_to_the_front_checks_again_at_once(run: PlayedRun, asleep: int) -> None:
    other, mine, head = queue_in(run), queue_in(run), present(PlayedStore(run))
    other.enter()
    assert not mine.may_claim(head)
    other.leave()
    started = time.monotonic()
    assert not mine.wait(head, 10.0, asleep)
    assert mine.may_claim(head)
    assert time.monotonic() - started < 0.5


# --- processes on a run -----------------------------------------------------------------


def test_two_workers_open_to_every_step_take_turns(tmp_path: Path) -> None:
    write_project(tmp_path, SHORT, limits={"max_steps": 12})
    seen = [Recorder(), Recorder()]
    threads = []
    with open_scripted(tmp_path, SHORT, limits={"max_steps": 12}).turn():
        for number, recorder in enumerate(seen, 1):
            options = {"on_event": recorder}
            threads.append(in_background(reopen(tmp_path), Mode.SYNC, EVERYBODY, **options))
            until_queued(tmp_path, number)
    for thread, _ in threads:
        thread.join(20)
    assert [[index for _, index, _ in recorder.steps] for recorder in seen] == [
        [1, 3, 5, 7, 9, 11],
        [2, 4, 6, 8, 10],
    ]
    assert all("limit of 12 steps" in answers[0].reason for _, answers in threads)


def test_combined_mode_yields_to_no_one(tmp_path: Path) -> None:
    run = open_scripted(tmp_path, SHORT)
    with run.turn():
        thread, answers = in_background(reopen(tmp_path), Mode.SYNC, InvocationLimits(max_steps=1))
        until_queued(tmp_path)
        recorder = Recorder()
        other, _ = in_background(
            reopen(tmp_path),
            Mode.COMBINED,
            InvocationLimits(max_steps=4, max_wait_s=5),
            on_event=recorder,
        )
        until(lambda: recorder.waits)
    thread.join(10)
    other.join(10)
    assert answers[0].usage.steps == 1
    revisions = [fact["revision"] for fact in run.history() if fact["event"] != "initialised"]
    # The claims of combined mode are in the records of its acceptances, all but the first.
    assert len(revisions) - len(set(revisions)) == 3
    assert head_of(run).step_index == 6


def test_processes_mid_queue_can_be_interrupted_or_give_up_in_time(tmp_path: Path) -> None:
    run, stops = open_scripted(tmp_path), list[Any]()
    with run.turn():
        first, _ = in_background(reopen(tmp_path), Mode.SYNC, InvocationLimits(max_steps=1))
        until_queued(tmp_path)
        second, ended = in_background(reopen(tmp_path), Mode.SYNC, on_ready=stops.append)
        until_queued(tmp_path, 2)
        limits = InvocationLimits(max_wait_s=0.5)
        started = time.monotonic()
        third, gave_up = in_background(reopen(tmp_path), Mode.SYNC, limits)
        third.join(10)
        assert 0.45 < time.monotonic() - started < 2
        assert isinstance(gave_up[0], ClaimHeld)
        assert "is being run by process" in gave_up[0].message
        stops[0]()
        second.join(2)
        assert isinstance(ended[0], Interrupted)
    first.join(10)
    assert head_of(run).step_index == 2


def hold_the_queue(folder: Path) -> None:
    reopen(folder).work(Mode.SYNC, EVERYBODY)


def test_a_stopped_process_at_the_front_does_not_hold_up_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queueing, "YIELD_S", 1.0)
    run = open_scripted(tmp_path)
    with run.turn():
        child = children.start(partial(hold_the_queue, tmp_path), tmp_path / "errors")
        until_queued(tmp_path)
        os.kill(child, signal.SIGSTOP)
    try:
        started = time.monotonic()
        reopen(tmp_path).work(Mode.SYNC, InvocationLimits(max_steps=30))
        # Asked once for it, not before each step.
        assert time.monotonic() - started < 5 * queueing.YIELD_S
        assert head_of(run).step_index == 31
    finally:
        children.end([child])


@pytest.mark.parametrize("damage", ["deleted", "link", "folder"])
def test_the_run_continues_without_the_queue_file(tmp_path: Path, damage: str) -> None:
    run = open_scripted(tmp_path, SHORT, limits={"max_steps": 8})
    path = tmp_path / "sync" / queue_file_name(())
    is_over = threading.Event()

    def spoil() -> None:
        while not is_over.wait(0.005):
            if damage == "deleted":
                path.unlink(missing_ok=True)

    run.commands.begin()
    if damage == "link":
        path.symlink_to(tmp_path / "elsewhere")
    elif damage == "folder":
        path.mkdir()
    spoiler = threading.Thread(target=spoil)
    spoiler.start()
    threads = [in_background(reopen(tmp_path), Mode.SYNC, EVERYBODY)[0] for _ in range(3)]
    for thread in threads:
        thread.join(20)
    is_over.set()
    spoiler.join()
    accepted = [fact["step_index"] for fact in run.history() if fact["event"] == "succeeded"]
    assert accepted == list(range(8))
    assert not (tmp_path / "elsewhere").exists()
