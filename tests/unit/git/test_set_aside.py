"""What a failed attempt did is set aside: one process after the other, killed at any git call."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sequencer import Cancellation, OutcomeStatus, open_project
from sequencer.engine.evidence import PriorAttempts
from sequencer.engine.workspace import AttemptFolder, Workspace
from sequencer.plugins.git.code.project_trees import run_worktree
from sequencer.plugins.git.process import Git
from tests.acceptance.setting_aside import (
    ATTEMPTS,
    FIRST,
    files_of,
    made,
    one_step,
    people,
    refs,
    worktree,
)
from tests.clones import git

__all__ = ["people"]


class Attempt:
    """The second attempt in a run's worktree, made step by step."""

    def __init__(self, folder: Path, is_shared: Callable[[], bool] = lambda: False) -> None:
        self.folder, self.said, self.is_shared = folder, list[str](), is_shared
        opened = open_project(folder)
        head = opened.run(None).head
        assert head is not None
        self.place = run_worktree(opened, None, Workspace(folder), self.said.append)
        self.place.begin(head, Cancellation())
        self.head = head

    def keep(self) -> Any:
        self.place.ensure_ready(self.head)
        attempt: Any = SimpleNamespace(
            run_id=self.head.run_id, run_name=None, token=2, number=1, iteration=2
        )
        attempt.step = SimpleNamespace(name="two")
        attempt.write_notice = self.said.append
        attempt.prior = PriorAttempts(is_shared=self.is_shared)
        return self.place.open(attempt)


def fail(kept: AttemptFolder) -> None:
    """Let the attempt of *kept* fail."""
    kept.close(OutcomeStatus.FAILED, lambda: None)


def dirty(place: Path) -> None:
    """Do what a failed attempt does."""
    (place / "notes").write_text("start\none\nHALF\n")
    (place / "half").write_text("half\n")
    (place / "new").unlink()
    git(place, "commit", "-q", "-am", "half")


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """Return a project whose first step is done in the run's worktree."""
    folder = made(tmp_path / "p", FIRST, "true")
    assert one_step(folder).code == 0
    return folder


def test_nothing_is_restored_where_another_node_works(begun: Path) -> None:
    place, works = worktree(begun), [False]
    attempt = Attempt(begun, lambda: works[0])
    kept = attempt.keep()
    dirty(place)
    works[0], before = True, files_of(place)
    fail(kept)
    assert files_of(place) == before
    assert "another node works in the same folder, or has meanwhile" in attempt.said[-1]
    again = Attempt(begun, lambda: True)
    fail(again.keep())
    assert files_of(place) == before
    assert "the changes of this attempt stay: another node" in again.said[-1]


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("what", ["file", "commit", "git"])
def test_nothing_is_restored_if_a_person_changed_it_in_the_meantime(
    begun: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, run = worktree(begun), Git.run
    attempt = Attempt(begun)
    kept = attempt.keep()
    dirty(place)

    def act(self: Git, *argv: str, **more: Any) -> Any:
        if argv[0] == "update-ref" and what == "file":
            (place / "notes").write_text("a person's\n")
        if argv[0] == "update-ref" and what == "commit":
            git(place, "commit", "-q", "--allow-empty", "-m", "a person's")
        return run(self, *argv, **more)

    monkeypatch.setattr(Git, "run", act)
    if what == "git":
        (Path(git(place, "rev-parse", "--absolute-git-dir")) / "index.lock").touch()
    before = {**files_of(place), "rev-parse": ""}
    fail(kept)
    monkeypatch.undo()
    after = files_of(place)
    told = {
        "file": "someone has changed files there meanwhile; refs/sequencer/attempts/default/2",
        "commit": "someone has committed there meanwhile; refs/sequencer/attempts/default/2",
        "git": "another git is at work there",
    }
    assert f"the changes of this attempt stay: {told[what]}" in attempt.said[-1]
    if what == "file":
        before |= {"notes": "100644 a person's\n", "status": "M notes\n?? half"}
    assert {**after, "rev-parse": ""} == before
    # The next attempt begins with all of it.
    (Path(git(place, "rev-parse", "--absolute-git-dir")) / "index.lock").unlink(missing_ok=True)
    Attempt(begun).keep()
    assert files_of(place) == after


def killed(folder: Path, dies: Callable[[int, Sequence[str]], bool], *, is_after: bool) -> bool:
    """Let the process be killed at the git call for which *dies*; return whether it was."""
    pid = os.fork()
    if pid == 0:
        run, calls = Git.run, [0]

        def act(self: Git, *argv: str, **more: Any) -> Any:
            calls[0] += 1
            is_last = dies(calls[0], argv)
            if is_last and not is_after:
                os._exit(9)
            made = run(self, *argv, **more)
            if is_last:
                os._exit(9)
            return made

        Git.run = act  # type: ignore[method-assign]
        try:
            kept = Attempt(folder).keep()
            dirty(worktree(folder))
            fail(kept)
        except BaseException:  # noqa: BLE001 - nothing of the test runs in this process
            os._exit(8)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in {0, 9}
    return code == 9


@pytest.mark.slow
@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
def test_nothing_is_lost_or_half_restored_by_a_kill_at_any_git_call(
    begun: Path, tmp_path: Path, is_after: bool
) -> None:
    place, saved, number = worktree(begun), tmp_path / "saved", 0
    shutil.copytree(begun, saved, symlinks=True)
    clean, seen, is_killed = files_of(place), set[str](), True
    while is_killed:
        number += 1
        shutil.rmtree(begun)
        shutil.copytree(saved, begun, symlinks=True)
        is_killed = killed(begun, lambda call, _, last=number: call == last, is_after=is_after)  # type: ignore[misc]
        Attempt(begun).keep()
        now = files_of(place)
        if now == clean:
            seen.add("as before")
        elif now["notes"].endswith("HALF\n"):
            # As the attempt has left it, which was taken over.
            assert ("half" in now, "new" in now) == (True, False), number
            seen.add("as left")
        else:
            pytest.fail(f"half of it was restored at call {number}: {now}")
        if refs(begun) == [f"{ATTEMPTS}2"] and "HALF" in git(begun, "show", f"{ATTEMPTS}2:notes"):
            seen.add("kept")
        elif seen == {"as before", "as left"}:
            pytest.fail(f"what was set aside is nowhere at call {number}")
        assert not [*(begun / ".git" / "worktrees").rglob("sequencer-attempt-*")]
    assert number > 12
    assert seen == {"as before", "as left", "kept"}


@pytest.mark.parametrize("path", ["half", "new", "notes"])
def test_an_interrupted_restore_never_overwrites_a_persons_change(begun: Path, path: str) -> None:
    place = worktree(begun)
    assert killed(begun, lambda _, argv: "-u" in argv, is_after=False)
    (place / path).write_text("a person's\n")
    before = files_of(place)
    attempt = Attempt(begun)
    attempt.keep()
    assert files_of(place) == before
    assert f"stay: someone has changed {path!r} meanwhile" in attempt.said[0]
    assert json.loads(place.with_suffix(".json").read_text())["restoring"] == {}
