"""The page about lists of tasks says what the code does: keys, roles, forms, charts."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from sequencer import Workflow
from sequencer.testing import ScratchProject
from tests.project.documents import ROOT, fences, offered, refusal_of

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


NO_STEP_FIELDS = {"name", "description", "requires_approval", "approval"}
WRONG = "tasks: [{id: a, subject: b, role: nobody, zork: 1}]\nzork: 1\n"


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the JSON schema of orchestration.yaml, which says what a task may have."""
    return ScratchProject(tmp_path_factory.mktemp("schema")).run_command("check", "--schema").json


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return what is said about a list with wrong keys and a wrong role."""
    return refusal_of(tmp_path_factory.mktemp("wrong"), "wrong.yaml", WRONG)


def described(schema: Any, *names: str) -> dict[str, Any]:
    """Return the part of *schema* about things that have all of these keys: its keys."""
    (found,) = [
        one["properties"]
        for one in schema["$defs"].values()
        if {*names} <= one.get("properties", {}).keys()
    ]
    return dict(found)


def leaves(schema: Any, keys: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each key, with those inside of it, and its default."""
    for key, value in keys.items():
        if reference := value.get("$ref"):
            inner = schema["$defs"][reference.rpartition("/")[2]]["properties"]
            yield from ((f"{key}.{name}", one) for name, one in leaves(schema, inner))
        else:
            yield key, value.get("default")


def step_fields(schema: Any) -> set[str]:
    return {*described(schema, "name", "requires_approval", "retry", "text")} - NO_STEP_FIELDS


def workflow(folder: Path, **configuration: Any) -> Workflow:
    """Return the workflow of a project's runs."""
    return ScratchProject(folder, configuration).run().workflow


def test_the_keys_of_a_file_and_of_a_task_are_listed(
    tmp_path: Path, schema: Any, refused: str
) -> None:
    rows = {key: default for key, _, default, _ in ROW.findall(part("## Tasks"))}
    task = described(schema, "subject", "blocked_by", "role", "adds")
    assert sorted(task) == offered(refused, "tasks[0]: unknown key 'zork'")
    own = dict(leaves(schema, {key: task[key] for key in task.keys() - step_fields(schema)}))
    assert rows.keys() == {*offered(refused, "2:1: unknown key 'zork'")} | own.keys()
    # It can be written in two ways, and the schema has no default of it.
    (tmp_path / "one.yaml").write_text("tasks: [{id: a, subject: b}]\n")
    (node,) = ScratchProject(tmp_path).run_command("plan", "one.yaml", "--json").json["nodes"]
    own["blocked_by"] = node["blocked_by"]
    for key, default in own.items():
        if key not in ("id", "subject"):
            assert rows[key] == told(default), key


def test_the_step_fields_a_task_does_not_have_are_listed(schema: Any, refused: str) -> None:
    said = "every [step field](configuration.md#step-fields) except `name`, `description`"
    assert f"{said}, `requires_approval` and `approval`" in TEXT
    known = {*offered(refused, "tasks[0]: unknown key 'zork'")}
    assert known >= step_fields(schema)
    assert not {"name", "requires_approval", "approval"} & known


def test_the_yaml_list_creates_a_team_also_in_its_own_file(tmp_path: Path) -> None:
    text = next(text for text in fenced("yaml") if text.startswith("workflows:"))
    made = workflow(tmp_path / "one", workflow="search", **yaml.safe_load(text))
    assert made.parallel_tasks == 3
    assert made.steps[2].model == "opus"
    (tmp_path / "two").mkdir()
    alone = textwrap.dedent("".join(text.splitlines(keepends=True)[2:]))
    (tmp_path / "two" / "search.yaml").write_text(alone)
    in_file = {"search": "search.yaml"}
    assert workflow(tmp_path / "two", workflow="search", workflows=in_file) == made


