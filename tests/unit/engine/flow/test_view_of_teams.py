"""What a person sees of a team's run: what was used, and what was added under way."""

from __future__ import annotations

from typing import Any

from sequencer.engine.view import FlowView, NodeState, Story, view_of
from sequencer.model.head import Head
from sequencer.model.net.graph import Edge, Graph, Growth, Node, NodeKind
from sequencer.model.net.marking import Marking
from sequencer.model.team import TaskTraits
from sequencer.model.transitions import Event

AT = "2026-11-22T12:00:0{}Z"


def node(name: str, *before: str) -> Node:
    return Node(id=name, kind=NodeKind.AGENT, label=name, task=TaskTraits(blocked_by=before))


GRAPH = Graph(
    nodes=(node("plan"), node("build", "plan")),
    edges=(Edge(source="plan", target="build"),),
    entries=("plan",),
    is_team=True,
    max_parallel=2,
)


def fact(event: Event, step: str, second: int = 0, **outcome: Any) -> dict[str, Any]:
    told = {"event": str(event), "step": step, "attempt": 1, "at": AT.format(second)}
    return {**told, "outcome": outcome}


def seen(marking: Marking, *facts: dict[str, Any]) -> FlowView:
    head = Head(
        run_id="r",
        workflow_name="w",
        workflow_digest="sha256:0",
        expected_step="plan",
        last_update=AT.format(0),
    )
    return view_of("t", GRAPH, head, marking, facts)


def test_tokens_are_summed_over_attempts() -> None:
    story = Story()
    first = {"input_tokens": 100, "output_tokens": 20, "seconds": 1.0}
    story.keep(fact(Event.CLAIMED, "plan"))
    story.keep(fact(Event.FAILED, "plan", usage=first, error="x"))
    story.keep(fact(Event.SUCCEEDED, "plan", usage={"output_tokens": 3}))
    story.keep(fact(Event.RELEASED, "build", usage={"input_tokens": 7}))
    used = {name: told.usage for name, told in story.nodes.items()}
    tokens = {name: one.input_tokens + one.output_tokens for name, one in used.items()}
    assert tokens == {"plan": 123, "build": 7}


def test_what_was_added_is_seen_and_its_edges_are() -> None:
    marking = Marking(GRAPH)
    growth = Growth(
        nodes=(node("extra"),),
        edges=(Edge(source="plan", target="extra"), Edge(source="extra", target="build")),
    )
    marking.apply(["grow", growth.as_json()])
    found = seen(
        marking,
        fact(Event.GROWN, "plan", tasks=["extra"]),
        fact(Event.CLAIMED, "extra") | {"outcome": {"from": ["plan"]}},
        fact(Event.SUCCEEDED, "extra", usage={"input_tokens": 5}, output="added"),
    )
    assert [one.node.id for one in found.nodes] == ["plan", "build", "extra"]
    assert [node.id for node in found.graph.nodes] == ["plan", "build", "extra"]
    last = found.nodes[-1]
    assert (last.state, last.tokens, last.last_line) == (NodeState.DONE, 5, "added")
    assert found.followed == frozenset({1})
