from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequencer.errors import UnknownName
from sequencer.frozen.fields import ValidationError
from sequencer.model.step import Approval, Step
from sequencer.model.workflow import Review, Workflow
from sequencer.workflows.definitions import Extension, KeyPath, LocatedError, WorkflowChanges
from sequencer.workflows.registry import builtin_procedure

BASE = builtin_procedure("full-development")
DEBUGGER = builtin_procedure("debugger-full")
CYCLE = Workflow(
    "cycle",
    (Step(name="plan"), Step(name="build")),
    Review(every=3, step=Step(name="look", prompt="look.md")),
)


def locate(path: KeyPath) -> str:
    return f"at {'/'.join(map(str, path))}"


def extending(base: Workflow, **changes: Any) -> Extension:
    written = {"extends": base.name, **changes}
    return Extension(base, WorkflowChanges.model_validate(written), locate)


def extended(base: Workflow, **changes: Any) -> Workflow:
    extension = extending(base, **changes)
    made = extension.build_workflow("own")
    assert extension.problems == []
    assert made is not None
    return made


def problems(base: Workflow, **changes: Any) -> list[LocatedError]:
    extension = extending(base, **changes)
    assert extension.build_workflow("own") is None
    assert extension.problems
    return extension.problems


def names(workflow: Workflow) -> list[str]:
    return [step.name for step in workflow.steps]


def step_of(workflow: Workflow, name: str) -> Step:
    return next(step for step in workflow.every_step if step.name == name)


def test_a_section_of_a_step_is_changed_key_by_key() -> None:
    made = extended(
        DEBUGGER,
        replace={
            "get-approval": {"approval": {"timeout_s": 3600}},
            "verifications": {"validation": {"max_attempts": 2}},
        },
    )
    approval = Approval(timeout_s=3600, feedback_to="debugger-reproduction")
    assert step_of(made, "get-approval").approval == approval
    validation = step_of(made, "verifications").validation
    assert validation is not None
    assert (validation.max_attempts, validation.on_exhausted) == (2, "fail")
    assert validation.fixer == step_of(DEBUGGER, "validation-fixer")


def test_a_fixer_and_a_review_can_be_changed_by_name() -> None:
    made = extended(BASE, replace={"validation-fixer": {"model": "small"}})
    assert step_of(made, "validation-fixer").model == "small"
    assert step_of(made, "validation-fixer").prompt == "subroutines/validation-fixer.md"
    validation = step_of(made, "verifications").validation
    assert validation is not None
    assert validation.max_attempts == 4
    reviewed = extended(CYCLE, replace={"look": {"model": "large"}})
    assert reviewed.review is not None
    assert (reviewed.review.every, reviewed.review.step.model) == (3, "large")
    assert reviewed.review.step.prompt == "look.md"


@pytest.mark.parametrize(
    ("changes", "path", "known"),
    [
        ({"replace": {"nope": {}}}, ("replace", "nope"), "validation-fixer"),
        ({"before": {"nope": ["a"]}}, ("before", "nope"), "git-gh"),
        ({"after": {"nope": ["a"]}}, ("after", "nope"), "git-gh"),
        ({"remove": ["git-gh", "nope"]}, ("remove", 1), "git-gh"),
    ],
)
def test_an_unknown_step_lists_the_known_ones(
    changes: dict[str, Any], path: KeyPath, known: str
) -> None:
    ((found, error),) = problems(BASE, **changes)
    assert isinstance(error, UnknownName)
    assert (found, error.where) == (path, locate(path))
    assert "unknown full-development step 'nope'" in str(error)
    assert known in error.known


def test_a_change_that_makes_a_step_invalid_is_refused() -> None:
    ((path, error),) = problems(DEBUGGER, replace={"get-approval": {"requires_approval": False}})
    assert path == ("replace", "get-approval")
    assert "'get-approval' can't be changed like this: approval is for a step with" in error.message
    assert error.hint is not None
    assert "null removes a field" in error.hint


def test_changing_and_removing_the_same_step_is_refused() -> None:
    ((path, error),) = problems(BASE, replace={"git-gh": {"model": "x"}}, remove=["git-gh"])
    assert path == ("replace", "git-gh")
    assert "but also removed" in error.message


def test_two_steps_of_one_name_are_refused() -> None:
    ((path, error),) = problems(BASE, before={"git-gh": ["verifications"]})
    assert path == ()
    assert "twice: verifications" in error.message


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"extends": "a", "replace": {"b": {"name": "c"}}}, "you can't rename a step"),
        ({"extends": "a", "replace": {"b": {"colour": 1}}}, "is not known here"),
        ({"extends": "a", "replace": {"b": {"approval": {"feedback": "x"}}}}, "is not known here"),
        ({"extends": "a", "before": {"b": "c"}}, "expected a list"),
        ({"extends": "a", "after": ["b"]}, "expected a mapping"),
        ({"extends": "a", "colour": 1}, "is not known here"),
        ({"remove": ["b"]}, "remove without extends"),
        ({"before": {}, "after": {"b": ["c"]}}, "after and before without extends"),
    ],
)
def test_wrong_changes_are_refused(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        WorkflowChanges.model_validate(raw)


STEPS = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=6, unique=True)
SOME = st.lists(st.sampled_from("abcdef"), max_size=4, unique=True)


@given(steps=STEPS, before=SOME, after=SOME, remove=SOME)
def test_every_extension_gives_either_a_workflow_or_a_problem(
    steps: list[str], before: list[str], after: list[str], remove: list[str]
) -> None:
    base = Workflow("base", [Step(name=name) for name in steps])
    extension = extending(
        base,
        before={name: [f"before {name}"] for name in before},
        after={name: [f"after {name}"] for name in after},
        remove=remove,
    )
    made = extension.build_workflow("own")
    is_known = {*before, *after, *remove} <= set(steps)
    is_anything_left = bool(set(steps) - set(remove) or before or after)
    assert (made is not None) == (is_known and is_anything_left)
    assert (made is None) == bool(extension.problems)
    if made is not None:
        kept = [name for name in steps if name not in remove]
        assert [name for name in names(made) if name in steps] == kept
        assert len(made.steps) == len(kept) + len(before) + len(after)
