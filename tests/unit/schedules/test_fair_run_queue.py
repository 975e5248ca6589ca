"""The line of `tick --all` is fair: between two moves of a run all others that can move have."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from sequencer.plugins.schedules.run_queue import (
    CYCLE,
    DATE,
    REQUEST,
    Rank,
    RunQueue,
    StoredRunQueue,
)
from tests.property.fairness import Look, waited_too_long

NAMES = "abcdef"
GROUPS = dict(zip(NAMES, (CYCLE, REQUEST, DATE, REQUEST, DATE, CYCLE), strict=True))


class World:
    """Runs that can move or not, and ticks that work on them, so many at a time."""

    def __init__(self, folder: Path) -> None:
        self.line = StoredRunQueue(SimpleNamespace(state_file=folder / "sync" / "state.json"))  # type: ignore[arg-type]
        self.ranks: dict[str, Rank] = {}
        self.able: set[str] = set()
        self.busy: deque[str] = deque()
        self.looks: list[Look] = []

    def look(self, moved: str | None = None) -> None:
        self.looks.append(Look(frozenset(self.able - {*self.busy}), moved))

    def tick(self) -> None:
        """Go down the line until a run moves; others that work on it are no reason to wait."""
        tried: set[str] = set()
        while (turn := self.line.take_turn(self.ranks, self.ranks.keys() - tried)) is not None:
            tried.add(turn.name)
            if turn.name in self.able - {*self.busy}:
                self.look(turn.name)
                self.busy.append(turn.name)
                return
            self.line.return_turn(turn)
        self.line.clear()

    def act(self, what: str, name: str, at_most: int) -> None:
        if what == "arrive":
            self.ranks.setdefault(name, Rank(GROUPS[name], f"{len(self.looks):06}"))
            self.able.add(name)
        elif what == "toggle" and name in self.ranks:
            self.able ^= {name}
        elif what == "end" and self.busy:
            self.busy.popleft()
        elif what == "tick" and len(self.busy) < at_most:
            self.tick()
        self.look()


ACTIONS = st.tuples(
    st.sampled_from(("tick", "tick", "tick", "end", "end", "toggle", "arrive")),
    st.sampled_from(NAMES),
)


def played(actions: list[tuple[str, str]], at_most: int) -> list[str]:
    with TemporaryDirectory() as folder, patch.dict("os.environ", {"XDG_STATE_HOME": folder}):
        world = World(Path(folder))
        # Two runs are there from the start: among fewer, nobody can wait too long.
        for what, name in [("arrive", "a"), ("arrive", "b"), *actions]:
            world.act(what, name, at_most)
        return waited_too_long(world.looks)


@settings(max_examples=40, deadline=None)
@given(st.lists(ACTIONS, max_size=60))
def test_no_run_that_can_move_waits_longer_than_one_round(actions: list[tuple[str, str]]) -> None:
    assert played(actions, 1) == []


@settings(max_examples=40, deadline=None)
@given(st.lists(ACTIONS, max_size=60), st.integers(2, 4))
def test_no_run_waits_longer_when_several_work_at_once(
    actions: list[tuple[str, str]], at_most: int
) -> None:
    assert played(actions, at_most) == []


def test_a_line_that_always_starts_with_the_oldest_is_detected() -> None:
    """The test notices the way in which `tick --all` was unfair."""
    actions = [("arrive", "a"), ("arrive", "b"), *([("tick", "a"), ("end", "a")] * 3)]
    assert played(actions, 1) == []
    with patch.object(RunQueue, "record_turn", lambda self, *_: self):
        assert played(actions, 1) == ["a waits while b moves twice"] * 2
