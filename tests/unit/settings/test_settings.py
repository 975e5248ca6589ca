from __future__ import annotations

from pathlib import Path

import pytest

from sequencer.errors import ConfigurationError, UnknownName, UnsafePath
from sequencer.files.yamlfile import format_key_path
from sequencer.project.legacy import TEAM_KEYS, TOP_KEYS
from sequencer.project.settings import HIDDEN, load
from tests.unit.settings.loading import loaded, refusal, refusals


@pytest.mark.parametrize("kind", ["file", "git", "temporal"])
def test_commits_and_worktrees_depend_on_the_store(tmp_path: Path, kind: str) -> None:
    text = f"store: {{kind: {kind}}}\ncommit: {{paths: [docs/]}}\n"
    (tmp_path / "orchestration.yaml").write_text(text)
    notices = load(tmp_path, env={}).notices
    assert any("'commit.paths' has no effect" in one for one in notices) is (kind == "file")
    (tmp_path / "orchestration.yaml").write_text(f"store: {{kind: {kind}}}\nworktree: true\n")
    if kind == "file":
        assert load(tmp_path, env={}).notices == ()
        return
    with pytest.raises(ConfigurationError, match="not in a worktree"):
        load(tmp_path, env={})


@pytest.mark.parametrize("mode", ["0755", "0000", "rw", "06", "0620", "4600"])
def test_a_useless_file_mode_is_refused(tmp_path: Path, mode: str) -> None:
    (tmp_path / "orchestration.yaml").write_text(f"file_mode: '{mode}'\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match="file_mode"):
        load(tmp_path, env={})


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        ("rooter: {}\nx: 1\n", "1:1", "unknown key 'rooter'"),
        ("rooter:\n", "1:1", "unknown key 'rooter'"),
        ("stepz: [a]\nreview: {every: 2}\n", "1:1", "unknown key 'stepz'"),
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
        ("logs_dir: true\n", "1:1: logs_dir", "expected text; put it in quotes, not true"),
        ("agents: {a: claude}\n", "1:10: agents.a", "an agent must be a mapping with 'kind'"),
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
            "workflows: {w: {steps: [{name: a, agent: robot}]}}\n",
            "1:35: workflows.w.steps[0].agent",
            "unknown agent 'robot'",
        ),
        (
            "workflows: {w: {steps: [a], review: {every: 1, step: {name: r, agent: x}}}}\n",
            "1:64: workflows.w.review.step.agent",
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
        ("router: {allowlist: [a, /b]}\n", "1:25: router.allowlist[1]", "is an absolute path"),
        ("router: {enabled: true, mode: only}\n", "1:1: router.prompt", "needs a prompt"),
        ("step_defaults: {name: x}\n", "1:17: step_defaults.name", "can't be a default"),
        ("step_defaults: {agent: x}\n", "1:17: step_defaults.agent", "'agent' at the top"),
        ("step_defaults: {tiemout_s: 1}\n", "1:17: step_defaults", "unknown key 'tiemout_s'"),
        ("store: {journal: {keep: 0}}\n", "1:19: store.journal.keep", "or equal to 1"),
    ],
)
def test_an_error_names_its_reason_and_place(
    tmp_path: Path, text: str, where: str, message: str
) -> None:
    first = refusals(tmp_path, text)[0]
    assert first.where == f"{tmp_path / 'orchestration.yaml'}:{where}"
    assert message in first.message


