from __future__ import annotations

import time

import pytest

from sequencer.engine.events import Waiting
from sequencer.model.transitions import Event
from sequencer.plugins.posting.poster import Poster, deliver
from sequencer.plugins.posting.web import WebhookSink
from sequencer.store.file import FileStore
from tests.loopback import free_ports
from tests.unit.posting.desk import Desk, Reply, open_desk
from tests.unit.posting.invocations import hook, invoked, told
from tests.unit.posting.runs import REDACTION, new_store, record, succeed


def test_an_outage_ends_in_a_later_process_and_the_order_is_kept(store: FileStore) -> None:
    port = free_ports(1)[0]
    sink = WebhookSink("hook", f"http://127.0.0.1:{port}/", {})
    with invoked(store, sink, thoughts=False, drain_s=0) as now:
        for number in range(3):
            now.step(store, f"result {number}")
    (notice,) = now.notices
    assert "'hook': ConnectError" in notice
    assert "results are kept and posted later" in notice
    with open_desk(port=port) as desk:
        with invoked(store, sink, thoughts=False) as later:
            later.step(store, "result 3")
        assert told(desk) == [f"result {number}" for number in range(4)]
        assert later.notices == ["activity sink 'hook' can be reached again"]


@pytest.mark.parametrize(
    "reply",
    [
        Reply(429, headers={"Retry-After": "0"}),
        Reply(drops=True),
    ],
)
def test_a_failed_post_is_retried_in_the_same_invocation(
    store: FileStore, desk: Desk, reply: Reply
) -> None:
    desk.answers.append(reply)
    notices, own = list[str](), new_store(store.folder.parent)
    sinks = [hook(desk)]
    with Poster(own, sinks, REDACTION, notices.append, thoughts=False) as activities:
        succeed(store, "one")
        succeed(store, "two")
        activities(Waiting("for somebody"))
    assert told(desk) == ["one", "one", "two"]
    assert len(notices) == 2
    assert "can be reached again" in notices[1]


def test_two_processes_do_not_post_the_same(store: FileStore, desk: Desk) -> None:
    desk.answers.append(Reply(waits=True))
    with (
        invoked(store, hook(desk), thoughts=False, drain_s=0, clock=time.monotonic) as one,
        invoked(store, hook(desk), thoughts=False, drain_s=0, clock=time.monotonic) as two,
    ):
        succeed(store)
        one.said.waiting("")
        desk.wait_for(1)
        two.said.waiting("")
        two.rounds.wake_and_wait()
        desk.let_go.set()
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
