"""What is wrong with a list of tasks as a whole."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import pairwise

import pytest

from sequencer.model.team import Role, Task
from sequencer.workflows.teams.graphs import (
    MAX_LISTED,
    MAX_PROBLEMS,
    TaskProblem,
    circles,
    list_problems,
    nearest,
)

ROLES = {
    "builder": Role(worktree=True),
    "checker": Role.model_validate({"validation": {"max_attempts": 2}, "worktree": True}),
}


def task(name: str, *blockers: str, role: str | None = None) -> Task:
    return Task(id=name, subject=name, blocked_by=blockers, role=role)


def problems(
    *tasks: Task,
    most: int = 1000,
    there: Mapping[str, Sequence[str]] | None = None,
    lost: Sequence[str] = (),
) -> list[TaskProblem]:
    return list_problems(tasks, ROLES, most=most, there=there, lost=lost)


def only(*tasks: Task, **given: Mapping[str, Sequence[str]]) -> TaskProblem:
    (found,) = problems(*tasks, there=given.get("there"))
    return found


def test_a_list_in_any_order_is_right() -> None:
    assert problems(task("c", "a", "b"), task("a"), task("b", "a", role="builder")) == []


def test_several_beginnings_and_ends_are_right() -> None:
    assert problems(task("a"), task("b"), task("c", "a")) == []


def test_an_empty_list() -> None:
    (found,) = problems()
    assert found == TaskProblem((), "there is no task in it", "list at least one")


def test_an_unknown_task_is_told_with_the_nearest() -> None:
    found = only(task("build"), task("test", "build", "biuld"))
    assert found.path == (1, "blocked_by", 1)
    assert found.message == "there is no task 'biuld' to wait for"
    assert found.hint == "did you mean 'build'? there are: build, test"


def test_a_task_that_was_refused_is_not_told_as_unknown() -> None:
    assert problems(task("a", "broken"), lost=["broken"]) == []


def test_an_unknown_role() -> None:
    found = only(task("a", role="buidler"))
    assert found.path == (0, "role")
    assert found.message == "there is no role 'buidler'"
    assert found.hint == "did you mean 'builder'? there are: builder, checker"


def test_two_tasks_of_one_id() -> None:
    found = only(task("a"), task("b"), task("a", "b"))
    assert (found.path, found.message) == (
        (2, "id"),
        "two tasks are called 'a'; the other one is number 1",
    )


def test_a_task_that_waits_for_itself() -> None:
    found = only(task("a"), task("b", "a", "b"))
    assert (found.path, found.message) == ((1, "blocked_by", 1), "task 'b' waits for itself")
    assert found.cycle == ("b", "b")


def test_a_blocker_that_is_named_twice() -> None:
    found = only(task("a"), task("b", "a", "a"))
    assert (found.path, found.message) == ((1, "blocked_by", 1), "'a' is named twice")


def test_a_circle_is_told_with_its_path_from_the_first_of_the_list() -> None:
    found = only(task("z"), task("c", "b"), task("a", "c"), task("b", "a"))
    assert found.path == (1, "blocked_by")
    assert found.cycle == ("c", "a", "b", "c")
    assert found.message == "tasks wait for each other in a circle: c -> a -> b -> c"
    assert found.hint is not None
    assert "arrow leads to the task that waits" in found.hint


def test_each_circle_is_told_once() -> None:
    found = problems(task("a", "b"), task("b", "a"), task("c", "d"), task("d", "c"), task("e", "a"))
    assert [one.cycle for one in found] == [("a", "b", "a"), ("c", "d", "c")]


def test_a_long_circle_is_cut() -> None:
    names = [f"t{number}" for number in range(100)]
    (found,) = problems(*(task(name, names[place - 1]) for place, name in enumerate(names)))
    assert found.message.count(" -> ") == 10
    assert found.message.endswith("t8 -> … -> t0")
    assert len(found.cycle) == 101


def test_everything_is_told_in_the_order_of_the_list() -> None:
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
        ({"adds": "tasks"}, "adds tasks"),
        ({"adds": "sub-issues"}, "adds tasks"),
        ({"validation": {"max_attempts": 1}}, "judges"),
        ({"role": "checker"}, "judges"),
        ({"role": "builder", "validation": {}}, "judges"),
    ],
)
def test_who_only_answers_has_no_worktree(fields: dict[str, object], why: str) -> None:
    made = Task.model_validate({"id": "b", "subject": "B", "worktree": True, **fields})
    found = only(task("a"), made)
    assert found.path == (1, "worktree")
    assert found.message == f"a task that {why} has no worktree: only its answer counts"
    assert problems(made.model_copy(update={"worktree": None})) == []
    assert problems(made.model_copy(update={"worktree": False})) == []


@pytest.mark.parametrize(
    "fields", [{}, {"role": "builder"}, {"role": "checker", "validation": None}]
)
def test_the_others_may_have_one(fields: dict[str, object]) -> None:
    made = Task.model_validate({"id": "b", "subject": "B", "worktree": True, **fields})
    assert problems(made) == []


def test_too_many() -> None:
    found = problems(*map(task, "abc"), most=2)
    assert [one.message for one in found] == ["3 tasks; at most 2 are allowed"]
    assert problems(*map(task, "abc"), most=3) == []


def test_the_tasks_of_a_run_count_too() -> None:
    found = problems(task("a"), task("b"), most=3, there={"x": (), "y": ("x",)})
    assert [one.message for one in found] == ["4 tasks, 2 of them there; at most 3 are allowed"]


def test_a_task_of_the_run_may_be_waited_for_and_not_be_called_again() -> None:
    there = {"x": ()}
    assert problems(task("a", "x"), there=there) == []
    found = only(task("x"), there=there)
    assert (found.path, found.message) == ((0, "id"), "the run has a task 'x' already")


def test_a_circle_through_tasks_of_the_run() -> None:
    found = only(task("new", "late"), there={"late": ("middle",), "middle": ("new",)})
    assert found.cycle == ("new", "middle", "late", "new")
    assert found.path == (0, "blocked_by")


@pytest.mark.parametrize(
    "known", [["test", "build"], dict.fromkeys(["test", "build"])], ids=["list", "mapping"]
)
def test_the_nearest_name(known: list[str]) -> None:
    assert nearest("tset", known) == "did you mean 'test'? there are: test, build"
    assert nearest("tset", known, compares=False) == "there are: test, build"


def test_of_many_names_a_few_are_listed() -> None:
    known = [f"n{number:03}" for number in range(100)]
    assert nearest("zzz", known).count(", ") == MAX_LISTED
    assert nearest("zzz", known).endswith(", …")
    assert nearest("zzz", []) == "there is none"


@pytest.mark.parametrize(
    ("blockers", "expected"),
    [
        ({}, []),
        ({"a": []}, []),
        ({"a": ["a"]}, [("a",)]),
        ({"a": ["b"], "b": ["a"]}, [("b", "a")]),
        ({"a": ["b", "b"], "b": ["a", "a"]}, [("b", "a")]),
        ({"a": ["c"], "b": ["a"], "c": ["b"], "d": ["c"], "e": []}, [("b", "c", "a")]),
    ],
)
def test_circles(blockers: dict[str, list[str]], expected: list[tuple[str, ...]]) -> None:
    found = circles(blockers)
    assert [set(one) for one in found] == [set(one) for one in expected]
    for circle in found:
        for before, after in pairwise((*circle, circle[0])):
            assert before in blockers[after]


def test_a_circle_behind_a_circle_is_found_too() -> None:
    found = circles({"a": ["b"], "b": ["a"], "m": ["a"], "c": ["d", "m"], "d": ["c"]})
    assert sorted(map(sorted, found)) == [["a", "b"], ["c", "d"]]


def test_hostile_lists_are_read_in_no_time() -> None:
    names = [f"task-{number}" for number in range(1000)]
    everyone = [task(name, *names) for name in names[:300]]
    unknown = [task(f"u{number}", *(f"x{n}" for n in range(300))) for number in range(200)]
    began = time.process_time()
    found = problems(*everyone, *unknown)
    assert time.process_time() - began < 2
    assert len(found) == MAX_PROBLEMS + 1
    assert found[-1].message == "more problems are not shown"