def test_every_problem_of_a_file_is_reported_in_its_order(tmp_path: Path) -> None:
    text = """\
limits: {max_steps: none}
colour: blue
workflows:
  nightly:
    steps: [a, {name: b, modle: x}, {name: c, agent: robot}]
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
    rows = {format_key_path(key): value for key, value, _ in settings.rows()}
    assert rows["agents.a.api_key"] == rows["agents.a.env.GH_TOKEN"] == HIDDEN
    assert rows["agents.a.keep"] == "k"
    assert "sk-1" not in repr(settings)


def test_a_journal_that_is_pushed_with_each_transition_may_not_be_long(tmp_path: Path) -> None:
    error = refusal(
        tmp_path, "store:\n  kind: git\n  journal:\n    keep: 3\n    rotate_bytes: 1048577\n"
    )
    assert str(error) == (
        f"{tmp_path}/orchestration.yaml:5:5: store.journal.rotate_bytes: must be at most 1048576 "
        "with kind git, not 1048577\n  each transition pushes the whole open journal"
    )


def test_a_variable_cannot_make_the_git_journal_long_either(tmp_path: Path) -> None:
    variable = "SEQUENCER_STORE__JOURNAL__ROTATE_BYTES"
    error = refusal(tmp_path, "store: {kind: git}", env={variable: "2097152"})
    assert str(error).startswith(f"{variable}: store.journal.rotate_bytes: must be at most")


ROUTING = """
routing:
  labels: {debugger: [defect]}
  system_prompts:
    scoper: {labels: [rfc]}
    detective: {labels: [defect], prompt: roles/detective.md}
  classifier: quick
  timeout_s: 5
  fallback: mine
  procedures: {code: mine, question: plan-mode}
  substitutions: {"https://linear.app/linear/": "https://linear.app/acme/"}
agents: {quick: {kind: rehearsal}}
workflows: {mine: {kind: procedure, steps: [a]}, loop: {steps: [a]}}
"""


@pytest.mark.parametrize(
    ("old", "new", "place", "said"),
    [
        ("fallback: mine", "fallback: loop", "9:3: routing.fallback", "'loop' is a cycle"),
        ("fallback: mine", "fallback: my", "9:3: routing.fallback", "unknown procedure 'my'"),
        ("code: mine", "code: standard", "10:16: routing.procedures.code", "is a cycle"),
        ("code: mine", "codes: mine", "10:16: routing.procedures.codes", "'question'"),
        ("classifier: quick", "classifier: quik", "7:3: routing.classifier", "mean 'quick'"),
        ("roles/det", "../det", "6:35: routing.system_prompts.detective.prompt", "'..' in it"),
        (", prompt: roles/detective.md", "", "4:3: routing.system_prompts", "needs labels and a"),
        ("[rfc]", "rfc", "5:14: routing.system_prompts.scoper.labels", "expected a list"),
        ("timeout_s: 5", "timeout_s: -5", "8:3: routing.timeout_s", "greater than 0"),
        ("labels: {deb", "label: {deb", "3:3: routing", "unknown key 'label'"),
        ("{debugger: [d", "{builder: [d", "3:12: routing.labels", "unknown key 'builder'"),
        ("substitutions: {", 'substitutions: {"": x, ', "11:19: routing.subst", "at least 1 char"),
    ],
)
def test_wrong_routing_is_refused_at_its_place(
    tmp_path: Path, old: str, new: str, place: str, said: str
) -> None:
    text = ROUTING.replace(old, new, 1)
    assert text != ROUTING
    error = refusal(tmp_path, text)
    assert f"orchestration.yaml:{place}" in str(error.where)
    assert said in str(error)


# --- lists of tasks in orchestration.yaml, and the roles that their tasks have ----------------


def test_all_problems_of_task_lists_are_reported_at_once(tmp_path: Path) -> None:
    text = """
workflows:
  mine:
    tasks:
      - {id: a, subject: A, role: nobody, blocked_by: [b, x]}
      - {id: b, subjct: B, blocked_by: [a]}
      - {id: a, subject: A, agent: nobody}
  other:
    tasks:
      - {id: a, subject: A, blocked_by: a}
