"""Which of the tasks that may be begun is begun: the longest way to the end first."""

from __future__ import annotations

import threading
from pathlib import Path

from sequencer.executors.protocol import Cancellation, StepRequest
from sequencer.model.outcome import Outcome
from sequencer.store.memory import MemoryRun
from tests.unit.engine.flow.labs import said
from tests.unit.engine.flow.team_labs import adds, task, team


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
