"""docs/how-to/procedures-of-your-own.md: every example loads and does what is said about it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from sequencer import Step
from sequencer.testing import ScratchProject

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "procedures-of-your-own.md"


@pytest.fixture
def project(tmp_path: Path) -> ScratchProject:
    """All the examples of the page as one file."""
    whole: dict[str, dict[str, Any]] = {}
    for example in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        for section, entries in yaml.safe_load(example).items():
            whole.setdefault(section, {}).update(entries)
    whole["agents"]["tester"] = {"kind": "scripted", "outcomes": [{"output": "done"}]}
    prompts = {"system/researcher.md": "You find out.\n"}
    return ScratchProject(tmp_path, whole, prompts=prompts)


def steps(project: ScratchProject, name: str) -> tuple[Step, ...]:
    """Return the steps of a workflow, which is then that of the project's runs."""
    path = project.folder / "orchestration.yaml"
    path.write_text(json.dumps({**json.loads(path.read_text()), "workflow": name}))
    return project.run().workflow.steps


def planned(project: ScratchProject, request: str, *options: str) -> Any:
    return project.run_command("plan", "--json", "--request", request, *options).json


def test_a_built_in_procedure_can_be_changed(project: ScratchProject) -> None:
    changed = steps(project, "full-development")
    assert changed[1].agent == "tests"
    assert changed[1].validation is not None
    assert changed[3].prompt == "subroutines/verbose-summary.md"
    # What extends it has the changes too.
    assert steps(project, "my-dev")[2].agent == "tests"


def test_a_gate_can_be_removed(project: ScratchProject) -> None:
    gate = steps(project, "debugger-unattended")[1]
    assert (gate.name, gate.requires_approval, gate.approval) == ("get-approval", False, None)


def test_a_fixer_can_be_changed_by_its_name(project: ScratchProject) -> None:
    validation = steps(project, "thrifty")[1].validation
    assert validation is not None
    assert validation.fixer is not None
    assert validation.fixer.model == "sonnet"


def test_steps_can_be_added_and_omitted(project: ScratchProject) -> None:
    assert [step.name for step in steps(project, "my-dev")] == [
        *("coding-activity", "tidy", "verifications", "security-review", "git-gh")
    ]
    assert [step.name for step in steps(project, "hand-over")] == [
        *("coding-activity", "verifications", "hand-over", "concise-summary")
    ]
    listed = project.run_command("plan", "--list", "--json").json
    procedures = {one["name"] for one in listed if one["kind"] == "procedure"}
    assert {"my-dev", "triage"} <= procedures


def test_routing_and_roles_can_be_configured(project: ScratchProject) -> None:
    planning = planned(project, "Plan how to move")
    assert (planning["classification"], planning["procedure"]) == ("planning", "orchestrator-full")
    unclear = planned(project, "zzz")
    assert (unclear["source"], unclear["procedure"]) == ("fallback", "plan-mode")
    labels = ("--label", "Spike", "--label", "bug")
    found = planned(project, "x", *labels, "--procedure", "full-development")
    assert found["steps"][0]["append_system_prompt"] == [
        *("system/researcher.md", "system/shared.md")
    ]
    assert list(found["substitutions"].values()) == ["https://linear.app/acme/"]
