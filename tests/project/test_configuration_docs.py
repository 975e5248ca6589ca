"""docs/reference/configuration.md says what the schema says, key for key."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sequencer import Step
from sequencer.files.keys import fields_by_key, iter_leaves, known_keys, strip_optional
from sequencer.files.yamlfile import format_key_path, parse
from sequencer.frozen.base import Frozen
from sequencer.model.request import Request
from sequencer.plugins.requests.routing import PROCEDURE_OF, SYSTEM_PROMPTS, classify_by_rules
from sequencer.project.legacy import tables
from sequencer.project.schema import BUILTIN_AGENTS, AgentEntry, Schema, StepDefaults
from sequencer.project.settings import load
from sequencer.project.sources import IDENTITY_VARIABLES
from sequencer.workflows.definitions import ReviewDefinition, WorkflowDefinition
from sequencer.workflows.registry import PROCEDURES, Registry

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "configuration.md"
ROW = re.compile(r"^\| `([^`]+)` \| ([^|]+) \| ([^|]+) \| (.+) \|$", re.MULTILINE)


def rows(title: str) -> dict[str, str]:
    """Key and default of each row of the section *title*."""
    section = PAGE.read_text(encoding="utf-8").split(f"\n## {title}\n")[1].split("\n## ")[0]
    found = ROW.findall(section)
    assert len(found) == section.count("\n| `"), "a row has another form than the rest"
    return {key: default.strip().strip("`") for key, _, default, _ in found}


def as_written(default: Any) -> str:
    if default is None:
        return "none"
    if default in ((), {}, ""):
        return "empty"
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, Step):
        return default.name
    if isinstance(default, tuple):
        return ", ".join(map(str, default))
    return f"{default:g}" if isinstance(default, float) else str(default)


def step_fields(model: type[Frozen], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, field in fields_by_key(model).items():
        annotation = strip_optional(field.annotation)
        is_model = isinstance(annotation, type) and issubclass(annotation, Frozen)
        if is_model and annotation is not Step:
            yield from step_fields(annotation, f"{prefix}{name}.")
        else:
            yield prefix + name, field.get_default()


def test_all_keys_are_listed_with_their_defaults() -> None:
    expected = {
        format_key_path(path): as_written(default)
        for path, default in iter_leaves(Schema)
        if path[0] != "step_defaults"
    }
    assert rows("Keys") == expected | {"step_defaults": "empty"}


def test_the_keys_of_a_workflow_are_listed() -> None:
    keys = set(WorkflowDefinition.model_fields) - {"review"}
    keys |= {f"review.{key}" for key in ReviewDefinition.model_fields}
    assert set(rows("Workflows")) == {f"workflows.NAME.{key}" for key in keys}


def test_the_fields_of_a_step_are_listed() -> None:
    told = rows("Step fields")
    fields = dict(step_fields(Step))
    assert set(told) == set(fields)
    for name, default in fields.items():
        if name not in ("name", "prompt"):
            assert told[name] == as_written(default), name


def test_the_page_lists_the_fields_step_defaults_cannot_have() -> None:
    refused = set(Step.model_fields) - set(known_keys(Schema, ("step_defaults",)))
    of_one_step = {"name", "description", "prompt", "text", "agent", "requires_approval"}
    of_one_step |= {"approval", "validation", "retry"}
    assert refused == of_one_step
    told = ("name", "description", "prompt", "text", "agent", "requires_approval", "approval")
    listed = ", ".join(f"`{field}`" for field in told)
    assert f"All but {listed}" in PAGE.read_text(encoding="utf-8")
    assert set(StepDefaults.model_fields) == set(Step.model_fields)


def test_every_built_in_workflow_is_named() -> None:
    section = PAGE.read_text(encoding="utf-8").split("\n## Workflows\n")[1].split("\n## ")[0]
    assert [name for name in Registry().names if f"`{name}`" not in section] == []


def test_request_kinds_and_system_prompt_labels_are_listed() -> None:
    section = PAGE.read_text(encoding="utf-8").split("\n## Routing\n")[1].split("\n## ")[0]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines()]
    told = {tuple(row) for row in cells if len(row) == 3}
    kinds = {row[0]: row for row in told if row[1] in PROCEDURES}
    assert {kind: row[1] for kind, row in kinds.items()} == PROCEDURE_OF
    for kind, row in kinds.items():
        assert classify_by_rules(Request(title=row[2])).word == kind
    entries = {
        (name, ", ".join(entry.labels or ()), entry.prompt)
        for name, entry in SYSTEM_PROMPTS.items()
    }
    assert entries < told


def test_the_keys_of_an_agent_are_listed() -> None:
    assert set(rows("Agents")) == {f"agents.NAME.{key}" for key in AgentEntry.model_fields}
    text = PAGE.read_text(encoding="utf-8").split("\n## Agents\n")[1]
    assert all(f"`{name}`" in text for name in BUILTIN_AGENTS)


@pytest.mark.parametrize("names", [IDENTITY_VARIABLES, tables().flat_keys, tables().ignored_keys])
def test_every_special_name_is_on_the_page(names: frozenset[str] | dict[str, Any]) -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [name for name in sorted(names) if f"`{name}`" not in text] == []


def test_the_examples_of_the_page_load(tmp_path: Path) -> None:
    examples = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(examples) == 3
    (tmp_path / "orchestration.yaml").write_text("".join(examples), encoding="utf-8")
    settings = load(tmp_path, env={})
    assert set(settings.workflows) == {"default", "nightly"}
    assert list(settings.agents) == ["tests"]
    assert all(parse(example.encode(), tmp_path).data for example in examples)
