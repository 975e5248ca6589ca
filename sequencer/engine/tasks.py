"""How the tasks of a graph are executed. A plug-in provides this, see `project.task_graphs`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, Protocol

from msgspec import Struct

from sequencer.engine.capacity import CapacityRule
from sequencer.engine.merge_order import MergeQueue
from sequencer.engine.prompt_context.node_values import NodeValues
from sequencer.model.graph.ends import TaskExpander
from sequencer.model.graph.marking import Marking
from sequencer.model.request import Request
from sequencer.model.step import Step

MergeOrder = Literal["auto", "listed", "finished"]
"""When the worktrees of tasks are merged: in the order of the list, as the tasks finish, or in the
order of the list where that delays nothing."""


class PromptContext(Protocol):
    """Builds the prompt of one attempt at a task."""

    def __call__(
        self,
        values: NodeValues,
        marking: Marking,
        *,
        request: Request | None,
        substitutions: Mapping[str, str],
        path_of: Callable[[str], Path],
    ) -> Callable[[str], str]:
        """Return a function from the text of the prompt file to the whole prompt.

        *marking* is read now, not when the function is called. *path_of* returns the path of an
        output.
        """


class TaskExecution(Struct, frozen=True):
    """How the tasks of one run are executed."""

    capacity_rule: CapacityRule
    expander: TaskExpander
    context: PromptContext
    merge: MergeOrder = "auto"
    fails_on_write: bool = False
    """Whether an attempt fails if its task only reads and the agent has written."""
    fallback_step: Callable[[Step], Step] | None = None
    """Returns the step for one more attempt after the last failed one; None: there is none."""

    def merge_queue(self) -> MergeQueue | None:
        """Return a queue for the results of one process; None: they are merged as they finish."""
        return None if self.merge == "finished" else MergeQueue(is_strict=self.merge == "listed")
