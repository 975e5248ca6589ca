from __future__ import annotations

import contextlib
import io
from pathlib import Path

import click
import pytest

from sequencer.cli.program import report
from sequencer.errors import (
    ClaimHeld,
    ConfigurationError,
    CorruptState,
    Interrupted,
    SequencerError,
    StepFailed,
    UnknownName,
    WaitsForPerson,
)

ROOT = Path(__file__).parents[3]
KEY = "sk-ant-api03-" + "a1b2" * 10


def reported(error: BaseException, *, is_verbose: bool = False) -> tuple[int, str]:
    err = io.StringIO()
    with contextlib.redirect_stderr(err):
        code = report(error, is_verbose=is_verbose)
    return code, err.getvalue()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StepFailed("x"), 1),
        (ConfigurationError("x"), 2),
        (UnknownName("agent", "x", ()), 2),
        (CorruptState("x"), 3),
        (WaitsForPerson("x"), 4),
        (ClaimHeld("x"), 75),
        (Interrupted("x"), 130),
        (KeyboardInterrupt(), 130),
        (click.Abort(), 130),
        (click.UsageError("x"), 2),
        (RuntimeError("x"), 70),
        (RecursionError("x"), 70),
        (MemoryError(), 75),
    ],
)
def test_every_error_has_its_code(error: BaseException, code: int) -> None:
    assert reported(error)[0] == code


def test_a_bug_is_called_one_and_its_traceback_comes_on_request() -> None:
    def fail() -> None:
        message = "the impossible"
        raise ValueError(message)

    with pytest.raises(ValueError, match="impossible") as raised:
        fail()
    _, short = reported(raised.value)
    assert short.startswith("error: this is a bug: ValueError: the impossible\n")
    assert "--verbose" in short
    assert "Traceback" not in short
    _, long = reported(raised.value, is_verbose=True)
    assert "Traceback" in long
    assert "in fail" in long


def test_secrets_are_hidden_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SERVICE_TOKEN", "correct-horse-battery")
    for error in (
        SequencerError(f"refused {KEY}"),
        RuntimeError(f"with {KEY} and correct-horse-battery"),
        click.UsageError(f"what is correct-horse-battery {KEY}?"),
    ):
        for is_verbose in (False, True):
            text = reported(error, is_verbose=is_verbose)[1]
            assert KEY not in text
            assert "correct-horse-battery" not in text
            assert "[secret]" in text
