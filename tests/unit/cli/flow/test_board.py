from __future__ import annotations

import io
import threading
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sequencer.cli.flow.board import QuietBoard, board
from sequencer.cli.flow.live_board import LiveBoard
from sequencer.cli.flow.plain_board import PlainBoard, changes
from sequencer.executors.protocol import Kind
from sequencer.executors.redaction import Redaction
from sequencer.model.flow_view import FlowView, NodeState
from sequencer.model.outcome import Usage
from tests.unit.cli.flow.terminals import terminal
from tests.unit.cli.flow.views import HOSTILE, attempt, graph, of, ok, with_node

LOG = Path("logs/steps/iter-00001_a.log")
MOMENT = datetime(2026, 11, 22, 12, 3, 4, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _usual_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    # The terminal's own size counts, whatever a shell once exported.
    monkeypatch.setenv("COLUMNS", "55")
    monkeypatch.setenv("LINES", "7")
    monkeypatch.delenv("NO_COLOR", raising=False)


# --- which one ---------------------------------------------------------------------------


def test_which_board_suits(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(stream: object, *, is_quiet: bool = False) -> object:
        return board(stream, is_quiet=is_quiet, redaction=Redaction())  # type: ignore[arg-type]

    with terminal() as screen:
        assert isinstance(made(screen.stream), LiveBoard)
        assert isinstance(made(screen.stream, is_quiet=True), QuietBoard)
        monkeypatch.setenv("TERM", "dumb")
        assert isinstance(made(screen.stream), PlainBoard)
    assert isinstance(made(io.StringIO()), PlainBoard)
    assert isinstance(made(None), QuietBoard)


def test_a_closed_stream_gets_lines_that_nobody_reads(tmp_path: Path) -> None:
    with (tmp_path / "gone").open("w") as stream:
        pass
    shown = board(stream, is_quiet=False, redaction=Redaction())
    shown.show(of(graph("a"), "running", a="running"))
    shown.notice("x")
    shown.close()
    assert (tmp_path / "gone").read_text() == ""


def test_quiet_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    shown = QuietBoard()
    shown.show(of(graph("a"), "failed"))
    seen = shown.observer("a")
    seen.started(attempt("a"), LOG)
    seen.write(b"text\n", Kind.OUTPUT)
    seen.ended(attempt("a"), ok())
    with shown.paused():
        shown.notice("x")
    shown.close()
    assert capfd.readouterr() == ("", "")


# --- lines -------------------------------------------------------------------------------


def plain(redaction: Redaction | None = None) -> tuple[PlainBoard, io.StringIO]:
    stream = io.StringIO()
    return PlainBoard(stream, redaction=redaction or Redaction(), now=lambda: MOMENT), stream


def test_a_line_for_every_change() -> None:
    shown, stream = plain()
    view = of(graph("a --> b{{Sure?}}\nb -->|no| a\nb -->|yes| c"), "running")
    steps: list[FlowView] = [view]
    steps.append(with_node(steps[-1], "a", state=NodeState.RUNNING, attempt=1))
    steps.append(
        with_node(
            steps[-1],
            "a",
            state=NodeState.RETRYING,
            last_line="timeout",
            due="2026-11-22T12:04:00Z",
        )
    )
    steps.append(with_node(steps[-1], "a", state=NodeState.RUNNING, attempt=2, last_line=""))
    steps.append(
        with_node(steps[-1], "a", state=NodeState.DONE, runs=1, seconds=12.3, cost_usd=0.01)
    )
    steps.append(with_node(steps[-1], "b", state=NodeState.ASKED))
    steps.append(with_node(steps[-1], "b", state=NodeState.DONE, runs=1))
    steps.append(replace(steps[-1], iterations=1))
    steps.append(with_node(steps[-1], "a", state=NodeState.RUNNING, attempt=1))
    steps.append(
        with_node(steps[-1], "a", state=NodeState.DONE, runs=2, seconds=16.3, cost_usd=0.03)
    )
    steps.append(with_node(steps[-1], "b", state=NodeState.FAILED, last_line="no\x1b[2J one"))
    steps.append(with_node(steps[-1], "c", "failed", state=NodeState.CANCELLED))
    for step in steps:
        shown.show(step)
        shown.show(step)
    shown.notice("state\nrestored")
    shown.close()
    assert [line.removeprefix("12:03:04 ") for line in stream.getvalue().splitlines()] == [
        "start a",
        "retry a after attempt 1: timeout (next at 2026-11-22T12:04:00Z)",
        "start a, attempt 2",
        "done a 12.3 s 0.01 USD",
        "ask b: Sure?",
        "done b",
        "loop 1 of at most 50",
        "start a",
        "done a 4.0 s 0.02 USD",
        "fail b: no one",
        "cancel c",
        "failed · 1 of 3 nodes done · 1 loop of at most 50 · 16.3 s of work · 0.0300 USD",
        "notice: state restored",
    ]


def test_what_was_done_before_is_no_news() -> None:
    shown, stream = plain()
    view = with_node(
        of(graph("a --> b"), "running"), "a", state=NodeState.DONE, runs=1, seconds=2.0
    )
    shown.take_up(view)
    shown.show(view)
    shown.show(with_node(view, "b", state=NodeState.RUNNING, attempt=1))
    shown.close()
    assert stream.getvalue() == "12:03:04 start b\n"


def test_a_question_is_told_as_it_is_asked() -> None:
    shown, stream = plain()
    view = of(graph("a{{Sure?}}"), "waiting")
    shown.show(with_node(view, "a", state=NodeState.ASKED, last_line="Is it fine?"))
    shown.close()
    assert stream.getvalue() == "12:03:04 ask a: Is it fine?\n"


def test_what_began_and_ended_between_two_looks_is_told_once() -> None:
    view = of(graph("a --> b"), "running")
    later = with_node(view, "a", state=NodeState.DONE, runs=1, attempt=1, seconds=2.0)
    assert list(changes(view, later)) == ["done a 2.0 s"]
    again = with_node(later, "a", state=NodeState.RUNNING, runs=2)
    assert list(changes(later, again)) == ["done a", "start a"]


def test_a_board_that_joins_late_tells_what_there_is() -> None:
    view = of(graph("a --> b"), "running", b="running")
    assert list(changes(None, with_node(view, "a", state=NodeState.DONE, runs=1))) == [
        "done a",
        "start b",
    ]
    assert list(changes(view, view)) == []


def test_secrets_stay_hidden_in_lines() -> None:
    secret = "sk-ant-" + "a1b2c3d4" * 6
    shown, stream = plain(Redaction([secret]))
    view = of(graph("a"), "running")
    shown.show(with_node(view, "a", state=NodeState.FAILED, last_line=f"key {secret}"))
    shown.notice(secret)
    assert "fail a: key" in stream.getvalue()
    assert secret not in stream.getvalue()


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_are_one_line(text: str) -> None:
    shown, stream = plain()
    view = of(graph("a"), "running")
    shown.show(with_node(view, "a", state=NodeState.FAILED, last_line=text))
    assert len(stream.getvalue().splitlines()) == 1
    assert "\x1b" not in stream.getvalue()


def test_an_encoding_that_lacks_letters(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("w", encoding="ascii") as stream:
        shown = PlainBoard(stream, redaction=Redaction())
        shown.notice("計画")
        shown.show(of(graph("a"), "completed"))
    assert "notice: ??" in path.read_text()
    assert "completed ? 0 of 1" in path.read_text()


def test_a_node_of_a_plain_board_hands_notices_on() -> None:
    shown, stream = plain()
    seen = shown.observer("a")
    seen.started(attempt("a"), LOG)
    seen.write(b"not here\n", Kind.OUTPUT)
    seen.used(Usage(cost_usd=1))
    seen.notice("odd")
    seen.waiting("no free place", "2026-11-22T12:00:00Z")
    seen.ended(attempt("a"), ok())
    with shown.paused():
        pass
    assert [line[9:] for line in stream.getvalue().splitlines()] == [
        "notice: a: odd",
        "notice: a waits: no free place (until 2026-11-22T12:00:00Z)",
    ]


def test_lines_of_many_threads_stay_whole() -> None:
    shown, stream = plain()

    def say(number: int) -> None:
        for _ in range(30):
            shown.notice(f"{number} " * 20)

    threads = [threading.Thread(target=say, args=(n,)) for n in range(6)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 180
    assert all(len(set(line.split()[2:])) == 1 for line in lines)


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(list(NodeState)), st.integers(0, 1)),
        max_size=25,
    )
)
@settings(max_examples=80, deadline=None)
def test_every_run_of_a_node_is_told_once(steps: list[tuple[str, NodeState, int]]) -> None:
    shown, stream = plain()
    view = of(graph("a --> b --> c"), "running")
    shown.show(view)
    for name, state, more in steps:
        runs = next(n.runs for n in view.nodes if n.node.id == name) + more
        view = with_node(view, name, state=state, runs=runs)
        shown.show(view)
    told = [line[9:] for line in stream.getvalue().splitlines()]
    for node in view.nodes:
        assert told.count(f"done {node.node.id}") == node.runs
    assert not any(line.startswith("notice") for line in told)
    shown.show(view)
    assert len(stream.getvalue().splitlines()) == len(told)


@pytest.mark.parametrize(
    "status",
    ["completed", "completed_after_error", "failed", "timed_out", "max_iterations", "cancelled"],
)
def test_every_end_has_a_line(status: str) -> None:
    shown, stream = plain()
    shown.show(of(graph("a"), "running"))
    shown.show(of(graph("a"), status))
    shown.show(of(graph("a"), status))
    words = status.replace("_", " ")
    assert stream.getvalue() == f"12:03:04 {words} · 0 of 1 nodes done\n"


@pytest.mark.parametrize("status", ["not-started", "running", "waiting"])
def test_what_goes_on_has_no_line(status: str) -> None:
    shown, stream = plain()
    shown.show(of(graph("a"), status))
    assert stream.getvalue() == ""
