"""A step of a graph without what its agent can't honour and it can do without.

A role says for every client what its tasks may do; an author who writes a field at a task
means that task. So the author's fields are an error where they can't be honoured, as those of
any step, and the role's are left out: first single words of ``tools``, whichever helps most.
Flowcharts are passed on between people with different clients: a node does without the
temperature and the earlier conversation that its author asks for; nothing else is left out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Protocol

from sequencer.engine.events import Noticed
from sequencer.engine.performing import Performer
from sequencer.errors import SequencerError
from sequencer.executors.protocol import EVERY_EXECUTOR, Executor, ValidatesSteps
from sequencer.model.graph.marking import Marking
from sequencer.model.step import Step
from sequencer.model.workflow import Workflow

FIXER = "fixer."
OF_A_FLOWCHART = ("temperature", "continue_session")
"""What a flowchart's node can do without: ``temperature`` and ``mode: primary``."""


class Chooses(Protocol):
    """What `fitted` needs of a project's agents."""

    def choose(self, step: Step, position: str) -> tuple[str, Executor]:
        """Return the agent's name and its executor for *step*.

        Raises:
            ConfigurationError: see `Agents.choose`.
        """
        ...


def optional_of(workflow: Workflow) -> dict[str, tuple[str, ...]]:
    """Return for each step of the graph *workflow* the fields that it can do without.

    A task's are those that its role has brought.
    """
    found: dict[str, tuple[str, ...]] = {}
    for node in workflow.nodes:
        step, names = workflow.steps_by_name.get(node.id), tuple[str, ...]()
        if node.task is not None:
            names = node.task.brought
        elif step is not None:
            names = tuple(name for name in OF_A_FLOWCHART if _is_set(step, name))
        if names:
            found[node.id] = names
    return found


def fitted(
    agents: Chooses, step: Step, position: str, optional: Collection[str]
) -> tuple[Step, tuple[str, ...]]:
    """Return *step* as its agent can have it, and what of *optional* was left out for that.

    Its fixer is fitted too. A word of ``tools`` is told as ``tools.WORD``.

    Raises:
        ConfigurationError: the agent can't be had.
    """
    if not optional:
        return step, ()
    dropped: tuple[str, ...] = ()
    fixer = step.validation.fixer if step.validation is not None else None
    if fixer is not None and step.validation is not None:
        own = [name.removeprefix(FIXER) for name in optional if name.startswith(FIXER)]
        new, of_fixer = fitted(agents, fixer, position, own)
        dropped = tuple(f"{FIXER}{name}" for name in of_fixer)
        validation = step.validation.replace(fixer=new)
        step = step.replace(validation=validation)
    executor = _executor(agents, step, position)
    own = [name for name in optional if not name.startswith(FIXER)]
    supported = executor.supported_fields | EVERY_EXECUTOR
    lost = tuple(name for name in own if name not in supported and _is_set(step, name))
    step = _without(step, lost)
    step, words = _without_objections(step, executor, [name for name in own if name not in lost])
    return step, (*dropped, *lost, *words)


def _executor(agents: Chooses, step: Step, position: str) -> Executor:
    """Return what performs *step*, whatever of its fields it can honour."""
    named = {"name": step.name, "prompt": step.prompt, "text": step.text}
    asked = Step.model_validate({**named, "agent": step.agent})
    return agents.choose(asked, position)[1]


def _without_objections(
    step: Step, executor: Executor, own: Iterable[str]
) -> tuple[Step, tuple[str, ...]]:
    """Return *step* without what *executor* objects to, as far as it is among *own*."""
    if not isinstance(executor, ValidatesSteps):
        return step, ()
    dropped: list[str] = []
    own = list(own)
    while count := len(executor.objections(step)):
        changes = dict(_changes(step, own))
        if not changes:
            break
        # Of several that help as much, the first: one word rather than the whole field.
        best = min(changes, key=lambda name: len(executor.objections(changes[name])))
        if len(executor.objections(changes[best])) >= count:
            break
        step = changes[best]
        dropped.append(best)
    return step, tuple(dropped)


def _changes(step: Step, own: Iterable[str]) -> Iterable[tuple[str, Step]]:
    """Yield what can be left out, and *step* without it."""
    names = [name for name in own if _is_set(step, name)]
    if "tools" in names:
        tools: Mapping[Any, bool] = step.tools or {}
        for word in tools:
            rest = {name: is_on for name, is_on in tools.items() if name != word}
            yield f"tools.{word}", step.replace(tools=rest or None)
    for name in names:
        yield name, _without(step, (name,))


def _is_set(step: Step, name: str) -> bool:
    return bool(getattr(step, name) != Step.model_fields[name].get_default())


def _without(step: Step, names: Collection[str]) -> Step:
    update = {name: Step.model_fields[name].get_default() for name in names}
    return step.replace(**update) if update else step


class SupportedFields:
    """Fits the steps that one process runs to their agents."""

    def __init__(self, performer: Performer, begun_with: Workflow) -> None:
        """Fit them to the agents of *performer*; a run starts with the tasks of *begun_with*."""
        self._performer = performer
        self._begun_with = begun_with.steps_by_name
        self._told: set[str] = set()
        self._has_recalled = False
        self._optional: tuple[Workflow, Mapping[str, tuple[str, ...]]] | None = None
        """For the workflow that was asked about last."""
        self.is_silent = False
        """Whether what is left out now was reported before."""

    def step(
        self, workflow: Workflow, name: str, change: Callable[[Step], Step] = lambda step: step
    ) -> Step:
        """Return the step of node *name*, without optional fields that its agent lacks.

        *change* is applied before its agent is chosen.

        Raises:
            ConfigurationError: its agent is missing.
        """
        step = change(self._performer.with_defaults(workflow.steps_by_name[name]))
        optional = self._optional_of(workflow).get(name, ())
        kept, left_out = fitted(self._performer.agents, step, name, optional)
        if not left_out:
            return kept
        task = workflow.task(name)
        agent = self._performer.agents.choose(kept, name)[0]
        who = f"agent {agent!r}" if task is None else f"role {task.role}: its agent"
        text = f"{who} does not support {', '.join(left_out)}; left out"
        if text not in self._told:
            self._told.add(text)
            if not self.is_silent:
                self._performer.emit(Noticed(text))
        return kept

    def _optional_of(self, workflow: Workflow) -> Mapping[str, tuple[str, ...]]:
        if self._optional is None or self._optional[0] is not workflow:
            self._optional = workflow, optional_of(workflow)
        return self._optional[1]

    def recall(self, workflow: Workflow, marking: Marking, begins: Collection[str]) -> None:
        """Mark what was reported about added tasks before this process; *begins* start now."""
        if self._has_recalled:
            return
        self._has_recalled = self.is_silent = True
        ledger = marking.ledger
        begun = {*marking.done, *ledger.notes, *ledger.spent, *marking.active.keys() - set(begins)}
        for name in (begun & workflow.steps_by_name.keys()).difference(self._begun_with):
            # Its attempt says what is wrong with it.
            with contextlib.suppress(SequencerError):
                self.step(workflow, name)
        self.is_silent = False
