from __future__ import annotations

from pathlib import Path

import pytest

from sequencer.errors import ConfigurationError, UnknownName, UnsafePath
from sequencer.settings.settings import HIDDEN, load
from tests.unit.settings.loading import loaded, refusal, refusals


@pytest.mark.parametrize("mode", ["0755", "0000", "rw", "06", "0620", "4600"])
def test_a_file_mode_that_helps_nobody_is_refused(tmp_path: Path, mode: str) -> None:
    (tmp_path / "orchestration.yaml").write_text(f"file_mode: '{mode}'\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match="file_mode"):
        load(tmp_path, env={})


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        ("rooter: {}\nx: 1\n", "1:1", "unknown key 'rooter'"),
        ("rooter:\n", "1:1", "unknown key 'rooter'"),
        ("limits: {max_cost: ~}\n", "1:10: limits", "unknown key 'max_cost'"),
        ("limits:\n  max_cost: 5\n", "2:3: limits", "unknown key 'max_cost'"),
        ("limits: {max_steps: true}\n", "1:10: limits.max_steps", "expected a whole number"),
        ("limits: {max_steps: 1.5}\n", "1:10: limits.max_steps", "expected a whole number"),
        ("limits: {max_cost_usd: inf}\n", "1:10: limits.max_cost_usd", "finite"),
        ("limits: {max_cost_usd: .nan}\n", "1:10: limits.max_cost_usd", "expected a number"),
        ("limits: {max_steps: 0}\n", "1:10: limits.max_steps", "greater than or equal to 1"),
        ("run: {mode: tick}\n", "1:7: run.mode", "should be 'combined', 'sync' or 'async'"),
        ("store: {ttl_s: 0}\n", "1:9: store.ttl_s", "greater than or equal to 1"),
        ("router: {enabled: maybe}\n", "1:10: router.enabled", "expected true or false"),
        ("router: {mode: often}\n", "1:10: router.mode", "should be 'router_default'"),
        ("router: yes\n", "1:1: router", "expected a mapping"),
        ("prompts_dir: 5\n", "1:1: prompts_dir", "expected text; put it in quotes, not 5"),
        ("logs_dir: true\n", "1:1: logs_dir", "expected text; put it in quotes, not True"),
        ("agents: {a: claude}\n", "1:10: agents.a", "an agent is a mapping with 'kind'"),
        ("agents: {a: {argv: [x]}}\n", "1:10: agents.a", "needs a kind"),
        ("agents: {auto: {kind: command}}\n", "1:10: agents.auto", "choose another name"),
        ("workflow: {name: standart}\n", "1:12: workflow.name", "unknown workflow 'standart'"),
        ("workflows: {w: f.md}\n", "1:13: workflows.w", "there is no file 'f.md'"),
        ("workflows: {w: 3}\n", "1:13: workflows.w", "a workflow is a mapping with 'steps'"),
        ("workflows: {w: {steps: [a, a]}}\n", "1:13: workflows.w", "twice: a"),
        (
            "workflows:\n  w:\n    steps:\n      - a\n      - {name: b, modle: c}\n",
            "5:19: workflows.w.steps[1]",
            "unknown key 'modle'",
        ),
        (
            "workflows: {w: {steps: [{name: a, executor: robot}]}}\n",
            "1:35: workflows.w.steps[0].executor",
            "unknown agent 'robot'",
        ),
        (
            "workflows: {w: {steps: [a], review: {every: 1, step: {name: r, executor: x}}}}\n",
            "1:64: workflows.w.review.step.executor",
            "unknown agent 'x'",
        ),
        (
            "teams: {fallback_agent: robot}\n",
            "1:9: teams.fallback_agent",
            "unknown agent 'robot'",
        ),
        ("agent: {prompts: {../x.md: auto}}\n", "1:19: agent.prompts.../x.md", "'..' in it"),
        (
            "step_defaults: {append_system_prompt: ../x.md}\n",
            "1:17: step_defaults.append_system_prompt",
            "'..' in it",
        ),
        ("agent: {default: cloud}\n", "1:9: agent.default", "unknown agent 'cloud'"),
        ("agent: {roles: {main: x}}\n", "1:17: agent.roles.main", "unknown agent 'x'"),
        ("agent: {prompts: {a.md: x}}\n", "1:19: agent.prompts.a.md", "unknown agent 'x'"),
        ("main_prompt: ../x.md\n", "1:1: main_prompt", "'..' in it"),
        ("router: {allowlist: [a, /b]}\n", "1:25: router.allowlist[1]", "is absolute"),
        ("router: {enabled: true, mode: only}\n", "1:1: router.prompt", "needs a prompt"),
        ("step_defaults: {name: x}\n", "1:17: step_defaults.name", "can't be a default"),
        ("step_defaults: {executor: x}\n", "1:17: step_defaults.executor", "agent.default"),
        ("step_defaults: {tiemout_s: 1}\n", "1:17: step_defaults", "unknown key 'tiemout_s'"),
        ("store: {journal: {keep: 0}}\n", "1:19: store.journal.keep", "or equal to 1"),
    ],
)
def test_what_is_wrong_and_where(tmp_path: Path, text: str, where: str, message: str) -> None:
    first = refusals(tmp_path, text)[0]
    assert first.where == f"{tmp_path / 'orchestration.yaml'}:{where}"
    assert message in first.message


def test_every_problem_of_a_file_is_reported_in_its_order(tmp_path: Path) -> None:
    text = """\
limits: {max_steps: none}
colour: blue
workflows:
  nightly:
    steps: [a, {name: b, modle: x}, {name: c, executor: robot}]
  broken: 7
agent: {default: cloud}
main_prompt: ../main.md
workflow: nightly
"""
    errors = refusals(tmp_path, text)
    lines = [str(error.where).split("orchestration.yaml:")[1].split(":")[0] for error in errors]
    assert lines == ["1", "2", "5", "5", "6", "7", "8"]
    assert {type(error) for error in errors} == {ConfigurationError, UnknownName, UnsafePath}


def test_a_wrong_section_is_not_covered_up_by_a_later_layer(tmp_path: Path) -> None:
    error = refusal(tmp_path, "router: 5\n", env={"SEQUENCER_ROUTER__ENABLED": "true"})
    assert "expected a mapping" in error.message


def test_secrets_are_not_listed(tmp_path: Path) -> None:
    text = "agents: {a: {kind: anthropic, api_key: sk-1, env: {GH_TOKEN: t}, keep: k}}\n"
    settings = loaded(tmp_path, text)
    rows = {key: value for key, value, _ in settings.rows()}
    assert rows["agents.a.api_key"] == rows["agents.a.env.GH_TOKEN"] == HIDDEN
    assert rows["agents.a.keep"] == "k"
    assert "sk-1" not in repr(settings)


def test_a_journal_that_is_pushed_with_each_transition_may_not_be_long(tmp_path: Path) -> None:
    error = refusal(
        tmp_path, "store:\n  kind: git\n  journal:\n    keep: 3\n    rotate_bytes: 1048577\n"
    )
    assert str(error) == (
        f"{tmp_path}/orchestration.yaml:5:5: store.journal.rotate_bytes: is at most 1048576 with "
        "kind git, not 1048577\n  each transition pushes the whole open journal"
    )


def test_the_journal_of_git_is_kept_short_from_everywhere(tmp_path: Path) -> None:
    variable = "SEQUENCER_STORE__JOURNAL__ROTATE_BYTES"
    error = refusal(tmp_path, "store: {kind: git}", env={variable: "2097152"})
    assert str(error).startswith(f"{variable}: store.journal.rotate_bytes: is at most")
