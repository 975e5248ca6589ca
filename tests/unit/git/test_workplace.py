"""What becomes of an attempt's work when its place is closed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sequencer.plugins.git.code.checkout import FolderResult
from tests.unit.git.clones import commit, git, porcelain, said, write
from tests.unit.git.teams import (
    RUN_ID,
    at_once,
    branches,
    closed,
    is_sound,
    opened,
    placed,
    project,
    remains,
    users,
    worked,
    workplaces,
)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return project(tmp_path / "here", {"src/a.py": "a = 1\n", "src/b.py": "b = 1\n"})


def test_the_author_is_the_user_or_else_the_program(here: Path) -> None:
    worked(workplaces(here), lambda at: write(at, {"x": "x"}))
    who = "--format=%an <%ae> %cn <%ce>"
    program = "sequencer <sequencer@localhost>"
    assert said(here, "log", "-1", who) == f"{program} {program}"
    git(here, "config", "user.name", "Me")
    git(here, "config", "user.email", "me@example.org")
    worked(workplaces(here), lambda at: write(at, {"y": "y"}), token=2)
    for name in ("HEAD", "HEAD^2"):
        assert said(here, "log", "-1", who, name) == "Me <me@example.org> Me <me@example.org>"
    config = (here / ".git/config").read_text()
    assert "localhost" not in config


def test_an_attempt_without_changes_waits_for_no_turn_and_merges_nothing(
    here: Path,
) -> None:
    before = users(here)

    def wait() -> None:
        pytest.fail("there is nothing to merge")

    place = opened(workplaces(here))
    write(place.cwd, {"ignored/cache": "x", "x.tmp": "x"})
    left = place.end(is_accepted=True, wait_for_turn=wait)
    assert (left.result, left.error is not None, left.branch) == (
        FolderResult.UNCHANGED,
        False,
        None,
    )
    assert users(here) == before
    assert (branches(here), remains(here)) == ([], [])


def test_an_error_while_waiting_is_raised_after_the_work_is_safe(here: Path) -> None:
    place = opened(workplaces(here))
    write(place.cwd, {"x": "x\n"})

    def cancelled() -> None:
        raise TimeoutError("cancelled")

    with pytest.raises(TimeoutError, match="cancelled"):
        place.end(is_accepted=True, wait_for_turn=cancelled)
    assert place.branch is not None
    assert said(here, "show", f"{place.branch}:x") == "x"
    assert (remains(here), porcelain(here)) == ([], [])
    again = closed(place)
    assert (again.result, again.branch) == (FolderResult.KEPT, place.branch)
    assert remains(here) == []


def test_messages_hold_no_secret(here: Path) -> None:
    place = opened(workplaces(here), "login", subject="Log in with hunter2-hunter2")
    write(place.cwd, {"x": "x"})
    assert closed(place).result is FolderResult.MERGED
    merged, done = (said(here, "log", "-1", "--format=%s", name) for name in ("HEAD", "HEAD^2"))
    assert merged == "Merge task login: Log in with [secret]"
    assert done == "Log in with [secret]"


@pytest.mark.parametrize("how", ["modified", "staged", "untracked", "ignored"])
def test_changes_of_the_user_are_never_overwritten(here: Path, how: str) -> None:
    place = opened(workplaces(here))
    name = {"modified": "src/a.py", "staged": "src/a.py"}.get(how, "ignored/mine")
    if how == "untracked":
        name = "mine.txt"
    write(place.cwd, {name: "the agent's\n", "fits": "x"})
    git(place.cwd, "add", "--force", name)
    write(here, {name: "the user's\n"})
    if how == "staged":
        git(here, "add", name)
    before = users(here)
    left = closed(place)
    assert (left.result, left.files) == (FolderResult.IN_THE_WAY, (name,))
    assert left.error is not None
    assert repr(name) in left.error
    assert (here / name).read_text() == "the user's\n"
    assert users(here) == before
    assert left.branch is not None
    assert said(here, "show", f"{left.branch}:{name}") == "the agent's"
    assert is_sound(here)


def test_a_detached_checkout_is_moved_too(here: Path) -> None:
    git(here, "checkout", "-q", "--detach")
    left = worked(workplaces(here), lambda at: write(at, {"x": "x\n"}))
    assert left.result is FolderResult.MERGED
    assert said(here, "rev-parse", "HEAD") == left.commit
    assert said(here, "rev-parse", "--abbrev-ref", "HEAD") == "HEAD"
    assert said(here, "rev-parse", "main") == said(here, "rev-parse", "HEAD^1")


def test_nothing_is_merged_into_the_middle_of_a_merge(here: Path) -> None:
    place = opened(workplaces(here))
    write(place.cwd, {"x": "x\n"})
    (here / ".git/MERGE_HEAD").write_text(said(here, "rev-parse", "HEAD") + "\n")
    left = closed(place)
    assert left.result is FolderResult.IN_THE_WAY
    assert left.error is not None
    assert "a merge is under way" in left.error
    assert not (here / "x").exists()
    assert left.branch is not None


def test_hooks_and_settings_of_the_user_do_not_affect_a_merge(here: Path) -> None:
    for name in ("pre-commit", "commit-msg", "post-checkout", "post-merge", "pre-merge-commit"):
        hook = here / ".git/hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\ntouch '{here}/ran-{name}'\nexit 1\n")
        hook.chmod(0o755)
    for key, value in {
        "commit.gpgSign": "true",
        "gpg.program": "/bin/false",
        "merge.ff": "false",
        "branch.main.mergeOptions": "--squash --no-commit",
        "core.safecrlf": "true",
        "core.autocrlf": "input",
        "commit.template": "/nowhere",
        "merge.autoStash": "true",
        "log.showSignature": "true",
        "color.ui": "always",
        "status.showUntrackedFiles": "no",
        "diff.external": "/bin/false",
        "core.commentChar": "S",
    }.items():
        git(here, "config", key, value)
    places = workplaces(here)
    reader = placed(places, "read", 9, writes=False, worktree=False)
    left = worked(places, lambda at: write(at, {"x": "x\r\n"}))
    assert left.result is FolderResult.MERGED
    assert reader.end(is_accepted=True, wait_for_turn=at_once).written == ()
    assert places.find_merged_tokens("implement", RUN_ID) == {1}
    other = opened(places, "other", 2)
    worked(places, lambda at: write(at, {"src/a.py": "1\n"}), token=3)
    write(other.cwd, {"src/a.py": "2\n"})
    assert closed(other).files == ("src/a.py",)
    assert not list(here.glob("ran-*"))
    assert porcelain(here) == []


def test_an_unfinished_merge_by_the_agent_is_refused(here: Path) -> None:
    place = opened(workplaces(here))
    commit(place.cwd, {"src/a.py": "mine\n"})
    git(place.cwd, "checkout", "-q", "-b", "elsewhere", "HEAD~1")
    commit(place.cwd, {"src/a.py": "other\n"})
    with pytest.raises(Exception, match="merge"):
        git(place.cwd, "merge", "-q", str(place.branch))
    left = closed(place)
    assert left.result is FolderResult.REFUSED
    assert left.error is not None
    assert "in the middle of a merge" in left.error
    assert "<<<<" in (place.cwd / "src/a.py").read_text()


def test_git_that_fails_loses_nothing(here: Path) -> None:
    place = opened(workplaces(here))
    write(place.cwd, {"x": "x\n"})
    index = here / ".git/worktrees/implement-1/index"
    index.write_bytes(b"no index at all")
    left = closed(place)
    assert (left.result, left.folder) == (FolderResult.REFUSED, place.folder)
    assert (place.folder / "x").read_text() == "x\n"


def test_commits_survive_when_the_agent_removes_its_worktree(here: Path) -> None:
    """Nobody is sent to look at a folder that is not there."""
    place = opened(workplaces(here))
    commit(place.cwd, {"src/a.py": "a = 2\n"}, "by the agent")
    shutil.rmtree(place.folder)
    left = closed(place)
    assert left.result is FolderResult.REFUSED
    assert left.branch is not None
    assert left.folder is None
    assert "was removed while it worked" in (left.error or "")
    assert left.branch in (left.error or "")
    assert "look there" not in (left.hint or "")
    assert said(here, "show", f"{left.branch}:src/a.py") == "a = 2"
    assert (here / "src/a.py").read_text() == "a = 1\n"
