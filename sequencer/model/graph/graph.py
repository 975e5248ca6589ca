"""A graph workflow: nodes, the edges that a run follows between them, and its limits.

Neutral data: it does not show whether it came from a flowchart or from a list of tasks. `marking`
and `rules` decide what a run does with it; an agent node runs the workflow's step of the same
name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from enum import StrEnum
from functools import cached_property
from typing import Any, Self

from sequencer.frozen.base import Frozen
from sequencer.frozen.fields import Field, ValidationError, model_validator
from sequencer.model.graph.task import TaskTraits
from sequencer.model.step import Name, Step

MAX_NODES = 20_000
DEFAULT_MAX_ITERATIONS = 50


class NodeKind(StrEnum):
    """What happens at a node."""

    AGENT = "agent"
    """An executor runs the step of the same name."""
    HUMAN = "human"
    """A person answers a question."""
    MARKER = "marker"
    """Nothing; its tokens pass."""
    DECISION = "decision"
    """Nothing, but the output that reached it selects the branch."""


class Option(Frozen):
    """One answer that a person may choose."""

    label: str = Field(min_length=1, max_length=200)
    value: str = Field(min_length=1, max_length=200)
    """The output of the node; the label, unless the author gave another value."""
    description: str = Field(default="", max_length=2000)


class Node(Frozen):
    """One node; frozen, compared by value."""

    id: Name
    kind: NodeKind
    label: str = ""
    """Its text in the chart."""
    description: str = ""
    question: str = ""
    """For a human node: the text to show, which may have templates; empty: its label."""
    options: tuple[Option, ...] = ()
    """For a human node; empty: any text is an answer."""
    allows_custom_input: bool = False
    """For a human node: any text is an answer, not only an option."""
    timeout_ms: int | None = Field(default=None, gt=0)
    """For a human node: how long it waits. For an agent, the step has the limit."""
    on_timeout: Name | None = None
    """For a human node: where the run goes if no one answers in time."""
    input: dict[str, Any] = Field(default_factory=dict)
    """The values of ``{{input.…}}`` in its prompt; texts may contain templates."""
    output_key: str | None = Field(default=None, min_length=1, max_length=200)
    """The key for the output in the state; dots nest."""
    task: TaskTraits | None = None
    """The task that the node represents, in a graph of tasks."""

    @property
    def works(self) -> bool:
        """Return whether it takes time: an agent runs or a person is asked."""
        return self.kind in (NodeKind.AGENT, NodeKind.HUMAN)

    @property
    def title(self) -> str:
        """Return its text in the chart; empty if that says no more than its id.

        >>> [Node(id="ab_c", kind=NodeKind.AGENT, label=text).title for text in ("Ab c?", "Test")]
        ['', 'Test']
        """
        text = " ".join(self.label.split())
        return "" if _fold_text(text) == _fold_text(self.id) else text

    @property
    def named(self) -> str:
        """Return its id, followed by its title for messages: `A (Unit tests)`.

        For a task, return only the id: tables of tasks have a column for its label.
        """
        title = "" if self.task is not None else self.title
        return f"{self.id} ({title})" if title else self.id

    @property
    def subject(self) -> str | None:
        """Return the label of a task and its role; None: the node is not a task."""
        if self.task is None:
            return None
        label = self.label or self.id
        return f"{label} ({self.task.role})" if self.task.role else label


def _fold_text(text: str) -> str:
    return "".join(filter(str.isalnum, text)).casefold()


class Edge(Frozen):
    """A connection from one node to another."""

    source: Name
    target: Name
    label: str = ""
    """Empty: the edge has no label."""


class Graph(Frozen):
    """Nodes in the order in which the chart first mentions them, and edges in text order."""

    nodes: tuple[Node, ...] = Field(min_length=1, max_length=MAX_NODES)
    edges: tuple[Edge, ...] = ()
    entries: tuple[Name, ...] = Field(min_length=1)
    """Where a run starts; several only if the entry is a group of nodes."""
    on_error: Name | None = None
    """The node that the run jumps to after a permanent failure, at most once per run."""
    max_iterations: int = Field(default=DEFAULT_MAX_ITERATIONS, ge=0, le=1_000_000)
    """How often a run may follow back edges in total."""
    timeout_ms: int | None = Field(default=None, gt=0)
    """Limit for the time in which an agent runs or waits for its next try."""
    max_parallel: int | None = Field(default=None, ge=1, le=1000)
    """Agents at once, over all processes; None: only the limits of each process apply."""
    state: dict[str, Any] = Field(default_factory=dict)
    """The state at the start of a run."""
    has_tasks: bool = Field(default=False, alias="is_team")
    """Its nodes are tasks: a permanent failure stops only the tasks that it blocks, and of the
    tasks that may start, the one with the longest path to the end starts first."""

    @model_validator(mode="after")
    def _ensure_known_names(self) -> Self:
        nodes = self.by_id
        if len(nodes) != len(self.nodes):
            raise ValueError("two nodes have the same id")
        used_names = [*self.entries, *filter(None, [self.on_error])]
        used_names += [name for edge in self.edges for name in (edge.source, edge.target)]
        used_names += [node.on_timeout for node in self.nodes if node.on_timeout]
        unknown_names = sorted({name for name in used_names if name not in nodes})
        if unknown_names:
            raise ValueError(f"there is no node {', '.join(map(repr, unknown_names[:10]))}")
        return self

    @cached_property
    def by_id(self) -> dict[str, Node]:
        """Return the nodes by their ids, in order."""
        return {node.id: node for node in self.nodes}

    def format_node(self, name: str) -> str:
        """Return the node *name* with its title, or *name* itself if there is no such node."""
        node = self.by_id.get(name)
        return name if node is None else node.named

    def format_nodes(self, names: Sequence[str]) -> list[str]:
        """Return the nodes *names* as in `format_node`; a single task also has its label."""
        if self.has_tasks and len(names) == 1 and (label := self.by_id[names[0]].label):
            return [f"{names[0]}: {label}"]
        return [self.format_node(name) for name in names]

    @cached_property
    def order(self) -> dict[str, int]:
        """Return the index of each node in the order of first mention."""
        return {node.id: index for index, node in enumerate(self.nodes)}

    @cached_property
    def urgency(self) -> dict[str, int]:
        """Return the rank of each node among the nodes that may start at the same time.

        The task whose longest path to the end weighs most comes first; equal tasks keep the order
        of the list.
        """
        return {name: rank for rank, name in enumerate(self.by_urgency)}

    @cached_property
    def by_urgency(self) -> tuple[str, ...]:
        """Return the nodes in the order of `urgency`."""
        if not self.has_tasks:
            return tuple(self.order)
        weight = self._compute_weights()
        return tuple(sorted(self.order, key=lambda name: (-weight[name], self.order[name])))

    @cached_property
    def by_role(self) -> dict[str, frozenset[str]]:
        """Return the tasks of each role."""
        by_role: dict[str, set[str]] = {}
        for node in self.nodes:
            if node.task is not None and node.task.role is not None:
                by_role.setdefault(node.task.role, set()).add(node.id)
        return {role: frozenset(names) for role, names in by_role.items()}

    @cached_property
    def with_budget(self) -> tuple[str, ...]:
        """Return the tasks that have a budget of their own, in order."""
        return tuple(
            node.id for node in self.nodes if node.task is not None and node.task.budget.is_limited
        )

    @cached_property
    def spares(self) -> dict[str, int]:
        """Return how many predecessors may fail, for each task that does not need all of them."""
        spares = {}
        for node in self.nodes:
            if node.task is not None and node.task.needs != "all":
                count = sum(not self.is_fix(source, node.id) for source in self.incoming[node.id])
                spares[node.id] = count - (1 if node.task.needs == "any" else node.task.needs)
        return spares

    def is_fix(self, name: str, judge: str) -> bool:
        """Return whether the task *name* fixes what *judge* has refused."""
        task = self.by_id[name].task
        return task is not None and task.fixes == judge

    def find_hopeless(
        self, failed: Collection[str], has_started: Callable[[str], bool]
    ) -> set[str]:
        """Return the *failed* tasks, and those that can't be done without them."""
        hopeless_names, missing_counts = set(failed), Counter[str]()
        stack = list(hopeless_names)
        while stack:
            name = stack.pop()
            for target in self.forward[name]:
                missing_counts[target] += 1
                may_miss = 0 if self.is_fix(name, target) else self.spares.get(target, 0)
                is_lost = missing_counts[target] > may_miss and target not in hopeless_names
                if is_lost and not has_started(target):
                    hopeless_names.add(target)
                    stack.append(target)
        return hopeless_names

    def is_needed(
        self, name: str, hopeless: Collection[str], has_started: Callable[[str], bool]
    ) -> bool:
        """Return whether a task still needs the failed task *name*, or no task follows it."""
        seen_names, stack = {name}, [name]
        while stack:
            targets = self.forward[stack.pop()]
            waiting_names = [target for target in targets if not has_started(target)]
            if not targets or any(target not in hopeless for target in waiting_names):
                return True
            stack += [target for target in waiting_names if target not in seen_names]
            seen_names.update(waiting_names)
        return False

    def _compute_weights(self) -> dict[str, float]:
        """Return the weight of the longest path from each node to the end, including the node."""
        weights: dict[str, float] = {}
        for root in self.by_id:
            stack = [root]
            while stack:
                name = stack[-1]
                missing_names = [target for target in self.forward[name] if target not in weights]
                if missing_names:
                    stack += missing_names
                    continue
                stack.pop()
                node = self.by_id[name]
                weight = node.task.weight if node.task is not None else 1.0
                weights[name] = weight + max(
                    (weights[next_name] for next_name in self.forward[name]), default=0.0
                )
        return weights

    @cached_property
    def outgoing(self) -> dict[str, tuple[int, ...]]:
        """Return the indexes in ``edges`` of the edges that leave each node."""
        outgoing: dict[str, list[int]] = {node.id: [] for node in self.nodes}
        for index, edge in enumerate(self.edges):
            outgoing[edge.source].append(index)
        return {name: tuple(indexes) for name, indexes in outgoing.items()}

    @cached_property
    def incoming(self) -> dict[str, tuple[str, ...]]:
        """Return the sources of the edges that lead to each node, each once, in text order."""
        sources_by_target: dict[str, dict[str, None]] = {node.id: {} for node in self.nodes}
        for edge in self.edges:
            sources_by_target[edge.target][edge.source] = None
        return {name: tuple(sources) for name, sources in sources_by_target.items()}

    @cached_property
    def labeled(self) -> frozenset[str]:
        """Return the nodes with outgoing labeled edges; only those can be choices."""
        return frozenset(edge.source for edge in self.edges if edge.label)

    @cached_property
    def forward(self) -> dict[str, tuple[str, ...]]:
        """Return, for each node, the targets of its edges that do not close a loop."""
        return {
            name: tuple(
                self.edges[index].target for index in indexes if index not in self.back_edges
            )
            for name, indexes in self.outgoing.items()
        }

    @cached_property
    def back_edges(self) -> frozenset[int]:
        """Return the indexes in ``edges`` of the edges that close a loop.

        A depth-first search starts at the entries, then at the nodes that errors and time limits
        jump to, then at the rest in order, and follows edges in text order. An edge to a node on
        the current path is a back edge. The other edges form no loop.
        """
        back_edges: set[int] = set()
        path_marks: dict[str, bool] = {}
        for root in self._iter_roots():
            if root in path_marks:
                continue
            path_marks[root] = True
            path = [(root, iter(self.outgoing[root]))]
            while path:
                name, indexes = path[-1]
                for index in indexes:
                    target = self.edges[index].target
                    if path_marks.get(target):
                        back_edges.add(index)
                    elif target not in path_marks:
                        path_marks[target] = True
                        path.append((target, iter(self.outgoing[target])))
                        break
                else:
                    path_marks[name] = False
                    path.pop()
        return frozenset(back_edges)

    @cached_property
    def back_jumps(self) -> frozenset[str]:
        """Return the nodes whose ``onTimeout`` closes a loop.

        Nodes are checked in order: a jump closes a loop if its target leads back to its node along
        forward edges and earlier jumps that do not close a loop. The other jumps form no loop, so
        every loop is counted.
        """
        back_jumps: set[str] = set()
        targets_by_name = {name: list(targets) for name, targets in self.forward.items()}
        for node in self.nodes:
            if node.on_timeout is None:
                continue
            seen_names, stack = {node.on_timeout}, [node.on_timeout]
            while stack and node.id not in seen_names:
                new_names = {
                    target for target in targets_by_name[stack.pop()] if target not in seen_names
                }
                seen_names |= new_names
                stack += new_names
            if node.id in seen_names:
                back_jumps.add(node.id)
            else:
                targets_by_name[node.id].append(node.on_timeout)
        return frozenset(back_jumps)

    def _iter_roots(self) -> Iterator[str]:
        """Yield the nodes to search from; their order decides which edges close a loop."""
        yield from self.entries
        if self.on_error:
            yield self.on_error
        yield from (node.on_timeout for node in self.nodes if node.on_timeout)
        yield from self.by_id

    @cached_property
    def reachable(self) -> frozenset[str]:
        """Return the ids of the nodes that a run can reach."""
        seen_names = set(self.entries) | ({self.on_error} if self.on_error else set())
        stack = list(seen_names)
        while stack:
            for target in self.list_targets(stack.pop()):
                if target not in seen_names:
                    seen_names.add(target)
                    stack.append(target)
        return frozenset(seen_names)

    def list_targets(self, name: str) -> list[str]:
        """Return the nodes that can follow *name*: along its edges, or after its timeout."""
        targets = [self.edges[index].target for index in self.outgoing[name]]
        jump = self.by_id[name].on_timeout
        return targets if jump is None else [*targets, jump]


