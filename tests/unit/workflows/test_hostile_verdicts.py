"""Whatever an answer holds, its verdict is what a plain reading of it says."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from sequencer import Outcome, OutcomeStatus
from sequencer.workflows.verdicts import REASON_CHARS, check_schema, read_verdict
from tests.property.amounts import PART, RULES, for_all

prose = st.text(st.sampled_from('{}[]"\\:, \nabctrue`1'), max_size=30)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
verdicts = st.fixed_dictionaries(
    {"pass": st.booleans()}, optional={"reason": st.text(max_size=20), "more": plain}
)
indents = st.sampled_from([None, 2])


def judged(text: str) -> Any:
    outcome = Outcome(status=OutcomeStatus.OK, output=text)
    return read_verdict(outcome, is_command=False)


def reference(text: str) -> bool | None:
    """Read *text* by brute force, from each of its braces on."""
    decoder = json.JSONDecoder()
    found: list[tuple[int, int, Any]] = []
    broken: list[tuple[int, int]] = []
    for start in (place for place, letter in enumerate(text) if letter == "{"):
        try:
            value, end = decoder.raw_decode(text, start)
            found.append((start, end, value))
        except json.JSONDecodeError as error:
            if ":" in text[start : error.pos]:
                broken.append((start, error.pos))
    said = None
    for start, end, value in found:
        is_part = any(s < start and end <= e for s, e, _ in found)
        is_part |= any(s < start and end <= e for s, e in broken)
        if not is_part and isinstance(value.get("pass"), bool):
            said = value["pass"]
    return said


def test_a_verdict_after_any_prose_is_read_correctly() -> None:
    def check(before: str, verdict: dict[str, Any], indent: int | None) -> None:
        read = judged(f"{before}\n{json.dumps(verdict, indent=indent)}\n")
        # Open braces before it may make it a part of something longer; it is never turned round.
        assert read.source == "none" or read.is_pass is verdict["pass"] or "{" in before
        if "{" not in before:
            assert (read.is_pass, read.source) == (verdict["pass"], "json")
            assert read.reason == verdict.get("reason", "").strip()[:REASON_CHARS]

    for_all(check, prose, verdicts, indents, examples=PART)


def test_nothing_passes_against_a_brute_force_reading() -> None:
    pieces = st.one_of(
        prose,
        verdicts.map(json.dumps),
        plain.map(json.dumps),
        st.sampled_from(
            ['{"pass": true}', '{"pass": false', '{"a": {"pass": true}', "}", '"', "{"]
        ),
    )

    def check(parts: list[str]) -> None:
        text = "".join(parts)
        read = judged(text)
        if read.source == "json":
            assert read.is_pass == reference(text)
        assert not read.is_pass or '"pass"' in text

    for_all(check, st.lists(pieces, max_size=8), examples=PART)


def test_any_answer_has_a_verdict_and_a_reason_short_enough_to_store() -> None:
    outcomes = st.builds(
        Outcome,
        status=st.sampled_from(OutcomeStatus),
        output=prose | verdicts.map(json.dumps),
        structured=plain | verdicts,
        error=st.none() | st.text(max_size=20).filter(lambda text: text.isprintable()),
        exit_code=st.none() | st.integers(-9, 255),
    )

    def check(outcome: Outcome, is_command: bool) -> None:
        verdict = read_verdict(outcome, is_command=is_command)
        verdict.reason.encode()
        assert len(verdict.reason) <= REASON_CHARS
        assert not verdict.is_pass or outcome.is_accepted
        assert verdict.source != "exit-code" or is_command

    for_all(check, outcomes, st.booleans(), examples=RULES)


def test_a_schema_of_a_value_accepts_only_that_value() -> None:
    def check(value: Any, other: Any) -> None:
        schema = {"const": value}
        assert check_schema(schema, value) is None
        is_same = json.dumps(value, sort_keys=True) == json.dumps(other, sort_keys=True)
        problem = check_schema(schema, other)
        assert (problem is None) is is_same or value == other
        assert problem is None or "\n" not in problem

    for_all(check, plain, plain, examples=RULES)
