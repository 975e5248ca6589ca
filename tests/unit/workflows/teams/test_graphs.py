"""Tasks as a graph, what is wrong with a list of them, and what is added to one."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pytest

from sequencer.errors import ConfigurationError, ConfigurationErrors
from sequencer.model.graph.graph import Graph, TaskExpansion
from sequencer.model.step import Output, Step, Validation
from sequencer.model.workflow import Workflow
from sequencer.plugins.teams.graphs import (
    BRIEF,
    MAX_PROBLEMS,
    TaskProblem,
    build_task_workflow,
    expand_by_tasks,
    list_problems,
    schema_for,
)
from sequencer.plugins.teams.team import Role, Task
from sequencer.workflows.finding import MAX_LISTED, suggest_nearest

MEND = {"name": "mend", "text": "Mend"}
ROLES = {
    "reader": Role.model_validate({"tools": {"edit": False}, "model": "small"}),
    "implementer": Role.model_validate(
        {"writes": True, "worktree": True, "max_turns": 9, "prompt": "implementing.md"}
    ),
    "judge": Role.model_validate(
        {"validation": {"fixer": MEND, "max_attempts": 3}, "worktree": True}
    ),
}


def task(name: str, *blockers: str, **fields: Any) -> Task:
    return Task.model_validate(
        {"id": name, "subject": f"Do {name}", "blocked_by": blockers} | fields
    )


def made(*tasks: Task, **options: Any) -> Workflow:
    return build_task_workflow("team", tasks, ROLES, **options)


def graph_of(workflow: Workflow) -> Graph:
    assert workflow.graph is not None
    return workflow.graph


def edges(found: Graph | TaskExpansion) -> list[tuple[str, str]]:
    return [(edge.source, edge.target) for edge in found.edges]


def one(**fields: Any) -> tuple[Step, Any]:
    """Return the step and the traits of a task with *fields*."""
    workflow = made(task("a", **fields))
    return workflow.steps[0], graph_of(workflow).nodes[0].task


# --- the graph ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (True, False)),
        ({"role": "reader"}, (False, False)),
        ({"role": "implementer"}, (True, True)),
        ({"role": "implementer", "writes": False, "worktree": False}, (False, False)),
        ({"role": "reader", "writes": True, "worktree": True}, (True, True)),
        ({"worktree": True}, (True, True)),
        # Who only answers gets no work tree of its role.
        ({"role": "judge"}, (False, False)),
        ({"role": "judge", "validation": None}, (False, True)),
        ({"role": "judge", "validation": None, "adds": "tasks"}, (False, False)),
        ({"role": "implementer", "validation": {}}, (True, False)),
    ],
)
def test_a_task_may_write_and_have_a_worktree(
    fields: dict[str, Any], expected: tuple[bool, bool]
) -> None:
    _, traits = one(**fields)
    assert (traits.writes, traits.worktree) == expected


@pytest.mark.parametrize(
    ("fields", "step", "brought"),
    [
        ({}, {"text": BRIEF, "prompt": None}, ()),
        ({"role": "reader"}, {"text": BRIEF, "model": "small"}, ("model", "tools")),
        ({"role": "reader", "model": "x"}, {"model": "x", "tools": {"edit": False}}, ("tools",)),
        (
            {"role": "implementer"},
            {"prompt": "implementing.md", "text": None},
            ("max_turns", "prompt"),
        ),
        ({"role": "implementer", "prompt": "my.md"}, {"prompt": "my.md"}, ("max_turns",)),
        ({"role": "implementer", "text": "Do"}, {"prompt": None, "text": "Do"}, ("max_turns",)),
        ({"role": "judge", "adds": "tasks"}, {"validation": None}, ()),
        ({"role": "judge", "validation": None}, {"validation": None}, ()),
        ({"validation": {"max_attempts": 2}}, {"validation": Validation(max_attempts=2)}, ()),
        (
            {"role": "judge", "validation": {"max_attempts": 1, "fixer": None}},
            {"validation": Validation(max_attempts=1)},
            (),
        ),
    ],
)
def test_own_fields_beat_those_of_the_role(
    fields: dict[str, Any], step: dict[str, Any], brought: tuple[str, ...]
) -> None:
    found, traits = one(**fields)
    assert {name: getattr(found, name) for name in step} == step
    assert traits.brought == brought


@pytest.mark.parametrize(
    ("fields", "turns", "brought"),
    [
        ({"role": "judge"}, 9, ("validation", "fixer.max_turns")),
        ({"role": "judge", "validation": {"max_attempts": 3}}, 9, ("fixer.max_turns",)),
        ({"validation": {"fixer": MEND, "max_attempts": 3}}, 9, ("fixer.max_turns",)),
        ({"validation": {"fixer": {**MEND, "max_turns": 1}, "max_attempts": 3}}, 1, ()),
    ],
)
def test_a_fixer_works_as_an_implementer(
    fields: dict[str, Any], turns: int, brought: tuple[str, ...]
) -> None:
    step, traits = one(**fields)
    assert step.validation is not None
    assert step.validation.max_attempts == 3
    fixer = step.validation.fixer
    assert fixer is not None
    assert (fixer.name, fixer.text, fixer.prompt, fixer.max_turns) == ("mend", "Mend", None, turns)
    assert traits.brought == brought


@pytest.mark.parametrize("adds", ["tasks", "sub-issues"])
def test_a_task_that_adds_tasks_must_answer_in_their_form(
    adds: Literal["tasks", "sub-issues"],
) -> None:
    step, traits = one(adds=adds, output={"key": "plan"}, description="Cut it.")
    assert step.output == Output(format="json", schema=schema_for(adds, ROLES), key="plan")
    assert traits.adds == adds
    told = traits.description
    assert told.startswith("Cut it.\n\nAnswer with one JSON object, and nothing else")
    assert f'{{"{adds.replace("-", "_")}": [{{"id"' in told
    roles = "one of: implementer, judge, reader. Without one it is implementer."
    assert (roles in told) == ("role" in told) == (adds == "tasks")
    assert one(description=" As it is ")[1].description == " As it is "


# --- what is wrong with a list -----------------------------------------------------------

CIRCLE = "tasks wait for each other in a circle: "
ARROW = "an arrow points to the task that waits; remove one of them"


def problems(
    *tasks: Task,
    most: int = 1000,
    there: Mapping[str, Sequence[str]] | None = None,
    lost: Sequence[str] = (),
) -> list[TaskProblem]:
    return list_problems(tasks, ROLES, most=most, existing=there, lost=lost)


@pytest.mark.parametrize(
    ("tasks", "expected"),
    [
        ([], TaskProblem((), "there is no task in it", "list at least one")),
        (
            [task("build"), task("test", "build", "biuld")],
            TaskProblem(
                (1, "blocked_by", 1),
                "there is no task 'biuld' to wait for",
                "did you mean 'build'? there are: build, test",
            ),
        ),
        (
            [task("a", role="raeder")],
            TaskProblem(
                (0, "role"),
                "there is no role 'raeder'",
                "did you mean 'reader'? there are: implementer, judge, reader",
            ),
        ),
        (
            [task("a"), task("b"), task("a", "b")],
            TaskProblem((2, "id"), "two tasks are called 'a'; the other one is number 1"),
        ),
        (
            [task("a"), task("b", "a", "b")],
            TaskProblem((1, "blocked_by", 1), "task 'b' waits for itself"),
        ),
        (
            [task("a"), task("b", "a", "a")],
            TaskProblem((1, "blocked_by", 1), "'a' is named twice"),
        ),
        (
            [task("z"), task("c", "b"), task("a", "c"), task("b", "a")],
            TaskProblem((1, "blocked_by"), f"{CIRCLE}c -> a -> b -> c", ARROW),
        ),
    ],
)
def test_one_mistake_is_one_problem(tasks: list[Task], expected: TaskProblem) -> None:
    assert problems(*tasks) == [expected]


def test_all_problems_are_reported_in_the_order_of_the_list() -> None:
    found = problems(
        task("a", "b", role="nobody"), task("b", "x", "a"), task("a"), task("c", "c", "y")
    )
    assert [one.path[:2] for one in found] == [
        *((0, "role"), (0, "blocked_by")),
        *((1, "blocked_by"), (2, "id"), (3, "blocked_by"), (3, "blocked_by")),
    ]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"adds": "sub-issues"}, "adds tasks"),
        ({"validation": {"max_attempts": 1}}, "judges"),
        ({"role": "judge"}, "judges"),
        ({}, None),
        ({"role": "judge", "validation": None}, None),
    ],
)
def test_a_task_that_only_answers_has_no_worktree(
    fields: dict[str, object], why: str | None
) -> None:
    wrong = task("b", worktree=True, **fields)
    found = [(one.path, one.message) for one in problems(task("a"), wrong)]
    message = f"a task that {why} has no worktree: only its answer counts"
    assert found == ([((1, "worktree"), message)] if why else [])
    assert problems(wrong.replace(worktree=False)) == []


def test_the_nearest_name_is_suggested() -> None:
    known = dict.fromkeys(["test", "build"])
    assert suggest_nearest("tset", known) == "did you mean 'test'? there are: test, build"
    assert suggest_nearest("tset", known, compares=False) == "there are: test, build"
    many = [f"n{number:03}" for number in range(100)]
    assert suggest_nearest("zzz", many).count(", ") == MAX_LISTED
    assert suggest_nearest("zzz", many).endswith(", …")
    assert suggest_nearest("zzz", []) == "there is none"


@pytest.mark.slow
def test_problems_of_long_and_hostile_lists_are_limited() -> None:
    names = [f"t{number}" for number in range(100)]
    (found,) = problems(*(task(name, names[place - 1]) for place, name in enumerate(names)))
    assert found.message.count(" -> ") == 10
    assert found.message.endswith("t8 -> … -> t0")
    names = [f"task-{number}" for number in range(1000)]
    everyone = [task(name, *names) for name in names[:300]]
    unknown = [task(f"u{number}", *(f"x{n}" for n in range(300))) for number in range(200)]
    began = time.process_time()
    many = problems(*everyone, *unknown)
    assert time.process_time() - began < 2
    assert len(many) == MAX_PROBLEMS + 1
    assert many[-1].message == "more problems are not shown"


def test_problems_are_raised_together_with_their_places() -> None:
    with pytest.raises(ConfigurationErrors) as caught:
        made(task("a", "b"), task("b", "a", "x"), max_tasks=1)
    assert [error.where for error in caught.value.errors] == [
        *("tasks", "tasks[0].blocked_by", "tasks[1].blocked_by[1]")
    ]
    assert "a -> b -> a" in str(caught.value)
    with pytest.raises(ConfigurationError) as alone:
        made(task("a", "x"), locate=lambda path: f"here {path}")
    assert alone.value.where == "here (0, 'blocked_by', 0)"
    assert alone.value.message == "there is no task 'x' to wait for"


# --- growing -----------------------------------------------------------------------------

PLAN = (task("plan", adds="tasks"), task("other"), task("end", "plan", "other"))


def growth(*tasks: Task, base: Workflow | None = None, **options: Any) -> TaskExpansion:
    return expand_by_tasks(graph_of(base or made(*PLAN)), "plan", tasks, ROLES, **options)


@pytest.mark.parametrize(
    ("tasks", "expected"),
    [
        (
            [task("a"), task("b", "a"), task("c")],
            [("plan", "a"), ("a", "b"), ("plan", "c"), ("b", "end"), ("c", "end")],
        ),
        # After who adds it as well: the old one may be done, and lets nobody pass any more.
        ([task("a", "other")], [("plan", "a"), ("other", "a"), ("a", "end")]),
        ([task("a", "plan")], [("plan", "a"), ("a", "end")]),
        ([task("b", "a"), task("a")], [("a", "b"), ("plan", "a"), ("b", "end")]),
    ],
)
def test_new_tasks_come_between_their_lead_and_the_tasks_waiting_for_it(
    tasks: list[Task], expected: list[tuple[str, str]]
) -> None:
    found = growth(*tasks)
    assert edges(found) == expected
    assert [node.id for node in found.nodes] == [step.name for step in found.steps]
    assert found.added_by == "plan"
    assert [node.task and node.task.blocked_by for node in found.nodes] == [
        one.blocked_by or ("plan",) for one in tasks
    ]


@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        ([task("end")], "the run has a task 'end' already"),
        (
            [task("a", "end")],
            "tasks[0].blocked_by: tasks wait for each other in a circle: a -> e",
        ),
        ([task("a", "b"), task("b", "a")], "a -> b -> a"),
        ([task("a"), task("b")], "5 tasks, 3 of them in the run already; at most 4"),
        ([], "there is no task in it"),
    ],
)
def test_invalid_new_tasks_are_refused(tasks: list[Task], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        growth(*tasks, max_tasks=4)
    assert said in str(caught.value)
    assert growth(task("a"), max_tasks=4).nodes