"""
    said = "\n".join(map(str, refusals(tmp_path, text)))
    for place, what in (
        ("5:29: workflows.mine.tasks[0].role", "there is no role 'nobody'"),
        ("5:43: workflows.mine.tasks[0].blocked_by", "circle: a -> b -> a"),
        ("5:59: workflows.mine.tasks[0].blocked_by[1]", "there is no task 'x'"),
        ("6:9: workflows.mine.tasks[1].subject", "has to be there"),
        ("6:17: workflows.mine.tasks[1]", "unknown key 'subjct'"),
        ("7:10: workflows.mine.tasks[2].id", "two tasks are called 'a'"),
        ("10:29: workflows.other.tasks[0].blocked_by[0]", "waits for itself"),
    ):
        found = [line for line in said.splitlines() if f"orchestration.yaml:{place}: " in line]
        assert [what in line for line in found] == [True], place


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("{tasks: []}", "it has no tasks"),
        ("{size: 3}", "it has no tasks"),
        ("{tasks: [{id: a, subject: A}], steps: [b]}", "steps can't be combined with tasks"),
        ("{tasks: [{id: a, subject: A}], kind: procedure}", "kind can't be combined with tasks"),
        (
            "{tasks: [{id: a, subject: A}], review: {step: b}}",
            "review can't be combined with tasks",
        ),
        (
            "{tasks: [{id: a, subject: A}], extends: standard}",
            "extends can't be combined with tasks",
        ),
        ("{tasks: [{id: a, subject: A}], file: x.md}", "tasks can't be combined with file"),
        ("{tasks: [{id: a, subject: A}], size: 0}", "greater than or equal to 1"),
        ("{tasks: 3}", "expected a list"),
        ("{tasks: [a]}", "expected a mapping"),
        ("{tasks: [{id: a, subject: A, requires_approval: true}]}", "a flowchart can"),
    ],
)
def test_an_invalid_task_list_is_refused(tmp_path: Path, entry: str, said: str) -> None:
    assert said in str(refusal(tmp_path, f"workflows: {{mine: {entry}}}"))


@pytest.mark.parametrize("name", ["tasks.md", "tasks.yaml"])
def test_a_task_list_may_have_its_own_file(tmp_path: Path, name: str) -> None:
    texts = {
        "tasks.md": "# T\n\n## a: A\n\n## b: B\nblocked_by: a\n",
        "tasks.yaml": "tasks: [{id: a, subject: A}, {id: b, subject: B, blocked_by: a}]\n",
    }
    (tmp_path / name).write_text(texts[name])
    settings = loaded(tmp_path, f"workflows: {{mine: {name}}}")
    workflow = settings.registry.get("mine")
    assert (workflow.name, workflow.kind) == ("mine", "graph")
    assert workflow.graph is not None
    assert workflow.graph.has_tasks
    assert settings.registry.get("mine") is workflow


@pytest.mark.parametrize(
    ("every", "asking", "target", "is_refused"),
    [
        (2, "review", "typo", True),
        (2, "review", "a", False),
        (2, "review", "b", False),
        (2, "review", "review", False),
        (1, "review", "b", True),
        (1, "review", "review", False),
        (2, "b", "review", True),
    ],
)
def test_feedback_at_a_review_leads_back(
    tmp_path: Path, every: int, asking: str, target: str, is_refused: bool
) -> None:
    gate = f"requires_approval: true, approval: {{feedback_to: {target}}}"
    texts = {name: f"{{name: {name}}}" for name in ("a", "b", "review")}
    texts[asking] = f"{{name: {asking}, {gate}}}"
    steps, review = f"[{texts['a']}, {texts['b']}]", texts["review"]
    text = f"workflows: {{w: {{steps: {steps}, review: {{every: {every}, step: {review}}}}}}}"
    if is_refused:
        said = refusal(tmp_path, text).message
        assert said.startswith(f"feedback at the gate '{asking}' goes to step '{target}', which")
    else:
        assert loaded(tmp_path, text).workflows["w"].review is not None


# --- ``teams:`` as the settings have it, also under the names that other programs use ---------

TEAMS = """
teams:
  enabled: yes
  threshold: 70
  max_size: 6
  classifications: [orchestrator]
  lead_model: opus
  teammate_model: sonnet
  score:
    keywords: {payment: 20, refactor: 0}
    labels: {needs-a-team: 100}
    subtasks: {each: 10}
    size_from: [40, 60, 80]
  roles:
    verifier: {model: haiku, tools: {edit: false}, timeout_s: null, budget: {max_tokens: 5}}
    tester:
      writes: true
      single_turn: true
      output: {format: json, schema: {type: object, additionalProperties: false}}
  budget: {max_cost_usd: 12, on_hard: kill}
