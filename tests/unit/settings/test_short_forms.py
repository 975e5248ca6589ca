"""The short way to write a configuration means what the long one means."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sequencer.model.sequence.order import resolve
from sequencer.project.settings import Settings
from tests.unit.settings.loading import loaded, refusal, refusals

SHORT = """\
agent: claude
steps: [supervisor, {name: main, timeout_s: 60}]
review: {every: 3, step: checker, agent: codex}
limits: {cost_usd: 50, steps: 500}
retry: 3
"""
LONG = """\
agent: {default: claude}
workflow: {name: default}
workflows:
  default:
    steps: [{name: supervisor}, {name: main, timeout_s: 60}]
    review: {every: 3, step: {name: checker, agent: codex}}
limits: {max_cost_usd: 50, max_steps: 500}
step_defaults: {retry: {max_attempts: 3, backoff: exponential, initial_delay_s: 60}}
"""


def meaning(settings: Settings) -> dict[str, Any]:
    keys = ("agent", "workflow", "workflows", "limits", "step_defaults", "notices")
    return {key: getattr(settings, key) for key in keys}


def test_both_forms_mean_the_same(tmp_path: Path) -> None:
    short, long = loaded(tmp_path, SHORT), loaded(tmp_path, LONG)
    assert meaning(short) == meaning(long)
    workflow = short.default_workflow()
    named = [resolve(workflow, index).name for index in range(6)]
    assert named == ["supervisor", "main", "supervisor", "main", "checker", "checker"]


def test_the_former_name_of_a_steps_agent_is_read_with_a_notice(tmp_path: Path) -> None:
    short, long = (
        loaded(tmp_path, SHORT),
        loaded(tmp_path, LONG.replace("agent: codex", "executor: codex")),
    )
    assert long.workflows == short.workflows
    (notice,) = long.notices
    assert "orchestration.yaml:6:46: 'workflows.default.review.step.executor' is read as" in notice


def test_limits_are_the_same_in_both_forms(tmp_path: Path) -> None:
    assert loaded(tmp_path, SHORT).written["limits"] == {"cost_usd": 50, "steps": 500}
    assert loaded(tmp_path, LONG).written["limits"] == {"cost_usd": 50, "steps": 500}


def test_a_review_alone_has_a_supervisor_and_a_main_step(tmp_path: Path) -> None:
    workflow = loaded(tmp_path, "review: {every: 2}\n").default_workflow()
    assert [step.name for step in workflow.own_steps] == ["supervisor", "main", "reviewer"]


def test_another_workflow_can_be_named_beside_steps(tmp_path: Path) -> None:
    text = "steps: [a]\nworkflow: nightly\nworkflows: {nightly: {steps: [b]}}\n"
    assert loaded(tmp_path, text).default_workflow().name == "nightly"


def test_variables_have_the_short_forms_too(tmp_path: Path) -> None:
    env = {"SEQUENCER_AGENT": "codex", "SEQUENCER_RETRY": "2", "SEQUENCER_STEPS": "a,b"}
    settings = loaded(tmp_path, "agent: claude\n", env=env)
    assert settings.agent.default == "codex"
    assert settings.step_defaults["retry"].max_attempts == 2
    assert [step.name for step in settings.default_workflow().steps] == ["a", "b"]
    assert settings.notices == ()


def test_the_old_name_of_the_retry_time_means_the_new_one(tmp_path: Path) -> None:
    old, new = (
        loaded(tmp_path, f"store: {{kind: git, {name}: 5}}\n").store
        for name in ("patience_s", "retry_for_s")
    )
    assert old == new
    assert new.retry_for_s == 5


def test_a_step_has_the_short_retry_too(tmp_path: Path) -> None:
    (step,) = loaded(tmp_path, "steps: [{name: a, retry: 4}]\n").default_workflow().steps
    assert step.retry is not None
    assert [step.retry.delay_s(failures) for failures in (1, 2, 3)] == [60.0, 120.0, 240.0]


@pytest.mark.parametrize(
    ("text", "where", "said"),
    [
        ("steps: [a, {name: b, modle: c}]\n", "1:22: steps[1]", "unknown key 'modle'"),
        ("steps: [a, a]\n", "1:1: steps", "twice: a"),
        ("steps: []\n", "1:1: steps", "at least one"),
        ("review: {evry: 2}\n", "1:10: review", "unknown key 'evry'"),
        ("review: {every: 2, agent: clod}\n", "1:20: review.agent", "unknown agent 'clod'"),
        ("agent: [claude]\n", "1:1: agent", "expected the name of an agent, or a mapping"),
        ("workflow: [a]\n", "1:1: workflow", "expected the name of a workflow, or a mapping"),
        ("steps: [a, 1]\n", "1:12: steps[1]", "expected the name of a step, or a mapping"),
        ("retry: often\n", "1:1: retry", "expected a whole number"),
        ("retry: [3]\n", "1:1: retry", "expected a number of tries, or a mapping"),
        ("retry: true\n", "1:1: retry", "expected a whole number"),
        ("limits: {max_steps: 1, steps: 2}\n", "1:10: limits.max_steps", "limits.steps in line 1"),
        (
            "steps: [a]\nworkflows: {default: {steps: [b]}}\n",
            "1:1: steps",
            "workflows.default.steps in line 2",
        ),
    ],
)
def test_an_error_is_reported_where_it_was_written(
    tmp_path: Path, text: str, where: str, said: str
) -> None:
    error = refusal(tmp_path, text)
    assert f"orchestration.yaml:{where}" in str(error.where)
    assert said in error.message


def test_steps_next_to_a_file_of_the_same_name_are_not_ignored(tmp_path: Path) -> None:
    (tmp_path / "flow.md").write_text("```mermaid\nflowchart TD\n a --> b\n```\n", encoding="utf-8")
    files, steps = "workflows: {default: flow.md}\n", "steps: [a]\n"
    for text in (files + steps, steps + files):
        (error, *_) = refusals(tmp_path, text)
        assert "is the same setting" in error.message
