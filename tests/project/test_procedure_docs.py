"""docs/how-to/procedures-of-your-own.md: every example loads and does what is said about it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from sequencer.model.request import Request
from sequencer.plugins.requests.routing import system_prompts_for
from sequencer.plugins.requests.section import get_routing_settings
from sequencer.project.settings import Settings, load

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "procedures-of-your-own.md"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """All the examples of the page as one file."""
    whole: dict[str, dict[str, object]] = {}
    for example in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        for section, entries in yaml.safe_load(example).items():
            whole.setdefault(section, {}).update(entries)
    (tmp_path / "orchestration.yaml").write_text(yaml.safe_dump(whole, sort_keys=False))
    return load(tmp_path, env={})


def steps(settings: Settings, name: str) -> list[str]:
    return [step.name for step in settings.registry.get(name).steps]


def test_a_built_in_procedure_can_be_changed(settings: Settings) -> None:
    changed = settings.registry.get("full-development")
    assert changed.steps[1].agent == "tests"
    assert changed.steps[1].validation is not None
    assert changed.steps[3].prompt == "subroutines/verbose-summary.md"
    # What extends it has the changes too.
    assert settings.registry.get("my-dev").steps[2].agent == "tests"


def test_a_gate_can_be_removed(settings: Settings) -> None:
    gate = settings.registry.get("debugger-unattended").steps[1]
    assert (gate.name, gate.requires_approval, gate.approval) == ("get-approval", False, None)


def test_a_fixer_can_be_changed_by_its_name(settings: Settings) -> None:
    validation = settings.registry.get("thrifty").steps[1].validation
    assert validation is not None
    assert validation.fixer is not None
    assert validation.fixer.model == "sonnet"


def test_steps_can_be_added_and_omitted(settings: Settings) -> None:
    assert steps(settings, "my-dev") == [
        *("coding-activity", "tidy", "verifications", "security-review", "git-gh")
    ]
    assert steps(settings, "hand-over") == [
        *("coding-activity", "verifications", "hand-over", "concise-summary")
    ]
    assert {"my-dev", "triage"} <= set(settings.registry.procedure_names)


def test_routing_and_roles_can_be_configured(settings: Settings) -> None:
    routing = get_routing_settings(settings)
    assert routing.procedure_for("planning") == "orchestrator-full"
    assert routing.fallback == "plan-mode"
    request = Request(title="x", labels=("Spike", "bug"))
    assert system_prompts_for(request, routing) == ("system/researcher.md", "system/shared.md")
    assert list(routing.substitutions.values()) == ["https://linear.app/acme/"]