"""
ALIASES = """
enableAgentTeams: true
teamConfig:
  complexityThreshold: 55
  maxTeamSize: 6
  teammateModel: sonnet
  leadModel: opus
  enabledClassifications: [orchestrator, code]
"""


def test_the_step_fields_of_a_role_keep_their_types(tmp_path: Path) -> None:
    roles = loaded(tmp_path, TEAMS).section("teams").roles
    verifier, tester = roles["verifier"].step, roles["tester"].step
    # `null` is a statement there: it takes away what the built-in role has.
    assert verifier["timeout_s"] is None
    assert (verifier["model"], roles["verifier"].writes) == ("haiku", False)
    assert tester["output"]["schema"] == {"type": "object", "additionalProperties": False}


@pytest.mark.parametrize(
    ("old", "new", "place", "said"),
    [
        ("threshold: 70", "treshold: 70", "4:3: teams", "did you mean 'threshold'?"),
        ("threshold: 70", "threshold: 101", "4:3: teams.threshold", "less than or equal to 100"),
        ("max_size: 6", "max_size: 0", "5:3: teams.max_size", "greater than or equal to 1"),
        ("[orchestrator]", "[orchestra]", "6:21: teams.classifications[0]", "'orchestrator'"),
        ("each: 10", "eech: 10", "12:16: teams.score.subtasks", "did you mean 'each'?"),
        ("refactor: 0", "refactor: x", "10:29: teams.score.keywords.refactor", "a whole number"),
        ("model: haiku", "modle: haiku", "15:16: teams.roles.verifier", "did you mean 'model'?"),
        ("model: haiku", "model: -x", "15:16: teams.roles.verifier.model", "not start with '-'"),
        (
            *("edit: false", "edti: false", "15:38: teams.roles.verifier.tools.edti"),
            "should be 'read'",
        ),
        ("model: haiku", "agent: x", "15:16: teams.roles.verifier.agent", "unknown agent"),
        ("model: haiku", "prompt: ../x", "15:16: teams.roles.verifier.prompt", "'..' in it"),
        (
            *("model: haiku", "system_prompt: /x", "15:16: teams.roles.verifier.system_prompt"),
            "name a file below the prompts folder",
        ),
        ("type: object", "type: objekt", "19:30: teams.roles.tester.output.schema", "objekt"),
        ("max_tokens: 5", "max_tokens: 0", "15:78: teams.roles.verifier.budget.max_t", "than 0"),
        ("writes: true", "requires_approval: true", "17:7: teams.roles.tester", "unknown key"),
        ("writes: true", "step: {model: x}", "16:5: teams.roles.tester", "unknown key 'step'"),
        ("writes: true", "step: 3", "16:5: teams.roles.tester", "next to the role's own"),
        ("refactor: 0", '"|": 0', "10:29: teams.score.keywords.|", "needs a letter or a digit"),
        (
            *("    keywords", "    procedures: {nope: 20}\n    keywords"),
            *("10:18: teams.score.procedures.nope", "unknown procedure 'nope'"),
        ),
    ],
)
def test_a_wrong_value_is_refused_at_its_place(
    tmp_path: Path, old: str, new: str, place: str, said: str
) -> None:
    text = TEAMS.replace(old, new, 1)
    assert text != TEAMS
    error = refusal(tmp_path, text)
    assert f"orchestration.yaml:{place}" in str(error.where)
    assert said in str(error)


# --- the other names ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "place", "said"),
    [
        ("Teams: true", "Teams: 3", "2:1: enableAgentTeams", "expected true or false, not 3"),
        ("55", "550", "4:3: teamConfig.complexityThreshold", "less than or equal to 100, not 550"),
        ("maxTeamSize: 6", "maxTeamSize: six", "5:3: teamConfig.maxTeamSize", "not 'six'"),
        ("sonnet", "-sonnet", "6:3: teamConfig.teammateModel", "does not start with '-'"),
        ("leadModel: opus", "leadModel: [a]", "7:3: teamConfig.leadModel", "expected text"),
        ("code]", "cod]", "8:42: teamConfig.enabledClassifications[1]", "'code'"),
        ("[orchestrator, code]", "code", "8:3: teamConfig.enabledClassif", "expected a list"),
        ("leadModel", "leadmodel", "7:3: teamConfig", "did you mean 'leadModel'?"),
        ("enableAgentTeams", "enableAgentTeam", "2:1", "unknown key 'enableAgentTeam'"),
    ],
)
def test_a_wrong_value_is_named_as_it_was_written(
    tmp_path: Path, old: str, new: str, place: str, said: str
) -> None:
    text = ALIASES.replace(old, new, 1)
    assert text != ALIASES
    error = refusal(tmp_path, text)
    assert f"orchestration.yaml:{place}" in str(error.where)
    assert said in str(error)


@pytest.mark.parametrize("value", ["yes", "[a]", "3"])
def test_a_team_configuration_that_is_not_a_mapping_is_refused(tmp_path: Path, value: str) -> None:
    error = refusal(tmp_path, f"teamConfig: {value}\n")
    assert str(error.where).endswith("orchestration.yaml:1:1: teamConfig")
    assert "expected a mapping" in str(error)


VALUES = {
    "enabled": ("true", "false"),
    "threshold": ("10", "20"),
    "max_size": ("2", "3"),
    "teammate_model": ("a", "b"),
    "lead_model": ("a", "b"),
    "classifications": ("[code]", "[debugger]"),
}


@pytest.mark.parametrize(("written", "path"), TEAM_KEYS.items(), ids=str)
@pytest.mark.parametrize("is_equal", [True, False])
def test_both_names_of_one_thing_are_refused(
    tmp_path: Path, written: tuple[str, ...], path: tuple[str, ...], is_equal: bool
) -> None:
    one, other = VALUES[path[1]]
    nested = f"{written[0]}: {{{written[1]}: {one}}}" if written[1:] else f"{written[0]}: {one}"
    key, value = path[1], one if is_equal else other
    for before in (True, False):
        new = f"teams:\n  {key}: {value}\n"
        text = f"{new}{nested}\n" if before else f"{nested}\n{new}"
        error = refusal(tmp_path, text)
        line = 3 if before else 1
        assert f"orchestration.yaml:{line}:" in str(error.where)
        assert str(error.where).endswith(f": {'.'.join(written)}")
        assert f"teams.{key} in line {2 if before else 3} is the same setting" in str(error)
        assert f"leave out {'.'.join(written)} or teams.{key}" in str(error)


def test_all_problems_are_reported_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = "teams: {max_size: 99}\nteamConfig: {complexityThreshold: x, maxTeamSize: 3, leed: 1}\n"
    expected = [
        "1:9: teams.max_size: should be less",
        "2:14: teamConfig.complexityThreshold: expected a whole",
        "2:38: teamConfig.maxTeamSize: teams.max_size in line 1 is the same setting",
        "2:54: teamConfig: unknown key 'leed'",
    ]
    told = [str(error) for error in refusals(tmp_path, text)]
    assert len(told) == len(expected)
    assert all(part in line for part, line in zip(expected, told, strict=True))


EXTENDING = """
agents:
  tests: {kind: command, argv: [make, test]}
