"""The tasks that a team has for a procedure."""

from __future__ import annotations

import pytest

from sequencer.assembly.prompts import builtin_texts
from sequencer.model.net.graph import Graph
from sequencer.model.step import Step
from sequencer.model.team import Task
from sequencer.workflows.builtin import PROCEDURES
from sequencer.workflows.teams.builders import BUILDERS, builder_for
from sequencer.workflows.teams.graphs import workflow_of
from sequencer.workflows.teams.options import builtin_roles, roles


def built(procedure: str, size: int = 3) -> tuple[Task, ...]:
    build = builder_for(procedure)
    assert build is not None
    return build(size)


def graph_of(procedure: str, size: int = 3) -> Graph:
    graph = workflow_of(procedure, built(procedure, size), roles(), size=size).graph
    assert graph is not None
    return graph


def steps_of(procedure: str) -> tuple[Step, ...]:
    return workflow_of(procedure, built(procedure), roles()).steps


def waits(procedure: str, size: int = 3) -> dict[str, tuple[str, ...]]:
    return {task.id: task.blocked_by for task in built(procedure, size)}


def test_three_procedures_can_be_shared_out() -> None:
    assert set(BUILDERS) == {"full-development", "debugger-full", "orchestrator-full"}
    assert set(BUILDERS) < set(PROCEDURES)


@pytest.mark.parametrize("name", sorted(set(PROCEDURES) - set(BUILDERS)))
def test_the_others_can_t(name: str) -> None:
    assert builder_for(name) is None


def test_full_development() -> None:
    assert waits("full-development") == {
        "research": (),
        "plan": (),
        "implement": ("research", "plan"),
        "verify": ("implement",),
        "changelog": ("implement",),
        "commit": ("verify", "changelog"),
        "pull-request": ("commit",),
        "summary": ("pull-request",),
    }


def test_full_development_is_the_same_for_every_size() -> None:
    assert built("full-development", 2) == built("full-development", 9)


@pytest.mark.parametrize(
    ("size", "hypotheses"),
    [(1, "ab"), (2, "ab"), (3, "ab"), (4, "abc"), (6, "abcde"), (9, "abcde")],
)
def test_the_debugger_has_as_many_hypotheses_as_hands(size: int, hypotheses: str) -> None:
    first = tuple(f"hypothesis-{letter}" for letter in hypotheses)
    assert waits("debugger-full", size) == {
        **dict.fromkeys(first, ()),
        "history": (),
        "fix": (*first, "history"),
        "verify": ("fix",),
        "commit": ("verify",),
        "summary": ("commit",),
    }


def test_each_hypothesis_is_another_one() -> None:
    found = [task for task in built("debugger-full", 6) if task.id.startswith("hypothesis")]
    assert len({task.description for task in found}) == len({task.subject for task in found}) == 5


def test_the_orchestrator_begins_with_a_lead_that_adds_sub_issues() -> None:
    decompose, summary = built("orchestrator-full")
    assert (decompose.id, decompose.role, decompose.adds) == ("decompose", "lead", "sub-issues")
    assert summary.blocked_by == ("decompose",)


@pytest.mark.parametrize("name", BUILDERS)
def test_each_is_a_graph_in_which_all_is_reached(name: str) -> None:
    graph = graph_of(name)
    assert graph.is_team
    assert graph.reachable == graph.by_id.keys()
    assert graph.back_edges == frozenset()
    assert graph.max_parallel == 3


@pytest.mark.parametrize("name", BUILDERS)
def test_each_ends_with_one_summary(name: str) -> None:
    graph = graph_of(name)
    assert [node.id for node in graph.nodes if not graph.outgoing[node.id]] == ["summary"]
    assert graph.by_id["summary"].task is not None
    assert graph.by_id["summary"].task.role == "summarizer"


@pytest.mark.parametrize("name", BUILDERS)
def test_every_task_says_what_is_done_while_it_runs(name: str) -> None:
    for task in built(name, 6):
        assert task.active_form, task.id
        assert task.description or "prompt" in task.step, task.id


@pytest.mark.parametrize("name", BUILDERS)
def test_every_prompt_comes_along(name: str) -> None:
    for step in steps_of(name):
        fixer = step.validation.fixer if step.validation else None
        for one in filter(None, (step, fixer)):
            named = {one.prompt, *one.added_system_prompts} - {None}
            assert named <= builtin_texts().keys(), one.name


@pytest.mark.parametrize("name", ["full-development", "debugger-full"])
def test_a_verification_has_a_fixer_and_three_judgements(name: str) -> None:
    (verify,) = [step for step in steps_of(name) if step.name == "verify"]
    assert verify.validation is not None
    assert verify.validation.fixer is not None
    assert (verify.validation.max_attempts, verify.validation.on_exhausted) == (3, "fail")
    assert verify.validation.fixer.added_system_prompts[0] == "team/implementer.md"


def test_only_who_builds_or_commits_writes() -> None:
    for name in BUILDERS:
        writing = {n.id for n in graph_of(name, 6).nodes if n.task is not None and n.task.writes}
        assert writing <= {"implement", "changelog", "fix", "commit", "pull-request"}


def test_a_researcher_has_the_tools_of_the_role_and_only_the_history_asks_git() -> None:
    reads = builtin_roles()["researcher"].step["tools"]
    for name in BUILDERS:
        tasks = {n.id: n.task for n in graph_of(name, 6).nodes if n.task is not None}
        for step in steps_of(name):
            if tasks[step.name].role == "researcher":
                more = {"bash": True} if step.name == "history" else {}
                assert step.tools == {**reads, **more}, step.name


def test_no_task_brings_what_a_team_can_t_have() -> None:
    for name in BUILDERS:
        assert not any(step.requires_approval for step in steps_of(name))
