"""A real project on disk whose steps do nothing.

Everything but the executor is what a user gets: settings are read from a file, prompts
from a folder, the store and the logs are the assembly's own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from msgspec.structs import replace

from sequencer import (
    Executor,
    Head,
    Outcome,
    OutcomeStatus,
    Run,
    Step,
    Store,
    Workflow,
    open_project,
)
from sequencer.engine.agents import Agents
from sequencer.engine.capacity import CapacityRule
from sequencer.engine.events import Emit
from sequencer.engine.performing import Performer
from sequencer.errors import ConfigurationError
from sequencer.executors.cancellation import Cancellation
from sequencer.executors.protocol import Listener, StepRequest
from sequencer.model.graph.source import FlowSource
from sequencer.model.request import Definition
from sequencer.project.project import Project
from sequencer.project.runs import workflow_for
from sequencer.store.protocol import Change


@dataclass(slots=True)
class Marks:
    """When each step began, ended and was accepted, by step_index; the clock is common."""

    entered: dict[int, float] = field(default_factory=dict)
    left: dict[int, float] = field(default_factory=dict)
    accepted: dict[int, float] = field(default_factory=dict)
    entered_cpu: dict[int, float] = field(default_factory=dict)
    left_cpu: dict[int, float] = field(default_factory=dict)

    def clear(self) -> None:
        """Forget everything."""
        for times in (
            self.entered,
            self.left,
            self.accepted,
            self.entered_cpu,
            self.left_cpu,
        ):
            times.clear()

    def between_steps(self, skip: int) -> tuple[list[float], list[float]]:
        """Return wall and CPU seconds from each step's end to the next one's begin.

        That is the whole cost of a step that does nothing. The first *skip* are left out:
        the first steps of an invocation pay for its beginning.
        """
        following = sorted(index for index in self.entered if index - 1 in self.left)[skip:]
        wall = [self.entered[index] - self.left[index - 1] for index in following]
        cpu = [self.entered_cpu[index] - self.left_cpu[index - 1] for index in following]
        return wall, cpu


class NoOp:
    """An executor that succeeds at once and notes when."""

    kind: ClassVar[str] = "no-op"
    supported_fields: frozenset[str] = frozenset()

    def __init__(self, marks: Marks, on_step: Callable[[int], None] | None = None) -> None:
        """Note times in *marks*; *on_step* hears of each step_index."""
        self._marks = marks
        self._on_step = on_step

    def problems(self) -> list[str]:
        """Return nothing: it can always run."""
        return []

    def perform(
        self, request: StepRequest, listener: Listener, cancellation: Cancellation
    ) -> Outcome:
        """Do nothing."""
        del listener, cancellation
        entered, entered_cpu = time.monotonic(), time.process_time()
        index, marks = request.identity.step_index, self._marks
        marks.entered[index], marks.entered_cpu[index] = entered, entered_cpu
        if self._on_step is not None:
            self._on_step(index)
        outcome = Outcome(status=OutcomeStatus.OK)
        marks.left_cpu[index], marks.left[index] = time.process_time(), time.monotonic()
        return outcome


class NoOpAgents:
    """Gives every step the same executor."""

    def __init__(self, executor: Executor) -> None:
        """Use *executor*."""
        self._executor = executor

    def choose(self, step: Step, position: str) -> tuple[str, Executor]:
        """See `Agents.choose`."""
        del step, position
        return "no-op", self._executor

    def choose_installed(self, step: Step, position: str) -> tuple[str, Executor, str | None]:
        """See `Agents.choose_installed`."""
        return *self.choose(step, position), None

    has_fallback = False

    def choose_fallback(
        self, step: Step, agent: str, not_before: str | None = None
    ) -> tuple[str, Executor] | None:
        """Return nobody."""

    def list_unfit_fallbacks(self, step: Step, agent: str) -> list[tuple[str, ConfigurationError]]:
        """Return nobody."""
        del step, agent
        return []

    def ensure_folder(self, agent: str, folder: Path) -> None:
        """See `Agents.ensure_folder`; any folder will do."""

    def warm_up(self) -> None:
        """See `Agents.warm_up`."""

    def close(self) -> None:
        """See `Agents.close`; there is nothing to end."""


def mark_acceptances(store: Store, marks: Marks) -> Store:
    """Let *store* note when a step's acceptance was acknowledged; return it.

    Not a store around the store: each look at an attribute would cost what is measured.
    """
    accept = store.update

    def update(change: Change) -> Head:
        head = accept(change)
        if not head.claims:
            marks.accepted[head.step_index - 1] = time.monotonic()
        return head

    vars(store)["update"] = update
    return store


def make_project(folder: Path, extra: str = "") -> Project:
    """Create a project with the two-step workflow in *folder* and open it."""
    prompts = folder / "prompts"
    prompts.mkdir(parents=True)
    for name in ("supervisor", "main"):
        (prompts / f"{name}.md").write_text(f"Do what the {name} does.\n", encoding="utf-8")
    settings = folder / "orchestration.yaml"
    settings.write_text(f"workflow: {{name: standard}}\n{extra}", encoding="utf-8")
    return open_project(folder, trust=True)


@dataclass(frozen=True)
class Fixed:
    """A run of one workflow whose steps are performed as somebody says; see `Resolution`."""

    workflow: Workflow
    perform: Callable[[Workflow, Emit], Performer]
    definition: Definition | None = None
    source: FlowSource | None = None
    capacity_rule: CapacityRule | None = None
    is_current: bool = True

    def performer(self, emit: Emit) -> Performer:
        return self.perform(self.workflow, emit)

    @staticmethod
    def may_agents_use(verb: str) -> bool:
        """Nobody is an agent here."""
        del verb
        return False


def run_of(
    project: Project,
    store: Store,
    name: str | None,
    agents: Agents,
    workflow: Workflow | None = None,
) -> Run:
    """Return a run as the assembly makes it, but with *agents*, and perhaps with *workflow*."""

    def perform(chosen: Workflow, emit: Emit) -> Performer:
        return replace(project.performer(chosen, emit, name), agents=agents)

    def resolve(head: Head | None) -> Fixed:
        return Fixed(workflow or workflow_for(project.settings, head), perform)

    return Run(name, store, project.settings.limits, resolve)


def no_op_run(
    project: Project,
    marks: Marks,
    name: str | None = None,
    on_step: Callable[[int], None] | None = None,
) -> Run:
    """Return the run called *name* of *project*, as the assembly makes it, with no-op steps."""
    agents = NoOpAgents(NoOp(marks, on_step))
    store = mark_acceptances(project.store(name), marks)
    return run_of(project, store, name, agents)