workflows:
  my-dev:
    extends: full-development
    replace:
      verifications: {agent: tests, validation: {max_attempts: 2}}
    before: {git-gh: [security-review]}
    after: {coding-activity: [{name: x, prompt: look.md, timeout_s: 60}]}
    remove: [concise-summary]
  full-development:
    extends: full-development
    replace: {concise-summary: {prompt: subroutines/verbose-summary.md}}
"""


@pytest.mark.parametrize(
    ("old", "new", "place", "said"),
    [
        (
            "security-review]",
            "{name: s, nam: x}]",
            "9:33: workflows.my-dev.before.git-gh[0]",
            "'nam'",
        ),
        ("agent: tests", "exec: tests", "8:23: workflows.my-dev.replace.verifications", "exec"),
        ("git-gh:", "git:", "9:14: workflows.my-dev.before.git", "known full-development steps"),
        ("max_attempts: 2", "max_attempts: 0", "8:50: ", "greater than or equal to 1"),
        ("[concise-summary]", "[summary]", "11:14: workflows.my-dev.remove[0]", "did you mean"),
        ("extends: full-development\n    rep", "extends: full\n    rep", "6:5: ", "unknown workfl"),
        ("agent: tests", "agent: test", "8:23: ", "did you mean 'tests'"),
        ("prompt: look.md", "prompt: ../look.md", "10:41: ", "'..' in it"),
        ("{prompt: sub", "{prompt: /sub", "14:33: ", "is an absolute path"),
        ("agent: tests", "requires_approval: false, approval: {}", "8:7: ", "can't be changed"),
        ("[security-review]", "[verifications]", "5:3: workflows.my-dev", "twice: verifications"),
        ("extends: full-development\n    rep", "rep", "5:3: workflows.my-dev", "without extends"),
        (
            "remove: [concise-summary]",
            "steps: [a]",
            "5:3: workflows.my-dev",
            "steps can't be combined with extends",
        ),
    ],
)
def test_a_wrong_change_is_refused_at_its_place(
    tmp_path: Path, old: str, new: str, place: str, said: str
) -> None:
    assert old in EXTENDING
    error = refusal(tmp_path, EXTENDING.replace(old, new, 1))
    assert f"orchestration.yaml:{place}" in str(error.where)
    assert said in str(error)


def test_a_cycle_of_workflows_is_refused_at_its_place(tmp_path: Path) -> None:
    text = "workflows:\n  a: {extends: b}\n  b: {extends: a}\n"
    error = refusal(tmp_path, text)
    assert str(error.where).endswith("orchestration.yaml:2:7: workflows.a.extends")
    assert "'a' extends 'b', 'b' extends 'a'" in error.message


def test_feedback_has_to_lead_back(tmp_path: Path) -> None:
    text = "workflows:\n  d: {extends: debugger-full, remove: [debugger-reproduction]}\n"
    error = refusal(tmp_path, text)
    assert "goes to step 'debugger-reproduction', which is neither" in error.message
    assert str(error.where).endswith("orchestration.yaml:2:3: workflows.d")
    gate = "{name: gate, requires_approval: true, approval: {feedback_to: %s}}"
    steps = f"workflows: {{w: {{kind: procedure, steps: [a, {gate}, b]}}}}"
    assert "'gate' goes to step 'b'" in refusal(tmp_path, steps % "b").message
    for target in ("a", "gate"):
        assert loaded(tmp_path, steps % target).workflows["w"].steps[1].approval is not None


# --- ``teams:`` as the settings have it, also under the names that other programs use ---------

# --- the other names ------------------------------------------------------------------


def test_the_alternative_names_set_the_team_settings(tmp_path: Path) -> None:
    settings = loaded(tmp_path, ALIASES)
    teams = settings.section("teams")
    assert (teams.enabled, teams.threshold, teams.max_size) == (True, 55, 6)
    assert (teams.teammate_model, teams.lead_model) == ("sonnet", "opus")
    assert teams.classifications == ("orchestrator", "code")
    assert settings.notices == ()
    assert str(settings.sources["teams", "threshold"]).endswith("orchestration.yaml:4")
    rows = {format_key_path(key): value for key, value, _ in settings.rows()}
    assert rows["teams.lead_model"] == "opus"
    assert not [key for key in rows if key.startswith(tuple(TOP_KEYS))]
