from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sequencer.errors import ConfigurationError
from sequencer.frozen.fields import ValidationError
from sequencer.model.workflow import Workflow
from sequencer.workflows.definitions import WorkflowDefinition
from sequencer.workflows.registry import Registry


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("standard", "788014560460e5a75128c62536dce0300cf8276aa4873720cf1fd3d2dfd21871"),
        ("review_cadence", "b49b920605bb551f200e8d1f69a889166ff974ed7841c3c9168b320a66e4293b"),
        ("standard2", "98187d1b0a8a1eabf719dc75ceb21847885aba7f815166ac2bd70d8d270cbb12"),
        ("review_cadence2", "639863588c780d4a01783bd0d028c86e9e32fa103c320ac7213b47edb662547f"),
    ],
)
def test_workflows_keep_the_digest_of_earlier_versions(name: str, digest: str) -> None:
    assert Registry().get(name).digest() == f"sha256:{digest}"


def define(**raw: Any) -> Workflow:
    return WorkflowDefinition.model_validate(raw).build_workflow("nightly")


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"steps": []}, "at least one item"),
        ({"steps": ["a", "a"]}, "twice: a"),
        ({"steps": ["a"], "kind": "procedure", "review": {"every": 1, "step": "b"}}, "no cycles"),
        ({"steps": ["a"], "kind": "graph"}, "unknown workflow kind 'graph'"),
        ({"steps": "a"}, "expected a list"),
        ({"steps": [{"prompt": "x.md"}]}, "has to be there"),
        ({"steps": ["a"], "review": {"every": 2, "step": {}}}, "has to be there"),
        ({"steps": ["a"], "colour": 1}, "is not known here"),
        ({}, "^steps: has to be there"),
        ({"kind": "procedure"}, "^steps: has to be there"),
        ({"extends": None}, "at least one item"),
        ({"extends": "b", "steps": []}, "at least one item"),
        ({"steps": ["a"], "extends": "b"}, "steps can't be combined with extends"),
        ({"kind": "cycle", "extends": "b"}, "kind can't be combined with extends"),
        ({"steps": ["a"], "remove": ["a"]}, "remove without extends"),
    ],
)
def test_a_wrong_definition_is_refused(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        define(**raw)


@pytest.mark.parametrize("more", [{"steps": ["a"]}, {"kind": "procedure"}, {"extends": "standard"}])
def test_a_flowchart_file_cannot_be_combined_with_other_fields(more: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="can't be combined with file"):
        WorkflowDefinition.model_validate({"file": "x.md", **more})


def test_a_flowchart_is_read_when_it_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "release.md"
    registry = Registry(flows={"release": file, "other": tmp_path / "gone.md"})
    assert {"release", "other"} < set(registry.names)
    assert "release" not in registry.procedure_names
    file.write_text("```mermaid\nflowchart TD\na --> b\n```\n### a\n\nDo.\n### b\n\nMore.\n")
    workflow = registry.get("release")
    assert (workflow.name, workflow.kind) == ("release", "graph")
    assert [step.text for step in workflow.steps] == ["Do.", "More."]
    assert registry.get("release") is workflow
    with pytest.raises(ConfigurationError, match=r"(?i)no such file"):
        registry.get("other")
