"""``teams:`` of orchestration.yaml, and the roles that come of it."""

from __future__ import annotations

from typing import Any

import pytest

from sequencer.model.fields import ValidationError
from sequencer.model.step import Step
from sequencer.model.team import Budget, Role, TeamRules
from sequencer.project import builtin_texts
from sequencer.workflows.requests.options import WORDS
from sequencer.workflows.teams.options import ScoreSettings, TeamOptions, builtin_roles, roles
from sequencer.workflows.teams.scoring import CLASSIFICATIONS, KEYWORDS, LABELS

WRITTEN: dict[str, Any] = {
    "budget": {"max_cost_usd": 3, "soft": 0.5, "on_hard": "kill"},
    "max_failures": 2,
    "max_tasks": 30,
    "merge": "finished",
    "on_write": "fail",
    "fallback_agent": "codex",
    "fallback_model": "small",
}
NAMES = ["researcher", "implementer", "verifier", "git-handler", "summarizer", "lead"]


def test_the_rules_of_a_team_are_those_of_the_model() -> None:
    assert TeamOptions().rules == TeamRules()
    known = {"plain": Role(writes=True), "dear": Role(budget=Budget(max_tokens=9))}
    rules = TeamOptions(roles=known, **WRITTEN).rules
    assert rules == TeamRules(role_budgets={"dear": Budget(max_tokens=9)}, **WRITTEN)
    assert set(TeamRules.model_fields) - {"role_budgets"} == set(WRITTEN)
    for name in WRITTEN:
        here, there = TeamOptions.model_fields[name], TeamRules.model_fields[name]
        assert (here.default, here.limits, here.annotation) == (
            *(there.default, there.limits, there.annotation),
        )


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
def test_what_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TeamOptions.model_validate(wrong)


def test_what_is_built_in() -> None:
    options = TeamOptions()
    assert (options.enabled, options.threshold, options.max_size) == (False, 60, 4)
    assert options.classifications == ("orchestrator", "debugger", "code")
    assert set(options.classifications) == set(WORDS) - set(ScoreSettings().never)
    assert set(CLASSIFICATIONS) < set(options.classifications)
    # More of them never lowers a score.
    assert min(KEYWORDS.values()) > 0
    assert min(LABELS.values()) == -100
    ScoreSettings(keywords=dict(KEYWORDS), labels=dict(LABELS))


# --- roles -------------------------------------------------------------------------------


def role(**fields: object) -> Role:
    return Role.model_validate(fields)


@pytest.mark.parametrize("name", NAMES)
def test_each_is_a_set_of_step_fields_with_a_prompt_that_comes_along(name: str) -> None:
    step = Step.model_validate({"name": name, **builtin_roles()[name].step})
    assert step.added_system_prompts == (f"team/{name}.md", "system/shared.md")
    for prompt in step.added_system_prompts:
        assert len(builtin_texts()[prompt]) > 500
    own = builtin_texts()[f"team/{name}.md"]
    assert own.startswith(f"# Role: {name.replace('-', ' ')}\n")
    assert "{{" not in own


LOOKS = {"read": True, "glob": True, "grep": True, "write": False, "edit": False, "bash": False}


def test_what_the_built_in_ones_may_do() -> None:
    found = builtin_roles()
    assert list(found) == NAMES
    assert {name: (one.writes, one.worktree) for name, one in found.items()} == {
        **dict.fromkeys(NAMES, (False, False)),
        "implementer": (True, True),
        "git-handler": (True, False),
    }
    assert {name: one.step.get("tools") for name, one in found.items()} == {
        **dict.fromkeys(NAMES, LOOKS),
        "implementer": None,
        "verifier": {"bash": True, "write": False, "edit": False},
        "git-handler": {"bash": True, "edit": False},
    }
    assert {name for name, one in found.items() if "validation" in one.step} == {"verifier"}
    step = Step.model_validate({"name": "v", **found["verifier"].step})
    assert step.validation is not None
    assert step.validation.fixer is not None
    assert (step.validation.max_attempts, step.validation.on_exhausted) == (3, "fail")
    assert step.validation.fixer.prompt == "subroutines/validation-fixer.md"
    assert found["lead"].step["output"] == {"format": "json"}
    assert found["lead"].step["retry"] == {"max_attempts": 3}


def test_a_project_changes_a_role_field_by_field_and_adds_some() -> None:
    added = role(executor="tests", writes=True)
    changed = roles(
        {
            "verifier": role(model="opus", tools={"bash": False}, worktree=True, validation=None),
            "implementer": role(writes=False, budget={"max_cost_usd": 2}),
            "tester": added,
        }
    )
    assert list(changed) == [*NAMES, "tester"]
    assert changed["tester"] == added
    found = changed["verifier"]
    # A step field is one: its old words are gone.
    assert found.step == {
        "append_system_prompt": ("team/verifier.md", "system/shared.md"),
        "tools": {"bash": False},
        "validation": None,
        "model": "opus",
    }
    assert (found.writes, found.worktree) == (False, True)
    found = changed["implementer"]
    assert (found.writes, found.worktree, found.budget) == (False, True, Budget(max_cost_usd=2))
    assert changed["researcher"] == builtin_roles()["researcher"]
    assert roles() == dict(builtin_roles()) != changed


def test_models_for_the_lead_and_for_the_others() -> None:
    options = {"tester": role(), "verifier": role(model=None), "researcher": role(model="mine")}
    found = roles(options, teammate_model="small", lead_model="large")
    assert {name: one.step["model"] for name, one in found.items()} == {
        **dict.fromkeys([*NAMES, "tester"], "small"),
        "lead": "large",
        "verifier": None,
        "researcher": "mine",
    }
    assert "model" not in roles(lead_model="large")["verifier"].step
    assert "model" not in roles(teammate_model="small")["lead"].step
