from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from sequencer.model.team import Budget, Role, TeamRules
from sequencer.settings.settings import load
from sequencer.workflows.requests.options import WORDS
from sequencer.workflows.teams.options import (
    CLASSIFICATIONS,
    KEYWORDS,
    LABELS,
    ScoreSettings,
    TeamOptions,
)


def test_what_nobody_wrote_down() -> None:
    options = load(Path("/"), env={}).teams
    assert options == TeamOptions()
    assert (options.enabled, options.threshold, options.max_size) == (False, 60, 4)
    assert options.classifications == ("orchestrator", "debugger", "code")
    assert (options.lead_model, options.teammate_model, options.roles) == (None, None, {})


def test_the_rules_of_a_team_are_those_of_the_model() -> None:
    assert TeamOptions().rules == TeamRules()


def test_the_rules_have_what_was_written_down() -> None:
    roles = {"plain": Role(writes=True), "dear": Role(budget=Budget(max_tokens=9))}
    written: dict[str, Any] = {
        "budget": {"max_cost_usd": 3, "soft": 0.5, "on_hard": "kill"},
        "max_failures": 2,
        "max_tasks": 30,
        "merge": "finished",
        "on_write": "fail",
    }
    rules = TeamOptions(roles=roles, **written).rules
    assert rules == TeamRules(role_budgets={"dear": Budget(max_tokens=9)}, **written)
    assert set(TeamRules.model_fields) - {"role_budgets"} == set(written)


def test_no_rule_has_two_defaults_or_two_bounds() -> None:
    for name in set(TeamRules.model_fields) - {"role_budgets"}:
        here, there = TeamOptions.model_fields[name], TeamRules.model_fields[name]
        assert (here.default, here.metadata, here.annotation) == (
            *(there.default, there.metadata, there.annotation),
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
        {"teammate_model": ""},
        {"merge": "first"},
        {"budget": {"max_cost_usd": float("inf")}},
        {"score": {"keywords": {"": 1}}},
        {"score": {"keywords": {"--": 1}}},
        {"score": {"keywords": {"a|b": 1}}},
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
    assert set(CLASSIFICATIONS) < set(WORDS)
    assert not set(CLASSIFICATIONS) & set(ScoreSettings().never)
    assert set(TeamOptions().classifications) == set(WORDS) - set(ScoreSettings().never)
    # More of them never lowers a score.
    assert min(KEYWORDS.values()) > 0
    assert min(LABELS.values()) == -100
    ScoreSettings(keywords=dict(KEYWORDS), labels=dict(LABELS))
