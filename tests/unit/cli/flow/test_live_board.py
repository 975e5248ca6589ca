from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from sequencer.cli.views.board import MAX_NOTICES, Table
from sequencer.executors.protocol import Piece
from sequencer.executors.redaction import Redaction
from sequencer.history.view import NodeState
from sequencer.model.graph.graph import Graph, Node, NodeKind
from sequencer.model.outcome import Usage
from tests.unit.cli.flow.terminals import Terminal, terminal
from tests.unit.cli.flow.views import HOSTILE, graph, of, ok, with_node
from tests.unit.saying import Saying, attempt


@pytest.fixture(autouse=True)
def _usual_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    # The terminal's own size counts, whatever a shell once exported.
    monkeypatch.setenv("COLUMNS", "55")
    monkeypatch.setenv("LINES", "7")
    monkeypatch.delenv("NO_COLOR", raising=False)


def many(count: int) -> Graph:
    nodes = tuple(Node(id=f"node_{n}", kind=NodeKind.AGENT) for n in range(count))
    return Graph(nodes=nodes, entries=("node_0",))


def now() -> str:
    return datetime.now(UTC).isoformat()


def since(seconds: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat()


@pytest.fixture
def live() -> Iterator[tuple[Table, Terminal]]:
    with terminal() as screen:
        shown = Table(screen.stream, redaction=Redaction())
        yield shown, screen
        shown.close()


def test_the_table_is_redrawn_in_place(live: tuple[Table, Terminal]) -> None:
    shown, screen = live
    view = of(graph("a --> b"), "running")
    view = with_node(view, "a", state=NodeState.RUNNING, attempt=1, since=since(75))
    shown.show(view)
    seen = Saying(shown.handle_event)
    seen.started(attempt("a"))
    seen.write(b"reading\nwriting \x1b]0;owned\x07the file", Piece.OUTPUT)
    seen.report_usage(Usage(cost_usd=0.25))
    screen.wait_for("writing the file")
    screen.wait_for("0.2500")
    lines = screen.screen()
    assert lines[0].split() == ["NODE", "STATE", "ATTEMPT", "RUNS", "TIME", "COST", "LAST", "LINE"]
    assert lines[1].split()[1:] == [
        *("a", "running", "1", "-", "1", "min"),
        lines[1].split()[7],
        "s",
        "0.2500",
        *("writing", "the", "file"),
    ]
    assert lines[2].startswith("· b   not started")
    assert lines[3].startswith("demo · running · 0 of 2 nodes done · 1 active")
    seen.ended(attempt("a"), ok())
    view = with_node(
        view,
        "a",
        state=NodeState.DONE,
        runs=1,
        since=None,
        seconds=80.0,
        cost_usd=0.3,
        last_line="wrote it",
    )
    shown.show(replace(view, status="completed"))
    shown.close()
    screen.drain()
    lines = [line for line in screen.screen() if line]
    # In place: what was there is gone.
    assert len(lines) == 4
    assert lines[1].split() == [
        "✓",
        "a",
        "done",
        "1",
        "1",
        "1",
        "min",
        "20",
        "s",
        "0.3000",
        "wrote",
        "it",
    ]
    assert lines[3].startswith("demo · completed · 1 of 2 nodes done")
    assert screen.raw.rindex(b"\x1b[?25h") > screen.raw.rindex(b"\x1b[?25l")
    assert b"owned" not in screen.raw


def test_notices_stay_above(live: tuple[Table, Terminal]) -> None:
    shown, screen = live
    shown.show_notice("state \x1b[2Jrestored")
    screen.wait_for("state restored")
    shown.show(of(graph("a"), "running", a="running"))
    screen.wait_for("demo · running")
    shown.show_notice("odd")
    screen.wait_for("odd")
    screen.drain()
    lines = screen.screen()
    assert [line for line in lines if "restored" in line or "odd" in line] == lines[:2]
    assert sum("demo" in line for line in lines) == 1


def test_a_wait_for_the_next_attempt_is_counted_down(live: tuple[Table, Terminal]) -> None:
    shown, screen = live
    view = of(graph("a"), "running", a="retrying")
    shown.show(with_node(view, "a", attempt=1, due=since(-30)))
    screen.wait_for("retrying in 29.")
    screen.wait_for("retrying in 28.")


def test_nothing_happens_while_nothing_runs(live: tuple[Table, Terminal]) -> None:
    shown, screen = live
    asked = with_node(of(graph("a{{Q}}"), "waiting"), "a", state=NodeState.ASKED, since=now())
    shown.show(asked)
    screen.wait_for("demo · waiting")
    screen.drain()
    before = time.process_time()
    assert screen.read(1.2) == 0
    assert time.process_time() - before < 0.2


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_output_moves_nothing(live: tuple[Table, Terminal], text: str) -> None:
    shown, screen = live
    shown.show(of(graph("a"), "running", a="running"))
    seen = Saying(shown.handle_event)
    seen.started(attempt("a"))
    seen.write(text.encode("utf-8", "replace") + b"\nthe end", Piece.OUTPUT)
    shown.show_notice(text)
    screen.wait_for("the end")
    # `screen` fails on sequences that rich doesn't need for a live table.
    assert sum(line.startswith("NODE") for line in screen.screen()) == 1
    assert b"\x1b]" not in screen.raw
    assert b"\x1b[2J" not in screen.raw


def test_secrets_stay_hidden() -> None:
    secret = "sk-ant-" + "a1b2c3d4" * 6
    with terminal() as screen:
        shown = Table(screen.stream, redaction=Redaction([secret]))
        shown.show(of(graph("a"), "running", a="running"))
        seen = Saying(shown.handle_event)
        seen.started(attempt("a"))
        seen.write(f"key {secret} used\n".encode(), Piece.OUTPUT)
        shown.show_notice(f"with {secret}")
        screen.wait_for("used")
        shown.close()
        screen.drain()
        assert secret.encode() not in screen.raw


def test_many_threads_at_once() -> None:
    with terminal(100, 20) as screen:
        shown = Table(screen.stream, redaction=Redaction())
        views = [of(many(12), "running")]
        lock, failed = threading.Lock(), []

        def change(name: str, **facts: Any) -> None:
            with lock:
                views.append(with_node(views[-1], name, **facts))
                shown.show(views[-1])

        def run(name: str) -> None:
            try:
                seen = Saying(shown.handle_event)
                change(name, state=NodeState.RUNNING, attempt=1, since=now())
                seen.started(attempt(name))
                for number in range(40):
                    seen.write(f"{name} says {number}\n".encode(), Piece.OUTPUT)
                    seen.report_usage(Usage(cost_usd=number / 100))
                    time.sleep(number % 5 / 1000)
                shown.show_notice(f"{name}: over")
                seen.ended(attempt(name), ok())
                change(name, state=NodeState.DONE, runs=1, since=None, seconds=1.0)
            except Exception as error:  # noqa: BLE001 - told below
                failed.append(error)

        threads = [threading.Thread(target=run, args=(f"node_{n}",)) for n in range(12)]
        for one in threads:
            one.start()
        while any(one.is_alive() for one in threads):
            screen.read(0.05)
        for one in threads:
            one.join()
        shown.show(replace(views[-1], status="completed"))
        shown.close()
        screen.drain()
        assert failed == []
        lines = screen.screen()
        assert sum(": over" in line for line in lines) == 12
        assert sum(line.startswith("✓ node_") for line in lines) == 12
        assert sum("12 of 12 nodes done" in line for line in lines) == 1


def test_a_terminal_that_reads_nothing_does_not_block_the_run() -> None:
    with terminal(200, 60) as screen:
        shown = Table(screen.stream, redaction=Redaction())
        shown.show(of(many(50), "running", node_0="running"))
        seen = Saying(shown.handle_event)
        seen.started(attempt("node_0"))
        begun = time.monotonic()
        for number in range(3000):
            seen.write(b"x" * 100 + b"\n", Piece.OUTPUT)
            shown.show_notice(f"notice {number}" * 10)
        assert time.monotonic() - begun < 5
        assert len(shown._notices) <= MAX_NOTICES
        closing = time.monotonic()
        shown.close()
        assert time.monotonic() - closing < 4


def test_a_terminal_that_disappears_is_no_error() -> None:
    screen = Terminal(80, 24)
    shown = Table(screen.stream, redaction=Redaction())
    shown.show(of(graph("a"), "running", a="running"))
    screen.wait_for("demo")
    os.close(screen.master)
    for _ in range(3):
        shown.show(of(graph("a"), "running", a="running"))
        time.sleep(0.3)
    shown.close()
    # Nothing is left in it that the interpreter would have to write at its end.
    screen.stream.close()


def test_closing_before_anything_was_shown() -> None:
    with terminal() as screen:
        Table(screen.stream, redaction=Redaction()).close()
        assert screen.read(0.1) == 0
