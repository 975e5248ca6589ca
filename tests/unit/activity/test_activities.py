from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sequencer.activity.activities import Activities, deliver
from sequencer.activity.jsonl import JsonlSink
from sequencer.activity.linear import LinearSink
from sequencer.activity.protocol import Post, Sink
from sequencer.activity.webhook import WebhookSink
from sequencer.errors import Interrupted
from sequencer.executors.protocol import Kind
from sequencer.model.outcome import Usage
from sequencer.model.step import Step
from sequencer.model.transitions import Event
from sequencer.store.file import FileStore
from tests.unit.activity.desk import Desk, Reply, free_port, open_desk
from tests.unit.activity.runs import (
    OK,
    REDACTION,
    SECRET,
    Box,
    HandClock,
    Listening,
    attempt_at,
    begin,
    new_store,
    record,
    succeed,
)

LOG = Path("step.log")


@pytest.fixture(name="store")
def fixture_store(tmp_path: Path) -> FileStore:
    return begin(new_store(tmp_path))


@pytest.fixture(name="desk")
def fixture_desk() -> Iterator[Desk]:
    with open_desk(Reply(200, {"data": {"agentActivityCreate": {"success": True}}})) as desk:
        yield desk


@dataclass
class Invocation:
    activities: Activities
    inner: Listening
    clock: HandClock

    def step(self, store: FileStore, output: str, step: Step | None = None) -> None:
        """Let a step be performed and accepted, as the engine does it."""
        attempt = attempt_at(step)
        self.activities.started(attempt, LOG)
        self.activities.write(f"working on {output}\n".encode(), Kind.THOUGHT)
        self.activities.ended(attempt, OK)
        succeed(store, output)


@contextmanager
def invoked(store: FileStore, *sinks: Sink, **options: Any) -> Iterator[Invocation]:
    """Run an invocation: its activities have a store of their own."""
    inner, clock = Listening(), HandClock()
    own = new_store(store.folder.parent)
    options = {"clock": clock, **options}
    with Activities(inner, own, sinks, REDACTION, **options) as activities:
        yield Invocation(activities, inner, clock)


def hook(desk: Desk, path: str = "/") -> WebhookSink:
    return WebhookSink("hook", desk.url + path, {})


def told(desk: Desk) -> list[str]:
    return [seen.body.get("body", seen.body.get("action")) for seen in desk.seen]


# --- results -----------------------------------------------------------------------------


def test_the_results_of_an_invocation(store: FileStore, desk: Desk) -> None:
    with invoked(store, hook(desk), thoughts=False) as now:
        for number in range(5):
            now.step(store, f"result {number}")
        now.activities.waiting("for somebody", None)
    assert told(desk) == [f"result {number}" for number in range(5)]
    assert [seen.headers["idempotency-key"] for seen in desk.seen] == [
        f"run-1:{revision}:0" for revision in range(2, 7)
    ]
    assert now.inner.notices == []


def test_a_result_is_posted_while_the_invocation_goes_on(store: FileStore, desk: Desk) -> None:
    with invoked(store, hook(desk), thoughts=False) as now:
        now.step(store, "the first")
        now.activities.started(attempt_at(), LOG)
        desk.wait_for(1)
        now.step(store, "the second")
        now.activities.waiting("for somebody", None)
        desk.wait_for(2)


def test_a_result_is_found_though_nothing_else_happens(store: FileStore, desk: Desk) -> None:
    inner = Listening()
    own = new_store(store.folder.parent)
    with Activities(inner, own, [hook(desk)], REDACTION, thoughts=False) as activities:
        activities.started(attempt_at(), LOG)
        activities.ended(attempt_at(), OK)
        succeed(store)
        desk.wait_for(1)


def test_an_outage_ends_in_a_later_process_and_the_order_is_kept(store: FileStore) -> None:
    port = free_port()
    sink = WebhookSink("hook", f"http://127.0.0.1:{port}/", {})
    with invoked(store, sink, thoughts=False, drain_s=0.2) as now:
        for number in range(3):
            now.step(store, f"result {number}")
    (notice,) = now.inner.notices
    assert "'hook': ConnectError" in notice
    assert "results are kept and posted later" in notice
    with open_desk(port=port) as desk:
        with invoked(store, sink, thoughts=False) as later:
            later.step(store, "result 3")
        assert told(desk) == [f"result {number}" for number in range(4)]
    assert later.inner.notices == []


@pytest.mark.parametrize(
    "reply",
    [
        Reply(500),
        Reply(503, headers={"Retry-After": "0"}),
        Reply(429, headers={"Retry-After": "0"}),
        Reply(drops=True),
        Reply(401),
    ],
)
def test_what_fails_once_is_posted_again_in_the_same_invocation(
    store: FileStore, desk: Desk, reply: Reply
) -> None:
    desk.answers.append(reply)
    inner, own = Listening(), new_store(store.folder.parent)
    with Activities(inner, own, [hook(desk)], REDACTION, thoughts=False) as activities:
        succeed(store, "one")
        succeed(store, "two")
        activities.waiting("for somebody", None)
    assert told(desk) == ["one", "one", "two"]
    assert len(inner.notices) == 2
    assert "can be reached again" in inner.notices[1]


