from __future__ import annotations

import threading
from typing import Any

import pytest

from sequencer.executors.protocol import Piece
from sequencer.model.step import Step
from sequencer.model.transitions import Event
from sequencer.plugins.posting.protocol import Post
from sequencer.store.file import FileStore
from tests.unit.posting.desk import Desk, Reply
from tests.unit.posting.invocations import hook, invoked, told
from tests.unit.posting.runs import OK, SECRET, Box, attempt_at, record, succeed, unreachable

# --- thoughts ------------------------------------------------------------------------------


def test_thoughts_come_at_most_every_two_seconds_and_the_newest_wins(
    store: FileStore, desk: Desk
) -> None:
    with invoked(store, hook(desk)) as now:
        now.said.started(attempt_at())
        now.said.write(b"-> First\n", Piece.ACTION)
        now.rounds.wake_and_wait()
        now.clock.now += 1.9
        for name in (b"Second", b"Third"):
            now.said.write(b"-> " + name + b"\n", Piece.ACTION)
            now.rounds.wake_and_wait()
            assert told(desk) == ["First"]
        now.clock.now += 0.2
        now.rounds.wake_and_wait()
        assert told(desk) == ["First", "Third"]
        now.said.write(b"-> Fourth\n", Piece.ACTION)
        now.rounds.wake_and_wait()
    assert told(desk) == ["First", "Third"]


def test_nothing_about_a_step_is_posted_after_its_result(store: FileStore, desk: Desk) -> None:
    with invoked(store, hook(desk)) as now:
        now.said.started(attempt_at())
        now.said.write(b"first\n", Piece.THOUGHT)
        now.rounds.wake_and_wait()
        # Held back by the two seconds, and by then it is over.
        now.said.write(b"-> Read second\n", Piece.ACTION)
        now.rounds.wake_and_wait()
        now.said.ended(attempt_at(), OK)
        succeed(store, "done")
        now.clock.now += 60
        now.rounds.wake_and_wait()
    assert told(desk) == ["first", "done"]


@pytest.mark.parametrize(
    ("pause", "posts"), [({}, 2), ({"Retry-After": "0"}, 2), ({"Retry-After": "60"}, 1)]
)
def test_a_result_is_tried_at_the_end_although_a_thought_has_failed(
    pause: dict[str, str], posts: int, store: FileStore, desk: Desk
) -> None:
    desk.usual = Reply(500, headers=pause)
    with invoked(store, hook(desk), drain_s=0.2) as made:
        made.said.started(attempt_at())
        made.said.write(b"a thought\n", Piece.THOUGHT)
        made.rounds.wake_and_wait()
        succeed(store, "the result")
    types = [seen.body["type"] for seen in desk.seen]
    # A pause that the sink itself asks for is kept; the next process tries.
    assert types == ["thought", "response"][:posts]


@pytest.mark.parametrize(
    ("step", "options"),
    [
        (Step(name="main", suppress_thoughts=True), {}),
        (Step(name="main", single_turn=True), {}),
        (Step(name="main"), {"thoughts": False}),
    ],
)
def test_a_step_with_thoughts_turned_off_posts_only_its_result(
    store: FileStore, desk: Desk, step: Step, options: dict[str, Any]
) -> None:
    with invoked(store, hook(desk), **options) as now:
        now.said.started(attempt_at(step))
        now.said.write(b"hm\n-> Read a\n", Piece.THOUGHT)
        now.said.write(b"-> Read b\n", Piece.ACTION)
        now.rounds.wake_and_wait()
        now.said.ended(attempt_at(step), OK)
        succeed(store, "done")
    assert told(desk) == ["done"]


def test_no_secret_leaves_in_any_way(store: FileStore, desk: Desk) -> None:
    with invoked(store, hook(desk)) as now:
        now.said.started(attempt_at(Step(name=f"step {SECRET}")))
        for place in range(0, len(SECRET), 5):
            now.said.write(SECRET[place : place + 5].encode(), Piece.THOUGHT)
        now.said.write(f"\n-> Login {SECRET}\n".encode(), Piece.ACTION)
        desk.wait_for(1)
        now.said.ended(attempt_at(), OK)
        record(store, (Event.FAILED, {"error": SECRET, "log": SECRET, "by": SECRET}))
        record(store, (Event.APPROVED, {"by": SECRET, "note": SECRET}))
    assert len(desk.seen) >= 3
    assert not [seen for seen in desk.seen if SECRET.encode() in seen.raw]


class Slow(Box):
    """Takes a post when it is let go."""

    def __init__(self, name: str = "box") -> None:
        super().__init__(name)
        self.is_posting, self.go = threading.Event(), threading.Event()

    def post(self, post: Post) -> None:
        self.is_posting.set()
        assert self.go.wait(20)
        super().post(post)


# --- manners ---------------------------------------------------------------------------------


def test_a_started_post_is_finished_however_short_the_drain_is(store: FileStore) -> None:
    slow = Slow()
    with invoked(store, slow, drain_s=0) as now:
        for output in ("one", "two", "three"):
            now.step(store, output)
        assert slow.is_posting.wait(20)
        now.on_wait = slow.go.set
    # The second is the one try that each sink gets at the end.
    assert slow.bodies == ["one", "two"]
    assert "for activity sink 'box' to answer" in now.waits[0]
    with invoked(store, rest := Box()):
        pass
    assert rest.bodies == ["three"]


def test_a_broken_sink_comes_after_the_working_ones(store: FileStore) -> None:
    order: list[str] = []

    class Noting(Box):
        def post(self, post: Post) -> None:
            order.append(self.name)
            super().post(post)

    with invoked(store, Noting("broken", [unreachable()]), Noting("sound"), drain_s=0):
        succeed(store)
    order.clear()
    succeed(store)
    with invoked(store, Noting("broken"), Noting("sound")):
        pass
    assert order.index("sound") < order.index("broken")
    assert order.count("broken") == 2


def test_without_sinks_there_is_no_thread(store: FileStore) -> None:
    with invoked(store) as now:
        now.step(store, "done")
        assert not [t for t in threading.enumerate() if t.name == "activity"]
    assert not (store.folder / "activity").exists()


def test_no_notice_is_given_after_the_end(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sequencer.plugins.posting.poster.FINISH_S", 0.1)
    is_posting, go = threading.Event(), threading.Event()

    class Late(Box):
        def post(self, post: Post) -> None:
            is_posting.set()
            go.wait(20)
            super().post(post)
            raise ValueError("late")

    with invoked(store, Late(), drain_s=0) as now:
        succeed(store)
        now.said.waiting("")
        assert is_posting.wait(20)
        (thread,) = [t for t in threading.enumerate() if t.name == "activity"]
    go.set()
    thread.join(20)
    assert not thread.is_alive()
    assert now.waits == ["waiting up to 0.1 s for activity sink 'box' to answer"]
    assert now.notices == []
