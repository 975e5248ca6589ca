"""What claude needs for another provider arrives once that provider's switch is set."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.cli_process import cli, head

CASE = Path(__file__).with_name("cases") / "bedrock-variables"
BEDROCK = {
    "CLAUDE_CODE_USE_BEDROCK": "1",
    "AWS_PROFILE": "work",
    "AWS_REGION": "us-east-1",
    "ANTHROPIC_DEFAULT_SONNET_MODEL": "arn:aws:bedrock:x",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return Path(shutil.copytree(CASE, tmp_path / "project"))


def tried(project: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    search = f"{project}:/usr/local/bin:/usr/bin:/bin"
    return cli(project, *arguments, timeout_s=60, PATH=search, **variables)


def findings(project: Path, **variables: str) -> list[dict[str, Any]]:
    """Return what `check` finds about variables that an agent does not get."""
    ended = tried(project, "check", "--json", **variables)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found: list[dict[str, Any]] = json.loads(ended.stdout)["findings"]
    return [one for one in found if "provider's variable" in one["message"]]


def test_bedrock_variables_reach_the_agent_when_the_switch_is_set(project: Path) -> None:
    assert findings(project, **BEDROCK) == []
    ended = tried(project, "run", "--max-steps", "1", **BEDROCK)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert head(project)["step_index"] == 1


def test_without_the_switch_check_names_the_variables_not_passed(project: Path) -> None:
    (one,) = findings(project, **BEDROCK | {"CLAUDE_CODE_USE_BEDROCK": "0"}, GROQ_API_KEY="x")
    assert one["where"] == "agent claude"
    assert one["message"].endswith(": AWS_PROFILE, AWS_REGION, GROQ_API_KEY")
    assert one["hint"] == "if it needs one, name it in agents.claude.pass_env"
    assert "work" not in str(one)


def test_variables_named_in_pass_env_are_not_reported(project: Path) -> None:
    configuration = (project / "orchestration.yaml").read_text()
    passed = "program: standin, pass_env: [AWS_PROFILE, AWS_REGION]"
    (project / "orchestration.yaml").write_text(configuration.replace("program: standin", passed))
    assert findings(project, **BEDROCK | {"CLAUDE_CODE_USE_BEDROCK": "0"}) == []


def test_a_project_can_not_switch_a_persons_credentials_on(project: Path) -> None:
    configuration = (project / "orchestration.yaml").read_text()
    switched = 'program: standin, env: {CLAUDE_CODE_USE_BEDROCK: "1"}'
    (project / "orchestration.yaml").write_text(configuration.replace("program: standin", switched))
    variables = {name: value for name, value in BEDROCK.items() if "BEDROCK" not in name}
    (one,) = findings(project, **variables)
    assert one["message"].endswith(": AWS_PROFILE, AWS_REGION")
    ended = tried(project, "tick", **variables)
    assert ended.returncode != 0
    log = tried(project, "log").stdout
    assert "['CLAUDE_CODE_USE_BEDROCK', 'ANTHROPIC_DEFAULT_SONNET_MODEL']" in log


def test_an_agent_that_only_a_step_names_is_found_too(project: Path) -> None:
    configuration = (project / "orchestration.yaml").read_text()
    step = "{name: one, text: hello, agent: codex}"
    configuration = configuration.replace("{name: one, text: hello}", step)
    (project / "orchestration.yaml").write_text(configuration)
    shutil.copy(project / "standin", project / "codex")
    (one,) = findings(project, MISTRAL_API_KEY="x", CLAUDE_CODE_USE_BEDROCK="1")[:1]
    assert {each["where"] for each in findings(project, MISTRAL_API_KEY="x")} == {
        "agent claude",
        "agent codex",
    }
    assert one["message"].endswith(": MISTRAL_API_KEY")
