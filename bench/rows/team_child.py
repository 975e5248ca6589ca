"""A process that works on teams' runs, alone or with others that have the same project."""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from bench.flows import PLACES
from bench.layers import SLEEPERS_PLACES, blocks, sleepers
from bench.project import Marks, NoOp, make_project
from bench.serving import Answer, serve
from bench.teams import Sleeper, team_of, team_run
from sequencer import InvocationLimits, Mode, Run, Workflow, open_project
from sequencer.model.graph.marking import FlowStatus

WARM_UP = 50


class Teams:
    """Runs of teams, each a run of its own in one project."""

    def __init__(self, folder: Path) -> None:
        """Use the project in *folder*; make it if it is not there."""
        self._project = (
            open_project(folder, trust=True) if folder.exists() else make_project(folder)
        )
        self._number = 0
        self._known: dict[int, Workflow] = {}
        found, self._seconds = sleepers()
        self._sleepers = team_of(found, SLEEPERS_PLACES, self._seconds)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer ``run`` with what a task costs, and ``sleep`` with when everything was done."""
        if request["do"] == "sleep":
            return self._sleep(request["name"], request["places"])
        return self._run(request["tasks"], is_kept=request.get("is_kept", False))

    def _run(self, tasks: int, *, is_kept: bool) -> dict[str, Any]:
        workflow = self._known.get(tasks)
        if workflow is None:
            workflow = self._known[tasks] = team_of(blocks(tasks), PLACES)
        self._number += 1
        name = f"run-{self._number}"
        run = team_run(self._project, workflow, name, NoOp(Marks()))
        wall, cpu = time.perf_counter(), time.process_time()
        run.work(Mode.COMBINED, InvocationLimits(max_steps=None), places=PLACES)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        _ensure_done(run, tasks)
        if not is_kept:
            self._remove(name)
        return {"cpu": cpu / tasks, "wall": wall / tasks}

    def _sleep(self, name: str, places: int) -> dict[str, Any]:
        """Work on the run *name* of sleepers, with whoever else does."""
        executor = Sleeper(self._seconds)
        run = team_run(self._project, self._sleepers, name, executor)
        began = time.monotonic()
        run.work(Mode.COMBINED, InvocationLimits(max_steps=None), places=places)
        ended = time.monotonic()
        _ensure_done(run, len(self._seconds))
        return {"began": began, "ended": ended, "done": executor.done}

    def _remove(self, name: str) -> None:
        settings = self._project.settings
        shutil.rmtree(settings.state_file.parent / "runs" / name)
        for logs in settings.logs_dir.glob(f"*/runs/{name}"):
            shutil.rmtree(logs)


def _ensure_done(run: Run, tasks: int) -> None:
    head = run.head
    is_over = head is not None and head.flow is not None
    if head is None or head.flow is None or head.flow.status != FlowStatus.COMPLETED:
        raise RuntimeError(f"the run of {tasks} tasks has not come to its end: {is_over}")
    if head.usage.steps != tasks:
        raise RuntimeError(f"{head.usage.steps} of {tasks} tasks were done")


def begin() -> tuple[dict[str, Any], Answer]:
    """Open the project in the folder of the first argument."""
    teams = Teams(Path(sys.argv[1]))
    if "warm" in sys.argv[2:]:
        teams.answer({"do": "run", "tasks": WARM_UP})
    return {"pid": os.getpid()}, teams.answer


if __name__ == "__main__":
    serve(begin)
