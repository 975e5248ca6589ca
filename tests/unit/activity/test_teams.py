"""What a team's run tells: each task for itself, and few words at a time."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from sequencer.activity.lane import THOUGHT_EVERY_S
from sequencer.activity.overseeing import subject_of
from sequencer.activity.protocol import Activity, ActivityType
from sequencer.engine.flow.boards import Overseer
from sequencer.executors.protocol import Kind
from sequencer.model.head import Head
from sequencer.model.net.graph import Node, NodeKind
from sequencer.model.team import TaskTraits
from sequencer.model.transitions import Event
from sequencer.store.file import FileStore
from tests.unit.activity.crews import GRAPH, named, node, over, team, tell, thoughts
from tests.unit.activity.invocations import LOG, invoked
from tests.unit.activity.runs import OK, SECRET, Box, HandClock, Listening, lane_for

# --- what teammates say ------------------------------------------------------------------


def test_the_beginning_of_a_task_is_an_action(store: FileStore) -> None:
    box = Box()
    with invoked(store, box) as now:
        over(now).observer("plan").started(named("plan"), LOG)
        now.rounds.wake_and_wait()
    (told,) = thoughts(box)
    assert (told.type, told.action) == (ActivityType.ACTION, "plan: started")
    assert told.parameter == "Read and plan (researcher)"
    assert told.is_ephemeral
    assert box.posts[0].run_id == "run-1"


def test_words_of_a_task_begin_with_its_name(store: FileStore) -> None:
    box = Box()
    with invoked(store, box) as now:
        board = over(now)
        plan, build = board.observer("plan"), board.observer("build")
        plan.started(named("plan"), LOG)
        build.started(named("build"), LOG)
        plan.write(b"-> Read {}\n", Kind.ACTION)
        now.rounds.wake_and_wait()
        assert thoughts(box)[-1].action == "plan: Read"
        now.clock.now += 2.1
        build.write(b"I think", Kind.THOUGHT)
        now.rounds.wake_and_wait()
        now.clock.now += 2.1
        # What the other has said meanwhile is no part of it.
        plan.write(b"<- 7 lines\n", Kind.ACTION)
        build.write(b" it over", Kind.THOUGHT)
        now.rounds.wake_and_wait()
    told = thoughts(box)
    assert [one.body for one in told[-2:]] == ["build: I think", "build: I think it over"]
    assert [one.step for one in told[-2:]] == ["build", "build"]


def test_the_newest_wins_whoever_it_is_of(store: FileStore) -> None:
    box = Box()
    with invoked(store, box) as now:
        board = over(now)
        seen = {name: board.observer(name) for name in ("plan", "build")}
        for name, one in seen.items():
            one.started(named(name), LOG)
        now.rounds.wake_and_wait()
        for number in range(20):
            seen["plan"].write(f"plan {number}\n".encode(), Kind.THOUGHT)
            seen["build"].write(f"build {number}\n".encode(), Kind.THOUGHT)
        now.rounds.wake_and_wait()
        posts = len(box.posts)
        now.clock.now += 2.1
        now.rounds.wake_and_wait()
    assert len(box.posts) == posts + 1
    assert thoughts(box)[-1].body.startswith("build: ")
    assert thoughts(box)[-1].body.endswith("build 19")


def test_one_in_two_seconds_over_all_teammates(store: FileStore) -> None:
    box = Box()
    posted: list[float] = []
    with invoked(store, box) as now:
        board = over(now)
        seen = {name: board.observer(name) for name in ("plan", "build")}
        for name, one in seen.items():
            one.started(named(name), LOG)
        for tick in range(80):
            seen["plan" if tick % 3 else "build"].write(b"x\n", Kind.THOUGHT)
            before = len(box.posts)
            now.rounds.wake_and_wait()
            posted += [now.clock.now] * (len(box.posts) - before)
            now.clock.now += 0.25
    assert len(posted) >= 9
    assert min(b - a for a, b in pairwise(posted)) >= THOUGHT_EVERY_S


@pytest.mark.parametrize(("every_s", "count"), [(0.0, 4), (2.0, 2), (10.0, 1)])
def test_the_interval_is_a_setting(store: FileStore, every_s: float, count: int) -> None:
    box = Box()
    with invoked(store, box, min_interval_s=every_s) as now:
        seen = over(now).observer("plan")
        seen.started(named("plan"), LOG)
        for _ in range(3):
            now.rounds.wake_and_wait()
            seen.write(b"more\n", Kind.THOUGHT)
            now.clock.now += 1.0
        now.rounds.wake_and_wait()
    assert len(thoughts(box)) == count


def test_another_process_of_the_run_counts(store: FileStore) -> None:
    first, second = Box(), Box()
    clock = HandClock()
    with invoked(store, first, clock=clock) as one:
        over(one).observer("plan").started(named("plan"), LOG)
        one.rounds.wake_and_wait()
        assert len(first.posts) == 1
        with invoked(store, second, clock=clock) as two:
            over(two).observer("build").started(named("build"), LOG)
            two.rounds.wake_and_wait()
            assert second.posts == []
            clock.now += 2.1
            two.rounds.wake_and_wait()
            assert (len(first.posts), len(second.posts)) == (1, 1)


def test_of_two_that_look_at_the_same_moment_one_posts(store: FileStore) -> None:
    clock = HandClock()
    first, second = lane_for(store, clock=clock), lane_for(store, clock=clock)
    for told in (first, second):
        told.deliver()
    assert first.lane.takes_thoughts_now()
    assert second.lane.takes_thoughts_now()
    thought = Activity(type=ActivityType.THOUGHT, at="now", step="plan", step_index=0, body="hm")
    for told in (first, second):
        told.lane.post_thought(thought, "run-1", None)
    assert (first.box.bodies, second.box.bodies) == (["hm"], [])
    clock.now += 2.0
    assert second.lane.takes_thoughts_now()


def test_what_comes_behind_an_attempts_end_is_nothing(store: FileStore) -> None:
    with invoked(store, Box()) as now:
        seen = over(now).observer("plan")
        seen.started(named("plan"), LOG)
        # The thread may look at it just now.
        gist = now.activities._gists["plan"]
        seen.write(b"hm", Kind.THOUGHT)
        seen.ended(named("plan"), OK)
        seen.write(b"late", Kind.THOUGHT)
        assert not gist.has_news
        assert gist.take() is None


def test_a_task_that_is_not_to_think_aloud(store: FileStore) -> None:
    box = Box()
    with invoked(store, box) as now:
        for fields in ({"suppress_thoughts": True}, {"single_turn": True}):
            seen = over(now).observer("plan")
            seen.started(named("plan", **fields), LOG)
            seen.write(b"quiet\n", Kind.THOUGHT)
            now.rounds.wake_and_wait()
    assert box.posts == []


def test_nothing_of_a_task_comes_behind_its_end(store: FileStore) -> None:
    box = Box()
    with invoked(store, box) as now:
        board = over(now)
        plan, build = board.observer("plan"), board.observer("build")
        plan.started(named("plan"), LOG)
        now.rounds.wake_and_wait()
        build.started(named("build"), LOG)
        plan.write(b"last words\n", Kind.THOUGHT)
        plan.ended(named("plan"), OK)
        now.clock.now += 2.1
        now.rounds.wake_and_wait()
        assert not any("last words" in one.body for one in thoughts(box))
        assert thoughts(box)[-1].action == "build: started"
        # A thousand tasks must not leave a thousand of them.
        assert set(now.activities._gists) == {"", "build"}


def test_no_secret_leaves_in_pieces(store: FileStore) -> None:
    box = Box()
    with invoked(store, box, min_interval_s=0.0) as now:
        board = over(now)
        seen = [board.observer(name) for name in ("plan", "build")]
        for name, one in zip(("plan", "build"), seen, strict=True):
            one.started(named(name), LOG)
        for letter in SECRET:
            for one in seen:
                one.write(letter.encode(), Kind.THOUGHT)
            now.rounds.wake_and_wait()
    assert box.posts
    assert not any(SECRET[:8] in one.body for one in thoughts(box))


# --- the board ---------------------------------------------------------------------------


class Shown:
    """A board that keeps what it is told."""

    def __init__(self) -> None:
        self.heads: list[Head] = []
        self.seen = Listening()

    def changed(self, head: Head) -> None:
        self.heads.append(head)

    def observer(self, node: str) -> Listening:
        self.seen.heard.append(f"node {node}")
        return self.seen


def head_of(store: FileStore) -> Head:
    head = store.view().head
    assert head is not None
    return head


def test_who_shows_the_run_hears_all_of_it(store: FileStore) -> None:
    shown = Shown()
    with invoked(store, Box()) as now:
        board = over(now, board=shown)
        board.changed(head_of(store))
        seen = board.observer("plan")
        seen.started(named("plan"), LOG)
        seen.used(OK.usage)
        seen.notice("odd")
        seen.waiting("why", None)
        seen.ended(named("plan"), OK)
        # Once: what the node's observer was told is not told to the other one as well.
        assert now.inner.heard == []
    assert [head.run_id for head in shown.heads] == ["run-1"]
    assert shown.seen.heard[:3] == ["node plan", "started plan step.log", "used 0"]
    assert shown.seen.heard[3:] == ["waiting why None", "ended plan ok"]
    assert shown.seen.notices == ["odd"]


def test_without_a_board_the_inner_observer_shows_it(store: FileStore) -> None:
    with invoked(store, Box()) as now:
        assert isinstance(now.activities, Overseer)
        seen = over(now).observer("plan")
        seen.started(named("plan"), LOG)
        seen.ended(named("plan"), OK)
    assert now.inner.heard == ["started plan step.log", "ended plan ok"]
    assert not isinstance(Listening(), Overseer)


def test_results_come_when_the_run_has_changed(store: FileStore) -> None:
    box = Box()
    with invoked(store, box, thoughts=False) as now:
        board = over(now, board=Shown())
        now.rounds.wake_and_wait()
        tell(store, Event.SUCCEEDED, "plan", output="the plan")
        now.rounds.wake_and_wait()
        assert box.posts == []
        board.changed(head_of(store))
        now.rounds.wake_and_wait()
        assert box.bodies == ["the plan"]


def test_a_task_that_was_added_is_known_when_it_runs(store: FileStore) -> None:
    added = Node(id="fix-1", kind=NodeKind.AGENT, label="Mend it", task=TaskTraits(role="lead"))
    known: dict[str, Node] = {"fix-1": added}
    box = Box()
    with invoked(store, box) as now:
        board = now.activities.over(Shown(), GRAPH, known.get)
        board.observer("unheard-of").started(named("unheard-of"), LOG)
        now.rounds.wake_and_wait()
        assert box.posts == []
        board.observer("fix-1").started(named("fix-1"), LOG)
        now.rounds.wake_and_wait()
    assert thoughts(box)[0].parameter == "Mend it (lead)"


def test_a_flowcharts_node_has_no_beginning_of_its_own(store: FileStore) -> None:
    plain = team(node("plan", is_task=False), node("build", is_task=False))
    box = Box()
    with invoked(store, box) as now:
        seen = over(now, plain).observer("plan")
        seen.started(named("plan"), LOG)
        now.rounds.wake_and_wait()
        assert box.posts == []
        seen.write(b"hm\n", Kind.THOUGHT)
        now.rounds.wake_and_wait()
        tell(store, Event.SUCCEEDED, "plan", output="done")
        now.activities.look()
    assert thoughts(box)[0].body == "plan: hm"
    assert box.posts[-1].activity.title == "succeeded"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"label": "Do x", "task": TaskTraits(role="lead")}, "Do x (lead)"),
        ({"label": "Do x", "task": TaskTraits()}, "Do x"),
        ({"task": TaskTraits(role="lead")}, "x (lead)"),
        ({}, "x"),
    ],
)
def test_what_a_task_is_about(fields: dict[str, Any], expected: str) -> None:
    assert subject_of(Node(id="x", kind=NodeKind.AGENT, **fields)) == expected
