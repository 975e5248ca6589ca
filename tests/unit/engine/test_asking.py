from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sequencer.errors import StepFailed, UnknownName
from sequencer.executors.protocol import StepRequest
from sequencer.executors.stand_ins import ScriptedExecutor
from sequencer.plugins.requests.starting import LEAST_S, Questions
from sequencer.project.project import open_project

STUBBORN = """\
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("code", flush=True)
time.sleep(60)
"""


@contextmanager
def asked(folder: Path, within_s: float = 30.0, **agent: Any) -> Iterator[Questions]:
    document = {"agents": {"asked": agent}}
    (folder / "orchestration.yaml").write_text(json.dumps(document))
    project = open_project(folder, environment={"PATH": "/usr/bin:/bin"})
    try:
        yield Questions(project.agents, "asked", within_s=within_s, project=folder)
    finally:
        project.agents.close()


def test_the_answer_is_what_the_agent_says(tmp_path: Path) -> None:
    with asked(tmp_path, kind="command", argv=["cat"]) as questions:
        assert questions.ask("Which?\n") == "Which?"
        assert questions.ask("And which?\n") == "And which?"
    assert not (tmp_path / "logs").exists()


def test_an_agent_that_fails_is_an_error(tmp_path: Path) -> None:
    failing = asked(tmp_path, kind="command", argv=["sh", "-c", "echo no; exit 3"])
    with failing as questions, pytest.raises(StepFailed, match="3"):
        questions.ask("Which?")


def test_an_agent_that_ignores_every_signal_is_ended_within_the_time(tmp_path: Path) -> None:
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    argv = [sys.executable, "-IS", "stubborn.py"]
    # The entry's own grace is for steps, which have something to save.
    with asked(tmp_path, 1.0, kind="command", argv=argv, grace_s=600) as questions:
        began = time.monotonic()
        with pytest.raises(StepFailed, match="no answer within 1 s"):
            questions.ask("Which?")
        with pytest.raises(StepFailed, match="too little of the 1 s is left to ask again"):
            questions.ask("Which?")
        assert time.monotonic() - began < 30


@pytest.mark.parametrize("within_s", [0.3, 2.0, 10.0])
def test_the_time_is_enough_for_the_end_by_force_too(
    within_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[StepRequest] = []
    perform = ScriptedExecutor.perform

    def keep(self: ScriptedExecutor, request: StepRequest, *others: Any) -> Any:
        seen.append(request)
        return perform(self, request, *others)

    monkeypatch.setattr(ScriptedExecutor, "perform", keep)
    with asked(tmp_path, within_s, kind="scripted", outcomes=[{"output": "code"}]) as questions:
        assert questions.ask("Which?") == "code"
    (request,) = seen
    assert request.timeout_s is not None
    assert request.grace_s is not None
    assert request.grace_s > 0
    assert request.timeout_s + 2 * request.grace_s <= within_s
    assert request.timeout_s >= 0.75 * within_s - 0.5
    assert request.step.single_turn


def test_all_questions_share_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with asked(tmp_path, 10.0, kind="scripted", outcomes=[{"output": "code"}] * 3) as questions:
        # A person may first have to say whether the project is trusted.
        now[0] += 60
        assert questions.ask("Which?") == "code"
        now[0] += 10 - LEAST_S
        assert questions.ask("Which?") == "code"
        now[0] += 0.001
        with pytest.raises(StepFailed, match="too little of the 10 s is left"):
            questions.ask("Which?")


def test_an_agent_that_nobody_knows_can_not_be_asked(tmp_path: Path) -> None:
    project = open_project(tmp_path, environment={})
    with pytest.raises(UnknownName):
        Questions(project.agents, "nobody", within_s=1, project=tmp_path).ask("x")
