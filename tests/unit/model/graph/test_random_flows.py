"""Flows against the execution rules by brute force, and what holds of every flow."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import pytest

from sequencer import Event, Graph
from sequencer.model.graph.marking import FlowStatus
from sequencer.workflows.simulate import Replay, simulate
from tests.property.amounts import for_all
from tests.unit.model.graph.flow_oracle import Oracle
from tests.unit.model.graph.flow_rehearsal import Rehearsal, split_records
from tests.unit.model.graph.random_flows import Case, cases

EXAMPLES = 500
BEGUN = (Event.CLAIMED, Event.ASKED, Event.STARTED)
DONE = (Event.SUCCEEDED, Event.ANSWERED, Event.PASSED)
ENDS = {status.value for status in FlowStatus} - {"running", "cancelled"}


def replay(case: Case) -> Replay:
    return simulate(case.workflow, case.parts)


def ways(graph: Graph) -> set[tuple[str, str]]:
    jumps = {(node.id, node.on_timeout) for node in graph.nodes if node.on_timeout}
    return {(edge.source, edge.target) for edge in graph.edges} | jumps


def spans(found: Replay) -> Iterator[tuple[str, str]]:
    """Yield each begin and end of an execution as they happened."""
    for _, event, node, more in found.facts:
        if event in BEGUN and "retry" not in more:
            yield node, "begins"
        elif event in DONE or event is Event.EXPIRED:
            yield node, "ends"
        elif event is Event.DIVERTED:
            yield "", "all end"


def goes_as_the_rules_by_brute_force_say(case: Case, found: Replay) -> None:
    expected = Oracle(case.workflow, case.script).run()
    assert list(found.trace) == expected.trace
    assert (found.status, found.iterations) == (expected.status, expected.iterations)
    assert found.state == expected.state
    assert case.graph.back_edges == expected.back


def neither_ends_in_a_deadlock_nor_goes_on_for_ever(case: Case, found: Replay) -> None:
    assert found.status in ENDS
    limit = case.graph.max_iterations
    assert found.iterations <= limit + (found.status == "max_iterations")
    facts = [(event, node) for _, event, node, more in found.facts if "retry" not in more]
    begun = Counter(node for event, node in facts if event in BEGUN)
    # A token for each way back, one for the error node, and one for each jump ahead.
    more = found.iterations + 1 + sum(event is Event.EXPIRED for event, _ in facts)
    assert max(begun.values()) <= 1 + more


def runs_no_node_twice_at_once(case: Case, found: Replay) -> None:
    del case
    running: set[str] = set()
    for node, what in spans(found):
        if what == "begins":
            assert node not in running
            running.add(node)
        elif what == "ends":
            assert node in running
            running.discard(node)
        else:
            running.clear()


def runs_no_more_agents_at_once_than_may(case: Case, found: Replay) -> None:
    limit = case.graph.max_parallel or len(case.graph.nodes)
    running: set[str] = set()
    for _, event, node, _ in found.facts:
        if event is Event.CLAIMED:
            running.add(node)
            assert len(running) <= limit
        elif event in (Event.SUCCEEDED, Event.FAILED):
            running.discard(node)
        elif event is Event.DIVERTED:
            running.clear()


def takes_edges_from_nodes_that_were_done(case: Case, found: Replay) -> None:
    known, done = ways(case.graph), set[str]()
    first = {*case.graph.entries, case.graph.on_error}
    for _, event, node, more in found.facts:
        if event in DONE or event is Event.EXPIRED:
            done.add(node)
        if event in BEGUN and "retry" not in more:
            sources = more["from"]
            assert len(sources) == len(set(sources))
            assert set(sources) <= done
            assert {(source, node) for source in sources} <= known
            assert sources or node in first


EVERY_FLOW = (
    goes_as_the_rules_by_brute_force_say,
    neither_ends_in_a_deadlock_nor_goes_on_for_ever,
    runs_no_node_twice_at_once,
    runs_no_more_agents_at_once_than_may,
    takes_edges_from_nodes_that_were_done,
)
"""Asked of the same flows: making one up takes longer than all of these together."""


def test_every_flow_keeps_the_execution_rules() -> None:
    statuses: Counter[str] = Counter()
    words: Counter[str] = Counter()

    def check(case: Case) -> None:
        found = replay(case)
        for holds in EVERY_FLOW:
            holds(case, found)
        statuses[found.status] += 1
        words.update({line.split()[1] for line in found.trace})
        words["merged"] += any(" <- " in line for line in found.trace)

    # A property that only saw flows of one kind would show nothing.
    kinds = ("start", "done", "fail", "retry", "loop", "timeout", "onError", "maxIterations")
    wanted = Counter([*kinds, "workflow", "merged"] * 7)
    for_all(check, cases(), until=lambda: set(statuses) >= ENDS and wanted <= words)
    assert set(statuses) == ENDS


def test_no_node_of_a_flow_without_loops_runs_twice() -> None:
    def check(case: Case) -> None:
        found = replay(case)
        assert found.iterations == 0
        assert found.status in ("completed", "failed")
        begun = Counter(node for _, event, node, _ in found.facts if event in BEGUN)
        assert set(begun.values()) == {1}

    for_all(check, cases(has_loops=False, is_plain=True), examples=EXAMPLES)


def test_a_replayed_flow_takes_the_same_path() -> None:
    def check(case: Case) -> None:
        assert replay(case) == replay(case)

    for_all(check, cases(), examples=60)


def test_the_transitions_of_real_runs_take_the_same_path() -> None:
    """Every event is a transition on a head that was read back from what was written."""

    def check(case: Case) -> None:
        expected = replay(case)
        found = Rehearsal(case).run()
        assert found.trace == list(expected.trace)
        assert found.marking.status == expected.status
        assert found.marking.iterations == expected.iterations

    for_all(check, cases(has_ties=False), examples=120)


@pytest.mark.parametrize(("inline", "since", "shortest"), [(0, 60, 5), (120, 90, 12), (150, 0, 0)])
def test_a_flow_record_is_read_as_written_however_it_was_split(
    monkeypatch: pytest.MonkeyPatch, inline: int, since: int, shortest: int
) -> None:
    split_records(monkeypatch, inline, since, shortest)
    seen: Counter[str] = Counter()

    def check(case: Case) -> None:
        for written in Rehearsal(case).run().written:
            flow = written.flow
            seen["inline"] += flow.marking is not None
            seen["since"] += bool(flow.since)
            seen["whole"] += written.is_whole
            seen["chain"] += len(written.chain.names) > 2
            assert len(json.dumps(flow.marking or {}, separators=(",", ":"))) <= max(inline, 2)
            assert len(json.dumps(flow.since, separators=(",", ":"))) <= max(since, 2)

    amounts = {"inline": inline, "since": since, "whole": 1, "chain": 1}
    wanted = Counter([what for what, amount in amounts.items() if amount] * 6)
    for_all(check, cases(has_ties=False), examples=60, until=lambda: wanted <= seen)
    assert {what for what in amounts if seen[what]} == set(wanted)
