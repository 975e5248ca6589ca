"""The names of a run's refs: no two branches share one."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

from sequencer.git.store import GitOptions, refs_of
from tests.clones import Shared
from tests.contract import store_cases as cases

BRANCHES = (
    *("x", "sequencer/x", "sequencer/sequencer/x", "x/sequencer/x", "sequencer/x-y/z"),
    *("of/x", "sequencer/of", "sequencer/of-x", "sequencer/default", "default"),
    *("sequencer/sequencer/of", "sequencer-x"),
)


def beats_of(branch: str) -> str:
    return refs_of(GitOptions(branch=branch), None).beats


def is_below(one: str, other: str) -> bool:
    """Return whether one of the two is the other, or a folder in which that is."""
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


def test_every_branch_has_heartbeats_of_its_own() -> None:
    for first, second in combinations(BRANCHES, 2):
        # Git has no ref that is a folder as well; so no remote has both of such a pair.
        if not is_below(first, second):
            assert not is_below(beats_of(first), beats_of(second)), (first, second)


def test_two_branches_that_end_alike_keep_their_beats_apart(tmp_path: Path) -> None:
    shared = Shared(tmp_path)
    claims = {}
    for name, branch in (("a", "x"), ("b", "sequencer/x")):
        store = shared.store(name, branch=branch)
        cases.begin(store)
        claims[name] = cases.claim(store)
        store.beat(claims[name], 1)
    assert shared.tip("sequencer-beats/x")
    assert shared.tip("sequencer-beats/of/x")
    assert shared.tip("sequencer-beats/x") != shared.tip("sequencer-beats/of/x")
    shared.close()
