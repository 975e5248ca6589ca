"""The YAML of a chart: what a value means, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequencer.workflows.mermaid.text import (
    MAX_DEPTH,
    Unreadable,
    as_text,
    read_properties,
    read_shape_data,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: b", {"a": "b"}),
        ("", None),
        ("# note", None),
        ("a: {b: [1, 2.5, .5, -3]}", {"a": {"b": [1, 2.5, 0.5, -3]}}),
        (
            "a: true\nb: False\nc: null\nd: ~\ne:",
            {"a": True, "b": False, "c": None, "d": None, "e": None},
        ),
        (
            "a: no\nb: yes\nc: 2026-01-01\nd: 12:30",
            {"a": "no", "b": "yes", "c": "2026-01-01", "d": "12:30"},
        ),
        ("a: '5'\nb: \"true\"", {"a": "5", "b": "true"}),
        ("5: x\ntrue: y", {"5": "x", "true": "y"}),
        ("<<: x", {"<<": "x"}),
        ("- a\n- b", ["a", "b"]),
        ("plain", "plain"),
        ("a: |\n  two\n  lines\n", {"a": "two\nlines\n"}),
        ("a: " + "9" * 400, {"a": "9" * 400}),
    ],
)
def test_a_value(text: str, value: Any) -> None:
    assert read_properties(text) == value


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: &x b\nc: *x", "anchors"),
        ("*x", "anchors"),
        ("a: !!python/object x", "tags"),
        ("!x {}", "tags"),
        ("a: b\na: c", "'a' is there twice"),
        ("a: {b: c, b: d}", "'b' is there twice"),
        ("---\na: b\n---\nc: d", "second document"),
        ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "deeper than 32"),
        ("a: " + "x" * 70_000, "more than 65536 characters"),
        ("a: [", "node"),
        ("a: b: c", "not allowed"),
        ("\x00", "control characters|special characters"),
        ("\ud800", "no text"),
    ],
)
def test_a_refusal(text: str, problem: str) -> None:
    with pytest.raises(Unreadable, match=problem) as caught:
        read_properties(text)

    assert str(caught.value)


def test_one_line_is_a_flow_mapping_and_several_are_a_block() -> None:
    assert read_shape_data(" a: b, c: d ") == {"a": "b", "c": "d"}
    assert read_shape_data("\n a: b\n c: d\n") == {"a": "b", "c": "d"}
    assert read_shape_data(" ") == {}
    assert read_shape_data("\n") is None
    with pytest.raises(Unreadable):
        read_shape_data("} a: b {")


@pytest.mark.parametrize("name", ["rect", "lean-r", "x-", "null", "true", "no"])
@pytest.mark.parametrize("label", ["", "Hi, there: [x] {y} #z", "<br/>", "é😀\u2028", " "])
def test_the_common_form_means_the_same_as_in_full(name: str, label: str) -> None:
    for text in (f" shape: {name}", f'shape: {name} , label: "{label}" '):
        assert read_shape_data(text) == read_properties("{\n" + text + "\n}")


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    for reader in (read_properties, read_shape_data):
        try:
            assert isinstance(as_text(reader(text)), str)
        except Unreadable as error:
            problem = str(error)
            assert problem
