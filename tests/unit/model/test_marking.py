from __future__ import annotations

from typing import Any

import pytest

from sequencer.model.graph.graph import Graph
from sequencer.model.graph.marking import Active, FlowStatus, Marking
from tests.flows import fan, graph


def marked(text: str, *waiting: str, **settings: Any) -> Marking:
    made = Marking(graph(text, **settings))
    for name in waiting:
        made.apply(["token", name, None])
    return made


def run(marking: Marking, name: str) -> None:
    """Let *name* begin and end, and follow all its edges."""
    marking.apply(["start", name])
    marking.apply(["done", name, None])
    for place in marking.graph.outgoing[name]:
        marking.apply(["token", marking.graph.edges[place].target, name])
    marking.apply(["leave", name])


def waits(marking: Marking) -> dict[str, list[str]]:
    return {name: list(sources) for name, sources in marking.waiting.items()}


def startable(marking: Marking) -> set[str]:
    return {name for name in marking.graph.by_id if marking.may_start(name)}


@pytest.mark.parametrize("status", ["failed", "timed_out", "max_iterations"])
def test_tokens_are_put_back_as_they_were(status: str) -> None:
    marking = marked("s --> a & b --> j; j --> s", "s")
    run(marking, "s")
    run(marking, "a")
    marking.apply(["start", "b"])
    marking.apply(["claim", "b", 5])
    marking.apply(["token", "b", "s"])
    marking.apply(["halt", status])
    assert (marking.is_over, marking.status) == (True, FlowStatus(status))
    assert marking.ended_at == [["b", ["s"], True], ["j", ["a"], False], ["b", ["s"], False]]
    marking.apply(["restore"])
    assert (marking.status, marking.ended_at) == (FlowStatus.RUNNING, [])
    assert waits(marking) == {"j": ["a"], "b": ["s"]}
    assert marking.active == {"b": Active(("s",))}
    assert startable(marking) == set()
    marking.apply(["leave", "b"])
    assert startable(marking) == {"b"}


# --- cost ----------------------------------------------------------------------------------


class Counting(dict[str, tuple[str, ...]]):
    """The edges of a graph; counts those that are looked at."""

    looked = 0

    def __getitem__(self, name: str) -> tuple[str, ...]:
        found = super().__getitem__(name)
        self.looked += len(found)
        return found


def looks(made: Graph) -> int:
    """Return how many edges are looked at until *made* has run to its end."""
    counting = made.__dict__["forward"] = Counting(made.forward)
    marking = Marking(made)
    for name in made.entries:
        marking.apply(["token", name, None])
    while (name := marking.find_next_startable() or "") != "":
        run(marking, name)
    assert marking.is_over
    assert sum(marking.done.values()) == len(made.nodes)
    return counting.looked


def chain(length: int) -> Graph:
    return graph("\n".join(f"n{place} --> n{place + 1}" for place in range(length)))


def ladder(length: int) -> Graph:
    """Return a fork and a join, one pair after the other."""
    rungs = [f"n{at} --> a{at} & b{at} & c{at} --> n{at + 1}" for at in range(length)]
    return graph("\n".join(rungs))


@pytest.mark.parametrize("shape", [fan, chain, ladder])
def test_edges_are_visited_equally_often_in_graphs_of_any_size(shape: Any) -> None:
    small, large = shape(200), shape(400)
    per_edge = [looks(made) / len(made.edges) for made in (small, large)]
    assert per_edge == [2.0, 2.0], "once when a token may come through it, once when none can"
