"""Random teams: what holds however they grow, fail, judge and are killed."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import strategies as st

from sequencer import Graph
from sequencer.model.graph.marking import FlowStatus
from tests.property.amounts import for_all
from tests.unit.model.graph.flow_rehearsal import split_records
from tests.unit.model.graph.team_rehearsal import (
    MAX_HEAD_BYTES,
    PARTS,
    TeamRehearsal,
    graph_of,
    length,
    tasks_of,
)

SEEDS, SIZES = st.integers(0, 2**32), st.integers(1, 10)
WORKERS = st.integers(1, 5)


def random_of(seed: int) -> Random:
    return Random(seed)  # noqa: S311 - the same team for the same seed


def critical_path(graph: Graph) -> int:
    """Return how long the longest way through *graph* takes, by trying all ways."""
    known: dict[str, int] = {}

    def until(name: str) -> int:
        if name not in known:
            before = max(map(until, graph.incoming[name]), default=0)
            known[name] = before + length(graph, name)
        return known[name]

    return max(map(until, graph.by_id))


def test_every_task_runs_once_after_its_blockers_within_the_greedy_bound() -> None:
    def check(seed: int, size: int, workers: int) -> None:
        random = random_of(seed)
        graph = graph_of(tasks_of(random, size), workers)
        made = TeamRehearsal(graph, random).run()
        assert made.kept.status is FlowStatus.COMPLETED
        assert Counter(made.story.claimed) == dict.fromkeys(graph.by_id, 1)
        assert made.kept.done == dict.fromkeys(graph.by_id, 1)
        assert made.story.most_claims <= workers
        for name, begun in made.story.begun.items():
            assert all(made.story.ended[one] <= begun for one in graph.incoming[name])
        # Graham 1966: whoever leaves no worker idle needs no longer than this.
        work, longest = sum(length(graph, name) for name in graph.by_id), critical_path(graph)
        assert longest <= made.now <= work / workers + longest * (1 - 1 / workers) + 1e-6

    for_all(check, SEEDS, SIZES, WORKERS, examples=50)


def test_with_enough_workers_it_takes_as_long_as_the_critical_path() -> None:
    def check(seed: int, size: int) -> None:
        random = random_of(seed)
        graph = graph_of(tasks_of(random, size), None)
        assert TeamRehearsal(graph, random).run().now == critical_path(graph)

    for_all(check, SEEDS, SIZES, examples=30)


def test_the_task_with_the_longest_remaining_path_starts_first() -> None:
    """One worker: of those that may begin the one with the heaviest rest is begun."""

    def check(seed: int, size: int) -> None:
        random = random_of(seed)
        graph = graph_of(tasks_of(random, size), 1)
        left: dict[str, int] = {}

        def rest(name: str) -> int:
            if name not in left:
                behind = [graph.edges[place].target for place in graph.outgoing[name]]
                left[name] = length(graph, name) + max(map(rest, behind), default=0)
            return left[name]

        done: set[str] = set()
        for name in TeamRehearsal(graph, random).run().story.claimed:
            free = [n for n in graph.by_id if n not in done and done.issuperset(graph.incoming[n])]
            assert name == max(free, key=lambda one: (rest(one), -graph.order[one]))
            done.add(name)

    for_all(check, SEEDS, SIZES, examples=30)


def check_anything(seed: int, size: int, workers: int, seen: Counter[str]) -> None:
    random = random_of(seed)
    graph = graph_of(tasks_of(random, size), workers)
    made = TeamRehearsal(graph, random, parts=PARTS).run()
    story, kept = made.story, made.kept
    seen.update(story.events)
    seen[str(kept.status)] += 1
    assert story.most_claims <= workers
    assert story.biggest_head < MAX_HEAD_BYTES
    for follower, added in story.held_back:
        if follower in story.ended:
            # Whatever was added by whom it waited for was done before.
            done = [name for name in added if kept.done.get(name)]
            assert all(map(made.is_hopeless, added.difference(done)))
            direct = set(done).intersection(kept.graph.incoming[follower])
            assert all(story.ended[name] <= story.begun[follower] for name in direct)
    assert set(kept.done.values()) <= {1}
    assert sum(spent[0] for spent in kept.ledger.spent.values()) == pytest.approx(
        made.head.usage.cost_usd
    )
    seen["completed without some"] += kept.status is FlowStatus.COMPLETED and bool(story.failed)
    made.ensure_ended()


@pytest.mark.slow
def test_every_state_is_read_as_it_was_saved() -> None:
    seen: Counter[str] = Counter()

    def check(seed: int, size: int, workers: int) -> None:
        check_anything(seed, size, workers, seen)

    # A property that only saw teams of one kind would show nothing.
    wanted = Counter([*PARTS, "completed", "failed", "completed without some"] * 3)
    for_all(check, SEEDS, SIZES, WORKERS, examples=50, until=lambda: wanted <= seen)


@pytest.mark.parametrize(("inline", "since", "shortest"), [(0, 60, 5), (200, 0, 0)])
def test_every_state_is_read_as_it_was_saved_however_it_was_split(
    monkeypatch: pytest.MonkeyPatch, inline: int, since: int, shortest: int
) -> None:
    split_records(monkeypatch, inline, since, shortest)

    def check(seed: int, size: int, workers: int) -> None:
        check_anything(seed, size, workers, Counter())

    for_all(check, SEEDS, SIZES, WORKERS, examples=12)


def test_a_retry_brings_every_failed_team_to_its_end() -> None:
    def check(seed: int, size: int) -> None:
        random = random_of(seed)
        graph = graph_of(tasks_of(random, size), 3)
        made = TeamRehearsal(graph, random, parts=("ok", "fail", "grow")).run()
        made.parts = ("ok",)
        if made.kept.ended_at:
            made.story.failed -= made.kept.lost.keys()
            made.update(lambda step: step.restore())
            assert made.kept.lost == {}
            while made.kept.status is FlowStatus.RUNNING:
                made.step()
        assert made.kept.status is FlowStatus.COMPLETED
        assert set(made.kept.done.values()) <= {1}
        made.ensure_ended()

    for_all(check, SEEDS, SIZES, examples=12)
