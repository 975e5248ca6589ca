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
from sequencer.executors.fake_agents import ScriptedExecutor
from sequencer.executors.protocol import StepRequest
from sequencer.model.request import Request
from sequencer.plugins.requests.project_requests import build_starter
from sequencer.plugins.requests.routing import AgentUnsuitable
from sequencer.plugins.requests.starting import MIN_S, Questions
from sequencer.project.checks import check_project
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
        place = folder / "place"
        place.mkdir()
        yield Questions(
            project.agents,
            "asked",
            within_s=within_s,
            project=folder,
            ensure_may_ask=lambda: None,
            make_place=lambda: place,
        )
        assert list(place.iterdir()) == []
    finally:
        project.agents.close()


def test_the_answer_is_the_output_of_the_agent(tmp_path: Path) -> None:
    with asked(tmp_path, kind="command", argv=["cat"]) as questions:
        assert questions.ask("Which?\n") == "Which?"
        assert questions.ask("And which?\n") == "And which?"
    assert not (tmp_path / "logs").exists()


def test_an_agent_that_fails_is_an_error(tmp_path: Path) -> None:
    failing = asked(tmp_path, kind="command", argv=["sh", "-c", "echo no; exit 3"])
    with failing as questions, pytest.raises(StepFailed, match="3"):
        questions.ask("Which?")


def test_an_agent_that_ignores_every_signal_is_killed_in_time(tmp_path: Path) -> None:
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
def test_the_time_limit_leaves_room_for_a_forced_end(
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
        now[0] += 10 - MIN_S
        assert questions.ask("Which?") == "code"
        now[0] += 0.001
        with pytest.raises(StepFailed, match="too little of the 10 s is left"):
            questions.ask("Which?")


def test_an_unknown_agent_cannot_be_asked(tmp_path: Path) -> None:
    project = open_project(tmp_path, environment={})
    questions = Questions(
        project.agents,
        "nobody",
        within_s=1,
        project=tmp_path,
        ensure_may_ask=lambda: None,
        make_place=lambda: tmp_path,
    )
    with pytest.raises(UnknownName):
        questions.ask("x")


RECORDING = """\
#!/bin/sh
cat > /dev/null
here=${0%/*}
printf '%s\\0' "$@" > "$here/argv"
pwd > "$here/folder"
ls -A > "$here/files"
env > "$here/environment"
"""
POWERS: dict[str, dict[str, Any]] = {
    "claude": {
        "permission_mode": "bypassPermissions",
        "allowed_tools": ["Bash"],
        "tools": ["Bash"],
    },
    "opencode": {"agent": "mine", "permission": {"bash": "allow"}, "allowed_tools": ["bash"]},
}


@pytest.mark.parametrize("kind", POWERS)
def test_a_client_answers_without_tools_in_an_empty_folder(kind: str, tmp_path: Path) -> None:
    program = tmp_path / "client"
    program.write_text(RECORDING)
    program.chmod(0o755)
    entry = {"kind": kind, "program": "./client", **POWERS[kind]}
    with asked(tmp_path, **entry) as questions, pytest.raises(StepFailed):
        questions.ask("Which?")
    argv = (tmp_path / "argv").read_text().split("\0")
    variables = (tmp_path / "environment").read_text()
    assert (tmp_path / "files").read_text() == ""
    assert (tmp_path / "folder").read_text().startswith(f"{tmp_path}/place/")
    assert "SEQUENCER_TOKEN=0\n" in variables
    assert "SEQUENCER_STEP=classifier\n" in variables
    assert not [one for one in argv if "bypassPermissions" in one or "Bash" in one]
    if kind == "claude":
        assert {"--tools=", "--strict-mcp-config", "--max-turns=1"} <= {*argv}
        assert "--permission-mode=default" in argv
    else:
        (given,) = (x for x in variables.splitlines() if x.startswith("OPENCODE_CONFIG_CONTENT="))
        configuration = json.loads(given.partition("=")[2])
        assert configuration["agent"]["build"]["tools"] == {"*": False}
        assert configuration["agent"]["build"]["steps"] == 1
        assert set(configuration["permission"].values()) == {"deny"}


def test_files_named_in_a_command_are_those_of_the_project(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "ask.sh").write_text('cat > /dev/null; echo "$1 $2"; ls -A\n')
    argv = ["sh", "ask.sh", "code", "ask.sh"]
    with asked(tmp_path, kind="command", argv=argv) as questions:
        # A folder of the project is no file, so the word stays what it is.
        assert questions.ask("Which?") == f"code {tmp_path / 'ask.sh'}"
    program = tmp_path / "bin" / "ask"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\ncat\n")
    program.chmod(0o755)
    (tmp_path / "place").rmdir()
    with asked(tmp_path, kind="command", argv=["bin/ask"]) as questions:
        assert questions.ask("Which?") == "Which?"


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"kind": "codex"}, "kind codex can't be started without tools"),
        ({"kind": "gemini"}, "kind gemini can't be started without tools"),
        ({"kind": "claude", "extra_args": ["--mcp-config=x"]}, "its extra_args may give it tools"),
    ],
)
def test_an_agent_that_needs_tools_is_not_asked(
    entry: dict[str, Any], why: str, tmp_path: Path
) -> None:
    program = tmp_path / "client"
    program.write_text(RECORDING)
    program.chmod(0o755)
    entry = {**entry, "program": str(program)}
    with asked(tmp_path, **entry) as questions, pytest.raises(AgentUnsuitable, match=why):
        questions.ask("Which?")
    assert not (tmp_path / "argv").exists()
    settings = {"agents": {"asked": entry}, "routing": {"classifier": "asked"}}
    (tmp_path / "orchestration.yaml").write_text(json.dumps(settings))
    project = open_project(tmp_path, environment={"PATH": "/usr/bin:/bin"}, trust=True)
    found = build_starter(project).route(Request(title="How does it work?"))
    assert (found.procedure, found.source) == ("simple-question", "rules")
    assert [why in one.why for one in found.considered if one.source == "classification"] == [True]
    (finding,) = (f for f in check_project(project, None) if f.where == "routing.classifier")
    assert finding.message == f"keyword rules classify requests, not agent 'asked': {full(why)}"
    project.agents.close()


def full(why: str) -> str:
    return f"{why} (it has no single_turn)" if why.startswith("kind") else why


def test_no_agent_is_asked_without_a_folder(tmp_path: Path) -> None:
    with asked(tmp_path, kind="command", argv=["cat"]) as questions:
        (tmp_path / "place").rmdir()
        with pytest.raises(AgentUnsuitable, match="there is no folder for it"):
            questions.ask("Which?")
        (tmp_path / "place").mkdir()
