from __future__ import annotations

import json
import platform
import re
from pathlib import Path

import pytest

from sequencer import __version__
from tests.unit.cli.calling import CONFIGURATION, call, project, worked
from tests.unit.settings.loading import loaded
from tests.unit.store.broken_runs import edit


def test_the_state_of_a_named_run_is_checked(tmp_path: Path) -> None:
    worked(tmp_path, 0)
    assert call(tmp_path, "--run", "Night 1", "run", "--max-steps", "2", "--quiet").code == 0
    folder = next((tmp_path / "sync" / "runs").iterdir())
    edit(folder / "state.json", run_id="another")
    assert call(tmp_path, "check").code == 0
    assert call(tmp_path, "--run", "Night 1", "check").code == 3
    (tmp_path / "orchestration.yaml").write_text("nonsense: 1\n")
    called = call(tmp_path, "--run", "Night 1", "check", "--json")
    assert {finding["area"] for finding in called.json["findings"]} == {"configuration", "state"}


def test_an_unknown_run_is_an_error(tmp_path: Path) -> None:
    called = call(worked(tmp_path, 1), "check", "--run", "nightly")
    assert called.code == 2
    assert "unknown run" in called.err


@pytest.mark.parametrize("option", [(), ("--run", "night")])
def test_a_server_that_does_not_answer_is_one_finding_among_others(
    option: tuple[str, ...], tmp_path: Path
) -> None:
    pytest.importorskip("temporalio")
    store = 'store: {kind: temporal, address: "127.0.0.1:1", timeout_s: 1}\n'
    folder = project(tmp_path, f"{CONFIGURATION}{store}supervisor_prompt: gone.md\n")
    called = call(folder, *option, "check", "--json")
    assert (called.code, called.err) == (2, "")
    errors = [one for one in called.json["findings"] if one["level"] == "error"]
    assert sorted(error["area"] for error in errors) == ["remote", "workflow"]
    assert "does not answer" in str(errors)
    assert "gone.md" in str(errors)


