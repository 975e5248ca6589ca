"""A team on a terminal and in a log, while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sequencer.cli.views.nodes import Frame, NodeProgress
from sequencer.cli.views.text import width
from sequencer.history.view import FlowView
from sequencer.history.words import format_facts
from sequencer.model.transitions import Event
from tests.unit.cli.flow.facts import fact
from tests.unit.cli.flow.teams import NOW, at_work, numbered
from tests.unit.cli.flow.terminals import Terminal, terminal


@pytest.fixture(autouse=True)
def _usual_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.fixture
def screen() -> Iterator[Terminal]:
    with terminal() as made:
        yield made


def drawn(
    screen: Terminal, view: FlowView, columns: int, rows: int, **heard: NodeProgress
) -> list[str]:
    screen.resize(columns, rows)
    frame = Frame(screen.stream)
    frame.measure()
    return frame.render(view, heard, NOW).plain.split("\n")


# --- a frame -----------------------------------------------------------------------------


def test_a_frame_has_the_columns_of_a_team(screen: Terminal) -> None:
    found = drawn(screen, at_work(), 130, 20, build=NodeProgress("reading a.md", 0.25, 2_000))
    assert found[0].split()[:5] == ["TASK", "SUBJECT", "ROLE", "STATE", "TIME"]
    assert found[1].startswith("✓ plan")
    assert found[3].startswith("↻ log")
    assert "reading a.md" in found[2]
    assert " 2.0k  0.2500 " in found[2]
    assert found[5].endswith("verify, log")
    assert found[-1].startswith("parser · running · 1 done, 1 running, 3 waiting")


@pytest.mark.parametrize("count", [3, 12, 60])
@pytest.mark.parametrize("columns", [20, 40, 60, 80, 120, 200])
def test_a_frame_fits(screen: Terminal, columns: int, count: int) -> None:
    found = drawn(screen, numbered(count), columns, 24)
    assert len(found) <= 22
    assert all(width(line) < columns for line in found)
    running = [line for line in found if "running (2)" in line]
    assert len(running) == min(3, count - count // 2)


# --- on a terminal -----------------------------------------------------------------------


# --- in a log ----------------------------------------------------------------------------


def lines_of(*facts: dict[str, Any], view: FlowView | None = None) -> list[str]:
    return [line for _, line in format_facts(facts, view or at_work())]


def test_events_that_only_teams_have_get_their_own_lines() -> None:
    assert lines_of(
        fact(Event.INVALID, "verify", reason="two tests fail", number=1),
        fact(Event.GROWN, "verify", tasks=["fix-1", "fix-2"]),
        fact(Event.TOLD, "build", by="ann", output="mind the tabs"),
        fact(Event.WARNED, note="80 % of the budget is used"),
        fact(Event.TAKEN_OVER, "build", note="token 3 of process 7"),
    ) == [
        "no from verify (round 1): two tests fail",
        "add fix-1, fix-2, from verify",
        "message to build from ann: mind the tabs",
        "warning: 80 % of the budget is used",
        "take over build: token 3 of process 7",
    ]


@pytest.mark.parametrize("event", [Event.INVALID, Event.GROWN, Event.TOLD, Event.WARNED])
def test_facts_with_missing_or_odd_fields_still_get_one_line(event: Event) -> None:
    (line,) = lines_of(fact(event, "build"))
    assert line
    assert "None" not in line
    (odd,) = lines_of(fact(event, "build", tasks="x", note=7, reason=[], by={}, output=3))
    assert "\n" not in odd
