"""A run in a git worktree of its own: set up once, worked in by all steps, merged at the end."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.cli_process import cli, environment, head
from tests.clones import git

AGENT = """\
import os, sys
sys.stdin.read()
step = os.environ["SEQUENCER_STEP_INDEX"]
with open("done.txt", "a") as file:
    file.write(step + "\\n")
if step == os.environ.get("KEY_AT"):
    open("key.txt", "w").write("AKIA" + "Q" * 16)
"""
CONFIGURATION = """\
workflow: {name: twice}
workflows: {twice: {kind: procedure, steps: [{name: one, prompt: main.md}, \
{name: two, prompt: main.md}]}}
agent: {default: script}
agents: {script: {kind: command, argv: ["{python}", -IS, agent.py], pass_env: [KEY_AT]}}
worktree: true
setup: [[sh, tools.sh], "sh -c 'echo twice >> set-up.log'"]
"""
BRANCHES = ("for-each-ref", "--format=%(refname:short)", "refs/heads/sequencer-run")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "prompts").mkdir(parents=True)
    (folder / "prompts" / "main.md").write_text("# main\n")
    (folder / "agent.py").write_text(AGENT)
    (folder / "tools.sh").write_text("echo once >> set-up.log\n")
    (folder / "orchestration.yaml").write_text(CONFIGURATION)
    (folder / ".gitignore").write_text("sync/\nlogs/\nset-up.log\n")
    git(folder, "init", "-q", "-b", "main", "--template=")
    git(folder, "config", "user.name", "Ada")
    git(folder, "config", "user.email", "ada@example.org")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def said(folder: Path, *argv: str) -> str:
    return subprocess.run(
        ["git", *argv], cwd=folder, capture_output=True, text=True, check=True
    ).stdout.strip()


def worktree(folder: Path) -> Path:
    [note] = (folder / "sync" / "worktrees").glob("run-*.json")
    return note.with_suffix("")


@pytest.mark.slow
def test_steps_work_in_it_and_the_end_is_merged(project: Path) -> None:
    first = cli(project, "run", "--max-steps", "1")
    assert first.returncode == 0
    here = worktree(project)
    assert (
        f"the run works in sync/worktrees/{here.name} on branch sequencer-run/default/{here.name}"
        in first.stderr
    )
    assert first.stderr.count("setup: ") == 2
    assert (here / "done.txt").read_text() == "0\n"
    assert (here / "set-up.log").read_text() == "once\ntwice\n"
    assert not (project / "done.txt").exists()
    git(project, "commit", "-q", "--allow-empty", "-m", "meanwhile")
    second = cli(project, "run")
    assert second.returncode == 0, second.stderr
    assert "setup" not in second.stderr
    assert (project / "done.txt").read_text() == "0\n1\n"
    assert "the run's work is merged: commit" in second.stderr
    assert said(project, "log", "-1", "--format=%s %an") == "Merge run default: twice Ada"
    assert (said(project, *BRANCHES), said(project, "status", "--porcelain")) == ("", "")
    assert not here.exists()
    # Its log and its state are where they always are.
    assert head(project)["status"] == "complete"
    assert (project / "logs" / "main" / "steps").is_dir()
    assert cli(project, "run").returncode == 0


@pytest.mark.slow
def test_a_run_killed_before_its_merge_is_merged_by_the_next_run(
    project: Path,
) -> None:
    assert cli(project, "run", "--max-steps", "1").returncode == 0
    assert cli(project, "skip", "--as-done").returncode == 0
    assert head(project)["status"] == "complete"
    assert not (project / "done.txt").exists()
    assert cli(project, "run").returncode == 0
    assert (project / "done.txt").read_text() == "0\n"


@pytest.mark.slow
def test_work_that_can_not_be_merged_stays_on_its_branch(project: Path) -> None:
    assert cli(project, "run", "--max-steps", "1").returncode == 0
    (project / "done.txt").write_text("somebody else's\n")
    refused = cli(project, "run")
    assert refused.returncode == 3
    assert "the checkout is in the way of the merge: 'done.txt'" in refused.stderr
    assert ":)" not in refused.stderr
    [branch] = said(project, *BRANCHES).splitlines()
    assert f"then 'git merge {branch}'\n" in refused.stderr
    assert (project / "done.txt").read_text() == "somebody else's\n"
    assert said(project, "show", f"{branch}:done.txt") == "0\n1"
    assert head(project)["status"] == "complete"
    again = cli(project, "run")
    assert (again.returncode, f"then 'git merge {branch}'" in again.stderr) == (3, True)
    (project / "done.txt").unlink()
    git(project, "merge", "-q", branch)
    assert cli(project, "run").returncode == 0


@pytest.mark.slow
def test_a_key_blocks_the_merge_until_a_person_removes_it(project: Path) -> None:
    refused = cli(project, "run", KEY_AT="1")
    here = worktree(project)
    assert refused.returncode == 3
    assert "nothing was committed: 'key.txt' contains what looks like a key" in refused.stderr
    (here / "key.txt").unlink()
    assert cli(project, "run").returncode == 0
    assert (project / "done.txt").read_text() == "0\n1\n"
    assert not here.exists()


def test_a_setup_that_fails_starts_no_step(project: Path) -> None:
    (project / "tools.sh").write_text("echo told; echo why >&2; exit 4\n")
    git(project, "commit", "-qam", "broken tools")
    refused = cli(project, "run")
    assert refused.returncode == 3
    assert "'sh tools.sh' failed in the run's new worktree: exit code 4; told; why" in (
        refused.stderr
    )
    assert head(project)["step_index"] == 0
    assert said(project, *BRANCHES) == ""
    assert not list((project / "sync" / "worktrees").glob("run-*"))
    (project / "tools.sh").write_text("echo once >> set-up.log\n")
    git(project, "commit", "-qam", "tools")
    assert cli(project, "run").returncode == 0
    assert (project / "done.txt").read_text() == "0\n1\n"


def test_an_endless_setup_is_ended_with_its_processes(project: Path) -> None:
    text = "sleep 300 & echo $! > ../pid; echo waiting; exec sleep 300\n"
    (project / "tools.sh").write_text(text)
    (project / "orchestration.yaml").write_text(CONFIGURATION + "setup_timeout_s: 0.5\n")
    git(project, "commit", "-qam", "endless tools")
    refused = cli(project, "run")
    assert refused.returncode == 3
    assert "'sh tools.sh' failed in the run's new worktree: it was ended after 0.5 s; wait" in (
        refused.stderr
    )
    assert "raise setup_timeout_s to give it longer; no step was started" in refused.stderr
    pid = int((project / "sync" / "worktrees" / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not list((project / "sync" / "worktrees").glob("run-*"))


@pytest.mark.slow
def test_a_run_can_be_rewound_after_its_merge(project: Path) -> None:
    assert cli(project, "run").returncode == 0
    assert cli(project, "rewind", "1").returncode == 0
    again = cli(project, "run")
    assert (again.returncode, again.stderr.count("setup: ")) == (0, 2)
    assert (project / "done.txt").read_text() == "0\n1\n1\n"
    assert len(said(project, "log", "--merges", "--format=%h").splitlines()) == 2
    assert said(project, *BRANCHES) == ""


@pytest.mark.slow
def test_unmerged_work_stays_when_the_run_is_rewound(project: Path) -> None:
    assert cli(project, "run", "--max-steps", "1").returncode == 0
    before = worktree(project).name
    (project / "done.txt").write_text("mine\n")
    git(project, "add", "-A")
    git(project, "commit", "-qm", "mine")
    assert "conflicts in 'done.txt'" in cli(project, "run").stderr
    assert cli(project, "rewind", "1").returncode == 0
    assert cli(project, "run").returncode == 0
    assert (project / "done.txt").read_text() == "mine\n1\n"
    assert said(project, *BRANCHES) == f"sequencer-run/default/{before}"
    assert said(project, "show", f"sequencer-run/default/{before}:done.txt") == "0\n1"


@pytest.mark.slow
def test_a_new_run_preserves_unfinished_work_of_the_previous_one(project: Path) -> None:
    assert cli(project, "run", "--max-steps", "1").returncode == 0
    before = worktree(project).name
    assert cli(project, "reset", "--yes").returncode == 0
    assert cli(project, "run").returncode == 0
    assert (project / "done.txt").read_text() == "0\n1\n"
    assert said(project, *BRANCHES) == f"sequencer-run/default/{before}"


def test_trust_covers_setup_and_the_files_it_runs(project: Path, tmp_path: Path) -> None:
    own: dict[str, Any] = {"SEQUENCER_TRUST": "", "XDG_STATE_HOME": str(tmp_path / "home")}
    untrusted = cli(project, "run", **own)
    assert untrusted.returncode == 2
    assert "setup" in untrusted.stderr
    assert cli(project, "trust", "--yes", **own).returncode == 0
    (project / "tools.sh").write_text("echo other\n")
    changed = cli(project, "run", **own)
    assert changed.returncode == 2
    assert "setup, file tools.sh" in changed.stderr
    # What is run is what was committed, so that is what has to be trusted.
    assert cli(project, "trust", "--yes", **own).returncode == 0
    assert cli(project, "run", **own).returncode == 2
    git(project, "commit", "-qam", "other tools")
    assert cli(project, "run", **own).returncode == 0


def noted(folder: Path, phase: str) -> None:
    """Have the note of the worktree say that a kill came in *phase*."""
    note = worktree(folder).with_suffix(".json")
    note.write_text(json.dumps(json.loads(note.read_text()) | {"phase": phase}))


@pytest.mark.slow
def test_a_worktree_with_an_interrupted_setup_is_rebuilt(project: Path) -> None:
    assert cli(project, "run", "--max-steps", "1").returncode == 0
    noted(project, "adding")
    again = cli(project, "run")
    assert (again.returncode, again.stderr.count("setup: ")) == (0, 2)


@pytest.mark.slow
def test_an_interrupted_merge_is_repeated(project: Path) -> None:
    assert cli(project, "run", "--max-steps", "1").returncode == 0
    here = worktree(project)
    git(here, "add", "-A")
    git(here, "commit", "-qm", "gathered")
    git(here, "checkout", "-q", "--detach", "main")
    noted(project, "merging")
    assert cli(project, "run").returncode == 0
    assert (project / "done.txt").read_text() == "0\n1\n"
    assert said(project, *BRANCHES) == ""


def test_the_nodes_of_a_flow_work_in_it_too(project: Path) -> None:
    chart = "```mermaid\nflowchart TD\n  a[one] --> b[two]\n```\n### a\nDo a.\n### b\nDo b.\n"
    (project / "flow.md").write_text(chart)
    work = cli(project, "run", "flow.md")
    assert work.returncode == 0, work.stderr
    assert len((project / "done.txt").read_text().split()) == 2
    assert said(project, "log", "-1", "--format=%s").startswith("Merge run flow")


def test_no_worktree_without_a_repository_or_with_a_git_store(tmp_path: Path) -> None:
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "main.md").write_text("# main\n")
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "orchestration.yaml").write_text(CONFIGURATION)
    refused = cli(tmp_path, "run")
    assert refused.returncode == 3
    assert "the run has no worktree" in refused.stderr
    checked = cli(tmp_path, "check")
    assert "no worktrees" in checked.stdout + checked.stderr
    assert cli(tmp_path, "run", SEQUENCER_STORE__KIND="git").returncode == 2
    (tmp_path / "orchestration.yaml").write_text(CONFIGURATION.replace("kind: procedure, ", ""))
    beside = cli(tmp_path, "run", "--mode", "async")
    assert (beside.returncode, "mode async has no run" in beside.stderr) == (2, True)


def test_check_says_when_no_command_of_setup_runs(project: Path) -> None:
    configuration = project / "orchestration.yaml"
    words = "setup: these commands never run"
    assert words not in cli(project, "check").stdout
    configuration.write_text(CONFIGURATION.replace("worktree: true", "worktree: false"))
    line = CONFIGURATION[: CONFIGURATION.index("setup:")].count("\n") + 1
    assert (
        f"orchestration.yaml:{line}: setup: these commands never run"
        in cli(project, "check").stdout
    )


def test_a_rehearsal_makes_none(project: Path) -> None:
    assert cli(project, "run", "--rehearse").returncode == 0
    assert not (project / "sync" / "worktrees").exists()
    assert json.loads(cli(project, "status", "--json").stdout)["status"] == "complete"
    assert environment()["SEQUENCER_TRUST"] == "all"
