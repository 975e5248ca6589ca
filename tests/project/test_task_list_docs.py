"""The page about lists of tasks says what the code does: keys, roles, forms, charts."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

from sequencer.files.keys import iter_leaves, known_keys
from sequencer.files.yamlfile import parse
from sequencer.plugins.teams.entries import ListFile, TaskEntry
from sequencer.plugins.teams.expansion import tasks_of_answer
from sequencer.plugins.teams.graphs import build_task_workflow
from sequencer.plugins.teams.lists import (
    SHARED,
    builtin_tasks,
    is_task_list,
    read_page,
    read_task_list,
)
from sequencer.plugins.teams.options import builtin_roles, merge_roles
from sequencer.plugins.teams.team import STEP_FIELDS
from sequencer.project.settings import load
from sequencer.workflows.mermaid.parser import read_chart
from tests.project.documents import ROOT, fences

PAGE = ROOT / "docs" / "reference" / "teams.md"
TEXT = PAGE.read_text()
ROW = re.compile(r"^\| `([^`]+)` \| ([^|]+) \| ([^|]+) \| (.+) \|$", re.MULTILINE)


def part(heading: str) -> str:
    return TEXT.split(f"\n{heading}\n", 1)[1].split(f"\n{heading.split(maxsplit=1)[0]} ", 1)[0]


def fenced(language: str) -> list[str]:
    return [fence.text for fence in fences(PAGE) if fence.language == language]


def told(default: Any) -> str:
    if isinstance(default, bool) or default is None:
        return str(default).lower()
    if isinstance(default, float):
        return f"`{default:g}`"
    return f"`{default}`" if default else "empty"


def test_the_keys_of_a_file_and_of_a_task_are_listed() -> None:
    rows = {key: default for key, _, default, _ in ROW.findall(part("## Tasks"))}
    own = {
        ".".join(map(str, path)): default
        for path, default in iter_leaves(TaskEntry)
        if path[0] not in STEP_FIELDS
    }
    assert rows.keys() == set(ListFile.model_fields) | own.keys()
    for key, default in own.items():
        if key not in ("id", "subject"):
            assert rows[key] == told(default), key


def test_the_step_fields_a_task_does_not_have_are_listed() -> None:
    said = "every [step field](configuration.md#step-fields) except `name`, `description`"
    assert f"{said}, `requires_approval` and `approval`" in TEXT
    assert set(known_keys(TaskEntry, ())) >= STEP_FIELDS
    assert not {"name", "requires_approval", "approval"} & set(known_keys(TaskEntry, ()))


def test_the_yaml_list_creates_a_team_also_in_its_own_file(tmp_path: Path) -> None:
    text = next(text for text in fenced("yaml") if text.startswith("workflows:"))
    (tmp_path / "orchestration.yaml").write_text(text)
    made = load(tmp_path, env={}).registry.get("search")
    assert made.graph is not None
    assert made.graph.max_parallel == 3
    assert made.steps[2].model == "opus"
    alone = textwrap.dedent("".join(text.splitlines(keepends=True)[2:]))
    assert (
        read_task_list(parse(alone.encode(), Path("search.yaml")), merge_roles()).workflow == made
    )


def test_the_page_is_a_list_of_tasks() -> None:
    (page,) = fenced("markdown")
    assert is_task_list(page)
    document, problems = read_page(page, Path("search.md"))
    assert problems == []
    made = read_task_list(document, merge_roles())
    assert (made.title, made.description) == ("Ship the search", "What it is about, for people.")
    look, build = made.graph.nodes
    assert (look.label, build.label) == ("Find out how search works", "Build the index")
    assert build.task is not None
    assert build.task.blocked_by == ("look",)
    assert "### What stays" in build.task.description


def test_all_roles_are_listed_with_their_permissions() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \| (.+?) \| (\w+) \| (\w+) \| .+ \|$", TEXT, re.MULTILINE)
    assert [name for name, *_ in rows] == list(builtin_roles())
    for name, tools, writes, worktree in rows:
        role = builtin_roles()[name]
        has, _, lacks = tools.partition("not ")
        told_tools = dict.fromkeys(re.findall(r"`(\w+)`", has), True)
        told_tools |= dict.fromkeys(re.findall(r"`(\w+)`", lacks), False)
        assert told_tools == role.step.get("tools", {}), name
        assert (writes == "yes", worktree == "yes") == (role.writes, role.worktree), name


def test_the_answers_of_leads_are_accepted() -> None:
    plain, issues = map(json.loads, fenced("json"))
    assert [task.id for task in tasks_of_answer("tasks", plain)] == ["api", "check"]
    assert [task.id for task in tasks_of_answer("sub-issues", issues)] == [
        *("impl-api", "verify-api", "impl-page", "verify-page")
    ]


@pytest.mark.parametrize("name", SHARED)
def test_the_charts_match_what_the_builders_produce(name: str) -> None:
    drawn = read_chart(part(f"### {name}").split("```mermaid\n")[1].split("```")[0])
    graph = build_task_workflow(name, builtin_tasks(name, 4), merge_roles()).graph
    assert graph is not None
    assert {node.id for node in drawn.nodes} == graph.by_id.keys()
    assert {(edge.source, edge.target) for edge in drawn.edges} == {
        (edge.source, edge.target) for edge in graph.edges
    }
