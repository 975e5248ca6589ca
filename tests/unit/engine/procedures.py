"""Runs of a small procedure whose agent follows a script."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sequencer.engine.invocation_budget import Mode, Summary
from sequencer.engine.run import Run
from sequencer.errors import WaitsForPerson
from sequencer.model.head import Head
from sequencer.model.limits import InvocationLimits
from sequencer.model.request import Request
from sequencer.plugins.requests.project_requests import build_starter
from sequencer.project.project import open_project
from tests.unit.engine.projects import head_of, write_project

REQUEST = Request(title="Debug login timeout", text="It times out.", labels=("bug",))
UNLIMITED = InvocationLimits(max_steps=None)
STEPS: list[Any] = [
    "reproduce",
    {"name": "ask", "requires_approval": True},
    "build",
    {"name": "verify", "validation": {"fixer": {"name": "fix"}}},
    "tell",
]
PASS, NO = '{"pass": true}', '{"pass": false, "reason": "2 fail"}'


def started(
    folder: Path,
    *outcomes: dict[str, Any],
    steps: list[Any] | None = None,
    more_agents: dict[str, Any] | None = None,
    **settings: Any,
) -> Run:
    """Begin the run of a request; its agent says its step's name where *outcomes* say nothing."""
    workflows = {"demo": {"kind": "procedure", "steps": steps or STEPS}}
    agents: dict[str, Any] = dict(more_agents or {})
    agents["canned"] = {"kind": "scripted", "outcomes": [*outcomes, {"output": "done"}]}
    write_project(folder, workflows=workflows, agents=agents, **settings)
    for name in ("reproduce", "ask", "build", "verify", "fix", "tell"):
        (folder / "prompts" / f"{name}.md").write_text(f"Do {name}.\n")
    project = open_project(folder, environment={"PATH": "/usr/bin:/bin"})
    made = build_starter(project).define(REQUEST, "demo")
    run = project.run("one", made)
    run.commands.start(made)
    return reopened(folder)


def reopened(folder: Path) -> Run:
    return open_project(folder, environment={"PATH": "/usr/bin:/bin"}).run("one")


def work(run: Run, **options: Any) -> Summary:
    return run.work(Mode.COMBINED, UNLIMITED, **options)


def until_gate(run: Run) -> Head:
    with pytest.raises(WaitsForPerson, match="'ask' waits for a decision"):
        work(run)
    return head_of(run)


def until_it_is_over(run: Run) -> None:
    """Return when the time of the gate at which *run* waits is over."""
    with contextlib.suppress(WaitsForPerson):
        work(run)
    gate = head_of(run).gate
    while gate is not None and datetime.now(UTC).isoformat() <= (gate.expires_at or "")[:-1]:
        pass


def judged(*answers: str) -> list[dict[str, Any]]:
    return [{"step": "verify", "output": answer} for answer in answers]
