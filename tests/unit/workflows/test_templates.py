from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequencer.workflows.prompts import (
    as_text,
    iter_template_paths,
    look_up,
    parse_loose_json,
    render,
)


def value_of(path: tuple[str, ...]) -> Any:
    return look_up({"output": "{{feedback}}", "steps": {"a": {"output": "A"}}}, path)


def test_text_that_is_not_a_template_stays() -> None:
    for text in ("{{ other.x }}", "{{}}", "{{ }}", "{output}", "{{output", "{{1.a}}", "{{a b}}"):
        assert render(text, value_of) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [("a", "a"), (None, ""), (True, "true"), (1.5, "1.5"), ({"a": [1]}, '{"a":[1]}'), ("é", "é")],
)
def test_values_are_formatted_for_a_prompt(value: Any, text: str) -> None:
    assert as_text(value) == text


def test_values_in_json_text_can_be_looked_up() -> None:
    fenced = '```json\n{"a": [{"b": 2}]}\n```\n'
    assert look_up({"output": fenced}, ("output", "a", "0", "b")) == 2
    assert parse_loose_json('{"x": 1}') == {"x": 1}
    for text in ("no json", "", "[" * 100_000):
        with pytest.raises(KeyError):
            parse_loose_json(text)


@pytest.mark.parametrize("path", [("a", "x"), ("l", "2"), ("l", "-1"), ("l", "9" * 30), ("n", "x")])
def test_a_path_that_leads_nowhere_is_an_error(path: tuple[str, ...]) -> None:
    with pytest.raises(KeyError):
        look_up({"a": {"b": 1}, "l": [1, 2], "n": 5}, path)
    with pytest.raises(KeyError, match="at most"):
        look_up({}, ("a",) * 11)


@given(st.text(alphabet="{} outpsefdbackv.x\n", max_size=200))
def test_any_text_is_rendered_or_left(text: str) -> None:
    rendered = render(text, lambda path: f"<{'.'.join(path)}>")
    assert rendered.count("<") == len(list(iter_template_paths(text)))
