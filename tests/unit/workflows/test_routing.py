from __future__ import annotations

import time

import pytest

from sequencer.errors import StepFailed
from sequencer.frozen.fields import ValidationError
from sequencer.workflows.router import (
    RouterMode,
    RouterRefused,
    RouterSettings,
    format_answer,
    parse_answer,
)

ALLOWED = frozenset({"main.md", "reviewer.md", "team/plan.txt"})


@pytest.mark.parametrize(
    ("written", "mode"),
    [
        ("router_default", RouterMode.DEFAULT),
        ("default", RouterMode.DEFAULT),
        ("router", RouterMode.DEFAULT),
        ("router_first", RouterMode.FIRST),
        ("router-first", RouterMode.FIRST),
        (" First ", RouterMode.FIRST),
        ("ROUTER_ONLY", RouterMode.ONLY),
        ("router-only", RouterMode.ONLY),
        ("only", RouterMode.ONLY),
    ],
)
def test_modes_are_read_by_name(written: str, mode: RouterMode) -> None:
    assert RouterSettings.model_validate({"mode": written}).mode is mode


@pytest.mark.parametrize("written", ["", "sometimes", 1, None])
def test_other_modes_are_refused(written: object) -> None:
    with pytest.raises(ValidationError):
        RouterSettings.model_validate({"mode": written})


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("", "is empty"),
        (" \n\t\n", "is empty"),
        ("main.md\nreviewer.md", "has 2 lines"),
        ("main.md\x0breviewer.md", "has 2 lines"),
        ("main.md\u2028reviewer.md", "has 2 lines"),
        ("Main.md", "not an allowed"),
        ("MAIN", "not an allowed"),
        ("./main.md", "not an allowed"),
        ("prompts/main.md", "not an allowed"),
        ("../main.md", "not an allowed"),
        ("team/../main.md", "not an allowed"),
        ("/work/prompts/main.md", "not an allowed"),
        ("plan.txt", "not an allowed"),
        ("- main.md", "not an allowed"),
        ("`main.md`", "not an allowed"),
        ('["main.md"]', "not an allowed"),
        ("main.md\0", "not an allowed"),
        ("main.md; rm -rf /", "not an allowed"),
        ("$(main.md)", "not an allowed"),
        ("ma\u0131n.md", "not an allowed"),
        ("supervisor.md", "not an allowed"),
    ],
)
def test_a_wrong_answer_fails_the_step_and_is_shown(answer: str, problem: str) -> None:
    with pytest.raises(RouterRefused, match=problem) as refused:
        parse_answer(answer, ALLOWED)
    assert isinstance(refused.value, StepFailed)
    assert refused.value.exit_code == 1
    assert format_answer(answer) in str(refused.value)
    assert "main.md, reviewer.md, team/plan.txt" in str(refused.value)


@pytest.mark.parametrize("piece", ["x", "main.md\n", "\n", "\0", "\x1b[2J"])
def test_ten_megabytes_are_refused_at_once_and_cut(piece: str) -> None:
    answer = piece * (10_000_000 // len(piece))
    started = time.perf_counter()
    with pytest.raises(RouterRefused) as refused:
        parse_answer(answer, ALLOWED)
    assert time.perf_counter() - started < 0.5
    assert len(str(refused.value)) < 2_000
    assert "\x1b" not in str(refused.value)
