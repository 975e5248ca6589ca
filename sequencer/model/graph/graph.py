"""A graph workflow: nodes, the edges that a run follows between them, and its limits.

Neutral data: whether it came from a flowchart or from a list of tasks is not to be seen
here. What a run does with it is decided in `model.marking` and `model.flow_rules`; what an
agent node runs is the workflow's step of the same name.
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
    """A person is asked."""
    MARKER = "marker"
    """Nothing; the token passes."""
    DECISION = "decision"
    """Nothing, and the output that reached it picks the branch."""


class Option(Frozen):
    """One answer that a person may choose."""

    label: str = Field(min_length=1, max_length=200)
    value: str = Field(min_length=1, max_length=200)
    """What the node's output is; the label, unless the author gave another one."""
    description: str = Field(default="", max_length=2000)


class Node(Frozen):
    """One node; frozen, compared by value."""

    id: Name
    kind: NodeKind
    label: str = ""
    """As the chart draws it."""
    description: str = ""
    question: str = ""
    """Of a human node: the text that is shown, templates included; its label if empty."""
    options: tuple[Option, ...] = ()
    """Of a human node; none: free text."""
    allows_custom_input: bool = False
    """Of a human node: any text is an answer, not only an option."""
    timeout_ms: int | None = Field(default=None, gt=0)
    """Of a human node: how long it waits. An agent's is in its step."""
    on_timeout: Name | None = None
    """Of a human node: where the run goes when nobody answered."""
    input: dict[str, Any] = Field(default_factory=dict)
    """What ``{{input.…}}`` means in its prompt; texts may hold templates."""
    output_key: str | None = Field(default=None, min_length=1, max_length=200)
    """Where in the state the output goes; dots make nested maps."""
    task: TaskTraits | None = None
    """The task that the node stands for, in a graph of tasks."""

    @property
    def works(self) -> bool:
        """Return whether it takes time: an agent runs or a person is asked."""
        return self.kind in (NodeKind.AGENT, NodeKind.HUMAN)

    @property
    def title(self) -> str:
        """Return what the chart draws in it; empty where that says no more than its id.

        >>> [Node(id="ab_c", kind=NodeKind.AGENT, label=text).title for text in ("Ab c?", "Test")]
        ['', 'Test']
        """
        told = " ".join(self.label.split())
        return "" if _plain(told) == _plain(self.id) else told

    @property
    def named(self) -> str:
        """Return its id with its title beside it, as people are told of it: `A (Unit tests)`.

        A table of tasks has a column for what a task is about, so that its id is enough.
        """
        title = "" if self.task is not None else self.title
        return f"{self.id} ({title})" if title else self.id

    @property
    def subject(self) -> str | None:
        """Return what a task is about, and whose it is; None: the node is no task."""
        if self.task is None:
            return None
        told = self.label or self.id
        return f"{told} ({self.task.role})" if self.task.role else told


def _plain(text: str) -> str:
    return "".join(filter(str.isalnum, text)).casefold()


class Edge(Frozen):
    """A way from one node to another."""

    source: Name
    target: Name
    label: str = ""
    """Empty: unlabelled."""


