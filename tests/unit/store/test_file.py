"""The file store's own promises: folders, permissions, left-overs, migration, waiting."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from sequencer.errors import ClaimHeld, CorruptState, EditRefused, StorageFailed
from sequencer.model.head import Head
from sequencer.store.file import FileStore
from sequencer.store.lock import RunLock
from tests.contract import store_cases as cases

LEGACY = {"step_index": 4, "status": "waiting-next", "commit": "abc"}


def migrate(raw: dict[str, Any]) -> Head:
    return cases.new_head(step_index=raw["step_index"], iteration=raw["step_index"] + 1)


def test_looking_at_a_run_creates_nothing(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "sync" / "state.json")
    assert store.view().head is None
    assert list(store.history()) == []
    assert not (tmp_path / "sync").exists()


def test_the_files_of_a_run(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "sync" / "state.json")
    cases.begin(store)
    granted = cases.claim(store)
    names = sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*"))
    assert names == [
        "sync",
        "sync/journal.jsonl",
        "sync/state.json",
        "sync/state.json.lock",
    ]
    store.beat(granted, 1)
    assert json.loads((tmp_path / "sync/beats/1").read_text())["beat"] == 1
    cases.commit(store, granted.token)
    assert not (tmp_path / "sync/beats/1").exists()
    head = json.loads((tmp_path / "sync/state.json").read_text())
    line = (tmp_path / "sync/journal.jsonl").read_bytes()[head["journal_offset"] :]
    assert json.loads(line)["revision"] == head["revision"] == 3


def test_the_head_and_its_record_stay_small(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "state.json")
    cases.begin(store)
    sizes = []
    for _ in range(60):
        cases.commit(store, cases.claim(store).token)
        sizes.append((tmp_path / "state.json").stat().st_size)
    assert max(sizes) < 2_000
    assert sizes[-1] - sizes[0] < 30


def test_left_overs_of_killed_writers_are_swept_by_the_next_claim(tmp_path: Path) -> None:
    cases.begin(FileStore(tmp_path / "state.json"))
    (tmp_path / "beats").mkdir(exist_ok=True)
    strays = [".state.json.99.tmp", "journal.jsonl.99.tmp", "beats/7.99.tmp", "beats/7"]
    for name in strays:
        (tmp_path / name).write_text("half")
    (tmp_path / "mine.tmp").mkdir()
    store = FileStore(tmp_path / "state.json")
    # A look beforehand must not make the worker skip the sweep.
    store.view()
    cases.claim(store)
    assert [name for name in strays if (tmp_path / name).exists()] == []
    assert (tmp_path / "mine.tmp").is_dir()


def test_what_cannot_be_written_is_refused_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "sync").write_text("a file")
    with pytest.raises(StorageFailed, match=r"can't be"):
        cases.begin(FileStore(tmp_path / "sync" / "state.json"))
    with pytest.raises(StorageFailed, match="can't be read"):
        FileStore(tmp_path / "sync" / "state.json").view()
    with pytest.raises(StorageFailed):
        cases.begin(FileStore(tmp_path / "sync" / "deeper" / "state.json"))


def test_a_folder_that_goes_in_mid_run(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "sync" / "state.json")
    cases.begin(store)
    granted = cases.claim(store)
    (tmp_path / "sync").rename(tmp_path / "elsewhere")
    assert store.view().head is None
    with pytest.raises(AssertionError):
        cases.commit(store, granted.token)
    (tmp_path / "sync").rename(tmp_path / "empty")
    (tmp_path / "elsewhere").rename(tmp_path / "sync")
    cases.commit(store, granted.token)
    assert cases.check_files(tmp_path / "sync") == 1


def test_a_head_that_cannot_be_replaced_follows_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileStore(tmp_path / "state.json")
    cases.begin(store)
    real = os.replace

    def refuse(source: str, target: str, **folders: int) -> None:
        if str(target).endswith("state.json"):
            raise OSError(28, "No space left on device")
        real(source, target, **folders)

    monkeypatch.setattr(os, "replace", refuse)
    granted = cases.claim(store)
    assert "could not be replaced: No space left" in store.take_notices()[0]
    assert json.loads((tmp_path / "state.json").read_text())["revision"] == 1
    assert FileStore(tmp_path / "state.json").view().head == store.view().head
    monkeypatch.undo()
    cases.commit(store, granted.token)
    store.close()
    assert cases.check_files(tmp_path) == 1


def test_a_reader_between_append_and_rename_says_nothing(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "state.json")
    cases.begin(store)
    old = (tmp_path / "state.json").read_bytes()
    cases.claim(store)
    (tmp_path / "state.json").write_bytes(old)
    view = FileStore(tmp_path / "state.json").view()
    assert view.head is not None
    assert (view.head.revision, view.notices) == (2, ())


def test_another_programs_state_is_migrated_once_and_kept(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    state.write_text(json.dumps(LEGACY))
    store = FileStore(state, migrate=migrate)
    seen = store.view().head
    assert seen is not None
    assert seen.step_index == 4
    assert json.loads(state.read_text()) == LEGACY
    assert cases.claim(store).step_index == 4
    assert json.loads((tmp_path / "state.json.before-migration").read_text()) == LEGACY
    assert "was migrated" in store.take_notices()[0]
    assert [f["event"] for f in store.history()] == ["initialised", "claimed"]


def test_another_programs_state_without_a_way_to_migrate_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    state.write_text(json.dumps(LEGACY))
    store = FileStore(state)
    for verb in (store.view, lambda: cases.begin(store)):
        with pytest.raises(CorruptState, match="another program"):
            verb()
    assert json.loads(state.read_text()) == LEGACY


def test_a_state_that_cannot_be_migrated_says_where_it_is(tmp_path: Path) -> None:
    def refuse(raw: dict[str, Any]) -> Head:
        raise CorruptState(f"can't carry {raw['old']} over")

    state = tmp_path / "state.json"
    state.write_text(json.dumps({"old": 1}))
    store = FileStore(state, migrate=refuse)
    for verb in (store.view, lambda: cases.begin(store)):
        with pytest.raises(CorruptState, match="can't carry 1 over") as caught:
            verb()
        assert caught.value.where == str(state)


def test_another_programs_state_beside_a_journal_is_no_edit(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    state.write_text(json.dumps(LEGACY))
    store = FileStore(state, migrate=migrate)
    cases.commit(store, cases.claim(store).token)
    state.write_text(json.dumps({**LEGACY, "mine": "written since"}))
    with pytest.raises(EditRefused, match="another program's state, and its journal is at rev"):
        FileStore(state, migrate=migrate).view()


@pytest.mark.parametrize("rotate_bytes", [1_000_000, 1_000])
def test_a_migrated_state_that_could_not_be_replaced_for_long(
    tmp_path: Path, rotate_bytes: int
) -> None:
    """A full disk may let the journal grow, and leave the old file in its place."""
    state = tmp_path / "state.json"
    state.write_text(json.dumps(LEGACY))
    store = FileStore(state, migrate=migrate, rotate_bytes=rotate_bytes)
    for _ in range(3):
        cases.commit(store, cases.claim(store).token)
    accepted = store.view().head
    state.write_text(json.dumps(LEGACY))
    view = FileStore(state, migrate=migrate).view()
    assert view.head == accepted
    later = FileStore(state, migrate=migrate)
    later.update(lambda _: None)
    assert later.take_notices() == [f"{state} was migrated, but not replaced; that is done now"]
    assert json.loads(state.read_text())["step_index"] == int(str(LEGACY["step_index"])) + 3


def test_one_copy_of_the_original_is_enough(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    state.write_text(json.dumps(LEGACY))
    state.with_name("state.json.before-migration").write_text("another one")
    for _ in range(3):
        # A writer that is stopped before its append leaves the copy.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FileStore, "_accept", lambda *_: (_ for _ in ()).throw(OSError("stop")))
            with pytest.raises(StorageFailed):
                cases.begin(FileStore(state, migrate=migrate))
    cases.claim(FileStore(state, migrate=migrate))
    copies = sorted(path.name for path in tmp_path.glob("*before-migration*"))
    assert copies == ["state.json.before-migration", "state.json.before-migration-2"]


def test_the_lock_is_held_while_a_change_decides(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "state.json")
    cases.begin(store)
    other = RunLock(tmp_path / "state.json.lock", allow_network_fs=False, timeout_s=0.05)
    held: list[bool] = []

    def look(_: Head | None) -> None:
        try:
            with other:
                held.append(False)
        except ClaimHeld:
            held.append(True)

    store.update(look)
    assert held == [True]
    look(None)
    assert held == [True, False]


def test_waiting_for_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "sync" / "state.json")
    other = FileStore(tmp_path / "sync" / "state.json")
    timer = threading.Timer(0.1, cases.begin, (other,))
    timer.start()
    started = time.monotonic()
    assert store.wait(0, 10.0)
    assert time.monotonic() - started < 1.0
    timer.join()
    store.close()
    assert store.view().head == other.view().head


def test_waiting_for_a_holder_that_is_gone_already_ends_at_once(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "state.json")
    cases.begin(store)
    cases.claim(store)
    gone = store.owner().replace(pid_start=1)
    started = time.monotonic()
    assert not store.wait(2, 10.0, claim=cases.make_claim(owner=gone))
    assert time.monotonic() - started < 0.5
    store.close()
