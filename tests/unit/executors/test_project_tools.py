"""The tools on a real folder, with real searches and commands."""

from __future__ import annotations

import sys
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from sequencer.executors.cancellation import Cancellation, StopReason
from sequencer.executors.process import ProcessCore
from sequencer.executors.project_tools import (
    MAX_ANSWER_CHARS,
    MAX_WRITE_BYTES,
    TOOLS,
    ToolAnswer,
    ToolContext,
    ToolFolder,
    call_tool,
)
from tests.contract.executor_cases import IDENTITY

ALL = tuple(TOOLS)


@pytest.fixture
def cancellation() -> Iterator[Cancellation]:
    made = Cancellation()
    yield made
    made.close()


@pytest.fixture
def context(tmp_path: Path, cancellation: Cancellation) -> Iterator[ToolContext]:
    root = tmp_path / "project"
    (root / "src" / "deep").mkdir(parents=True)
    (root / "sync").mkdir()
    (root / ".git").mkdir()
    (root / "src" / "a.py").write_text("one = 1\ntwo = 2\nthree = 3\n")
    (root / "src" / "deep" / "b.py").write_text("two = 'b'\n")
    (root / "sync" / "state.json").write_text("two")
    (root / ".git" / "config").write_text("two")
    (root / ".env").write_text("two")
    with ProcessCore() as core:
        yield ToolContext(
            folder=ToolFolder(root, [root / "sync"]),
            core=core,
            cancellation=cancellation,
            identity=IDENTITY,
            environment={"PATH": "/usr/local/bin:/usr/bin:/bin", "MARK": "given"},
            seconds_left=lambda: None,
        )


def use(context: ToolContext, name: str, **given: Any) -> ToolAnswer:
    return call_tool(name, given, ALL, context)


def test_a_long_answer_is_cut(context: ToolContext) -> None:
    context.folder.write("long.txt", "x" * 50_000)
    answer = use(context, "read", path="long.txt")
    assert len(answer.text) < MAX_ANSWER_CHARS + 100
    assert "50002 characters in all" in answer.text


def test_binary_files_are_not_shown(context: ToolContext) -> None:
    (context.folder.root / "image").write_bytes(b"\x89PNG\x00\x01")
    answer = use(context, "read", path="image")
    assert answer.is_error
    assert not answer.is_refused


def test_files_are_written_and_edited(context: ToolContext) -> None:
    assert use(context, "write", path="new/c.py", content="a\na\n").text == "created new/c.py"
    assert use(context, "write", path="new/c.py", content="b\na\na\n").text == "replaced new/c.py"
    assert use(context, "edit", path="new/c.py", old_text="b", new_text="c").text.startswith(
        "edited"
    )
    twice = use(context, "edit", path="new/c.py", old_text="a", new_text="d")
    assert twice.is_error
    assert "occurs 2 times" in twice.text
    everything = use(context, "edit", path="new/c.py", old_text="a", new_text="d", replace_all=True)
    assert not everything.is_error
    assert (context.folder.root / "new" / "c.py").read_text() == "c\nd\nd\n"
    missing = use(context, "edit", path="new/c.py", old_text="zzz", new_text="")
    assert "does not occur" in missing.text


def test_a_file_that_is_not_utf8_is_not_edited(context: ToolContext) -> None:
    path = context.folder.root / "latin"
    path.write_bytes(b"caf\xe9 a")
    assert use(context, "edit", path="latin", old_text="a", new_text="b").is_error
    assert path.read_bytes() == b"caf\xe9 a"


def test_globbing_shows_allowed_files_only(context: ToolContext) -> None:
    assert use(context, "glob", pattern="**/*.py").text == "src/a.py\nsrc/deep/b.py"
    assert use(context, "glob", pattern="sync/*").text == "(no match)"
    assert use(context, "glob", pattern=".git/*").text == "(no match)"
    assert use(context, "glob", pattern=".e*").text == "(no match)"
    for outside in ("../*", "/etc/*", "src/../../*"):
        assert use(context, "glob", pattern=outside).is_refused
    assert use(context, "glob", pattern="**a").is_error


@pytest.mark.parametrize("pattern", ["**/" * 60 + "x", "**/*/" * 60 + "x"])
def test_no_pattern_makes_globbing_slow(context: ToolContext, pattern: str) -> None:
    folder = context.folder.root
    for name in "abcdefghijklmnopqrst":
        folder /= name
        folder.mkdir()
    start = time.monotonic()
    assert use(context, "glob", pattern=pattern).text == "(no match)"
    assert time.monotonic() - start < 5


def test_globbing_ends_where_links_form_a_circle(context: ToolContext) -> None:
    root = context.folder.root
    for name in "xyz":
        (root / "src" / name).symlink_to(root / "src")
    assert use(context, "glob", pattern="**/a.py").text == "src/a.py"
    assert use(context, "glob", pattern="src/x/y/a.py").text == "src/x/y/a.py"
    assert "src/a.py" in use(context, "glob", pattern="**/*.py").text.splitlines()
    assert use(context, "glob", pattern="*/" * 60 + "no.py").text == "(no match)"


def test_globbing_does_not_enter_folders_outside_the_project(
    context: ToolContext, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "back.py").symlink_to(context.folder.root / "src" / "a.py")
    (context.folder.root / "link").symlink_to(outside)
    assert use(context, "glob", pattern="link/*.py").text == "(no match)"