class Graph(Frozen):
    """Nodes in the order in which the chart first mentions them, and edges in text order."""

    nodes: tuple[Node, ...] = Field(min_length=1, max_length=MAX_NODES)
    edges: tuple[Edge, ...] = ()
    entries: tuple[Name, ...] = Field(min_length=1)
    """Where a run begins; several only where the entry is a group of nodes."""
    on_error: Name | None = None
    """The node that a failure for good jumps to, once a run."""
    max_iterations: int = Field(default=DEFAULT_MAX_ITERATIONS, ge=0, le=1_000_000)
    """How often back edges may be followed in one run, all together."""
    timeout_ms: int | None = Field(default=None, gt=0)
    """Of the time in which an agent is running or waits for its next try."""
    max_parallel: int | None = Field(default=None, ge=1, le=1000)
    """Agents at once, over all processes; None: only the processes' own limits."""
    state: dict[str, Any] = Field(default_factory=dict)
    """What the state is at the start."""
    has_tasks: bool = Field(default=False, alias="is_team")
    """Its nodes are tasks: one that fails for good stops only what it blocks, and among those
    that may start the one with the longest way to the end goes first."""

    @model_validator(mode="after")
    def _names_are_known(self) -> Self:
        known = self.by_id
        if len(known) != len(self.nodes):
            raise ValueError("two nodes have the same id")
        asked = [*self.entries, *filter(None, [self.on_error])]
        asked += [name for edge in self.edges for name in (edge.source, edge.target)]
        asked += [node.on_timeout for node in self.nodes if node.on_timeout]
        unknown = sorted({name for name in asked if name not in known})
        if unknown:
            raise ValueError(f"there is no node {', '.join(map(repr, unknown[:10]))}")
        return self

    @cached_property
    def by_id(self) -> dict[str, Node]:
        """Return the nodes by their ids, in order."""
        return {node.id: node for node in self.nodes}

    def named(self, name: str) -> str:
        """Return the node *name* with its title, or *name* itself if there is no such node."""
        node = self.by_id.get(name)
        return name if node is None else node.named

    def introduced(self, names: Sequence[str]) -> list[str]:
        """Return the nodes *names* as `named`; the only task has its label, too."""
        if self.has_tasks and len(names) == 1 and (label := self.by_id[names[0]].label):
            return [f"{names[0]}: {label}"]
        return [self.named(name) for name in names]

    @cached_property
    def order(self) -> dict[str, int]:
        """Return the place of each node in the order of first mention."""
        return {node.id: place for place, node in enumerate(self.nodes)}

    @cached_property
    def urgency(self) -> dict[str, int]:
        """Return in which order nodes start that may start at the same time: their place.

        Of tasks the one with the longest way to the end comes first, by weight, and
        the list decides between equals.
        """
        return {name: place for place, name in enumerate(self.by_urgency)}

    @cached_property
    def by_urgency(self) -> tuple[str, ...]:
        """Return the nodes in the order of `urgency`."""
        if not self.has_tasks:
            return tuple(self.order)
        left = self._weight_to_the_end()
        return tuple(sorted(self.order, key=lambda name: (-left[name], self.order[name])))

    @cached_property
    def by_role(self) -> dict[str, frozenset[str]]:
        """Return the tasks of each role."""
        found: dict[str, set[str]] = {}
        for node in self.nodes:
            if node.task is not None and node.task.role is not None:
                found.setdefault(node.task.role, set()).add(node.id)
        return {role: frozenset(names) for role, names in found.items()}

    @cached_property
    def with_budget(self) -> tuple[str, ...]:
        """Return the tasks that have a budget of their own, in order."""
        return tuple(
            node.id for node in self.nodes if node.task is not None and node.task.budget.is_limited
        )

    @cached_property
    def spares(self) -> dict[str, int]:
        """Return, for tasks that do not need all that they wait for, how many of it may fail."""
        found = {}
        for node in self.nodes:
            if node.task is not None and node.task.needs != "all":
                count = sum(not self.is_fix(source, node.id) for source in self.incoming[node.id])
                found[node.id] = count - (1 if node.task.needs == "any" else node.task.needs)
        return found

    def is_fix(self, name: str, judge: str) -> bool:
        """Return whether the task *name* fixes what *judge* has refused."""
        task = self.by_id[name].task
        return task is not None and task.fixes == judge

    def hopeless(self, failed: Collection[str], has_begun: Callable[[str], bool]) -> set[str]:
        """Return the tasks that have *failed*, and those that can't be done without them."""
        found, missing = set(failed), Counter[str]()
        pending = list(found)
        while pending:
            here = pending.pop()
            for target in self.forward[here]:
                missing[target] += 1
                may_miss = 0 if self.is_fix(here, target) else self.spares.get(target, 0)
                if missing[target] > may_miss and target not in found and not has_begun(target):
                    found.add(target)
                    pending.append(target)
        return found

    def is_needed(
        self, name: str, hopeless: Collection[str], has_begun: Callable[[str], bool]
    ) -> bool:
        """Return whether something still needs the failed task *name*, or nothing follows it."""
        seen, pending = {name}, [name]
        while pending:
            targets = self.forward[pending.pop()]
            waiting = [target for target in targets if not has_begun(target)]
            if not targets or any(target not in hopeless for target in waiting):
                return True
            pending += [target for target in waiting if target not in seen]
            seen.update(waiting)
        return False

    def _weight_to_the_end(self) -> dict[str, float]:
        """Return for each node what the longest way from its beginning to the end weighs."""
        left: dict[str, float] = {}
        for root in self.by_id:
            pending = [root]
            while pending:
                name = pending[-1]
                missing = [target for target in self.forward[name] if target not in left]
                if missing:
                    pending += missing
                    continue
                pending.pop()
                node = self.by_id[name]
                own = node.task.weight if node.task is not None else 1.0
                left[name] = own + max((left[n] for n in self.forward[name]), default=0.0)
        return left

    @cached_property
    def outgoing(self) -> dict[str, tuple[int, ...]]:
        """Return, for each node, the places in ``edges`` of those that leave it."""
        found: dict[str, list[int]] = {node.id: [] for node in self.nodes}
        for place, edge in enumerate(self.edges):
            found[edge.source].append(place)
        return {name: tuple(places) for name, places in found.items()}

    @cached_property
    def incoming(self) -> dict[str, tuple[str, ...]]:
        """Return, for each node, where its edges come from, each source once, in text order."""
        found: dict[str, dict[str, None]] = {node.id: {} for node in self.nodes}
        for edge in self.edges:
            found[edge.target][edge.source] = None
        return {name: tuple(sources) for name, sources in found.items()}

    @cached_property
    def without_labels(self) -> frozenset[str]:
        """Return the nodes that no labelled edge leaves."""
        labelled = {edge.source for edge in self.edges if edge.label}
        return frozenset(self.by_id.keys() - labelled)

    @cached_property
    def forward(self) -> dict[str, tuple[str, ...]]:
        """Return, for each node, where its edges lead that close no loop."""
        return {
            name: tuple(
                self.edges[place].target for place in places if place not in self.back_edges
            )
            for name, places in self.outgoing.items()
        }

    @cached_property
    def back_edges(self) -> frozenset[int]:
        """Return the places in ``edges`` of those that close a loop.

        A depth-first search from the entries, then from the nodes that errors and time
        limits jump to, then from the rest in order, edges in text order: an edge to a node
        on the present path is a back edge. What remains has no loop.
        """
        found: set[int] = set()
        on_path: dict[str, bool] = {}
        for root in self._roots():
            if root in on_path:
                continue
            on_path[root] = True
            path = [(root, iter(self.outgoing[root]))]
            while path:
                name, places = path[-1]
                for place in places:
                    target = self.edges[place].target
                    if on_path.get(target):
                        found.add(place)
                    elif target not in on_path:
                        on_path[target] = True
                        path.append((target, iter(self.outgoing[target])))
                        break
                else:
                    on_path[name] = False
                    path.pop()
        return frozenset(found)

    @cached_property
    def back_jumps(self) -> frozenset[str]:
        """Return the nodes whose ``onTimeout`` closes a loop.

        In order: a jump is one if its target leads to its node along forward edges and the
        jumps before it that close none. What remains has no loop, so each loop is counted.
        """
        found: set[str] = set()
        ahead = {name: list(targets) for name, targets in self.forward.items()}
        for node in self.nodes:
            if node.on_timeout is None:
                continue
            seen, pending = {node.on_timeout}, [node.on_timeout]
            while pending and node.id not in seen:
                new = {target for target in ahead[pending.pop()] if target not in seen}
                seen |= new
                pending += new
            if node.id in seen:
                found.add(node.id)
            else:
                ahead[node.id].append(node.on_timeout)
        return frozenset(found)

    def _roots(self) -> Iterator[str]:
        yield from self.entries
        if self.on_error:
            yield self.on_error
        yield from (node.on_timeout for node in self.nodes if node.on_timeout)
        yield from self.by_id

    @cached_property
    def reachable(self) -> frozenset[str]:
        """Return the ids that a run can get to."""
        seen = set(self.entries) | ({self.on_error} if self.on_error else set())
        pending = list(seen)
        while pending:
            name = pending.pop()
            ways = [self.edges[place].target for place in self.outgoing[name]]
            if (jump := self.by_id[name].on_timeout) is not None:
                ways.append(jump)
            for target in ways:
                if target not in seen:
                    seen.add(target)
                    pending.append(target)
        return frozenset(seen)


