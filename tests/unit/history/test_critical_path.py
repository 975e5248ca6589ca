from __future__ import annotations

from graphlib import CycleError
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequencer.history.spans import Figures, build_timeline, compute_figures, critical_path
from sequencer.history.story import build_story
from tests.unit.history.journal_facts import NOON_S, Told

Dag = tuple[dict[int, float], dict[int, list[int]]]


@st.composite
def dags(draw: st.DrawFn, most: int = 7) -> Dag:
    """Return durations and blockers of a few tasks, in an order that is not theirs."""
    count = draw(st.integers(0, most))
    pairs = [pair for pair in combinations(range(count), 2) if draw(st.booleans())]
    names = draw(st.permutations(range(count)))
    lengths = st.one_of(st.integers(0, 5).map(float), st.floats(0, 1000))
    durations = {name: draw(lengths) for name in names}
    blockers: dict[int, list[int]] = {}
    for before, after in pairs:
        blockers.setdefault(after, []).append(before)
    return durations, blockers


def every_chain(durations: dict[int, float], blockers: dict[int, list[int]]) -> list[list[int]]:
    """Return every chain of tasks each of which blocks the next: brute force."""
    found = [[task] for task in durations]
    for chain in found:
        found += [[before, *chain] for before in blockers.get(chain[0], ())]
    return found


@given(dags())
def test_no_chain_is_longer_than_the_critical_path(dag: Dag) -> None:
    durations, blockers = dag
    path = critical_path(durations, blockers)
    chains = every_chain(durations, blockers)
    longest = max((sum(durations[task] for task in chain) for chain in chains), default=0.0)
    assert sum(durations[task] for task in path) == pytest.approx(longest)
    assert list(path) in chains or not durations


def test_tasks_that_wait_for_each_other_have_none() -> None:
    with pytest.raises(CycleError):
        critical_path({"a": 1.0, "b": 1.0}, {"a": ["b"], "b": ["a"]})


# --- figures -----------------------------------------------------------------------------


def figures(told: Told, places: int | None = None) -> Figures:
    return compute_figures(build_timeline(build_story(told.facts), NOON_S + 1000), places)


def side_by_side() -> Told:
    """Tell a of 1 s, then b of 3 s beside c of 2 s, then d of 1 s, with small gaps."""
    told = Told().run("a", 0, 1)
    told.claim("b", 1, ["a"]).claim("c", 1, ["a"]).end("c", 1.1, 3.1).end("b", 1.1, 4.1)
    return told.run("d", 4.2, 5.2, ["b", "c"])


def test_failed_tries_count_as_work_but_not_in_the_critical_path() -> None:
    told = Told().claim("a", 0).end("a", 0, 4, "failed")
    told.claim("a", 6, None, attempt=2).end("a", 6, 8, attempt=2)
    found = figures(told)
    assert [found.wall_s, found.work_s] == pytest.approx([8, 6])
    assert found.critical_s == pytest.approx(2)
    assert found.overhead == pytest.approx(3.0)


def test_waiting_for_two_people_at_once_counts_once() -> None:
    told = Told().tell("asked", "x", 0, {"from": []}, token=1)
    told.tell("asked", "y", 5, {"from": []}, token=2)
    told.tell("answered", "x", 10, token=1).tell("answered", "y", 20, token=2)
    assert figures(told).people_s == pytest.approx(20)
    assert figures(told).speed_up is None
    assert figures(told).utilisation is None


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), min_size=1, max_size=8))
def test_the_peak_is_exact_and_bounds_the_speedup(times: list[tuple[int, int]]) -> None:
    told = Told()
    for number, (begin, length) in enumerate(times):
        told.claim(f"t{number}", begin).end(f"t{number}", begin, begin + length)
    found = figures(told)
    at_once = [sum(b <= moment < b + n for b, n in times) for moment in range(71)]
    assert found.peak == max(at_once)
    assert found.speed_up is not None
    assert found.utilisation is not None
    assert found.speed_up <= found.peak + 1e-6
    assert found.utilisation <= 1 + 1e-6
    assert found.wall_s >= found.critical_s - 1e-6
