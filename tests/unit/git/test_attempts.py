"""What an attempt has left in the work tree: the next one goes on with it, and nobody else."""

from __future__ import annotations

from pathlib import Path

import pytest

from sequencer.errors import WorkTreeRefused
from sequencer.git.tenancy import NOTE
from sequencer.model.head import Claim, Head, Loop, Owner
from sequencer.settings.schema import CommitOptions
from sequencer.store.identity import this_process
from tests.unit.git.clones import (
    Clone,
    claim,
    clone,
    commit,
    git,
    head,
    pair,
    porcelain,
    said,
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
    one.carrier.ready(state)
    one.carrier.arrive(held(state, this_process(), attempt=attempt))
    write(folder, {"notes.md": "half", "left.txt": "half"})
    return one


def ensure_refused(one: Clone, state: Head) -> None:
    with pytest.raises(WorkTreeRefused, match=r"2 changed paths .*'left.txt', 'notes.md'") as why:
        one.carrier.ready(state)
    assert "git stash -u" in str(why.value.hint)


def test_the_next_attempt_goes_on_with_it(tmp_path: Path) -> None:
    bare, here, _ = pair(tmp_path)
    one = begun(here, attempt=3)
    one.carrier.leave(None)
    for _ in range(2):
        one.carrier.ready(head())
    assert one.carrier.take_notices() == [
        "goes on with what attempt 3 has left: 2 changed paths, 'left.txt', 'notes.md'"
    ]
    one.carrier.arrive(held(head(), this_process()))
    assert one.push(head()).step_index == 1
    assert "notes.md" in tree_of(bare, "main")
    assert porcelain(here) == ["?? left.txt"]


def test_another_process_goes_on_with_it(tmp_path: Path) -> None:
    _, here, _ = pair(tmp_path)
    begun(here)
    one = clone(here, commit=NOTES)
    one.carrier.ready(head())
    one.carrier.arrive(held(head(), this_process()))
    assert len(one.carrier.take_notices()) == 1


def test_what_an_accepted_step_leaves_is_not_for_the_next_one(tmp_path: Path) -> None:
    _, here, _ = pair(tmp_path)
    one = begun(here)
    # Before it is accepted, the next one is prepared; the claim still stands then.
    ensure_refused(one, held(head(), this_process()))
    after = one.push(head())
    with pytest.raises(WorkTreeRefused, match=r"1 changed path .*'left.txt'"):
        one.carrier.ready(after)


@pytest.mark.parametrize(
    "other",
    [
        {"step_index": 1},
        {"run_id": "another"},
        {"loop": Loop(stage="fix", round=1)},
    ],
)
def test_it_is_for_no_other_step(tmp_path: Path, other: dict[str, object]) -> None:
    _, here, _ = pair(tmp_path)
    one = begun(here)
    ensure_refused(one, head().replace(**other))
    one.carrier.ready(head())


def test_the_same_place_with_other_code(tmp_path: Path) -> None:
    bare, here, there = pair(tmp_path)
    one = begun(here)
    commit(there, {"x": "1"})
    other = clone(there)
    other.carrier.ready(head())
    moved = other.push(head()).replace(step_index=0)
    assert moved.work is not None
    assert said(bare, "rev-parse", "main") == moved.work.commit
    ensure_refused(one, moved)


def test_a_history_that_has_diverged_is_refused_all_the_same(tmp_path: Path) -> None:
    _, here, there = pair(tmp_path)
    one = begun(here)
    commit(there, {"theirs": "1"})
    git(there, "push", "-q", "origin", "main")
    commit(here, {"mine": "1"})
    one.remote.fetch(one.carrier.refs)
    with pytest.raises(WorkTreeRefused, match="has diverged"):
        one.carrier.ready(head())


def test_a_link_is_no_note(tmp_path: Path) -> None:
    _, here, _ = pair(tmp_path)
    one, path = begun(here), here / ".git" / NOTE
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    ensure_refused(one, head())
