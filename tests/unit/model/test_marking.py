from __future__ import annotations

from typing import Any

import pytest

from sequencer.model.net.graph import Graph
from sequencer.model.net.marking import Active, FlowStatus, Marking
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


def test_a_token_may_start_its_node_when_nothing_can_still_come() -> None:
    marking = marked("a --> b --> c", "a")
    assert startable(marking) == {"a"}
    assert [marking.is_live(name) for name in "abc"] == [True] * 3
    run(marking, "a")
    assert startable(marking) == {"b"}
    assert not marking.is_live("a")
    run(marking, "b")
    run(marking, "c")
    assert marking.is_over
    assert marking.next_startable() is None


def test_a_join_waits_for_the_longer_branch() -> None:
    marking = marked("a --> b --> b2 --> j; a --> c --> j", "a")
    run(marking, "a")
    run(marking, "c")
    assert (waits(marking)["j"], startable(marking)) == (["c"], {"b"})
    run(marking, "b")
    assert startable(marking) == {"b2"}
    run(marking, "b2")
    assert (waits(marking)["j"], startable(marking)) == (["c", "b2"], {"j"})


def test_a_join_does_not_wait_for_a_way_that_was_not_taken() -> None:
    marking = marked("q --> a --> j; q --> b --> j", "q")
    marking.apply(["start", "q"])
    marking.apply(["token", "a", "q"])
    assert not marking.may_start("a"), "q is still running"
    marking.apply(["leave", "q"])
    assert startable(marking) == {"a"}
    run(marking, "a")
    assert startable(marking) == {"j"}


def test_a_token_over_a_back_edge_is_not_waited_for() -> None:
    marking = marked("s --> a --> k --> a; k --> j; s --> b --> j", "s")
    assert {marking.graph.edges[place].target for place in marking.graph.back_edges} == {"a"}
    run(marking, "s")
    assert startable(marking) == {"a", "b"}
    run(marking, "b")
    run(marking, "a")
    assert startable(marking) == {"k"}
    marking.apply(["start", "k"])
    marking.apply(["token", "a", "k"])
    marking.apply(["leave", "k"])
    assert startable(marking) == {"a"}, "j waits for what may still come through a and k"


def test_a_node_never_runs_twice_at_once() -> None:
    marking = marked("a --> b", "a")
    marking.apply(["start", "a"])
    marking.apply(["token", "a", "b"])
    assert not marking.may_start("a")
    assert marking.next_startable() is None
    marking.apply(["leave", "a"])
    assert marking.next_startable() == "a"


def test_each_source_is_kept_once_in_the_order_of_arrival() -> None:
    marking = marked("a & b --> j")
    for source in ("b", "a", "b", None, "a"):
        marking.apply(["token", "j", source])
    assert waits(marking) == {"j": ["b", "a"]}
    marking.apply(["start", "j"])
    assert marking.active == {"j": Active(("b", "a"))}


def test_two_edges_between_two_nodes_are_two_ways() -> None:
    marking = marked("a -->|x| j; a -->|y| j; b --> j", "a", "b")
    marking.apply(["start", "a"])
    marking.apply(["token", "j", "a"])
    marking.apply(["leave", "a"])
    assert startable(marking) == {"b"}
    run(marking, "b")
    assert startable(marking) == {"j"}


def test_the_first_in_order_starts_first_whatever_it_is() -> None:
    text = "b; a((A)); c{{C}}; d"
    marking = marked(text, "d", "c", "a", "b")
    assert marking.next_startable() == "b"
    assert marking.next_startable(agents=False) == "a"
    started = []
    while (name := marking.next_startable()) is not None:
        started.append(name)
        marking.apply(["start", name])
    assert started == ["b", "a", "c", "d"]


def test_agents_can_be_left_out() -> None:
    marking = marked("b; a", "a", "b")
    assert marking.next_startable(agents=False) is None
    assert marking.next_startable() == "b"


def test_what_may_start_no_more_is_not_offered() -> None:
    marking = marked("a --> j", "j")
    assert marking.next_startable() == "j"
    marking.apply(["token", "a", None])
    assert marking.next_startable() == "a"
    run(marking, "a")
    assert marking.next_startable() == "j"


def test_nothing_starts_when_the_run_has_ended() -> None:
    marking = marked("a", "a")
    marking.apply(["end", "failed"])
    assert (marking.next_startable(), marking.may_start("a")) == (None, False)


def test_claims_and_failures_are_counted_in_an_execution() -> None:
    marking = marked("a", "a")
    marking.apply(["start", "a"])
    marking.apply(["claim", "a", 7])
    assert marking.active["a"] == Active((), token=7, attempt=1)
    marking.apply(["fail", "a", "2026-01-01T00:00:01Z"])
    due = "2026-01-01T00:00:01Z"
    assert marking.active["a"] == Active((), attempt=1, failures=1, due=due)
    marking.apply(["claim", "a", 8])
    assert marking.active["a"] == Active((), token=8, attempt=2, failures=1)
    marking.apply(["drop", "a"])
    assert marking.active["a"] == Active((), attempt=2, failures=1)


