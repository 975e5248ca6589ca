"""``teams:`` of orchestration.yaml, and the roles that come of it."""

from __future__ import annotations

from typing import Any

import pytest

from sequencer.engine.prompts import builtin_texts
from sequencer.frozen.fields import ValidationError
from sequencer.model.step import Step
from sequencer.plugins.teams.options import TeamOptions, builtin_roles, merge_roles
from sequencer.plugins.teams.team import Role

NAMES = ["researcher", "implementer", "verifier", "git-handler", "summarizer", "lead"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"threshold": 101},
        {"threshold": -1},
        {"max_size": 0},
        {"max_size": 65},
        {"max_tasks": 1001},
        {"lead_model": "-x"},
        {"merge": "first"},
        {"budget": {"max_cost_usd": float("inf")}},
        *({"score": {"keywords": {word: 1}}} for word in ("", "--", "a|b")),
        {"score": {"keywords": {"a": 101}}},
        {"score": {"subtasks": {"each": -1}}},
        {"score": {"size_from": [101]}},
        {"team": 1},
    ],
)
def test_wrong_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TeamOptions.model_validate(wrong)


# --- roles -------------------------------------------------------------------------------


def role(**fields: object) -> Role:
    return Role.model_validate(fields)


@pytest.mark.parametrize("name", NAMES)
def test_each_role_has_step_fields_and_a_packaged_prompt(name: str) -> None:
    step = Step.model_validate({"name": name, **builtin_roles()[name].step})
    assert step.added_system_prompts == (f"team/{name}.md", "system/shared.md")
    for prompt in step.added_system_prompts:
        assert len(builtin_texts()[prompt]) > 500
    own = builtin_texts()[f"team/{name}.md"]
    assert own.startswith(f"# Role: {name.replace('-', ' ')}\n")
    assert "{{" not in own


def test_the_lead_and_the_others_may_have_different_models() -> None:
    options = {"tester": role(), "verifier": role(model=None), "researcher": role(model="mine")}
    found = merge_roles(options, teammate_model="small", lead_model="large")
    assert {name: one.step["model"] for name, one in found.items()} == {
        **dict.fromkeys([*NAMES, "tester"], "small"),
        "lead": "large",
        "verifier": None,
        "researcher": "mine",
    }
    assert "model" not in merge_roles(lead_model="large")["verifier"].step
    assert "model" not in merge_roles(teammate_model="small")["lead"].step
