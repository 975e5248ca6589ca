"""docs/reference/configuration.md says what the schema says, key for key."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from sequencer import Step, open_project
from sequencer.errors import ConfigurationError
from tests.project.printed_schema import deprecated, fields, leaves
from tests.project.test_reference import VARIABLES
from tests.unit.cli.calling import call

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
    if default in ([], {}, ""):
        return "empty"
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, dict):
        return str(default["name"])
    if isinstance(default, list):
        return ", ".join(map(str, default))
    return f"{default:g}" if isinstance(default, float) else str(default)


def find_known_names(folder: Path, text: str, before: str) -> list[str]:
    """Return the names that an error about the configuration *text* lists after *before*."""
    (folder / "orchestration.yaml").write_text(text, encoding="utf-8")
    called = call(folder, "check")
    assert called.code == 2
    (line,) = (line for line in called.out.splitlines() if before in line)
    return re.findall(r"[\w-]+", line.partition(before)[2])


def test_all_keys_are_listed_with_their_defaults(tmp_path: Path) -> None:
    (tmp_path / "orchestration.yaml").write_text("{}", encoding="utf-8")
    printed = call(tmp_path, "check", "--settings", "--json").json
    assert {one["source"] for one in printed} == {"default"}
    expected = {
        one["key"]: as_written(one["value"])
        for one in printed
        if not one["key"].startswith("step_defaults.")
    }
    review = {
        f"review.{name}": as_written(field.get("default"))
        for name, field in fields("ReviewDefinition").items()
    }
    text = "steps: [a]\nreview: {every: 1}\n"
    (tmp_path / "orchestration.yaml").write_text(text, encoding="utf-8")
    reviewing = open_project(tmp_path, environment={}, trust=True).run().workflow.review
    assert reviewing is not None
    review["review.step"] = reviewing.step.name
    assert rows("Keys") == expected | review | {"steps": "empty", "step_defaults": "empty"}


def test_the_keys_of_a_workflow_are_listed() -> None:
    keys = fields("WorkflowDefinition").keys() - {"review"}
    keys |= {f"review.{key}" for key in fields("ReviewDefinition")}
    assert set(rows("Workflows")) == {f"workflows.NAME.{key}" for key in keys}


def test_the_fields_of_a_step_are_listed() -> None:
    told = rows("Step fields")
    found = dict(leaves("Step"))
    assert set(told) == set(found)
    for name, default in found.items():
        if name not in ("name", "prompt"):
            assert told[name] == as_written(default), name


def test_the_page_lists_the_fields_step_defaults_cannot_have(tmp_path: Path) -> None:
    refused = fields("Step").keys() - fields("StepDefaults").keys()
    of_one_step = {"name", "description", "prompt", "text", "agent", "requires_approval"}
    of_one_step |= {"approval", "validation", "retry"}
    assert refused == of_one_step
    assert set(fields("Step")) == set(Step.model_fields)
    told = ("name", "description", "prompt", "text", "agent", "requires_approval", "approval")
    listed = ", ".join(f"`{field}`" for field in told)
    assert f"All but {listed}" in PAGE.read_text(encoding="utf-8")
    for name in of_one_step - {"retry"}:
        text = f"step_defaults: {{{name}: x}}"
        (tmp_path / "orchestration.yaml").write_text(text, encoding="utf-8")
        why = rf"step_defaults\.{name}: .*can't be a default"
        with pytest.raises(ConfigurationError, match=why):
            _ = open_project(tmp_path, environment={}, trust=True).settings
    # Former files have that key there.
    (tmp_path / "orchestration.yaml").write_text("step_defaults: {retry: 2}", encoding="utf-8")
    printed = call(tmp_path, "check", "--settings", "--json").json
    assert [one["value"] for one in printed if one["key"] == "retry.max_attempts"] == [2]


def test_every_built_in_workflow_is_named(tmp_path: Path) -> None:
    section = PAGE.read_text(encoding="utf-8").split("\n## Workflows\n")[1].split("\n## ")[0]
    (tmp_path / "orchestration.yaml").write_text("agent: rehearsal\n", encoding="utf-8")
    listed = call(tmp_path, "plan", "--list", "--json").json
    assert {one["source"] for one in listed} == {"built in"}
    assert [one["name"] for one in listed if f"`{one['name']}`" not in section] == []


def test_request_kinds_are_listed_with_their_procedures(tmp_path: Path) -> None:
    section = PAGE.read_text(encoding="utf-8").split("\n## Routing\n")[1].split("\n## ")[0]
    table = section.split("| kind | procedure |")[1].split("\n\n")[0]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    kinds = find_known_names(tmp_path, "routing: {procedures: {nothing: plan-mode}}\n", "should be")
    assert {row[0] for row in cells} == {*kinds} - {"or", "not", "nothing"}
    (tmp_path / "orchestration.yaml").write_text("agent: rehearsal\n", encoding="utf-8")
    for kind, procedure, example in cells:
        planned = call(tmp_path, "plan", "--request", example, "--json").json
        decided = (planned["source"], planned["classification"], planned["procedure"])
        assert decided == ("rules", kind, procedure)


def test_the_keys_of_an_agent_are_listed(tmp_path: Path) -> None:
    assert set(rows("Agents")) == {f"agents.NAME.{key}" for key in fields("AgentEntry")}
    text = PAGE.read_text(encoding="utf-8").split("\n## Agents\n")[1]
    names = find_known_names(tmp_path, "agent: nothing\n", "known agents:")
    assert {"auto", "claude", "rehearsal"} <= {*names}
    assert all(f"`{name}`" in text for name in names)


def test_every_special_name_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert len(deprecated()) > 20
    # A mapping of former names: each of them is in the section on teams.
    names = [*VARIABLES, *deprecated()]
    assert [name for name in names if f"`{name}`" not in text] == ["teamConfig"]
    assert "`teamConfig." in text


def test_the_examples_of_the_page_load(tmp_path: Path) -> None:
    examples = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(examples) == 3
    (tmp_path / "orchestration.yaml").write_text("".join(examples), encoding="utf-8")
    settings = open_project(tmp_path, environment={}, trust=True).settings
    assert set(settings.workflows) == {"default", "nightly"}
    assert list(settings.agents) == ["tests"]
    assert all(yaml.safe_load(example) for example in examples)
