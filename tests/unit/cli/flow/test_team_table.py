from __future__ import annotations

import json
import re
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sequencer.cli.views.nodes import (
    BLOCKED,
    COST,
    HEAD,
    LAST,
    ROLE,
    STATE,
    SUBJECT,
    TASK,
    TIME,
    TOKENS,
    node_table,
    nodes_json,
    run_duration_s,
    table_lines,
    task_cells,
)
from sequencer.cli.views.text import width
from sequencer.history.view import NodeState, NodeView
from sequencer.model.graph.graph import Node, NodeKind
from sequencer.model.outcome import format_count
from tests.unit.cli.flow.teams import NOW, TWO_MINUTES_AGO, at_work, numbered, view
from tests.unit.cli.flow.views import HOSTILE, of, with_node
from tests.unit.cli.flow.views import graph as chart

RUNNING = "running · 1 done, 1 running, 3 waiting"


def heads(text: str) -> list[str]:
    head = text.partition("\n")[0]
    return [name for name in HEAD if name in head]


# --- the table ---------------------------------------------------------------------------


def test_the_table() -> None:
    found = node_table(at_work(), NOW).splitlines()
    assert [re.split(r"  +", line) for line in found[:6]] == [
        list(HEAD),
        [
            *("plan", "Read and plan", "researcher", "done", "1:15", "12.3k", "0.5000"),
            *("the plan is in plan.md", "-"),
        ],
        [
            *("build", "Implement the parser", "implementer", "running", "2:00", "-", "-"),
            *("Implement the parser, now", "-"),
        ],
        [
            *("log", "Write the changelog", "implementer", "retry in 1:02", "0:04", "-", "-"),
            *("HTTP 529", "-"),
        ],
        ["verify", "Run all tests", "verifier", "waiting", "-", "-", "-", "-", "build"],
        ["commit", "Commit it", "git-handler", "waiting", "-", "-", "-", "-", "verify, log"],
    ]
    assert (
        len(
            {
                line.index(word)
                for line, word in zip(found[3:6], ("retry", "wai", "wai"), strict=True)
            }
        )
        == 1
    )
    assert found[6:] == [
        "",
        f"{RUNNING} · 1 of 3 at work · 12.3k tokens · 0.5000 USD · 1:00:00",
    ]


# --- room --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (None, [TASK, SUBJECT, ROLE, STATE, TIME, TOKENS, COST, LAST, BLOCKED]),
        (200, [TASK, SUBJECT, ROLE, STATE, TIME, TOKENS, COST, LAST, BLOCKED]),
        (120, [TASK, SUBJECT, ROLE, STATE, TIME, TOKENS, COST, LAST, BLOCKED]),
        (100, [TASK, SUBJECT, STATE, TIME, TOKENS, COST, LAST, BLOCKED]),
        (90, [TASK, SUBJECT, STATE, TIME, LAST, BLOCKED]),
        (80, [TASK, SUBJECT, STATE, TIME, LAST]),
        (60, [TASK, STATE, TIME, LAST]),
        (50, [TASK, STATE, LAST]),
        (30, [TASK, STATE]),
    ],
)
def test_columns_disappear_as_the_terminal_gets_narrower(
    columns: int | None, expected: list[int]
) -> None:
    assert heads(node_table(numbered(12), NOW, columns)) == [HEAD[place] for place in expected]


def test_without_a_blockers_column_the_last_line_names_the_blockers() -> None:
    narrow = node_table(numbered(12), NOW, 60).splitlines()
    (last,) = [line for line in narrow if line.startswith("sub-issue-12")]
    assert last.endswith("after sub-issue-10 +1")
    assert "waiting" in last
    wide = node_table(at_work(), NOW, 70).splitlines()
    assert wide[4].endswith("after build")
    assert wide[5].endswith("after verify, log")
    # What it has said goes before.
    said = with_node(at_work(), "verify", last_line="no: two tests fail")
    assert node_table(said, NOW, 70).splitlines()[4].endswith("no: two tests fail")


@pytest.mark.parametrize("count", [3, 12, 60])
@pytest.mark.parametrize("columns", [60, 80, 120, 200])
def test_the_usual_terminals(columns: int, count: int) -> None:
    found = node_table(numbered(count), NOW, columns).splitlines()
    assert len(found) == count + 3
    assert all(width(line) <= columns for line in found)
    # Names differ in their ends, so they are never cut here.
    assert all(f"sub-issue-{n + 1} " in found[n + 1] for n in range(count))
    assert found[-1].startswith("running · ")


@given(
    names=st.lists(st.text(min_size=1, max_size=60), min_size=1, max_size=6, unique=True),
    said=st.one_of(st.sampled_from(HOSTILE), st.text(max_size=100)),
    columns=st.integers(20, 220),
)
@settings(max_examples=40)
def test_no_line_is_ever_wider_than_the_terminal(names: list[str], said: str, columns: int) -> None:
    rows = [
        task_cells(
            NodeView(
                Node(id=f"t{place}", kind=NodeKind.AGENT, label=name),
                NodeState.RUNNING,
                since=TWO_MINUTES_AGO,
                last_line=said,
            ),
            names,
            NOW,
        )
        for place, name in enumerate(names)
    ]
    found = table_lines(rows, columns)
    assert len(found) == len(names) + 1
    assert all(width(line) <= columns for line in found)


# --- totals ------------------------------------------------------------------------------


def test_elapsed_time_continues_while_a_task_runs() -> None:
    assert run_duration_s(at_work(), NOW) == 3600.0
    assert run_duration_s(at_work(), NOW + timedelta(minutes=1)) == 3660.0
    rests = view(plan={"state": NodeState.DONE})
    assert run_duration_s(rests, NOW) == 3540.0
    assert run_duration_s(rests) == 3540.0
    assert run_duration_s(replace(rests, began=None), NOW) == 0.0
    assert run_duration_s(replace(rests, latest=None), NOW) == 0.0
    ahead = replace(rests, began="2026-11-22T13:00:00Z")
    assert run_duration_s(ahead, NOW) == 0.0


@pytest.mark.parametrize("count", [0, 1, 999, 1_000, 99_949, 99_950, 999_499, 999_500, 10**9])
def test_amounts_are_short(count: int) -> None:
    found = format_count(count)
    assert len(found) <= 7
    factor = {"k": 1_000, "M": 1_000_000}.get(found[-1], 1)
    assert float(found.rstrip("kM")) * factor == pytest.approx(count, rel=0.051, abs=0.5)


# --- for programs ------------------------------------------------------------------------


def test_json_has_role_and_blockers() -> None:
    found = nodes_json(at_work())
    assert json.loads(json.dumps(found)) == found
    by_id = {node["id"]: node for node in found["nodes"]}
    assert by_id["commit"]["role"] == "git-handler"
    assert by_id["commit"]["blocked_by"] == ["verify", "log"]
    assert (by_id["plan"]["tokens"], by_id["plan"]["blocked_by"]) == (12_345, [])
    assert "role" not in nodes_json(of(chart("a")))["nodes"][0]
