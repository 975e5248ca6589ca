"""The interface between the core and the plug-in that runs graphs of tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from sequencer import extensions
from sequencer.engine.capacity import CapacityRule
from sequencer.engine.tasks import TaskExecution
from sequencer.model.graph.ends import TaskExpander
from sequencer.model.step import Step
from sequencer.model.workflow import Workflow


class TaskGraphs(Struct, frozen=True):
    """The functions of the plug-in; *project* is a `Project`, *settings* are `Settings`."""

    execution: Callable[[Any, str | None], TaskExecution]
    """Called with a project and the agent for added tasks that don't name one. Returns the rules
    for executing the tasks of a run."""
    capacity_rule: Callable[[Any], CapacityRule]
    """Called with settings; returns the limits on tasks in addition to ``limits:``."""
    expander: Callable[[Any], TaskExpander]
    """Called with settings; returns the task expander for a simulation."""
    fallback_step: Callable[[Any], Callable[[Step], Step] | None]
    """Called with settings; returns `TaskExecution.fallback_step`."""
    cost_caps: Callable[[Any, Workflow], Iterator[str]]
    """Called with settings; yields the key of each cost cap on the tasks of a workflow."""
    dump: Callable[[TaskExecution], Mapping[str, Any]]
    """Returns the rules as JSON data, for a process that schedules tasks but runs none."""
    load: Callable[[Mapping[str, Any]], tuple[CapacityRule, TaskExpander]]
    """Returns the rules from what `dump` returned."""


TASK_GRAPHS = extensions.Single[TaskGraphs](extensions.TASKS, "a graph of tasks")
"""The plug-in that runs graphs of tasks."""
