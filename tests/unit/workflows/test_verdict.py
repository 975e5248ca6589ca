"""Verdicts and schemas: by the letter, from the right place, in bounded time."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from sequencer.errors import ConfigurationError
from sequencer.model.outcome import Outcome, OutcomeStatus, Verdict
from sequencer.workflows.verdicts import (
    EXIT_REASON_CHARS,
    check_schema,
    ensure_schema,
    read_verdict,
)

NONE = Verdict(is_pass=False, reason="no verdict in the answer", source="none")
YES = '{"pass": true}'
NO = '{"pass": false}'


def said(output: str = "", **more: Any) -> Outcome:
    return Outcome(**{"status": OutcomeStatus.OK, "output": output, **more})


def judged(output: str) -> Verdict:
    return read_verdict(said(output), is_command=False)


# --- structured output --------------------------------------------------------------


@pytest.mark.parametrize("is_command", [True, False])
def test_a_structured_answer_outranks_text_and_exit_code(is_command: bool) -> None:
    outcome = said(YES, structured={"pass": False, "reason": "two fail"}, exit_code=0)
    verdict = read_verdict(outcome, is_command=is_command)
    assert verdict == Verdict(is_pass=False, reason="two fail", source="structured")


@pytest.mark.parametrize("value", ["yes", 1, 0, None, "true", [True], {"pass": True}])
def test_a_value_that_is_not_a_boolean_is_not_a_verdict(value: object) -> None:
    structured = {"pass": value, "reason": "x"}
    assert read_verdict(said(structured=structured), is_command=False) == NONE
    assert judged(json.dumps(structured)) == NONE


@pytest.mark.parametrize("structured", [True, [YES], "yes", {"Pass": True}, {}, 3])
def test_a_structured_answer_without_a_verdict_leaves_it_to_the_text(structured: object) -> None:
    verdict = read_verdict(said(NO, structured=structured), is_command=False)
    assert (verdict.is_pass, verdict.source) == (False, "json")


# --- JSON in a text -----------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        YES,
        f"All good.\n\n{YES}\n",
        f"```json\n{YES}\n```",
        f"```\n{YES}```\nThat is all.",
        f"{NO} was before; now {YES}",
        f"I don't know {{ what }} \" this [is] but {YES}",
        f'He said "{{" and then {YES}',
        f"{{ not JSON {YES}",
        f"{{ not JSON {YES} }}",
        f"[{NO}, {YES}]",
        '{"pass": true, "reason": "a brace } and a quote \\" in a text"}',
        '{"pass": true, "details": {"tests": {"pass": false}}}',
        '{"pass": false, "pass": true}',
        '{\n  "reason": "ünïcode 🎉",\n  "pass": true\n}',
        f'{YES} {{"note": "no verdict"}} {{"a": {{"b": 1}}}}',
        f'{YES} {{"pass": "no"}}',
        f'{YES} and then it broke off: {{"pass": fal',
        f'{YES} "unfinished',
        "}}}]]" + YES,
    ],
)
def test_a_passing_verdict_is_found_in_the_text(text: str) -> None:
    verdict = judged(text)
    assert (verdict.is_pass, verdict.source) == (True, "json"), verdict


@pytest.mark.parametrize(
    "text",
    [
        "",
        "pass: true",
        "It passes. true",
        '{"pass": true',
        "{'pass': True}",
        '{"pass": True}',
        '{"pass": true,}',
        '{"result": {"pass": true}}',
        '{"checks": [{"pass": true}]}',
        '{"checks": [{"name": "lint", "pass": true}, {"name": "te',
        '{"pass": true, "amount": ' + "9" * 5_000 + "}",
        '{"pass": true // as far as I see\n}',
        '{"text": "{\\"pass\\": true}"}',
    ],
)
def test_text_that_is_not_strictly_a_verdict_is_not_one(text: str) -> None:
    assert judged(text) == NONE


HOSTILE = {
    "braces": "{" * 1_000_000,
    "brackets": "{[" * 500_000,
    "nested": '{"a":' * 200_000,
    "unfinished texts": '{"a\\"{' * 150_000,
    "escapes": '{"\\"' * 200_000,
    "backslashes": '{\\"' * 300_000,
    "quotes": '{"' * 500_000,
    "lines": '{"a\n' * 250_000,
    "empty objects": "{}" * 500_000,
    "objects": '{"x":1}' * 140_000,
    "deep objects": ('{"a":' * 15 + "1" + "}" * 15) * 12_000,
    "deep and broken": ('{"a":' * 15 + "x" + "}" * 15) * 12_000,
    "broken at the end": '{"a":' * 14 + '"' + "x" * 1_000_000 + '" bad' + "}" * 14,
    "closed only": "}" * 1_000_000,
    "digits": '{"a":' + "9" * 500_000 + "}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_answers_cost_little_and_pass_nothing(name: str) -> None:
    begun = time.process_time()
    verdict = judged(HOSTILE[name])
    # 0.3 s at most where it was measured; what is not linear takes minutes.
    assert time.process_time() - begun < 10
    assert verdict == NONE


# --- exit codes ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "status", "is_pass"),
    [
        (0, OutcomeStatus.OK, True),
        (0, OutcomeStatus.COMPLETE, True),
        (0, OutcomeStatus.FAILED, False),
        (1, OutcomeStatus.FAILED, False),
        (-9, OutcomeStatus.FAILED, False),
    ],
)
def test_a_command_without_json_is_judged_by_its_exit_code(
    code: int, status: OutcomeStatus, is_pass: bool
) -> None:
    outcome = said("3 passed", status=status, exit_code=code)
    verdict = read_verdict(outcome, is_command=True)
    assert verdict == Verdict(is_pass=is_pass, reason="3 passed", source="exit-code")
    assert read_verdict(outcome, is_command=False) == NONE


def test_a_last_line_that_is_too_long_is_cut() -> None:
    outcome = said("x" * 9_000, exit_code=0)
    reason = read_verdict(outcome, is_command=True).reason
    assert (len(reason), reason[:3], reason[-1]) == (EXIT_REASON_CHARS, "xxx", "…")


@pytest.mark.parametrize("is_structured", [True, False])
def test_a_failed_attempt_never_passes_whatever_it_answered(is_structured: bool) -> None:
    more = {"structured": json.loads(YES)} if is_structured else {}
    outcome = said(YES, status=OutcomeStatus.FAILED, error="exit code 3", exit_code=3, **more)
    verdict = read_verdict(outcome, is_command=True)
    assert (verdict.is_pass, verdict.reason) == (False, "exit code 3")
    assert read_verdict(said(YES, status=OutcomeStatus.LIMITED), is_command=False).reason == (
        "the attempt ended limited"
    )


# --- schemas ------------------------------------------------------------------------

SCHEMA = {
    "type": "object",
    "properties": {"pass": {"type": "boolean"}, "list": {"items": {"$ref": "#/$defs/n"}}},
    "required": ["pass"],
    "$defs": {"n": {"type": "integer"}},
}


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"pass": True, "list": [1, 2]}, None),
        ({"pass": "yes"}, "$.pass: 'yes' is not of type 'boolean'"),
        ({"pass": True, "list": [1, "a"]}, "$.list[1]: 'a' is not of type 'integer'"),
        ({}, "$: 'pass' is a required property"),
        ([], "$: [] is not of type 'object'"),
        (None, "$: null is not of type 'object'"),
    ],
)
def test_a_value_fits_or_the_first_problem_is_named(value: object, problem: str | None) -> None:
    ensure_schema(SCHEMA, "w")
    assert check_schema(SCHEMA, value) == problem


@pytest.mark.parametrize(
    ("schema", "value", "end"),
    [
        ({"maxItems": 3}, list(range(500)), " is too long"),
        ({"type": "null"}, "x" * 500, " is not of type 'null'"),
        ({"enum": ["a"]}, {"b": "c" * 500}, ' is not one of ["a"]'),
    ],
)
def test_the_problem_of_a_large_value_is_reported(
    schema: dict[str, Any], value: object, end: str
) -> None:
    problem = check_schema(schema, value)
    assert problem is not None
    assert problem.endswith(f"…{end}")
    shown = repr(value) if isinstance(value, str) else json.dumps(value)
    assert problem.startswith(f"$: {shown}"[:50])


def test_a_too_deeply_nested_value_is_a_problem() -> None:
    schema = {"$ref": "#/$defs/n", "$defs": {"n": {"items": {"$ref": "#/$defs/n"}}}}
    value: list[Any] = []
    for _ in range(50_000):
        value = [value]
    assert check_schema(schema, value) == "$: it nests too deeply to be checked"
    while value:
        value = value.pop()


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "nope"}, "w.type: this is not a JSON Schema: 'nope'"),
        ({"properties": []}, "w.properties: this is not a JSON Schema"),
        ({"properties": {"a": {"minimum": "1"}}}, "w.properties.a.minimum: this is no"),
        ({"pattern": "("}, "w.pattern: this is not a JSON Schema"),
        ({"$schema": 5}, "w.$schema: expected the URI of a draft"),
        ({"$ref": "#"}, "w: the schema refers to itself endlessly"),
        ({"$ref": "#/$defs/a"}, "w: $ref '#/$defs/a' is not in the schema itself"),
        ({"items": {"$ref": "other.json"}}, "w: $ref 'other.json' is not in"),
        ({"$ref": "http://[::1"}, "w: $ref 'http://[::1' is not in"),
        ({"$ref": "file:///etc/passwd"}, "w: $ref 'file:///etc/passwd' is not in"),
    ],
)
def test_an_unusable_schema_is_refused(schema: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        ensure_schema(schema, "w")
    assert str(refused.value).startswith(said)


def test_nothing_is_fetched_for_a_schema_that_refers_elsewhere() -> None:
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            reference = f"http://127.0.0.1:{server.server_port}/schema.json"
            problem = check_schema({"items": {"$ref": reference}}, [1])
            with pytest.raises(ConfigurationError, match="nothing is fetched"):
                ensure_schema({"items": {"$ref": reference}}, "w")
        finally:
            server.shutdown()
            thread.join()
    assert problem == f"$: its schema refers to '{reference}', which is not in it"
    assert asked == []
