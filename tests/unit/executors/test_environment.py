from __future__ import annotations

import pytest

from sequencer.executors.command import Pattern, VariableName, VariableValue
from sequencer.executors.pump import EVERY_AGENT
from sequencer.model.fields import ValidationError
from sequencer.model.frozen import checked


def test_no_secret_is_passed_to_everybody() -> None:
    assert not [name for name in EVERY_AGENT if "KEY" in name or "TOKEN" in name]


@pytest.mark.parametrize("text", ["CI", "_X", "ANTHROPIC_*", "A1*"])
def test_patterns_that_are_allowed(text: str) -> None:
    assert checked(Pattern, text) == text


@pytest.mark.parametrize("text", ["", "*", "A*B", "1A", "A-B", "A=b", "A\nB", "*_KEY"])
def test_patterns_that_are_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        checked(Pattern, text)


@pytest.mark.parametrize("text", ["", "A=B", "A B", "1", "A\n", "A\0"])
def test_names_that_are_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        checked(VariableName, text)


def test_a_value_holds_anything_but_nul() -> None:
    assert checked(VariableValue, "a\n=b") == "a\n=b"
    with pytest.raises(ValidationError):
        checked(VariableValue, "a\0b")
