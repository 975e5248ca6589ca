"""The claude executor with the real program, against a model server on this machine.

The program comes with the wheel claude-agent-sdk (``pip install .[claude]``), or from
where SEQUENCER_TEST_CLAUDE points.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from sequencer import (
    Cancellation,
    Outcome,
    OutcomeStatus,
    Piece,
    Step,
    StopReason,
)
from tests.acceptance.recorded_attempt import record_attempt
from tests.contract.client_cases import agent_of
from tests.contract.executor_cases import Recorder, marked_processes, request_for, wait_until
from tests.fake_model_server import FakeModel, fake_model

pytestmark = [pytest.mark.wheel, pytest.mark.timeout(120)]

MODEL = "claude-sonnet-4-6"


def claude_program() -> str:
    """Return the path of the real program, or skip the test without one."""
    named = os.environ.get("SEQUENCER_TEST_CLAUDE")
    spec = find_spec("claude_agent_sdk")
    found = named or (spec and spec.origin and str(Path(spec.origin).parent / "_bundled/claude"))
    if found and Path(found).exists():
        return str(found)
    message = "the real claude is missing: pip install .[claude], or set SEQUENCER_TEST_CLAUDE"
    if os.environ.get("CI_REQUIRE_CLIENTS"):
        pytest.fail(message)
    pytest.skip(message)


class Desk:
    """The real program in a project and a home of its own, before a fake model."""

    def __init__(self, model: FakeModel, folder: Path, program: str) -> None:
        self.model = model
        self.folder = folder / "project"
        self.folder.mkdir()
        self.home = folder / "home"
        self.home.mkdir()
        self.heard = Recorder()
        self.cancellation = Cancellation()
        self._program = program

    def entry(self, **given: Any) -> dict[str, Any]:
        """Return the program's entry of ``agents:``, with the options that are *given*."""
        env = {
            "HOME": str(self.home),
            "ANTHROPIC_API_KEY": "dummy-key",
            "ANTHROPIC_BASE_URL": self.model.url,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_MAX_RETRIES": "1",
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_TELEMETRY": "1",
        }
        return {"kind": "claude", "program": self._program, "model": MODEL, "env": env, **given}

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

    def run(self, *script: dict[str, Any], step: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return what a run records of its only attempt, in the journal's form."""
        prompt = f"Do it. <<fake {json.dumps(script)}>>"
        return record_attempt(self.folder, self.entry(), prompt, step or {})


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    program = claude_program()
    with fake_model() as model:
        made = Desk(model, tmp_path, program)
        yield made
        made.cancellation.close()


def write_turn(path: Path) -> dict[str, Any]:
    return {"tool": "Write", "input": {"file_path": str(path), "content": "by claude\n"}}


def test_it_edits_a_file_and_is_charged(desk: Desk) -> None:
    target = desk.folder / "new.txt"
    turn = {"thinking": "I think.", "text": "I write.", **write_turn(target)}
    outcome = desk.ask(
        turn, {"text": "It is done."}, entry={"permission_mode": "acceptEdits"}, max_cost_usd=5.0
    )
    assert outcome.status is OutcomeStatus.OK, outcome.error
    assert outcome.output == "It is done."
    assert target.read_text() == "by claude\n"
    assert outcome.denials == ()
    assert desk.heard.text(Piece.RESPONSE).splitlines() == ["I write.", "It is done."]
    assert "I think." in desk.heard.text(Piece.THOUGHT)
    assert "-> Write" in desk.heard.text(Piece.ACTION)
    assert outcome.usage.cost_usd > 0
    assert outcome.usage.input_tokens > 100
    # Our list price and the client's agree.
    assert desk.heard.usages[-2].cost_usd == pytest.approx(outcome.usage.cost_usd, rel=0.01)


def test_an_edit_without_permission_is_refused_and_reported(desk: Desk) -> None:
    target = desk.folder / "new.txt"
    outcome = desk.ask(write_turn(target), {"text": "I could not."})
    assert (outcome.status, outcome.exit_code) == (OutcomeStatus.OK, 0)
    assert len(outcome.denials) == 1
    assert outcome.denials[0].startswith("Write ")
    assert not target.exists()
    strict = desk.ask(write_turn(target), {"text": "I could not."}, entry={"fail_on_denial": True})
    assert strict.status is OutcomeStatus.FAILED
    assert not target.exists()


@pytest.mark.parametrize(
    ("turn", "status", "said"),
    [
        ({"error": 529}, OutcomeStatus.UNAVAILABLE, "529"),
        ({"error": 401}, OutcomeStatus.FAILED, "ANTHROPIC_API_KEY"),
    ],
)
def test_an_api_error_is_a_failure_unless_it_is_temporary(
    desk: Desk, turn: dict[str, Any], status: OutcomeStatus, said: str
) -> None:
    outcome = desk.ask(turn)
    assert (outcome.status, outcome.exit_code) == (status, 1)
    assert outcome.error is not None
    assert said in outcome.error


def test_too_many_requests_is_a_limit_not_a_failure(desk: Desk) -> None:
    outcome = desk.ask({"error": 429, "message": "This would exceed your account's rate limit."})
    assert outcome.status is OutcomeStatus.LIMITED
    assert outcome.not_before is not None


def test_turns_are_limited(desk: Desk) -> None:
    turn = {"tool": "Bash", "input": {"command": "echo hi"}}
    outcome = desk.ask(turn, turn, {"text": "x"}, step={"max_turns": 1})
    assert outcome.status is OutcomeStatus.FAILED
    assert outcome.error is not None
    assert "raise max_turns" in outcome.error


VERDICT = {"type": "object", "properties": {"pass": {"type": "boolean"}}, "required": ["pass"]}
SERVER = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    version = asked.get("params", {}).get("protocolVersion")
    tool = {"name": "touch", "description": "t", "inputSchema": {"type": "object"}}
    answer = {
        "initialize": {
            "protocolVersion": version,
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "own", "version": "1"},
        },
        "tools/list": {"tools": [tool]},
    }
    if "id" in asked:
        result = answer.get(asked["method"], {})
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


