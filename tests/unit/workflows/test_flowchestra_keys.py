"""Keys of Flowchestra's own example that mean nothing here: refused, with what to write instead."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sequencer.errors import ConfigurationErrors
from sequencer.workflows.flowfile.reader import load_flow
from sequencer.workflows.flowfile.settings import ELSEWHERE, KEYS
from tests.project.documents import ROOT

PAGE = (ROOT / "docs" / "coming-from" / "flowchestra.md").read_text()
THERE = """\
maxSteps: 10
permission: {edit: deny, bash: deny, webfetch: allow}
hidden: true
disable: true
prompt: "{file:./look.md}"
"""
HERE = """\
max_turns: 10
tools: {edit: false, bash: false, webfetch: true}
"""


def written(folder: Path, settings: str) -> Path:
    path = folder / "flow.md"
    chart = "```mermaid\nflowchart TD\nlook[Look] --> done((End))\n```"
    path.write_text(f"{chart}\n\n### look\n---\n{settings}---\nLook at it.\n")
    return path


def test_each_foreign_key_is_reported_with_its_replacement(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationErrors) as refused:
        load_flow(written(tmp_path, THERE))
    told = {re.findall("unknown key '(.+?)'", one.message)[0]: one for one in refused.value.errors}
    assert told.keys() == ELSEWHERE.keys()
    for key, error in told.items():
        assert error.hint == ELSEWHERE[key]
        assert f"| `{key}: " in PAGE, key


def test_each_replacement_is_accepted(tmp_path: Path) -> None:
    (step,) = load_flow(written(tmp_path, HERE)).workflow.steps
    assert step.max_turns == 10
    assert step.tools == {"edit": False, "bash": False, "webfetch": True}
    assert not ELSEWHERE.keys() & set(KEYS)
