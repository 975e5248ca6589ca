from __future__ import annotations

from pathlib import Path

import pytest

from sequencer.errors import ConfigurationError, UnknownName, UnsafePath
from sequencer.model.limits import RunLimits
from sequencer.model.line.order import resolve
from sequencer.settings.settings import HIDDEN, load
from sequencer.settings.sources import Given
from sequencer.workflows.router import RouterMode
from tests.unit.settings.loading import loaded, refusal, refusals

EXAMPLE = """
workflow: {name: review_cadence, review_every_n: 3}
agent: {default: claude, prompts: {reviewer.md: codex}}
agents:
  tests: {kind: command, argv: [python, -m, pytest, -q]}
workflows:
  nightly:
    steps:
      - supervisor
      - {name: main, prompt: main.md, model: sonnet, timeout_s: 3600}
      - {name: verify, executor: tests}
    review: {every: 4, step: {name: reviewer, prompt: reviewer.md}}
limits: {max_cost_usd: 50, max_failures_in_row: 3}
"""


def test_a_whole_file(tmp_path: Path) -> None:
    settings = loaded(tmp_path, EXAMPLE)
    assert settings.config_path == tmp_path / "orchestration.yaml"
    assert settings.chosen_workflow().params == {"review_every_n_cycles": 3}
    nightly = settings.workflows["nightly"]
    assert resolve(nightly, 2).executor == "tests"
    assert resolve(nightly, 9).name == "reviewer"
    assert settings.agents["tests"].kind == "command"
    assert settings.agents["tests"].options == {"argv": ["python", "-m", "pytest", "-q"]}
    assert settings.limits == RunLimits(max_cost_usd=50, max_failures_in_row=3)
    assert settings.notices == ()


def test_a_project_without_a_file_works(tmp_path: Path) -> None:
    settings = load(tmp_path, env={})
    assert settings.config_path is None
    assert settings.project_dir == tmp_path
    assert settings.prompts_dir == tmp_path / "prompts"
    assert settings.state_file == tmp_path / "sync" / "state.json"
    assert settings.logs_dir == tmp_path / "logs"
    assert settings.chosen_workflow().name == "standard"
    assert settings.agent.default == "auto"
    assert (settings.run.max_steps, settings.run.mode) == (20, "combined")
    assert (settings.store.ttl_s, settings.store.journal.keep) == (60.0, 8)
    assert settings.store.journal.rotate_bytes == 4 * 1024 * 1024
    assert settings.logs.max_bytes == 64 * 1024 * 1024
    assert {str(source) for source in settings.sources.values()} == {"default"}


def test_paths_resolve_against_the_folder_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    text = "prompts_dir: p\nlogs_dir: l/m\nstate_file: s/t/u.json\n"
    (tmp_path / "orchestration.yaml").write_text(text, encoding="utf-8")
    settings = load(tmp_path / "sub", env={"SEQUENCER_LOGS_DIR": "../l"})
    assert settings.prompts_dir == tmp_path / "p"
    assert settings.logs_dir == tmp_path.parent / "l"
    assert settings.state_file == tmp_path / "s/t/u.json"


@pytest.mark.parametrize("mode", ["0666", "640", "0600", "664"])
def test_file_mode_is_octal(tmp_path: Path, mode: str) -> None:
    (tmp_path / "orchestration.yaml").write_text(f"file_mode: '{mode}'\n", encoding="utf-8")
    assert load(tmp_path, env={}).file_mode == mode


