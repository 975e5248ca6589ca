"""What a process needs beside a graph's own parts to work on a team's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sequencer.engine.flow.workplaces import Workplaces
from sequencer.model.net.graph import Growth
from sequencer.model.team import TeamRules
from sequencer.model.workflow import Workflow


class Grower(Protocol):
    """Makes what is added to a team's graph."""

    def of_answer(self, workflow: Workflow, name: str, answer: str) -> Growth | None:
        """Return the tasks that *answer* of task *name* adds to *workflow*; None: it names none.

        Raises:
            SequencerError: they can't be added; says what to mend.
        """

    def fix(self, workflow: Workflow, name: str, number: int) -> Growth | None:
        """Return what mends the work that task *name* has refused for the *number*-th time.

        None: the task has nothing that mends it, and judges anew.
        """


@dataclass(frozen=True, slots=True)
class Team:
    """The project's part in a team's run."""

    rules: TeamRules
    grower: Grower
    workplaces: Workplaces
