"""Teams whose runs tell something."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from sequencer.engine.attempt import Attempt
from sequencer.model.graph.graph import Edge, Graph, Node, NodeKind
from sequencer.model.graph.task import TaskTraits
from sequencer.model.head import Head
from sequencer.model.step import Step
from sequencer.model.transitions import Event, Fact, Transition
from sequencer.plugins.posting.protocol import Activity
from sequencer.store.file import FileStore
from tests.continued import make_up
from tests.unit.posting.runs import Box, attempt_at

TASKS = {"plan": ("Read and plan", "researcher"), "build": ("Build it", "implementer")}


def node(name: str, *before: str, is_task: bool = True) -> Node:
    subject, role = TASKS.get(name, ("", None))
    traits = TaskTraits(role=role, blocked_by=before) if is_task else None
    return Node(id=name, kind=NodeKind.AGENT, label=subject, task=traits)


def team(*nodes: Node, size: int = 3) -> Graph:
    edges = [
        Edge(source=name, target=one.id)
        for one in nodes
        for name in (one.task.blocked_by if one.task else ())
    ]
    entries = tuple(one.id for one in nodes if one.task is None or not one.task.blocked_by)
    return Graph(nodes=nodes, edges=tuple(edges), entries=entries, is_team=True, max_parallel=size)


GRAPH = team(node("plan"), node("build"))


def tell(store: FileStore, event: Event, step: str, **outcome: Any) -> int:
    """Add one record about *step*; return its revision."""
    fact = Fact(event, step, step_index=0, token=1, attempt=1, outcome=outcome or None)

    def change(head: Head | None) -> Transition:
        assert head is not None
        return Transition(head, (fact,))

    return make_up(store, change).revision


def named(name: str, subject: str | None = "") -> Attempt:
    """Return an attempt at a task; its subject is that of `GRAPH` where none is given."""
    known = subject == "" and name in TASKS
    subject = node(name).subject if known else subject
    token = 1 + sum(map(ord, name))
    return replace(attempt_at(Step(name=name)), token=token, subject=subject)


def thoughts(box: Box) -> list[Activity]:
    """Return what was posted that may be dropped."""
    return [post.activity for post in box.posts if post.key is None]
