"""The tools on a real folder, with real searches and commands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sequencer.executors.cancellation import Cancellation
from sequencer.executors.process import ProcessCore
from sequencer.executors.project_tools import (
    MAX_ANSWER_CHARS,
    TOOLS,
    ToolAnswer,
    ToolFolder,
    Workbench,
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
def bench(tmp_path: Path, cancellation: Cancellation) -> Iterator[Workbench]:
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
        yield Workbench(
            folder=ToolFolder(root, [root / "sync"]),
            core=core,
            cancellation=cancellation,
            identity=IDENTITY,
            environment={"PATH": "/usr/local/bin:/usr/bin:/bin", "MARK": "given"},
            seconds_left=lambda: None,
        )


def use(bench: Workbench, name: str, **given: Any) -> ToolAnswer:
    return call_tool(name, given, ALL, bench)


def test_a_long_answer_is_cut(bench: Workbench) -> None:
    bench.folder.write("long.txt", "x" * 50_000)
    answer = use(bench, "read", path="long.txt")
    assert len(answer.text) < MAX_ANSWER_CHARS + 100
    assert "50002 characters in all" in answer.text


def test_binary_files_are_not_shown(bench: Workbench) -> None:
    (bench.folder.root / "image").write_bytes(b"\x89PNG\x00\x01")
    answer = use(bench, "read", path="image")
    assert answer.is_error
    assert not answer.is_refused


def test_files_are_written_and_edited(bench: Workbench) -> None:
    assert use(bench, "write", path="new/c.py", content="a\na\n").text == "created new/c.py"
    assert use(bench, "write", path="new/c.py", content="b\na\na\n").text == "replaced new/c.py"
    assert use(bench, "edit", path="new/c.py", old_text="b", new_text="c").text.startswith("edited")
    twice = use(bench, "edit", path="new/c.py", old_text="a", new_text="d")
    assert twice.is_error
    assert "occurs 2 times" in twice.text
    everything = use(bench, "edit", path="new/c.py", old_text="a", new_text="d", replace_all=True)
    assert not everything.is_error
    assert (bench.folder.root / "new" / "c.py").read_text() == "c\nd\nd\n"
    missing = use(bench, "edit", path="new/c.py", old_text="zzz", new_text="")
    assert "does not occur" in missing.text


def test_a_file_that_is_not_utf8_is_not_edited(bench: Workbench) -> None:
    path = bench.folder.root / "latin"
    path.write_bytes(b"caf\xe9 a")
    assert use(bench, "edit", path="latin", old_text="a", new_text="b").is_error
    assert path.read_bytes() == b"caf\xe9 a"


def test_globbing_shows_allowed_files_only(bench: Workbench) -> None:
    assert use(bench, "glob", pattern="**/*.py").text == "src/a.py\nsrc/deep/b.py"
    assert use(bench, "glob", pattern="sync/*").text == "(no match)"
    assert use(bench, "glob", pattern=".git/*").text == "(no match)"
    assert use(bench, "glob", pattern=".e*").text == "(no match)"
    for outside in ("../*", "/etc/*", "src/../../*"):
        assert use(bench, "glob", pattern=outside).is_refused
    assert use(bench, "glob", pattern="**a").is_error


def test_searching_shows_allowed_files_only(bench: Workbench) -> None:
    found = sorted(use(bench, "grep", pattern="two").text.splitlines())
    assert found == ["src/a.py:2:two = 2", "src/deep/b.py:1:two = 'b'"]
    assert use(bench, "grep", pattern="TWO", path="src/deep").text == "(no match)"
    folded = use(bench, "grep", pattern="TWO", path="src/deep/b.py", ignore_case=True)
    assert folded.text == "src/deep/b.py:1:two = 'b'"
    assert use(bench, "grep", pattern="two", path="sync").is_refused
    assert use(bench, "grep", pattern="(").is_error


def test_a_commands_output_is_cut_and_includes_both_streams(bench: Workbench) -> None:
    answer = use(bench, "bash", command="echo first >&2; sleep 0.2; yes | head -c 3000000")
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
    bench: Workbench, name: str, given: dict[str, Any], is_refused: bool
) -> None:
    answer = call_tool(name, given, ("read",), bench)
    assert answer.is_error
    assert answer.is_refused is is_refused
    assert "your tools: read" in answer.text
    assert not (bench.folder.root / "a").exists()


@pytest.mark.parametrize(
    "given",
    [{}, {"path": 5}, {"path": "src/a.py", "offset": 0}, {"path": "a", "x": 1}, None, "text", []],
)
def test_input_of_the_wrong_shape_is_reported_to_the_model(bench: Workbench, given: Any) -> None:
    answer = call_tool("read", given, ALL, bench)
    assert answer.is_error
    assert answer.text.startswith("wrong input")
