from __future__ import annotations

import pytest

from sequencer.executors.command import Pattern, VariableName, VariableValue
from sequencer.executors.pump import EVERY_AGENT, agent_environment
from sequencer.model.fields import ValidationError
from sequencer.model.frozen import checked

BASE = {
    "PATH": "/bin",
    "HOME": "/home/u",
    "LC_CTYPE": "C",
    "XDG_RUNTIME_DIR": "/run/user/1",
    "https_proxy": "http://proxy:1",
    "ANTHROPIC_API_KEY": "a-key",
    "OPENAI_API_KEY": "another",
    "AWS_SECRET_ACCESS_KEY": "canary",
    "SEQUENCER_STEP": "of an outer run",
    "CLAUDECODE": "1",
}


def test_only_listed_variables_pass() -> None:
    chosen = agent_environment({}, base=BASE)
    assert set(chosen) == {"PATH", "HOME", "LC_CTYPE", "XDG_RUNTIME_DIR", "https_proxy"}


def test_a_name_is_no_prefix() -> None:
    assert agent_environment({}, passed=["ANTHROPIC_"], base=BASE) == agent_environment(
        {}, base=BASE
    )


def test_the_entrys_own_values_win_and_the_identity_wins_over_them() -> None:
    chosen = agent_environment(
        {"SEQUENCER_STEP": "main"},
        passed=["SEQUENCER_*"],
        extra={"PATH": "/opt", "SEQUENCER_STEP": "forged"},
        base=BASE,
    )
    assert chosen["PATH"] == "/opt"
    assert chosen["SEQUENCER_STEP"] == "main"


def test_the_environment_of_an_outer_run_does_not_leak() -> None:
    assert "SEQUENCER_STEP" not in agent_environment({}, base=BASE)


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
