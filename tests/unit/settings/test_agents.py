from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from sequencer.errors import ConfigurationError, UnknownName
from sequencer.model.step import Step
from sequencer.project.agents import (
    CLIENTS,
    AgentOverrides,
    ChosenAgent,
    choose_agent,
    ensure_known_names,
    resolve_auto,
)
from sequencer.project.settings import Settings, load
from sequencer.workflows.registry import Registry


def settings_of(tmp_path: Path, text: str) -> Settings:
    (tmp_path / "orchestration.yaml").write_text(text, encoding="utf-8")
    return load(tmp_path, env={})


@pytest.mark.parametrize(
    ("old", "position"),
    [("galph", "supervisor"), ("ralph", "main"), ("loop", "main")],
)
def test_old_role_keys_still_choose_the_agent(tmp_path: Path, old: str, position: str) -> None:
    settings = settings_of(tmp_path, f"agent: {{roles: {{{old}: codex}}}}")
    assert choose_agent(settings, Step(name=position), position).name == "codex"
    other = "main" if position == "supervisor" else "supervisor"
    assert choose_agent(settings, Step(name=other), other).name == "auto"
    overrides = AgentOverrides(by_step={old: "gemini"})
    assert choose_agent(settings, Step(name=position), position, overrides).name == "gemini"


@pytest.mark.parametrize("key", ["main", "main.md", "prompts/main.md"])
@pytest.mark.parametrize("prompt", [None, "main", "prompts/main.md"])
def test_the_spellings_of_a_prompt_are_one_key(
    tmp_path: Path, key: str, prompt: str | None
) -> None:
    settings = settings_of(tmp_path, f"agent: {{prompts: {{{key}: codex}}}}")
    step = Step(name="main", prompt=prompt)
    assert choose_agent(settings, step, "main") == ChosenAgent("codex", "agent.prompts")
    overrides = AgentOverrides(by_prompt={key: "gemini"})
    assert choose_agent(settings, step, "main", overrides).name == "gemini"


def test_an_override_for_an_unknown_step_is_refused(tmp_path: Path) -> None:
    def check(step: str, workflow: str = "review_cadence") -> None:
        overrides = AgentOverrides(by_step={step: "claude"})
        ensure_known_names(settings_of(tmp_path, ""), overrides, Registry().get(workflow))

    for name in ("supervisor", "main", "reviewer", "galph", "loop"):
        check(name)
    with pytest.raises(UnknownName, match="unknown step 'mian'") as refused:
        check("mian")
    assert refused.value.known == ("main", "reviewer", "supervisor")
    with pytest.raises(UnknownName):
        check("reviewer", "standard")


def resolved(installed: set[str], env: Mapping[str, str]) -> str:
    return resolve_auto(lambda name: f"/bin/{name}" if name in installed else None, env)


@pytest.mark.parametrize("variable", ["ANTHROPIC_API_KEY"])
def test_auto_is_the_api_if_only_a_key_is_available(variable: str) -> None:
    assert resolved({"bash"}, {variable: "k"}) == "anthropic"


@pytest.mark.parametrize("env", [{}, {"ANTHROPIC_API_KEY": ""}, {"OPENAI_API_KEY": "k"}])
def test_auto_never_rehearses(env: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError) as refused:
        resolved({"rehearsal"}, env)
    for client in CLIENTS:
        assert client in str(refused.value.hint)
    assert "ANTHROPIC_API_KEY" in refused.value.message
