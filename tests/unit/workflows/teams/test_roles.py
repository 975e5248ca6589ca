"""Built-in roles, and what a project makes of them."""

from __future__ import annotations

import json
import re

import pytest

from sequencer.model.outcome import Outcome, OutcomeStatus
from sequencer.model.step import Step
from sequencer.model.team import Budget, Role
from sequencer.project import builtin_texts
from sequencer.workflows.teams.lists import SHARED, builtin_tasks
from sequencer.workflows.teams.options import FIXER, LEAD, builtin_roles, roles
from sequencer.workflows.verdicts import verdict_of

NAMES = ["researcher", "implementer", "verifier", "git-handler", "summarizer", "lead"]


def role(**fields: object) -> Role:
    return Role.model_validate(fields)


def test_there_are_six() -> None:
    assert list(builtin_roles()) == NAMES
    assert {FIXER, LEAD} < set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_each_is_a_set_of_step_fields_with_a_prompt_that_comes_along(name: str) -> None:
    step = Step.model_validate({"name": name, **builtin_roles()[name].step})
    assert step.added_system_prompts == (f"team/{name}.md", "system/shared.md")
    for prompt in step.added_system_prompts:
        assert len(builtin_texts()[prompt]) > 500
    own = builtin_texts()[f"team/{name}.md"]
    assert own.startswith(f"# Role: {name.replace('-', ' ')}\n")
    assert "{{" not in own


@pytest.mark.parametrize("name", ["researcher", "summarizer", "lead"])
def test_some_only_read(name: str) -> None:
    found = builtin_roles()[name]
    assert not found.writes
    assert not found.worktree
    assert [found.step["tools"][word] for word in ("write", "edit", "bash")] == [False] * 3
    assert found.step["tools"]["read"] is True


def test_a_verifier_runs_things_and_edits_nothing() -> None:
    assert builtin_roles()["verifier"].step["tools"] == {
        "bash": True,
        "write": False,
        "edit": False,
    }
    assert not builtin_roles()["verifier"].writes


def test_a_verifier_judges() -> None:
    step = Step.model_validate({"name": "v", **builtin_roles()["verifier"].step})
    assert step.validation is not None
    assert (step.validation.max_attempts, step.validation.on_exhausted) == (3, "fail")
    assert step.validation.fixer is not None
    assert step.validation.fixer.prompt == "subroutines/validation-fixer.md"
    assert [name for name, role in builtin_roles().items() if "validation" in role.step] == [
        "verifier"
    ]


@pytest.mark.parametrize("is_yes", [True, False])
def test_a_verifier_is_told_to_answer_what_is_understood(*, is_yes: bool) -> None:
    (line,) = re.findall(r"^\{.*\}$", builtin_texts()["team/verifier.md"], re.MULTILINE)
    said = line if is_yes else line.replace("true", "false")
    verdict = verdict_of(Outcome(status=OutcomeStatus.OK, output=said), is_command=False)
    assert (verdict.is_pass, verdict.source) == (is_yes, "json")
    assert verdict.reason == json.loads(line)["reason"]


def test_a_project_takes_the_judging_away() -> None:
    assert roles({"verifier": role(validation=None)})["verifier"].step["validation"] is None


def test_a_git_handler_has_a_shell_and_no_editor() -> None:
    found = builtin_roles()["git-handler"]
    assert found.step["tools"] == {"bash": True, "edit": False}
    assert (found.writes, found.worktree) == (True, False)


def test_an_implementer_writes_in_a_work_tree_of_its_own_with_every_tool() -> None:
    found = builtin_roles()["implementer"]
    assert (found.writes, found.worktree) == (True, True)
    assert "tools" not in found.step


def test_a_lead_answers_json() -> None:
    assert builtin_roles()["lead"].step["output"] == {"format": "json"}


def test_without_options_they_are_as_they_come() -> None:
    assert roles() == dict(builtin_roles())


def test_a_project_changes_a_role_field_by_field() -> None:
    changed = roles({"verifier": role(model="opus", tools={"bash": False}, worktree=True)})
    found = changed["verifier"]
    assert found.step["model"] == "opus"
    # A step field is one: its old words are gone.
    assert found.step["tools"] == {"bash": False}
    assert found.step["append_system_prompt"] == ("team/verifier.md", "system/shared.md")
    assert (found.writes, found.worktree) == (False, True)
    assert changed["researcher"] == builtin_roles()["researcher"]


def test_what_a_project_does_not_write_stays() -> None:
    found = roles({"implementer": role(max_turns=3)})["implementer"]
    assert (found.writes, found.worktree) == (True, True)
    assert roles({"implementer": role(writes=False)})["implementer"].worktree is True


def test_null_takes_a_step_field_away() -> None:
    found = roles({"researcher": role(tools=None)})["researcher"]
    assert found.step["tools"] is None


def test_a_budget_is_a_role_s_own() -> None:
    found = roles({"researcher": role(budget={"max_cost_usd": 2})})["researcher"]
    assert found.budget == Budget(max_cost_usd=2)


def test_a_project_adds_roles() -> None:
    added = role(executor="tests", writes=True)
    found = roles({"tester": added})
    assert list(found) == [*NAMES, "tester"]
    assert found["tester"] == added


def test_changes_do_not_reach_the_built_in_roles() -> None:
    before = builtin_roles()["verifier"].model_copy(deep=True)
    roles({"verifier": role(model="x")}, teammate_model="y")
    assert builtin_roles()["verifier"] == before


def test_models_for_the_lead_and_for_the_others() -> None:
    found = roles({"tester": role()}, teammate_model="small", lead_model="large")
    assert {name: one.step["model"] for name, one in found.items()} == {
        **dict.fromkeys([*NAMES, "tester"], "small"),
        "lead": "large",
    }


def test_a_role_s_own_model_goes_before() -> None:
    options = {"lead": role(model="mine"), "verifier": role(model=None)}
    found = roles(options, teammate_model="small", lead_model="large")
    assert found["lead"].step["model"] == "mine"
    assert found["verifier"].step["model"] is None


def test_one_model_leaves_the_others_alone() -> None:
    assert "model" not in roles(lead_model="large")["verifier"].step
    assert "model" not in roles(teammate_model="small")["lead"].step


def test_the_builders_use_only_these() -> None:
    used = {task.role for name in SHARED for task in builtin_tasks(name, 6)}
    assert used == set(NAMES)