def test_two_wildcards_for_folders_match_like_one(context: ToolContext) -> None:
    assert use(context, "glob", pattern="**/**/b.py").text == "src/deep/b.py"
    assert use(context, "glob", pattern="src/**/**").text == "src/a.py\nsrc/deep/b.py"
    assert use(context, "glob", pattern="**/*/**/b.py").text == "src/deep/b.py"
    assert use(context, "glob", pattern="src/*/**").text == "src/deep/b.py"
    assert use(context, "glob", pattern="src/**/a.py").text == "src/a.py"
    assert use(context, "glob", pattern="src/a.py/**").text == "(no match)"
    assert use(context, "glob", pattern=".").is_error


def test_a_deadline_ends_globbing_in_the_middle(context: ToolContext) -> None:
    looks = iter([1.0, 1.0, 0.0])
    late_bench = replace(context, seconds_left=lambda: next(looks))
    answer = use(late_bench, "glob", pattern="**/*")
    assert answer.is_error
    assert "time is up" in answer.text


def test_a_cancellation_ends_globbing_in_the_middle(
    context: ToolContext, cancellation: Cancellation
) -> None:
    looks: list[None] = []

    def stop_at_the_third_look() -> None:
        looks.append(None)
        if len(looks) == 3:
            cancellation.set(StopReason.INTERRUPTED)

    stopped_bench = replace(context, seconds_left=stop_at_the_third_look)
    answer = use(stopped_bench, "glob", pattern="**/*")
    assert answer.is_error
    assert answer.text == "stopped: interrupted"


def test_no_tool_starts_after_a_cancellation(
    context: ToolContext, cancellation: Cancellation
) -> None:
    cancellation.set(StopReason.INTERRUPTED)
    assert use(context, "write", path="late", content="x").text == "stopped: interrupted"
    assert not (context.folder.root / "late").exists()


def test_an_edit_that_makes_a_file_too_large_is_refused_before_it_needs_memory(
    context: ToolContext,
) -> None:
    context.folder.write("many", "a" * 4_000)
    given = {"path": "many", "old_text": "a", "new_text": "\u00e9" * 10_000}
    tracemalloc.start()
    answer = use(context, "edit", replace_all=True, **given)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert answer.is_error
    assert "80000000 bytes are more" in answer.text
    assert peak_bytes < 5_000_000


def test_an_edit_may_fill_a_file_up_to_the_limit(context: ToolContext) -> None:
    context.folder.write("full", "\u00e9" * (MAX_WRITE_BYTES // 4))
    doubled = use(
        context, "edit", path="full", old_text="\u00e9", new_text="abcd", replace_all=True
    )
    assert not doubled.is_error
    assert (context.folder.root / "full").stat().st_size == MAX_WRITE_BYTES


def test_a_call_that_needs_too_much_memory_is_answered(
    context: ToolContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhaust(*_: object) -> bytes:
        raise MemoryError

    monkeypatch.setattr(ToolFolder, "read", exhaust)
    answer = use(context, "read", path="src/a.py")
    assert answer.is_error
    assert "memory" in answer.text


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only here ulimit counts for memory")
def test_a_regular_expression_cannot_take_all_memory(context: ToolContext) -> None:
    answer = use(context, "grep", pattern="(((a{1,999}){1,999}){1,999})")
    assert answer.is_error
    assert "memory exhausted" in answer.text.lower()


def test_a_path_that_is_no_path_is_answered(context: ToolContext) -> None:
    assert use(context, "read", path="a/" * 50_000).text == "a path has at most 4096 characters"
    assert use(context, "read", path="\ud800").is_error


def test_a_long_error_is_cut(context: ToolContext) -> None:
    answer = use(context, "x" * 50_000)
    assert answer.is_error
    assert len(answer.text) < MAX_ANSWER_CHARS + 100


def test_searching_shows_allowed_files_only(context: ToolContext) -> None:
    found = sorted(use(context, "grep", pattern="two").text.splitlines())
    assert found == ["src/a.py:2:two = 2", "src/deep/b.py:1:two = 'b'"]
    assert use(context, "grep", pattern="TWO", path="src/deep").text == "(no match)"
    folded = use(context, "grep", pattern="TWO", path="src/deep/b.py", ignore_case=True)
    assert folded.text == "src/deep/b.py:1:two = 'b'"
    assert use(context, "grep", pattern="two", path="sync").is_refused
    assert use(context, "grep", pattern="(").is_error


def test_a_commands_output_is_cut_and_includes_both_streams(context: ToolContext) -> None:
    answer = use(context, "bash", command="echo first >&2; sleep 0.2; yes | head -c 3000000")
    assert answer.text.startswith("first\ny\n")
    assert len(answer.text) < MAX_ANSWER_CHARS + 100
    assert "cut" in answer.text


@pytest.mark.parametrize(
    ("name", "given", "is_refused"),
    [
        ("bash", {"command": "id"}, True),
        ("write", {"path": "a", "content": "b"}, True),
        ("teleport", {}, False),
    ],
)
def test_a_tool_that_was_not_granted_does_nothing(
    context: ToolContext, name: str, given: dict[str, Any], is_refused: bool
) -> None:
    answer = call_tool(name, given, ("read",), context)
    assert answer.is_error
    assert answer.is_refused is is_refused
    assert "your tools: read" in answer.text
    assert not (context.folder.root / "a").exists()


@pytest.mark.parametrize(
    "given",
    [{}, {"path": 5}, {"path": "src/a.py", "offset": 0}, {"path": "a", "x": 1}, None, "text", []],
)
def test_input_of_the_wrong_shape_is_reported_to_the_model(
    context: ToolContext, given: Any
) -> None:
    answer = call_tool("read", given, ALL, context)
    assert answer.is_error
    assert answer.text.startswith("wrong input")
