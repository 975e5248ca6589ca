"""The line of `tick --all` is fair: between two moves of a run all others that can move have."""

from __future__ import annotations

import random
import time
from collections import deque
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sequencer import open_project
from sequencer.plugins.schedules import every_run, schedules
from sequencer.plugins.schedules.run_queue import (
    CYCLE,
    DATE,
    REQUEST,
    Rank,
    RunQueue,
    StoredRunQueue,
)
from sequencer.plugins.schedules.section import get_schedules
from sequencer.project.project import Project
from tests.unit.cli.calling import call, project

NAMES = "abcdef"
GROUPS = dict(zip(NAMES, (CYCLE, REQUEST, DATE, REQUEST, DATE, CYCLE), strict=True))


class Look(NamedTuple):
    """A moment: which runs could have moved, and which one did."""

    able: frozenset[str]
    moved: str | None


def waited_too_long(looks: list[Look]) -> list[str]:
    """Return which runs could move all the time from one move of another run to its next."""
    found = []
    for name in {look.moved for look in looks} - {None}:
        for first, second in pairwise(at for at, look in enumerate(looks) if look.moved == name):
            between = looks[first + 1 : second + 1]
            could = frozenset.intersection(looks[first].able, *(look.able for look in between))
            had = {look.moved for look in between}
            found += [f"{one} waits while {name} moves twice" for one in sorted(could - had)]
    return found


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
        for what, name in actions:
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
    """A check of the check: this is how `tick --all` was unfair."""
    actions = [("arrive", "a"), ("arrive", "b"), *([("tick", "a"), ("end", "a")] * 3)]
    assert played(actions, 1) == []
    with patch.object(RunQueue, "record_turn", lambda self, *_: self):
        assert played(actions, 1) == ["a waits while b moves twice"] * 2


CONFIGURATION = """\
agent: {default: script}
workflow: {name: standard}
agents:
  script: {kind: command, free: true,
           argv: [sh, -c, 'echo x; test ! -e "fail-$SEQUENCER_RUN_NAME"']}
limits: {failures_in_row: 2}
workflows:
  short: {kind: procedure, steps: [supervisor]}
  long: {kind: procedure, steps: [supervisor, main, reviewer]}
  asks: {kind: procedure, steps: [{name: supervisor, requires_approval: true}, main]}
schedules:
  night: {workflow: long, at: "0 2 * * *"}
  often: {workflow: short, at: "*/5 * * * *"}
"""
HOUR_S = 60 * 60


class Lived:
    """A project with an endless cycle, and ticks of all its runs at a clock of its own."""

    def __init__(self, folder: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = project(folder, CONFIGURATION)
        self.random, self.later, self.requests = random.Random(seed), 0.0, 0  # noqa: S311 - a test
        self.looks: list[Look] = []
        monkeypatch.setattr(schedules, "time", SimpleNamespace(time=self.now))
        monkeypatch.setattr(every_run, "time", SimpleNamespace(time=self.now))
        monkeypatch.setattr(every_run, "_run_tick", self.tick_of)
        assert call(self.folder, "run", "--max-steps", "1").code == 0

    def now(self) -> float:
        return time.time() + self.later

    def tick_of(self, *given: Any, **_: Any) -> int:
        run = given[2]
        name = [] if run.name is None else ["--run", run.name]
        return call(self.folder, *name, "tick").code

    def able(self, opened: Project) -> frozenset[str]:
        found = set()
        for name in (None, *opened.run_names()):
            here = opened.run(name).readiness()
            if here is not None and here.kind == "ready":
                found.add(name or "")
        for run, date in schedules.list_scheduled_runs(opened):
            if date is not None and date <= self.now():
                found.add(run.name or "")
        return frozenset(found)

    def tokens(self, opened: Project) -> dict[str, Any]:
        names = {None, *opened.run_names(), *get_schedules(opened.settings)}
        heads = {name or "": opened.run(name).head for name in names}
        return {name: head and (head.run_id, head.token) for name, head in heads.items()}

    def live(self, ticks: int) -> None:
        for _ in range(ticks):
            self.change()
            opened = open_project(self.folder, trust=True)
            able, before = self.able(opened), self.tokens(opened)
            code = call(self.folder, "tick", "--all").code
            assert code in (0, 1, 3, 4), code
            after = self.tokens(open_project(self.folder, trust=True))
            moved = [name for name in after if after[name] != before.get(name)]
            assert len(moved) <= 1, "one tick is one step"
            self.looks.append(Look(able, moved[0] if moved else None))

    def change(self) -> None:
        """Let something happen between two ticks: a request, an answer, a failure, some time."""
        what = self.random.choice(("request", "answer", "fail", "mend", "time", "time", "night"))
        if what == "request" and self.requests < 3:
            self.requests += 1
            workflow = self.random.choice(("short", "long", "asks"))
            name = f"request-{self.requests}"
            ended = call(
                self.folder, "--run", name, "run", "--workflow", workflow, "--max-steps", "1"
            )
            assert ended.code in (0, 1, 4), ended.err
            self.looks.append(Look(frozenset(), name))  # by hand
        elif what == "answer":
            call(self.folder, "answer", "approve")
        elif what == "fail":
            (self.folder / f"fail-{self.random.choice(('night', 'request-1', ''))}").touch()
        elif what == "mend":
            for path in self.folder.glob("fail-*"):
                path.unlink()
        else:
            self.later += 24 * HOUR_S if what == "night" else HOUR_S / 6


@pytest.mark.slow(sample=1)
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(2))
def test_nothing_starves_beside_an_endless_cycle_in_a_real_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    lived = Lived(tmp_path / "p", seed, monkeypatch)
    lived.live(25)
    assert waited_too_long(lived.looks) == []
    assert {"", "often"} < {look.moved for look in lived.looks}
