"""Lists of tasks in files: what they make, and everything that is wrong with one."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from sequencer.documents.keys import ConfigurationErrors
from sequencer.errors import ConfigurationError
from sequencer.model.team import Role, Task
from sequencer.workflows.teams.lists import (
    TaskList,
    has_tasks,
    inline_list,
    list_errors,
    load_tasks,
    page_of,
)
from sequencer.workflows.teams.options import roles

YAML = """\
title: Ship the search
size: 2
tasks:
  - {id: look, subject: Look, role: researcher}
  - id: build
    subject: Build
    blocked_by: [look]
    model: opus
"""
MARKDOWN = """\
---
size: 2
---
# Ship the search

## look: Look
role: researcher

## build: Build
blocked_by: look
model: opus
"""


def written(folder: Path, text: str, name: str = "tasks.yaml") -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return path


def load(folder: Path, text: str, name: str = "tasks.yaml") -> TaskList:
    return load_tasks(written(folder, text, name), roles())


def problems(folder: Path, text: str, name: str = "tasks.yaml") -> list[str]:
    """Return what is wrong as ``line:column: message``, without hints."""
    path = written(folder, text, name)
    with pytest.raises(ConfigurationError) as caught:
        load_tasks(path, roles())
    found = caught.value
    several = found.errors if isinstance(found, ConfigurationErrors) else (found,)
    return [f"{(e.where or '').removeprefix(f'{path}:')}: {e.message}" for e in several]


def test_a_list_in_yaml(tmp_path: Path) -> None:
    found = load(tmp_path, YAML)
    assert (found.title, found.workflow.name) == ("Ship the search", "tasks")
    assert [step.name for step in found.workflow.steps] == ["look", "build"]
    assert found.graph is found.workflow.graph
    assert (found.graph.is_team, found.graph.max_parallel) == (True, 2)
    assert found.workflow.steps[1].model == "opus"
    assert found.file == tmp_path / "tasks.yaml"


def test_the_same_list_in_markdown_is_the_same_workflow(tmp_path: Path) -> None:
    assert load(tmp_path, MARKDOWN, "tasks.md").workflow == load(tmp_path, YAML).workflow


def test_names_of_a_list(tmp_path: Path) -> None:
    named = f"name: mine\n{YAML}"
    assert load(tmp_path, named).workflow.name == "mine"
    assert load_tasks(written(tmp_path, named), roles(), name="asked").workflow.name == "asked"
    assert load(tmp_path, "tasks: [{id: a, subject: A}]", "x.yml").title == "x"


def test_a_page_without_tasks(tmp_path: Path) -> None:
    assert problems(tmp_path, "---\nkind: team\n---\n# Title\n", "tasks.md") == [
        f"{tmp_path}/tasks.md: there is no task in it; list at least one below 'tasks'"
    ]


def test_where_a_task_stands(tmp_path: Path) -> None:
    found = load(tmp_path, YAML)
    assert found.where("build", "model") == f"{tmp_path}/tasks.yaml:8:5"
    assert found.where("build") == f"{tmp_path}/tasks.yaml:5:5"
    assert load(tmp_path, MARKDOWN, "t.md").where("look") == f"{tmp_path}/t.md:6:1"


def test_everything_that_is_wrong_is_told_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    assert problems(
        tmp_path,
        """\
        size: many
        tasks:
          - {id: a, subject: A, role: reseacher, blocked_by: [c]}
          - {id: b, subjct: B, blocked_by: [bb]}
          - {id: c, subject: C, blocked_by: [a, x]}
          - {id: c, subject: "", timeout_s: -1}
          - {id: d, subject: D, blocked_by: [d], name: d}
        """,
    ) == [
        "1:1: size: expected a whole number, not 'many'",
        "3:25: there is no role 'reseacher'",
        "3:42: tasks wait for each other in a circle: a -> c -> a",
        "4:5: tasks[1].subject: has to be there",
        "4:13: tasks[1]: unknown key 'subjct'",
        "4:37: there is no task 'bb' to wait for",
        "5:41: there is no task 'x' to wait for",
        "6:6: two tasks are called 'c'; the other one is number 3",
        "6:13: tasks[3].subject: string should have at least 1 character, not ''",
        "6:26: tasks[3].timeout_s: should be greater than 0, not -1",
        "7:38: task 'd' waits for itself",
        "7:42: tasks[4].name: a task has an id instead",
    ]


def test_in_markdown_too(tmp_path: Path) -> None:
    assert problems(
        tmp_path,
        """\
        # Title

        ## a: A
        blocked_by: b, x
        note: that

        ## Notes

        ## b: B
        blocked_by: a
        """,
        "tasks.md",
    ) == [
        "4:1: tasks wait for each other in a circle: a -> b -> a",
        "4:1: there is no task 'x' to wait for",
        "5:1: tasks[0]: unknown key 'note'",
        "7:1: 'Notes' is no task's heading",
    ]


def test_a_refused_task_is_still_known_to_the_others(tmp_path: Path) -> None:
    text = "tasks: [{id: a, subject: A, modle: x}, {id: b, subject: B, blocked_by: a}]"
    assert problems(tmp_path, text) == ["1:29: tasks[0]: unknown key 'modle'"]


def test_a_task_of_a_bad_id_is_told_once(tmp_path: Path) -> None:
    text = "tasks: [{id: a b, subject: A}, {id: c, subject: C, blocked_by: ['a b', d]}]"
    found = problems(tmp_path, text)
    assert len(found) == 2
    assert "tasks[0].id: an id is made of letters" in found[0]
    assert "tasks[1].blocked_by[0]: an id is made of letters" in found[1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "there is no task in it"),
        ("tasks:\n", "there is no task in it"),
        ("tasks: []\n", "has to have at least one item"),
        ("tasks: 3\n", "expected a list"),
        ("tasks: [3]\n", "expected a mapping"),
        ("- a\n", "expected 'key: value' lines"),
        ("steps: [a]\ntasks: [{id: a, subject: A}]\n", "unknown key 'steps'"),
        ("tasks: [{id: a, id: b}]\n", "is there twice"),
        ("tasks: [&a {id: a}, *b]\n", "nothing is called *b"),
        ("tasks: [!x {id: a}]\n", "tags"),
    ],
)
def test_files_that_are_no_list(tmp_path: Path, text: str, said: str) -> None:
    (found,) = problems(tmp_path, text)[:1]
    assert said in found


def test_a_file_of_another_encoding(tmp_path: Path) -> None:
    path = tmp_path / "tasks.yaml"
    path.write_bytes(b"title: \xff\n")
    with pytest.raises(ConfigurationError, match="not UTF-8"):
        load_tasks(path, roles())


def test_a_thousand_tasks_and_no_more(tmp_path: Path) -> None:
    lines = [f"  - {{id: t{number}, subject: T}}\n" for number in range(1001)]
    assert len(load(tmp_path, "tasks:\n" + "".join(lines[1:])).graph.nodes) == 1000
    (told,) = problems(tmp_path, "tasks:\n" + "".join(lines))
    assert "tasks: should have at most 1000 items, not 1001" in told


def test_roles_of_the_project_may_be_named(tmp_path: Path) -> None:
    path = written(tmp_path, "tasks: [{id: a, subject: A, role: tester}]")
    own = roles({"tester": Role.model_validate({"model": "x"})})
    assert load_tasks(path, own).workflow.steps[0].model == "x"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.yaml", "", True),
        ("a.YML", "", True),
        ("a.md", MARKDOWN, True),
        ("a.md", "# Title\n", False),
        ("a.mmd", MARKDOWN, False),
        ("a.txt", MARKDOWN, False),
    ],
)
def test_which_files_are_lists(tmp_path: Path, name: str, text: str, *, expected: bool) -> None:
    path = written(tmp_path, text, name)
    assert has_tasks(path, page_of(path)) is expected


def test_what_can_t_be_read_is_no_list(tmp_path: Path) -> None:
    assert page_of(tmp_path / "missing.md") is None
    (tmp_path / "bad.md").write_bytes(b"\xff\n## a: b\n")
    assert page_of(tmp_path / "bad.md") is None
    assert not has_tasks(tmp_path / "bad.md", None)


def test_a_list_that_stands_in_another_file(tmp_path: Path) -> None:
    made = inline_list(
        "mine", [Task(id="a", subject="A")], roles(), 4, file=tmp_path / "x", where=str
    )
    assert (made.workflow.name, made.title, made.graph.max_parallel) == ("mine", "mine", 4)
    assert made.where("a", "model") == "('tasks', 0, 'model')"


@pytest.mark.parametrize("listed", [None, 3, "text", [], [3], [{}]])
def test_what_is_no_list_at_all_is_told_elsewhere(listed: object) -> None:
    assert list_errors(listed, roles(), str) == []
