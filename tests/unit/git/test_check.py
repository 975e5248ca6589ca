from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sequencer.errors import ConfigurationError
from sequencer.project.checks import check_project
from sequencer.project.diagnostics import Area, Diagnostic, Level, exit_code
from sequencer.project.project import open_project
from sequencer.store.identity import this_process
from tests.clones import ENVIRONMENT, Shared, git
from tests.unit.cli.calling import project
from tests.unit.cli.sharing import CONFIGURATION, call, diverged, shared_project, steps


@pytest.fixture
def shared(tmp_path: Path) -> Shared:
    shared = shared_project(tmp_path)
    git(shared.bare, "config", "core.fsync", "all")
    (shared.clone("first") / "sync").mkdir()
    return shared


def configured(shared: Shared, text: str, name: str = "a") -> Path:
    """Return the clone *name* with *text* instead of the kind in its configuration."""
    folder = shared.clone(name)
    path = folder / "orchestration.yaml"
    path.write_text(path.read_text().replace("{kind: git}", f"{{kind: git, {text}}}"))
    return folder


def findings(folder: Path) -> list[Diagnostic]:
    """Return what is found in *folder*, notices left out."""
    opened = open_project(folder)
    found = check_project(opened, None)
    return [finding for finding in found if finding.level is not Level.NOTICE]


def only(folder: Path) -> Diagnostic:
    found = findings(folder)
    assert len(found) == 1, found
    return found[0]


@pytest.mark.slow
def test_a_sound_clone(shared: Shared) -> None:
    a = shared.clone("a")
    assert findings(a) == []
    steps(a, 2)
    assert findings(a) == []
    assert findings(shared.clone("b")) == []
    *notices, last = call(a, "check").out.splitlines()
    assert last == "nothing is wrong"
    assert notices[0] == "notice: remote: the remote was not asked"


# --- here ------------------------------------------------------------------------------


def fake_git(folder: Path, script: str) -> str:
    """Put a ``git`` that is *script* in front of the real one; return the new PATH."""
    folder.mkdir()
    (folder / "git").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "git").chmod(stat.S_IRWXU)
    return f"{folder}:{os.environ['PATH']}"


