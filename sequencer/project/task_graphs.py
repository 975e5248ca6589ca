"""What graphs of tasks are worked on with: a plug-in, as the core asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from sequencer import extensions
from sequencer.engine.capacity import CapacityRule
from sequencer.engine.tasks import TaskExecution
from sequencer.model.net.net import Grower
from sequencer.model.step import Step
from sequencer.model.workflow import Workflow


class TaskGraphs(Struct, frozen=True):
    """Whoever works on them; *project* is a `Project`, *settings* are `Settings`."""

    execution: Callable[[Any, str | None, str | None], TaskExecution]
    """Returns how the tasks of one run are worked on: called with a project, the run's name, and
    the agent that performs tasks that are added and name none."""
    capacity: Callable[[Any], CapacityRule]
    """Returns from settings what limits tasks besides ``limits:``."""
    grower: Callable[[Any], Grower]
    """Returns from settings what makes growths where nobody performs them."""
    last_resort: Callable[[Any], Callable[[Step], Step] | None]
    """Returns from settings what `TaskExecution.last_resort` is."""
    cost_caps: Callable[[Any, Workflow], Iterator[str]]
    """Yields the keys of the caps on the costs of a workflow's tasks."""
    packed: Callable[[TaskExecution], Mapping[str, Any]]
    """Returns as plain data what decides over the tasks, for a process that performs none."""
    unpacked: Callable[[Mapping[str, Any]], tuple[CapacityRule, Grower]]
    """Returns what `packed` was given."""


def known_task_graphs() -> TaskGraphs | None:
    """Return what works on graphs of tasks; None: nothing does, so that one can only look."""
    return next(extensions.ours(extensions.TASKS), None)


def task_graphs() -> TaskGraphs:
    """Return what works on graphs of tasks.

    Raises:
        SwitchedOff: its plug-in is switched off, or not there.
    """
    found: TaskGraphs = extensions.required(extensions.TASKS, "a graph of tasks")
    return found
