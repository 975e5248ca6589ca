"""Two runs in one work tree: one at a time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sequencer.errors import WorkTreeBusy, WorkTreeRefused
from sequencer.git import tenancy
from sequencer.model.head import Head, Owner
from sequencer.settings.schema import CommitOptions
from sequencer.store.identity import this_process
from tests.unit.git.clones import Clone, claim, clone, head, pair, write

NOTES = CommitOptions(paths=("*.md",))
USED = r"run 'a' works in it at present \(process \d+\)"


def state_of(folder: Path, run: str | None, state: Head, owner: Owner | None = None) -> Head:
    """Write the state of *run*, in which *owner* has claimed the step; None: nobody has."""
    claims = () if owner is None else (claim(state.step_index).replace(owner=owner),)
    state = state.replace(run_id=run or "default", claims=claims)
    path = folder / "sync" / "runs" / str(run) / "state.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(state.model_dump_json())
    return state


def clone_of(folder: Path, run: str) -> Clone:
    return clone(folder, run=run, commit=NOTES)


def at_work(folder: Path, owner: Owner | None = None) -> tuple[Clone, Head]:
    """Return run a, at work in *folder*."""
    one = clone_of(folder, "a")
    state = state_of(folder, "a", head())
    one.carrier.ready(state)
    state = state_of(folder, "a", head(), owner or this_process())
    one.carrier.arrive(state)
    return one, state


def test_a_second_run_waits_until_the_step_of_the_first_has_ended(tmp_path: Path) -> None:
    _, here, _ = pair(tmp_path)
    one, _ = at_work(here)
    other, state = clone_of(here, "b"), state_of(here, "b", head())
    with pytest.raises(WorkTreeRefused, match=USED) as refused:
        other.carrier.ready(state)
    assert "a clone of its own" in str(refused.value.hint)
    assert refused.value.exit_code == 3
    ended = state_of(here, "a", head(step_index=1))
    with pytest.raises(
        WorkTreeBusy, match=r"agents of process \d+ of run 'a' still work in this work tree"
    ):
        other.carrier.ready(state)
    one.carrier.leave(ended)
    other.carrier.ready(state)


def test_both_have_found_it_ready(tmp_path: Path) -> None:
    _, here, _ = pair(tmp_path)
    other, state = clone_of(here, "b"), state_of(here, "b", head())
    other.carrier.ready(state)
    at_work(here)
    with pytest.raises(WorkTreeRefused, match=USED):
        other.carrier.arrive(state_of(here, "b", head(), this_process()))


def test_a_whole_step_of_another_run_in_between(tmp_path: Path) -> None:
    _, here, _ = pair(tmp_path)
    other, state = clone_of(here, "b"), state_of(here, "b", head())
    other.carrier.ready(state)
    at_work(here)
    write(here, {"notes.md": "of a"})
    state_of(here, "a", head())
    with pytest.raises(WorkTreeRefused, match=r"1 changed path .*'notes.md'"):
        other.carrier.arrive(state_of(here, "b", head(), this_process()))
    (here / "notes.md").unlink()
    other.carrier.arrive(state_of(here, "b", head(), this_process()))


def test_the_next_step_of_the_same_process_counts_at_once(tmp_path: Path) -> None:
    """It is claimed with the end of the one before, and arrives later."""
    _, here, _ = pair(tmp_path)
    at_work(here)
    state_of(here, "a", head(step_index=1), this_process())
    with pytest.raises(WorkTreeRefused, match=USED):
        clone_of(here, "b").carrier.ready(state_of(here, "b", head()))


def test_a_process_that_is_gone_is_no_tenant(tmp_path: Path) -> None:
    _, here, _ = pair(tmp_path)
    one, state = at_work(here)
    one.carrier.leave(None)
    path = here / ".git" / tenancy.NOTE
    note = json.loads(path.read_text())
    note["owner"]["pid_start"] += 1
    path.write_text(json.dumps(note))
    assert state.claims
    clone_of(here, "b").carrier.ready(state_of(here, "b", head()))


def test_what_one_run_has_left_is_not_for_the_other(tmp_path: Path) -> None:
    _, here, _ = pair(tmp_path)
    one, _ = at_work(here)
    write(here, {"notes.md": "of a"})
    ended = state_of(here, "a", head())
    one.carrier.leave(ended)
    with pytest.raises(WorkTreeRefused, match=r"'notes\.md'"):
        clone_of(here, "b").carrier.ready(state_of(here, "b", head()))
    one.carrier.ready(ended)
