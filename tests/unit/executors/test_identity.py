"""The mark of an agent is set where its process is launched, and nowhere else."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import sequencer
from sequencer.executors.cancellation import Cancellation
from sequencer.executors.claude import ClaudeExecutor, ClaudeOptions
from sequencer.executors.codex import CodexExecutor, CodexOptions
from sequencer.executors.command import CommandExecutor, CommandOptions
from sequencer.executors.gemini import GeminiExecutor, GeminiOptions
from sequencer.executors.launch import TRUST, Launch
from sequencer.executors.opencode import OpencodeExecutor, OpencodeOptions
from sequencer.executors.process import ProcessCore
from sequencer.executors.project_tools import ToolContext, ToolFolder, call_tool
from sequencer.executors.protocol import Executor, Identity, StepRequest
from sequencer.model.step import Step
from tests.contract.executor_cases import IDENTITY, Recorder, request_for

PACKAGE = Path(sequencer.__file__).parent
RECORDING = '#!/bin/sh\ncat > /dev/null\nenv -0 > "${0%/*}/environment"\n'
FORGED = {"SEQUENCER_TOKEN": "", "SEQUENCER_RUN_ID": "another", TRUST: "all", "KEPT": "yes"}
_CLIENTS: dict[str, Callable[..., Executor]] = {
    "claude": lambda entry, core: ClaudeExecutor("c", ClaudeOptions.model_validate(entry), core),
    "codex": lambda entry, core: CodexExecutor("c", CodexOptions.model_validate(entry), core),
    "gemini": lambda entry, core: GeminiExecutor("c", GeminiOptions.model_validate(entry), core),
    "opencode": lambda entry, core: OpencodeExecutor(
        "c", OpencodeOptions.model_validate(entry), core
    ),
}


def recorded(folder: Path) -> dict[str, str]:
    """Return the environment that the recording program was started with."""
    pairs = (folder / "environment").read_text().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if pair)


def client(folder: Path, kind: str, core: ProcessCore) -> Executor:
    """Return a client of *kind* whose entry tries to forge who its agent is."""
    program = folder / "client"
    program.write_text(RECORDING)
    program.chmod(0o755)
    entry: dict[str, Any] = {"env": FORGED, "pass_env": ["SEQUENCER_TOKEN", TRUST]}
    if kind == "command":
        entry["pass_env"].append("SEQUENCER_*")
        options = CommandOptions.model_validate({"argv": [str(program)], **entry})
        return CommandExecutor("c", options, core)
    return _CLIENTS[kind]({"program": str(program), **entry}, core)


@pytest.mark.parametrize("identity", [IDENTITY, Identity(step="classifier", token=0)])
@pytest.mark.parametrize("kind", ["command", *_CLIENTS])
def test_no_entry_can_forge_or_drop_its_agents_identity(
    kind: str, identity: Identity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEQUENCER_TOKEN", "7")
    monkeypatch.setenv(TRUST, "all")
    monkeypatch.setenv("SEQUENCER_STATE", "/elsewhere/state.json")
    with ProcessCore() as core:
        request, cancellation = request_for(tmp_path, identity=identity), Cancellation()
        client(tmp_path, kind, core).perform(request, Recorder(), cancellation)
        cancellation.close()
    found = recorded(tmp_path)
    said = {name: value for name, value in found.items() if name.startswith("SEQUENCER_")}
    del said["SEQUENCER_GUARD"]
    assert said == identity.variables()
    assert said["SEQUENCER_TOKEN"]
    assert found["KEPT"] == "yes"


def test_a_command_run_by_the_messages_loop_has_the_agents_identity(tmp_path: Path) -> None:
    cancellation = Cancellation()
    with ProcessCore() as core:
        bench = ToolContext(
            folder=ToolFolder(tmp_path),
            core=core,
            cancellation=cancellation,
            identity=IDENTITY,
            environment={"PATH": "/usr/bin:/bin", **FORGED},
            seconds_left=lambda: None,
        )
        said = call_tool(
            "bash", {"command": 'echo "$SEQUENCER_TOKEN $SEQUENCER_RUN_ID"'}, ["bash"], bench
        )
    cancellation.close()
    assert said.text.splitlines()[0] == f"{IDENTITY.token} {IDENTITY.run_id}"


def test_a_request_without_an_identity_is_refused(tmp_path: Path) -> None:
    facts = {
        "step": Step(name="main"),
        "prompt": "x",
        "cwd": tmp_path,
        "result_path": tmp_path / "result.json",
    }
    with pytest.raises(TypeError, match="identity"):
        StepRequest(**facts)  # type: ignore[arg-type]
    for nobody in (None, {}, {"SEQUENCER_TOKEN": "1"}):
        with pytest.raises(TypeError, match="needs an Identity"):
            StepRequest(identity=nobody, **facts)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="identity"):
        Launch(argv=["true"], environment={}, cwd=tmp_path, prompt=b"")  # type: ignore[call-arg]


def _sources(word: str) -> Iterator[tuple[Path, str]]:
    """Yield the files of the package that have *word*, with their text."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if word in (text := path.read_text()):
            yield path, text


def _calls(name: str) -> Iterator[tuple[str, ast.Call]]:
    """Yield each call of *name* in the package, with its module."""
    for path, text in _sources(f"{name}("):
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Call(func=ast.Name(id=found) | ast.Attribute(attr=found)):
                    if found == name:
                        yield path.relative_to(PACKAGE).as_posix(), node


def _identity_of(call: ast.Call) -> str:
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    return given["identity"]


def test_code_that_launches_a_process_names_its_identity() -> None:
    """A module that is new here has to say whose processes it starts, and why."""
    assert {module: _identity_of(call) for module, call in _calls("Launch")} == {
        "executors/process.py": "request.identity",
        "executors/project_tools.py": "self.identity",
        # The commands of `setup`, which the person wrote.
        "plugins/git/code/run_worktree.py": "None",
    }
    assert {module: _identity_of(call) for module, call in _calls("StepRequest")} == {
        "engine/layers/agent.py": "attempt.identity()",
        "plugins/requests/starting.py": "Identity(step=step.name, token=0)",
    }
    assert {module for module, _ in _calls("Guard")} == {"executors/process.py"}


def test_the_name_of_the_mark_is_defined_in_one_place() -> None:
    named = set()
    for path, text in _sources("SEQUENCER_TOKEN"):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Constant) and node.value == "SEQUENCER_TOKEN":
                named.add(path.relative_to(PACKAGE).as_posix())
    assert len(named) == 1, named
    uses = {path.relative_to(PACKAGE).as_posix() for path, _ in _sources("INSIDE_AGENT: ")}
    assert uses == {"executors/protocol.py"}


def test_an_identity_has_all_variables_in_a_run_and_few_without_one() -> None:
    assert len(IDENTITY.variables()) == 11
    alone = Identity(step="classifier", token=0).variables()
    assert json.dumps(alone) == '{"SEQUENCER_STEP": "classifier", "SEQUENCER_TOKEN": "0"}'
