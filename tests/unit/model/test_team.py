"""Tasks, roles and budgets as they may be written."""

from __future__ import annotations

from typing import Any

import pytest

from sequencer.frozen.fields import ValidationError
from sequencer.model.graph.task import MAX_TASKS, Budget, TaskTraits
from sequencer.model.step import Step
from sequencer.plugins.teams.team import STEP_FIELDS, Role, Task, TeamBudget, TeamRules


def task(**fields: Any) -> Task:
    return Task.model_validate({"id": "t", "subject": "Do it", **fields})


@pytest.mark.parametrize("field", ["name", "requires_approval", "approval"])
def test_a_task_may_not_set_the_name_or_gate_of_a_step(field: str) -> None:
    assert field not in STEP_FIELDS
    with pytest.raises(ValidationError, match="is not known here"):
        task(**{field: "x"})
    with pytest.raises(ValidationError, match="is not a field that a task may set"):
        task(step={field: "x"})


def test_a_task_may_set_every_other_field_of_a_step() -> None:
    without = {"name", "requires_approval", "approval", "description"}
    assert Step.model_fields.keys() - without == STEP_FIELDS
    # None of them is one of a task's or a role's own, or it could not be told apart.
    own = (Task.model_fields.keys() | Role.model_fields.keys()) - {"step"}
    assert own.isdisjoint(STEP_FIELDS)
    assert Task.BESIDE == STEP_FIELDS


@pytest.mark.parametrize(
    "fields", [{"model": 3}, {"max_turns": 0}, {"prompt": "a.md", "text": "b"}, {"step": {"x": 1}}]
)
def test_wrong_step_fields_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        task(**fields)
    with pytest.raises(ValidationError):
        Role.model_validate(fields)


@pytest.mark.parametrize(
    "fields",
    [{"max_cost_usd": -1}, {"max_tokens": 0}, {"max_tokens": 1.5}, {"max_cost_usd": float("inf")}],
)
def test_invalid_budgets_are_refused(fields: dict[str, Any]) -> None:
    for model in (Budget, TeamBudget):
        with pytest.raises(ValidationError):
            model.model_validate(fields)


def test_the_rules_have_defaults() -> None:
    rules = TeamRules()
    assert rules.budget == TeamBudget(soft=0.8, on_hard="finish")
    assert (rules.max_failures, rules.max_tasks, rules.merge) == (5, 200, "auto")
    assert rules.on_write == "warn"
    assert rules.role_budgets == {}


@pytest.mark.parametrize(
    "fields",
    [
        {"max_failures": 0},
        {"max_tasks": MAX_TASKS + 1},
        {"merge": "random"},
        {"budget": {"soft": 0}},
        {"budget": {"soft": 1.1}},
        {"budget": {"on_hard": "stop"}},
        {"role_budgets": {"": {}}},
    ],
)
def test_invalid_rules_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TeamRules.model_validate(fields)


def test_default_traits_take_no_space() -> None:
    """They stand at every node of a definition."""
    assert TaskTraits().model_dump(exclude_defaults=True) == {}
    with pytest.raises(ValidationError):
        TaskTraits.model_validate({"unknown": 1})
