from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sequencer.cli.views.progress import (
    BURST_BYTES,
    MAX_HELD_CHARS,
    LiveProgress,
    PlainProgress,
    make_progress_view,
)
from sequencer.engine.attempt import Attempt
from sequencer.executors.protocol import Piece
from sequencer.executors.redaction import Redaction
from sequencer.history.words import format_time
from sequencer.model.outcome import Outcome, OutcomeStatus, Usage
from tests.unit import saying
from tests.unit.cli.flow.terminals import Terminal, terminal
from tests.unit.saying import Saying

LOG = "logs/local/steps/iter-00013_main.log"


def attempt(number: int = 1, step: str = "main", position: str | None = None) -> Attempt:
    place = {"position": position or step, "step_index": 12, "attempt": number}
    return saying.attempt(step, agent="claude", **place)


def outcome(**changes: object) -> Outcome:
    usage = Usage(input_tokens=1200, output_tokens=34, cost_usd=0.5, seconds=75.0)
    return Outcome.model_validate({"status": OutcomeStatus.OK, "usage": usage, **changes})


def test_waiting_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    shown, due = Saying(PlainProgress(Redaction())), "2027-01-01T00:00:00Z"
    for _ in range(3):
        shown.waiting("not due", due)
    shown.waiting("held", None)
    shown.started(attempt(), LOG)
    shown.waiting("held", None)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("waiting")]
    assert lines == [f"waiting: not due (until {format_time(due)})", *["waiting: held"] * 2]


def test_a_no_from_a_judge_is_shown_with_its_round_and_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = Saying(PlainProgress(Redaction()))
    shown.started(attempt(), LOG)
    refused = outcome(status=OutcomeStatus.FAILED)
    shown.ended(attempt(), refused, "no (round 2 of 4): two\ntests fail")
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.partition(" ")[2] == (
        "[13] main: no (round 2 of 4): two tests fail · 1 min 15 s, 1,200 + 34 tokens, 0.5000 USD"
    )


def test_an_attempt_is_shown_as_accepted_after_the_run_records_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = Saying(PlainProgress(Redaction()))
    shown.started(attempt(), LOG)
    shown.ended(attempt(), outcome())
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.endswith("[13] main: ended after 1 min 15 s, 1,200 + 34 tokens, 0.5000 USD")
    shown.accepted(attempt(), outcome())
    assert capsys.readouterr().err.rstrip("\n").endswith("[13] main: accepted")
    shown.ended(attempt(), outcome(status=OutcomeStatus.FAILED, error="no"))
    assert "[13] main: failed after" in capsys.readouterr().err


def test_a_closed_stderr_fails_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path(os.devnull).open("w") as closed:
        pass
    monkeypatch.setattr(sys, "stderr", closed)
    view = PlainProgress(Redaction())
    shown = Saying(view)
    shown.started(attempt(), LOG)
    shown.write(b"text\n", Piece.OUTPUT)
    shown.ended(attempt(), outcome())


@contextlib.contextmanager
def at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_COLOR", raising=False)
    with terminal() as made, contextlib.redirect_stderr(made.stream):
        yield made


def test_a_terminal_gets_a_live_line_and_the_output_above(monkeypatch: pytest.MonkeyPatch) -> None:
    with at_a_terminal(monkeypatch) as screen:
        view = make_progress_view(Redaction())
        assert isinstance(view, LiveProgress)
        shown = Saying(view)
        shown.started(attempt(), LOG)
        shown.report_usage(Usage(input_tokens=1200, output_tokens=34, cost_usd=0.5))
        shown.write(b"working on \x1b]0;owned\x07it\n", Piece.RESPONSE)
        shown.write(b"reading a file\n", Piece.ACTION)
        seen = screen.wait_for(b"1,200 + 34 tokens, 0.5000 USD")
        assert b"owned" not in seen
        assert b"working on it" in seen
        # Dim, because a person reads answers first.
        assert b"\x1b[2mreading a file" in screen.wait_for(b"reading a file")
        shown.ended(attempt(), outcome())
        shown.accepted(attempt(), outcome())
        view.close()
        assert b"ended after 1 min 15 s" in screen.wait_for(b"main: accepted")
        # The cursor is given back.
        assert screen.raw.rindex(b"\x1b[?25h") > screen.raw.rindex(b"\x1b[?25l")


def test_waiting_counts_on_the_live_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with at_a_terminal(monkeypatch) as screen:
        view = LiveProgress(Redaction())
        shown = Saying(view)
        shown.waiting("step 'main' is not ours", None)
        screen.wait_for(b"is not ours")
        screen.wait_for(b"0:01")
        shown.notice("state restored\x1b[2J")
        seen = screen.wait_for(b"notice: state restored")
        assert b"\x1b[2J" not in seen
        view.close()


