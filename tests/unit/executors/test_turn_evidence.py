"""What the clients' recordings and streams show, and which turns count as ended cleanly."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from sequencer import Outcome
from sequencer.engine.evidence import judge_turn
from sequencer.executors import claude_turns, codex, gemini, messages_loop, opencode
from sequencer.executors.claude import ClaudeParser
from sequencer.executors.client_events import JsonEventParser, Rules
from sequencer.executors.process import ProcessEnd
from sequencer.model.evidence import Evidence, TurnEnd
from tests.contract.executor_cases import Recorder
from tests.unit.executors import recorded_evidence as recorded
from tests.unit.executors.evidence_streams import STREAMS
from tests.unit.executors.replay import RECORDED, recording

PARSERS: dict[str, Callable[[Rules], JsonEventParser]] = {
    "claude": ClaudeParser,
    "codex": codex.CodexParser,
    "gemini": gemini.GeminiParser,
    "opencode": opencode.OpencodeParser,
}
CLEAN, CUT_OFF, UNKNOWN = TurnEnd.CLEAN, TurnEnd.CUT_OFF, TurnEnd.UNKNOWN
Change = Callable[[list[dict[str, Any]]], Iterable[dict[str, Any]]]


def reported(client: str, lines: Iterable[bytes], exit_code: int = 0) -> Outcome:
    """Return what the parser of *client* makes of *lines*, before anyone judges it."""
    parser, heard = PARSERS[client](Rules()), Recorder()
    for line in lines:
        parser.feed_line(line, heard)
    return parser.finish(ProcessEnd(exit_code=exit_code))


def replayed(client: str, name: str, change: Change = list) -> tuple[Outcome, Evidence]:
    """Return the outcome of a recording after *change* has edited its events."""
    events = change(recorded.events_of(name))
    outcome = reported(client, (json.dumps(event).encode() for event in events))
    assert outcome.evidence is not None
    return outcome, outcome.evidence


# --- what the real clients have printed ----------------------------------------------

RECORDINGS = [(client, name) for client, names in recorded.WHOLE.items() for name in names]
EACH_RECORDING = pytest.mark.parametrize(("client", "name"), RECORDINGS)


@EACH_RECORDING
def test_a_finished_turn_shows_text_and_tools(client: str, name: str) -> None:
    outcome, shown = replayed(client, name)
    assert judge_turn(outcome).is_accepted
    assert (shown.turn_end, shown.has_text) == (CLEAN, True)
    assert (shown.tool_calls, shown.open_calls, shown.repeated_calls) == (1, 0, 0)
    assert outcome.output == "It is done."


@EACH_RECORDING
def test_a_turn_without_text_still_shows_its_tools(client: str, name: str) -> None:
    outcome, shown = replayed(client, name, recorded.without_text)
    assert judge_turn(outcome).is_accepted, "what it is worth is for others to say"
    assert (shown.turn_end, shown.has_text, shown.tool_calls) == (CLEAN, False, 1)
    assert outcome.output == ""


@EACH_RECORDING
def test_a_turn_without_tools_still_shows_its_text(client: str, name: str) -> None:
    outcome, shown = replayed(client, name, recorded.without_tools)
    assert judge_turn(outcome).is_accepted
    assert (shown.has_text, shown.tool_calls) == (True, 0)


@EACH_RECORDING
def test_a_turn_without_the_clients_end_event_is_not_accepted(client: str, name: str) -> None:
    outcome, shown = replayed(client, name, recorded.without_end)
    assert not judge_turn(outcome).is_accepted
    assert shown.turn_end is CUT_OFF


@EACH_RECORDING
def test_a_turn_that_ends_in_a_tool_call_was_cut_off(client: str, name: str) -> None:
    outcome, shown = replayed(client, name, recorded.ended_in_the_call)
    assert (shown.tool_calls, shown.open_calls, shown.turn_end) == (1, 1, CUT_OFF)
    judged = judge_turn(outcome)
    assert not judged.is_accepted
    assert "1 tool call got no result" in str(judged.error)


@EACH_RECORDING
def test_the_clients_end_event_counts_without_a_reason(client: str, name: str) -> None:
    outcome, shown = replayed(client, name, recorded.with_reason(None))
    assert (shown.turn_end, shown.reason) == (CLEAN, None)
    assert judge_turn(outcome).is_accepted


CLAUDE, OPENCODE, GEMINI = "claude-330-edit", "opencode-edit", "gemini-edit"
REASONS: list[tuple[str, Change, str, TurnEnd]] = [
    *((CLAUDE, recorded.with_reason(each), each, CLEAN) for each in ("end_turn", "stop_sequence")),
    *(
        (CLAUDE, recorded.with_reason(each), each, CUT_OFF)
        for each in (
            *("tool_use", "pause_turn", "max_tokens", "refusal", "compaction", "tool_deferred"),
            *("model_context_window_exceeded", "tool_deferred_unavailable"),
        )
    ),
    *(
        (CLAUDE, recorded.with_reason(each, "terminal_reason"), each, CUT_OFF)
        for each in (
            *("aborted_streaming", "aborted_tools", "hook_stopped", "max_turns"),
            *("background_requested", "tool_deferred"),
        )
    ),
    (CLAUDE, recorded.with_reason("stop_hook_prevented", "terminal_reason"), "", CLEAN),
    (CLAUDE, recorded.with_reason("brand_new"), "brand_new", UNKNOWN),
    (CLAUDE, recorded.with_reason("brand_new", "terminal_reason"), "brand_new", UNKNOWN),
    (CLAUDE, recorded.with_reason("not a word"), "no-word", UNKNOWN),
    # A gateway may pass on the words of the service behind it.
    *(
        (client, recorded.with_reason(each), each, CUT_OFF)
        for client in (CLAUDE, OPENCODE)
        for each in (
            *("length", "tool_calls", "content_filter", "MAX_TOKENS", "SAFETY", "max_tokens"),
            *("max_output_tokens", "incomplete", "guardrail_intervened", "model_length"),
        )
    ),
    *((CLAUDE, recorded.with_reason(each), each, CLEAN) for each in ("stop", "STOP")),
    (OPENCODE, recorded.with_reason("end_turn"), "end_turn", CLEAN),
    (OPENCODE, recorded.with_reason("stop"), "stop", CLEAN),
    *(
        (OPENCODE, recorded.with_reason(each), each, CUT_OFF)
        for each in ("tool-calls", "length", "content-filter", "error")
    ),
    *(
        (OPENCODE, recorded.with_reason(each), each, UNKNOWN)
        for each in ("unknown", "other", "brand_new")
    ),
    (GEMINI, recorded.stopped_by("Slow network", "warning"), "", CLEAN),
    (
        GEMINI,
        recorded.stopped_by("Loop detected, stopping execution", "warning"),
        "loop-detected",
        CUT_OFF,
    ),
    (
        GEMINI,
        recorded.stopped_by("Maximum session turns exceeded", "error"),
        "max-session-turns",
        CUT_OFF,
    ),
    (GEMINI, recorded.stopped_by("The model returned nothing", "error"), "error", CUT_OFF),
    (
        GEMINI,
        recorded.stopped_by("Agent execution blocked: by a hook", "warning"),
        "execution-blocked",
        UNKNOWN,
    ),
]


@pytest.mark.parametrize(("name", "change", "reason", "meant"), REASONS)
def test_each_reason_is_classified_correctly(
    name: str, change: Change, reason: str, meant: TurnEnd
) -> None:
    client = name.partition("-")[0]
    outcome, shown = replayed(client, name, change)
    assert shown.turn_end is meant
    assert reason in {shown.reason, ""}
    assert judge_turn(outcome).is_accepted is (meant is not CUT_OFF)
    silent, _ = replayed(client, name, lambda events: recorded.without_text(list(change(events))))
    assert judge_turn(silent).is_accepted is (meant is CLEAN), "without text, in doubt it failed"


FAILED = sorted(
    path.stem
    for path in RECORDED.glob("*.jsonl")
    if json.loads(path.read_text().splitlines()[0])["exit_code"] != 0
)


@pytest.mark.parametrize("name", FAILED)
def test_limits_outages_and_lost_sessions_are_not_finished_turns(name: str) -> None:
    end, _, lines = recording(name)
    outcome = reported(name.partition("-")[0], lines, end.exit_code or 1)
    assert not outcome.is_accepted
    assert outcome.evidence is not None
    assert outcome.evidence.turn_end is CUT_OFF


@pytest.mark.parametrize("name", ["claude-332-background", "claude-332-subagent"])
def test_calls_claude_runs_in_the_background_count_as_answered(name: str) -> None:
    outcome, shown = replayed("claude", name)
    assert (shown.turn_end, shown.tool_calls, shown.open_calls) == (CLEAN, 1, 0)
    assert outcome.output == "woken", "the turn that its end has woken is the last"

    def cut(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        # Nothing but claude's own word that the call is in the background.
        place = next(n for n, event in enumerate(events) if event["type"] == "user")
        return [*events[:place], events[-1]]

    shown = replayed("claude", name, cut)[1]
    assert (shown.turn_end, shown.tool_calls, shown.open_calls) == (CLEAN, 1, 0)


def test_a_structured_answer_ends_claudes_turn_with_a_tool_call() -> None:
    def formed(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        given = {"structured_output": {"pass": True}, "result": '{"pass":true}'}
        return [*events[:-1], {**events[-1], **given, "stop_reason": "tool_use"}]

    outcome, shown = replayed("claude", CLAUDE, formed)
    assert (shown.turn_end, outcome.structured) == (CLEAN, {"pass": True})
    assert outcome.output == '{"pass":true}'


@pytest.mark.parametrize("name", ["claude-330-edit", "claude-197-edit"])
def test_an_empty_final_field_does_not_lose_claudes_answer(name: str) -> None:
    def emptied(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [*events[:-1], {**events[-1], "result": ""}]

    assert replayed("claude", name, emptied)[0].output == "It is done."


def test_evidence_contains_no_arguments_and_no_text() -> None:
    for client, name in RECORDINGS:
        _, shown = replayed(client, name)
        told = json.dumps(list(shown.model_dump(mode="json").values()))
        assert not any(word in told for word in ("echo", "project", "done", "hi", "txt")), told


# --- random streams ------------------------------------------------------------------


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("client", STREAMS)
def test_a_thousand_random_streams_are_classified_correctly(client: str) -> None:
    accepted = refused = 0
    for seed in range(1_000):
        stream = STREAMS[client](random.Random(seed))  # noqa: S311 - for tests
        outcome, label = reported(client, stream.lines, stream.exit_code), stream.label
        is_accepted = judge_turn(outcome).is_accepted
        told = f"seed {seed}: {label}\n" + b"\n".join(stream.lines).decode("utf-8", "replace")
        assert is_accepted is label.is_accepted, told
        shown = outcome.evidence or Evidence()
        assert shown.has_text is label.has_text, told
        assert (shown.tool_calls, shown.open_calls) == (label.tool_calls, label.open_calls), told
        assert shown.repeated_calls == label.repeated_calls, told
        if is_accepted:
            assert outcome.output.strip() == label.answer.strip(), told
        accepted += is_accepted
        refused += not is_accepted
    # Streams of one kind alone would show little.
    assert min(accepted, refused) > 200, (accepted, refused)


# --- the tables and their page ---------------------------------------------------------

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "executors.md"
TABLES = {
    "claude": claude_turns.TURNS,
    "codex": codex.TURNS,
    "gemini": gemini.TURNS,
    "opencode": opencode.TURNS,
    "anthropic": messages_loop.TURNS,
}


@pytest.mark.parametrize("client", TABLES)
def test_the_page_lists_each_reason_of_the_table(client: str) -> None:
    table = TABLES[client]
    row = next(
        line
        for line in PAGE.read_text().partition("### How a turn ends")[2].splitlines()
        if line.startswith(f"| {client} |")
    )
    _, _, clean, cut_off, *_ = row.split("|")
    assert set(clean.split("`")[1::2]) == set(table.clean)
    assert set(cut_off.split("`")[1::2]) == set(table.cut_off)
