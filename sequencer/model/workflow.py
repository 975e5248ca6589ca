"""Workflows: named sequences or graphs of steps.

A workflow is data; `sequence.order` decides which step it has at an index. The digest covers the
definition as its author wrote it, but nothing that may change during a run (prompt texts, limits,
step defaults).
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from shlex import quote
from typing import Any

from sequencer.errors import DefinitionChanged, UsageRefused, format_command
from sequencer.frozen.base import Frozen
from sequencer.frozen.fields import Field, Refusal, model_validator
from sequencer.model.graph.graph import Graph, Node, NodeKind, TaskExpansion, expand_graph
from sequencer.model.graph.task import TaskTraits
from sequencer.model.head import Head, Status
from sequencer.model.outcome import Move
from sequencer.model.step import FORMER_AGENT, Name, Purpose, Step

OWN_WORKFLOW = "default"
"""The workflow that consists of the top-level steps and review of orchestration.yaml."""
_NO_STEPS = {"field_type": "Tuple", "min_length": 1, "actual_length": 0}
_OF_A_FIXER: Any = {"fixer": {"description": True}}
_NOT_DIGESTED: Any = {
    "description": True,
    "review": {"every": True, "step": {"description": True, "validation": _OF_A_FIXER}},
    "steps": {"__all__": {"text": True, "description": True, "validation": _OF_A_FIXER}},
    "graph": {
        "max_parallel": True,
        "nodes": {
            "__all__": {
                "label": True,
                "description": True,
                "question": True,
                "task": {"description", "active_form", "weight", "budget"},
            }
        },
    },
}
"""What may change during a run: parameters, prompts, and texts that only people read."""


class Review(Frozen):
    """How often a review replaces a whole cycle, and the step that it runs."""

    every: int = Field(default=0, ge=-(2**31), lt=2**31)
    """Cycles; 0 or less means never."""
    step: Step


class Workflow(Frozen):
    """A named sequence or graph of steps; frozen, compared by value."""

    name: Name
    steps: tuple[Step, ...] = Field(max_length=20_000)
    """In order; for a graph, the steps of its agent nodes, by the same names."""
    review: Review | None = None
    kind: Name = "cycle"
    """cycle: endless. procedure: once from the first step to the last, then complete. graph: along
    its nodes and edges. A package may add other kinds, which also run one step after another."""
    graph: Graph | None = None
    description: Purpose = ""
    """What it is for, in one line; for people only."""

    def __init__(
        self,
        name: str,
        steps: tuple[Step, ...] | list[Step],
        review: Review | None = None,
        kind: str = "cycle",
        graph: Graph | None = None,
        *,
        description: str = "",
    ) -> None:
        """Create a workflow; arguments are positional, because most need only name and steps.

        Raises:
            ValueError: two steps share a name (their positions would be ambiguous), a procedure or
                a graph has a review (it has no cycles to review), or the steps of a graph are not
                those of its agent nodes.
        """
        super().__init__(
            name=name,
            steps=steps,
            review=review,
            kind=kind,
            graph=graph,
            description=description,
        )

    @model_validator(mode="after")
    def _ensure_valid_steps_and_review(self) -> Workflow:
        counts = Counter(step.name for step in self.steps)
        duplicates = sorted(name for name, count in counts.items() if count > 1)
        if duplicates:
            message = (
                "step names have to be unique within a workflow; "
                f"used twice: {', '.join(duplicates)}"
            )
            raise ValueError(message)
        if self.kind != "cycle" and self.review is not None:
            message = f"a {self.kind} has no cycles, so it can't have a review"
            raise ValueError(message)
        return self

    @model_validator(mode="after")
    def _ensure_steps_fit_kind(self) -> Workflow:
        if self.graph is None:
            if self.kind == "graph":
                raise ValueError("a workflow of kind graph has to have a graph")
            if not self.steps:
                raise Refusal("too_short", _NO_STEPS)
            return self
        if self.kind != "graph":
            raise ValueError("only a workflow of kind graph has a graph")
        agents = [node.id for node in self.graph.nodes if node.kind is NodeKind.AGENT]
        if agents != [step.name for step in self.steps]:
            raise ValueError("a graph has one step for each of its agent nodes, in their order")
        return self

    @cached_property
    def has_end(self) -> bool:
        """Return whether its last step is the end; otherwise the first step follows it.

        For a graph, whose edges say what follows, it is False.
        """
        return self.kind == "procedure"

    @cached_property
    def steps_by_name(self) -> dict[str, Step]:
        """Return the steps by their names, in order."""
        return {step.name: step for step in self.steps}

    @property
    def own_steps(self) -> tuple[Step, ...]:
        """Return its steps, including the step of its review."""
        return self.steps if self.review is None else (*self.steps, self.review.step)

    @property
    def every_step(self) -> tuple[Step, ...]:
        """Return its steps, including the step of its review and all fixers."""
        validations = (step.validation for step in self.own_steps)
        fixers = (
            validation.fixer
            for validation in validations
            if validation is not None and validation.fixer is not None
        )
        return (*self.own_steps, *fixers)

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """Return the nodes of its graph; empty if it has no graph."""
        return () if self.graph is None else self.graph.nodes

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of its steps, or of its nodes, in order."""
        return tuple(node.id for node in self.nodes) or tuple(step.name for step in self.steps)

    @property
    def whole_graph(self) -> Graph:
        """Return its graph.

        Raises:
            ValueError: it has none.
        """
        if self.graph is None:
            raise ValueError(f"workflow {self.name!r} is not a graph")
        return self.graph

    @cached_property
    def tasks(self) -> tuple[Node, ...]:
        """Return the tasks of a graph of tasks; empty for every other workflow."""
        return self.nodes if self.graph is not None and self.graph.has_tasks else ()

    def find_task(self, name: str) -> TaskTraits | None:
        """Return the task traits of the node *name*; None: it is not a task."""
        node = None if self.graph is None else self.graph.by_id.get(name)
        return None if node is None else node.task

    @property
    def parallel_tasks(self) -> int | None:
        """Return how many tasks may run at once; None: the workflow sets no limit."""
        return self.graph.max_parallel if self.graph is not None and self.tasks else None

    @property
    def default_max_steps(self) -> int | None:
        """Return the limit of steps for an invocation without one of its own; None: no limit."""
        # A graph ends by itself.
        return 20 if self.graph is None else None

    @cached_property
    def counts_ms(self) -> bool:
        """Return whether its author writes time limits in milliseconds, as in flowcharts."""
        return self.graph is not None and not self.graph.has_tasks

    @property
    def moves(self) -> tuple[Move, ...]:
        """Return the moves that a hook may decide after an attempt.

        A graph has neither ``skip`` nor ``gate``, because its nodes and edges decide what follows.
        A list of tasks has no ``goto`` either, because every task runs.
        """
        if self.graph is None:
            return tuple(Move)
        moves = (Move.NEXT, Move.RETRY, Move.FAIL, Move.COMPLETE)
        return moves if self.graph.has_tasks else (*moves, Move.GOTO)

    @property
    def review_every(self) -> int:
        """Return N of "a review every N cycles"; 0 means never."""
        return max(self.review.every, 0) if self.review else 0

    @property
    def params(self) -> dict[str, int]:
        """Return the parameters that a run stores in its head."""
        return {"review_every_n_cycles": self.review_every} if self.review else {}

    def with_review_every(self, every: int) -> Workflow:
        """Return the same workflow with a different cadence.

        Raises:
            ValueError: the workflow has no review step.
        """
        if self.review is None:
            message = f"workflow {self.name!r} has no review step"
            raise ValueError(message)
        return self.replace(review=self.review.replace(every=max(every, 0)))

    def digest(self) -> str:
        """Return ``sha256:…`` over the definition without its parameters.

        Fields with default values are left out, so that the digest of an old definition stays the
        same if a later version of the program adds a field.
        """
        return self._digest

    def definition(self) -> dict[str, Any]:
        """Return what the digest covers, as plain data."""
        return self.model_dump(mode="json", exclude_defaults=True, exclude=_NOT_DIGESTED)

    @cached_property
    def _digest(self) -> str:
        definition = self.definition()
        review = definition.get("review", {}).get("step")
        for step in (*definition["steps"], *([review] if review else ())):
            _use_former_name(step)
        if "has_tasks" in (graph := definition.get("graph", {})):
            graph["is_team"] = graph.pop("has_tasks")
        canonical = json.dumps(definition, sort_keys=True, separators=(",", ":"))
        return f"sha256:{hashlib.sha256(canonical.encode()).hexdigest()}"


