"""Who works in a work tree, and what an attempt has left there."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sequencer.errors import WorkTreeBusy, WorkTreeRefused
from sequencer.model.head import Claim, Head, Loop, Owner
from sequencer.plugins.git.code import work_tree_lock
from sequencer.project.schema import CommitOptions, WorkOptions
from sequencer.store.identity import this_process
from tests.concurrency import children
from tests.unit.git.clones import (
    Clone,
    claim,
    clone,
    commit,
    git,
    head,
    pair,
    porcelain,
    tree_of,
    write,
)

NOTES = CommitOptions(paths=("notes.md",))
"""The pid is that of this process, and it was another one then."""


def held(state: Head, owner: Owner, *, attempt: int = 1) -> Head:
    mine: Claim = claim(state.step_index).replace(owner=owner, attempt=attempt)
    return state.replace(claims=(mine,))


def begun(folder: Path, state: Head | None = None, *, attempt: int = 1) -> Clone:
    """Return a clone in which a step has begun, and has left what it was at."""
    one, state = clone(folder, commit=NOTES), state or head()
    one.carrier.ensure_ready(state)
    one.carrier.enter(held(state, this_process(), attempt=attempt))
    write(folder, {"notes.md": "half", "left.txt": "half"})
    return one


def ensure_refused(one: Clone, state: Head) -> None:
    with pytest.raises(
        WorkTreeRefused, match=r"uncommitted changes \(2 changed paths\): 'left.txt', 'notes.md'"
    ) as why:
        one.carrier.ensure_ready(state)
    assert "git stash -u" in str(why.value.hint)


def test_the_next_attempt_continues_with_leftover_changes(tmp_path: Path) -> None:
    bare, here, _ = pair(tmp_path)
    one = begun(here, attempt=3)
    one.carrier.leave(None)
    for _ in range(2):
        one.carrier.ensure_ready(head())
    assert one.taken() == [
        "continues with what attempt 3 left: 2 changed paths, 'left.txt', 'notes.md'"
    ]
    one.carrier.enter(held(head(), this_process()))
    assert one.push(head()).step_index == 1
    assert "notes.md" in tree_of(bare, "main")
    assert porcelain(here) == ["?? left.txt"]


@pytest.mark.parametrize(
    "other",
    [
        {"step_index": 1},
        {"run_id": "another"},
        {"loop": Loop(stage="fix", round=1)},
    ],
)
def test_leftover_changes_are_refused_for_any_other_step(
    tmp_path: Path, other: dict[str, object]
) -> None:
    _, here, _ = pair(tmp_path)
    one = begun(here)
    ensure_refused(one, head().replace(**other))
    one.carrier.ensure_ready(head())


def test_a_diverged_history_is_refused_despite_leftover_changes(tmp_path: Path) -> None:
    _, here, there = pair(tmp_path)
    one = begun(here)
    commit(there, {"theirs": "1"})
    git(there, "push", "-q", "origin", "main")
    commit(here, {"mine": "1"})
    one.remote.fetch(one.carrier.refs)
    with pytest.raises(WorkTreeRefused, match="has diverged"):
        one.carrier.ensure_ready(head())


NOTES_OCCUPIED = CommitOptions(paths=("*.md",))


@pytest.fixture
def started() -> Iterator[list[int]]:
    """Children that are killed at the end, stopped or not."""
    made: list[int] = []
    yield made
    for pid in made:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def held_of_occupied(state: Head) -> Head:
    """Return *state* with a claim of this process."""
    return state.replace(claims=(claim(state.step_index).replace(owner=this_process()),))


def working(here: Path, started: list[int]) -> int:
    """Start a process whose agents work in *here*; return its pid when they do."""
    begun, errors = here.parent / "begun", here.parent / "errors"

    def role() -> None:
        one = clone(here, commit=NOTES_OCCUPIED)
        one.carrier.ensure_ready(head())
        one.carrier.enter(held_of_occupied(head()))
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
        one.carrier.ensure_ready(head())
    except WorkTreeBusy:
        return False
    return True


# --- one process at a time ---------------------------------------------------------------------


@pytest.mark.parametrize("is_stopped", [False, True])
def test_no_other_process_starts_while_agents_work(
    is_stopped: bool, tmp_path: Path, started: list[int]
) -> None:
    """Their claims may be over: given back by hand, or run out while the holder was stopped."""
    _, here, _ = pair(tmp_path)
    pid = working(here, started)
    if is_stopped:
        os.kill(pid, signal.SIGSTOP)
    one = clone(here, commit=NOTES_OCCUPIED)
    with pytest.raises(WorkTreeBusy) as busy:
        one.carrier.ensure_ready(head())
    assert (
        f"agents of process {pid} of run 'default' are still working in this work tree"
        in busy.value.message
    )
    assert f"'kill -CONT {pid}'" in str(busy.value.hint)
    assert busy.value.exit_code == 75
    assert str(here) in str(busy.value.where)


def test_a_kill_frees_the_work_tree_after_the_agents_had_time_to_end(
    tmp_path: Path, started: list[int]
) -> None:
    _, here, _ = pair(tmp_path)
    pid = working(here, started)
    one, began = clone(here, commit=NOTES_OCCUPIED), time.monotonic()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(started.pop(), 0)
    one.carrier.ensure_ready(head())
    assert time.monotonic() - began >= work_tree_lock.ENDED_S
    one.carrier.enter(head())
    one.carrier.leave(head(step_index=1))
    # It was left as it should be since.
    began = time.monotonic()
    clone(here, commit=NOTES_OCCUPIED).carrier.ensure_ready(head())
    assert time.monotonic() - began < work_tree_lock.ENDED_S


def test_only_the_faster_of_two_ready_processes_enters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, here, _ = pair(tmp_path)
    monkeypatch.setattr(work_tree_lock, "TAKE_S", 0.1)
    one, other = clone(here, commit=NOTES_OCCUPIED), clone(here, commit=NOTES_OCCUPIED)
    assert (ready(one), ready(other)) == (True, True)
    one.carrier.enter(head())
    with pytest.raises(WorkTreeRefused, match="are still working in this work tree"):
        other.carrier.enter(head())


# --- what an attempt has left, and what came later -----------------------------------------------


def attempt(here: Path, files: dict[str, str], work: WorkOptions | None = None) -> Clone:
    """Let an attempt fail that has left *files*, and return its clone."""
    one = clone(here, commit=NOTES_OCCUPIED, work=work)
    one.carrier.ensure_ready(head())
    one.carrier.enter(held_of_occupied(head()))
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
def test_changes_by_a_person_in_between_refuse_the_next_attempt(
    change: str, tmp_path: Path
) -> None:
    _, here, _ = pair(tmp_path)
    one = attempt(here, {"half.md": "half", "more.md": "half"})
    CHANGES[change](here)
    for again in (one, clone(here, commit=NOTES_OCCUPIED)):
        with pytest.raises(WorkTreeRefused, match="1 path was changed since attempt 1") as refused:
            again.carrier.ensure_ready(head())
        assert "more.md" not in refused.value.message
        assert "git stash" in str(refused.value.hint)
    assert (here / "half.md").exists()


def test_after_a_kill_changes_by_a_person_are_mentioned_as_possible(
    tmp_path: Path, started: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, here, _ = pair(tmp_path)
    monkeypatch.setattr(work_tree_lock, "ENDED_S", 0.0)
    os.kill(working(here, started), signal.SIGKILL)
    os.waitpid(started.pop(), 0)
    write(here, {"half.md": "half"})
    again = clone(here, commit=NOTES_OCCUPIED)
    again.carrier.ensure_ready(head())
    (told,) = again.taken()
    assert "'half.md'" in told
    assert "or someone changed since" in told


NOTES_TENANCY = CommitOptions(paths=("*.md",))
USED = r"run 'a' is working in it \(process \d+\)"


def state_of(folder: Path, run: str | None, state: Head, owner: Owner | None = None) -> Head:
    """Write the state of *run*, in which *owner* has claimed the step; None: nobody has."""
    claims = () if owner is None else (claim(state.step_index).replace(owner=owner),)
    state = state.replace(run_id=run or "default", claims=claims)
    path = folder / "sync" / "runs" / str(run) / "state.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(state.model_dump_json())
    return state


def clone_of(folder: Path, run: str) -> Clone:
    return clone(folder, run=run, commit=NOTES_TENANCY)


def at_work(folder: Path, owner: Owner | None = None) -> tuple[Clone, Head]:
    """Return run a, at work in *folder*."""
    one = clone_of(folder, "a")
    state = state_of(folder, "a", head())
    one.carrier.ensure_ready(state)
    state = state_of(folder, "a", head(), owner or this_process())
    one.carrier.enter(state)
    return one, state


def test_a_second_run_waits_until_the_step_of_the_first_has_ended(tmp_path: Path) -> None:
    _, here, _ = pair(tmp_path)
    one, _ = at_work(here)
    other, state = clone_of(here, "b"), state_of(here, "b", head())
    with pytest.raises(WorkTreeRefused, match=USED) as refused:
        other.carrier.ensure_ready(state)
    assert "a clone of its own" in str(refused.value.hint)
    assert refused.value.exit_code == 3
    ended = state_of(here, "a", head(step_index=1))
    with pytest.raises(
        WorkTreeBusy, match=r"agents of process \d+ of run 'a' are still working in this work tree"
    ):
        other.carrier.ensure_ready(state)
    one.carrier.leave(ended)
    other.carrier.ensure_ready(state)


def test_a_run_that_found_it_ready_is_refused_once_another_has_entered(tmp_path: Path) -> None:
    _, here, _ = pair(tmp_path)
    other, state = clone_of(here, "b"), state_of(here, "b", head())
    other.carrier.ensure_ready(state)
    at_work(here)
    with pytest.raises(WorkTreeRefused, match=USED):
        other.carrier.enter(state_of(here, "b", head(), this_process()))


def test_changes_left_by_another_run_in_between_are_refused(tmp_path: Path) -> None:
    _, here, _ = pair(tmp_path)
    other, state = clone_of(here, "b"), state_of(here, "b", head())
    other.carrier.ensure_ready(state)
    at_work(here)
    write(here, {"notes.md": "of a"})
    state_of(here, "a", head())
    with pytest.raises(
        WorkTreeRefused, match=r"uncommitted changes \(1 changed path\): 'notes.md'"
    ):
        other.carrier.enter(state_of(here, "b", head(), this_process()))
    (here / "notes.md").unlink()
    other.carrier.enter(state_of(here, "b", head(), this_process()))


def test_the_next_step_of_the_same_process_counts_at_once(tmp_path: Path) -> None:
    """It is claimed with the end of the one before, and arrives later."""
    _, here, _ = pair(tmp_path)
    at_work(here)
    state_of(here, "a", head(step_index=1), this_process())
    with pytest.raises(WorkTreeRefused, match=USED):
        clone_of(here, "b").carrier.ensure_ready(state_of(here, "b", head()))


def test_a_dead_process_does_not_occupy_the_work_tree(tmp_path: Path) -> None:
    _, here, _ = pair(tmp_path)
    one, state = at_work(here)
    one.carrier.leave(None)
    path = here / ".git" / work_tree_lock.NOTE
    note = json.loads(path.read_text())
    note["owner"]["pid_start"] += 1
    path.write_text(json.dumps(note))
    assert state.claims
    clone_of(here, "b").carrier.ensure_ready(state_of(here, "b", head()))
