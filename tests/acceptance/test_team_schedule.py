"""The three teams that the program brings, run by a script: every task once, in its order."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.cli_process import cli
from tests.acceptance.team_projects import accepted, events, make_project, told

TEAMS: dict[str, dict[str, set[str]]] = {
    "full-development": {
        "research": set(),
        "plan": set(),
        "implement": {"research", "plan"},
        "verify": {"implement"},
        "changelog": {"implement"},
        "commit": {"verify", "changelog"},
        "pull-request": {"commit"},
        "summary": {"pull-request"},
    },
    "debugger-full": {
        "hypothesis-a": set(),
        "hypothesis-b": set(),
        "history": set(),
        "fix": {"hypothesis-a", "hypothesis-b", "history"},
        "verify": {"fix"},
        "commit": {"verify"},
        "summary": {"commit"},
    },
    "orchestrator-full": {"decompose": set(), "summary": {"decompose"}},
}
"""The tasks of each team that the program brings, and what each waits for."""
YES = json.dumps({"pass": True, "reason": "fine"})
SUB_ISSUES: list[dict[str, Any]] = [
    {"id": "api", "title": "The API", "description": "Build it."},
    {"id": "page", "title": "The page", "description": "Build it.", "depends_on": ["api"]},
]
PLAN: dict[str, dict[str, Any]] = {
    "decompose": {"says": {"sub_issues": SUB_ISSUES}},
    **{name: {"says": YES} for name in ("verify", "verify-api", "verify-page")},
    # Each waits in its place until the other is done: they do run at once.
    "research": {"writes": {"go-plan": ""}},
    "plan": {"until": "go-plan"},
    "history": {"writes": {"go-b": ""}},
    "hypothesis-b": {"until": "go-b"},
}
ADDED = {
    "impl-api": {"decompose"},
    "verify-api": {"impl-api"},
    "impl-page": {"verify-api"},
    "verify-page": {"impl-page"},
    "summary": {"verify-page"},
}
"""What the lead's answer adds; the summary waits for the last of it."""
SIDE_BY_SIDE = {"full-development": 2, "debugger-full": 2, "orchestrator-full": 1}
"""How many tasks must have run at once."""


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("procedure", TEAMS)
def test_a_team_does_every_task_once_and_in_order(tmp_path: Path, procedure: str) -> None:
    project = make_project(tmp_path, [{"id": "other", "subject": "Another team"}], PLAN)
    asked = ("--procedure", procedure, "--team")
    ran = cli(project, "--run", "made", "start", "Mend the login", *asked)
    assert ran.returncode == 0, ran.stderr
    blockers = {name: set(before) for name, before in TEAMS[procedure].items()}
    if procedure == "orchestrator-full":
        for name, before in ADDED.items():
            blockers[name] = blockers.get(name, set()) | before
    order = accepted(project, "made")
    assert sorted(order) == sorted(blockers)
    for name, before in blockers.items():
        assert not before & set(order[order.index(name) :]), name
    _ensure_nothing_began_too_soon(project, blockers)
    heard = told(project, "summary")
    assert len(heard) == 1
    assert "Mend the login" in heard[0]

    shown = json.loads(cli(project, "--run", "made", "report", "--json").stdout)
    assert shown["is_over"]
    path, figures = shown["critical_path"], shown["figures"]
    assert not blockers[path[0]]
    assert path[-1] == "summary"
    assert all(before in blockers[name] for before, name in pairwise(path)), path
    assert figures["peak"] >= SIDE_BY_SIDE[procedure]
    assert 0 < figures["critical_s"] <= figures["wall_s"]
    longer = figures["wall_s"] / figures["critical_s"] - 1
    assert figures["overhead"] == pytest.approx(longer, abs=1e-3)
    assert figures["speed_up"] == pytest.approx(figures["work_s"] / figures["wall_s"], abs=1e-3)
    assert "critical path" in cli(project, "--run", "made", "report").stdout.lower()


def _ensure_nothing_began_too_soon(project: Path, blockers: dict[str, set[str]]) -> None:
    done: set[str] = set()
    for one in events(project, "made"):
        if one["event"] == "claimed":
            assert blockers[one["step"]] <= done, one["step"]
        elif one["event"] == "succeeded":
            done.add(one["step"])
