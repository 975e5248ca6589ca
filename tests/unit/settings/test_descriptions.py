"""What is said to people about a step or a workflow, and what it leaves alone."""

from __future__ import annotations

import json
from pathlib import Path

from sequencer.model.step import Step, Validation
from sequencer.model.workflow import Review, Workflow
from tests.unit.settings.loading import loaded

ABOUT = {
    "workflows": {
        "base": {
            "kind": "procedure",
            "description": "For all",
            "steps": [{"name": "plan", "description": "Plans"}, "build"],
        },
        "same": {"extends": "base", "after": {"plan": ["look"]}},
        "other": {
            "extends": "base",
            "description": "For me",
            "replace": {"plan": {"description": "Plans well"}},
        },
    }
}


def made(about: str) -> Workflow:
    fixer = Step(name="fix", description=about)
    judge = Step(name="judge", description=about, validation=Validation(fixer=fixer))
    step = judge.replace(name="review")
    return Workflow("w", (judge,), Review(every=2, step=step), description=about)


def test_a_run_goes_on_whatever_is_said_about_its_steps() -> None:
    assert made("One thing").digest() == made("Another").digest() == made("").digest()
    assert "description" not in json.dumps(made("One thing").definition())


def test_a_workflow_that_extends_another_has_its_description(tmp_path: Path) -> None:
    registry = loaded(tmp_path, json.dumps(ABOUT)).registry
    same, other = registry.get("same"), registry.get("other")
    assert [same.description, other.description] == ["For all", "For me"]
    assert [step.description for step in same.steps] == ["Plans", "", ""]
    assert other.steps[0].description == "Plans well"
