from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sequencer.errors import ConfigurationError
from sequencer.files.textfile import locate
from sequencer.project.settings import load


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project" / "src" / "deep").mkdir(parents=True)
    return tmp_path / "project"


def write(project: Path, text: str) -> Path:
    path = project / "orchestration.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.timeout(5)
def test_a_folder_or_fifo_of_that_name_is_reported_and_not_skipped(
    project: Path, tmp_path: Path
) -> None:
    write(tmp_path, "state_file: wrong.json\n")
    (project / "orchestration.yaml").mkdir()
    with pytest.raises(ConfigurationError, match="not a regular file"):
        locate(project, None, {})
    os.mkfifo(project / "src" / "orchestration.yaml")
    with pytest.raises(ConfigurationError, match="not a regular file"):
        locate(project / "src", None, {})


AGREEING = [
    ("", {}),
    ("state_file: a/a.json\n", {}),
    ('"state_file": "b/c.json"\n', {}),
    ('"state\\x5ffile": "hidden/state.json"\n', {}),
    ("state_file: a/../b/c.json\n", {}),
    ("# state_file: comment.json\n", {}),
    ("state_file:\n", {}),
    ("state_file: ~\n", {}),
    ("spec_bootstrap: {state_file: nested.json}\n", {}),
    ("state_file: a/a.json\n", {"SEQUENCER_STATE_FILE": "run/env.json"}),
    ("", {"SEQUENCER_STATE_FILE": "run/env.json"}),
    ("", {"SEQUENCER_STATE_FILE": "~/run/x.json"}),
    ("", {"SEQUENCER_STATE_FILE": "/srv/run/abs.json"}),
    ("", {"SEQUENCER_STATE_FILE": "../up.json"}),
    ("state_file: a/a.json\n", {"SEQUENCER_STATE_FILE": ""}),
    ("state_file: a/a.json\n", {"SEQUENCER_STATE": "/not/a/setting.json"}),
    ("logs_dir: state_file\n", {}),
    ("logs_dir: &a state_file\n*a : b/c.json\n", {}),
]


@pytest.mark.parametrize(("text", "env"), AGREEING)
def test_the_quick_look_agrees_with_the_whole_settings(
    project: Path, text: str, env: dict[str, str]
) -> None:
    write(project, text)
    start = project / "src"
    quick, whole = locate(start, None, env), load(start, env=env)
    assert quick.state_path == whole.state_file
    assert (quick.config_path, quick.project_dir) == (whole.config_path, whole.project_dir)


MISPLACED = [
    (
        "state_file: state.json",
        "needs a separate folder for its files, and this is the project's folder",
    ),
    ("state_file: sync/../state.json", "and this is the project's"),
    ("state_file: ../docs/state.json", "outside the project; only SEQUENCER_STATE_FILE"),
    ("state_file: ~/x/state.json", "outside the project; only SEQUENCER_STATE_FILE"),
    ("state_file: /tmp/abs/state.json", "outside the project; only SEQUENCER_STATE_FILE"),
    ("state_file: .git/hooks/state.json", "in git's folder"),
    ("state_file: prompts/run/state.json", "this is the prompts folder"),
    ("logs_dir: ../logs", "outside the project; only SEQUENCER_LOGS_DIR"),
    ("logs_dir: .git/logs", "in git's folder"),
]


@pytest.mark.parametrize(("text", "why"), MISPLACED)
def test_misplaced_state_and_log_paths_in_a_file_are_refused(
    project: Path, text: str, why: str
) -> None:
    path = write(project, f"{text}\n")
    with pytest.raises(ConfigurationError) as refused:
        load(project, env={})
    assert why in refused.value.message
    assert str(refused.value.where).startswith(f"{path}:1:1")


@pytest.mark.parametrize("text", [text for text, why in MISPLACED if "STATE_FILE" in why])
def test_a_quick_look_refuses_state_outside_the_project_too(project: Path, text: str) -> None:
    path = write(project, f"{text}\n")
    with pytest.raises(ConfigurationError, match="only SEQUENCER_STATE_FILE") as refused:
        locate(project, None, {})
    assert str(refused.value.where).startswith(f"{path}:1:1")
    assert locate(project, None, {"SEQUENCER_STATE_FILE": "/srv/run/abs.json"}).config_path == path


@pytest.mark.parametrize(
    "text",
    [
        "state_file: 5\n",
        "state_file: false\n",
        "state_file: [a]\n",
        "state_file: ''\n",
        'state_file: "a\\0b"\n',
        "state_file: a\nstate_file: b\n",
        "state_file: [\n",
    ],
)
def test_both_ways_of_loading_refuse_an_invalid_path(project: Path, text: str) -> None:
    path = write(project, text)
    for look in (lambda: locate(project, None, {}), lambda: load(project, env={})):
        with pytest.raises(ConfigurationError) as refused:
            look()
        assert str(path) in str(refused.value)


PROBE = """
import sys
from pathlib import Path
from sequencer.files.textfile import locate
print(locate(Path(sys.argv[1]), None, {}).state_path)
print(" ".join(sorted({"pydantic", "yaml", "rich", "click"} & set(sys.modules))))
"""


@pytest.mark.parametrize(
    ("text", "loaded"), [("workflow: standard\n", ""), ("state_file: x.json\n", "yaml")]
)
def test_a_quick_look_loads_nothing_heavy(project: Path, text: str, loaded: str) -> None:
    write(project, text)
    shown = subprocess.run(
        [sys.executable, "-c", PROBE, str(project)], capture_output=True, text=True, check=True
    )
    assert shown.stdout.splitlines()[1:] == [loaded]


def test_the_reader_needs_no_pydantic() -> None:
    probe = "import sys, sequencer.files.yamlfile; sys.exit('pydantic' in sys.modules)"
    subprocess.run([sys.executable, "-c", probe], check=True)


def test_a_link_in_the_project_adds_no_prompts_or_flows_from_outside(
    project: Path, tmp_path: Path
) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "main.md").write_text("somebody else's")
    (project / "prompts").symlink_to(tmp_path / "shared")
    write(project, "workflows: {a: prompts/main.md}\n")
    with pytest.raises(ConfigurationError) as caught:
        load(project, env={})
    assert str(caught.value).count("leads") >= 2
    write(project, "prompts_dir: ../shared\n")
    assert load(project, env={}).prompts_dir == tmp_path / "shared", "said in words"
