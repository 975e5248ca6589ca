"""The codex, gemini and opencode executors with the real programs, before a fake model.

The programs are looked for on PATH and in the folder that SEQUENCER_TEST_CLIENTS names
(a node_modules/.bin).
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sequencer import (
    Cancellation,
    Outcome,
    OutcomeStatus,
    Step,
    StopReason,
)
from tests.acceptance.recorded_attempt import record_attempt
from tests.contract.client_cases import agent_of
from tests.contract.executor_cases import Recorder, marked_processes, request_for, wait_until
from tests.fake_model_server import FakeModel, fake_model
from tests.isolation import OWN_PATH

pytestmark = [pytest.mark.clients, pytest.mark.timeout(180)]

CLIENTS = ["codex", "gemini", "opencode"]


def program_of(client: str) -> str:
    """Return the path of the real program, or skip the test without one."""
    folder = os.environ.get("SEQUENCER_TEST_CLIENTS", "")
    found = shutil.which(client, path=os.pathsep.join([folder, os.environ[OWN_PATH]]))
    if found:
        return found
    message = f"{client} is missing: npm install it, or set SEQUENCER_TEST_CLIENTS"
    if os.environ.get("CI_REQUIRE_CLIENTS"):
        pytest.fail(message)
    pytest.skip(message)


def _codex(desk: Desk) -> dict[str, Any]:
    home = desk.home / ".codex"
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(
        'model_provider = "fake"\nmodel = "gpt-5-codex"\n[model_providers.fake]\nname = "fake"\n'
        f'base_url = "{desk.model.url}/v1"\nenv_key = "FAKE_KEY"\nwire_api = "responses"\n'
        "request_max_retries = 1\nstream_max_retries = 1\n"
    )
    env = {"CODEX_HOME": str(home), "FAKE_KEY": "dummy"}
    # The sandbox of codex needs rights that a container may lack; the folder is a test's own.
    return {"sandbox": "danger-full-access", "env": env}


def _gemini(desk: Desk) -> dict[str, Any]:
    home = desk.home / ".gemini"
    home.mkdir(exist_ok=True)
    settings = {"security": {"auth": {"selectedType": "gemini-api-key"}}}
    (home / "settings.json").write_text(json.dumps(settings))
    env = {"GEMINI_API_KEY": "dummy", "GOOGLE_GEMINI_BASE_URL": desk.model.url}
    return {"model": "gemini-2.5-flash", "approval_mode": "yolo", "env": env}


def _opencode(desk: Desk) -> dict[str, Any]:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{desk.model.url}/v1", "apiKey": "dummy"},
        "models": {"m1": {"name": "m1", "limit": {"context": 100_000, "output": 8_000}}},
    }
    settings = {"provider": {"fake": provider}}
    (desk.folder / "opencode.json").write_text(json.dumps(settings))
    env = {"OPENCODE_DISABLE_MODELS_FETCH": "1"}
    permission = {"edit": "allow", "bash": "allow"}
    return {"model": "fake/m1", "permission": permission, "env": env}


SET_UP: dict[str, Callable[[Desk], dict[str, Any]]] = {
    "codex": _codex,
    "gemini": _gemini,
    "opencode": _opencode,
}
"""Each writes the client's own settings, and returns its options in ``agents:``."""


class Desk:
    """One real program in a project and a home of its own, before a fake model."""

    def __init__(self, client: str, model: FakeModel, folder: Path) -> None:
        self.client = client
        self.program = program_of(client)
        self.model = model
        self.folder = folder / "project"
        self.home = folder / "home"
        self.folder.mkdir()
        self.home.mkdir()
        self.heard = Recorder()
        self.cancellation = Cancellation()

    def entry(self, **given: Any) -> dict[str, Any]:
        """Return the client's entry of ``agents:``, with the options that are *given*."""
        own = SET_UP[self.client](self)
        env = {"HOME": str(self.home), **own["env"]}
        return {"kind": self.client, "program": self.program, **own, "env": env, **given}

    def ask(
        self,
        *script: dict[str, Any],
        entry: dict[str, Any] | None = None,
        step: dict[str, Any] | None = None,
        **request: Any,
    ) -> Outcome:
        """Return what the executor says of an attempt, before anyone judges it."""
        made = request_for(
            self.folder,
            step=Step(name="main", **step or {}),
            prompt=f"Do it. <<fake {json.dumps(script)}>>",
            **request,
        )
        with agent_of(self.folder, self.entry(**entry or {})) as executor:
            assert executor.problems() == []
            return executor.perform(made, self.heard, self.cancellation)

    def run(self, *script: dict[str, Any], **entry: Any) -> dict[str, Any]:
        """Return what a run records of its only attempt, in the journal's form."""
        prompt = f"Do it. <<fake {json.dumps(script)}>>"
        return record_attempt(self.folder, self.entry(**entry), prompt, {})

    def command(self, command: str) -> dict[str, Any]:
        """Return the turn in which this client's model runs *command*."""
        name, key = {
            "codex": ("exec_command", "cmd"),
            "gemini": ("run_shell_command", "command"),
            "opencode": ("bash", "command"),
        }[self.client]
        more = {"description": "x"} if self.client == "opencode" else {}
        return {"tool": name, "input": {key: command, **more}}


@pytest.fixture(params=CLIENTS)
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Desk]:
    with fake_model() as model:
        made = Desk(request.param, model, tmp_path)
        yield made
        made.cancellation.close()


