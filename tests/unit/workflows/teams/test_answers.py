"""What a lead answers."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from pydantic import ValidationError

from sequencer.engine.judging import checked
from sequencer.model.outcome import Outcome, OutcomeStatus
from sequencer.model.step import Output, Step, Validation
from sequencer.model.team import STEP_FIELDS, Role, Task
from sequencer.workflows.teams.graphs import MOST, SCHEMAS, form_for, schema_for, workflow_of
from sequencer.workflows.teams.growth import (
    AddedTask,
    AnswerRefused,
    SubIssue,
    sub_issue_tasks,
    tasks_of_answer,
)
from sequencer.workflows.teams.options import roles
from sequencer.workflows.verdicts import ensure_schema

ONE = {"id": "a", "subject": "Do a", "description": "All of it"}
ISSUE = {"id": "api", "title": "The API", "description": "Three routes"}


def refusal(adds: Any, answer: object, **options: Any) -> str:
    with pytest.raises(AnswerRefused) as caught:
        tasks_of_answer(adds, answer, **options)
    return caught.value.message


def issues(*given: dict[str, Any], **options: Any) -> tuple[Task, ...]:
    return tasks_of_answer("sub-issues", {"sub_issues": list(given)}, **options)


def fits(adds: str, answer: str) -> bool:
    """Return whether the engine takes *answer* for the schema of *adds*."""
    step = Step(name="lead", output=Output(format="json", schema=SCHEMAS[adds]))
    return checked(step, Outcome(status=OutcomeStatus.OK, output=answer)).is_accepted


# --- schemas -----------------------------------------------------------------------------


@pytest.mark.parametrize("adds", list(SCHEMAS))
def test_the_schemas_are_some(adds: str) -> None:
    ensure_schema(SCHEMAS[adds], "here")


def test_the_schema_of_tasks_has_their_fields() -> None:
    item = SCHEMAS["tasks"]["properties"]["tasks"]["items"]
    assert set(item["properties"]) == set(AddedTask.model_fields)
    assert set(SCHEMAS["sub-issues"]["properties"]["sub_issues"]["items"]["properties"]) == {
        *SubIssue.model_fields,
        "dependsOn",
    }


def test_only_roles_that_there_are_can_be_named() -> None:
    schema = schema_for("tasks", {"verifier": 1, "builder": 2})
    ensure_schema(schema, "here")
    role = schema["properties"]["tasks"]["items"]["properties"]["role"]
    assert role == {"type": "string", "enum": ["builder", "verifier"]}
    assert schema != SCHEMAS["tasks"]
    # Where no role is, none is the answer's mistake.
    assert schema_for("tasks", ()) == SCHEMAS["tasks"]
    assert schema_for("sub-issues", ["builder"]) == SCHEMAS["sub-issues"]


@pytest.mark.parametrize("adds", ["tasks", "sub-issues"])
def test_the_form_in_words_fits_the_schema(adds: Literal["tasks", "sub-issues"]) -> None:
    text = form_for(adds, ["implementer", "builder"])
    begin, end = text.index("{"), text.rindex("}") + 1
    example = json.loads(text[begin:end].replace('"role": "…"', '"role": "builder"'))
    step = Step(name="lead", output=Output(format="json", schema=schema_for(adds, ["builder"])))
    answer = Outcome(status=OutcomeStatus.OK, output=json.dumps(example))
    assert checked(step, answer).is_accepted
    assert tasks_of_answer(adds, example)


def test_who_has_no_such_role_is_not_promised_one() -> None:
    assert form_for("tasks", ["builder"]).endswith("A role is one of: builder.")
    assert "role is" not in form_for("tasks", [])


@pytest.mark.parametrize(
    ("adds", "answer", "expected"),
    [
        ("tasks", '{"tasks": [{"id": "a", "subject": "s", "description": ""}]}', True),
        ("tasks", '{"tasks": []}', False),
        ("tasks", '{"tasks": [{"id": "a b", "subject": "s", "description": ""}]}', False),
        (
            "tasks",
            '{"tasks": [{"id": "a", "subject": "s", "description": "", "executor": "x"}]}',
            False,
        ),
        ("sub-issues", '{"sub_issues": [{"id": "a", "title": "t", "description": ""}]}', True),
        ("sub-issues", '{"tasks": []}', False),
        ("sub-issues", "I made some.", False),
    ],
)
def test_an_answer_is_checked_by_them(adds: str, answer: str, *, expected: bool) -> None:
    assert fits(adds, answer) is expected


# --- tasks -------------------------------------------------------------------------------


def test_an_answer_becomes_tasks() -> None:
    second = {**ONE, "id": "b", "blocked_by": ["a"], "role": "verifier", "weight": 2}
    second["active_form"] = "Doing b"
    found = tasks_of_answer("tasks", {"tasks": [ONE, second]})
    assert found == (Task.model_validate(ONE), Task.model_validate(second))
    assert [task.step for task in found] == [{}, {}]


@pytest.mark.parametrize(
    "field", sorted(STEP_FIELDS | {"writes", "worktree", "adds", "budget", "step", "name"})
)
def test_who_performs_it_and_how_is_not_a_lead_s_to_say(field: str) -> None:
    text = refusal("tasks", {"tasks": [{**ONE, field: "x"}]})
    assert f"the answer: tasks[0]: {field!r} is not for a lead to say" in text
    assert "known keys: active_form, blocked_by, description, id, role, subject, weight" in text


def test_all_that_is_wrong_is_told() -> None:
    text = refusal("tasks", {"tasks": [{**ONE, "id": "-"}, {"id": "b"}, {**ONE, "weight": 0}]})
    assert [line.split(": ")[1] for line in text.splitlines()[1:]] == [
        *("tasks[0].id", "tasks[1].subject", "tasks[2].weight")
    ]


@pytest.mark.parametrize("answer", [None, 3, "text", [], {}, {"tasks": []}, {"tasks": "a"}])
def test_answers_of_another_form(answer: object) -> None:
    assert refusal("tasks", answer).startswith("no task is added: the answer: ")


def test_too_many() -> None:
    listed = [{**ONE, "id": f"t{number}"} for number in range(MOST + 1)]
    assert "at most 200" in refusal("tasks", {"tasks": listed})
    assert len(tasks_of_answer("tasks", {"tasks": listed[1:]})) == MOST


# --- sub-issues --------------------------------------------------------------------------


def test_each_is_built_and_then_verified() -> None:
    built, verified = issues(ISSUE)
    assert (built.id, built.role, built.blocked_by) == ("impl-api", "implementer", ())
    assert (built.subject, built.description) == ("Implement: The API", "Three routes")
    assert built.active_form == "Implementing The API"
    assert (verified.id, verified.role) == ("verify-api", "verifier")
    assert verified.blocked_by == ("impl-api",)
    assert "Three routes" in verified.description


def test_a_verification_judges_as_its_role_does() -> None:
    assert issues(ISSUE)[1].step == {"prompt": "subroutines/verifications.md"}
    step = workflow_of("team", issues(ISSUE), roles()).steps[1]
    assert step.validation is not None
    assert step.validation.fixer is not None
    assert step.validation.max_attempts == 3
    assert step.validation.fixer.prompt == "subroutines/validation-fixer.md"


def test_a_project_changes_how_sub_issues_are_verified() -> None:
    options = {"verifier": Role.model_validate({"validation": {"max_attempts": 7}})}
    step = workflow_of("team", issues(ISSUE), roles(options)).steps[1]
    assert step.validation == Validation(max_attempts=7)


@pytest.mark.parametrize("chars", [1_048_540, 1_048_576])
def test_a_text_that_just_fits_is_cut_where_more_is_said_with_it(chars: int) -> None:
    text = "x" * (chars - 1) + "e"
    built, verified = issues({**ISSUE, "description": text})
    assert built.description == text
    assert len(verified.description) == 1_048_576
    assert verified.description.startswith("Judge whether")
    assert verified.description.endswith("x…")


def test_a_text_that_fits_with_that_is_whole() -> None:
    verified = issues({**ISSUE, "description": "x" * 1_048_000 + "e"})[1]
    assert verified.description.endswith("xe")


@pytest.mark.parametrize(
    ("one", "other"), [(["api"], ["api"]), (["api"], []), ([], ["api"]), (["api"], None)]
)
def test_both_spellings_may_say_the_same(one: list[str], other: list[str] | None) -> None:
    page = {**ISSUE, "id": "page", "depends_on": one, "dependsOn": other}
    assert issues(ISSUE, page)[2].blocked_by == ("verify-api",)
    if other is not None:
        assert fits("sub-issues", json.dumps({"sub_issues": [ISSUE, page]}))


def test_both_spellings_may_be_empty() -> None:
    assert issues({**ISSUE, "depends_on": [], "dependsOn": []})[0].blocked_by == ()


def test_spellings_that_differ_are_refused() -> None:
    page = {**ISSUE, "id": "page", "depends_on": ["api"], "dependsOn": ["b"]}
    text = refusal("sub-issues", {"sub_issues": [ISSUE, {**ISSUE, "id": "b"}, page]})
    assert "sub_issues[2]: 'depends_on' and 'dependsOn' differ; keep one of them" in text
    item = SCHEMAS["sub-issues"]["properties"]["sub_issues"]["items"]
    assert "equal to the other" in item["properties"]["dependsOn"]["description"]


@pytest.mark.parametrize("key", ["depends_on", "dependsOn"])
def test_one_that_depends_on_another_waits_until_that_is_verified(key: str) -> None:
    # By the ids that the answer has, whatever their order: not by their places.
    found = issues({**ISSUE, "id": "page", key: ["api"]}, ISSUE)
    assert [(task.id, task.blocked_by) for task in found] == [
        ("impl-page", ("verify-api",)),
        ("verify-page", ("impl-page",)),
        ("impl-api", ()),
        ("verify-api", ("impl-api",)),
    ]


def test_one_may_depend_on_one_that_was_added_before() -> None:
    late = {**ISSUE, "id": "page", "depends_on": ["api"]}
    found = issues(late, there=["plan", "impl-api", "verify-api"])
    assert found[0].blocked_by == ("verify-api",)
    text = refusal("sub-issues", {"sub_issues": [late]}, there=["plan", "impl-api"])
    assert "there is no sub-issue 'api' to wait for" in text


def test_an_unknown_one_is_told_with_the_nearest() -> None:
    answer = {"sub_issues": [ISSUE, {**ISSUE, "id": "page", "depends_on": ["apu"]}]}
    text = refusal("sub-issues", answer)
    assert "sub_issues[1].depends_on[0]: there is no sub-issue 'apu' to wait for" in text
    assert "did you mean 'api'?" in text


def test_a_circle_of_sub_issues_is_told_by_their_own_ids() -> None:
    first = {**ISSUE, "id": "a", "depends_on": ["b"]}
    second = {**ISSUE, "id": "b", "depends_on": ["a"]}
    assert "circle: a -> b -> a" in refusal("sub-issues", {"sub_issues": [first, second]})


def test_the_same_id_twice() -> None:
    text = refusal("sub-issues", {"sub_issues": [ISSUE, ISSUE]})
    assert "two tasks are called 'api'" in text


def test_ids_leave_room_for_what_is_put_before_them() -> None:
    assert issues({**ISSUE, "id": "a" * 70})[1].id == f"verify-{'a' * 70}"
    with pytest.raises(AnswerRefused):
        issues({**ISSUE, "id": "a" * 71})


def test_programs_make_sub_issues_too() -> None:
    made = [SubIssue(id="a", title="A"), SubIssue(id="b", title="B", depends_on=("a",))]
    assert sub_issue_tasks(made)[2].blocked_by == ("verify-a",)
    with pytest.raises(ValidationError):
        SubIssue(id="a b", title="A")
