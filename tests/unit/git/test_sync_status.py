"""Both sides of a run, and taking the branch's."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from contextlib import closing
from pathlib import Path

import pytest

from sequencer.errors import CorruptState, RemoteUnreachable
from sequencer.plugins.git.state.sync_status import (
    OtherRun,
    Relation,
    SyncStatus,
    compare_with_remote,
    find_runs_elsewhere,
    take_theirs,
)
from tests.clones import Shared, git
from tests.unit.cli.sharing import compared, diverged, shared_project, steps, store_of


@pytest.fixture
def shared(tmp_path: Path) -> Shared:
    return shared_project(tmp_path)


def test_comparing_a_run_that_does_not_exist_creates_no_folder(shared: Shared) -> None:
    a = shared.clone("a")
    sync_status = compared(a)
    assert (sync_status.relation, sync_status.local_head, sync_status.remote_head) == (
        Relation.NOWHERE,
        None,
        None,
    )
    assert (sync_status.tip, sync_status.known) == (None, None)
    assert not (a / "sync").exists()


def test_a_run_started_without_git_is_only_local(shared: Shared) -> None:
    a = shared.clone("a")
    (a / "orchestration.yaml").write_text("agent: {default: rehearsal}\n")
    steps(a, 2)
    git(a, "checkout", "-q", "orchestration.yaml")
    sync_status = compared(a)
    assert sync_status.relation is Relation.UNPUBLISHED
    assert sync_status.local_head is not None
    assert sync_status.local_head.step_index == 2
    steps(a, 1)
    assert compared(a).relation is Relation.EQUAL
    assert shared.tip()


def test_a_removed_branch_is_reported(shared: Shared) -> None:
    a = shared.clone("a")
    steps(a, 1)
    git(shared.bare, "update-ref", "-d", "refs/heads/sequencer/default")
    sync_status = compared(a)
    assert (sync_status.relation, sync_status.tip) == (Relation.GONE, None)
    assert isinstance(sync_status.problem, CorruptState)
    assert "git push" in (sync_status.problem.hint or "")


@pytest.mark.slow
def test_a_branch_with_another_run(shared: Shared) -> None:
    a, b = shared.clone("a"), shared.clone("b")
    steps(a, 1)
    git(shared.bare, "update-ref", "-d", "refs/heads/sequencer/default")
    steps(b, 1)
    sync_status = compared(a)
    assert sync_status.relation is Relation.ANOTHER_RUN
    assert sync_status.local_head is not None
    assert sync_status.remote_head is not None
    assert sync_status.local_head.run_id != sync_status.remote_head.run_id


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("damage", ["middle", "head"])
def test_damaged_local_files_are_reported_and_may_be_replaced(shared: Shared, damage: str) -> None:
    a = shared.clone("a")
    steps(a, 3)
    journal, state = a / "sync" / "journal.jsonl", a / "sync" / "state.json"
    if damage == "middle":
        lines = journal.read_bytes().splitlines(keepends=True)
        journal.write_bytes(lines[0] + b"x" * 9 + b"\n" + b"".join(lines[2:]))
    else:
        state.write_text('{"revision": "no number"}')
    sync_status = compared(a)
    assert (sync_status.relation, sync_status.tip) == (Relation.DAMAGED, shared.tip())
    assert sync_status.problem is not None
    assert sync_status.relation.allows_taking
    assert not sync_status.relation.is_sound


# --- other runs ------------------------------------------------------------------------


def elsewhere(
    folder: Path, template: str = "sequencer/{run}", here: Collection[str] = ()
) -> list[OtherRun]:
    with closing(store_of(folder)) as store:
        return find_runs_elsewhere(store.branch, template, here)


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("template", ["sequencer/{run}", "state"])
def test_runs_that_only_the_remote_has(tmp_path: Path, template: str) -> None:
    shared = shared_project(
        tmp_path, f"agent: {{default: rehearsal}}\nstore: {{kind: git, branch: '{template}'}}\n"
    )
    a, b = shared.clone("a"), shared.clone("b")
    for run in (None, "nightly", "Big Run"):
        steps(a, 1, *(("--run", run) if run else ()))
    found = elsewhere(b, template)
    assert [one.name for one in found] == ["Big Run", "nightly"]
    assert [one.head.step_index for one in found if one.head] == [1, 1]
    assert [one.name for one in elsewhere(b, template, {"nightly"})] == ["Big Run"]


def test_a_branch_of_an_unreadable_run_is_still_named(shared: Shared) -> None:
    git(shared.bare, "update-ref", "refs/heads/sequencer/odd", "refs/heads/main")
    (found,) = elsewhere(shared.clone("a"))
    assert (found.branch, found.name, found.head) == ("sequencer/odd", None, None)


def test_listing_runs_of_an_unreachable_remote_is_an_error(shared: Shared) -> None:
    a = shared.clone("a")
    shutil.rmtree(shared.bare)
    with pytest.raises(RemoteUnreachable):
        elsewhere(a)


NOON = 1_795_348_800.0
"""2026-11-22 12:00:00 UTC."""


def taken(folder: Path) -> tuple[Path, SyncStatus]:
    with closing(store_of(folder)) as store:
        return take_theirs(store, compare_with_remote(store), lambda: NOON)


def content(folder: Path) -> dict[str, bytes]:
    """Return every file below *folder*, by its path."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@pytest.mark.slow
