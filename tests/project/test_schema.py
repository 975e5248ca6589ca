"""The schema for editors takes what the program takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from tests.project.documents import ROOT, Fence
from tests.project.printed_schema import schema
from tests.project.test_docs import by_place, in_language
from tests.unit.settings.test_short_forms import LONG, SHORT

VALIDATOR = Draft202012Validator(schema())
FILES = [
    *sorted((ROOT / "examples").rglob("orchestration.yaml")),
    ROOT / "orchestration.yaml",
]


def problems(data: Any) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in VALIDATOR.iter_errors(data)]


def test_the_schema_is_a_schema() -> None:
    Draft202012Validator.check_schema(VALIDATOR.schema)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_every_example_is_valid(path: Path) -> None:
    assert problems(yaml.safe_load(path.read_bytes())) == []


@pytest.mark.parametrize("fence", in_language("yaml"), ids=by_place)
def test_every_block_of_the_documents_is_valid(fence: Fence) -> None:
    assert problems(yaml.safe_load(fence.text)) == []


@pytest.mark.parametrize("text", [SHORT, LONG])
def test_both_forms_are_valid(text: str) -> None:
    assert problems(yaml.safe_load(text)) == []


@pytest.mark.parametrize(
    "text",
    [
        "agnt: claude",
        "steps: [{name: a, modle: b}]",
        "limits: {steps: many}",
        "retry: often",
        "review: {evry: 3}",
        "workflows: {a: {steps: [a], kind: 3}}",
        "step_defaults: {name: a}",
        "teams: {roles: {lead: {modle: x}}}",
    ],
)
def test_a_mistake_is_seen_in_the_editor(text: str) -> None:
    assert problems(yaml.safe_load(text)) != []
