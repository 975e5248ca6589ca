"""`sequencer plan --request`: what a request would gain from a team, as a person asks for it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.cli_process import cli

BIG = """\
# Migrate the frontend and backend

Refactor it end-to-end.

- [ ] screens
- [ ] requests
- [ ] sessions
- [ ] tests
"""
CONFIGURATION = """\
agent: {default: script}
agents:
  script: {kind: command, argv: ["{python}", -c, "print(1)"]}
teams: {enabled: true}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "orchestration.yaml").write_text(CONFIGURATION)
    (tmp_path / "big.md").write_text(BIG)
    return tmp_path


def told(project: Path, *arguments: str) -> dict[str, Any]:
    ended = cli(project, *asked(arguments), "--json")
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    team: dict[str, Any] = found.pop("team")
    assert sum(reason["points"] for reason in team["reasons"]) == team["score"]
    return found | team


def asked(arguments: Iterable[str]) -> list[str]:
    first, *rest = arguments
    return ["plan", *(() if first == "--file" else ("--request",)), first, *rest]


def test_the_score_of_a_file_as_a_table(project: Path) -> None:
    ended = cli(project, "plan", "--file", "big.md")
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert lines[0] == "full-development  (it starts with a change to make)"
    assert lines[lines.index("") - 6 : lines.index("")] == [
        "team: yes  (the score 60 reaches teams.threshold (60))",
        "score: 60 of 100, for a team of 3",
        "POINTS  FOR",
        "   +40  keywords: refactor, migrate, end-to-end, frontend and backend",
        "   +15  listed sub-tasks: 4",
        "    +5  components: 2 (frontend, backend)",
    ]


def test_a_label_or_a_procedure_decides_the_classification(project: Path) -> None:
    for arguments in (["Fix it", "--label", "bug"], ["Fix it", "--procedure", "debugger-full"]):
        found = told(project, *arguments)
        assert found["procedure"] == "debugger-full"
        assert (found["classification"], found["score"]) == ("debugger", 50)
        assert (found["uses_team"], found["why"]) == (
            *(False, "the score 50 is below teams.threshold (60)"),
        )


def test_a_classifier_agent_decides_the_kind(project: Path) -> None:
    text = CONFIGURATION.replace("print(1)", "print('Orchestrator.')")
    (project / "orchestration.yaml").write_text(f"{text}routing: {{classifier: script}}\n")
    found = told(project, "Strawberries")
    assert (found["classification"], found["score"], found["size"]) == ("orchestrator", 80, 4)
    assert found["uses_team"]


def test_a_question_never_gets_a_team(project: Path) -> None:
    found = told(project, "How would one refactor and migrate it?", "--label", "team")
    assert (found["classification"], found["score"], found["uses_team"]) == ("question", 0, False)
    assert found["request"]["labels"] == ["team"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["", "--label", "x"], "the request is empty"),
        (["x", "--file", "big.md"], "not both"),
        (["--file", "none.md"], "can't be read"),
        (["x", "--procedure", "full-dev"], "did you mean 'full-development'?"),
        (["x", "--label", ""], "labels.0"),
    ],
)
def test_invalid_arguments_are_refused(project: Path, arguments: list[str], said: str) -> None:
    ended = cli(project, *asked(arguments))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert said in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "uses_team"),
    [
        (["--file", "big.md"], True),
        (["--file", "big.md", "--label", "no-team"], False),
        (["Fix it", "--label", "bug", "--label", "large"], True),
        (["Break it into sub-issues"], True),
        (["Refactor it", "--label", "team", "--procedure", "release"], False),
        # Steps of the project's own, of which no team knows.
        (["Improve performance", "--label", "team", "--procedure", "mine"], False),
    ],
)
def test_start_follows_the_score(project: Path, arguments: list[str], uses_team: bool) -> None:
    own = "workflows: {mine: {kind: procedure, steps: [a]}}\nrouting: {procedures: {code: mine}}\n"
    if "mine" in arguments:
        (project / "orchestration.yaml").write_text(CONFIGURATION + own)
        (project / "prompts").mkdir()
        (project / "prompts" / "a.md").write_text("a\n")
    found = told(project, *arguments)
    ended = cli(project, "start", *arguments, "--no-run", "--json")
    assert ended.returncode == 0, ended.stderr
    started = json.loads(ended.stdout)["team"]
    assert (found["uses_team"], found["why"]) == (started["uses_team"], started["why"])
    assert (found["score"], found["uses_team"]) == (started["score"], uses_team)


def test_without_an_agent_plan_still_shows_the_chosen_procedure(
    project: Path,
) -> None:
    (project / "orchestration.yaml").write_text("routing: {classifier: rules}\n")
    asked = ("plan", "--request", "Fix the bug", "--label", "bug")
    ended = cli(project, *asked)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("debugger-full")
    assert "its steps can't be shown: agent 'auto'" in ended.stderr
    assert json.loads(cli(project, *asked, "--json").stdout)["steps"] is None
    assert cli(project, *asked, "--mermaid").returncode == 2


def test_planning_changes_no_files(project: Path) -> None:
    before = sorted(project.rglob("*"))
    told(project, "--file", "big.md")
    assert sorted(project.rglob("*")) == before


def test_control_characters_in_a_request_never_reach_the_terminal(project: Path) -> None:
    ended = cli(project, "plan", "--request", "Refactor\x1b[2J it\x07", "--label", "epic")
    assert ended.returncode == 0
    assert not {"\x1b", "\x07"} & set(ended.stdout)