@pytest.mark.parametrize("option", [(), ("--run", "night")])
def test_a_server_that_may_not_be_asked_is_one_finding_among_others(
    option: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("temporalio")
    monkeypatch.delenv("SEQUENCER_TRUST", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    store = 'store: {kind: temporal, address: "127.0.0.1:1", timeout_s: 1}\n'
    agents = "agents: {other: {kind: command, argv: [no-such-program]}}\n"
    folder = project(tmp_path / "p", f"{CONFIGURATION}{store}{agents}")
    called = call(folder, *option, "check", "--json")
    assert (called.code, called.err) == (2, "")
    assert "not trusted" in str([one for one in called.json["findings"] if one["level"] == "error"])
    assert "no-such-program" in str(called.json["findings"])


def test_errors_of_hooks_and_sinks_have_a_line(tmp_path: Path) -> None:
    text = (
        f"{CONFIGURATION}hooks: [../x.py]\nactivity:\n  sinks:\n    a: {{kind: github, issue: 3,\n"
        "        repository: o/r}\n    b: {kind: jsonl, path: /x, }\n"
    )
    folder = project(tmp_path, text)
    findings = call(folder, "check", "--json").json["findings"]
    places = [Path(one["where"]).name for one in findings if one["level"] == "error"]
    assert places == [
        "orchestration.yaml:3: hooks[0]",
        "orchestration.yaml:6: activity.sinks.a.token_env",
        "orchestration.yaml:8: activity.sinks.b.path",
    ]
    started = call(folder, "run", "--max-steps", "1").err
    assert "orchestration.yaml:6: activity.sinks.a.token_env: the variable" in started
    (folder / "orchestration.yaml").write_text(f"{CONFIGURATION}hooks: [../x.py]\n")
    started = call(folder, "run", "--max-steps", "1").err
    assert "orchestration.yaml:3: hooks[0]: '../x.py' leads out" in started


def test_a_missing_config_file_is_an_error(tmp_path: Path) -> None:
    called = call(tmp_path, "check", "--config", "other.yaml")
    assert called.code == 2
    assert "file not found" in called.out


def test_json_has_everything(tmp_path: Path) -> None:
    project(tmp_path, CONFIGURATION + "auto_commit_docs: true\n", "supervisor.md", "reviewer.md")
    called = call(tmp_path, "check", "--json")
    assert called.code == 2
    found = called.json
    assert (found["ok"], found["exit_code"]) == (False, 2)
    assert {finding["level"] for finding in found["findings"]} == {"error", "notice"}
    assert set(found["findings"][0]) == {"level", "area", "message", "where", "hint"}


def test_check_lists_every_notice_and_other_commands_print_one_line(tmp_path: Path) -> None:
    project(tmp_path, CONFIGURATION + "auto_commit_docs: true\nfindings_file: a.md\n")
    checked = call(tmp_path, "check").out.splitlines()
    assert [line.partition(":")[0] for line in checked] == ["notice", "notice", "nothing is wrong"]
    assert "'auto_commit_docs'" in checked[1]
    told = "notice: 2 settings have no effect here; 'sequencer check' lists them\n"
    assert call(tmp_path, "plan").err == told
    (tmp_path / "orchestration.yaml").write_text(CONFIGURATION + "findings_file: a.md\n")
    assert "'findings_file' has no effect here" in call(tmp_path, "plan").err


def test_settings_have_their_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project(tmp_path, CONFIGURATION + "limits: {max_cost_usd: 5}\n")
    monkeypatch.setenv("SEQUENCER_LIMITS__STEPS", "7")
    called = call(tmp_path, "check", "--settings", "--json")
    assert called.code == 0, called.err
    rows = {row["key"]: row for row in called.json}
    assert rows["limits.cost_usd"]["source"].endswith("orchestration.yaml:3")
    assert rows["limits.steps"]["source"] == "SEQUENCER_LIMITS__STEPS"
    assert rows["prompts_dir"] == {"key": "prompts_dir", "value": "prompts", "source": "default"}


def test_settings_as_json_keep_their_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """\
agent: x
agents: {x: {kind: command, argv: [cat, "true"], free: true, env: {A: "true", B: "7"}}}
router: {enabled: true, timeout_s: 5, prompt: "on"}
step_defaults: {suppress_thoughts: false, tools: {bash: false}, max_turns: 3}
steps:
  - {name: one, text: "true", single_turn: yes, approval: {timeout_s: 5}, requires_approval: true}
teams: {roles: {lead: {writes: true, tools: null}}}
"""
    monkeypatch.setenv("SEQUENCER_WORKTREE", "no")
    monkeypatch.setenv("SEQUENCER_LIMITS__STEPS", "9")
    monkeypatch.setenv("SEQUENCER_LIMITS__COST_USD", "2.5")
    monkeypatch.setenv("SEQUENCER_RUN__MAX_STEPS", "none at all")
    folder = project(tmp_path, text)
    assert "run.max_steps" in call(folder, "check", "--settings", "--json").err
    monkeypatch.delenv("SEQUENCER_RUN__MAX_STEPS")
    rows = call(folder, "check", "--settings", "--json").json
    found = {row["key"]: row["value"] for row in rows if row["source"] != "default"}
    expected = {
        "agents.x.free": True,
        "router.enabled": True,
        "worktree": False,
        "step_defaults.suppress_thoughts": False,
        "step_defaults.tools.bash": False,
        "teams.roles.lead.writes": True,
        "teams.roles.lead.tools": None,
        "router.timeout_s": 5,
        "step_defaults.max_turns": 3,
        "limits.steps": 9,
        "limits.cost_usd": 2.5,
        "router.prompt": "on",
        "agents.x.argv": ["cat", "true"],
        "agents.x.env.A": "true",
        "agents.x.env.B": "7",
    }
    assert {key: found[key] for key in expected} == expected
    (step,) = found["workflows.default.steps"]
    approval = {"requires_approval": True, "approval": {"timeout_s": 5}}
    assert step == {"name": "one", "text": "true", "single_turn": True, **approval}


def test_settings_in_yaml_are_the_whole_configuration(tmp_path: Path) -> None:
    text = """\
agent: rehearsal
steps: [plan, {name: build, timeout_s: 60, output: {key: a.token, format: json}}]
review: {every: 3, agent: rehearsal}
retry: 3
agents: {"t 1": {kind: command, argv: [sh, "%s"], max_key: 3}}
store: {tls: {key: client.pem}}
""" % ("long " * 40)
    printed = call(project(tmp_path, text), "check", "--settings").out
    again = tmp_path / "again"
    again.mkdir()
    assert "key: client.pem" in printed
    assert 'max_key: "(hidden)"' in printed
    assert "# orchestration.yaml:4" in printed
    assert "  steps: null " in printed
    first, second = loaded(tmp_path, text), loaded(again, printed.replace('"(hidden)"', "3"))
    for name in ("agent", "workflows", "workflow", "limits", "store", "agents", "run"):
        assert str(getattr(first, name)) == str(getattr(second, name)), name
    assert first.step_defaults["retry"] == second.step_defaults["retry"]


def test_settings_hide_secrets(tmp_path: Path) -> None:
    secret = "sk-" + "a1B2" * 12
    text = f"agents: {{t: {{kind: command, argv: [sh], env: {{MY_API_KEY: {secret}}}}}}}\n"
    called = call(project(tmp_path, CONFIGURATION + text), "check", "--settings")
    assert secret not in called.out
    assert "review_every_n: null" in called.out


def test_a_report_is_one_block_without_secrets_or_home_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DEPLOY_TOKEN", "hunter2-hunter2")
    text = (
        "steps: [plan]\nagent: sh\nagents:\n  sh:\n    kind: command\n"
        f"    argv: [sh, -c, 'x ```', {tmp_path}/bin/tool, hunter2-hunter2]\n"
        "    env: {PLAIN: 'my own words'}\n"
    )
    folder = project(tmp_path / "p", text, "plan.md")
    said = call(folder, "check", "--report").out
    lines = said.splitlines()
    assert (lines[0], lines[-1], said.count("```")) == ("```text", "```", 2)
    assert f"sequencer: {__version__}" in lines
    assert f"python: CPython {platform.python_version()}" in lines
    assert re.search(r"(?m)^packages: .*\bclick 8\.", said)
    assert "  agents.sh.argv: " in said
    assert "~/bin/tool" in said
    assert "orchestration.yaml:6" in said
    for private in ("hunter2", "my own words", str(tmp_path)):
        assert private not in said
    assert re.search(r"\(hidden, \w+\)", said) is None
    facts = call(folder, "check", "--report", "--json").json
    assert facts["settings"]
    assert "hunter2" not in json.dumps(facts)


@pytest.mark.parametrize(
    "given",
    [
        "--api-key=swordfish",
        "--password, swordfish",
        "-token, 'swordfish'",
        "--db_secret=swordfish",
    ],
)
def test_a_report_hides_secrets_in_command_arguments(tmp_path: Path, given: str) -> None:
    text = f"steps: [plan]\nagent: sh\nagents: {{sh: {{kind: command, argv: [sh, {given}]}}}}\n"
    said = call(project(tmp_path / "p", text, "plan.md"), "check", "--report").out
    assert ("swordfish" in said, "  agents.sh.argv: " in said) == (False, True)


def test_a_report_on_an_unusable_file_contains_its_error(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", "stepz: [plan]\n")
    ended = call(folder, "check", "--report")
    assert ended.code == 2
    assert "settings: none" in ended.out
    assert "unknown key 'stepz'; did you mean 'steps'?" in ended.out
    assert "Traceback" not in call(tmp_path, "check", "--report").err
