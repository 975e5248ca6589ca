from __future__ import annotations

import json

from sequencer.model.net.graph import Graph
from sequencer.model.net.marking import Active, Marking, Reference, carried
from sequencer.workflows.simulate import NodeScript, simulate
from tests.flows import graph, workflow


def reached(sources: tuple[str, ...], outputs: dict[str, Reference]) -> Reference | None:
    made: Graph = graph("a & b & c & m((M)) --> j")
    marking = Marking(made, active={"j": Active(sources)}, outputs=outputs)
    return carried(marking, "j")


def test_several_sources_are_a_map_in_the_order_of_their_arrival() -> None:
    found = reached(("b", "a", "c"), {"a": "0-1", "b": "1-2"})
    assert isinstance(found, dict)
    assert list(found.items()) == [("b", "1-2"), ("a", "0-1"), ("c", None)]


def test_what_was_merged_before_is_merged_flat() -> None:
    merged = {"a": "0-1", "b": "1-2"}
    assert reached(("m", "c"), {"m": merged, "c": "2-3"}) == {**merged, "c": "2-3"}
    assert reached(("m",), {"m": merged}) == merged


def test_joined_markers_one_after_the_other_do_not_multiply_what_they_hand_on() -> None:
    levels = 40
    lines = ["a & b --> m0((M))"]
    lines += [
        f"m{n} --> l{n}((L)) & r{n}((R)); l{n} & r{n} --> m{n + 1}((M))" for n in range(levels)
    ]
    lines += [f"m{levels} --> q{{Q}}; q -->|yes| x; q --> y"]
    found = simulate(
        workflow("\n".join(lines), entries=("a", "b")),
        {"a": NodeScript(("1",)), "b": NodeScript(("2",))},
    )
    chosen = next(line for line in found.trace if "done q" in line)
    assert json.loads(chosen.partition(" = ")[2]) == {"a": "1", "b": "2"}
