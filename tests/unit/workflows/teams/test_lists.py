"""Lists of tasks in files: how they are written, what they make, what is wrong with one."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

from sequencer.errors import ConfigurationError, ConfigurationErrors
from sequencer.files.yamlfile import Document
from sequencer.frozen.fields import ValidationError
from sequencer.model.graph.task import MAX_TASKS
from sequencer.model.step import Step
from sequencer.plugins.teams.entries import ListFile, TaskEntry
from sequencer.plugins.teams.lists import (
    has_tasks,
    list_errors,
    load_tasks,
    read_page,
)
from sequencer.plugins.teams.options import merge_roles
from sequencer.workflows.finding import MAX_CHARS, GraphFile, read_markdown_text

# --- one task ----------------------------------------------------------------------------

LEAST: dict[str, Any] = {"id": "a", "subject": "Do it"}


def entry(**fields: Any) -> TaskEntry:
    return TaskEntry.model_validate({**LEAST, **fields})


def refusal(**fields: Any) -> tuple[tuple[int | str, ...], str]:
    with pytest.raises(ValidationError) as caught:
        entry(**fields)
    (found,) = caught.value.errors()
    return found["loc"], found["msg"]


FIXER = {"name": "mend", "output": {"format": "json", "schema": {"type": "object"}}}


@pytest.mark.parametrize(
    ("given", "step"),
    [
        # Only what was written: the rest is for the role and the project's defaults to say.
        (dict.fromkeys(["timeout_s"]), {"timeout_s": None}),
        ({"retry": {"max_attempts": 3}}, {"retry": {"max_attempts": 3}}),
        *((one, one) for one in ({"model": "opus", "tools": {"bash": False}, "prompt": "x.md"},)),
        ({"validation": {"fixer": {}}}, {"validation": {"fixer": {"name": "fix"}}}),
        ({"validation": {"fixer": FIXER}}, {"validation": {"fixer": FIXER}}),
        ({"validation": {"fixer": None}}, {"validation": {"fixer": None}}),
        ({"validation": None}, {"validation": None}),
    ],
)
def test_step_fields_are_read_next_to_task_fields(
    given: dict[str, Any], step: dict[str, Any]
) -> None:
    assert entry(**given).as_task().step == step
    Step.model_validate({"name": "a", **step})


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("b, c", ("b", "c")),
        (" b ,c,", ("b", "c")),
        (["b", "c"], ("b", "c")),
        ([2, "c"], ("2", "c")),
        # `blocked_by: 1` on a Markdown page.
        (1, ("1",)),
    ],
)
def test_ids_may_be_numbers_or_text(written: object, expected: tuple[str, ...]) -> None:
    assert entry(id=7, blocked_by=written).as_task().blocked_by == expected
    assert entry(id=7).as_task().id == "7"


@pytest.mark.parametrize(
    ("field", "value", "path"),
    [
        *(("id", name, ("id",)) for name in ("a b", "-a", "a/b", "", "a" * 81, "ä", "a\n", True)),
        ("blocked_by", True, ("blocked_by",)),
        ("blocked_by", {"a": 1}, ("blocked_by",)),
        ("blocked_by", 1.5, ("blocked_by", 0)),
        ("blocked_by", ["a b"], ("blocked_by", 0)),
        ("subject", "", ("subject",)),
        ("modle", "x", ("modle",)),
        ("timeout_s", 0, ("timeout_s",)),
        ("weight", 0, ("weight",)),
        ("weight", float("inf"), ("weight",)),
        ("adds", "everything", ("adds",)),
        ("tools", {"hammer": True}, ("tools", "hammer", "[key]")),
        ("budget", {"max_cost_usd": -1}, ("budget", "max_cost_usd")),
        ("validation", "yes", ("validation",)),
        ("validation", {"fixer": "mend"}, ("validation", "fixer")),
        ("validation", {"fixer": {"timeout_s": 0}}, ("validation", "fixer", "timeout_s")),
    ],
)
def test_a_mistake_is_reported_at_its_place(
    field: str, value: object, path: tuple[object, ...]
) -> None:
    assert refusal(**{field: value})[0] == path


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"id": "a b"}, "an id has letters, digits"),
        ({"name": "x"}, "a task has an id instead of a name"),
        ({"requires_approval": None}, "a flowchart can"),
        ({"approval": None}, "a flowchart can"),
        ({"prompt": "a.md", "text": "Do"}, "not both"),
    ],
)
def test_some_mistakes_have_their_own_message(fields: dict[str, Any], said: str) -> None:
    assert said in refusal(**fields)[1]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"tasks": None}, "it has no tasks"),
        ({"size": 2}, "it has no tasks"),
        *(({"size": size, "tasks": [LEAST]}, "size") for size in (0, -1, 1001, "2", 1.5, True)),
        ({"tasks": [{**LEAST, "id": str(n)} for n in range(MAX_TASKS + 1)]}, "at most 1000"),
    ],
)
def test_invalid_lists_are_refused(value: object, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        ListFile.model_validate(value)


# --- files -------------------------------------------------------------------------------

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


def load(folder: Path, text: str, name: str = "tasks.yaml") -> GraphFile:
    return load_tasks(written(folder, text, name), None)


def problems(folder: Path, text: str, name: str = "tasks.yaml") -> list[str]:
    """Return what is wrong as ``line:column: message``, without hints."""
    path = written(folder, text, name)
    with pytest.raises(ConfigurationError) as caught:
        load_tasks(path, None)
    found = caught.value
    several = found.errors if isinstance(found, ConfigurationErrors) else (found,)
    return [f"{(e.where or '').removeprefix(f'{path}:')}: {e.message}" for e in several]


def test_a_list_in_yaml_and_in_markdown_is_the_same(tmp_path: Path) -> None:
    found, page = load(tmp_path, YAML), load(tmp_path, MARKDOWN, "tasks.md")
    assert (found.title, found.workflow.name) == ("Ship the search", "tasks")
    assert [step.name for step in found.workflow.steps] == ["look", "build"]
    assert found.graph is found.workflow.graph
    assert (found.graph.has_tasks, found.graph.max_parallel) == (True, 2)
    assert found.workflow.steps[1].model == "opus"
    assert found.file == tmp_path / "tasks.yaml"
    assert page.workflow == found.workflow
    assert found.locate_setting("build", "model") == f"{tmp_path}/tasks.yaml:8:5"
    assert found.locate_setting("build") == f"{tmp_path}/tasks.yaml:5:5"
    assert page.locate_setting("look") == f"{tmp_path}/tasks.md:6:1"


def test_all_problems_are_reported_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
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
        "6:13: tasks[3].subject: should have at least 1 character, not ''",
        "6:26: tasks[3].timeout_s: should be greater than 0, not -1",
        "7:38: task 'd' waits for itself",
        "7:42: tasks[4].name: a task has an id instead of a name",
    ]


def test_all_problems_are_reported_in_markdown_too(tmp_path: Path) -> None:
    text = """\
        # Title

        ## a: A
        blocked_by: b, x
        note: that

        ## Notes

        ## b: B
        blocked_by: a
        """
    assert problems(tmp_path, text, "tasks.md") == [
        "4:1: tasks wait for each other in a circle: a -> b -> a",
        "4:1: there is no task 'x' to wait for",
        "5:1: tasks[0]: unknown key 'note'",
        "7:1: 'Notes' is not a task's heading",
    ]
    (told,) = problems(tmp_path, "---\nkind: team\n---\n# Title\n", "tasks.md")
    assert told.endswith("it has no tasks; list at least one below 'tasks'")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it has no tasks"),
        ("tasks: []\n", "must have at least one item"),
        ("tasks: 3\n", "expected a list"),
        ("tasks: [3]\n", "expected a mapping"),
        ("- a\n", "expected 'key: value' lines"),
        ("steps: [a]\ntasks: [{id: a, subject: A}]\n", "unknown key 'steps'"),
        ("tasks: [{id: a, id: b}]\n", "duplicate key"),
        ("tasks: [&a {id: a}, *b]\n", "there is no anchor for *b"),
        ("tasks: [!x {id: a}]\n", "tags"),
    ],
)
def test_files_that_are_not_a_list_are_refused(tmp_path: Path, text: str, said: str) -> None:
    (found,) = problems(tmp_path, text)[:1]
    assert said in found


@pytest.mark.parametrize("listed", [None, 3, "text", [], [3], [{}]])
def test_values_that_are_not_task_lists_are_reported_elsewhere(listed: object) -> None:
    assert list_errors(listed, merge_roles(), str) == []


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.yaml", "", True),
        ("a.YML", "", True),
        ("a.md", MARKDOWN, True),
        ("a.mmd", MARKDOWN, False),
        ("a.txt", MARKDOWN, False),
        ("a.md", "## a — Do it\n```mermaid\nflowchart TD\n a-->b\n```\n", False),
        (
            "a.md",
            "---\nkind: team\n---\n## a: Do it\n```mermaid\nflowchart TD\n a-->b\n```\n",
            True,
        ),
        ("a.md", "---\nkind: team\n---\n# Nothing yet\n", True),
        ("a.md", "# Title\n\n## Notes\n", False),
        ("a.md", "# Title\n\n### a: Do it\n", False),
        ("a.md", "~~~mermaid\nflowchart TD\n a-->b\n~~~\n\n## Notes: some\n", False),
        ("a.md", "", False),
        ("a.md", "## a: Do it", True),
    ],
)
def test_files_with_tasks_are_recognized(
    tmp_path: Path, name: str, text: str, *, expected: bool
) -> None:
    path = written(tmp_path, text, name)
    assert has_tasks(path, read_markdown_text(path)) is expected


def test_an_unreadable_file_is_not_a_list(tmp_path: Path) -> None:
    assert read_markdown_text(tmp_path / "missing.md") is None
    for name in ("bad.md", "bad.yaml"):
        (tmp_path / name).write_bytes(b"\xff\n## a: b\n")
        with pytest.raises(ConfigurationError, match="not UTF-8"):
            load_tasks(tmp_path / name, None)
    assert read_markdown_text(tmp_path / "bad.md") is None
    assert not has_tasks(tmp_path / "bad.md", None)


# --- Markdown ----------------------------------------------------------------------------

PAGE = """\
---
size: 3
---
# Ship the search

