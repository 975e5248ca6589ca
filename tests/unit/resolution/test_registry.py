from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from sequencer.errors import UnknownName
from sequencer.model.step import Retry, Step
from sequencer.model.workflow import Workflow
from sequencer.resolution.registry import (
    BuiltinPrompts,
    Registry,
    WorkflowDefinition,
    with_defaults,
)
from sequencer.resolution.resolver import describe


def prompts_of(workflow: Workflow, count: int) -> list[str]:
    return [describe(workflow, index)["prompt"] for index in range(count)]


def test_the_built_in_workflows() -> None:
    registry = Registry()
    assert registry.names == ("review_cadence", "review_cadence2", "standard", "standard2")
    assert prompts_of(registry.get("standard"), 4) == ["supervisor.md", "main.md"] * 2
    assert prompts_of(registry.get("standard2"), 2) == ["supervisor2.md", "main2.md"]
    reviewed = registry.get("review_cadence2").with_review_every(1)
    assert prompts_of(reviewed, 2) == ["reviewer.md", "reviewer.md"]


@pytest.mark.parametrize("name", ["review_cadence", "review_cadence2"])
def test_without_n_a_review_never_comes(name: str) -> None:
    workflow = Registry().get(name)
    assert workflow.params == {"review_every_n_cycles": 0}
    assert not any(describe(workflow, index)["review"] for index in range(200))


@pytest.mark.parametrize("name", ["standard", "standard2", "review_cadence", "review_cadence2"])
def test_the_built_in_positions_are_supervisor_and_main(name: str) -> None:
    assert [step.name for step in Registry().get(name).steps] == ["supervisor", "main"]


def test_other_prompts_for_the_built_in_steps() -> None:
    registry = Registry(prompts=BuiltinPrompts("lead.md", "work.md", "look.md"))
    assert prompts_of(registry.get("standard"), 2) == ["lead.md", "work.md"]
    assert prompts_of(registry.get("standard2"), 2) == ["supervisor2.md", "main2.md"]
    for name in ("review_cadence", "review_cadence2"):
        assert prompts_of(registry.get(name).with_review_every(1), 1) == ["look.md"]


def test_a_configured_workflow_replaces_a_built_in_one() -> None:
    own = Workflow("standard", [Step(name="only")])
    registry = Registry({"standard": own})
    assert registry.get("standard") is own
    assert len(registry.names) == 4


def test_an_unknown_workflow_lists_the_known_ones() -> None:
    with pytest.raises(UnknownName) as refused:
        Registry().get("standart", where="--workflow")
    assert refused.value.known == Registry().names
    assert str(refused.value).startswith("--workflow: unknown workflow 'standart'")
    assert "did you mean 'standard'?" in str(refused.value)


def define(**raw: Any) -> Workflow:
    return WorkflowDefinition.model_validate(raw).named("nightly")


def test_a_definition_mixes_names_and_mappings() -> None:
    workflow = define(
        steps=["supervisor", {"name": "main", "prompt": "m.md", "timeout_s": 60}],
        review={"every": 4, "step": "reviewer"},
    )
    assert workflow.name == "nightly"
    assert [step.prompt_name for step in workflow.steps] == ["supervisor.md", "m.md"]
    assert workflow.steps[1].timeout_s == 60
    assert workflow.review is not None
    assert (workflow.review.every, workflow.review.step.name) == (4, "reviewer")


def test_a_name_and_its_mapping_are_one_definition() -> None:
    assert define(steps=["a"]).digest() == define(steps=[{"name": "a"}]).digest()


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"steps": []}, "at least 1 item"),
        ({"steps": ["a", "a"]}, "twice: a"),
        ({"steps": ["a"], "kind": "procedure", "review": {"every": 1, "step": "b"}}, "no cycles"),
        ({"steps": ["a"], "kind": "graph"}, "'cycle' or 'procedure'"),
        ({"steps": "a"}, "valid tuple"),
        ({"steps": [{"prompt": "x.md"}]}, "Field required"),
        ({"steps": ["a"], "review": {"every": 2}}, "Field required"),
        ({"steps": ["a"], "colour": 1}, "Extra inputs"),
    ],
)
def test_a_wrong_definition_is_refused(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        define(**raw)


def test_a_definition_by_file_name_is_refused_as_a_mapping() -> None:
    with pytest.raises(ValidationError, match=r"is a mapping with 'steps', not 'x\.md'"):
        WorkflowDefinition.model_validate("x.md")


def test_defaults_fill_only_what_was_left_out() -> None:
    defaults = {"model": "small", "timeout_s": 9.0, "retry": Retry(max_attempts=2)}
    step = Step(name="a", model="large", timeout_s=None)
    filled = with_defaults(step, defaults)
    assert (filled.model, filled.timeout_s, filled.retry) == ("large", None, Retry(max_attempts=2))
    assert step.retry is None


def test_defaults_do_not_change_the_digest_of_a_run() -> None:
    workflow = Registry().get("standard")
    before = workflow.digest()
    with_defaults(workflow.steps[0], {"model": "x"})
    assert Registry().get("standard").digest() == before == workflow.digest()


def test_without_defaults_the_step_is_the_same_object() -> None:
    step = Step(name="a")
    assert with_defaults(step, {}) is step
