"""Repair takes the run's lock like every other writer."""

from __future__ import annotations

from pathlib import Path

import pytest
from filelock import FileLock

from sequencer.errors import ClaimHeld, NetworkFileSystem, StorageFailed
from sequencer.store.repair import repair
from tests.unit.store.broken_runs import begun


def test_a_lock_that_is_held_for_good_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state_path = begun(tmp_path, 2)
    state_path.write_text("{")
    monkeypatch.setattr("sequencer.store.lock.TIMEOUT_S", 0.05)
    with FileLock(f"{state_path}.lock"), pytest.raises(ClaimHeld):
        repair(state_path)
    assert state_path.read_text() == "{"


def test_a_lock_that_is_a_folder_is_named(tmp_path: Path) -> None:
    state_path = begun(tmp_path, 2)
    state_path.write_text("{")
    state_path.with_name("state.json.lock").unlink()
    state_path.with_name("state.json.lock").mkdir()
    with pytest.raises(StorageFailed, match="lock"):
        repair(state_path)


def test_a_network_file_system_is_refused_unless_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state_path = begun(tmp_path, 2)
    state_path.write_text("{")
    monkeypatch.setattr("sequencer.store.lock.type_of", lambda _: "nfs4")
    with pytest.raises(NetworkFileSystem):
        repair(state_path)
    assert repair(state_path, allow_network_fs=True).head is not None
