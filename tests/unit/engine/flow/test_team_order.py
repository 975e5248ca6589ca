"""Which of the tasks that may be begun is begun: the longest way to the end first."""

from __future__ import annotations

import threading
from pathlib import Path

from sequencer.engine.markings import FlowControl
from sequencer.executors.protocol import Cancellation, StepRequest
from sequencer.model.outcome import Outcome
from sequencer.store.memory import MemoryRun
from tests.unit.engine.flow.labs import Hold, let_go, said, until
from tests.unit.engine.flow.team_labs import adds, fails, task, team


def test_the_longest_way_to_the_end_goes_first(tmp_path: Path) -> None:
    """By weight, not by number; equals in the order of the list."""
    tasks = [
        task("short"),
        task("twin"),
        task("many"),
        task("then", "many"),
        task("heavy", weight=5),
        task("light"),
        task("big", "light", weight=10),
    ]
    made = team(tmp_path, tasks, size=1)
    made.work()
    assert made.accepted() == ["light", "big", "heavy", "many", "short", "twin", "then"]


def test_the_order_counts_what_was_added(tmp_path: Path) -> None:
    tasks = [task("lead", adds="tasks"), task("other", weight=3), task("last", "lead", weight=0.5)]
    answer = adds(("quick",), ("slow",), ("slower", "slow"), weight=2)
    made = team(tmp_path, tasks, {"lead": answer}, size=1)
    made.work(limits={"max_steps": 1})
    # Without what it adds the lead weighs 1.5, and other 3.
    assert made.accepted() == ["other"]
    made.work()
    assert made.accepted() == ["other", "lead", "slow", "quick", "slower", "last"]


def test_added_tasks_come_before_lighter_ones_that_were_there(tmp_path: Path) -> None:
    tasks = [task("lead", adds="tasks", weight=9), *(task(f"t{n}", weight=2) for n in range(3))]
    made = team(tmp_path, tasks, {"lead": adds(("a",), ("b", "a"), ("c", "b"))}, size=1)
    made.work()
    assert made.accepted() == ["lead", "a", "t0", "t1", "t2", "b", "c"]


def test_a_task_that_is_tried_again_keeps_its_place(tmp_path: Path) -> None:
    heavy = task("heavy", weight=9, retry={"max_attempts": 2, "initial_delay_s": 0})
    made = team(tmp_path, [task("light"), heavy], {"heavy": fails(1)}, size=1)
    made.work()
    assert made.actor.names[0] == "heavy"
    assert made.actor.names.count("heavy") == 2
    assert sorted(made.accepted()) == ["heavy", "light"]


def test_no_more_than_the_team_has_members_over_all_processes(tmp_path: Path) -> None:
    memory = MemoryRun()
    counted = threading.Condition()
    now, most = 0, 0

    def work(request: StepRequest, cancellation: Cancellation) -> Outcome:
        nonlocal now, most
        del request
        with counted:
            now += 1
            most = max(most, now)
            # Three at once are waited for, so that fewer would be seen too.
            counted.wait_for(lambda: most >= 3, timeout=10)
        cancellation.wait(0.005)
        with counted:
            now -= 1
        return said("ok")

    tasks = [task(f"t{number}") for number in range(12)]
    made = team(tmp_path, tasks, {t.id: work for t in tasks}, size=3, memory=memory)
    processes = [made.works(places=2) for _ in range(3)]
    for process in processes:
        process.summary()
    assert most == 3
    assert sorted(made.accepted()) == sorted(t.id for t in tasks)
    memory.close()


def test_a_claim_of_another_process_takes_a_place(tmp_path: Path) -> None:
    memory = MemoryRun()
    made = team(tmp_path, [task("a"), task("b"), task("c")], size=2, memory=memory)
    store = made.claimed(slots=2)
    assert len(made.head.claims) == 2
    hold = Hold()
    made.actor.says["c"] = [hold]
    with let_go(hold):
        at_work = made.works()
        until(lambda: at_work.is_on)
        assert not hold.began.wait(0.05)
        # Whoever held the two is gone, and its places are free.
        store.leave()
        hold.wait()
        assert len(made.head.claims) <= 2
    at_work.summary()
    memory.close()


def test_growth_makes_no_second_place(tmp_path: Path) -> None:
    names = [(f"n{number}",) for number in range(10)]
    made = team(tmp_path, [task("lead", adds="tasks")], {"lead": adds(*names)}, size=2)
    seen = threading.Event()

    def work(*_: object) -> Outcome:
        # Two at once are waited for, so that one at a time would be seen too.
        if made.actor.most >= 2:
            seen.set()
        assert seen.wait(10)
        return said("ok")

    made.actor.says |= {name: [work] for (name,) in names}
    made.work()
    assert made.actor.most == 2
    assert len(made.accepted()) == 11


def test_what_may_be_begun_is_listed_by_urgency(tmp_path: Path) -> None:
    made = team(tmp_path, [task("light"), task("heavy", weight=3), task("behind", "light")])
    control = FlowControl(made.store(), made.workflow)
    made.begun()
    made.work(limits={"max_steps": 1}, places=1)
    assert made.accepted() == ["heavy"]
    assert control.net.startable(made.head) == ["light"]