class TaskExpansion(Frozen):
    """Tasks to add to a graph; frozen. Only its edges may name nodes that the graph already has."""

    nodes: tuple[Node, ...] = Field(min_length=1)
    edges: tuple[Edge, ...] = ()
    """Edges between the new nodes, and from and to nodes that are in the graph already."""
    steps: tuple[Step, ...] = ()
    """The steps of the new agent nodes, in their order."""

    @property
    def added_by(self) -> str | None:
        """Return the node whose answer added the tasks; None: no answer did.

        New nodes without a new predecessor wait for that node, and it is their first source.
        """
        new_names = {node.id for node in self.nodes}
        later_names = {edge.target for edge in self.edges if edge.source in new_names}
        first_names = new_names - later_names
        sources = (edge.source for edge in self.edges if edge.target in first_names)
        return next(sources, None)

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data without default values."""
        return self.model_dump(mode="json", exclude_defaults=True, by_alias=True)


def expand_graph(graph: Graph, expansion: TaskExpansion) -> Graph:
    """Return *graph* with *expansion* added.

    Raises:
        ValueError: a node is in the graph already, or an edge refers to an unknown node.
    """
    fields = {spec.key: getattr(graph, name) for name, spec in Graph.model_fields.items()}
    update = {
        "nodes": (*graph.nodes, *expansion.nodes),
        "edges": (*graph.edges, *expansion.edges),
    }
    try:
        return Graph(**{**fields, **update})
    except ValidationError as error:
        raise ValueError(error.errors()[0]["msg"]) from None
