"""``teams:`` as the settings have it, also under the names that other programs use."""

from __future__ import annotations

from pathlib import Path

import pytest

from sequencer.settings.legacy import TEAM_KEYS
from tests.unit.settings.loading import loaded, refusal, refusals

TEAMS = """
teams:
  enabled: yes
  threshold: 70
  max_size: 6
  classifications: [orchestrator]
  lead_model: opus
  teammate_model: sonnet
  score:
    keywords: {payment: 20, refactor: 0}
    labels: {needs-a-team: 100}
    subtasks: {each: 10}
    size_from: [40, 60, 80]
  roles:
    verifier: {model: haiku, tools: {edit: false}, timeout_s: null, budget: {max_tokens: 5}}
    tester:
      writes: true
      single_turn: true
      output: {format: json, schema: {type: object, additionalProperties: false}}
  budget: {max_cost_usd: 12, on_hard: kill}
"""
ALIASES = """
enableAgentTeams: true
teamConfig:
  complexityThreshold: 55
  maxTeamSize: 6
  teammateModel: sonnet
  leadModel: opus
  enabledClassifications: [orchestrator, code]
"""


def test_the_step_fields_of_a_role_keep_their_types(tmp_path: Path) -> None:
    roles = loaded(tmp_path, TEAMS).teams.roles
    verifier, tester = roles["verifier"].step, roles["tester"].step
    # `null` is a statement there: it takes away what the built-in role has.
    assert verifier["timeout_s"] is None
    assert (verifier["model"], roles["verifier"].writes) == ("haiku", False)
    assert tester["output"]["schema"] == {"type": "object", "additionalProperties": False}


@pytest.mark.parametrize(
    ("old", "new", "place", "said"),
    [
        ("threshold: 70", "treshold: 70", "4:3: teams", "did you mean 'threshold'?"),
        ("threshold: 70", "threshold: 101", "4:3: teams.threshold", "less than or equal to 100"),
        ("max_size: 6", "max_size: 0", "5:3: teams.max_size", "greater than or equal to 1"),
        ("[orchestrator]", "[orchestra]", "6:21: teams.classifications[0]", "'orchestrator'"),
        ("each: 10", "eech: 10", "12:16: teams.score.subtasks", "did you mean 'each'?"),
        ("refactor: 0", "refactor: x", "10:29: teams.score.keywords.refactor", "a whole number"),
        ("model: haiku", "modle: haiku", "15:16: teams.roles.verifier", "did you mean 'model'?"),
        ("model: haiku", "model: -x", "15:16: teams.roles.verifier.model", "not begin with '-'"),
        (
            *("edit: false", "edti: false", "15:38: teams.roles.verifier.tools.edti"),
            "should be 'read'",
        ),
        ("model: haiku", "executor: x", "15:16: teams.roles.verifier.executor", "unknown agent"),
        ("model: haiku", "prompt: ../x", "15:16: teams.roles.verifier.prompt", "'..' in it"),
        (
            *("model: haiku", "system_prompt: /x", "15:16: teams.roles.verifier.system_prompt"),
            "name a file below the prompts folder",
        ),
        ("type: object", "type: objekt", "19:30: teams.roles.tester.output.schema", "objekt"),
        ("max_tokens: 5", "max_tokens: 0", "15:78: teams.roles.verifier.budget.max_t", "than 0"),
        ("writes: true", "requires_approval: true", "17:7: teams.roles.tester", "unknown key"),
        ("writes: true", "step: {model: x}", "16:5: teams.roles.tester", "unknown key 'step'"),
        ("writes: true", "step: 3", "16:5: teams.roles.tester", "stand beside the role's own"),
        ("refactor: 0", '"|": 0', "10:29: teams.score.keywords.|", "has a letter or a digit"),
        (
            *("    keywords", "    procedures: {nope: 20}\n    keywords"),
            *("10:18: teams.score.procedures.nope", "unknown procedure 'nope'"),
        ),
    ],
)
def test_a_wrong_value_is_refused_at_its_place(
    tmp_path: Path, old: str, new: str, place: str, said: str
) -> None:
    text = TEAMS.replace(old, new, 1)
    assert text != TEAMS
    error = refusal(tmp_path, text)
    assert f"orchestration.yaml:{place}" in str(error.where)
    assert said in str(error)


