"""What a person says about a team when a request is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sequencer.errors import ConfigurationError, UsageRefused
from sequencer.model.request import Definition, Request
from sequencer.plugins.requests.project_requests import build_starter
from sequencer.plugins.requests.starting import RequestedTeam
from tests.unit.engine.test_starting import CODE, project

QUESTION = Request(title="How does it work?")


def define(folder: Path, request: Request, wanted: RequestedTeam, procedure: str) -> Definition:
    return build_starter(project(folder)).define(request, procedure, wanted)


def told(made: Definition) -> dict[str, Any]:
    assert made.assignment is not None
    return dict(made.assignment)


@pytest.mark.parametrize(
    ("wanted", "why", "size"),
    [
        (RequestedTeam(asked=True), "--team was given", 2),
        (RequestedTeam(size=3), "--team-size was given", 3),
        (RequestedTeam(asked=True, size=3), "--team was given", 3),
    ],
)
def test_the_assignment_records_the_team_options_given(
    tmp_path: Path, wanted: RequestedTeam, why: str, size: int
) -> None:
    made = told(define(tmp_path, CODE, wanted, "full-development"))
    assert (made["uses_team"], made["why"], made["size"]) == (True, why, size)


@pytest.mark.parametrize(
    ("wanted", "where"),
    [
        (RequestedTeam(asked=True), "--team"),
        (RequestedTeam(size=3), "--team-size"),
        (RequestedTeam(asked=True, size=3), "--team"),
    ],
)
def test_a_team_for_work_that_cannot_be_shared_out_is_refused(
    tmp_path: Path, wanted: RequestedTeam, where: str
) -> None:
    with pytest.raises(UsageRefused, match="can't be shared out") as caught:
        define(tmp_path, QUESTION, wanted, "simple-question")
    assert caught.value.where == where
    assert "full-development, debugger-full, orchestrator-full" in str(caught.value)


def test_a_request_that_needs_more_than_max_tasks_is_refused(
    tmp_path: Path,
) -> None:
    made = build_starter(project(tmp_path, teams={"max_tasks": 5}))
    with pytest.raises(ConfigurationError, match="8 tasks; at most 5 are allowed") as caught:
        made.define(CODE, "full-development", RequestedTeam(asked=True))
    assert caught.value.where == "teams.max_tasks"


# --- steps of the project's own --------------------------------------------------------

HOOK = """
from pathlib import Path
from sequencer import hookimpl

@hookimpl
def sequencer_steps(request, workflow):
    with (Path(__file__).parent / "asked").open("a") as file:
        file.write("x")
    return {answer}
"""
WITHOUT = "[step for step in workflow.steps if step.name != 'git-gh']"
TEAMS = {"enabled": True, "threshold": 0}
OWN = "the project has steps of its own for procedure 'full-development'"


def hooked(
    folder: Path, answer: str, wanted: RequestedTeam | None = None, **teams: Any
) -> Definition:
    (folder / "hooks.py").write_text(HOOK.format(answer=answer))
    made = project(folder, hooks=["hooks.py"], teams={**TEAMS, **teams})
    return build_starter(made).define(CODE, "full-development", wanted)


def test_no_team_replaces_steps_that_a_hook_has_changed(tmp_path: Path) -> None:
    made = hooked(tmp_path, WITHOUT)
    assert (told(made)["uses_team"], told(made)["why"]) == (False, OWN)
    assert [step.name for step in made.workflow.steps] == [
        *("coding-activity", "verifications", "concise-summary")
    ]


@pytest.mark.parametrize("answer", ["None", "workflow", "list(workflow.steps)"])
def test_a_hook_that_changes_nothing_does_not_prevent_a_team(tmp_path: Path, answer: str) -> None:
    made = hooked(tmp_path, answer)
    assert told(made)["uses_team"] is True
    assert made.workflow.kind == "graph"