def test_the_page_is_a_list_of_tasks(tmp_path: Path) -> None:
    (page,) = fenced("markdown")
    (tmp_path / "search.md").write_text(page)
    settings = {"workflow": "search", "workflows": {"search": "search.md"}}
    project = ScratchProject(tmp_path, settings)
    ran = project.run_command("plan", "search.md", "--json")
    assert (ran.exit_code, ran.stderr) == (0, "")
    assert ran.json["title"] == "Ship the search"
    look, build = ran.json["nodes"]
    assert (look["label"], build["label"]) == ("Find out how search works", "Build the index")
    assert build["blocked_by"] == ["look"]
    tasks = [project.run().workflow.find_task(node["id"]) for node in (look, build)]
    assert ["### What stays" in task.description for task in tasks if task] == [False, True]
    # The text below the title is for people; no agent gets it.
    assert "What it is about, for people." in page
    assert not any("What it is about" in task.description for task in tasks if task)


def test_all_roles_are_listed_with_their_permissions(tmp_path: Path, refused: str) -> None:
    rows = re.findall(r"^\| `([\w-]+)` \| (.+?) \| (\w+) \| (\w+) \| .+ \|$", TEXT, re.MULTILINE)
    names = [name for name, *_ in rows]
    assert sorted(names) == offered(refused, "there is no role 'nobody'")
    tasks = [{"id": f"a-{name}", "subject": "x", "role": name} for name in names]
    made = workflow(tmp_path, workflow="w", workflows={"w": {"tasks": tasks}})
    for name, tools, writes, worktree in rows:
        step, task = made.steps_by_name[f"a-{name}"], made.find_task(f"a-{name}")
        assert task is not None
        has, _, lacks = tools.partition("not ")
        told_tools = dict.fromkeys(re.findall(r"`(\w+)`", has), True)
        told_tools |= dict.fromkeys(re.findall(r"`(\w+)`", lacks), False)
        assert told_tools == (step.tools or {}), name
        assert (writes == "yes", worktree == "yes") == (task.writes, task.worktree), name


@pytest.mark.parametrize(
    ("place", "adds", "expected"),
    [
        (0, "tasks", ["api", "check"]),
        (1, "sub-issues", ["impl-api", "verify-api", "impl-page", "verify-page"]),
    ],
)
def test_the_answers_of_leads_are_accepted(
    tmp_path: Path, place: int, adds: str, expected: list[str]
) -> None:
    lead = {"id": "lead", "subject": "Divide it", "adds": adds}
    settings = {"workflow": "w", "workflows": {"w": {"tasks": [lead]}}}
    project = ScratchProject(tmp_path, settings, outcomes=(fenced("json")[place],))
    assert project.run_command("--run", "x", "run", "--max-steps", "1").exit_code == 0
    nodes = project.run_command("--run", "x", "plan", "--list", "--json").json["nodes"]
    assert [one["id"] for one in nodes] == ["lead", *expected]


CHARTS = re.findall(r"^### (\S+)$", part("## What start makes"), re.MULTILINE)


def test_each_procedure_that_a_team_can_share_has_a_chart(tmp_path: Path) -> None:
    asked = ("plan", "--request", "x", "--procedure", "plan-mode", "--team")
    ran = ScratchProject(tmp_path).run_command(*asked)
    assert f"these can: {', '.join(CHARTS)}; so can workflows" in ran.stderr


@pytest.mark.parametrize("name", CHARTS)
def test_the_charts_match_what_the_builders_produce(tmp_path: Path, name: str) -> None:
    project = ScratchProject(tmp_path)
    chart = part(f"### {name}").split("```mermaid\n")[1].split("```")[0]
    (tmp_path / "chart.mmd").write_text(chart)
    drawn = project.run_command("plan", "--chart", "chart.mmd", "--json").json
    options = ("--request", "x", "--procedure", name, "--team", "--team-size", "4")
    made = project.run_command("plan", *options, "--json").json["steps"]
    assert {node["id"] for node in drawn["nodes"]} == {one["step"] for one in made}
    assert {(edge["from"], edge["to"]) for edge in drawn["edges"]} == {
        (before, one["step"]) for one in made for before in one["blocked_by"]
    }