def test_other_runs_and_the_lock_stay(shared: Shared) -> None:
    a, _ = diverged(shared)
    steps(a, 1, "--run", "nightly")
    lock = (a / "sync" / "state.json.lock").stat().st_ino
    beside = content(a / "sync" / "runs")
    taken(a)
    assert content(a / "sync" / "runs") == beside
    assert (a / "sync" / "state.json.lock").stat().st_ino == lock


def test_a_damaged_journal_is_replaced_by_the_one_on_the_branch(shared: Shared) -> None:
    a = shared.clone("a")
    steps(a, 3)
    journal = a / "sync" / "journal.jsonl"
    whole = journal.read_bytes()
    lines = whole.splitlines(keepends=True)
    journal.write_bytes(lines[0] + b"rubbish\n" + b"".join(lines[2:]))
    aside, _ = taken(a)
    assert journal.read_bytes() == whole
    assert b"rubbish" in (aside / "journal.jsonl").read_bytes()


def test_twice_in_a_second_gives_two_folders(shared: Shared) -> None:
    a = shared.clone("a")
    steps(a, 2)
    for _ in range(2):
        (a / "sync" / "state.json").write_text('{"revision": "no number"}')
        taken(a)
    names = sorted(path.name for path in (a / "sync").glob("set-aside-*"))
    assert names == ["set-aside-20261122T120000Z", "set-aside-20261122T120000Z-2"]


@pytest.mark.slow
def test_taking_left_unfinished_by_a_crash_can_be_repeated(shared: Shared) -> None:
    a, b = diverged(shared)
    aside = a / "sync" / "set-aside-20261122T115900Z"
    aside.mkdir()
    (a / "sync" / "state.json").rename(aside / "state.json")
    _, after = taken(a)
    assert after.remote_head == compared(b).remote_head
    assert (aside / "state.json").exists()


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("why", ["gone", "away", "no run"])
def test_taking_is_refused_when_there_is_nothing_to_take(shared: Shared, why: str) -> None:
    a = shared.clone("a")
    steps(a, 1)
    if why == "gone":
        git(shared.bare, "update-ref", "-d", "refs/heads/sequencer/default")
    elif why == "away":
        shared.bare.rename(shared.folder / "away.git")
    else:
        git(shared.bare, "update-ref", "refs/heads/sequencer/default", "refs/heads/main")
    before = content(a / "sync")
    with pytest.raises((CorruptState, RemoteUnreachable)):
        taken(a)
    assert content(a / "sync") == before
