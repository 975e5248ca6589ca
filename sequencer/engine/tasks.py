"""What a plug-in brings to the run of a graph of tasks: see `extensions.TASKS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, Protocol

from msgspec import Struct

from sequencer.engine.capacity import CapacityRule
from sequencer.engine.values import NodeValues
from sequencer.engine.workplaces import Workplaces
from sequencer.model.net.marking import Marking
from sequencer.model.net.net import Grower
from sequencer.model.request import Request
from sequencer.model.step import Step

MergeOrder = Literal["auto", "listed", "finished"]
"""The order in which the results of folders of their own are merged: as the tasks stand in the
list, as they are finished, or as listed wherever nothing has to wait for it."""


class PromptContext(Protocol):
    """Makes what composes the prompt of one attempt at a task."""

    def __call__(
        self,
        values: NodeValues,
        marking: Marking,
        *,
        request: Request | None,
        substitutions: Mapping[str, str],
        path_of: Callable[[str], Path],
    ) -> Callable[[str], str]:
        """Return what makes the whole prompt of the text of the prompt file.

        All that is needed of *marking* is taken now; *path_of* says where an output lies.
        """


class TaskExecution(Struct, frozen=True):
    """How the tasks of one run are worked on."""

    capacity: CapacityRule
    grower: Grower
    workplaces: Workplaces
    context: PromptContext
    merge: MergeOrder = "auto"
    last_resort: Callable[[Step], Step] | None = None
    """Returns the step of a task as it is tried once more when its own tries are over."""