def _use_former_name(step: dict[str, Any]) -> None:
    """Use the former name of the key `agent` in *step*, so that digests stay the same."""
    if "agent" in step:
        step[FORMER_AGENT] = step.pop("agent")
    if fixer := step.get("validation", {}).get("fixer"):
        _use_former_name(fixer)


def has_definition(head: Head, workflow: Workflow) -> bool:
    """Return whether the run of *head* was started with *workflow* and its parameters."""
    return (
        head.workflow_name == workflow.name
        and head.workflow_digest == workflow.digest()
        and head.params == workflow.params
    )


def ensure_definition(head: Head, workflow: Workflow) -> None:
    """Check that the run of *head* was started with *workflow* and its parameters.

    Raises:
        DefinitionChanged: it was not, so step_index might refer to a different step now.
    """
    if has_definition(head, workflow):
        return
    differences = []
    if head.workflow_name != workflow.name:
        differences.append(f"workflow {head.workflow_name!r} -> {workflow.name!r}")
    elif head.workflow_digest != workflow.digest():
        differences.append(f"the steps of {workflow.name!r} were changed")
    differences += describe_param_changes(head.params, workflow.params)
    if differences:
        options = _workflow_options(head, workflow)
        hint = f"{format_command(head.run_name, f'reset{options}')} starts over"
        if head.status is not Status.COMPLETE:
            adopt_command = format_command(head.run_name, f"adopt{options}")
            hint = f"{adopt_command} continues under the new definition, {hint}"
        state = " and is complete" if head.status is Status.COMPLETE else ""
        raise DefinitionChanged(
            f"the run was started differently{state}: {'; '.join(differences)}",
            where=f"run {head.run_name or 'default'}, step_index {head.step_index}",
            hint=hint,
        )


