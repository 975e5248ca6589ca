"""The file store's own promises: folders, permissions, left-overs, migration, waiting."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from sequencer.errors import CorruptState, StorageFailed
from sequencer.model.head import Head
from sequencer.store.file import FileStore
from tests.contract import store_cases as cases

LEGACY = {"step_index": 4, "status": "waiting-next", "commit": "abc"}


def migrate(raw: dict[str, Any]) -> Head:
    return cases.new_head(step_index=raw["step_index"], iteration=raw["step_index"] + 1)


def test_what_cannot_be_written_is_refused_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "sync").write_text("a file")
    with pytest.raises(StorageFailed, match=r"can't be"):
        cases.begin(FileStore(tmp_path / "sync" / "state.json"))
    with pytest.raises(StorageFailed, match="can't be read"):
        FileStore(tmp_path / "sync" / "state.json").view()
    with pytest.raises(StorageFailed):
        cases.begin(FileStore(tmp_path / "sync" / "deeper" / "state.json"))


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


def test_waiting_for_a_holder_that_is_gone_already_ends_at_once(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "state.json")
    cases.begin(store)
    cases.claim(store)
    gone = store.owner().replace(pid_start=1)
    started = time.monotonic()
    assert not store.wait(2, 10.0, claim=cases.make_claim(owner=gone))
    assert time.monotonic() - started < 0.5
    store.close()