What it is about.

## look: Find out how search works
role: researcher
tools: {bash: true}
budget:
  max_cost_usd: 2

Read the code.

### A heading of its own

More.

## build — Build the index
blocked_by: look

Begin with `index.py`.
"""


def read(text: str) -> Document:
    document, told = read_page(textwrap.dedent(text), Path("tasks.md"))
    assert told == []
    return document


def told_of(text: str) -> list[str]:
    return [str(error) for error in read_page(textwrap.dedent(text), Path("tasks.md"))[1]]


@pytest.mark.parametrize(
    ("path", "where"),
    [
        (("size",), "tasks.md:2:1"),
        (("tasks", 0), "tasks.md:8:1"),
        (("tasks", 0, "id"), "tasks.md:8:1"),
        (("tasks", 0, "tools", "bash"), "tasks.md:10:9"),
        (("tasks", 0, "budget", "max_cost_usd"), "tasks.md:12:3"),
        (("tasks", 0, "description"), "tasks.md:8:1"),
        (("tasks", 1, "blocked_by", 0), "tasks.md:21:1"),
    ],
)
def test_each_part_has_its_place(path: tuple[str | int, ...], where: str) -> None:
    assert read(PAGE).locate(path) == where


DO = {"id": "a", "subject": "Do it"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("## a: Do it", DO),
        ("## a — Do it", DO),
        ("## a – Do it", DO),  # noqa: RUF001 - an en dash is meant
        ("##   a:   Do it  ", DO),
        ("  ## a : Do it ##", DO),
        ("---\n---\n## a: Do it", DO),
        ("\n---\n# nothing\n---\n## a: Do it", DO),
        ("## v1.2-rc_3: Release: it", {"id": "v1.2-rc_3", "subject": "Release: it"}),
        ("## a: Do it\n\nrole: is a word", {**DO, "description": "role: is a word"}),
        ("## a: Do it\nSee this: all.", {**DO, "description": "See this: all."}),
        ("## a: Do it\nrole: lead\nmodel: x", {**DO, "role": "lead", "model": "x"}),
        ("## a: Do it\n\n```\n## b: No\n```", {**DO, "description": "```\n## b: No\n```"}),
        ("## a: Do it\n\n- ## c: No", {**DO, "description": "- ## c: No"}),
        ("## a: Do it\n\nText\n---\n\nMore", {**DO, "description": "Text\n---\n\nMore"}),
        ("# Title\n## a: Do it\n\n# Not it", {**DO, "description": "# Not it"}),
    ],
)
def test_a_task_is_read_from_its_section(text: str, expected: dict[str, str]) -> None:
    assert read(text).data["tasks"] == [expected]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("---\ntitle: Mine\ndescription: Short\n---\n# Title\n\nText\n", ("Mine", "Short")),
        ("# Title\n\nText\n", ("Title", "Text")),
        ("Text\n\n## a: Do it", (None, "Text")),
        ("", (None, None)),
    ],
)
def test_the_title_and_the_description_are_read(
    text: str, expected: tuple[str | None, str | None]
) -> None:
    page = read(text)
    assert (page.data.get("title"), page.data.get("description")) == expected
    assert ("tasks" in page.data) == ("##" in text)


def test_everything_unreadable_is_reported_with_its_line() -> None:
    top = "has no meaning at the top of a list of tasks"
    hint = "allowed at the top: description, kind, name, size, title"
    form = "a task's heading is '## id: What is to be done'; use ### within a task"
    assert told_of("""\
        ---
        sise: 3
        tasks: []
        ---
        # Title

        ## Notes

        ## a: Do it
        id: b
        subject: c
        description: d

        The same again.

        ## b: Do it too
        role: [open
        """) == [
        f"tasks.md:2:1: 'sise' {top}\n  {hint}",
        f"tasks.md:3:1: 'tasks' {top}\n  {hint}",
        f"tasks.md:7:1: 'Notes' is not a task's heading\n  {form}",
        "tasks.md:10:1: 'id' is already in the heading",
        "tasks.md:11:1: 'subject' is already in the heading",
        "tasks.md:12:1: the description is given twice: here and below",
        "tasks.md:18:1: not YAML: did not find expected ',' or ']'",
    ]
    deep = "tools: " + "[" * 40 + "]" * 40
    assert "nested deeper than 32 levels" in told_of(f"## a: Do it\n{deep}\n")[0]
    with pytest.raises(ConfigurationError, match="more than 2097152 characters"):
        read_page("x" * (MAX_CHARS + 1), Path("tasks.md"))