PARAM_KEYS = {"review_every_n_cycles": "review.every"}
"""Parameter in a head -> its key in orchestration.yaml."""


def describe_param_changes(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    """Return each parameter that differs in words, with its key in orchestration.yaml.

    >>> describe_param_changes({"review_every_n_cycles": 3}, {"review_every_n_cycles": 2})
    ['review.every: 3 -> 2']
    """
    return [
        f"{PARAM_KEYS.get(name, name)}: {before.get(name, 'none')} -> {after.get(name, 'none')}"
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    ]


def _workflow_options(head: Head, workflow: Workflow) -> str:
    """Return the options that a command needs to use *workflow* for a named run."""
    if head.run_name is None:
        return ""
    options = f" --workflow {quote(workflow.name)}" if head.workflow_name != workflow.name else ""
    if workflow.params and head.params != workflow.params:
        options += f" --review-every {workflow.review_every}"
    return options


def require_graph(workflow: Workflow) -> Graph:
    """Return the graph of *workflow*.

    Raises:
        UsageRefused: it has none.
    """
    if workflow.graph is None:
        raise UsageRefused(f"workflow {workflow.name!r} is not a graph, so it has no nodes")
    return workflow.graph


def expand_workflow(workflow: Workflow, expansions: list[TaskExpansion]) -> Workflow:
    """Return *workflow* with each of *expansions* added, in order."""
    graph = workflow.graph
    if graph is None or not expansions:
        return workflow
    steps = workflow.steps
    for expansion in expansions:
        graph = expand_graph(graph, expansion)
        steps = (*steps, *expansion.steps)
    return Workflow(workflow.name, steps, kind="graph", graph=graph)


def with_graph(workflow: Workflow, expansions: list[TaskExpansion], graph: Graph) -> Workflow:
    """Return *workflow* with *expansions* added; *graph* contains them already."""
    steps = (*workflow.steps, *(step for expansion in expansions for step in expansion.steps))
    return Workflow(workflow.name, steps, kind="graph", graph=graph)