def test_git_that_is_too_old(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    script = 'for x; do [ "$x" = version ] && echo git version 2.20.1 && exit; done\n'
    script += 'PATH=${PATH#*:}; exec git "$@"'
    monkeypatch.setenv("PATH", fake_git(shared.folder / "bin", script))
    found = only(shared.clone("a"))
    assert (found.level, found.area) == (Level.ERROR, Area.REMOTE)
    assert "2.20.1 is too old" in found.message
    assert found.hint == "install git 2.29 or newer"


def test_no_git_at_all(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    a = shared.clone("a")
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert any("git is not installed" in found.message for found in findings(a))


def test_a_project_outside_of_a_repository_is_reported(tmp_path: Path) -> None:
    found = only(project(tmp_path, CONFIGURATION))
    assert "is not in a git work tree" in found.message
    assert found.where == str(tmp_path)
    assert found.exit_code == 2


def test_an_unknown_remote_is_reported_with_the_known_ones(shared: Shared) -> None:
    a = configured(shared, "remote: orgin")
    git(a, "remote", "add", "backup", "../backup.git")
    found = only(a)
    assert found.message == "there is no remote 'orgin'"
    assert (found.where or "").endswith("orchestration.yaml:3: store.remote")
    assert "known remotes: backup, origin" in (found.hint or "")


@pytest.mark.parametrize(
    "address", ["https://me:hunter22@example.invalid/x", "https://t0ken@example.invalid/x"]
)
def test_an_address_with_a_password(shared: Shared, address: str) -> None:
    a = configured(shared, f"remote: '{address}', timeout_s: 5")
    with pytest.raises(ConfigurationError, match="contains a password") as refused:
        findings(a)
    assert "hunter22" not in str(refused.value)
    assert "t0ken" not in str(refused.value)


def test_a_lease_shorter_than_a_few_polls_is_a_warning(shared: Shared) -> None:
    a = configured(shared, "ttl_s: 30, poll: {slow_s: 15}")
    found = only(a)
    assert (found.level, found.area) == (Level.WARNING, Area.CONFIGURATION)
    assert "store.ttl_s to 60" in (found.hint or "")
    git(a, "checkout", "-q", "orchestration.yaml")
    assert findings(configured(shared, "ttl_s: 60, poll: {slow_s: 15}")) == []


@pytest.mark.parametrize("branch", ["main", "{run}"])
def test_state_on_the_code_branch_is_an_error(shared: Shared, branch: str) -> None:
    a = configured(shared, f"branch: '{branch}'")
    git(a, "switch", "-q", "-c", "default") if branch == "{run}" else None
    found = [one for one in findings(a) if "holds the run's state" in one.message]
    assert [one.level for one in found] == [Level.ERROR]
    assert ":3: store.branch" in (found[0].where or "")


def test_a_checked_out_branch_other_than_the_code_branch_is_reported(shared: Shared) -> None:
    a = configured(shared, "work: {branch: work}")
    assert "'main' is checked out, but code is on 'work'" in only(a).message
    git(a, "switch", "-q", "-c", "work")
    assert findings(a) == []


def test_a_detached_head_is_reported(shared: Shared) -> None:
    a = shared.clone("a")
    git(a, "switch", "-q", "--detach")
    assert "HEAD is detached" in only(a).message
    assert findings(configured(shared, "work: {branch: none}")) == []


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("name", ["index.lock", "packed-refs.lock", "refs/heads/main.lock"])
@pytest.mark.parametrize("is_there", [False, True])
def test_a_lock_left_by_a_killed_git_is_a_warning_once_it_is_old(
    name: str, is_there: bool, shared: Shared
) -> None:
    a = shared.clone("a")
    path = (shared.bare if is_there else a / ".git") / name
    path.touch()
    assert findings(a) == [], "somebody's git may be at work this moment"
    os.utime(path, (time.time() - 7200,) * 2)
    found = only(a)
    assert (found.level, found.where) == (Level.WARNING, str(path))
    assert found.area is (Area.REMOTE if is_there else Area.FILES)
    assert "has been there for 2 h, and no git is working there" in found.message
    assert f"'rm {path}'" in str(found.hint)


@pytest.mark.parametrize("folder", ["sync", "logs"])
def test_tracked_files_of_the_run_are_an_error(shared: Shared, folder: str) -> None:
    a = shared.clone("a")
    (a / folder).mkdir()
    (a / folder / "state.json").write_text("{}\n")
    git(a, "add", "-f", f"{folder}/state.json")
    git(a, "commit", "-q", "-m", "as hoidn/orchestration does it")
    (a / folder / "state.json").unlink()
    found = only(a)
    assert (found.level, found.area) == (Level.ERROR, Area.FILES)
    assert f"{folder}/state.json" in found.message
    # What the hint says is what mends it.
    subprocess.run(["sh", "-c", str(found.hint)], cwd=a, env=ENVIRONMENT, check=True)
    assert findings(a) == []


# --- there -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "said"),
    [("../nowhere.git", "does not appear to be"), ("ssh://example.invalid/x", "Permission denied")],
)
def test_a_remote_that_is_wrong_is_an_error(shared: Shared, address: str, said: str) -> None:
    a = shared.clone("a")
    git(a, "remote", "set-url", "origin", address)
    git(a, "config", "core.sshCommand", "echo 'Permission denied (publickey).' >&2; false")
    found = only(a)
    assert (found.level, found.exit_code) == (Level.ERROR, 2)
    assert said in found.message


def test_a_remote_that_takes_no_push(shared: Shared) -> None:
    a = shared.clone("a")
    steps(a, 1)
    refusing = "echo 'remote: this key may only read' >&2; exit 1"
    git(a, "config", "remote.origin.receivepack", f"sh -c '{refusing}' x")
    found = only(a)
    assert (found.level, found.area) == (Level.ERROR, Area.REMOTE)
    assert "does not accept pushes" in found.message


def test_a_remote_that_moves_one_branch_after_the_other(shared: Shared) -> None:
    git(shared.bare, "config", "receive.advertiseAtomic", "false")
    a = shared.clone("a")
    assert "can't move several branches at once" in only(a).message
    assert findings(configured(shared, "work: {branch: none}")) == []


def test_a_clone_with_a_checked_out_branch_as_the_remote_is_reported(shared: Shared) -> None:
    a, b = shared.clone("a"), shared.clone("b")
    git(a, "remote", "set-url", "origin", str(b))
    assert "branch main is checked out there" in only(a).message
    git(b, "config", "receive.denyCurrentBranch", "updateInstead")
    assert findings(a) == []


@pytest.mark.parametrize("taken", ["sequencer", "sequencer/default/x", "sequencer-beats"])
def test_a_branch_that_collides_with_a_branch_of_the_run_is_an_error(
    shared: Shared, taken: str
) -> None:
    a = shared.clone("a")
    git(shared.bare, "branch", "sequencerx", "main")
    git(shared.bare, "branch", "x/sequencer", "main")
    assert findings(a) == []
    git(shared.bare, "branch", taken, "main")
    found = only(a)
    assert found.level is Level.ERROR
    assert f"{taken!r}" in found.message
    assert "one is below the other" in found.message
    assert call(a, "run", "--max-steps", "1").code == (0 if "beats" in taken else 3)


@pytest.mark.slow
def test_a_branch_that_was_reset_to_an_older_state_is_an_error(shared: Shared) -> None:
    a, _ = diverged(shared)
    found = only(a)
    assert (found.level, found.area, found.exit_code) == (Level.ERROR, Area.STATE, 3)
    assert "sequencer sync" in (found.hint or "")


def test_a_branch_that_holds_no_run(shared: Shared) -> None:
    git(shared.bare, "update-ref", "refs/heads/sequencer/default", "refs/heads/main")
    assert "has no run" in only(shared.clone("a")).message


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize(("key", "value"), [("fsync", "all"), ("fsyncObjectFiles", "true")])
def test_a_remote_folder_without_fsync_is_a_warning(shared: Shared, key: str, value: str) -> None:
    git(shared.bare, "config", "--unset", "core.fsync")
    a = shared.clone("a")
    found = only(a)
    assert (found.level, found.area, found.where) == (Level.WARNING, Area.REMOTE, str(shared.bare))
    assert found.hint == f"git -C {shared.bare} config core.fsync all"
    assert exit_code([found]) == 0
    git(shared.bare, "config", f"core.{key}", value)
    assert findings(a) == []


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("name", [".gitattributes", "deep/er/.gitattributes"])
@pytest.mark.parametrize("is_added", [False, True])
def test_files_managed_by_git_lfs_are_a_warning(shared: Shared, name: str, is_added: bool) -> None:
    a = shared.clone("a")
    path = a / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("*.txt text\n# *.gif filter=lfs\n")
    assert findings(a) == []
    path.write_text("*.psd filter=lfs diff=lfs merge=lfs -text\n")
    if is_added:
        git(a, "add", name)
    found = only(a)
    assert (found.level, found.area, found.where) == (Level.WARNING, Area.FILES, name)
    assert "git-lfs" in found.message
    assert findings(configured(shared, "work: {branch: none}")) == []


# --- teams ---------------------------------------------------------------------------------

ALONE = "each machine merges its tasks' work only locally: store.work.branch is 'none'"


@pytest.mark.parametrize(
    ("work", "worktree", "told"),
    [("none", True, 1), ("none", False, 0), ("current", True, 0)],
)
def test_worktree_tasks_whose_merges_stay_on_one_machine_are_a_warning(
    shared: Shared, work: str, worktree: bool, told: int
) -> None:
    here = configured(shared, f"work: {{branch: {work}}}")
    tasks = [{"id": "one", "subject": "One", "role": "implementer", "worktree": worktree}]
    path = here / "orchestration.yaml"
    team = json.dumps({"team": {"size": 2, "tasks": tasks}})
    path.write_text(f"{path.read_text()}\nworkflows: {team}\n")
    found = [finding for finding in findings(here) if finding.message == ALONE]
    assert len(found) == told
    for finding in found:
        assert (finding.level, finding.area) == (Level.WARNING, Area.WORKFLOW)
        assert finding.where is not None
        assert "store.work.branch" in finding.where


def test_a_lock_that_is_cleaned_up_automatically_is_not_reported(shared: Shared) -> None:
    """To remove it by hand would leave the index behind the commit."""
    a = shared.clone("a")
    lock = a / ".git" / "index.lock"
    gone = this_process().replace(pid_start=1).model_dump()
    for text, told in (("", True), (json.dumps({"owner": gone}), False)):
        lock.write_text(text)
        os.utime(lock, (1e9, 1e9))
        assert [str(lock) in str(found.where) for found in findings(a)] == [True] * told
