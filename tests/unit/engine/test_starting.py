from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sequencer.errors import ConfigurationError, TransitionRefused
from sequencer.model.request import Definition, Request
from sequencer.plugins.requests.project_requests import build_starter
from sequencer.project.project import Project, open_project
from tests.unit.engine.projects import write_project

BUG = Request(title="Debug login timeout", labels=("Bug",))
CODE = Request(title="Add user profile page", labels=("feature",))


def project(folder: Path, **settings: Any) -> Project:
    write_project(folder, **settings)
    return open_project(folder, environment={"PATH": "/usr/bin:/bin"})


def define(
    folder: Path, request: Request, explicit: str | None = None, **settings: Any
) -> Definition:
    return build_starter(project(folder, **settings)).define(request, explicit)


def test_comment_tools_are_taken_from_steps_that_have_tools(tmp_path: Path) -> None:
    workflows = {
        "quiet": {
            "kind": "procedure",
            "steps": [
                {"name": "main", "no_comment": True, "disallowed_tools": ["WebFetch"]},
                {"name": "supervisor", "no_comment": True, "single_turn": True},
            ],
        }
    }
    activity = {"comment_tools": ["mcp__x__comment"]}
    made = define(tmp_path, BUG, "quiet", workflows=workflows, activity=activity)
    first, second = made.workflow.steps
    assert first.disallowed_tools == ("WebFetch", "mcp__x__comment")
    assert second.disallowed_tools is None


def test_a_missing_prompt_is_refused_before_anything_starts(tmp_path: Path) -> None:
    steps: list[Any] = ["supervisor", {"name": "late", "prompt": "missing.md"}]
    workflows = {"mine": {"kind": "procedure", "steps": steps}}
    with pytest.raises(ConfigurationError, match=r"missing\.md"):
        define(tmp_path, BUG, "mine", workflows=workflows)
    assert not (tmp_path / "sync").exists()


def test_a_prompt_that_asks_for_a_step_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    workflows = {"mine": {"kind": "procedure", "steps": ["supervisor", "main"]}}
    found = project(tmp_path, workflows=workflows)
    (tmp_path / "prompts" / "main.md").write_text("{{steps.supervizor.output}}\n")
    with pytest.raises(ConfigurationError, match=r"steps\.supervizor\.output") as raised:
        build_starter(found).define(BUG, "mine")
    assert "main, supervisor" in str(raised.value.hint)
    (tmp_path / "prompts" / "main.md").write_text("{{steps.supervisor.output}} {{steps.x}}\n")
    with pytest.raises(ConfigurationError, match=r"steps\.x"):
        build_starter(found).define(BUG, "mine")


def test_a_run_can_be_started_only_once(tmp_path: Path) -> None:
    found = project(tmp_path)
    made = build_starter(found).define(BUG)
    head = found.run("one", made).commands.start(made)
    assert (head.run_name, head.workflow_name) == ("one", "debugger-full")
    with pytest.raises(TransitionRefused, match="run 'one' exists"):
        found.run("one", made).commands.start(made)
    again = open_project(tmp_path, environment={}).run("one")
    assert again.definition == made
    assert again.workflow == made.workflow
    assert found.run("two").definition is None
