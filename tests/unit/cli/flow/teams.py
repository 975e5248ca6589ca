"""Teams to look at: tasks in a line each, and a run of them in any state."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from sequencer.history.view import FlowView, NodeState, NodeView
from sequencer.model.graph.graph import Edge, Graph, Node, NodeKind
from sequencer.model.graph.task import TaskTraits

NOW = datetime(2026, 11, 22, 12, 0, 0, tzinfo=UTC)
BEGAN, TWO_MINUTES_AGO = "2026-11-22T11:00:00Z", "2026-11-22T11:58:00Z"
PIPE: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "plan": ("Read and plan", "researcher", ()),
    "build": ("Implement the parser", "implementer", ("plan",)),
    "log": ("Write the changelog", "implementer", ("plan",)),
    "verify": ("Run all tests", "verifier", ("build",)),
    "commit": ("Commit it", "git-handler", ("verify", "log")),
}
"""Subject, role and blockers by task."""


def graph(tasks: Mapping[str, tuple[str, str, tuple[str, ...]]] = PIPE, size: int = 3) -> Graph:
    nodes = tuple(
        Node(
            id=name,
            kind=NodeKind.AGENT,
            label=subject,
            task=TaskTraits(role=role, blocked_by=before, active_form=f"{subject}, now"),
        )
        for name, (subject, role, before) in tasks.items()
    )
    edges = [Edge(source=b, target=name) for name, (_, _, all_) in tasks.items() for b in all_]
    entries = tuple(name for name, (_, _, before) in tasks.items() if not before)
    return Graph(nodes=nodes, edges=tuple(edges), entries=entries, is_team=True, max_parallel=size)


def of(made: Graph, nodes: Mapping[str, dict[str, Any]]) -> FlowView:
    """Return a run in which the named tasks are as said, and the others pending."""
    seen = tuple(replace(NodeView(node), **nodes.get(node.id, {})) for node in made.nodes)
    return FlowView("parser", made, seen, "running", began=BEGAN, latest="2026-11-22T11:59:00Z")


def view(**nodes: dict[str, Any]) -> FlowView:
    """Return a run of the usual tasks."""
    return of(graph(), nodes)


def at_work(**more: dict[str, Any]) -> FlowView:
    """Return the usual run: the plan is done, one task runs, one is tried again."""
    nodes: dict[str, dict[str, Any]] = {
        "plan": {
            "state": NodeState.DONE,
            "attempt": 1,
            "runs": 1,
            "seconds": 75.0,
            "cost_usd": 0.5,
            "tokens": 12_345,
            "last_line": "the plan is in plan.md",
        },
        "build": {"state": NodeState.RUNNING, "attempt": 1, "since": TWO_MINUTES_AGO},
        "log": {
            "state": NodeState.RETRYING,
            "attempt": 1,
            "seconds": 4.0,
            "due": "2026-11-22T12:01:02Z",
            "last_line": "HTTP 529",
        },
    }
    return view(**{name: nodes.get(name, {}) | more.get(name, {}) for name in PIPE})


def numbered(count: int, running: int = 3) -> FlowView:
    """Return a run of *count* tasks with long names, each blocked by two before it."""
    names = [f"sub-issue-{n}" for n in range(1, count + 1)]
    tasks = {
        name: (f"Implement part {n} of the whole", "implementer", tuple(names[max(0, n - 2) : n]))
        for n, name in enumerate(names)
    }
    half = count // 2
    nodes: dict[str, dict[str, Any]] = {}
    for name in names[:half]:
        nodes[name] = {"state": NodeState.DONE, "seconds": 4000.0, "last_line": "done " * 30}
        nodes[name] |= {"tokens": 1_234_567, "cost_usd": 1.25}
    for name in names[half : half + running]:
        nodes[name] = {"state": NodeState.RUNNING, "attempt": 2, "since": TWO_MINUTES_AGO}
    return of(graph(tasks), nodes)
