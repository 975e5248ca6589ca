"""A list of tasks as a Markdown page."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

from sequencer.documents.reader import Document
from sequencer.errors import ConfigurationError
from sequencer.workflows.teams.lists import MAX_CHARS, is_task_list, read_page

FILE = Path("tasks.md")
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
    document, told = read_page(textwrap.dedent(text), FILE)
    assert told == []
    return document


def told(text: str) -> list[str]:
    return [str(error) for error in read_page(textwrap.dedent(text), FILE)[1]]


def tasks(text: str) -> Any:
    return read(text).data["tasks"]


def test_a_page_is_the_data_that_a_yaml_list_is() -> None:
    assert read(PAGE).data == {
        "size": 3,
        "title": "Ship the search",
        "description": "What it is about.",
        "tasks": [
            {
                "role": "researcher",
                "tools": {"bash": True},
                "budget": {"max_cost_usd": 2},
                "id": "look",
                "subject": "Find out how search works",
                "description": "Read the code.\n\n### A heading of its own\n\nMore.",
            },
            {
                "blocked_by": "look",
                "id": "build",
                "subject": "Build the index",
                "description": "Begin with `index.py`.",
            },
        ],
    }


@pytest.mark.parametrize(
    ("path", "where"),
    [
        (("size",), "tasks.md:2:1"),
        (("tasks", 0), "tasks.md:8:1"),
        (("tasks", 0, "id"), "tasks.md:8:1"),
        (("tasks", 0, "role"), "tasks.md:9:1"),
        (("tasks", 0, "tools", "bash"), "tasks.md:10:9"),
        (("tasks", 0, "budget", "max_cost_usd"), "tasks.md:12:3"),
        (("tasks", 0, "description"), "tasks.md:8:1"),
        (("tasks", 1, "blocked_by", 0), "tasks.md:21:1"),
    ],
)
def test_each_part_is_known_by_its_place(path: tuple[str | int, ...], where: str) -> None:
    assert read(PAGE).where(path) == where


@pytest.mark.parametrize("ends", ["\r\n", "\r"])
def test_line_ends_and_a_byte_order_mark_do_not_matter(ends: str) -> None:
    written, said = read_page("\ufeff" + PAGE.replace("\n", ends), FILE)
    assert said == []
    assert written == read(PAGE)


@pytest.mark.parametrize(
    "heading",
    ["## a: Do it", "## a — Do it", "## a – Do it", "##   a:   Do it  ", "  ## a : Do it ##"],  # noqa: RUF001 - an en dash is meant
)
def test_forms_of_a_heading(heading: str) -> None:
    assert tasks(heading) == [{"id": "a", "subject": "Do it"}]


def test_ids_may_have_dots_and_dashes_and_subjects_colons() -> None:
    assert tasks("## v1.2-rc_3: Release: the first") == [
        {"id": "v1.2-rc_3", "subject": "Release: the first"}
    ]


def test_fields_stand_right_below_the_heading_or_nowhere() -> None:
    assert tasks("## a: Do it\n\nrole: is a word here") == [
        {"id": "a", "subject": "Do it", "description": "role: is a word here"}
    ]
    assert tasks("## a: Do it\nSee this: all of it.") == [
        {"id": "a", "subject": "Do it", "description": "See this: all of it."}
    ]
    assert tasks("## a: Do it\nrole: lead\nmodel: x") == [
        {"id": "a", "subject": "Do it", "role": "lead", "model": "x"}
    ]


def test_what_is_in_a_fence_or_a_list_is_no_heading() -> None:
    (only,) = tasks("## a: Do it\n\n```\n## b: Not this\n```\n\n- ## c: Nor this\n")
    assert "## b" in only["description"]
    assert "## c" in only["description"]


def test_a_line_below_text_makes_no_heading_of_it() -> None:
    (only,) = tasks("## a: Do it\n\nSome text\n---\n\nMore")
    assert only["description"] == "Some text\n---\n\nMore"


def test_headings_of_level_one_within_a_task_are_its_text() -> None:
    page = read("# Title\n## a: Do it\n\n# Not the title\n")
    assert page.data["title"] == "Title"
    assert page.data["tasks"][0]["description"] == "# Not the title"


def test_the_front_matter_goes_before_the_page() -> None:
    page = read("---\ntitle: Mine\ndescription: Short\n---\n# Title\n\nText\n## a: Do it\n")
    assert (page.data["title"], page.data["description"]) == ("Mine", "Short")


@pytest.mark.parametrize("front", ["---\n---\n", "---\n...\n", "\n---\n# nothing\n---\n"])
def test_an_empty_front_matter(front: str) -> None:
    assert read(f"{front}## a: Do it\n").data == {"tasks": [{"id": "a", "subject": "Do it"}]}


def test_a_page_without_a_title() -> None:
    assert read("Text\n\n## a: Do it").data["description"] == "Text"


def test_nothing_is_no_list() -> None:
    assert "tasks" not in read("# Title\n\nText\n").data
    assert read("").data == {}


def test_all_that_can_t_be_read_is_told_with_its_line() -> None:
    said = told("""\
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
        """)
    top = "has no meaning at the top of a list of tasks"
    hint = "at the top there may be: description, kind, name, size, title"
    form = "a task's heading is '## id: What is to be done'; use ### within a task"
    assert said == [
        f"tasks.md:2:1: 'sise' {top}\n  {hint}",
        f"tasks.md:3:1: 'tasks' {top}\n  {hint}",
        f"tasks.md:7:1: 'Notes' is no task's heading\n  {form}",
        "tasks.md:10:1: 'id' is in the heading already",
        "tasks.md:11:1: 'subject' is in the heading already",
        "tasks.md:12:1: the description is there twice: here and below",
        "tasks.md:18:1: not YAML: did not find expected ',' or ']'",
    ]


def test_yaml_has_the_limits_that_it_has_everywhere() -> None:
    deep = "tools: " + "[" * 40 + "]" * 40
    assert "nested deeper than 32 levels" in told(f"## a: Do it\n{deep}\n")[0]
    assert "is there twice" in told("## a: Do it\nrole: x\nrole: y\n")[0]


def test_a_page_that_is_too_large() -> None:
    with pytest.raises(ConfigurationError, match="more than 2097152 characters"):
        read_page("x" * (MAX_CHARS + 1), FILE)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (PAGE, True),
        ("## a: Do it", True),
        ("## a — Do it\n```mermaid\nflowchart TD\n a-->b\n```\n", False),
        ("---\nkind: team\n---\n## a: Do it\n```mermaid\nflowchart TD\n a-->b\n```\n", True),
        ("---\nkind: team\n---\n# Nothing yet\n", True),
        ("# Title\n\n## Notes\n", False),
        ("# Title\n\n### a: Do it\n", False),
        ("~~~mermaid\nflowchart TD\n a-->b\n~~~\n\n## Notes: some\n", False),
        ("", False),
    ],
)
def test_which_pages_are_meant_to_be_lists(text: str, *, expected: bool) -> None:
    assert is_task_list(text) is expected
