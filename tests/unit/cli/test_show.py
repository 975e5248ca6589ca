from __future__ import annotations

import re
from pathlib import Path

import pytest

from sequencer.workflows.registry import PROCEDURES
from tests.unit.cli.calling import call, project

CONFIGURATION = """\
workflow: {name: nightly}
agent:
  default: rehearsal
  roles: {main: slow}
  prompts: {check.md: quick}
agents:
  quick: {kind: rehearsal}
  slow: {kind: rehearsal, seconds: 1}
workflows:
  nightly:
    steps:
      - plan
      - {name: main, timeout_s: 60, max_turns: 5, retry: {max_attempts: 3}}
      - {name: verify, agent: quick, single_turn: true}
    review: {every: 4, step: {name: check}}
  release: {kind: procedure, steps: [build, publish]}
step_defaults: {timeout_s: 7200}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return project(tmp_path, CONFIGURATION)


def test_all_workflows_are_listed(folder: Path) -> None:
    called = call(folder, "plan", "--list")
    assert called.code == 0, called.err
    lines = called.out.splitlines()
    assert lines[0].split() == ["WORKFLOW", "KIND", "STEPS", "REVIEW", "FROM"]
    found = {line.split()[0]: line for line in lines[1 : lines.index("")]}
    cycles = {"review_cadence", "review_cadence2", "standard", "standard2"}
    assert list(found) == ["nightly", "release"]
    built_in = lines[-1].removeprefix("built in: ").split(", ")
    assert built_in == sorted({*PROCEDURES, *cycles} - {"release"})
    cells = r"nightly \* +cycle +plan, main, verify +check every 4 cycles +orch"
    assert re.match(cells, found["nightly"])
    assert re.match(r"release +procedure +build, publish +- +orchestration.yaml", found["release"])


def test_a_workflow_that_extends_another_is_shown_as_it_runs(folder: Path) -> None:
    text = CONFIGURATION.replace(
        "  release: {", "  mine: {extends: plan-mode, before: {plan-summary: [look]}}\n  release: {"
    )
    (folder / "orchestration.yaml").write_text(text)
    shown = call(folder, "plan", "mine", "--json").json
    assert shown["step_names"] == ["preparation", "look", "plan-summary"]
    assert (shown["kind"], shown["source"]) == ("procedure", "orchestration.yaml")


def test_one_workflow_as_a_table(folder: Path) -> None:
    lines = call(folder, "plan", "nightly").out.splitlines()
    assert lines[0].startswith("nightly: a cycle of 3 steps, without end; every cycle of 4")
    cells = [re.split(r"  +", line) for line in lines[3:]]
    assert cells == [
        ["0", "plan", "plan.md", "rehearsal", "agent.default", "7200 s"],
        ["1", "main", "main.md", "slow", "agent.roles", "60 s, 5 turns, 3 tries"],
        ["2", "verify", "verify.md", "quick", "agent of step 'verify'", "7200 s, single turn"],
        ["review", "check", "check.md", "quick", "agent.prompts", "7200 s"],
    ]


def test_a_review_that_depends_on_its_position_has_a_line_for_each(folder: Path) -> None:
    text = CONFIGURATION.replace("  prompts: {check.md: quick}\n", "")
    (folder / "orchestration.yaml").write_text(text)
    lines = call(folder, "plan", "nightly").out.splitlines()
    reviews = [line for line in lines if line.startswith("review")]
    assert [line.split("  ")[0] for line in reviews] == [
        "review at plan, verify",
        "review at main",
    ]
    assert "rehearsal" in reviews[0]
    assert "slow" in reviews[1]


def test_the_cadence_of_the_chosen_workflow_counts(tmp_path: Path) -> None:
    folder = project(tmp_path)
    assert call(folder, "plan", "review_cadence", "--json").json["review_every"] == 2


@pytest.mark.parametrize("arguments", [("--mermaid",), ("nightly", "--mermaid", "--json")])
def test_options_that_contradict_are_refused(folder: Path, arguments: tuple[str, ...]) -> None:
    assert call(folder, "plan", *arguments).code == 2


def test_auto_names_the_agent_it_selects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = project(tmp_path, "agent: {default: auto}\n")
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    for key in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(key, raising=False)
    assert "auto: none found" in call(folder, "plan", "standard").out
    (programs / "gemini").write_text("#!/bin/sh\n")
    (programs / "gemini").chmod(0o755)
    assert "auto: gemini" in call(folder, "plan", "standard").out


def test_a_chart_is_all_that_is_printed(folder: Path) -> None:
    called = call(folder, "plan", "nightly", "--mermaid")
    assert called.out.startswith("flowchart TD\n")
    assert called.err == ""


def test_the_list_shortens_a_workflow_with_many_steps(tmp_path: Path) -> None:
    tasks = "".join(f"      - {{id: task-{n:03d}, subject: Do {n}}}\n" for n in range(300))
    folder = project(tmp_path / "p", f"workflows:\n  big:\n    tasks:\n{tasks}")
    ended = call(folder, "plan", "--list")
    (line,) = (line for line in ended.out.splitlines() if line.startswith("big "))
    assert "task-000, task-001, " in line
    (more,) = re.findall(r"and (\d+) more", line)
    assert int(more) + line.count("task-") == 300
    assert max(map(len, ended.out.splitlines())) < 200
    (listed,) = (
        one for one in call(folder, "plan", "--list", "--json").json if one["name"] == "big"
    )
    assert len(listed["step_names"]) == 300


def test_a_picture_without_a_workflow_is_refused_with_a_hint(tmp_path: Path) -> None:
    ended = call(project(tmp_path / "p"), "plan", "--svg", "x.svg")
    assert ended.code == 2
    assert "sequencer plan WORKFLOW" in ended.err


@pytest.mark.parametrize("asked", [("plan", "--simulate"), ("plan", "--chart"), ("plan",)])
def test_a_link_out_of_the_project_is_not_read(tmp_path: Path, asked: tuple[str, ...]) -> None:
    folder, outside = project(tmp_path / "p"), tmp_path / "outside.md"
    outside.write_text("```mermaid\nflowchart TD\na[a secret]\n```\n### a\nWork.\n")
    (folder / "flows").mkdir()
    (folder / "flows" / "away.md").symlink_to(outside)
    called = call(folder, *asked, "flows/away.md")
    assert (called.code, called.out) == (2, "")
    assert "a link leads out of the project" in called.err
    assert call(folder, *asked, str(outside)).code == 0


def test_the_only_started_run_is_shown_if_the_default_run_has_not_started(
    tmp_path: Path,
) -> None:
    folder = project(tmp_path / "p", "agent: rehearsal\nlimits: {steps: 9}\n")
    assert call(folder, "run", "--run", "docs", "--max-steps", "1", "--quiet").code == 0
    for verb in ("status", "history", "log --path", "report"):
        ended = call(folder, *verb.split())
        assert (ended.code, "this uses run 'docs'" in ended.err) == (0, True), verb
        assert ("run         docs" if verb == "status" else "supervisor") in ended.out, verb
    assert call(folder, "status", "--json").json["run_id"] is None
    assert call(folder, "run", "--run", "more", "--max-steps", "1", "--quiet").code == 0
    listed = call(folder, "status").out.splitlines()
    assert [line.split()[0] for line in listed] == ["RUN", "docs", "more"]
    assert call(folder, "run", "--max-steps", "1", "--quiet").code == 0
    assert call(folder, "status").err == ""


def test_the_list_says_what_a_flowchart_is_for(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", "agent: {default: rehearsal}\n")
    chart = "```mermaid\nflowchart TD\n  a --> b\n```\n\n### a\n\nDo a.\n\n### b\n\nDo b.\n"
    (folder / "flows").mkdir()
    (folder / "flows" / "build.md").write_text(f"---\ndescription: Builds it.\n---\n\n{chart}")
    (entry,) = (e for e in call(folder, "plan", "--list", "--json").json if e["name"] == "build")
    assert entry["description"] == "Builds it."
    assert "Builds it." in call(folder, "plan", "--list").out