@pytest.mark.parametrize("mode", ["0755", "0000", "rw", "06", "0620", "4600"])
def test_a_file_mode_that_helps_nobody_is_refused(tmp_path: Path, mode: str) -> None:
    (tmp_path / "orchestration.yaml").write_text(f"file_mode: '{mode}'\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match="file_mode"):
        load(tmp_path, env={})


def test_the_cadence_of_a_definition_holds_unless_workflow_says_otherwise(tmp_path: Path) -> None:
    text = "workflows: {w: {steps: [a], review: {every: 4, step: r}}}\nworkflow: {name: w"
    assert loaded(tmp_path, text + "}").chosen_workflow().review_every == 4
    assert loaded(tmp_path, text + ", review_every_n: 2}").chosen_workflow().review_every == 2
    assert loaded(tmp_path, text + ", review_every_n: 0}").chosen_workflow().review_every == 0


def test_step_defaults_are_kept_apart_from_the_definition(tmp_path: Path) -> None:
    text = "step_defaults: {model: small, retry: {max_attempts: 2}, timeout_s: 5}\n"
    settings = loaded(tmp_path, text)
    assert set(settings.step_defaults) == {"model", "retry", "timeout_s"}
    assert settings.step_defaults["retry"].max_attempts == 2
    assert settings.chosen_workflow().digest() == load(Path("/"), env={}).chosen_workflow().digest()


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


def test_empty_keys_mean_their_defaults(tmp_path: Path) -> None:
    text = "workflow:\nagents:\n  # none yet\nrouter: {prompt: ~}\nlimits:\n  max_steps:\n"
    settings = loaded(tmp_path, text)
    assert settings.workflow.name == "standard"
    assert settings.agents == {}
    assert settings.limits == RunLimits()


def test_options_of_an_agent_keep_their_types_and_places(tmp_path: Path) -> None:
    text = "agents:\n  t:\n    kind: command\n    fail_on_denial: true\n    env: {A: 1, B: no}\n"
    agent = loaded(tmp_path, text).agents["t"]
    assert agent.options == {"fail_on_denial": True, "env": {"A": 1, "B": "no"}}
    assert agent.locate(("env", "B")).endswith("orchestration.yaml:5:17: agents.t.env.B")
    assert agent.locate(()).endswith("orchestration.yaml:2:3: agents.t")


def test_a_router_without_a_prompt_is_noticed(tmp_path: Path) -> None:
    settings = loaded(tmp_path, "router: {enabled: true}\n")
    assert settings.router.mode is RouterMode.DEFAULT
    assert "the router is enabled but has no prompt" in settings.notices[0]


def test_every_value_knows_its_source(tmp_path: Path) -> None:
    settings = loaded(
        tmp_path,
        "logs_dir: mine\nrun:\n  max_steps: 5\nagent: {prompts: {a.md: codex}}\n",
        env={"SEQUENCER_RUN__MAX_STEPS": "6", "SEQUENCER_RUN__MODE": "sync"},
        flags={("run", "max_steps"): Given("--max-steps", 7)},
    )
    rows = {key: (value, str(source)) for key, value, source in settings.rows()}
    file = tmp_path / "orchestration.yaml"
    assert settings.run.max_steps == 7
    assert rows["run.max_steps"] == (7, "--max-steps")
    assert rows["run.mode"] == ("sync", "SEQUENCER_RUN__MODE")
    assert rows["logs_dir"] == ("mine", f"{file}:1")
    assert rows["agent.prompts.a.md"] == ("codex", f"{file}:4")
    assert rows["state_file"] == ("sync/state.json", "default")
    assert "agent.prompts" not in rows
    assert rows["agent.roles"] == ({}, "default")


def test_secrets_are_not_listed(tmp_path: Path) -> None:
    text = "agents: {a: {kind: anthropic, api_key: sk-1, env: {GH_TOKEN: t}, keep: k}}\n"
    settings = loaded(tmp_path, text)
    rows = {key: value for key, value, _ in settings.rows()}
    assert rows["agents.a.api_key"] == rows["agents.a.env.GH_TOKEN"] == HIDDEN
    assert rows["agents.a.keep"] == "k"
    assert "sk-1" not in repr(settings)


def test_a_schema_keeps_its_booleans(tmp_path: Path) -> None:
    text = """
workflows:
  w:
    steps:
      - {name: a, single_turn: yes, output: {format: json, schema: {x: true, y: [no, 1, false]}}}
  v: {extends: w, replace: {a: {output: {schema: {z: false}}, suppress_thoughts: true}}}
"""
    settings = loaded(tmp_path, text)
    step, changed = (settings.workflows[name].steps[0] for name in "wv")
    assert step.single_turn
    assert step.output is not None
    assert step.output.json_schema == {"x": True, "y": ["no", 1, False]}
    assert changed.output is not None
    assert (changed.output.json_schema, changed.output.format) == ({"z": False}, "json")
    assert (changed.single_turn, changed.suppress_thoughts) == (True, True)


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
