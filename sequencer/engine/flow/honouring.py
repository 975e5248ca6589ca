"""A graph's steps as their agents can have them, and what a person hears of what was left out.

Once a role and a run, of a flowchart once an agent: who starts the run is told, and who starts
the first task of a role that only added tasks have. Later processes, each tick is one, find the
same again and say nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping

from sequencer.engine.events import Noticed
from sequencer.engine.fitting import fitted, optional_of
from sequencer.engine.performing import Performer
from sequencer.errors import SequencerError
from sequencer.model.net.marking import Marking
from sequencer.model.step import Step
from sequencer.model.workflow import Workflow


class Honouring:
    """Fits the steps that one process runs to their agents."""

    def __init__(self, performer: Performer, begun_with: Workflow) -> None:
        """Fit them to the agents of *performer*; a run begins with the tasks of *begun_with*."""
        self._performer = performer
        self._begun_with = begun_with.steps_by_name
        self._told: set[str] = set()
        self._has_recalled = False
        self._optional: tuple[Workflow, Mapping[str, tuple[str, ...]]] | None = None
        """Of the workflow that was asked about last."""
        self.is_silent = False
        """What is left out now was told before."""

    def step(self, workflow: Workflow, name: str) -> Step:
        """Return the step of node *name*, without what it can do without and its agent can't do.

        Raises:
            ConfigurationError: its agent can't be had.
        """
        step = self._performer.with_defaults(workflow.steps_by_name[name])
        optional = self._optional_of(workflow).get(name, ())
        kept, left_out = fitted(self._performer.agents, step, name, optional)
        if not left_out:
            return kept
        task = workflow.graph.by_id[name].task if workflow.graph is not None else None
        who = f"role {task.role}: its agent" if task is not None else self._agent(kept, name)
        text = f"{who} can't honour {', '.join(left_out)}; left out"
        if text not in self._told:
            self._told.add(text)
            if not self.is_silent:
                self._performer.emit(Noticed(text))
        return kept

    def _optional_of(self, workflow: Workflow) -> Mapping[str, tuple[str, ...]]:
        if self._optional is None or self._optional[0] is not workflow:
            self._optional = workflow, optional_of(workflow)
        return self._optional[1]

    def _agent(self, step: Step, name: str) -> str:
        chosen, _ = self._performer.agents.choose(step, name)
        return f"agent {chosen!r}"

    def recall(self, workflow: Workflow, marking: Marking, begins: Collection[str]) -> None:
        """Know what was told of added tasks before this process: of all but what *begins* now."""
        if self._has_recalled:
            return
        self._has_recalled = self.is_silent = True
        team = marking.team
        begun = {*marking.done, *team.notes, *team.spent, *marking.active.keys() - set(begins)}
        for name in (begun & workflow.steps_by_name.keys()).difference(self._begun_with):
            # Its own attempt says what is wrong with it.
            with contextlib.suppress(SequencerError):
                self.step(workflow, name)
        self.is_silent = False
