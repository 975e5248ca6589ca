"""What a lead answers, what is added to the run, and what is told where it is refused."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest

from sequencer.engine.records import check_answer
from sequencer.model.graph.graph import TaskExpansion
from sequencer.model.outcome import Outcome, OutcomeStatus
from sequencer.model.step import Output, Step
from sequencer.model.workflow import Workflow
from sequencer.plugins.teams.expansion import AnswerRefused, TeamExpander, tasks_of_answer
from sequencer.plugins.teams.graphs import MOST, build_task_workflow, form_for, schema_for
from sequencer.plugins.teams.options import merge_roles
from sequencer.plugins.teams.team import STEP_FIELDS, Role, Task

ONE = {"id": "a", "subject": "Do a", "description": "All of it"}
ISSUE = {"id": "api", "title": "The API", "description": "Three routes"}
PAGE = {**ISSUE, "id": "page"}
LOCKED = {"executor": "locked", "writes": True, "worktree": True, "tools": {"bash": False}}
ROLES = merge_roles({"implementer": Role.model_validate(LOCKED)})


def refusal(adds: Any, answer: object, **options: Any) -> str:
    with pytest.raises(AnswerRefused) as caught:
        tasks_of_answer(adds, answer, **options)
    assert caught.value.message.startswith("no task is added: ")
    return caught.value.message


def issues(*given: dict[str, Any], **options: Any) -> tuple[Task, ...]:
    return tasks_of_answer("sub-issues", {"sub_issues": list(given)}, **options)


def fits(adds: Any, answer: str, known: Any = ()) -> bool:
    """Return whether the engine takes *answer* for the schema of *adds*."""
    step = Step(name="lead", output=Output(format="json", schema=schema_for(adds, known)))
    return check_answer(step, Outcome(status=OutcomeStatus.OK, output=answer)).is_accepted


# --- schemas -----------------------------------------------------------------------------


@pytest.mark.parametrize("adds", ["tasks", "sub-issues"])
def test_the_described_form_matches_the_schema(adds: Literal["tasks", "sub-issues"]) -> None:
    text = form_for(adds, ["implementer", "builder"])
    begin, end = text.index("{"), text.rindex("}") + 1
    example = text[begin:end].replace('"role": "…"', '"role": "builder"')
    assert fits(adds, example, ["builder"])
    assert tasks_of_answer(adds, json.loads(example))
    assert form_for("tasks", ["builder"]).endswith("A role is one of: builder.")
    assert "role is" not in form_for("tasks", [])


# --- tasks -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "field", sorted(STEP_FIELDS | {"writes", "worktree", "adds", "budget", "step", "name"})
)
def test_a_lead_cannot_choose_who_performs_a_task_or_how(field: str) -> None:
    text = refusal("tasks", {"tasks": [{**ONE, field: "x"}]})
    assert f"the answer: tasks[0]: {field!r} is not a key that a lead can set" in text
    assert "known keys: active_form, blocked_by, description, id, role, subject, weight" in text


def test_all_problems_of_an_answer_are_reported() -> None:
    text = refusal("tasks", {"tasks": [{**ONE, "id": "-"}, {"id": "b"}, {**ONE, "weight": 0}]})
    assert [line.split(": ")[1] for line in text.splitlines()[1:]] == [
        *("tasks[0].id", "tasks[1].subject", "tasks[2].weight")
    ]
    wrong: list[object] = [None, 3, "text", [], {}, {"tasks": []}, {"tasks": "a"}]
    for answer in wrong:
        assert refusal("tasks", answer).startswith("no task is added: the answer: ")
    listed = [{**ONE, "id": f"t{number}"} for number in range(MOST + 1)]
    assert "at most 200" in refusal("tasks", {"tasks": listed})
    assert len(tasks_of_answer("tasks", {"tasks": listed[1:]})) == MOST


# --- sub-issues --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chars", "end"), [(1_048_576, "x…"), (1_048_540, "x…"), (1_048_000, "xe")]
)
def test_a_text_that_just_fits_is_cut_where_more_text_is_added(chars: int, end: str) -> None:
    text = "x" * (chars - 1) + "e"
    built, verified = issues({**ISSUE, "description": text})
    assert built.description == text
    assert len(verified.description) <= 1_048_576
    assert verified.description.startswith("Judge whether")
    assert verified.description.endswith(end)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"depends_on": ["api"]}, ("verify-api",)),
        ({"dependsOn": ["api"]}, ("verify-api",)),
        ({"depends_on": ["api"], "dependsOn": ["api"]}, ("verify-api",)),
        ({"depends_on": ["api"], "dependsOn": []}, ("verify-api",)),
        ({"depends_on": [], "dependsOn": ["api"]}, ("verify-api",)),
        ({"depends_on": ["api"], "dependsOn": None}, ("verify-api",)),
        ({"depends_on": [], "dependsOn": []}, ()),
    ],
)
def test_a_sub_issue_waits_until_its_dependencies_are_verified(
    said: dict[str, Any], expected: tuple[str, ...]
) -> None:
    # By the ids that the answer has, whatever their order: not by their places.
    assert [(task.id, task.blocked_by) for task in issues({**PAGE, **said}, ISSUE)] == [
        ("impl-page", expected),
        ("verify-page", ("impl-page",)),
        ("impl-api", ()),
        ("verify-api", ("impl-api",)),
    ]


@pytest.mark.parametrize(
    ("given", "there", "said"),
    [
        (
            [{**PAGE, "depends_on": ["api"], "dependsOn": ["b"]}],
            [],
            "sub_issues[0]: 'depends_on' and 'dependsOn' differ; keep one of them",
        ),
        (
            [ISSUE, {**PAGE, "depends_on": ["apu"]}],
            [],
            "depends_on[0]: there is no sub-issue 'apu' to wait for (did you mean 'api'?",
        ),
        ([{**PAGE, "depends_on": ["api"]}], ["impl-api"], "there is no sub-issue 'api'"),
        (
            [{**ISSUE, "depends_on": ["page"]}, {**PAGE, "depends_on": ["api"]}],
            [],
            "circle: api -> page -> api",
        ),
        ([ISSUE, ISSUE], [], "two tasks are called 'api'"),
        ([{**ISSUE, "id": "a" * 71}], [], "sub_issues[0].id"),
    ],
)
def test_invalid_sub_issues_are_refused(given: Any, there: list[str], said: str) -> None:
    assert said in refusal("sub-issues", {"sub_issues": given}, existing=there)


# --- what becomes of it ------------------------------------------------------------------


def grown(
    *tasks: dict[str, Any], known: dict[str, Role] | None = None, agent: str | None = None
) -> TaskExpansion:
    known = ROLES if known is None else known
    lead = {"id": "lead", "subject": "Cut it", "adds": "tasks"}
    last = {"id": "end", "subject": "Sum up", "blocked_by": ["lead"]}
    team: Workflow = build_task_workflow(
        "team", [Task.model_validate(o) for o in (lead, last)], known
    )
    found = TeamExpander(known, agent=agent).expand_answer(
        team, "lead", json.dumps({"tasks": tasks})
    )
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("task", "known", "expected"),
    [
        # Who leaves the role out gets nobody around it.
        (ONE, None, ("implementer", True, "locked")),
        ({**ONE, "role": "researcher"}, None, ("researcher", False, "mine")),
        # Where nobody implements there is no role to give.
        (ONE, {"reader": Role()}, (None, False, "mine")),
    ],
)
def test_a_new_task_gets_its_role(
    task: dict[str, Any], known: dict[str, Role] | None, expected: tuple[object, ...]
) -> None:
    found = grown(task, known=known, agent="mine")
    (node,), (step,) = found.nodes, found.steps
    assert node.task is not None
    assert (node.task.role, node.task.worktree, step.agent) == expected


@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        ([{"role": "tester"}], ["tasks[0].role", "'tester'", "there are: ", "verifier"]),
        ([{"blocked_by": ["ende"]}], ["tasks[0].blocked_by[0]", "did you mean 'end'?"]),
        (
            [{}, {"id": "b", "blocked_by": ["c"]}, {"id": "c", "blocked_by": ["b"]}],
            ["tasks[1].blocked_by", "b -> c -> b", "remove one of them"],
        ),
        ([{"id": "end"}], ["tasks[0].id", "the run has a task 'end' already"]),
        ([{"role": "x"}, {}], ["tasks[0].role", "tasks[1].id", "two tasks"]),
    ],
)
def test_a_refusal_names_the_place_and_the_reason(
    tasks: list[dict[str, Any]], said: list[str]
) -> None:
    with pytest.raises(AnswerRefused) as caught:
        grown(*({**ONE, **one} for one in tasks))
    text = caught.value.message
    assert text.startswith("no task is added: ")
    assert [part for part in said if part not in text] == []


def test_a_refusal_quotes_no_secret_of_an_answer() -> None:
    lead = Task.model_validate({"id": "lead", "subject": "Cut it", "adds": "tasks"})
    said = json.dumps({"tasks": [{**ONE, "role": 'se"cret'}]})
    expander = TeamExpander(ROLES, redact=lambda text: text.replace('se"cret', "***"))
    with pytest.raises(AnswerRefused) as caught:
        expander.expand_answer(build_task_workflow("team", [lead], ROLES), "lead", said)
    assert "***" in caught.value.message
    assert 'se"cret' not in caught.value.message