def test_a_command_to_type_is_complete_even_if_the_live_line_is_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = "sequencer run --mode sync --position supervisor"
    with at_a_terminal(monkeypatch) as screen:
        view = LiveProgress(Redaction())
        shown = Saying(view)
        for _ in range(2):
            shown.waiting(
                f"the process that ran 'supervisor' is gone; start it again: {command}", None
            )
        screen.wait_for(f"\n  {command}")
        shown.notice("and no more")
        screen.wait_for("and no more")
        assert screen.raw.count(command.encode()) == 1
        view.close()


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize(
    ("bytes_per_s", "most_chars"),
    [(0, BURST_BYTES), (10**9, MAX_HELD_CHARS)],
    ids=["by-pace", "by-room"],
)
def test_a_flood_neither_blocks_nor_piles_up(
    monkeypatch: pytest.MonkeyPatch, bytes_per_s: int, most_chars: int
) -> None:
    # How fast this machine writes and reads decides nothing.
    monkeypatch.setattr("sequencer.cli.views.progress.BYTES_PER_S", bytes_per_s)
    monkeypatch.setattr("sequencer.cli.views.progress.CLOSE_S", 60.0)
    with at_a_terminal(monkeypatch) as screen:
        view = LiveProgress(Redaction())
        shown = Saying(view)
        shown.started(attempt(), LOG)
        chunk = b"x" * 99 + b"\n"
        # Nobody reads the terminal meanwhile: only the painter may be held up by that, forever.
        for _ in range(60_000):
            shown.write(chunk, Piece.OUTPUT)
        pending = sum(len(line.text) for line in list(view._lines))
        assert pending <= most_chars + 100_000
        screen.read(0.2)
        shown.ended(attempt(), outcome())
        _close_while_read(view, screen)
        assert b"of output is not shown" in screen.raw


@pytest.mark.slow
def test_a_slow_terminal_gets_all_of_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes longer in all than the end waits for one that takes nothing."""
    monkeypatch.setattr("sequencer.cli.views.progress.CLOSE_S", 1.0)
    with at_a_terminal(monkeypatch) as screen:
        view = LiveProgress(Redaction())
        shown = Saying(view)
        shown.started(attempt(), LOG)
        # Less than BURST_BYTES: a fast machine would have to leave out the rest.
        for _ in range(10_000):
            shown.write(b"x" * 99 + b"\n", Piece.OUTPUT)
        shown.write(b"the last\n", Piece.OUTPUT)
        closer = threading.Thread(target=view.close)
        closer.start()
        while closer.is_alive():
            if select.select([screen.master], [], [], 0.05)[0]:
                screen.raw += os.read(screen.master, 1 << 12)
                time.sleep(0.006)
        # A process would be gone now, and its painter with it.
        assert "painter" not in {thread.name for thread in threading.enumerate()}
        screen.drain()
    assert b"the last" in screen.raw


def _close_while_read(view: LiveProgress, screen: Terminal) -> None:
    """Close *view* as a program does whose terminal is read by somebody."""
    closer = threading.Thread(target=view.close)
    closer.start()
    while closer.is_alive():
        screen.read(0.1)
    # What was written last may have come behind the last look.
    screen.drain()


def test_a_terminal_that_disappears_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    screen = Terminal(80, 24)
    with contextlib.redirect_stderr(screen.stream):
        view = LiveProgress(Redaction())
        shown = Saying(view)
        shown.started(attempt(), LOG)
        screen.wait_for(b"main")
        os.close(screen.master)
        for _ in range(20):
            shown.write(b"text\n", Piece.OUTPUT)
            time.sleep(0.02)
        shown.ended(attempt(), outcome())
        view.close()
        # Nothing is left in it that the interpreter would have to write at its end.
        sys.stderr.flush()
    screen.stream.close()


def test_a_terminal_that_reads_nothing_does_not_delay_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sequencer.cli.views.progress.CLOSE_S", 0.2)
    with at_a_terminal(monkeypatch) as screen:
        view = LiveProgress(Redaction())
        shown = Saying(view)
        shown.started(attempt(), LOG)
        for _ in range(4_000):
            shown.write(b"x" * 99 + b"\n", Piece.OUTPUT)
        view.close()
        assert "painter" in {thread.name for thread in threading.enumerate()}
        # The interpreter does so at its end, and waits for whoever holds the stream's lock.
        sys.stderr.flush()
        _close_while_read(view, screen)
