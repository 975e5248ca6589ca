from __future__ import annotations

import io
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

from sequencer.cli.views.board import Lines, Table, make_screen
from sequencer.executors.redaction import Redaction
from sequencer.model.transitions import Event
from tests.unit.cli.flow.facts import fact
from tests.unit.cli.flow.terminals import terminal
from tests.unit.cli.flow.views import graph, of, with_node

MOMENT = datetime(2026, 11, 22, 12, 3, 4, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _usual_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    # The terminal's own size counts, whatever a shell once exported.
    monkeypatch.setenv("COLUMNS", "55")
    monkeypatch.setenv("LINES", "7")
    monkeypatch.delenv("NO_COLOR", raising=False)


# --- which one ---------------------------------------------------------------------------


def test_the_screen_fits_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal() as seen:
        shown = make_screen(seen.stream, Redaction())
        shown.close()
        assert isinstance(shown, Table)
        monkeypatch.setenv("TERM", "dumb")
        assert isinstance(make_screen(seen.stream, Redaction()), Lines)
    assert isinstance(make_screen(io.StringIO(), Redaction()), Lines)


def test_a_closed_stream_is_no_error(tmp_path: Path) -> None:
    with (tmp_path / "gone").open("w") as stream:
        pass
    shown = make_screen(stream, Redaction())
    shown.show(of(graph("a"), "completed", a="running"), [fact(Event.CLAIMED, "a")])
    shown.show_notice("x")
    shown.close()
    assert (tmp_path / "gone").read_text() == ""


# --- lines -------------------------------------------------------------------------------


def plain(redaction: Redaction | None = None) -> tuple[Lines, io.StringIO]:
    stream = io.StringIO()
    return Lines(stream, redaction=redaction or Redaction(), now=lambda: MOMENT), stream


def test_a_line_for_every_fact() -> None:
    shown, stream = plain()
    view = of(graph("a --> b{{Sure?}}\nb -->|no| a\nb -->|yes| c"), "running")
    shown.show(view, [fact(Event.CLAIMED, "a", attempt=1)])
    used = {"seconds": 12.3, "cost_usd": 0.01}
    shown.show(
        view,
        [
            fact(Event.SUCCEEDED, "a", usage=used, at="2026-11-22T12:03:05Z"),
            fact(Event.ASKED, "b", at="2026-11-22T12:03:05Z"),
            fact(Event.ANSWERED, "b", at="2026-11-22T12:03:09Z"),
            fact(Event.LOOPED, "b", to="a", number=1, at="2026-11-22T12:03:09Z"),
            fact(Event.CLAIMED, "a", attempt=1, at="2026-11-22T12:03:09Z"),
            fact(Event.CANCELLED, cancelled=["a"], at="2026-11-22T12:04:00Z"),
        ],
    )
    over = replace(with_node(view, "a", "cancelled", runs=1, seconds=12.3), iterations=1)
    for _ in range(2):
        shown.show(over)
    shown.show_notice("state\nrestored")
    shown.close()
    assert stream.getvalue().splitlines() == [
        "12:03:04 start a",
        "12:03:05 done a 12.3 s 0.01 USD",
        "12:03:05 ask b: Sure?",
        "12:03:09 done b (Sure?)",
        "12:03:09 loop 1 of at most 50",
        "12:03:09 start a",
        "12:04:00 stopped by hand",
        "12:04:00 cancel a",
        "12:03:04 cancelled · 0 of 3 nodes done · 1 loop of at most 50 · 12.3 s of work",
        "12:03:04 notice: state restored",
    ]


def test_secrets_stay_hidden_in_lines() -> None:
    secret = "sk-ant-" + "a1b2c3d4" * 6
    shown, stream = plain(Redaction([secret]))
    failed = fact(Event.FAILED, "a", error=f"key {secret}", type="Template")
    shown.show(of(graph("a"), "running"), [failed])
    shown.show_notice(secret)
    assert "fail a: key" in stream.getvalue()
    assert secret not in stream.getvalue()