def test_it_runs_a_command_and_is_counted(desk: Desk) -> None:
    outcome = desk.ask(desk.command("echo hi > ran.txt"), {"text": "It is done."})
    assert outcome.status is OutcomeStatus.OK, outcome.error
    assert outcome.output == "It is done."
    assert (desk.folder / "ran.txt").read_text() == "hi\n"
    assert "ran.txt" in desk.heard.text()
    assert outcome.usage.input_tokens > 0
    assert outcome.denials == ()


def test_without_permission_a_client_changes_nothing_and_reports_it(desk: Desk) -> None:
    if desk.client == "codex":
        pytest.skip("its sandbox needs rights that a container may lack")
    own: dict[str, dict[str, Any]] = {
        "gemini": {"approval_mode": "default"},
        "opencode": {"permission": {"bash": "ask"}},
    }
    outcome = desk.run(
        desk.command("echo hi > ran.txt"), {"text": "I could not."}, **own[desk.client]
    )
    assert not (desk.folder / "ran.txt").exists()
    assert len(outcome["denials"]) == 1
    # opencode breaks off at a refusal, gemini lets the model go on.
    assert outcome["status"] == {"gemini": "ok", "opencode": "failed"}[desk.client]


def test_an_error_of_the_api_is_a_failure(desk: Desk) -> None:
    outcome = desk.ask({"error": 400, "message": "bad thing"})
    assert outcome.status is OutcomeStatus.FAILED
    assert outcome.error is not None
    assert "bad thing" in outcome.error


def test_a_system_prompt_replaces_the_clients_own(desk: Desk) -> None:
    outcome = desk.ask({"text": "x"}, system_prompt="MARK-ONE")
    assert outcome.status is OutcomeStatus.OK, outcome.error
    assert any("MARK-ONE" in json.dumps(body) for body in desk.model.bodies())


def test_a_continued_session_has_its_context_and_is_charged_its_share(desk: Desk) -> None:
    first = desk.ask({"text": "the first answer"})
    assert first.session_id is not None
    second = desk.ask({"text": "the second answer"}, resume_session=first.session_id)
    assert (second.status, second.output) == (OutcomeStatus.OK, "the second answer"), second.error
    assert "the first answer" in json.dumps(desk.model.bodies()[-1])
    assert second.usage.input_tokens < 1.8 * first.usage.input_tokens


def test_stopped_in_a_tool_it_leaves_no_process(desk: Desk) -> None:
    mark = f"mark-{os.getpid()}-{time.monotonic_ns()}"
    program = desk.folder / "wait.py"
    program.write_text("import time\nopen('started', 'w').close()\ntime.sleep(300)\n")

    def stop() -> None:
        wait_until((desk.folder / "started").exists, 60)
        desk.cancellation.set(StopReason.INTERRUPTED)

    thread = threading.Thread(target=stop)
    thread.start()
    command = f"setsid python3 {program} {mark} & python3 {program} {mark}"
    outcome = desk.ask(desk.command(command), {"text": "x"})
    thread.join()
    assert (desk.folder / "started").exists()
    assert outcome.status is OutcomeStatus.INTERRUPTED
    assert marked_processes(mark) == []


@pytest.mark.parametrize(
    ("step", "offered"),
    [
        ({"single_turn": True}, set()),
        ({"disallow_all_tools": True}, set()),
        ({"allowed_tools": ["read", "bash"]}, {"read", "bash"}),
        ({"allowed_tools": ["read", "bash"], "disallowed_tools": ["bash"]}, {"read"}),
    ],
)
def test_opencode_offers_the_tools_of_the_step(
    tmp_path: Path, step: dict[str, Any], offered: set[str]
) -> None:
    with fake_model() as model:
        desk = Desk("opencode", model, tmp_path)
        outcome = desk.ask({"text": "the answer"}, step=step)
        desk.cancellation.close()
        assert (outcome.status, outcome.output) == (OutcomeStatus.OK, "the answer")
        # One of the requests is for a title and has no tools at all.
        lists = [body.get("tools", []) for body in model.bodies("/chat/completions")]
        assert {tool["function"]["name"] for tools in lists for tool in tools} == offered


def test_codex_receives_the_answer_schema(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"pass": {"type": "boolean"}}}
    with fake_model() as model:
        desk = Desk("codex", model, tmp_path)
        step = {"output": {"schema": schema}}
        first = desk.ask({"text": '{"pass": false}'}, step=step)
        again = desk.ask({"text": '{"pass": true}'}, step=step, resume_session=first.session_id)
        desk.cancellation.close()
        assert (first.structured, again.structured) == ({"pass": False}, {"pass": True})
        for body in model.bodies("/responses"):
            form = body["text"]["format"]
            assert (form["type"], form["strict"]) == ("json_schema", True)
            assert form["schema"]["required"] == ["pass"]
            assert form["schema"]["additionalProperties"] is False


def test_codex_gets_an_added_prompt_and_loses_its_shell(tmp_path: Path) -> None:
    with fake_model() as model:
        desk = Desk("codex", model, tmp_path)
        desk.ask(
            {"text": "x"},
            step={"disallowed_tools": ["shell_tool", "unified_exec"]},
            append_system_prompt='say "MARK-TWO" é',
        )
        desk.cancellation.close()
        (body,) = model.bodies("/responses")
        assert 'say \\"MARK-TWO\\" \\u00e9' in json.dumps(body["input"])
        names = {tool.get("name") for tool in body["tools"]}
        assert not names & {"exec_command", "shell", "write_stdin"}
