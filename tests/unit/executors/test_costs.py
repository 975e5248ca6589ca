"""What counts as the cost of an attempt: told, estimated or unknown, never lowered, never 0."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sequencer.engine.records import journal_record
from sequencer.executors.claude import ClaudeParser
from sequencer.executors.client_events import JsonEventParser, Rules
from sequencer.executors.codex import CodexParser
from sequencer.executors.gemini import GeminiParser
from sequencer.executors.opencode import OpencodeParser
from sequencer.executors.prices import (
    ModelPrice,
    Tokens,
    find_price,
    list_prices,
    with_estimated_cost,
)
from sequencer.executors.process import ProcessEnd
from sequencer.executors.result_file import apply_result
from sequencer.frozen.fields import ValidationError
from sequencer.model.outcome import Outcome, OutcomeStatus, Quota, Usage
from sequencer.model.transitions import make_session
from sequencer.model.whole_numbers import MAX_USED
from tests.unit.executors.replay import NOW, RULES, encoded, feed

PRICES = {"m": ModelPrice(input=1, output=10)}
PRICED = Rules(clock=lambda: NOW, model="m", prices=PRICES)
SEEN = Usage(cost_usd=5, input_tokens=100, output_tokens=10, estimated_usd=5)
FAILED = ProcessEnd(exit_code=1)


def told(path: Path, usage: Usage, **said: float) -> Usage:
    path.write_text(json.dumps({"usage": said}))
    return apply_result(path, Outcome(status=OutcomeStatus.OK, usage=usage)).usage


@pytest.mark.parametrize("value", ["-1", "NaN", "Infinity", "-Infinity", "1e400", '"0"', "true"])
def test_an_absurd_figure_lowers_nothing(tmp_path: Path, value: str) -> None:
    path = tmp_path / "result.json"
    path.write_text(f'{{"usage": {{"cost_usd": {value}}}}}')
    outcome = apply_result(path, Outcome(status=OutcomeStatus.OK, usage=SEEN))
    assert (outcome.status, outcome.usage) == (OutcomeStatus.FAILED, SEEN)


@pytest.mark.parametrize("model", [None, "other"])
def test_without_a_price_the_cost_stays_unknown(model: str | None) -> None:
    unknown = Usage(unpriced=1, input_tokens=5)
    assert with_estimated_cost(unknown, model, PRICES) == unknown
    assert with_estimated_cost(Usage(unpriced=1), "m", PRICES) == Usage(unpriced=1)


CODEX = encoded(
    {
        "type": "turn.completed",
        "usage": {"input_tokens": 3000, "cached_input_tokens": 1000, "output_tokens": 100},
    }
)
GEMINI = encoded(
    {
        "type": "result",
        "status": "success",
        "stats": {"input_tokens": 3000, "output_tokens": 100, "cached": 1000},
    }
)


@pytest.mark.parametrize(("parser", "lines"), [(CodexParser, CODEX), (GeminiParser, GEMINI)])
def test_clients_that_report_only_tokens_are_priced_by_the_project(
    parser: type[JsonEventParser], lines: list[bytes]
) -> None:
    unknown = feed(parser(RULES), lines).outcome.usage
    assert (unknown.known_usd, unknown.unpriced) == (None, 1)
    replayed = feed(parser(PRICED), lines)
    usage = replayed.outcome.usage
    assert (usage.cost_usd, usage.estimated_usd, usage.unpriced) == (0.0031, 0.0031, 0)
    assert (usage.input_tokens, usage.cache_read_tokens) == (3000, 1000)
    assert replayed.heard.usages[-1].cost_usd == 0.0031


CLAUDE_CALL = {
    "input_tokens": 100,
    "cache_read_input_tokens": 1_000_000,
    "cache_creation_input_tokens": 300_000,
    "cache_creation": {"ephemeral_1h_input_tokens": 100_000},
    "output_tokens": 0,
}
CLAUDE_MODEL = {"inputTokens": 100, "cacheReadInputTokens": 60, "cacheCreationInputTokens": 40}
CACHE_READS: dict[str, tuple[type[JsonEventParser], dict[str, Any], tuple[int, int]]] = {
    "claude, by model": (
        ClaudeParser,
        {"type": "result", "is_error": False, "result": "x", "modelUsage": {"a": CLAUDE_MODEL}},
        (200, 60),
    ),
    "claude, as a whole": (
        ClaudeParser,
        {"type": "result", "is_error": False, "result": "x", "usage": CLAUDE_CALL},
        (1_300_100, 1_000_000),
    ),
    "opencode": (
        OpencodeParser,
        {
            "type": "step_finish",
            "part": {"tokens": {"input": 5, "cache": {"read": 60, "write": 7}}},
        },
        (72, 60),
    ),
}


@pytest.mark.parametrize("name", CACHE_READS)
def test_cache_reads_are_reported(name: str) -> None:
    parser, event, expected = CACHE_READS[name]
    usage = feed(parser(RULES), encoded(event)).outcome.usage
    assert (usage.input_tokens, usage.cache_read_tokens) == expected


def test_each_kind_of_input_of_a_killed_claude_has_its_own_price() -> None:
    message = {"id": "1", "model": "m", "usage": CLAUDE_CALL}
    lines = encoded({"type": "assistant", "message": message})
    usage = feed(ClaudeParser(PRICED), lines, end=FAILED).outcome.usage
    assert (usage.input_tokens, usage.cache_read_tokens) == (1_300_100, 1_000_000)
    # A dollar a million: 100 plain, a tenth for reads, 1.25 and 2 times for writes.
    assert usage.cost_usd == pytest.approx(0.0001 + 0.1 + 0.25 + 0.2)


def test_an_agent_may_report_its_cache_reads(tmp_path: Path) -> None:
    usage = told(tmp_path / "result.json", SEEN, cache_read_tokens=90, input_tokens=120)
    assert (usage.input_tokens, usage.cache_read_tokens) == (120, 90)


@pytest.mark.parametrize(
    "parser",
    [ClaudeParser(RULES), CodexParser(PRICED), GeminiParser(PRICED), OpencodeParser(RULES)],
    ids=lambda parser: parser.client,
)
def test_the_cost_of_a_client_that_ended_silently_is_unknown(parser: JsonEventParser) -> None:
    usage = feed(parser, [], end=FAILED).outcome.usage
    assert (usage.known_usd, usage.unpriced) == (None, 1)


@pytest.mark.parametrize("cost", [float("nan"), float("inf"), -1, "0", None, True, 1e300])
def test_a_cost_that_is_not_an_amount_is_unknown(cost: Any) -> None:
    models = {"a": {"costUSD": cost}, "b": {"costUSD": 0.5}}
    for share in ({"model_usage_since_last_result": models}, {"modelUsage": models}):
        event = {"type": "result", "is_error": False, "result": "x", **share}
        usage = feed(ClaudeParser(RULES), encoded(event)).outcome.usage
        assert (usage.cost_usd, usage.unpriced) == (0.5, 1)
    event = {"type": "result", "is_error": False, "result": "x", "total_cost_usd": cost}
    assert feed(ClaudeParser(RULES), encoded(event)).outcome.usage.known_usd is None
    part = {"reason": "stop", "cost": cost, "tokens": {"input": 5}}
    event = {"type": "step_finish", "part": part}
    both = encoded(event, {**event, "part": {**part, "cost": 0.25}}, event)
    usage = feed(OpencodeParser(RULES), both).outcome.usage
    assert (usage.cost_usd, usage.unpriced) == (0.25, 1)


def test_a_killed_claude_is_charged_by_list_prices_and_project_prices() -> None:
    message = {"id": "1", "usage": {"input_tokens": 1_000_000, "output_tokens": 0}}
    known = encoded({"type": "assistant", "message": {**message, "model": "claude-haiku-4-5"}})
    usage = feed(ClaudeParser(RULES), known, end=FAILED).outcome.usage
    assert (usage.cost_usd, usage.estimated_usd, usage.unpriced) == (1.0, 1.0, 0)
    own = encoded({"type": "assistant", "message": {**message, "model": "m"}})
    assert feed(ClaudeParser(RULES), own, end=FAILED).outcome.usage.known_usd is None
    assert feed(ClaudeParser(PRICED), own, end=FAILED).outcome.usage.cost_usd == 1.0


# --- commands --------------------------------------------------------------------------


# --- lines that an agent writes as its client ------------------------------------------


def models(**figures: float) -> dict[str, Any]:
    return {"modelUsage": {"m": {"inputTokens": 9, "outputTokens": 9, **figures}}}


def result(**fields: Any) -> dict[str, Any]:
    return {"type": "result", "is_error": False, "result": "done", **fields}


def codex(**usage: int) -> dict[str, Any]:
    return {"type": "turn.completed", "usage": usage}


def gemini(**stats: int) -> dict[str, Any]:
    return {"type": "result", "status": "success", "stats": stats}


TRUE = {"input_tokens": 3000, "output_tokens": 100}
NOTHING: dict[str, tuple[Callable[[], JsonEventParser], dict[str, Any], list[dict[str, Any]]]] = {
    "claude": (
        lambda: ClaudeParser(RULES),
        result(**models(costUSD=40)),
        [
            result(**models(costUSD=0, inputTokens=1)),
            result(total_cost_usd=0),
            result(model_usage_since_last_result={}),
        ],
    ),
    "claude that counts by session": (
        lambda: ClaudeParser(RULES),
        result(model_usage_since_last_result=models(costUSD=40)["modelUsage"]),
        [result(**models(costUSD=0)), result(total_cost_usd=0)],
    ),
    "codex": (
        lambda: CodexParser(PRICED),
        codex(**TRUE),
        [codex(), codex(input_tokens=9000, cached_input_tokens=9000)],
    ),
    "codex that counts by run": (
        lambda: CodexParser(PRICED, Usage(input_tokens=5000, output_tokens=500)),
        codex(**TRUE),
        [codex(input_tokens=5000, output_tokens=500)],
    ),
    "gemini": (
        lambda: GeminiParser(PRICED),
        gemini(**TRUE),
        [gemini(), gemini(input_tokens=9000, cached=9000)],
    ),
}


@pytest.mark.parametrize("name", NOTHING)
def test_a_second_sum_lowers_no_figure(name: str) -> None:
    make, true, forged = NOTHING[name]
    honest = feed(make(), encoded(true)).outcome.usage
    assert honest.cost_usd
    for lines in ([true, *forged], [*forged, true], [*forged, true, *forged]):
        usage = feed(make(), encoded(*lines)).outcome.usage
        assert usage.cost_usd >= honest.cost_usd
        assert usage.input_tokens >= honest.input_tokens
        assert usage.output_tokens >= honest.output_tokens


@pytest.mark.parametrize("code", [-9, 137, 143, None])
def test_the_observed_usage_of_a_killed_claude_counts_whatever_it_reported(
    code: int | None,
) -> None:
    call = {"id": "1", "model": "m", "usage": {"input_tokens": 10**6, "output_tokens": 0}}
    later = {**call, "id": "2"}
    lines = encoded(
        {"type": "assistant", "message": call},
        result(total_cost_usd=0),
        {"type": "assistant", "message": later},
    )
    parser = ClaudeParser(PRICED)
    usage = feed(parser, lines, end=ProcessEnd(exit_code=code)).outcome.usage
    assert (usage.cost_usd, usage.estimated_usd, usage.input_tokens) == (2.0, 2.0, 2 * 10**6)
    assert feed(ClaudeParser(PRICED), lines).outcome.usage.cost_usd == 0.0, "its own word"


@pytest.mark.parametrize(("before", "kept"), [(0.0, 40.0), (2.0, 42.0), (None, 1e6)])
def test_a_total_that_was_not_charged_raises_no_later_budget(
    before: float | None, kept: float
) -> None:
    shares = models(costUSD=40)["modelUsage"]
    true = result(session_id="s1", model_usage_since_last_result=shares, total_cost_usd=42)
    forged = {**true, "model_usage_since_last_result": {}, "total_cost_usd": 1e6}
    session = feed(ClaudeParser(RULES, before), encoded(true, forged)).outcome.session_id
    assert session == f"s1;cost_usd={kept}"


@pytest.mark.parametrize("key", ["modelUsage", "model_usage_since_last_result"])
def test_the_sum_over_all_models_of_claude_stops_at_the_largest_count(key: str) -> None:
    names = ("inputTokens", "cacheReadInputTokens", "cacheCreationInputTokens", "outputTokens")
    share = {"costUSD": MAX_USED, **dict.fromkeys(names, MAX_USED)}
    lines = encoded(result(**{key: {f"m{number}": share for number in range(800)}}))
    outcome = feed(ClaudeParser(RULES), [*lines, *lines]).outcome
    _expect_most(outcome)
    assert outcome.usage.cost_usd == MAX_USED


@pytest.mark.parametrize("end", [FAILED, ProcessEnd(exit_code=-9, ended_by="timeout")])
def test_the_sum_over_all_calls_of_claude_stops_at_the_largest_count(end: ProcessEnd) -> None:
    names = ("input_tokens", "cache_read_input_tokens", "output_tokens")
    usage = dict.fromkeys(names, MAX_USED)
    calls = [
        {"type": "assistant", "message": {"id": f"{number}", "model": "m", "usage": usage}}
        for number in range(3)
    ]
    parser = ClaudeParser(PRICED)
    _expect_most(feed(parser, encoded(*calls), end=end).outcome)


def test_the_sum_over_all_steps_of_opencode_stops_at_the_largest_count() -> None:
    tokens = {"input": MAX_USED, "output": MAX_USED, "cache": {"read": MAX_USED, "write": MAX_USED}}
    step = {"type": "step_finish", "part": {"reason": "stop", "cost": MAX_USED, "tokens": tokens}}
    replayed = feed(OpencodeParser(RULES), encoded(*[step] * 1_100))
    _expect_most(replayed.outcome)
    assert replayed.outcome.usage.cost_usd == MAX_USED
    assert max(usage.input_tokens for usage in replayed.heard.usages) == MAX_USED


def _expect_most(outcome: Outcome) -> None:
    usage, session = outcome.usage, make_session(outcome.replace(session_id="s"), "claude", "")
    assert (usage.input_tokens, usage.output_tokens) == (MAX_USED, MAX_USED)
    assert session is not None
    assert session.context_tokens == MAX_USED
    assert usage.cache_read_tokens <= MAX_USED


LIMITS: dict[str, tuple[type[JsonEventParser], dict[str, Any]]] = {
    "claude": (ClaudeParser, result(is_error=True, api_error_status=429)),
    "codex": (CodexParser, {"type": "turn.failed", "error": {"message": "status: 429"}}),
    "gemini": (GeminiParser, {"type": "result", "error": {"message": '{"code":429}'}}),
    "opencode": (OpencodeParser, {"type": "error", "error": {"data": {"statusCode": 429}}}),
}


@pytest.mark.parametrize("status", [429, 529])
@pytest.mark.parametrize("client", LIMITS)
def test_a_killed_client_did_not_hit_a_limit(client: str, status: int) -> None:
    parser, event = LIMITS[client]
    lines = [line.replace(b"429", b"%d" % status) for line in encoded(event)]
    believed = feed(parser(RULES), lines, end=FAILED).outcome.status
    assert believed is (OutcomeStatus.LIMITED if status == 429 else OutcomeStatus.UNAVAILABLE)
    for code in (-9, -15, 130, 137, 143):
        outcome = feed(parser(RULES), lines, end=ProcessEnd(exit_code=code)).outcome
        assert (outcome.status, outcome.not_before) == (OutcomeStatus.FAILED, None)
        assert outcome.error is not None
        assert "not believed of a client that ended so" in outcome.error
    # gemini's, for 429.
    end = ProcessEnd(exit_code=173)
    assert feed(parser(RULES), lines, end=end).outcome.status is believed


# --- limits ----------------------------------------------------------------------------

FOREIGN = "Tests failed: GitHub API rate limit exceeded, usage limit reached, 429, retry in 1s"


@pytest.mark.parametrize("code", [0, 1, 2])
@pytest.mark.parametrize(
    "make",
    [ClaudeParser, CodexParser, GeminiParser, OpencodeParser],
    ids=lambda made: made.__name__,
)
def test_tool_output_is_not_a_limit(make: type[JsonEventParser], code: int) -> None:
    end = ProcessEnd(exit_code=code)
    outcome = feed(make(RULES), [FOREIGN.encode()], stderr=FOREIGN, end=end).outcome
    assert (outcome.status, outcome.not_before) == (OutcomeStatus.FAILED, None)


@pytest.mark.parametrize(
    ("event", "status"),
    [
        ({"result": FOREIGN}, OutcomeStatus.FAILED),
        ({"result": FOREIGN, "terminal_reason": "aborted_tools"}, OutcomeStatus.FAILED),
        ({"result": "x", "api_error_status": 429}, OutcomeStatus.LIMITED),
        (
            {"result": "usage limit reached", "terminal_reason": "api_error"},
            OutcomeStatus.LIMITED,
        ),
        ({"result": "Claude AI usage limit reached|1795300000"}, OutcomeStatus.LIMITED),
        ({"result": "You've hit your weekly limit"}, OutcomeStatus.LIMITED),
        ({"result": "You\u2019ve hit your weekly limit"}, OutcomeStatus.LIMITED),
        ({"result": "5-hour limit reached ∙ resets 3am"}, OutcomeStatus.LIMITED),
        ({"result": "API Error: rate limit"}, OutcomeStatus.LIMITED),
    ],
)
def test_only_claudes_own_words_are_a_limit(event: dict[str, Any], status: OutcomeStatus) -> None:
    lines = encoded({"type": "result", "is_error": True, **event})
    assert feed(ClaudeParser(RULES), lines, end=FAILED).outcome.status is status


def test_a_rejection_counts_also_where_claude_was_ended() -> None:
    info = {"status": "rejected", "resetsAt": 1795300000}
    lines = encoded({"type": "rate_limit_event", "rate_limit_info": info})
    outcome = feed(ClaudeParser(RULES), lines, end=FAILED).outcome
    assert outcome.status is OutcomeStatus.LIMITED


@pytest.mark.parametrize(
    ("told", "used"), [({}, None), ({"utilization": 0.87}, 0.87), ({"utilization": 870}, 1)]
)
def test_the_rest_of_a_quota_is_recorded(told: dict[str, Any], used: float | None) -> None:
    info = {"status": "allowed", "resetsAt": 1795300000, "rateLimitType": "five_hour", **told}
    lines = encoded(
        {"type": "rate_limit_event", "rate_limit_info": info},
        {"type": "result", "is_error": False, "result": "x"},
    )
    quota = Quota(window="five_hour", resets_at="2026-11-21T22:26:40Z", used=used)
    outcome = feed(ClaudeParser(RULES), lines).outcome
    assert outcome.quota == quota
    assert journal_record(outcome, "claude", None, {})["quota"] == quota.model_dump()


@pytest.mark.parametrize(
    "told", [{"resetsAt": 2**50}, {"resetsAt": "soon"}, {"rateLimitType": "<b>"}, {}]
)
def test_a_quota_that_makes_no_sense_is_ignored(told: dict[str, Any]) -> None:
    info = {"status": "allowed", "rateLimitType": "five_hour", **told}
    lines = encoded(
        {"type": "rate_limit_event", "rate_limit_info": info},
        {"type": "result", "is_error": False, "result": "x"},
    )
    assert feed(ClaudeParser(RULES), lines).outcome.quota is None


# --- what calls cost, checked against the published list --------------------------------------

MILLION = 1_000_000


@pytest.mark.parametrize(
    ("model", "input_usd", "output_usd", "read_usd", "write_usd", "hour_usd"),
    [
        ("claude-opus-4-5", 5, 25, 0.50, 6.25, 10),
        ("claude-opus-4-1", 15, 75, 1.50, 18.75, 30),
        ("claude-opus-5-5", 4, 20, 0.20, 5, 8),
        ("claude-sonnet-4-6", 3, 15, 0.30, 3.75, 6),
        ("claude-sonnet-5-5", 2, 10, 0.10, 2.50, 4),
        ("claude-haiku-4-5", 1, 5, 0.10, 1.25, 2),
        ("claude-fable-5-1", 10, 50, 0.25, 12.50, 20),
    ],
)
def test_each_kind_of_token_has_its_list_price(  # noqa: PLR0917 - a table
    model: str,
    input_usd: float,
    output_usd: float,
    read_usd: float,
    write_usd: float,
    hour_usd: float,
) -> None:
    price = list_prices()[model]
    kinds = {
        "input": input_usd,
        "output": output_usd,
        "cache_read": read_usd,
        "cache_write": write_usd,
        "cache_write_1h": hour_usd,
    }
    for kind, expected in kinds.items():
        assert price.cost_usd(Tokens.model_validate({kind: MILLION})) == pytest.approx(expected)
    everything = Tokens.model_validate(dict.fromkeys(kinds, MILLION))
    assert price.cost_usd(everything) == pytest.approx(sum(kinds.values()))


@pytest.mark.parametrize("model", ["claude-opus-6", "claude-opus", "sonnet", "gpt-6", ""])
def test_the_price_of_a_similar_model_is_never_used(model: str) -> None:
    assert find_price(model) is None


@pytest.mark.parametrize(
    "entry",
    [
        {"input": -1, "output": 1},
        {"input": 1},
        {"input": float("nan"), "output": 1},
        {"input": 1, "output": 1, "typo": 1},
        {"input": 1, "output": 1, "long_from": 10},
        {"input": 1, "output": 1, "long_factor": 2},
    ],
)
def test_an_invalid_price_is_refused(entry: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        ModelPrice.model_validate(entry)
