"""Conversations over the Messages API: answers, tools, limits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from sequencer.engine.evidence import judge_turn
from sequencer.executors.messages_api import MessagesExecutor
from sequencer.executors.messages_loop import MessagesOptions
from sequencer.executors.process import ProcessCore
from sequencer.executors.protocol import Piece
from sequencer.frozen.fields import ValidationError
from sequencer.model.evidence import TurnEnd
from sequencer.model.outcome import OutcomeStatus
from tests.contract.executor_cases import IDENTITY, request_for
from tests.fake_model_server import fake_model
from tests.unit.executors.messages_desk import USAGE, Desk


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with fake_model() as model, ProcessCore() as core:
        made = Desk(model, tmp_path, core)
        yield made
        made.cancellation.close()


@pytest.mark.slow
def test_an_answer_is_streamed_counted_and_priced(desk: Desk) -> None:
    outcome = desk.ask([{"thinking": "hm", "text": "It is done.", "model_usage": USAGE}])
    assert (outcome.status, outcome.output) == (OutcomeStatus.OK, "It is done.")
    assert desk.heard.text(Piece.RESPONSE) == "It is done.\n"
    assert desk.heard.text(Piece.THOUGHT) == "hm\n"
    assert outcome.usage.cost_usd == pytest.approx(0.2)
    assert (outcome.usage.input_tokens, outcome.usage.output_tokens) == (100_000, 50_000)
    assert outcome.usage.seconds > 0
    live = [usage.cost_usd for usage in desk.heard.usages]
    assert live == sorted(live)
    assert live[-1] == pytest.approx(0.2)
    assert desk.model.requests[0].is_authorized


VERDICT = {
    "type": "object",
    "properties": {"pass": {"type": "boolean"}, "reason": {"type": "string", "maxLength": 9}},
    "required": ["pass"],
}


def test_the_schema_of_the_answer_is_sent_to_the_api(desk: Desk) -> None:
    answer = {"pass": False, "reason": "two"}
    outcome = desk.ask([{"text": json.dumps(answer)}], step={"output": {"schema": VERDICT}})
    assert (outcome.structured, json.loads(outcome.output)) == (answer, answer)
    sent = desk.model.bodies()[0]["output_config"]["format"]
    assert sent["type"] == "json_schema"
    # What the API does not know of JSON Schema it would refuse.
    assert sent["schema"]["additionalProperties"] is False
    assert "maxLength" not in sent["schema"]["properties"]["reason"]
    assert VERDICT["required"] == sent["schema"]["required"]


@pytest.mark.parametrize(
    ("output", "text", "structured"),
    [
        ({"schema": VERDICT}, "no JSON", None),
        # It has no form that the API knows, and is checked behind the step.
        ({"schema": {"minLength": 3}}, '"abc"', "abc"),
        ({"format": "json"}, '{"a": 1}', None),
    ],
)
def test_an_answer_is_structured_only_if_it_is_json_and_has_a_schema(
    desk: Desk, output: dict[str, Any], text: str, structured: object
) -> None:
    outcome = desk.ask([{"text": text}], step={"output": output})
    assert (outcome.status, outcome.output) == (OutcomeStatus.OK, text)
    assert outcome.structured == structured
    assert ("output_config" in desk.model.bodies()[0]) is (output.get("schema") is VERDICT)


def test_tools_edit_a_file_and_their_answers_are_sent_back(desk: Desk) -> None:
    (desk.folder / "a.txt").write_text("old\n")
    script: list[dict[str, Any]] = [
        {"text": "First I read.", "tool": "read", "input": {"path": "a.txt"}},
        {"tool": "edit", "input": {"path": "a.txt", "old_text": "old", "new_text": "new"}},
        {"text": "It is done."},
    ]
    outcome = desk.ask(script, entry={"tools": ["read", "edit"]})
    assert (outcome.status, outcome.output) == (OutcomeStatus.OK, "It is done.")
    assert (desk.folder / "a.txt").read_text() == "new\n"
    assert '-> read path="a.txt"' in desk.heard.text(Piece.ACTION)
    bodies = desk.model.bodies("/messages")
    assert len(bodies) == 3
    assert [tool["name"] for tool in bodies[0]["tools"]] == ["read", "edit"]
    result = bodies[1]["messages"][-1]["content"][0]
    assert result["type"] == "tool_result"
    assert result["content"][0]["text"] == "1\told"
    # The whole conversation is sent, and the end of it is what the next call reads cached.
    assert len(bodies[2]["messages"]) == 5
    marks = [json.dumps(message).count("cache_control") for message in bodies[2]["messages"]]
    assert marks == [0, 0, 0, 0, 1]


def test_unless_granted_nothing_is_written_and_no_command_runs(desk: Desk) -> None:
    script: list[dict[str, Any]] = [
        {"tool": "write", "input": {"path": "new.txt", "content": "x"}},
        {"tool": "bash", "input": {"command": "touch new.txt"}},
        {"tool": "read", "input": {"path": "../../etc/passwd"}},
        {"text": "I could not."},
    ]
    outcome = desk.ask(script)
    assert outcome.status is OutcomeStatus.OK
    assert len(outcome.denials) == 3
    assert outcome.denials[0] == 'write path="new.txt" content="x"'
    assert not (desk.folder / "new.txt").exists()
    assert [t["name"] for t in desk.model.bodies()[0]["tools"]] == ["read", "glob", "grep"]
    strict = desk.ask(script, entry={"fail_on_denial": True})
    assert strict.status is OutcomeStatus.FAILED
    assert strict.error is not None
    assert "refused" in strict.error


def test_the_runs_state_is_out_of_reach(desk: Desk) -> None:
    state = desk.folder / "progress" / "state.json"
    state.parent.mkdir()
    state.write_text("{}")
    script: list[dict[str, Any]] = [
        {"tool": "write", "input": {"path": "progress/state.json", "content": "x"}},
        {"tool": "write", "input": {"path": "sync/state.json", "content": "x"}},
        {"text": "x"},
    ]
    outcome = desk.ask(
        script, entry={"tools": ["write"]}, identity=replace(IDENTITY, state_path=state)
    )
    assert len(outcome.denials) == 2
    assert state.read_text() == "{}"
    assert not (desk.folder / "sync").exists()


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ({"allowed_tools": ["bash"]}, "add it to agents.api.tools"),
        ({"disallowed_tools": ["Bash"]}, "unknown tool 'Bash'"),
    ],
)
def test_a_step_cannot_widen_the_tools(desk: Desk, step: dict[str, Any], said: str) -> None:
    outcome = desk.ask([{"text": "x"}], step=step)
    assert outcome.status is OutcomeStatus.FAILED
    assert outcome.error is not None
    assert said in outcome.error
    assert desk.model.requests == []


def test_step_fields_reach_the_request(desk: Desk) -> None:
    desk.ask(
        [{"text": "x"}],
        entry={"max_tokens": 77, "prices": {}},
        step={"model": "m2"},
        system_prompt="Be brief.",
        append_system_prompt="Be kind.",
    )
    (body,) = desk.model.bodies()
    assert (body["model"], body["max_tokens"]) == ("m2", 77)
    assert body["system"] == "Be brief.\n\nBe kind."
    assert body["stream"] is True


@pytest.mark.parametrize("temperature", [0, 0.25, 1.0])
def test_the_temperature_is_sent_with_every_call(desk: Desk, temperature: float) -> None:
    script: list[dict[str, Any]] = [
        {"tool": "glob", "input": {"pattern": "*"}},
        {"text": "x"},
    ]
    outcome = desk.ask(script, step={"temperature": temperature, "provider": "anthropic"})
    assert outcome.status is OutcomeStatus.OK, outcome.error
    bodies = desk.model.bodies()
    assert [body["temperature"] for body in bodies] == [temperature] * 2
    desk.ask([{"text": "x"}])
    assert "temperature" not in desk.model.bodies()[-1]


@pytest.mark.parametrize(
    ("step", "entry", "calls"),
    [
        ({"max_turns": 2}, {}, 2),
        ({}, {"max_turns": 3}, 3),
        ({"single_turn": True, "max_turns": 9}, {}, 1),
    ],
)
def test_turns_are_limited(
    desk: Desk, step: dict[str, Any], entry: dict[str, Any], calls: int
) -> None:
    turn = {"tool": "glob", "input": {"pattern": "*"}}
    outcome = desk.ask([turn] * 9, step=step, entry=entry)
    assert outcome.status is OutcomeStatus.FAILED
    assert outcome.error is not None
    assert "raise max_turns" in outcome.error
    assert len(desk.model.requests) == calls


def test_the_budget_stops_before_the_next_call(desk: Desk) -> None:
    turn = {"tool": "glob", "input": {"pattern": "*"}, "model_usage": USAGE}
    outcome = desk.ask([turn] * 9, max_cost_usd=0.3)
    assert outcome.status is OutcomeStatus.FAILED
    assert outcome.error is not None
    assert "0.4000 of 0.3000 USD" in outcome.error
    assert len(desk.model.requests) == 2
    assert outcome.usage.cost_usd == pytest.approx(0.4)


def test_a_budget_without_a_price_is_refused_before_the_first_call(desk: Desk) -> None:
    outcome = desk.ask([{"text": "x"}], step={"model": "unheard-of"}, max_cost_usd=1.0)
    assert outcome.status is OutcomeStatus.FAILED
    assert outcome.error is not None
    assert "prices: {unheard-of:" in outcome.error
    assert desk.model.requests == []
    assert desk.ask([{"text": "x"}], step={"model": "unheard-of"}).status is OutcomeStatus.OK


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("max_tokens", "raise it"),
        ("refusal", "refused to answer"),
        ("model_context_window_exceeded", "outgrew"),
    ],
)
def test_an_answer_that_was_not_finished_is_a_failure(desk: Desk, reason: str, said: str) -> None:
    outcome = judge_turn(desk.ask([{"text": "half an ans", "stop_reason": reason}]))
    assert outcome.status is OutcomeStatus.FAILED
    assert outcome.error is not None
    assert said in outcome.error
    assert repr(reason) in outcome.error


def test_an_unknown_stop_reason_is_reported_and_not_judged_here(desk: Desk) -> None:
    outcome = desk.ask([{"text": "half an ans", "stop_reason": "something_new"}])
    assert outcome.evidence is not None
    assert outcome.evidence.turn_end is TurnEnd.UNKNOWN
    assert outcome.evidence.reason == "something_new"
    assert (outcome.output, outcome.error) == ("half an ans", None)


def test_actions_are_shown_and_leftover_processes_are_ended_and_reported(desk: Desk) -> None:
    leaves = "sleep 4711 > /dev/null 2>&1 & until grep -qa ^sleep /proc/$!/cmdline; do :; done"
    turn = {"tool": "bash", "input": {"command": leaves}}
    outcome = desk.ask([turn, turn, {"text": "It listens."}], entry={"tools": ["bash"]})
    shown = outcome.evidence
    assert shown is not None
    assert (shown.turn_end, shown.reason) == (TurnEnd.CLEAN, "end_turn")
    assert (shown.tool_calls, shown.open_calls, shown.repeated_calls) == (2, 0, 2)
    assert (shown.has_text, shown.ended_processes) == (True, 2)
    told = "[sequencer] 1 process that the agent had left running was ended: sleep 4711\n"
    assert desk.heard.text(Piece.NOTICE).count(told) == 2


def test_using_up_the_turns_cuts_off_the_last_one(desk: Desk) -> None:
    turn = {"tool": "glob", "input": {"pattern": "*"}}
    outcome = desk.ask([turn] * 3, step={"max_turns": 2})
    assert outcome.status is OutcomeStatus.FAILED
    shown = outcome.evidence
    assert shown is not None
    assert (shown.turn_end, shown.reason, shown.open_calls) == (TurnEnd.CUT_OFF, "tool_use", 1)


def test_an_answer_continues_after_a_pause(desk: Desk) -> None:
    outcome = desk.ask([{"text": "wait", "stop_reason": "pause_turn"}, {"text": "done"}])
    assert (outcome.status, outcome.output) == (OutcomeStatus.OK, "done")


def test_check_and_run_name_the_variable_of_a_missing_key(desk: Desk) -> None:
    options = MessagesOptions(api_key_env="OTHER_KEY", model="unheard-of")
    executor = MessagesExecutor("api", options, ProcessCore(), environ={})
    problems = executor.problems()
    assert len(problems) == 2
    assert "OTHER_KEY" in problems[0]
    assert "prices: {unheard-of" in problems[1]
    outcome = executor.perform(request_for(desk.folder), desk.heard, desk.cancellation)
    assert outcome.status is OutcomeStatus.FAILED
    assert outcome.error is not None
    assert "OTHER_KEY" in outcome.error


@pytest.mark.parametrize(
    "entry",
    [
        {"tools": ["Bash"]},
        {"api_key_env": "not a name"},
        {"base_url": "file:///etc/passwd"},
        {"api_key": "sk-in-a-file"},
        {"prices": {"m": {"input": -1, "output": 0}}},
    ],
)
def test_invalid_entries_are_refused(entry: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        MessagesOptions.model_validate(entry)
