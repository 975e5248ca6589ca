"""From settings to concrete parts: what is made, and what is refused with its place."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from sequencer.errors import ConfigurationError, DefinitionChanged
from sequencer.executors.process import ProcessCore
from sequencer.model.step import Step
from sequencer.project.agents import EXECUTORS, ensure_supported
from sequencer.project.project import Project, open_project
from tests.unit.engine.projects import open_scripted, write_project

ENVIRONMENT = {"PATH": "/usr/bin:/bin"}
NEEDED: dict[str, dict[str, Any]] = {
    "command": {"argv": ["x", "{model}"]},
    "scripted": {"outcomes": [{}]},
}
"""What the entry of a kind can't do without."""
THREE = {"three": {"steps": ["supervisor", "main", "reviewer"]}}


def project(folder: Path, **settings: Any) -> Project:
    return open_project(write_project(folder, **settings), environment=ENVIRONMENT)


@pytest.mark.parametrize("kind", EXECUTORS)
def test_every_recipe_names_an_existing_executor(kind: str) -> None:
    recipe = EXECUTORS[kind]
    module = import_module(recipe.module)
    assert getattr(module, recipe.executor).kind == kind
    assert hasattr(getattr(module, recipe.options), "model_validate")


def supported(kind: str, entry: dict[str, Any] | None = None, **fields: Any) -> str | None:
    """Return what is said against a step with *fields* for an agent of *kind*; None: nothing."""
    recipe = EXECUTORS[kind]
    module = import_module(recipe.module)
    options = getattr(module, recipe.options).model_validate(entry or {})
    needed = (ProcessCore(),) if recipe.needs_core else ()
    executor = getattr(module, recipe.executor)("mine", options, *needed)
    try:
        ensure_supported(Step(name="main", **fields), "mine", executor)
    except ConfigurationError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("kind", "own", "foreign", "instead"),
    [
        ("claude", "anthropic", "openai", "codex or opencode"),
        ("anthropic", "anthropic", "google", "gemini or opencode"),
        ("codex", "openai", "anthropic", "claude or anthropic or opencode"),
        ("gemini", "google", "mistral", "opencode"),
    ],
)
def test_an_agent_of_another_provider_is_refused(
    kind: str, own: str, foreign: str, instead: str
) -> None:
    assert supported(kind, provider=own, model="m") is None
    said = supported(kind, provider=foreign, model="m")
    assert said is not None
    assert f"provider: {foreign}, it has only models of {own}" in said
    assert f"write agent: {instead}, or name another model" in said


@pytest.mark.parametrize(
    ("kind", "entry"),
    [
        ("opencode", {}),
        ("command", {"argv": ["x", "--model={model}"]}),
        ("rehearsal", {}),
        ("scripted", {"outcomes": [{}]}),
    ],
)
def test_some_agents_accept_models_of_any_provider(kind: str, entry: dict[str, Any]) -> None:
    assert supported(kind, entry, provider="mistral", model="m") is None


@pytest.mark.parametrize("kind", EXECUTORS)
def test_every_agent_accepts_a_prompt_from_the_workflow_file(kind: str) -> None:
    assert supported(kind, NEEDED.get(kind), text="Do it.") is None


@pytest.mark.parametrize("kind", EXECUTORS)
def test_a_temperature_is_refused_for_agents_that_do_not_support_it(kind: str) -> None:
    said = supported(kind, NEEDED.get(kind), temperature=0.5, model="own/m")
    assert (said is None) is (kind in {"anthropic", "opencode", "rehearsal", "scripted"})
    assert said is None or "does not support temperature" in said


def test_all_unsupported_options_of_an_agent_are_reported_at_once() -> None:
    said = supported("gemini", provider="openai", temperature=1, tools={"todoread": True})
    assert said is not None
    assert "temperature; provider: openai, it has" in said
    assert "; tools: todoread: true" in said
    assert "todowrite: true instead" in said


def test_an_unknown_store_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"file") as caught:
        project(tmp_path, store={"kind": "floppy"}).run()
    assert "floppy" in str(caught.value)
    assert caught.value.exit_code == 2


def old_state(folder: Path, **content: object) -> None:
    (folder / "sync").mkdir(parents=True)
    (folder / "sync/state.json").write_text(json.dumps(content))


def test_an_old_state_that_counts_cycles_of_two_does_not_fit_three(tmp_path: Path) -> None:
    old_state(tmp_path, iteration=3, expected_actor="ralph", status="waiting-ralph")
    run = open_scripted(tmp_path, workflow={"name": "three"}, workflows=THREE)
    with pytest.raises(DefinitionChanged, match="cycles of 2 steps, but 'three' has 3"):
        run.work()
    assert json.loads((tmp_path / "sync/state.json").read_text())["iteration"] == 3
