"""Lists of tasks from the command line: each form runs as a team, and all mistakes are told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.acceptance.cli_process import cli

AGENT = """\
import os, sys
prompt = sys.stdin.read()
with open("told.txt", "a") as file:
    file.write("--- " + os.environ["SEQUENCER_STEP"] + "\\n" + prompt)
print(os.environ["SEQUENCER_STEP"] + " is done")
"""
SETTINGS = """\
agent: {default: hand}
agents:
  hand: {kind: command, argv: ["{python}", -IS, agent.py]}
workflows:
  inline:
    tasks:
      - {id: first, subject: Do it, description: All of it, role: researcher}
      - {id: second, subject: Go on, blocked_by: first}
  page: page.md
  listed: {file: lists/tasks.yaml}
"""
PAGE = """\
# A page

## first: Do it
role: researcher

All of it

## second: Go on
blocked_by: first
"""
LIST = """\
tasks:
  - {id: first, subject: Do it, description: All of it, role: researcher}
  - {id: second, subject: Go on, blocked_by: [first]}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "orchestration.yaml").write_text(SETTINGS)
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "page.md").write_text(PAGE)
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "tasks.yaml").write_text(LIST)
    return tmp_path


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize(
    "asked",
    [
        *(("--workflow", "inline"), ("--workflow", "page"), ("--workflow", "listed")),
        *(("inline",), ("page",), ("page.md",), ("lists/tasks.yaml",)),
    ],
    ids=" ".join,
)
def test_every_form_runs(project: Path, asked: tuple[str, ...]) -> None:
    done = cli(project, "run", *asked)
    assert done.returncode == 0, done.stderr
    told = (project / "told.txt").read_text()
    first, second = told.split("--- second\n")
    assert first.startswith("--- first\n")
    assert "# Role: researcher" in first
    assert "# Your task: Do it\n\nAll of it" in first
    assert "# Your task: Go on" in second
    assert "first is done" in second
    assert "Role:" not in second


def test_valid_lists_pass_and_unsupported_role_settings_are_listed(project: Path) -> None:
    done = cli(project, "check")
    assert done.returncode == 0, done.stdout
    assert "error:" not in done.stdout
    (told,) = [line for line in done.stdout.splitlines() if "it does not support tools" in line]
    assert told.endswith("it does not support tools, which roles of its tasks set")
    for name in ("inline", "page", "listed"):
        assert f"workflow {name}, agent hand" in told


def test_they_are_shown_as_graphs(project: Path) -> None:
    found = json.loads(cli(project, "plan", "--list", "--json").stdout)
    kinds = {entry["name"]: entry["kind"] for entry in found}
    assert [kinds[name] for name in ("inline", "page", "listed")] == ["graph"] * 3
    for name in ("inline", "page", "page.md", "listed"):
        shown = cli(project, "plan", name)
        assert shown.returncode == 0, shown.stderr
        assert "Do it" in shown.stdout
        drawn = cli(project, "plan", name, "--mermaid").stdout
        assert 'n0["Do it"]' in drawn
        assert "n0 --> n1" in drawn


def test_a_dry_run_starts_nothing(project: Path) -> None:
    done = cli(project, "run", "inline", "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["agents"] == {"first": "hand", "second": "hand"}
    assert report["in_the_way"] == []
    assert not (project / "told.txt").exists()


def test_an_unsupported_field_set_by_the_author_is_an_error(project: Path) -> None:
    page = PAGE.replace("role: researcher", "tools: {bash: false}")
    (project / "page.md").write_text(page)
    done = cli(project, "check")
    assert done.returncode == 2
    assert "page.md:3:1" in done.stdout
    assert "does not support tools" in done.stdout
    assert cli(project, "run", "page").returncode == 2
    assert not (project / "told.txt").exists()


def test_all_mistakes_in_all_lists_are_reported(project: Path) -> None:
    text = (project / "orchestration.yaml").read_text()
    (project / "orchestration.yaml").write_text(
        text.replace("blocked_by: first", "blocked_by: fist")
    )
    done = cli(project, "check")
    assert done.returncode == 2
    where = "orchestration.yaml:8:38: workflows.inline.tasks[1].blocked_by[0]"
    assert f"{where}: there is no task 'fist' to wait for" in done.stdout
    assert "did you mean 'first'?" in done.stdout
    (project / "orchestration.yaml").write_text(text)
    (project / "page.md").write_text(PAGE.replace("role: researcher", "blocked_by: second"))
    (project / "lists" / "tasks.yaml").write_text(LIST.replace("role: researcher", "role: seeker"))
    done = cli(project, "check")
    assert done.returncode == 2
    assert (
        "page.md:4:1: tasks wait for each other in a circle: first -> second -> first"
        in done.stdout
    )
    assert "lists/tasks.yaml:2:57: there is no role 'seeker'" in done.stdout
    refused = cli(project, "run", "page")
    assert refused.returncode == 2
    assert "first -> second -> first" in refused.stderr
