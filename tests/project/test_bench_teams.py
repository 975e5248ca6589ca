"""The teams of the bench are the graphs that they say they are, and every task of them is done."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import pytest

from bench.layers import (
    BLOCK,
    LONGEST_MS,
    SHORTEST_MS,
    SLEEPERS,
    SLEEPERS_PLACES,
    WIDTH,
    blocks,
    earliest,
    most_at_once,
    sleepers,
)
from bench.measuring import Effort
from bench.peers import installing
from bench.project import make_project
from bench.rows import Setting
from bench.rows.step import started
from bench.rows.team_child import Teams
from bench.teams import Sleeper, team_of, team_run
from sequencer import InvocationLimits, Mode

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the floor is Linux's")
SMALL = 2 * BLOCK + 3


# --- the graphs --------------------------------------------------------------------------


def test_each_block_fans_out_mixes_and_gathers() -> None:
    found = blocks(SMALL)
    assert list(found) == [f"t{n}" for n in range(SMALL)]
    assert all(not found[f"t{n}"] for n in range(WIDTH))
    assert all(len(set(found[f"t{n}"])) == 3 for n in range(WIDTH, BLOCK - 1))
    last = f"t{BLOCK - 1}"
    assert found[last] == tuple(f"t{n}" for n in range(WIDTH, BLOCK - 1))
    assert all(found[f"t{n}"] == (last,) for n in range(BLOCK, BLOCK + WIDTH))


def test_there_are_enough_places_for_the_sleepers() -> None:
    """Else their critical path would not be the shortest time that there is."""
    found, seconds = sleepers()
    assert len(found) == len(seconds) == SLEEPERS
    assert all(SHORTEST_MS / 1000 <= one <= LONGEST_MS / 1000 for one in seconds.values())
    assert 4 <= most_at_once(earliest(found, seconds)) <= SLEEPERS_PLACES


def test_the_earliest_start_is_after_the_last_predecessor() -> None:
    times = earliest({"a": (), "b": (), "c": ("a", "b")}, {"a": 2, "b": 3, "c": 1})
    assert times == {"a": (0, 2), "b": (0, 3), "c": (3, 4)}
    assert most_at_once(times) == 2


# --- the runs ----------------------------------------------------------------------------


def test_a_team_of_sleepers_takes_at_least_its_critical_path(tmp_path: Path) -> None:
    found = {"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c")}
    seconds = {"a": 0.01, "b": 0.5, "c": 0.01, "d": 0.01}
    executor = Sleeper(seconds)
    workflow = team_of(found, 2, seconds)
    run = team_run(make_project(tmp_path / "project"), workflow, "one", executor)
    run.work(Mode.COMBINED, InvocationLimits(max_steps=None), places=2)
    assert [name for name, _ in executor.done] == ["a", "c", "b", "d"]
    times = [at for _, at in executor.done]
    assert all(one <= other for one, other in pairwise(times))
    assert times[-1] - times[0] >= 0.51


def test_a_measured_run_is_complete_and_leaves_nothing_behind(tmp_path: Path) -> None:
    teams = Teams(tmp_path / "project")
    found = teams.answer({"do": "run", "tasks": SMALL})
    assert found["cpu"] > 0
    assert found["wall"] > 0
    assert list((tmp_path / "project" / "sync" / "runs").iterdir()) == []
    teams.answer({"do": "run", "tasks": 3, "is_kept": True})
    assert len(list((tmp_path / "project" / "sync" / "runs").iterdir())) == 1


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("peer", ["dask", "langgraph"])
def test_a_peer_does_the_same_graph(tmp_path: Path, peer: str) -> None:
    if (reason := installing.why_absent(peer)) is not None:
        pytest.skip(reason)
    with started(Setting(tmp_path, Effort(0.0, 300, 0.5), with_peers=True), peer, "team") as child:
        found = child.ask({"count": SMALL})
        assert found.keys() == {"cpu", "wall"}
        assert min(found.values()) > 0
