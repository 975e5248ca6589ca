"""How a task is written."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from sequencer.documents.keys import known_keys
from sequencer.model.step import Step
from sequencer.model.team import MAX_TASKS, STEP_FIELDS, Budget, Task
from sequencer.workflows.teams.entries import ListFile, TaskEntry

LEAST: dict[str, Any] = {"id": "a", "subject": "Do it"}


def entry(**fields: Any) -> TaskEntry:
    return TaskEntry.model_validate({**LEAST, **fields})


def refusal(**fields: Any) -> tuple[tuple[int | str, ...], str]:
    with pytest.raises(ValidationError) as caught:
        entry(**fields)
    (found,) = caught.value.errors()
    return found["loc"], found["msg"]


def test_an_id_and_a_subject_are_enough() -> None:
    assert entry().as_task() == Task(id="a", subject="Do it")


def test_the_keys_are_a_task_s_and_a_step_s() -> None:
    # The entry's keys are what errors list and what the reference names.
    assert set(known_keys(TaskEntry, ())) == (set(Task.model_fields) - {"step"}) | STEP_FIELDS


def test_defaults_are_the_same_in_both() -> None:
    for name, field in Task.model_fields.items():
        if name != "step" and not field.is_required():
            assert TaskEntry.model_fields[name].get_default() == field.get_default(), name


def test_all_fields_of_its_own() -> None:
    given = {
        "description": "Long",
        "active_form": "Doing it",
        "blocked_by": ["b", "c"],
        "role": "verifier",
        "weight": 2.5,
        "writes": True,
        "worktree": False,
        "adds": "tasks",
        "budget": {"max_tokens": 9},
    }
    made = entry(**given).as_task()
    assert made == Task.model_validate({**LEAST, **given})
    assert made.budget == Budget(max_tokens=9)
    assert made.step == {}


def test_step_fields_stand_beside_them() -> None:
    made = entry(model="opus", timeout_s=9, tools={"bash": False}, prompt="x.md").as_task()
    assert made.step == {
        "model": "opus",
        "timeout_s": 9,
        "tools": {"bash": False},
        "prompt": "x.md",
    }


def test_only_what_was_written_is_the_task_s_own() -> None:
    # What is left out is for the role and the project's defaults to say.
    assert entry(timeout_s=None).as_task().step == {"timeout_s": None}
    assert entry(retry={"max_attempts": 3}).as_task().step == {"retry": {"max_attempts": 3}}


def test_a_schema_and_a_fixer_come_through() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    output = {"format": "json", "schema": schema}
    fixer = {"name": "mend", "output": output}
    step = entry(output=output, validation={"fixer": fixer, "max_attempts": 2}).as_task().step
    made = Step.model_validate({"name": "a", **step})
    assert made.output is not None
    assert made.output.json_schema == schema
    assert made.validation is not None
    assert made.validation.fixer == Step.model_validate(fixer)
    assert made.validation.max_attempts == 2


@pytest.mark.parametrize(
    ("fixer", "name"), [({}, "fix"), ({"text": "Mend it"}, "fix"), ({"name": "mend"}, "mend")]
)
def test_a_fixer_needs_no_name(fixer: dict[str, Any], name: str) -> None:
    step = entry(validation={"fixer": fixer, "max_attempts": 2}).as_task().step
    assert step == {"validation": {"fixer": {**fixer, "name": name}, "max_attempts": 2}}


@pytest.mark.parametrize("given", [{"max_attempts": 2}, {"fixer": None}, None])
def test_a_judgement_without_a_fixer_gets_none(given: object) -> None:
    assert entry(validation=given).as_task().step == {"validation": given}


def test_a_mistake_in_a_fixer_without_a_name_is_told_at_its_place() -> None:
    assert refusal(validation={"fixer": "mend"})[0] == ("validation", "fixer")
    assert refusal(validation="yes")[0] == ("validation",)
    assert refusal(validation={"fixer": {"timeout_s": 0}})[0] == (
        *("validation", "fixer", "timeout_s"),
    )


@pytest.mark.parametrize("written", ["b, c", "b,c", " b ,c,", ["b", "c"]])
def test_blockers_may_be_written_with_commas(written: object) -> None:
    assert entry(blocked_by=written).as_task().blocked_by == ("b", "c")


def test_numbers_are_ids_as_they_are_written() -> None:
    assert entry(id=1, blocked_by=[2, "c"]).as_task().blocked_by == ("2", "c")
    assert entry(id=1).as_task().id == "1"
    # `blocked_by: 1` on a Markdown page.
    assert entry(blocked_by=1).as_task().blocked_by == ("1",)


@pytest.mark.parametrize("blockers", [1.5, [1.5]])
def test_a_fraction_is_refused_as_an_id_and_not_as_a_list(blockers: object) -> None:
    assert refusal(blocked_by=blockers)[0] == ("blocked_by", 0)


@pytest.mark.parametrize("wrong", [True, {"a": 1}, None])
def test_blockers_that_are_no_list(wrong: object) -> None:
    assert refusal(blocked_by=wrong)[0] == ("blocked_by",)


@pytest.mark.parametrize("name", ["a b", "-a", "a/b", "ä"])
def test_an_id_is_refused_in_words(name: str) -> None:
    assert "made of letters, digits" in refusal(id=name)[1]


@pytest.mark.parametrize("name", ["a b", "-a", "a/b", "", "a" * 81, "ä", "a\n", True, None])
def test_ids_that_could_not_be_branches(name: object) -> None:
    assert refusal(id=name)[0] == ("id",)


@pytest.mark.parametrize(
    ("field", "value", "path"),
    [
        ("subject", "", ("subject",)),
        ("modle", "x", ("modle",)),
        ("timeout_s", 0, ("timeout_s",)),
        ("weight", 0, ("weight",)),
        ("weight", float("inf"), ("weight",)),
        ("adds", "everything", ("adds",)),
        ("tools", {"hammer": True}, ("tools", "hammer", "[key]")),
        ("retry", {"max_attempts": 0}, ("retry", "max_attempts")),
        ("budget", {"max_cost_usd": -1}, ("budget", "max_cost_usd")),
        ("blocked_by", ["a b"], ("blocked_by", 0)),
    ],
)
def test_a_mistake_is_told_at_its_place(
    field: str, value: object, path: tuple[object, ...]
) -> None:
    assert refusal(**{field: value})[0] == path


def test_a_task_has_no_name_and_no_gate() -> None:
    assert refusal(name="x") == (("name",), "Value error, a task has an id instead")
    for field in ("requires_approval", "approval"):
        assert refusal(**{field: None})[1].endswith("a flowchart can")


def test_a_prompt_and_a_text_are_one_too_many() -> None:
    assert "not both" in refusal(prompt="a.md", text="Do")[1]


def test_a_file_has_tasks_and_says_how_many_at_once() -> None:
    made = ListFile.model_validate({"title": "T", "size": 2, "tasks": [LEAST]})
    assert (made.title, made.size, made.as_tasks()) == ("T", 2, (Task.model_validate(LEAST),))


@pytest.mark.parametrize("value", [{}, {"tasks": None}, {"size": 2}])
def test_a_file_without_tasks(value: object) -> None:
    with pytest.raises(ValidationError, match="there is no task in it"):
        ListFile.model_validate(value)


@pytest.mark.parametrize("size", [0, -1, 1001, "2", 1.5, True])
def test_sizes_that_are_none(size: object) -> None:
    with pytest.raises(ValidationError, match="size"):
        ListFile.model_validate({"size": size, "tasks": [LEAST]})


def test_a_file_has_at_most_so_many_tasks() -> None:
    listed = [{**LEAST, "id": f"t{number}"} for number in range(MAX_TASKS + 1)]
    with pytest.raises(ValidationError, match="at most 1000"):
        ListFile.model_validate({"tasks": listed})
    assert len(ListFile.model_validate({"tasks": listed[1:]}).tasks) == MAX_TASKS
