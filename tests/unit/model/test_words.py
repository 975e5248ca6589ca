"""Limits, names, steps, workflows, heads and outcomes: what they refuse and what they compute."""

from __future__ import annotations

import shlex
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequencer.errors import format_command
from sequencer.executors.claude import ClaudeOptions
from sequencer.executors.codex import CodexOptions
from sequencer.executors.gemini import GeminiOptions
from sequencer.executors.messages_loop import MessagesOptions
from sequencer.executors.opencode import OpencodeOptions
from sequencer.files.textfile import MAX_COMPONENT_BYTES, slug
from sequencer.frozen.fields import ValidationError
from sequencer.model.limits import InvocationLimits, RunLimits
from sequencer.model.outcome import Usage
from sequencer.model.step import Retry, Step
from sequencer.model.workflow import Review, Workflow
from tests.contract.store_cases import new_head

PLAN, BUILD, CHECK = Step(name="plan"), Step(name="build"), Step(name="check")


@pytest.mark.parametrize(
    ("limits", "usage", "words"),
    [
        ({"steps": 3}, {"steps": 3}, "3 steps"),
        ({"cost_usd": 0.5}, {"cost_usd": 0.5}, "0.5 USD"),
        ({"seconds": 60}, {"seconds": 61}, "60 s"),
    ],
)
def test_a_limit_of_the_run(limits: dict[str, Any], usage: dict[str, Any], words: str) -> None:
    chosen = RunLimits(**limits)
    assert words in (chosen.describe_reached(new_head(usage=Usage(**usage))) or "")
    assert chosen.describe_reached(new_head()) is None


@pytest.mark.parametrize(
    ("model", "values"),
    [
        (RunLimits, {"steps": 0}),
        (RunLimits, {"cost_usd": float("nan")}),
        (RunLimits, {"seconds": float("inf")}),
        (RunLimits, {"max_step": 3}),
        (InvocationLimits, {"max_cycles": 0}),
        (InvocationLimits, {"max_wait_s": -1}),
    ],
)
def test_limits_without_a_meaning(model: type[Any], values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        model(**values)


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [("fixed", [3, 3, 3, 3]), ("linear", [3, 6, 9, 10]), ("exponential", [3, 6, 10, 10])],
)
def test_backoff(backoff: Any, delays: list[float]) -> None:
    retry = Retry(max_attempts=9, backoff=backoff, initial_delay_s=3, max_delay_s=10)
    assert [retry.delay_s(n) for n in (1, 2, 3, 4)] == delays
    assert retry.delay_s(10**9) == delays[-1]


NAMES = st.one_of(
    st.text(alphabet=string.ascii_letters + string.digits + "-_./ ", max_size=30),
    st.text(max_size=200),
    st.text(alphabet="a-", min_size=1, max_size=300),
)


@given(st.lists(NAMES, unique=True, min_size=2, max_size=20))
def test_slug_is_injective_and_one_plain_component(names: list[str]) -> None:
    slugs = [slug(name) for name in names]
    assert len({text.lower() for text in slugs}) == len(names)
    for text in slugs:
        assert 0 < len(text.encode()) <= MAX_COMPONENT_BYTES
        assert text not in (".", "..")
        assert "/" not in text
        assert not text.startswith(("-", "."))
        assert not text.endswith(".")
        assert text.isascii()


@given(NAMES)
def test_a_slug_is_never_the_slug_of_another_name(name: str) -> None:
    text = slug(name)
    assert text == name or slug(text) != text


def test_invalid_workflows_are_refused() -> None:
    with pytest.raises(ValidationError, match="twice: plan"):
        Workflow("w", (PLAN, PLAN))
    with pytest.raises(ValidationError, match="no cycles"):
        Workflow("w", (PLAN,), Review(every=1, step=CHECK), "procedure")
    with pytest.raises(ValidationError):
        Workflow("w", ())
    with pytest.raises(ValueError, match="no review step"):
        Workflow("w", (PLAN,)).with_review_every(2)


@pytest.mark.parametrize("name", ["", "a\nb", "a\x00", "\u2028", "x" * 101])
def test_step_names_are_one_line(name: str) -> None:
    with pytest.raises(ValidationError):
        Step(name=name)


@pytest.mark.parametrize("model", ["-x", "--evil=1", "a\nb", "a\0", "\x1b[2J", "\u2028", "\u202e"])
def test_a_model_is_never_an_option_nor_several_lines(model: str) -> None:
    for refusing in (
        lambda: Step(name="main", model=model),
        lambda: ClaudeOptions(model=model),
        lambda: CodexOptions(model=model),
        lambda: GeminiOptions(model=model),
        lambda: MessagesOptions(model=model),
        lambda: OpencodeOptions(model=model),
    ):
        with pytest.raises(ValidationError, match="does not start with '-'"):
            refusing()


@pytest.mark.parametrize("name", ["my run", "it's", "$HOME", "a;b", "", 'a"b'])
def test_an_odd_name_is_quoted_for_the_shell(name: str) -> None:
    assert shlex.split(format_command(name, "adopt")) == ["sequencer", "--run", name, "adopt"]


def test_no_name_in_a_command_is_taken_for_an_option() -> None:
    """Neither for click nor for what looks for options before it does."""
    line = format_command("--config=x", "skip --as-done", "--run=y", "a b")
    words = ["sequencer", "--run=--config=x", "skip", "--as-done", "--", "--run=y", "a b"]
    assert shlex.split(line) == words
    assert format_command(None, "trust", "flows/a.md") == "'sequencer trust flows/a.md'"
