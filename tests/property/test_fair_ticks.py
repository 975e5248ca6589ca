"""Ticks of all runs of a real project are fair, whatever happens between them."""

from __future__ import annotations

import json
import random
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from sequencer.testing import ScratchProject
from tests.clocks.faketime import following, library
from tests.property.fairness import Look, waited_too_long
from tests.storage.commands import Ended, sequencer

AGENT = 'echo x; test ! -e "fail-$SEQUENCER_RUN_NAME"'
CONFIGURATION: dict[str, Any] = {
    "agent": {"default": "script"},
    "agents": {"script": {"kind": "command", "free": True, "argv": ["sh", "-c", AGENT]}},
    "limits": {"failures_in_row": 2},
    "workflow": {"name": "standard"},
    "workflows": {
        "short": {"kind": "procedure", "steps": ["supervisor"]},
        "long": {"kind": "procedure", "steps": ["supervisor", "main", "reviewer"]},
        "asks": {
            "kind": "procedure",
            "steps": [{"name": "supervisor", "requires_approval": True}, "main"],
        },
    },
    "schedules": {
        "night": {"workflow": "long", "at": "0 2 * * *"},
        "often": {"workflow": "short", "at": "*/5 * * * *"},
    },
}
HOUR_S = 60 * 60


class Lived:
    """A project with an endless cycle, and ticks of all its runs at a clock of its own."""

    def __init__(self, folder: Path, seed: int, faketime: Path) -> None:
        self.project = ScratchProject(folder / "p", CONFIGURATION)
        self.folder, self.clock = self.project.folder, folder / "clock"
        self.variables = following(faketime, self.clock)
        self.random, self.requests = random.Random(seed), 0  # noqa: S311 - a test
        self.looks: list[Look] = []
        self.pass_time(0)
        assert self.call("run", "--max-steps", "1").code == 0

    def pass_time(self, seconds: int) -> None:
        """Let *seconds* pass for every process of this project."""
        before = int(self.clock.read_text()) if self.clock.exists() else 0
        self.clock.write_text(f"+{before + seconds}")

    def call(self, *arguments: str) -> Ended:
        ended = sequencer(self.folder, *arguments, variables=self.variables)
        assert not ended.wrong(0, 1, 3, 4)
        return ended

    def able(self) -> frozenset[str]:
        """Return the runs that can move: a step is ready, or the date of a schedule has come."""
        now = time.time() + int(self.clock.read_text())
        found = set()
        for row in json.loads(self.call("status", "--all", "--json").out):
            date = row.get("starts_at")
            is_due = date is not None and datetime.fromisoformat(date).timestamp() <= now
            if is_due or (row.get("waits_for") or {}).get("kind") == "ready":
                found.add(row["run"] or "")
        return frozenset(found)

    def tokens(self) -> dict[str, Any]:
        """Return what changes in each run with each of its steps."""
        opened = self.project.open()
        names = {None, *opened.run_names(), *CONFIGURATION["schedules"]}
        heads = {name or "": opened.run(name).head for name in names}
        return {name: head and (head.run_id, head.token) for name, head in heads.items()}

    def live(self, ticks: int) -> None:
        for _ in range(ticks):
            self.change()
            able, before = self.able(), self.tokens()
            self.call("tick", "--all")
            after = self.tokens()
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
            words = ("--run", name, "run", "--workflow", workflow, "--max-steps", "1")
            assert self.call(*words).code in (0, 1, 4)
            self.looks.append(Look(frozenset(), name))  # by hand
        elif what == "answer":
            sequencer(self.folder, "answer", "approve", variables=self.variables)
        elif what == "fail":
            (self.folder / f"fail-{self.random.choice(('night', 'request-1', ''))}").touch()
        elif what == "mend":
            for path in self.folder.glob("fail-*"):
                path.unlink()
        else:
            self.pass_time(24 * HOUR_S if what == "night" else HOUR_S // 6)


@pytest.mark.slow(sample=1)
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(2))
def test_nothing_starves_beside_an_endless_cycle_in_a_real_project(
    tmp_path: Path, seed: int
) -> None:
    faketime = library()
    if faketime is None:
        pytest.skip("libfaketime is not installed")
    lived = Lived(tmp_path, seed, faketime)
    lived.live(15)
    assert waited_too_long(lived.looks) == []
    assert {"", "often"} < {look.moved for look in lived.looks}
