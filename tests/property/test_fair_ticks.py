"""Ticks of all runs of a real project are fair, whatever happens between them."""

from __future__ import annotations

import random
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sequencer import Project, open_project
from sequencer.plugins.schedules import every_run, schedules
from tests.property.fairness import Look, waited_too_long
from tests.unit.cli.calling import call, project

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
SCHEDULES = ("night", "often")
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
        names = {None, *opened.run_names(), *SCHEDULES}
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
