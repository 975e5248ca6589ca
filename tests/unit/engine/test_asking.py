from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from sequencer.assembly import open_project
from sequencer.engine.asking import ask
from sequencer.errors import StepFailed, UnknownName


def answer(folder: Path, timeout_s: float = 10.0, **agent: Any) -> str:
    document = {"agents": {"asked": agent}}
    (folder / "orchestration.yaml").write_text(json.dumps(document))
    project = open_project(folder, environment={"PATH": "/usr/bin:/bin"})
    try:
        return ask(project.agents, "asked", "Which?\n", timeout_s=timeout_s, project=folder)
    finally:
        project.agents.close()


def test_the_answer_is_what_the_agent_says(tmp_path: Path) -> None:
    assert answer(tmp_path, kind="command", argv=["cat"]) == "Which?"
    assert not (tmp_path / "logs").exists()


def test_an_agent_that_fails_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StepFailed, match="3"):
        answer(tmp_path, kind="command", argv=["sh", "-c", "echo no; exit 3"])


def test_nobody_is_asked_for_longer_than_it_may_take(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(StepFailed, match=r"0\.3"):
        answer(tmp_path, 0.3, kind="command", argv=["sleep", "60"])
    assert time.monotonic() - began < 20


def test_a_model_is_asked_for_one_turn(tmp_path: Path) -> None:
    assert answer(tmp_path, kind="scripted", outcomes=[{"output": "code"}]) == "code"


def test_an_agent_that_nobody_knows_can_not_be_asked(tmp_path: Path) -> None:
    project = open_project(tmp_path, environment={})
    with pytest.raises(UnknownName):
        ask(project.agents, "nobody", "x", timeout_s=1, project=tmp_path)
