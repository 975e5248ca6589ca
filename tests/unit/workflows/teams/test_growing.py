"""What a lead's answer adds: in which role, and what is told where it is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sequencer.model.net.graph import Growth
from sequencer.model.team import Role, Task
from sequencer.model.workflow import Workflow
from sequencer.workflows.teams.graphs import workflow_of
from sequencer.workflows.teams.growth import AnswerRefused, TeamGrower
from sequencer.workflows.teams.options import roles

LOCKED = {
    "implementer": Role.model_validate(
        {"executor": "locked", "writes": True, "worktree": True, "tools": {"bash": False}}
    )
}
ROLES = roles(LOCKED)


def team(adds: str = "tasks", known: dict[str, Role] | None = None) -> Workflow:
    lead = {"id": "lead", "subject": "Cut it", "adds": adds}
    last = {"id": "end", "subject": "Sum up", "blocked_by": ["lead"]}
    tasks = [Task.model_validate(one) for one in (lead, last)]
    return workflow_of("team", tasks, ROLES if known is None else known)


def one(name: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "subject": f"Do {name}", "description": "All of it", **more}


def grown(*tasks: dict[str, Any], known: dict[str, Role] | None = None) -> Growth:
    known = ROLES if known is None else known
    grower = TeamGrower(known)
    found = grower.of_answer(team(known=known), "lead", json.dumps({"tasks": tasks}))
    assert found is not None
    return found


def refusal(*tasks: dict[str, Any]) -> str:
    with pytest.raises(AnswerRefused) as caught:
        grown(*tasks)
    return caught.value.message


def test_a_lead_that_leaves_the_role_out_gets_nobody_around_it() -> None:
    found = grown(one("a"), one("b", blocked_by=["a"]))
    for node, step in zip(found.nodes, found.steps, strict=True):
        assert node.task is not None
        assert (node.task.role, node.task.worktree) == ("implementer", True)
        assert (step.executor, step.tools) == ("locked", {"bash": False})


def test_a_role_that_was_named_stays() -> None:
    (node,) = grown(one("a", role="researcher")).nodes
    assert node.task is not None
    assert (node.task.role, node.task.writes) == ("researcher", False)


def test_a_list_s_author_may_do_without_a_role() -> None:
    graph = team().graph
    assert graph is not None
    assert [node.task.role for node in graph.nodes if node.task] == [None, None]


def test_where_nobody_implements_there_is_no_role_to_give() -> None:
    (node,) = grown(one("a"), known={"reader": Role()}).nodes
    assert node.task is not None
    assert node.task.role is None


def test_sub_issues_have_the_roles_that_they_always_have() -> None:
    answer = {"sub_issues": [{"id": "api", "title": "API", "description": "x"}]}
    found = TeamGrower(ROLES).of_answer(team("sub-issues"), "lead", json.dumps(answer))
    assert found is not None
    assert [node.task.role for node in found.nodes if node.task] == ["implementer", "verifier"]


@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        ([one("a", role="tester")], ["tasks[0].role", "'tester'", "there are: ", "verifier"]),
        ([one("a", blocked_by=["ende"])], ["tasks[0].blocked_by[0]", "did you mean 'end'?"]),
        (
            [one("a"), one("b", blocked_by=["c"]), one("c", blocked_by=["b"])],
            ["tasks[1].blocked_by", "b -> c -> b", "take one of them away"],
        ),
        ([one("end")], ["tasks[0].id", "the run has a task 'end' already"]),
        ([one("a", role="x"), one("a")], ["tasks[0].role", "tasks[1].id", "two tasks"]),
    ],
)
def test_a_refusal_says_where_and_what_would_do(
    tasks: list[dict[str, Any]], said: list[str]
) -> None:
    text = refusal(*tasks)
    assert text.startswith("no task is added: ")
    assert [part for part in said if part not in text] == []
