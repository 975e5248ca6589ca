"""Leaves out optional fields of a graph's step that its agent does not support.

A role's fields are for every client; a task's own fields are for that task. So an unsupported
field of the task is an error, as in any step. An unsupported field of the role is left out:
first single words of ``tools``, starting with the one that resolves most objections.
People with different clients share flowcharts, so a node may lose its temperature and its
earlier conversation, and nothing else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Protocol

from sequencer.engine.events import NoticeGiven
from sequencer.engine.performing import Performer
from sequencer.errors import SequencerError
from sequencer.executors.protocol import EVERY_EXECUTOR, Executor, ValidatesSteps
from sequencer.model.graph.marking import Marking
from sequencer.model.step import Step
from sequencer.model.workflow import Workflow

FIXER = "fixer."
OF_A_FLOWCHART = ("temperature", "continue_session")
"""The optional fields of a flowchart's node: ``temperature`` and ``mode: primary``."""


class Chooses(Protocol):
    """The part of a project's agents that `drop_unsupported_fields` needs."""

    def choose(self, step: Step, position: str) -> tuple[str, Executor]:
        """Return the agent's name and its executor for *step*.

        Raises:
            ConfigurationError: see `Agents.choose`.
        """
        ...


def find_optional_fields(workflow: Workflow) -> dict[str, tuple[str, ...]]:
    """Return the optional fields of each step of the graph *workflow*, by node.

    For a task, these are the fields that come from its role.
    """
    optional: dict[str, tuple[str, ...]] = {}
    for node in workflow.nodes:
        step, names = workflow.steps_by_name.get(node.id), tuple[str, ...]()
        if node.task is not None:
            names = node.task.brought
        elif step is not None:
            names = tuple(name for name in OF_A_FLOWCHART if _is_set(step, name))
        if names:
            optional[node.id] = names
    return optional


def drop_unsupported_fields(
    agents: Chooses, step: Step, position: str, optional: Collection[str]
) -> tuple[Step, tuple[str, ...]]:
    """Return *step* with supported fields only, and the names from *optional* that are left out.

    Its fixer is treated in the same way. A word of ``tools`` has the name ``tools.WORD``.

    Raises:
        ConfigurationError: the agent is not available.
    """
    if not optional:
        return step, ()
    fixer_names: tuple[str, ...] = ()
    fixer = step.validation.fixer if step.validation is not None else None
    if fixer is not None and step.validation is not None:
        names = [name.removeprefix(FIXER) for name in optional if name.startswith(FIXER)]
        new_fixer, dropped_names = drop_unsupported_fields(agents, fixer, position, names)
        fixer_names = tuple(f"{FIXER}{name}" for name in dropped_names)
        validation = step.validation.replace(fixer=new_fixer)
        step = step.replace(validation=validation)
    executor = _executor(agents, step, position)
    names = [name for name in optional if not name.startswith(FIXER)]
    supported_names = executor.supported_fields | EVERY_EXECUTOR
    unsupported_names = tuple(
        name for name in names if name not in supported_names and _is_set(step, name)
    )
    step = _drop_fields(step, unsupported_names)
    step, words = _without_objections(
        step, executor, [name for name in names if name not in unsupported_names]
    )
    return step, (*fixer_names, *unsupported_names, *words)


def _executor(agents: Chooses, step: Step, position: str) -> Executor:
    """Return the executor of *step*, even if it does not support all of its fields."""
    # `choose` refuses a step with unsupported fields, so it gets only these.
    fields = {"name": step.name, "prompt": step.prompt, "text": step.text, "agent": step.agent}
    return agents.choose(Step.model_validate(fields), position)[1]


