"""Tasks as a graph, and what is added to one."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from sequencer.documents.keys import ConfigurationErrors
from sequencer.errors import ConfigurationError
from sequencer.model.net.graph import Graph, Growth, NodeKind
from sequencer.model.step import Output, Step, Validation
from sequencer.model.team import Budget, Role, Task
from sequencer.model.workflow import Workflow, grown
from sequencer.workflows.registry import with_defaults
from sequencer.workflows.teams.graphs import BRIEF, growth_of, schema_for, workflow_of
from sequencer.workflows.teams.options import builtin_roles

ROLES = {
    "reader": Role.model_validate({"tools": {"edit": False}, "model": "small"}),
    "implementer": Role.model_validate(
        {"writes": True, "worktree": True, "max_turns": 9, "prompt": "implementing.md"}
    ),
}


def task(name: str, *blockers: str, **fields: Any) -> Task:
    return Task.model_validate(
        {"id": name, "subject": f"Do {name}", "blocked_by": blockers} | fields
    )


def made(*tasks: Task, **options: Any) -> Workflow:
    return workflow_of("team", tasks, ROLES, **options)


def graph_of(workflow: Workflow) -> Graph:
    assert workflow.graph is not None
    return workflow.graph


def edges(found: Graph | Growth) -> list[tuple[str, str]]:
    return [(edge.source, edge.target) for edge in found.edges]


def step_of(one: Task) -> Step:
    return made(one).steps[0]


def traits_of(one: Task) -> Any:
    return graph_of(made(one)).nodes[0].task


# --- the graph ---------------------------------------------------------------------------


def test_a_node_for_each_task_and_an_edge_from_each_blocker() -> None:
    workflow = made(task("c", "a", "b"), task("a"), task("b", "a"), size=2)
    graph = graph_of(workflow)
    assert (workflow.name, workflow.kind) == ("team", "graph")
    assert [node.id for node in graph.nodes] == ["c", "a", "b"]
    assert {node.kind for node in graph.nodes} == {NodeKind.AGENT}
    assert edges(graph) == [("a", "c"), ("b", "c"), ("a", "b")]
    assert graph.entries == ("a",)
    assert (graph.is_team, graph.max_parallel, graph.max_iterations) == (True, 2, 50)
    assert graph.back_edges == frozenset()


def test_without_a_size_nobody_but_the_processes_limits_it() -> None:
    assert graph_of(made(task("a"))).max_parallel is None


def test_several_tasks_may_begin() -> None:
    assert graph_of(made(task("a"), task("b"), task("c", "a"))).entries == ("a", "b")


def test_the_traits_of_a_task_are_kept_at_its_node() -> None:
    one = task(
        "a", role="implementer", description="Long", active_form="Doing", weight=3,
        budget={"max_tokens": 5},
    )  # fmt: skip
    node = graph_of(made(one)).nodes[0]
    assert node.label == "Do a"
    assert node.task is not None
    assert (node.task.role, node.task.description) == ("implementer", "Long")
    assert (node.task.active_form, node.task.weight) == ("Doing", 3)
    assert node.task.budget == Budget(max_tokens=5)


def test_the_blockers_are_kept_in_their_order() -> None:
    graph = graph_of(made(task("c", "b", "a"), task("a"), task("b")))
    assert graph.by_id["c"].task is not None
    assert graph.by_id["c"].task.blocked_by == ("b", "a")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (True, False)),
        ({"role": "reader"}, (False, False)),
        ({"role": "implementer"}, (True, True)),
        ({"role": "implementer", "writes": False, "worktree": False}, (False, False)),
        ({"role": "reader", "writes": True, "worktree": True}, (True, True)),
        ({"worktree": True}, (True, True)),
    ],
)
def test_what_a_task_writes(fields: dict[str, Any], expected: tuple[bool, bool]) -> None:
    traits = traits_of(task("a", **fields))
    assert (traits.writes, traits.worktree) == expected


# --- steps -------------------------------------------------------------------------------


def test_a_task_s_own_fields_beat_its_role_s() -> None:
    step = step_of(task("a", role="reader", model="large"))
    assert (step.model, step.tools) == ("large", {"edit": False})


def test_what_both_leave_out_is_for_the_defaults() -> None:
    step = step_of(task("a", role="reader", timeout_s=None))
    filled = with_defaults(step, {"timeout_s": 9, "max_turns": 3, "model": "default"})
    assert (filled.timeout_s, filled.max_turns, filled.model) == (None, 3, "small")


def test_it_is_known_which_fields_the_role_has_brought() -> None:
    assert traits_of(task("a", role="reader")).brought == ("model", "tools")
    assert traits_of(task("a", role="reader", model="large")).brought == ("tools",)
    assert traits_of(task("a", model="large")).brought == ()


def test_a_task_without_a_prompt_is_briefed() -> None:
    step = step_of(task("a", role="reader"))
    assert (step.text, step.prompt) == (BRIEF, None)
    assert "{{" not in BRIEF


def test_a_role_may_bring_the_prompt() -> None:
    step = step_of(task("a", role="implementer"))
    assert (step.prompt, step.text) == ("implementing.md", None)
    assert traits_of(task("a", role="implementer")).brought == ("max_turns", "prompt")


@pytest.mark.parametrize("own", [{"prompt": "mine.md"}, {"text": "Do it"}])
def test_a_task_s_prompt_beats_its_role_s(own: dict[str, str]) -> None:
    step = step_of(task("a", role="implementer", **own))
    assert (step.prompt, step.text) == (own.get("prompt"), own.get("text"))


def test_a_fixer_works_as_an_implementer() -> None:
    fixer = {"name": "mend", "text": "Mend it"}
    validation = {"fixer": fixer, "max_attempts": 2}
    one = task("check", role="reader", validation=validation)
    found = step_of(one).validation
    assert found is not None
    assert found.fixer is not None
    assert found.max_attempts == 2
    assert (found.fixer.name, found.fixer.text, found.fixer.max_turns) == ("mend", "Mend it", 9)
    assert traits_of(one).brought == ("model", "tools", "fixer.max_turns")


def test_a_fixer_s_own_fields_stay() -> None:
    fixer = {"name": "mend", "max_turns": 1, "prompt": "mend.md"}
    found = step_of(task("check", validation={"fixer": fixer})).validation
    assert found is not None
    assert found.fixer == Step.model_validate(fixer)


def test_a_judgement_without_a_fixer_stays_one() -> None:
    found = step_of(task("check", validation={"max_attempts": 2})).validation
    assert found is not None
    assert found.fixer is None


JUDGES = {**ROLES, "judge": Role.model_validate(
    {"validation": {"fixer": {"name": "mend", "text": "Mend"}, "max_attempts": 3}, "worktree": True}
)}  # fmt: skip


def judge(**fields: Any) -> tuple[Step, Any]:
    found = workflow_of("team", [task("check", role="judge", **fields)], JUDGES)
    return found.steps[0], graph_of(found).nodes[0].task


def test_a_role_may_bring_the_judging() -> None:
    step, traits = judge()
    assert step.validation is not None
    assert step.validation.max_attempts == 3
    assert step.validation.fixer is not None
    # As any fixer, it works as an implementer does.
    assert (step.validation.fixer.text, step.validation.fixer.max_turns) == ("Mend", 9)
    assert traits.brought == ("validation", "fixer.max_turns")


def test_a_task_s_own_judging_beats_its_role_s() -> None:
    step, traits = judge(validation={"max_attempts": 1, "fixer": None})
    assert step.validation == Validation(max_attempts=1)
    assert traits.brought == ()


def test_null_takes_the_judging_of_a_role_away() -> None:
    step, traits = judge(validation=None)
    assert step.validation is None
    assert traits.brought == ()


def test_who_adds_tasks_does_not_judge_by_its_role() -> None:
    step, traits = judge(adds="tasks")
    assert step.validation is None
    assert traits.brought == ()


def test_who_only_answers_gets_no_worktree_of_its_role() -> None:
    assert judge()[1].worktree is False
    assert judge(adds="tasks")[1].worktree is False
    assert judge(adds="tasks", validation=None)[1].worktree is False
    assert judge(validation=None)[1].worktree is True
    assert traits_of(task("a", role="implementer", adds="tasks")).worktree is False
    assert traits_of(task("a", role="implementer", validation={})).worktree is False


def test_who_only_answers_may_not_be_given_one() -> None:
    with pytest.raises(ConfigurationError) as caught:
        made(task("a", adds="tasks", worktree=True))
    assert caught.value.where == "tasks[0].worktree"


@pytest.mark.parametrize("adds", ["tasks", "sub-issues"])
def test_who_adds_tasks_has_to_answer_in_their_form(adds: Literal["tasks", "sub-issues"]) -> None:
    step = step_of(task("lead", adds=adds, output={"key": "plan"}))
    assert step.output == Output(format="json", schema=schema_for(adds, ROLES), key="plan")
    assert traits_of(task("lead", adds=adds)).adds == adds


def test_who_adds_tasks_is_told_their_form_and_the_roles_that_there_are() -> None:
    told = traits_of(task("lead", adds="tasks", description="Cut it.")).description
    assert told.startswith("Cut it.\n\nAnswer with one JSON object, and nothing else")
    assert '{"tasks": [{"id"' in told
    assert "one of: implementer, reader. Without one it is implementer." in told
    parts = traits_of(task("lead", adds="sub-issues")).description
    assert '{"sub_issues": [{"id"' in parts
    assert "role" not in parts
    assert traits_of(task("other", description=" As it is ")).description == " As it is "


# --- refusals ----------------------------------------------------------------------------


def test_one_problem_is_raised_as_it_is_with_its_place() -> None:
    with pytest.raises(ConfigurationError) as caught:
        made(task("a", role="nobody"))
    assert caught.value.where == "tasks[0].role"
    assert caught.value.message == "there is no role 'nobody'"


def test_several_are_raised_together() -> None:
    with pytest.raises(ConfigurationErrors) as caught:
        made(task("a", "b"), task("b", "a", "x"), max_tasks=1)
    assert [error.where for error in caught.value.errors] == [
        *("tasks", "tasks[0].blocked_by", "tasks[1].blocked_by[1]")
    ]
    assert "a -> b -> a" in str(caught.value)


def test_where_a_path_stands_is_the_caller_s_to_say() -> None:
    with pytest.raises(ConfigurationError) as caught:
        made(task("a", "x"), locate=lambda path: f"here {path}")
    assert caught.value.where == "here (0, 'blocked_by', 0)"


# --- growing -----------------------------------------------------------------------------

PLAN = (task("plan", adds="tasks"), task("other"), task("end", "plan", "other"))


def growth(*tasks: Task, base: Workflow | None = None, **options: Any) -> Growth:
    graph = graph_of(base or made(*PLAN))
    return growth_of(graph, "plan", tasks, ROLES, **options)


def refused(*tasks: Task, **options: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        growth(*tasks, **options)
    return str(caught.value)


def test_new_tasks_begin_behind_who_adds_them_and_what_waited_for_it_waits_for_them() -> None:
    found = growth(task("a"), task("b", "a"), task("c"))
    assert [node.id for node in found.nodes] == ["a", "b", "c"]
    assert [step.name for step in found.steps] == ["a", "b", "c"]
    assert edges(found) == [
        *(("plan", "a"), ("a", "b"), ("plan", "c")),
        *(("b", "end"), ("c", "end")),
    ]
    assert found.added_by == "plan"
    # In whatever order they are told.
    assert growth(task("b", "a"), task("a")).added_by == "plan"


def test_a_grown_workflow_is_one() -> None:
    base = made(*PLAN)
    found = grown(base, [growth(task("a"), task("b", "a"), base=base)])
    graph = graph_of(found)
    assert [step.name for step in found.steps] == ["plan", "other", "end", "a", "b"]
    assert graph.back_edges == frozenset()
    assert graph.urgency["a"] < graph.urgency["b"] < graph.urgency["end"]


def test_new_tasks_may_wait_for_old_ones() -> None:
    found = growth(task("a", "other"))
    # Behind who adds it as well: the old one may be done, and lets nobody pass any more.
    assert edges(found) == [("plan", "a"), ("other", "a"), ("a", "end")]
    assert found.nodes[0].task is not None
    assert found.nodes[0].task.blocked_by == ("other",)


def test_who_adds_them_may_be_named_as_what_they_wait_for() -> None:
    assert edges(growth(task("a", "plan"))) == [("plan", "a"), ("a", "end")]


def test_who_waits_for_nobody_waits_for_who_adds_it() -> None:
    (node,) = growth(task("a")).nodes
    assert node.task is not None
    assert node.task.blocked_by == ("plan",)


def test_a_task_behind_which_nothing_is_may_add_some() -> None:
    base = made(task("plan", adds="tasks"))
    assert edges(growth(task("a"), base=base)) == [("plan", "a")]


def test_a_second_growth_stands_on_the_first() -> None:
    base = made(*PLAN)
    first = grown(base, [growth(task("lead", adds="tasks"), base=base)])
    second = growth_of(graph_of(first), "lead", [task("late")], ROLES)
    assert edges(second) == [("lead", "late"), ("late", "end")]


def test_roles_reach_new_tasks() -> None:
    found = growth(task("a", role="reader"))
    assert found.steps[0].model == "small"
    assert found.nodes[0].task is not None
    assert found.nodes[0].task.brought == ("model", "tools")


def test_ids_of_the_run_can_t_be_used_again() -> None:
    assert "the run has a task 'end' already" in refused(task("end"))


def test_waiting_for_what_waits_for_who_adds_is_a_circle() -> None:
    text = refused(task("a", "end"))
    assert "a -> end -> a" in text
    assert "tasks[0].blocked_by" in text


def test_a_circle_among_new_tasks() -> None:
    assert "a -> b -> a" in refused(task("a", "b"), task("b", "a"))


def test_a_growth_counts_what_is_there() -> None:
    assert growth(task("a"), max_tasks=4).nodes
    assert "5 tasks, 3 of them there; at most 4" in refused(task("a"), task("b"), max_tasks=4)


def test_nothing_is_no_growth() -> None:
    assert "there is no task in it" in refused()


def test_who_says_how_often_still_has_its_work_mended() -> None:
    found = {
        name: workflow_of("w", [task(name, role="verifier", validation=own)], builtin_roles())
        .steps_by_name[name]
        .validation
        for name, own in {"a": {}, "b": {"max_attempts": 5}, "c": {"fixer": None}}.items()
    }
    assert found["a"] is not None
    assert found["a"].fixer is not None
    assert found["b"] is not None
    assert (found["b"].max_attempts, found["b"].fixer is None) == (5, False)
    assert found["c"] is not None
    assert found["c"].fixer is None