def test_one_sink_that_is_down_does_not_stop_another(store: FileStore, desk: Desk) -> None:
    down = WebhookSink("down", f"http://127.0.0.1:{free_port()}/", {})
    with invoked(store, down, hook(desk), thoughts=False, drain_s=0.1) as now:
        for number in range(3):
            now.step(store, str(number))
        now.activities.waiting("for somebody", None)
        desk.wait_for(3)
    assert told(desk) == ["0", "1", "2"]


def test_a_refused_result_does_not_hold_up_the_next(store: FileStore, desk: Desk) -> None:
    desk.answers.append(Reply(422, "no"))
    with invoked(store, hook(desk), thoughts=False) as now:
        now.step(store, "one")
        now.step(store, "two")
    assert told(desk) == ["one", "two"]
    assert "HTTP 422" in now.inner.notices[0]
    assert len((store.folder / "activity" / "refused.jsonl").read_text().splitlines()) == 1


def test_two_processes_do_not_post_the_same(store: FileStore, desk: Desk) -> None:
    desk.answers.append(Reply(hangs=True))
    with (
        invoked(store, hook(desk), thoughts=False, drain_s=0, clock=time.monotonic) as one,
        invoked(store, hook(desk), thoughts=False, drain_s=0, clock=time.monotonic) as two,
    ):
        succeed(store)
        one.activities.waiting("", None)
        desk.wait_for(1)
        two.activities.waiting("", None)
        two.activities.waiting("", None)
    assert len(desk.seen) == 1


def test_a_run_of_commands_posts_what_a_person_decided(store: FileStore, desk: Desk) -> None:
    with invoked(store, hook(desk), thoughts=False) as now:
        now.step(store, "Ship it?")
    record(store, (Event.APPROVED, {"by": "ann", "note": "go"}))
    notices: list[str] = []
    deliver(new_store(store.folder.parent), [hook(desk)], REDACTION, notice=notices.append)
    assert desk.seen[-1].body["title"] == "was approved by ann"
    assert desk.seen[-1].body["body"] == "go"
    assert notices == []


def test_several_sinks_get_the_same(store: FileStore, desk: Desk, tmp_path: Path) -> None:
    file = JsonlSink("file", tmp_path / "activity.jsonl")
    with invoked(store, hook(desk), file, thoughts=False) as now:
        now.step(store, "for all")
    (line,) = file.path.read_text().splitlines()
    assert line.encode() == desk.seen[0].raw


# --- thoughts ------------------------------------------------------------------------------


def fence(store: FileStore, desk: Desk, now: Invocation) -> None:
    """Return when all that could be posted before has been: results are looked for first."""
    for _ in range(2):
        succeed(store, "fence")
        now.activities.waiting("", None)
        desk.wait_for(len(desk.seen) + 1)


def without_fences(desk: Desk) -> list[str]:
    return [text for text in told(desk) if text != "fence"]


def test_thoughts_come_at_most_every_two_seconds_and_the_newest_wins(
    store: FileStore, desk: Desk
) -> None:
    with invoked(store, hook(desk)) as now:
        now.activities.started(attempt_at(), LOG)
        now.activities.write(b"-> First\n", Kind.ACTION)
        desk.wait_for(1)
        now.clock.now += 1.9
        now.activities.write(b"-> Second\n", Kind.ACTION)
        fence(store, desk, now)
        now.activities.write(b"-> Third\n", Kind.ACTION)
        fence(store, desk, now)
        assert without_fences(desk) == ["First"]
        now.clock.now += 0.2
        now.activities.waiting("", None)
        desk.wait_for(len(desk.seen) + 1)
        assert without_fences(desk) == ["First", "Third"]
        now.activities.write(b"-> Fourth\n", Kind.ACTION)
        fence(store, desk, now)
        now.activities.ended(attempt_at(), OK)
        now.clock.now += 60
        fence(store, desk, now)
    assert without_fences(desk) == ["First", "Third"]


def test_nothing_of_a_step_comes_behind_its_result(store: FileStore, desk: Desk) -> None:
    with invoked(store, hook(desk)) as now:
        now.activities.started(attempt_at(), LOG)
        now.activities.write(b"first\n", Kind.THOUGHT)
        desk.wait_for(1)
        # Held back by the two seconds, and by then it is over.
        now.activities.write(b"-> Read second\n", Kind.ACTION)
        now.activities.ended(attempt_at(), OK)
        succeed(store, "done")
        now.activities.waiting("", None)
        desk.wait_for(2)
        now.clock.now += 60
        fence(store, desk, now)
    assert without_fences(desk) == ["first", "done"]


