from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sequencer.cli.views.facts import NewFacts
from sequencer.model.transitions import Event
from tests.acceptance.flow_projects import cli, make_project, write_flow
from tests.unit.cli.flow.facts import fact


def facts(first: int, last: int) -> list[dict[str, Any]]:
    return [fact(Event.CLAIMED, "a", revision) for revision in range(first, last)]


def test_a_history_that_starts_over_is_all_new() -> None:
    news = NewFacts()
    news.select_new(facts(0, 5))
    assert news.select_new([]) == []
    assert news.select_new(facts(10, 12)) == facts(10, 12)
    assert news.select_new(facts(10, 13)) == facts(12, 13)
    # As long as the one before it, or longer.
    assert news.select_new(facts(20, 23)) == facts(20, 23)
    assert news.select_new(facts(30, 40)) == facts(30, 40)


def test_only_the_end_is_new_after_a_history_lost_its_beginning() -> None:
    news = NewFacts()
    news.select_new(facts(0, 6))
    assert news.select_new(facts(4, 8)) == facts(6, 8)
    assert news.select_new(facts(4, 9)) == facts(8, 9)


def started_and_done(lines: list[str]) -> list[str]:
    """Return the lines of nodes that began and ended, without times and amounts."""
    words = (line.split(" ") for line in lines)
    return [f"{w[1]} {w[2].rstrip(',')}" for w in words if w[1] in {"start", "done"}]


def in_journal(project: Path, run: str) -> list[str]:
    """Return the same from the journal."""
    words = {"claimed": "start", "started": "start", "succeeded": "done", "passed": "done"}
    printed = cli(project, "--run", run, "history", "--json").stdout
    told = [json.loads(line) for line in printed.splitlines()]
    return [f"{words[one['event']]} {one['step']}" for one in told if one["event"] in words]


@pytest.mark.slow
def test_a_run_in_a_pipe_prints_every_fact_in_journal_order(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    # Nodes that take no time, so that many begin and end between two looks.
    chart = (
        "a --> b --> c\nc --> j((J))\nb --> d --> j\nj --> e --> f{Again?}\n"
        "f -->|more| b\nf -->|default| g"
    )
    texts = {name: f"Say {name}" for name in "abcdg"}
    write_flow(project, "chain", chart, front="config: {maxIterations: 2}\n", **texts, e="Say more")
    ended = cli(project, "run", "chain")
    told = [line for line in ended.stderr.splitlines() if line[2:3] == ":"]
    journal = in_journal(project, "chain")
    assert started_and_done(told) == journal
    assert journal.count("done b") == 3
    assert [line[9:] for line in told if line[9:].startswith("loop")] == [
        "loop 1 of at most 2",
        "loop 2 of at most 2",
    ]
    assert told[-2][9:].startswith("maxIterations 2 exceeded at f (Again?) -> b")
    assert told[-1][9:].startswith("max iterations · ")
