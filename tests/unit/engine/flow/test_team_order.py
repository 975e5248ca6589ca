"""Which of the tasks that may be begun is begun: the longest way to the end first."""

from __future__ import annotations

import threading
from pathlib import Path

from sequencer.executors.protocol import Cancellation, StepRequest
from sequencer.model.outcome import Outcome
from sequencer.store.memory import MemoryRun
from tests.unit.engine.flow.labs import said
from tests.unit.engine.flow.team_labs import task, team


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
            counted.notify_all()
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
