"""Facts of an attempt while it runs: what odd messages and many calls make of them."""

from __future__ import annotations

from typing import Any

import pytest

from sequencer.executors.claude import ClaudeParser
from sequencer.executors.observation import EndReasons, Observation
from sequencer.model.evidence import Evidence, TurnEnd
from sequencer.model.outcome import OutcomeStatus, SessionFault
from tests.unit.executors.replay import RULES, Replayed, encoded, feed

TABLE = EndReasons(clean=frozenset({"done"}), cut_off={"length": "make it smaller"})


def assistant(*content: dict[str, Any], **message: Any) -> dict[str, Any]:
    return {"type": "assistant", "message": {"role": "assistant", "content": content, **message}}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def call(key: str, command: str = "ls") -> dict[str, Any]:
    return {"type": "tool_use", "id": key, "name": "Bash", "input": {"command": command}}


def result(key: str, content: str = "a.py") -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": key, "content": content}
    return {"type": "user", "message": {"role": "user", "content": [block]}}


END = {"type": "result", "subtype": "success", "is_error": False, "result": ""}


def claude(*events: dict[str, Any]) -> tuple[Replayed, Evidence]:
    replayed = feed(ClaudeParser(RULES), encoded(*events, END))
    assert replayed.outcome.evidence is not None
    return replayed, replayed.outcome.evidence


@pytest.mark.parametrize("ids", [{}, {"id": "msg_1"}, {"id": ""}, {"id": 7}])
def test_messages_without_ids_of_their_own_are_not_one_long_answer(ids: dict[str, Any]) -> None:
    replayed, shown = claude(
        assistant(text("I look."), call("t1"), **ids), result("t1"), assistant(text("Done."), **ids)
    )
    assert replayed.outcome.output == "Done."
    assert (shown.turn_end, shown.tool_calls, shown.open_calls) == (TurnEnd.CLEAN, 1, 0)


@pytest.mark.parametrize(
    "own", [{"is_api_error_message": True}, {"error": "rate_limit"}, {"message": "<synthetic>"}]
)
def test_claudes_own_messages_are_not_text_of_its_agent(own: dict[str, Any]) -> None:
    said = assistant(text("You've hit your limit"), model=own.pop("message", "m"), id="m1")
    replayed, shown = claude({**said, **own})
    assert (replayed.outcome.output, shown.has_text) == ("", False)


@pytest.mark.parametrize("final", ["", "No response requested."])
def test_text_claude_puts_in_place_of_its_model_is_not_an_answer(final: str) -> None:
    stub = assistant(text("No response requested."), model="<synthetic>", id="m2")
    events = encoded(stub, {**END, "result": final})
    outcome = feed(ClaudeParser(RULES), events).outcome
    assert (outcome.status, outcome.output) == (OutcomeStatus.FAILED, "")
    assert (outcome.is_unexplained, outcome.session_fault) == (True, SessionFault.SUSPECT)
    # Behind work it takes the place of an empty answer; an agent's own words are its own.
    worked = assistant(text("It is mended."), id="m1")
    events = encoded(worked, stub, {**END, "result": final})
    assert feed(ClaudeParser(RULES), events).outcome.output == "It is mended."
    own = assistant(text("No response requested."), id="m3")
    events = encoded(own, {**END, "result": "No response requested."})
    assert feed(ClaudeParser(RULES), events).outcome.output == "No response requested."


def test_the_last_message_is_whole_though_the_result_has_its_last_block() -> None:
    replayed = feed(
        ClaudeParser(RULES),
        encoded(
            assistant(text("One."), id="m1"),
            assistant(text("Two."), id="m1"),
            {**END, "result": "Two."},
        ),
    )
    assert replayed.outcome.output == "One.\nTwo."


def test_a_call_of_a_subagent_is_counted_and_not_waited_for() -> None:
    within = {**assistant(call("s1"), id="m2"), "parent_tool_use_id": "t1"}
    _, shown = claude(assistant(call("t1"), id="m1"), within, result("t1"))
    assert (shown.tool_calls, shown.open_calls, shown.turn_end) == (2, 0, TurnEnd.CLEAN)


def test_only_equal_calls_with_equal_results_make_a_row() -> None:
    seen = Observation(TABLE)
    for number, (command, said) in enumerate(
        [("ls", "a"), ("ls", "a"), ("ls", "b"), ("ls", "b"), ("ls", "b"), ("cat", "b"), ("ls", "b")]
    ):
        seen.record_call(str(number), command)
        seen.record_result(str(number), said)
    assert seen.evidence(is_over=True).repeated_calls == 3


@pytest.mark.slow
def test_calls_that_json_cannot_hold_never_count_as_repeated() -> None:
    seen = Observation(TABLE)
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"a": deep}
    for key in ("1", "2"):
        seen.record_call(key, deep)
        seen.record_result(key, deep)
    assert (seen.tool_calls, seen.repeated_calls) == (2, 0)


def test_calls_beyond_the_remembered_ones_are_only_counted() -> None:
    seen = Observation(TABLE)
    for number in range(10_010):
        seen.record_call(str(number), "ls")
    shown = seen.evidence(is_over=True)
    assert (shown.tool_calls, shown.open_calls) == (10_010, 10_000)
    seen.close_calls()
    for number in range(10_010, 20_030):
        seen.record_call(str(number), "ls")
    assert seen.evidence(is_over=True).open_calls == 10_000


@pytest.mark.parametrize(
    ("reason", "is_over", "meant"),
    [
        ("done", True, TurnEnd.CLEAN),
        (None, True, TurnEnd.CLEAN),
        ("length", True, TurnEnd.CUT_OFF),
        ("other", True, TurnEnd.UNKNOWN),
        ("done", False, TurnEnd.CUT_OFF),
        (None, False, TurnEnd.CUT_OFF),
    ],
)
def test_a_turn_ends_as_the_table_says(reason: str | None, is_over: bool, meant: TurnEnd) -> None:
    seen = Observation(TABLE)
    seen.reason = reason
    assert seen.evidence(is_over=is_over).turn_end is meant
    assert seen.advice == ("make it smaller" if reason == "length" else None)
