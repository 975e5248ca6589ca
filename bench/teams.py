"""Teams for the bench: runs of task graphs whose agents do nothing, or sleep a known time."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import ClassVar

from bench.layers import Blockers
from bench.project import NoOpAgents, run_of
from sequencer import Executor, Outcome, OutcomeStatus, Run, Workflow
from sequencer.executors.cancellation import Cancellation
from sequencer.executors.protocol import Listener, StepRequest
from sequencer.plugins.teams.graphs import build_task_workflow
from sequencer.plugins.teams.team import Task
from sequencer.project.project import Project
from sequencer.project.runs import make_store

MOST = 10_000


class Sleeper:
    """An executor that sleeps as long as its task takes, and notes when it was done."""

    kind: ClassVar[str] = "sleeper"
    supported_fields: frozenset[str] = frozenset()

    def __init__(self, seconds: Mapping[str, float]) -> None:
        """Sleep *seconds*, by task."""
        self._seconds = seconds
        self.done: list[tuple[str, float]] = []
        """Tasks and when they were done, on the clock that all processes have in common."""

    def problems(self) -> list[str]:
        """Return nothing: it can always run."""
        return []

    def perform(
        self, request: StepRequest, listener: Listener, cancellation: Cancellation
    ) -> Outcome:
        """Sleep."""
        del listener, cancellation
        name = request.identity.step
        time.sleep(self._seconds[name])
        self.done.append((name, time.monotonic()))
        return Outcome(status=OutcomeStatus.OK)


def team_of(
    blockers: Blockers, places: int, seconds: Mapping[str, float] | None = None
) -> Workflow:
    """Return a team of *places* whose tasks wait for each other as *blockers* say."""
    tasks = [
        Task(
            id=name,
            subject=f"Do {name}",
            blocked_by=before,
            weight=1.0 if seconds is None else seconds[name],
            step={"text": "Do your part.\n"},
        )
        for name, before in blockers.items()
    ]
    return build_task_workflow("team", tasks, {}, size=places, max_tasks=MOST)


def team_run(project: Project, workflow: Workflow, name: str, executor: Executor) -> Run:
    """Return the run called *name* of *workflow*, as the assembly makes it, with *executor*."""
    agents = NoOpAgents(executor)
    return run_of(project, make_store(project.settings, name), name, agents, workflow)