def test_no_tools_means_no_mcp_server_tools_either(desk: Desk) -> None:
    server = desk.home / "server.py"
    server.write_text(SERVER)
    entry = {"type": "stdio", "command": sys.executable, "args": [str(server)]}
    (desk.home / ".claude.json").write_text(json.dumps({"mcpServers": {"own": entry}}))
    desk.ask({"text": "x"}, entry={"tools": []})
    (offered,) = desk.model.bodies("/messages")[-1]["tools"]
    assert offered["name"] == "mcp__own__touch"
    for step in ({"single_turn": True}, {"disallow_all_tools": True}):
        outcome = desk.ask({"text": "the answer"}, step=step)
        assert (outcome.status, outcome.output) == (OutcomeStatus.OK, "the answer")
        assert not desk.model.bodies("/messages")[-1].get("tools")


@pytest.mark.parametrize("step", [{}, {"single_turn": True}, {"disallow_all_tools": True}])
def test_an_answer_has_the_schema_the_step_wants(desk: Desk, step: dict[str, Any]) -> None:
    answer = {"tool": "StructuredOutput", "input": {"pass": False}}
    outcome = desk.ask(
        # One that forgets the form is reminded of it.
        {"text": "Two tests fail."},
        answer,
        {"text": "done"},
        step={**step, "output": {"schema": VERDICT}},
    )
    assert outcome.status is OutcomeStatus.OK, outcome.error
    assert (outcome.structured, json.loads(outcome.output)) == ({"pass": False}, {"pass": False})


def test_an_answer_that_never_fits_the_schema_has_no_structure(desk: Desk) -> None:
    outcome = desk.ask({"text": "It passes."}, step={"output": {"schema": VERDICT}})
    assert (outcome.status, outcome.output) == (OutcomeStatus.OK, "It passes.")
    assert outcome.structured is None


def test_a_step_narrows_the_tools(desk: Desk) -> None:
    desk.ask(
        {"text": "x"},
        step={"allowed_tools": ["Read", "Bash(git log*)"], "disallowed_tools": ["Read"]},
    )
    offered = {tool["name"] for tool in desk.model.bodies("/messages")[-1]["tools"]}
    assert offered == {"Bash"}