@pytest.mark.parametrize(
    ("step", "options"),
    [
        (Step(name="main", suppress_thoughts=True), {}),
        (Step(name="main", single_turn=True), {}),
        (Step(name="main"), {"thoughts": False}),
    ],
)
def test_a_step_that_is_not_to_think_aloud(
    store: FileStore, desk: Desk, step: Step, options: dict[str, Any]
) -> None:
    with invoked(store, hook(desk), **options) as now:
        now.step(store, "done", step)
        now.activities.waiting("", None)
    assert told(desk) == ["done"]


def test_a_thought_reaches_linear_as_ephemeral(store: FileStore, desk: Desk) -> None:
    sink = LinearSink("linear", "t", "s", desk.url)
    with invoked(store, sink) as now:
        now.activities.started(attempt_at(), LOG)
        now.activities.write(f"the key is {SECRET}\n".encode(), Kind.THOUGHT)
        (seen,) = desk.wait_for(1)
        now.activities.ended(attempt_at(), OK)
        succeed(store)
    told_input = seen.body["variables"]["input"]
    assert told_input["ephemeral"] is True
    assert told_input["content"] == {"type": "thought", "body": "the key is [secret]"}
    assert "ephemeral" not in desk.seen[-1].body["variables"]["input"]


def test_no_secret_leaves_in_any_way(store: FileStore, desk: Desk) -> None:
    with invoked(store, hook(desk)) as now:
        now.activities.started(attempt_at(Step(name=f"step {SECRET}")), LOG)
        for place in range(0, len(SECRET), 5):
            now.activities.write(SECRET[place : place + 5].encode(), Kind.THOUGHT)
        now.activities.write(f"\n-> Login {SECRET}\n".encode(), Kind.ACTION)
        desk.wait_for(1)
        now.activities.ended(attempt_at(), OK)
        record(store, (Event.FAILED, {"error": SECRET, "log": SECRET, "by": SECRET}))
        record(store, (Event.APPROVED, {"by": SECRET, "note": SECRET}))
    assert len(desk.seen) >= 3
    assert not [seen for seen in desk.seen if SECRET.encode() in seen.raw]


# --- manners ---------------------------------------------------------------------------------


def test_everything_reaches_the_inner_observer(store: FileStore) -> None:
    with invoked(store, Box()) as now:
        now.activities.started(attempt_at(), LOG)
        now.activities.used(Usage(output_tokens=7))
        now.activities.notice("hear")
        now.activities.waiting("x", None)
        now.activities.ended(attempt_at(), OK)
    assert now.inner.heard == [
        "started main step.log",
        "used 7",
        "waiting x None",
        "ended main ok",
    ]
    assert now.inner.notices == ["hear"]


def test_a_sink_that_hangs_delays_no_step_and_the_end_but_little(
    store: FileStore, desk: Desk
) -> None:
    desk.usual = Reply(hangs=True)
    slow = 0.0
    started = time.monotonic()
    with invoked(store, hook(desk), drain_s=0.3) as now:
        for number in range(20):
            at = time.monotonic()
            now.step(store, str(number))
            slow = max(slow, time.monotonic() - at)
        desk.wait_for(1)
    assert slow < 1.0
    assert time.monotonic() - started < 8.0


def test_a_signal_makes_the_end_short(store: FileStore, desk: Desk) -> None:
    desk.usual = Reply(hangs=True)
    own = new_store(store.folder.parent)
    activities = Activities(Listening(), own, [hook(desk)], REDACTION, drain_s=60)
    activities.__enter__()
    succeed(store)
    activities.waiting("", None)
    desk.wait_for(1)
    at = time.monotonic()
    activities.__exit__(Interrupted, Interrupted("SIGINT"), None)
    assert time.monotonic() - at < 5.0


def test_an_invocation_with_nothing_to_post_ends_at_once(store: FileStore) -> None:
    at = time.monotonic()
    with invoked(store, Box(), drain_s=60):
        pass
    assert time.monotonic() - at < 5.0


def test_without_sinks_there_is_no_thread(store: FileStore) -> None:
    with invoked(store) as now:
        now.step(store, "done")
        assert not [t for t in threading.enumerate() if t.name == "activity"]
    assert not (store.folder / "activity").exists()


def test_the_thread_and_the_connections_end_with_the_invocation(store: FileStore) -> None:
    box = Box()
    with invoked(store, box) as now:
        now.step(store, "done")
        assert [t for t in threading.enumerate() if t.name == "activity"]
    assert not [t for t in threading.enumerate() if t.name == "activity"]
    assert box.is_closed
    assert box.bodies[-1] == "done"


def test_nobody_is_told_anything_behind_the_end(store: FileStore) -> None:
    go = threading.Event()

    class Late(Box):
        def post(self, post: Post) -> None:
            go.wait(20)
            super().post(post)
            raise ValueError("late")

    with invoked(store, Late(), drain_s=0) as now:
        succeed(store)
        now.activities.waiting("", None)
    go.set()
    for thread in threading.enumerate():
        if thread.name == "activity":
            thread.join(20)
    assert now.inner.notices == []
