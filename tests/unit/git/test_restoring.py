from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from sequencer.errors import CorruptState, RemoteUnreachable, UsageRefused
from sequencer.git.sides import Relation, Sides, compare, take_theirs
from tests.clones import Shared, git
from tests.unit.cli.sharing import compared, diverged, shared_project, steps, store_of

NOON = 1_795_348_800.0
"""2026-11-22 12:00:00 UTC."""


@pytest.fixture
def shared(tmp_path: Path) -> Shared:
    return shared_project(tmp_path)


def taken(folder: Path) -> tuple[Path, Sides]:
    with closing(store_of(folder)) as store:
        return take_theirs(store, compare(store), lambda: NOON)


def content(folder: Path) -> dict[str, bytes]:
    """Return every file below *folder*, by its path."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_the_branchs_files_take_the_place_and_nothing_is_lost(shared: Shared) -> None:
    a, b = diverged(shared)
    output = a / "sync" / "results" / "1-2"
    output.mkdir(parents=True)
    (output / "output.txt").write_text("of the history that was put back\n")
    before = content(a / "sync")
    aside, after = taken(a)
    assert aside == a / "sync" / "set-aside-20261122T120000Z"
    assert after.relation is Relation.NEW
    kept = content(aside)
    assert {name: before[name] for name in kept} == kept
    assert {"state.json", "journal.jsonl", "remote.json", "results/1-2/output.txt"} <= set(kept)
    for name in ("state.json", "journal.jsonl"):
        assert (a / "sync" / name).read_bytes() == (b / "sync" / name).read_bytes()
    assert not (a / "sync" / "results").exists()
    steps(a, 1)
    assert compared(b).relation is Relation.BEHIND


def test_the_runs_beside_and_the_lock_stay(shared: Shared) -> None:
    a, _ = diverged(shared)
    steps(a, 1, "--run", "nightly")
    lock = (a / "sync" / "state.json.lock").stat().st_ino
    beside = content(a / "sync" / "runs")
    taken(a)
    assert content(a / "sync" / "runs") == beside
    assert (a / "sync" / "state.json.lock").stat().st_ino == lock


def test_a_damaged_journal_is_replaced_by_the_branchs(shared: Shared) -> None:
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


def test_what_a_crash_has_left_half_done_is_done_again(shared: Shared) -> None:
    a, b = diverged(shared)
    aside = a / "sync" / "set-aside-20261122T115900Z"
    aside.mkdir()
    (a / "sync" / "state.json").rename(aside / "state.json")
    _, after = taken(a)
    assert after.there == compared(b).there
    assert (aside / "state.json").exists()


def test_where_there_is_no_need_it_is_refused(shared: Shared) -> None:
    a = shared.clone("a")
    steps(a, 1)
    before = content(a / "sync")
    with pytest.raises(UsageRefused, match="one history"):
        taken(a)
    assert content(a / "sync") == before


@pytest.mark.parametrize("why", ["gone", "away", "no run"])
def test_where_there_is_nothing_to_take_it_is_refused(shared: Shared, why: str) -> None:
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
