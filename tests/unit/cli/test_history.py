from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.calling import call, project, worked

DENIED = """\
agent: {default: strict}
agents:
  strict:
    kind: scripted
    outcomes:
      - {denials: ["Bash: rm -rf build", "Edit: secrets"], output: done}
"""


def facts(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    ended = call(folder, "history", "--json", *arguments)
    assert ended.code == 0, ended.err
    return [json.loads(line) for line in ended.out.splitlines()]


def test_refused_tool_calls_are_warned_of(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", DENIED)
    assert call(folder, "run", "--max-steps", "1", "--quiet").code == 0
    ended = call(folder, "history")
    assert "2 tool calls refused" in ended.out
    assert "warning: the agents' permissions refused 2 tool calls" in ended.err
    assert facts(folder)[-1]["outcome"]["denials"] == ["Bash: rm -rf build", "Edit: secrets"]
    assert call(folder, "history", "--json").err == ""


@pytest.mark.parametrize("left", [b"", b"rubbish\n"])
@pytest.mark.parametrize("flags", [(), ("--json",), ("-n", "1")])
def test_a_journal_that_lost_its_records_is_not_an_empty_history(
    tmp_path: Path, left: bytes, flags: tuple[str, ...]
) -> None:
    folder = worked(tmp_path / "p", 1)
    (folder / "sync" / "journal.jsonl").write_bytes(left)
    ended = call(folder, "history", *flags)
    assert ended.code == 3
    assert "repair" in ended.err
    assert "never begun" not in ended.out + ended.err


def test_refused_tool_calls_of_a_graph_are_seen_too(tmp_path: Path) -> None:
    text = (
        "workflow: {name: crew}\nworkflows: {crew: {tasks: [{id: a, subject: A}]}}\n"
        "agent: {default: strict}\nagents: {strict: {kind: scripted, outcomes: [{denials: "
        '["Bash: one", "Bash: two"]}]}}\n'
    )
    folder = project(tmp_path / "p", text)
    assert call(folder, "run", "--quiet").code == 0
    ended = call(folder, "history")
    assert "done a" in ended.out
    assert "permissions refused 2 tool calls" in ended.err