# --- the other names ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "place", "said"),
    [
        ("Teams: true", "Teams: 3", "2:1: enableAgentTeams", "expected true or false, not 3"),
        ("55", "550", "4:3: teamConfig.complexityThreshold", "less than or equal to 100, not 550"),
        ("maxTeamSize: 6", "maxTeamSize: six", "5:3: teamConfig.maxTeamSize", "not 'six'"),
        ("sonnet", "-sonnet", "6:3: teamConfig.teammateModel", "does not begin with '-'"),
        ("leadModel: opus", "leadModel: [a]", "7:3: teamConfig.leadModel", "expected text"),
        ("code]", "cod]", "8:42: teamConfig.enabledClassifications[1]", "'code'"),
        ("[orchestrator, code]", "code", "8:3: teamConfig.enabledClassif", "expected a list"),
        ("leadModel", "leadmodel", "7:3: teamConfig", "did you mean 'leadModel'?"),
        ("enableAgentTeams", "enableAgentTeam", "2:1", "unknown key 'enableAgentTeam'"),
    ],
)
def test_a_wrong_value_is_named_as_it_was_written(
    tmp_path: Path, old: str, new: str, place: str, said: str
) -> None:
    text = ALIASES.replace(old, new, 1)
    assert text != ALIASES
    error = refusal(tmp_path, text)
    assert f"orchestration.yaml:{place}" in str(error.where)
    assert said in str(error)


@pytest.mark.parametrize("value", ["yes", "[a]", "3"])
def test_a_configuration_of_teams_that_is_no_mapping(tmp_path: Path, value: str) -> None:
    error = refusal(tmp_path, f"teamConfig: {value}\n")
    assert str(error.where).endswith("orchestration.yaml:1:1: teamConfig")
    assert "expected a mapping" in str(error)


VALUES = {
    "enabled": ("true", "false"),
    "threshold": ("10", "20"),
    "max_size": ("2", "3"),
    "teammate_model": ("a", "b"),
    "lead_model": ("a", "b"),
    "classifications": ("[code]", "[debugger]"),
}


@pytest.mark.parametrize(("written", "path"), TEAM_KEYS.items(), ids=str)
@pytest.mark.parametrize("is_equal", [True, False])
def test_both_names_of_one_thing_are_refused(
    tmp_path: Path, written: tuple[str, ...], path: tuple[str, ...], is_equal: bool
) -> None:
    one, other = VALUES[path[1]]
    nested = f"{written[0]}: {{{written[1]}: {one}}}" if written[1:] else f"{written[0]}: {one}"
    key, value = path[1], one if is_equal else other
    for before in (True, False):
        new = f"teams:\n  {key}: {value}\n"
        text = f"{new}{nested}\n" if before else f"{nested}\n{new}"
        error = refusal(tmp_path, text)
        line = 3 if before else 1
        assert f"orchestration.yaml:{line}:" in str(error.where)
        assert str(error.where).endswith(f": {'.'.join(written)}")
        assert f"teams.{key} in line {2 if before else 3} says the same" in str(error)
        assert f"leave out {'.'.join(written)} or teams.{key}" in str(error)


def test_everything_that_is_wrong_is_told_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = "teams: {max_size: 99}\nteamConfig: {complexityThreshold: x, maxTeamSize: 3, leed: 1}\n"
    expected = [
        "1:9: teams.max_size: should be less",
        "2:14: teamConfig.complexityThreshold: expected a whole",
        "2:38: teamConfig.maxTeamSize: teams.max_size in line 1 says the same",
        "2:54: teamConfig: unknown key 'leed'",
    ]
    told = [str(error) for error in refusals(tmp_path, text)]
    assert len(told) == len(expected)
    assert all(part in line for part, line in zip(expected, told, strict=True))