def test_an_attempt_that_met_a_limit_counts() -> None:
    marking = marked("a", "a")
    marking.apply(["start", "a"])
    marking.apply(["claim", "a", 1])
    marking.apply(["drop", "a", "2026-01-01T00:00:01Z"])
    assert marking.active["a"] == Active((), attempt=1, due="2026-01-01T00:00:01Z")


def test_a_question_has_a_token_and_dates() -> None:
    marking = marked("h{{H}}", "h")
    marking.apply(["start", "h"])
    marking.apply(["ask", "h", 3, "2026", "2027"])
    assert marking.active["h"] == Active((), token=3, since="2026", due="2027")


def test_an_output_is_the_latest_and_an_empty_one_is_none() -> None:
    marking = marked("a")
    marking.apply(["done", "a", "0-1"])
    marking.apply(["done", "a", "1-2", "k"])
    assert (marking.outputs, marking.done, marking.keys) == ({"a": "1-2"}, {"a": 2}, {"k": "a"})
    marking.apply(["done", "a", None])
    assert (marking.outputs, marking.done) == ({}, {"a": 3})


def test_the_last_writer_of_a_key_is_the_last_one_in_the_map() -> None:
    marking = marked("a; b; c")
    for name, key in (("a", "m.x"), ("b", "k"), ("c", "m.y"), ("b", "m.x"), ("a", "mx")):
        marking.apply(["done", name, "0-1", key])
    assert list(marking.keys.items()) == [("k", "b"), ("m.y", "c"), ("m.x", "b"), ("mx", "a")]
    marking.apply(["done", "c", "0-1", "m"])
    assert list(marking.keys.items()) == [("k", "b"), ("mx", "a"), ("m", "c")]


def test_after_an_error_every_token_is_gone() -> None:
    marking = marked("a --> j; b --> j; h", "a", "b")
    marking.apply(["start", "a"])
    marking.apply(["clear"])
    assert marking.is_over
    assert not any(marking.is_live(name) for name in "abjh")
    assert marking.next_startable() is None
    marking.apply(["token", "j", None])
    assert startable(marking) == {"j"}


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


def test_a_limit_that_ended_the_run_counts_anew_after_it_was_put_back() -> None:
    counts = {}
    for status in ("failed", "timed_out", "max_iterations"):
        marking = marked("a", "a")
        marking.apply(["loop", 3])
        marking.apply(["busy", 500, None])
        marking.apply(["halt", status])
        marking.apply(["restore"])
        counts[status] = (marking.iterations, marking.busy_ms)
    assert counts == {"failed": (3, 500), "timed_out": (3, 0), "max_iterations": (0, 500)}


def test_the_words_of_operations_that_only_note_something() -> None:
    marking = marked("a")
    marking.apply(["loop", 4])
    marking.apply(["error", {"node": "a"}])
    marking.apply(["busy", 12, "2026"])
    marking.apply(["end", "completed_after_error"])
    assert (marking.iterations, marking.error) == (4, {"node": "a"})
    assert (marking.busy_ms, marking.busy_since) == (12, "2026")
    assert marking.status is FlowStatus.COMPLETED_AFTER_ERROR


def test_an_execution_is_written_without_what_it_does_not_have() -> None:
    assert Active(("a",)).as_json() == {"from": ["a"]}
    full = Active(("a", "b"), token=1, attempt=2, failures=3, due="d", since="s")
    assert Active.from_json(full.as_json()) == full


def test_a_marking_that_was_put_together_knows_what_may_start() -> None:
    made = graph("a --> b --> j; c --> j; j --> k((K))")
    marking = Marking(made, waiting={"j": {"c": None}, "k": {}}, active={"a": Active(())})
    assert startable(marking) == set()
    assert [name for name in made.by_id if marking.is_live(name)] == ["a", "b", "j", "k"]
    marking.apply(["leave", "a"])
    assert startable(marking) == {"j"}


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
    while (name := marking.next_startable() or "") != "":
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
def test_each_edge_is_looked_at_as_often_however_large_the_graph_is(shape: Any) -> None:
    small, large = shape(200), shape(400)
    per_edge = [looks(made) / len(made.edges) for made in (small, large)]
    assert per_edge == [2.0, 2.0], "once when a token may come through it, once when none can"


def test_a_wide_join_is_offered_once_and_not_for_each_token() -> None:
    made = fan(300)
    marking = Marking(made)
    offered: list[str] = []
    offer = marking._offer

    def counting(name: str) -> None:
        offered.append(name)
        offer(name)

    marking._offer = counting  # type: ignore[method-assign]
    marking.apply(["token", "s", None])
    while (name := marking.next_startable()) is not None:
        run(marking, name)
    # A token that arrives asks, a node that ends asks, and so does the last one to wither.
    assert len(offered) <= 4 * len(made.nodes)
