from __future__ import annotations

from pathlib import Path

import pytest

from sequencer.errors import ConfigurationError
from sequencer.files.keys import iter_leaves
from sequencer.files.yamlfile import format_key_path
from sequencer.project.schema import Schema
from sequencer.project.settings import load
from sequencer.project.sources import IDENTITY_VARIABLES, variable_name


def write(tmp_path: Path, text: str) -> Path:
    (tmp_path / "orchestration.yaml").write_text(text, encoding="utf-8")
    return tmp_path


def test_variables_of_every_shape(tmp_path: Path) -> None:
    env = {
        "SEQUENCER_WORKFLOW__NAME": "review_cadence",
        "SEQUENCER_WORKFLOW__REVIEW_EVERY_N": "3",
        "SEQUENCER_LIMITS__COST_USD": "1e2",
        "SEQUENCER_ROUTER__ENABLED": "on",
        "SEQUENCER_ROUTER__PROMPT": "router.md",
        "SEQUENCER_ROUTER__ALLOWLIST": "main.md, reviewer.md",
        "SEQUENCER_AGENT__ROLES__SUPERVISOR": "codex",
        "SEQUENCER_AGENT__PROMPTS": "{reviewer.md: tests}",
        "SEQUENCER_AGENTS__TESTS__KIND": "command",
        "SEQUENCER_AGENTS__TESTS__ARGV": "[make, test]",
        "SEQUENCER_AGENTS__TESTS__RETRIES": "3",
        "SEQUENCER_STORE__JOURNAL__KEEP": "2",
        "SEQUENCER_STATE_FILE": "elsewhere/state.json",
    }
    settings = load(tmp_path, env=env)
    assert settings.workflow.name == "review_cadence"
    assert settings.workflow.review_every_n == 3
    assert settings.limits.cost_usd == 100.0
    assert settings.router.is_active
    assert settings.router.allowlist == ("main.md", "reviewer.md")
    assert settings.agent.roles == {"supervisor": "codex"}
    assert settings.agent.prompts == {"reviewer.md": "tests"}
    assert settings.agents["tests"].options == {"argv": ["make", "test"], "retries": 3}
    assert settings.store.journal.keep == 2
    assert settings.state_file == tmp_path / "elsewhere" / "state.json"
    assert settings.notices == ()


def test_a_list_may_be_written_in_yaml(tmp_path: Path) -> None:
    env = {"SEQUENCER_ROUTER__ALLOWLIST": '["a, b.md", c]'}
    assert load(tmp_path, env=env).router.allowlist == ("a, b.md", "c")
    with pytest.raises(ConfigurationError, match="SEQUENCER_ROUTER__ALLOWLIST:"):
        load(tmp_path, env={"SEQUENCER_ROUTER__ALLOWLIST": "[a"})


@pytest.mark.parametrize("variable", sorted(IDENTITY_VARIABLES))
def test_an_agents_identity_variables_set_nothing(tmp_path: Path, variable: str) -> None:
    settings = load(tmp_path, env={variable: "anything {"})
    assert settings == load(tmp_path, env={}) or settings.values == {}
    assert settings.notices == ()


def test_the_identity_variables_are_those_that_agents_get() -> None:
    told = "RUN_ID RUN_NAME WORKFLOW STEP POSITION STEP_INDEX ITERATION TOKEN ATTEMPT RESULT STATE"
    assert {f"SEQUENCER_{name}" for name in told.split()} == IDENTITY_VARIABLES


@pytest.mark.parametrize(
    ("variable", "said"),
    [
        ("SEQUENCER_LIMITS__MAX_COST", "did you mean SEQUENCER_LIMITS__COST_USD?"),
        ("SEQUENCER_WORKFLOW_NAME", "did you mean SEQUENCER_WORKFLOW__NAME?"),
        ("SEQUENCER_COLOUR_OF_THE_SKY", "there is no such setting"),
        ("SEQUENCER_", "there is no such setting"),
        ("SEQUENCER_ROUTER", "SEQUENCER_ROUTER__MODE"),
        ("SEQUENCER_AGENTS", "SEQUENCER_AGENTS__NAME"),
        ("SEQUENCER_STEP_DEFAULTS__NAME__X", "there is no such setting"),
    ],
)
def test_an_unknown_variable_is_noticed(tmp_path: Path, variable: str, said: str) -> None:
    (notice,) = load(tmp_path, env={variable: "1", "HOME": "/", "OTHER": "x"}).notices
    assert notice.startswith(f"{variable} is ignored")
    assert said in notice


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SEQUENCER_LIMITS__STEPS", "many"),
        ("SEQUENCER_RUN__MODE", "fast"),
        ("SEQUENCER_ROUTER__ENABLED", "perhaps"),
        ("SEQUENCER_AGENT__DEFAULT", "robot"),
        ("SEQUENCER_STATE_FILE", "a\0b"),
    ],
)
def test_a_wrong_value_names_its_variable(tmp_path: Path, variable: str, value: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load(tmp_path, env={variable: value})
    assert str(refused.value.where).startswith(variable)


def test_a_completely_replaced_mapping_leaves_no_sources_behind(tmp_path: Path) -> None:
    write(tmp_path, "agents: {claude: {kind: command, argv: [a]}}\n")
    settings = load(tmp_path, env={"SEQUENCER_AGENTS__CLAUDE": "{}"})
    assert settings.agents["claude"].options == {}
    rows = {format_key_path(key): (value, str(source)) for key, value, source in settings.rows()}
    assert rows["agents.claude"] == ({}, "SEQUENCER_AGENTS__CLAUDE")
    assert "agents.claude.argv" not in rows


def test_every_scalar_key_can_be_set_by_a_variable(tmp_path: Path) -> None:
    for path, default in iter_leaves(Schema):
        if path[0] == "step_defaults" or isinstance(default, dict):
            continue
        wrong = load_problem(tmp_path, variable_name(path))
        assert "is ignored" not in wrong


def load_problem(tmp_path: Path, variable: str) -> str:
    try:
        return " ".join(load(tmp_path, env={variable: "1"}).notices)
    except ConfigurationError as error:
        return str(error)
