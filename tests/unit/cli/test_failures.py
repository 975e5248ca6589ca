from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
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
from tests.unit.cli.calling import call, worked

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


def test_usage_errors_say_how_it_is_used(tmp_path: Path) -> None:
    text = call(tmp_path, "next", "--count", "x").err
    assert "'x' is not a valid integer" in text
    assert "Usage: sequencer next" in text
    assert "'sequencer next --help'" in text


def process(folder: Path, arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a shell line in which SEQUENCER stands for the program."""
    line = arguments.replace("SEQUENCER", f"{sys.executable} -m sequencer")
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_reader_that_has_enough_is_no_error(tmp_path: Path) -> None:
    folder = worked(tmp_path / "p", 2)
    ended = process(folder, "SEQUENCER next --count 20000 | head -n 2")
    assert ended.returncode == 0
    assert len(ended.stdout.splitlines()) == 2
    assert ended.stderr == ""


def test_a_full_disk_behind_standard_output_is_said(tmp_path: Path) -> None:
    folder = worked(tmp_path / "p", 2)
    ended = process(folder, "SEQUENCER status > /dev/full")
    assert ended.returncode == 3
    assert "standard output: can't be written: No space left on device" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_closed_streams_are_no_error(tmp_path: Path) -> None:
    folder = worked(tmp_path / "p", 2)
    assert process(folder, "SEQUENCER status >&-").returncode == 0
    assert process(folder, "SEQUENCER status 2>&-").returncode == 0
    assert process(folder, "SEQUENCER nonsense 2>&-").returncode == 2
    assert process(folder, "SEQUENCER run --max-steps 1 >&- 2>&-").returncode == 0


def test_odd_characters_and_encodings_fail_nothing(tmp_path: Path) -> None:
    folder = worked(tmp_path / "p", 1)
    assert process(folder, "PYTHONIOENCODING=ascii SEQUENCER run --max-steps 1").returncode == 0
    ended = process(folder, "SEQUENCER --run $'\\xff\\xfe' status")
    assert ended.returncode == 2
    assert r"'\udcff\udcfe' holds" in ended.stderr
