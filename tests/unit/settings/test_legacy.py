"""The configuration file of hoidn/orchestration, as its README shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sequencer.errors import ConfigurationError
from sequencer.model.sequence.order import resolve
from sequencer.project.legacy import tables
from sequencer.project.settings import Settings, load

WHOLE = """\
workflow:
  name: review_cadence
  review_every_n: 2
prompts_dir: prompts
supervisor_prompt: supervisor.md
main_prompt: main.md
reviewer_prompt: reviewer.md
state_file: sync/state.json
doc_whitelist:
  - input.md
  - plans/**/*.md
tracked_output_globs:
  - tests/fixtures/**/*.npy
findings_file: docs/findings.md
input_file: input.md
logs_dir: logs
tmp_dir: tmp
report_extensions: [".png", .md]
tracked_output_extensions: [.npy]
router:
  enabled: false
  mode: router_default
  prompt: router.md
  review_every_n: 0
  allowlist:
    - supervisor.md
    - main.md
    - reviewer.md
agent:
  default: auto
  roles:
    galph: claude
    ralph: codex
  prompts:
    supervisor.md: codex
    main.md: claude
spec_bootstrap:
  templates_dir: ~/Documents/project-templates
  state_file: sync/spec_bootstrap_state.json
"""


def loaded(tmp_path: Path, text: str) -> Settings:
    (tmp_path / "orchestration.yaml").write_text(text, encoding="utf-8")
    return load(tmp_path, env={})


def test_the_whole_file_loads_as_it_is(tmp_path: Path) -> None:
    settings = loaded(tmp_path, WHOLE)
    workflow = settings.default_workflow()
    names = [resolve(workflow, index).name for index in range(6)]
    assert names == ["supervisor", "main", "reviewer", "reviewer", "supervisor", "main"]
    assert settings.router.allowlist == ("supervisor.md", "main.md", "reviewer.md")
    assert settings.agent.roles == {"galph": "claude", "ralph": "codex"}
    assert settings.state_file == tmp_path / "sync" / "state.json"


@pytest.mark.parametrize(
    "key",
    [
        *sorted(tables().ignored_keys),
        *("auto_commit_anything", "autocommit_anything", "max_odd_bytes", "max_log_file_bytes"),
    ],
)
@pytest.mark.parametrize("store", ["", "store: {kind: git}\n"])
def test_keys_that_mean_nothing_have_no_effect(tmp_path: Path, key: str, store: str) -> None:
    plain = loaded(tmp_path, store)
    settings = loaded(tmp_path, f"{key}: [anything]\n{store}")
    assert len(settings.notices) == 1
    assert "has no effect here" in settings.notices[0]
    assert settings.values == plain.values


@pytest.mark.parametrize(
    ("text", "every"),
    [
        ("router: {review_every_n: 3}", 3),
        ("router_review_every_n: 3", 3),
        ("router_review_every_n: 3\nrouter: {review_every_n: 4}", 4),
        ("router: {review_every_n: 3}\nworkflow_review_every_n: 0", 0),
    ],
)
def test_the_cadence_of_the_router_is_inherited(tmp_path: Path, text: str, every: int) -> None:
    settings = loaded(tmp_path, f"workflow_name: review_cadence\n{text}\n")
    assert settings.default_workflow().review_every == every


GIT = "store: {kind: git}\n"


def test_the_old_commit_keys_set_the_commit_section(tmp_path: Path) -> None:
    settings = loaded(tmp_path, WHOLE + GIT)
    commit = settings.commit
    assert commit.doc_whitelist == ("input.md", "plans/**/*.md")
    assert commit.report_extensions == (".png", ".md")
    assert commit.tracked_output_globs == ("tests/fixtures/**/*.npy",)
    assert commit.tracked_output_extensions == (".npy",)
    assert commit.exclude == ("tmp/",)
    assert commit.is_open
    assert not [notice for notice in settings.notices if "whitelist" in notice]
    assert len(settings.notices) == 4


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("auto_commit_docs: no", "docs", False),
        ("auto_commit_reports: false", "reports", False),
        ("auto_commit_tracked_outputs: off", "tracked_outputs", False),
        ("autocommit_whitelist: 'a.md, b/**,'", "doc_whitelist", ("a.md", "b/**")),
        ("doc_whitelist: []\nautocommit_whitelist: [a]", "doc_whitelist", ("a",)),
        ("report_extensions: '.PNG,.md'", "report_extensions", (".png", ".md")),
        ("report_path_globs: [reports/**]", "report_path_globs", ("reports/**",)),
        ("max_autocommit_bytes: 7", "max_file_bytes", 7),
        ("max_report_file_bytes: 7", "max_report_file_bytes", 7),
        ("max_report_total_bytes: 7", "max_report_total_bytes", 7),
        ("max_tracked_output_file_bytes: 7", "max_tracked_output_file_bytes", 7),
        ("max_tracked_output_total_bytes: 7", "max_tracked_output_total_bytes", 7),
    ],
)
def test_each_old_commit_key_sets_its_new_key(
    tmp_path: Path, text: str, key: str, value: object
) -> None:
    settings = loaded(tmp_path, f"{text}\n{GIT}")
    assert getattr(settings.commit, key) == value
    assert settings.notices == ()
    assert settings.sources["commit", key].kind == "file"


@pytest.mark.parametrize("key", sorted(tables().commit_keys))
def test_a_wrong_value_of_a_commit_key_is_reported_at_its_place(tmp_path: Path, key: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        loaded(tmp_path, f"{GIT}{key}: {{a: b}}\n")
    assert f"{tmp_path / 'orchestration.yaml'}:2:" in str(refused.value)


@pytest.mark.parametrize(
    ("text", "tolerated"),
    [("true", ("/**",)), ("yes", ("/**",)), ("false", ()), ("no", ())],
)
def test_the_old_dirty_key_sets_the_tolerated_paths(
    tmp_path: Path, text: str, tolerated: tuple[str, ...]
) -> None:
    settings = loaded(tmp_path, f"{GIT}tolerate_doc_dirty: {text}\n")
    assert settings.store.work.tolerated == tolerated
    assert settings.notices == ()


def noticed(tmp_path: Path, text: str, **variables: str) -> tuple[str, ...]:
    (tmp_path / "orchestration.yaml").write_text(text, encoding="utf-8")
    return load(tmp_path, env=variables).notices


def test_old_variables_are_reported_with_their_replacements(tmp_path: Path) -> None:
    found = noticed(
        tmp_path, "", ORCHESTRATION_WORKFLOW="standard2", SYNC_LOOPS="3", ROUTER_MODE=""
    )
    assert found == (
        "the variable ORCHESTRATION_WORKFLOW has no effect here: use workflow.name",
        "the variable SYNC_LOOPS has no effect here: use run.max_steps, or run.max_cycles",
    )


def test_common_variable_names_are_noticed_only_in_old_projects(tmp_path: Path) -> None:
    """STATE_FILE of some other program is nothing to speak of at each command."""
    assert noticed(tmp_path, "workflow: standard\n", STATE_FILE="x", POLL_INTERVAL="5") == ()
    found = noticed(tmp_path, "main_prompt: main.md\n", STATE_FILE="x", POLL_INTERVAL="5")
    assert [notice.split()[2] for notice in found] == ["POLL_INTERVAL", "STATE_FILE"]
