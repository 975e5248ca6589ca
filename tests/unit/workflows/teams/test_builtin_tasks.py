"""The tasks that a team has for a procedure."""

from __future__ import annotations

import pytest

from sequencer.plugins.teams.graphs import build_task_workflow
from sequencer.plugins.teams.lists import SHARED, builtin_tasks
from sequencer.plugins.teams.options import merge_roles
from sequencer.workflows.registry import PROCEDURES

FULL_DEVELOPMENT = {
    "research": (),
    "plan": (),
    "implement": ("research", "plan"),
    "verify": ("implement",),
    "changelog": ("implement",),
    "commit": ("verify", "changelog"),
    "pull-request": ("commit",),
    "summary": ("pull-request",),
}


def debugging(letters: str) -> dict[str, tuple[str, ...]]:
    first = tuple(f"hypothesis-{letter}" for letter in letters)
    return {
        **dict.fromkeys(first, ()),
        "history": (),
        "fix": (*first, "history"),
        "verify": ("fix",),
        "commit": ("verify",),
        "summary": ("commit",),
    }


@pytest.mark.parametrize(
    ("name", "size", "expected"),
    [
        ("full-development", 2, FULL_DEVELOPMENT),
        ("full-development", 9, FULL_DEVELOPMENT),
        ("debugger-full", 1, debugging("ab")),
        ("debugger-full", 3, debugging("ab")),
        ("debugger-full", 4, debugging("abc")),
        ("debugger-full", 9, debugging("abcde")),
        ("orchestrator-full", 3, {"decompose": (), "summary": ("decompose",)}),
    ],
)
def test_builtin_tasks_wait_for_the_expected_ones(name: str, size: int, expected: object) -> None:
    assert {task.id: task.blocked_by for task in builtin_tasks(name, size)} == expected


@pytest.mark.parametrize("name", SHARED)
def test_each_is_a_described_graph_that_ends_with_one_summary(name: str) -> None:
    assert name in PROCEDURES
    tasks = builtin_tasks(name, 6)
    graph = build_task_workflow(name, tasks, merge_roles(), size=6).graph
    assert graph is not None
    assert (graph.has_tasks, graph.max_parallel) == (True, 6)
    assert graph.reachable == graph.by_id.keys()
    assert [node.id for node in graph.nodes if not graph.outgoing[node.id]] == ["summary"]
    assert tasks[-1].role == "summarizer"
    assert len({task.subject for task in tasks}) == len(tasks)
    for task in tasks:
        assert task.active_form, task.id
        assert task.description or "prompt" in task.step, task.id
