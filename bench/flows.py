"""Flows for the bench: a chart like those that people draw, and fans of any width.

A fan is the hardest graph for a scheduler: every node but two runs between the same two,
so the last one waits for each of the others, and all of them wait for a place.
"""

from __future__ import annotations

from collections.abc import Callable

from bench.project import Marks, NoOp, NoOpAgents, run_of
from sequencer import Run, Step, Workflow
from sequencer.model.graph.graph import Edge, Graph, Node, NodeKind
from sequencer.project.project import Project
from sequencer.project.runs import make_store

PLACES = 8
"""Nodes that run at once."""
REVIEWS = 8
TESTS = 8


def chart() -> str:
    """Return a chart of 30 nodes and 39 edges: a group, a fan, a gate, loops and a class."""
    reviews = range(REVIEWS)
    lines = ["flowchart TD", "  %% how a change gets out", "  begin((Begin)) --> plan[Plan it]"]
    lines += ["  subgraph review [Review it]"]
    lines += [f'    look{i}["Look at part {i} (of {REVIEWS})"] --> check{i}' for i in reviews]
    lines += ["  end"]
    lines += [f"  plan --> {' & '.join(f'look{i}' for i in reviews)}"]
    lines += [f"  check{i}[Check what was said of {i}] --> gather" for i in reviews]
    lines += ["  gather[Sum it up] --> gate{{Publish it?}}"]
    lines += ["  gate -->|approve| publish[Publish it]", "  gate -->|reject| plan"]
    lines += ['  gate -->|"needs tests"| test0[Write a test]']
    lines += [f"  test{i} -.-> test{i + 1}[Run test {i + 1}]" for i in range(TESTS - 1)]
    lines += [f"  test{TESTS - 1} -->|passed| gate", f"  test{TESTS - 1} -->|failed| test0"]
    lines += ["  publish ==> done((Done))"]
    lines += ["  classDef careful fill:#fdd,stroke:#333", "  class gate,publish careful"]
    return "\n".join(lines) + "\n"


def document() -> str:
    """Return a whole workflow file with that chart: front matter, and a section an agent."""
    agents = [f"{kind}{i}" for i in range(REVIEWS) for kind in ("look", "check")]
    agents += ["plan", "gather", "publish", *(f"test{i}" for i in range(TESTS))]
    sections = [
        f"### {name}\n---\ndescription: What {name} is for\nmode: primary\n"
        f"output:\n  key: said.{name}\n---\nDo what {name} is for, and say what you found.\n"
        for name in agents
    ]
    front = "---\nid: bench\nname: Bench\nversion: 1.0.0\nretry: {maxAttempts: 2}\n---\n"
    return f"{front}\n# Bench\n\n```mermaid\n{chart()}```\n\n" + "\n".join(sections)


def fan(width: int) -> Workflow:
    """Return a workflow of *width* agents between a first and a last one."""
    middle = [f"n{i}" for i in range(width)]
    names = ["first", *middle, "last"]
    edges = [Edge(source="first", target=name) for name in middle]
    edges += [Edge(source=name, target="last") for name in middle]
    nodes = tuple(Node(id=name, kind=NodeKind.AGENT) for name in names)
    graph = Graph(nodes=nodes, edges=tuple(edges), entries=("first",))
    steps = tuple(Step(name=name, text="Do your part.\n") for name in names)
    return Workflow("fan", steps, kind="graph", graph=graph)


def flow_run(
    project: Project,
    workflow: Workflow,
    name: str,
    on_step: Callable[[int], None] | None = None,
) -> Run:
    """Return the run called *name* of *workflow*, as the assembly makes it, with no-op agents."""
    agents = NoOpAgents(NoOp(Marks(), on_step))
    return run_of(project, make_store(project.settings, name), name, agents, workflow)
