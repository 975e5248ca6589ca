"""Charts of runs that were never made, for the tests of what draws them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sequencer.history.spans import build_timeline, compute_figures
from sequencer.history.story import build_story
from sequencer.model.graph.graph import Graph, Node, NodeKind
from sequencer.model.graph.task import TaskTraits
from sequencer.model.step import Step
from sequencer.model.workflow import Workflow
from sequencer.plugins.drawing.gantt import Gantt, build_chart
from tests.unit.history.journal_facts import NOON_S, Told

HOSTILE = "</text><script>&\"'\x1b[2J\u202e"


def team(roles: Mapping[str, str], more: Iterable[str] = ()) -> Graph:
    """Return a team's graph: tasks with roles, and *more* tasks that have none."""
    tasks = {**roles, **dict.fromkeys(more, None)}
    nodes = tuple(
        Node(id=name, kind=NodeKind.AGENT, task=TaskTraits(role=role))
        for name, role in tasks.items()
    )
    return Graph(nodes=nodes, entries=(nodes[0].id,), is_team=True, max_parallel=2)


def chart(
    told: Told,
    *,
    title: str = "demo · complete",
    graph: Graph | None = None,
    places: int | None = None,
    now: float = 1000,
) -> Gantt:
    """Return the chart of what was *told*, looked at *now*, in seconds since noon."""
    timeline = build_timeline(build_story(told.facts), NOON_S + now)
    steps = () if graph is None else tuple(Step(name=node.id) for node in graph.nodes)
    workflow = None if graph is None else Workflow("demo", steps, kind="graph", graph=graph)
    return build_chart(title, timeline, compute_figures(timeline, places), workflow)


def side_by_side() -> Told:
    """Tell a plan of 2 s, three parts beside each other, and what joins them until 10 s."""
    told = Told().run("plan", 0, 2)
    for name in ("parser", "tests", "notes"):
        told.claim(name, 2, ["plan"])
    told.end("notes", 2, 3).end("tests", 2, 5).end("parser", 2, 8)
    return told.run("join", 8, 10, ["parser", "tests", "notes"])


def troubled() -> Told:
    """Tell of tries, a person, a lost process and what was given back, until 100 s."""
    told = Told().claim("flaky", 0).end("flaky", 0, 10, "failed")
    told.claim("flaky", 30, None, attempt=2).end("flaky", 30, 50, attempt=2)
    told.claim("lost", 0)
    told.tell("taken-over", "lost", 40, token=told.tokens["lost"], attempt=1)
    told.claim("lost", 40, None, attempt=2).end("lost", 40, 45, "released", attempt=2)
    told.claim("lost", 45, None, attempt=3).end("lost", 45, 50, attempt=3)
    told.tell("asked", "fine", 50, {"from": ["flaky", "lost"]}, token=90)
    told.tell("answered", "fine", 90, token=90)
    return told.run("publish", 90, 100, ["fine"])