def test_the_budget_stops_it_and_what_was_used_is_charged(desk: Desk) -> None:
    turn = {
        "tool": "Bash",
        "input": {"command": "echo hi > ran"},
        "model_usage": {"input_tokens": 100_000},
    }
    outcome = desk.ask(turn, {"text": "x"}, entry={"allowed_tools": ["Bash"]}, max_cost_usd=0.05)
    assert outcome.status is OutcomeStatus.FAILED
    assert outcome.error is not None
    assert "raise max_cost_usd" in outcome.error
    assert outcome.usage.cost_usd > 0.05
    assert not (desk.folder / "ran").exists()


def test_a_continued_session_is_charged_its_share_and_keeps_its_budget(desk: Desk) -> None:
    first = desk.ask({"text": "first", "model_usage": {"input_tokens": 100_000}})
    assert first.session_id is not None
    spent = first.usage.cost_usd
    assert spent > 0.1
    # Less than the session has cost so far, but enough for this step.
    second = desk.ask({"text": "second"}, resume_session=first.session_id, max_cost_usd=0.1)
    assert (second.status, second.output) == (OutcomeStatus.OK, "second"), second.error
    assert second.session_id is not None
    assert second.session_id.partition(";")[0] == first.session_id.partition(";")[0]
    assert 0 < second.usage.cost_usd < 0.1
    assert "first" in json.dumps(desk.model.bodies("/messages")[-1]["messages"])


def test_system_prompts_reach_the_model_also_in_a_continued_session(desk: Desk) -> None:
    def system() -> str:
        return json.dumps(desk.model.bodies("/messages")[-1]["system"])

    first = desk.ask({"text": "a"}, system_prompt="MARK-ONE", append_system_prompt="MARK-TWO")
    assert "MARK-ONE" in system()
    assert "MARK-TWO" in system()
    desk.ask({"text": "b"}, system_prompt="MARK-THREE", resume_session=first.session_id)
    assert "MARK-THREE" in system()
    assert "MARK-ONE" not in system()


def test_a_lost_session_is_named(desk: Desk) -> None:
    lost = "00000000-0000-4000-8000-000000000001"
    outcome = desk.ask({"text": "x"}, resume_session=lost)
    assert outcome.status is OutcomeStatus.FAILED
    assert outcome.error is not None
    assert lost in outcome.error
    assert outcome.session_fault == "lost"


def test_a_full_session_is_distinguished_from_other_bad_requests(desk: Desk) -> None:
    first = desk.ask({"text": "first", "model_usage": {"input_tokens": 100_000}})
    assert (first.context_tokens or 0) >= 100_000
    too_long = {"error": 400, "message": "prompt is too long: 202744 tokens > 200000 maximum"}
    full = desk.ask(too_long, resume_session=first.session_id)
    assert (full.status, full.session_fault) == (OutcomeStatus.FAILED, "lost")
    wrong = desk.ask({"error": 400, "message": "no"}, resume_session=first.session_id)
    assert (wrong.status, wrong.session_fault) == (OutcomeStatus.FAILED, "suspect")


def test_stopped_in_a_tool_it_leaves_no_process(desk: Desk) -> None:
    mark = f"mark-{os.getpid()}-{time.monotonic_ns()}"
    program = desk.folder / "wait.py"
    program.write_text("import sys, time\nopen('started', 'w').close()\ntime.sleep(300)\n")
    command = f"setsid python3 {program} {mark} & python3 {program} {mark}"

    def stop() -> None:
        wait_until((desk.folder / "started").exists, 30)
        desk.cancellation.set(StopReason.INTERRUPTED)

    thread = threading.Thread(target=stop)
    thread.start()
    outcome = desk.ask(
        {"tool": "Bash", "input": {"command": command}, "model_usage": {"input_tokens": 1000}},
        {"text": "x"},
        entry={"allowed_tools": ["Bash"]},
    )
    thread.join()
    assert (desk.folder / "started").exists()
    assert outcome.status is OutcomeStatus.INTERRUPTED
    assert marked_processes(mark) == []
    # What it had used until then is not lost.
    assert outcome.usage.input_tokens >= 1000
    assert outcome.usage.cost_usd > 0