class TaskExpansion(Frozen):
    """One addition; frozen. It names nodes of the graph that it is added to in its edges only."""

    nodes: tuple[Node, ...] = Field(min_length=1)
    edges: tuple[Edge, ...] = ()
    """Of the new nodes: among each other, and from and to those that were there."""
    steps: tuple[Step, ...] = ()
    """Of the new nodes where an agent works, in their order."""

    @property
    def added_by(self) -> str | None:
        """Return the node whose answer has asked for it; None: it was nobody's answer.

        Whatever waits for nothing else that is new waits for that node, before all others.
        """
        own = {node.id for node in self.nodes}
        behind = {edge.target for edge in self.edges if edge.source in own}
        first = own - behind
        from_outside = (edge.source for edge in self.edges if edge.target in first)
        return next(from_outside, None)

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data, without what is as ever."""
        return self.model_dump(mode="json", exclude_defaults=True, by_alias=True)


def grown_graph(graph: Graph, growth: TaskExpansion) -> Graph:
    """Return *graph* with *growth*.

    Raises:
        ValueError: a node is there already, or an edge leads to one that is not.
    """
    fields = {spec.key: getattr(graph, name) for name, spec in Graph.model_fields.items()}
    more = {
        "nodes": (*graph.nodes, *growth.nodes),
        "edges": (*graph.edges, *growth.edges),
    }
    try:
        return Graph(**{**fields, **more})
    except ValidationError as error:
        raise ValueError(error.errors()[0]["msg"]) from None
