"""A work tree in which agents work is theirs until the last of them has ended."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sequencer.errors import WorkTreeBusy, WorkTreeRefused
from sequencer.git import tenancy
from sequencer.model.head import Head
from sequencer.settings.schema import CommitOptions, WorkOptions
from sequencer.store.identity import this_process
from tests.concurrency import children
from tests.unit.git.clones import Clone, claim, clone, commit, git, head, pair, write

NOTES = CommitOptions(paths=("*.md",))


@pytest.fixture
def started() -> Iterator[list[int]]:
    """Children that are killed at the end, stopped or not."""
    made: list[int] = []
    yield made
    for pid in made:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def held(state: Head) -> Head:
    """Return *state* with a claim of this process."""
    return state.replace(claims=(claim(state.step_index).replace(owner=this_process()),))


def working(here: Path, started: list[int]) -> int:
    """Start a process whose agents work in *here*; return its pid when they do."""
    begun, errors = here.parent / "begun", here.parent / "errors"

    def role() -> None:
        one = clone(here, commit=NOTES)
        one.carrier.ready(head())
        one.carrier.arrive(held(head()))
        begun.touch()
        time.sleep(60)

    started.append(children.start(role, errors))
    until(lambda: begun.exists() or errors.exists())
    assert not errors.exists(), errors.read_text()
    return started[-1]


def until(reason: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not reason():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def ready(one: Clone) -> bool:
    try:
        one.carrier.ready(head())
    except WorkTreeBusy:
        return False
    return True


# --- one process at a time ---------------------------------------------------------------------


@pytest.mark.parametrize("is_stopped", [False, True])
def test_nobody_else_begins_while_agents_work(
    is_stopped: bool, tmp_path: Path, started: list[int]
) -> None:
    """Their claims may be over: given back by hand, or run out while the holder was stopped."""
    _, here, _ = pair(tmp_path)
    pid = working(here, started)
    if is_stopped:
        os.kill(pid, signal.SIGSTOP)
    one = clone(here, commit=NOTES)
    with pytest.raises(WorkTreeBusy) as busy:
        one.carrier.ready(head())
    assert (
        f"agents of process {pid} of run 'default' still work in this work tree"
        in busy.value.message
    )
    assert f"'kill -CONT {pid}'" in str(busy.value.hint)
    assert busy.value.exit_code == 75
    assert str(here) in str(busy.value.where)


def test_a_kill_frees_it_when_the_agents_have_had_time_to_end(
    tmp_path: Path, started: list[int]
) -> None:
    _, here, _ = pair(tmp_path)
    pid = working(here, started)
    one, began = clone(here, commit=NOTES), time.monotonic()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(started.pop(), 0)
    one.carrier.ready(head())
    assert time.monotonic() - began >= tenancy.ENDED_S
    one.carrier.arrive(head())
    one.carrier.leave(head(step_index=1))
    # It was left as it should be since.
    began = time.monotonic()
    clone(here, commit=NOTES).carrier.ready(head())
    assert time.monotonic() - began < tenancy.ENDED_S


def test_who_works_there_goes_on_and_who_has_left_is_in_nobodys_way(tmp_path: Path) -> None:
    _, here, _ = pair(tmp_path)
    one, other = clone(here, commit=NOTES), clone(here, commit=NOTES)
    one.carrier.ready(head())
    one.carrier.arrive(head())
    one.carrier.ready(head())
    one.carrier.arrive(head(step_index=1))
    assert not ready(other)
    # Who has never arrived leaves nothing.
    other.carrier.leave(None)
    assert not ready(other)
    one.carrier.leave(None)
    assert ready(other)


def test_both_were_ready_and_one_is_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, here, _ = pair(tmp_path)
    monkeypatch.setattr(tenancy, "TAKE_S", 0.1)
    one, other = clone(here, commit=NOTES), clone(here, commit=NOTES)
    assert (ready(one), ready(other)) == (True, True)
    one.carrier.arrive(head())
    with pytest.raises(WorkTreeRefused, match="still work in this work tree"):
        other.carrier.arrive(head())


# --- what an attempt has left, and what came later -----------------------------------------------


def attempt(here: Path, files: dict[str, str], work: WorkOptions | None = None) -> Clone:
    """Let an attempt fail that has left *files*, and return its clone."""
    one = clone(here, commit=NOTES, work=work)
    one.carrier.ready(head())
    one.carrier.arrive(held(head()))
    write(here, files)
    one.carrier.leave(head())
    return one


CHANGES: dict[str, Callable[[Path], object]] = {
    "a new file": lambda here: write(here, {"mine.md": "mine"}),
    "a file of the project": lambda here: write(here, {"README.md": "mine"}),
    "a file that the attempt has left": lambda here: write(here, {"half.md": "whole"}),
    "a file that is gone": lambda here: (here / "README.md").unlink(),
    "a file that was made executable": lambda here: (here / "half.md").chmod(0o755),
    "what is staged": lambda here: git(here, "update-index", "--chmod=+x", "README.md"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_person_changes_in_between_is_not_the_next_attempts(
    change: str, tmp_path: Path
) -> None:
    _, here, _ = pair(tmp_path)
    one = attempt(here, {"half.md": "half", "more.md": "half"})
    CHANGES[change](here)
    for again in (one, clone(here, commit=NOTES)):
        with pytest.raises(WorkTreeRefused, match="1 path was changed since attempt 1") as refused:
            again.carrier.ready(head())
        assert "more.md" not in refused.value.message
        assert "git stash" in str(refused.value.hint)
    assert (here / "half.md").exists()


def test_what_the_person_commits_goes_on_as_the_persons(tmp_path: Path) -> None:
    _, here, _ = pair(tmp_path)
    one = attempt(here, {"half.md": "half"})
    commit(here, {"README.md": "mine"}, "by hand")
    one.carrier.ready(head())
    one.carrier.arrive(held(head()))
    write(here, {"half.md": "whole"})
    collected = one.carrier.collect(claim(), "main", head())
    assert collected is not None
    told = git(here, "log", "--format=%s", "--name-only", "-2", collected.commit).decode()
    assert told.split("\n\n")[-1].split() == ["README.md"]
    assert "half.md" in told.split("by hand")[0]


def test_what_is_tolerated_may_be_changed_at_any_time(tmp_path: Path) -> None:
    _, here, _ = pair(tmp_path)
    one = attempt(here, {"half.md": "half"}, WorkOptions(tolerated=("scratch/",)))
    write(here, {"scratch/x": "1", "ignored/x": "1"})
    one.carrier.ready(head())


def test_after_a_kill_nobody_can_tell_and_that_is_said(
    tmp_path: Path, started: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, here, _ = pair(tmp_path)
    monkeypatch.setattr(tenancy, "ENDED_S", 0.0)
    os.kill(working(here, started), signal.SIGKILL)
    os.waitpid(started.pop(), 0)
    write(here, {"half.md": "half"})
    again = clone(here, commit=NOTES)
    again.carrier.ready(head())
    (told,) = again.carrier.take_notices()
    assert "'half.md'" in told
    assert "or somebody has changed since" in told