def _without_objections(
    step: Step, executor: Executor, optional: Iterable[str]
) -> tuple[Step, tuple[str, ...]]:
    """Return *step* without *optional* fields that *executor* objects to, and their names."""
    if not isinstance(executor, ValidatesSteps):
        return step, ()
    dropped_names: list[str] = []
    optional = list(optional)
    while count := len(executor.objections(step)):
        changes = dict(_changes(step, optional))
        if not changes:
            break
        # On a tie, the first wins: a single word comes before the whole field.
        best_name = min(changes, key=lambda name: len(executor.objections(changes[name])))
        if len(executor.objections(changes[best_name])) >= count:
            break
        step = changes[best_name]
        dropped_names.append(best_name)
    return step, tuple(dropped_names)


def _changes(step: Step, optional: Iterable[str]) -> Iterable[tuple[str, Step]]:
    """Yield (name, *step* without it) for each field and each word that can be left out."""
    names = [name for name in optional if _is_set(step, name)]
    if "tools" in names:
        tools: Mapping[Any, bool] = step.tools or {}
        for word in tools:
            other_tools = {name: is_on for name, is_on in tools.items() if name != word}
            yield f"tools.{word}", step.replace(tools=other_tools or None)
    for name in names:
        yield name, _drop_fields(step, (name,))


def _is_set(step: Step, name: str) -> bool:
    return bool(getattr(step, name) != Step.model_fields[name].get_default())


def _drop_fields(step: Step, names: Collection[str]) -> Step:
    update = {name: Step.model_fields[name].get_default() for name in names}
    return step.replace(**update) if update else step


class SupportedFields:
    """Leaves out unsupported fields of one process's steps, and reports each only once."""

    def __init__(self, performer: Performer, first_workflow: Workflow) -> None:
        """Use the agents of *performer*; the run started with the tasks of *first_workflow*."""
        self._performer = performer
        self._first_steps = first_workflow.steps_by_name
        self._reported: set[str] = set()
        self._has_restored = False
        self._optional: tuple[Workflow, Mapping[str, tuple[str, ...]]] | None = None
        """The optional fields, and the workflow that they are for."""
        self.is_silent = False
        """Whether nothing is reported now, because it was reported before."""

    def adapt_step(
        self, workflow: Workflow, name: str, change: Callable[[Step], Step] = lambda step: step
    ) -> Step:
        """Return the step of node *name*, without optional fields that its agent does not support.

        *change* is applied before its agent is chosen.

        Raises:
            ConfigurationError: its agent is missing.
        """
        step = change(self._performer.with_defaults(workflow.steps_by_name[name]))
        optional = self._find_optional_fields(workflow).get(name, ())
        adapted_step, omitted_names = drop_unsupported_fields(
            self._performer.agents, step, name, optional
        )
        if not omitted_names:
            return adapted_step
        task = workflow.find_task(name)
        agent = self._performer.agents.choose(adapted_step, name)[0]
        subject = f"agent {agent!r}" if task is None else f"role {task.role}: its agent"
        text = f"{subject} does not support {', '.join(omitted_names)}; left out"
        if text not in self._reported:
            self._reported.add(text)
            if not self.is_silent:
                self._performer.emit(NoticeGiven(text))
        return adapted_step

    def _find_optional_fields(self, workflow: Workflow) -> Mapping[str, tuple[str, ...]]:
        if self._optional is None or self._optional[0] is not workflow:
            self._optional = workflow, find_optional_fields(workflow)
        return self._optional[1]

    def restore_reported(
        self, workflow: Workflow, marking: Marking, first_tries: Collection[str]
    ) -> None:
        """Note, once, the reports about added tasks that earlier processes have made.

        Those are the tasks that have started before. *first_tries* are tasks that start only now.
        """
        if self._has_restored:
            return
        self._has_restored = self.is_silent = True
        ledger = marking.ledger
        active_names = marking.active.keys() - set(first_tries)
        started_names = {*marking.done, *ledger.notes, *ledger.spent, *active_names}
        for name in (started_names & workflow.steps_by_name.keys()).difference(self._first_steps):
            # An error is reported by the attempt at the task.
            with contextlib.suppress(SequencerError):
                self.adapt_step(workflow, name)
        self.is_silent = False
