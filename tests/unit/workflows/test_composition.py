from __future__ import annotations

from time import process_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequencer.errors import ConfigurationError
from sequencer.workflows.definitions import Composition, KeyPath, WorkflowDefinition
from sequencer.workflows.registry import BuiltinPrompts, BuiltinWorkflows

BUILTIN = BuiltinWorkflows(BuiltinPrompts())


def locate(path: KeyPath) -> str:
    return f"at {'/'.join(map(str, path))}"


def composed(**raw: dict[str, Any]) -> Composition:
    definitions = {name: WorkflowDefinition.model_validate(one) for name, one in raw.items()}
    return Composition(definitions, BUILTIN, locate)


def steps(made: Composition, name: str) -> list[str]:
    assert made.problems == []
    return [step.name for step in made.workflows[name].steps]


def test_problems_of_a_change_have_the_path_of_the_definition() -> None:
    made = composed(
        first={"extends": "standard", "remove": ["nope"]},
        second={"extends": "first", "remove": ["nope too"]},
    )
    ((path, error),) = made.problems
    assert (path, error.where) == (("first", "remove", 0), "at first/remove/0")
    assert made.workflows == {}


def test_an_extended_cycle_may_have_a_review_of_its_own() -> None:
    made = composed(
        mine={"extends": "standard", "review": {"every": 4, "step": "look"}},
        more={"extends": "mine", "replace": {"look": {"model": "large"}}},
    )
    review = made.workflows["more"].review
    assert review is not None
    assert (review.every, review.step.name, review.step.model) == (4, "look", "large")


def test_a_procedure_has_no_review() -> None:
    ((path, error),) = composed(
        mine={"extends": "plan-mode", "review": {"every": 4, "step": "look"}}
    ).problems
    assert path == ("mine", "review")
    assert error.message == "a procedure has no cycles, so it can't have a review"


@pytest.mark.parametrize("is_circle", [False, True])
def test_a_long_chain_of_definitions_causes_no_deep_recursion(*, is_circle: bool) -> None:
    count = 3000
    raw: dict[str, dict[str, Any]] = {f"w{n}": {"extends": f"w{n + 1}"} for n in range(count)}
    raw[f"w{count}"] = {"extends": "w0" if is_circle else "plan-mode"}
    began = process_time()
    made = composed(**raw)
    assert process_time() - began < 5
    assert len(made.problems) == is_circle
    assert all(len(error.message) < 400 for _, error in made.problems)
    assert all(error.message.endswith("…, 'w3000' extends 'w0'") for _, error in made.problems)
    assert len(made.workflows) == (0 if is_circle else count + 1)


NAMES = st.sampled_from("abcdefg")


@given(st.dictionaries(NAMES, NAMES | st.sampled_from(["standard", "plan-mode"]), max_size=7))
def test_every_definition_is_built_or_depends_on_a_problem(extends: dict[str, str]) -> None:
    made = composed(**{name: {"extends": base} for name, base in extends.items()})

    def ends_well(name: str) -> bool:
        seen: set[str] = set()
        while name in extends and name not in seen:
            seen.add(name)
            name = extends[name]
        return name in BUILTIN

    assert set(made.workflows) == {name for name in extends if ends_well(name)}
    assert bool(made.problems) == (len(made.workflows) < len(extends))
    assert all(isinstance(error, ConfigurationError) for _, error in made.problems)
