from __future__ import annotations

import pytest

from sequencer.documents.keys import ConfigurationErrors, problems_of, raise_all
from sequencer.documents.reader import KeyPath
from sequencer.errors import ConfigurationError, UnknownName
from sequencer.model.fields import ValidationError
from sequencer.settings.schema import Schema
from sequencer.workflows.teams.entries import ListFile


def where(path: KeyPath) -> str:
    return f"file:{len(path)}"


def messages(raw: object) -> list[str]:
    with pytest.raises(ValidationError) as refused:
        Schema.model_validate(raw)
    return [str(problem.error) for problem in problems_of(refused.value, Schema, where)]


def test_several_problems_are_one_error_that_says_all() -> None:
    errors: list[ConfigurationError] = [
        ConfigurationError("one", where="f:1", hint="do this"),
        UnknownName("workflow", "x", ["y"]),
    ]
    with pytest.raises(ConfigurationErrors) as refused:
        raise_all(errors)
    assert list(refused.value.errors) == errors
    assert refused.value.exit_code == 2
    assert str(refused.value).splitlines() == [
        "f:1: one",
        "  do this",
        "unknown workflow 'x'",
        "  known workflows: y",
    ]


def test_messages_are_in_the_words_of_the_file() -> None:
    assert messages({"limits": {"max_steps": "x"}}) == [
        "file:2: limits.max_steps: expected a whole number, not 'x'"
    ]
    assert messages({"agent": {"roles": {"": "a"}}})[0].startswith("file:3: agent.roles.: ")
    assert messages({"workflows": {"w": {}}}) == ["file:3: workflows.w.steps: has to be there"]


def test_too_many_items_are_counted_once_and_nobody_hears_of_tuples() -> None:
    with pytest.raises(ValidationError) as refused:
        ListFile.model_validate({"tasks": [{"id": f"t{n}", "subject": "T"} for n in range(1002)]})
    (found,) = problems_of(refused.value, ListFile, where)
    assert str(found.error).endswith(": tasks: should have at most 1000 items, not 1002")


def test_a_long_value_is_not_repeated_and_a_strange_one_is_escaped() -> None:
    (long,) = messages({"limits": {"max_steps": "x" * 5_000}})
    assert long == "file:2: limits.max_steps: expected a whole number"
    (strange,) = messages({"limits": {"max_steps": "\x1b[2J"}})
    assert "\x1b" not in strange


def test_a_refused_step_does_not_make_its_list_too_short() -> None:
    raw = {"workflows": {"w": {"steps": [{"name": "a", "model": "-x"}]}}}
    (said,) = messages(raw)
    assert said.startswith("file:5: workflows.w.steps[0].model: a model's name is one printable")
    assert messages({"workflows": {"w": {"steps": []}}}) == [
        "file:3: workflows.w.steps: has to have at least one item"
    ]
