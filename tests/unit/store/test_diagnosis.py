from __future__ import annotations

import os
from pathlib import Path

import pytest

from sequencer.errors import CorruptState, NewerSchema
from sequencer.store import folder as folders
from sequencer.store.diagnosis import Action, diagnose
from sequencer.store.file import FileStore
from tests.unit.store.broken_runs import begun, damage_line, edit, journal_of


@pytest.mark.parametrize("kind", ["folder", "link", "pipe"])
def test_a_head_that_is_no_plain_file_is_restored(tmp_path: Path, kind: str) -> None:
    state_path = begun(tmp_path, 2)
    state_path.rename(tmp_path / "elsewhere.json")
    if kind == "folder":
        state_path.mkdir()
    elif kind == "link":
        state_path.symlink_to(tmp_path / "elsewhere.json")
    else:
        os.mkfifo(state_path)
    found = diagnose(state_path)
    assert found.action is Action.RESTORE
    assert found.state.problem is not None


def test_nothing_readable_is_hopeless(tmp_path: Path) -> None:
    state_path = begun(tmp_path, 2)
    state_path.write_text("{")
    journal_of(state_path).write_bytes(b"\0" * 4096 + b"\n")
    assert diagnose(state_path).action is Action.HOPELESS


def test_json_that_is_no_state_is_hopeless_and_not_a_migration(tmp_path: Path) -> None:
    (tmp_path / "sync").mkdir()
    state_path = tmp_path / "sync" / "state.json"
    state_path.write_text("{}")
    assert diagnose(state_path).action is Action.HOPELESS


def test_the_state_of_the_older_program_waits_for_its_migration(tmp_path: Path) -> None:
    (tmp_path / "sync").mkdir()
    state_path = tmp_path / "sync" / "state.json"
    state_path.write_text('{"iteration": 3, "expected_actor": "ralph", "status": "waiting-ralph"}')
    found = diagnose(state_path)
    assert found.action is Action.NOTHING
    assert found.pending is not None
    assert "migrates" in found.pending


def test_an_edit_that_will_be_accepted_is_no_damage(tmp_path: Path) -> None:
    state_path = begun(tmp_path, 2)
    edit(state_path, exit=True)
    found = diagnose(state_path)
    assert found.action is Action.NOTHING
    assert found.pending is not None
    assert "accepts the edit" in found.pending


@pytest.mark.parametrize(
    "changes",
    [{"token": -1}, {"run_id": "another"}, {"claims": "none"}, {"revision": "3"}, {"revision": 2}],
)
def test_an_edit_that_is_refused_is_restored(tmp_path: Path, changes: dict[str, object]) -> None:
    state_path = begun(tmp_path, 2)
    edit(state_path, **changes)
    found = diagnose(state_path)
    assert found.refusal is not None
    assert found.action is Action.RESTORE


def test_a_newer_schema_is_left_to_the_newer_program(tmp_path: Path) -> None:
    state_path = begun(tmp_path, 2)
    edit(state_path, schema_version=2)
    with pytest.raises(NewerSchema):
        diagnose(state_path)


def test_a_damaged_rotated_file_is_found(tmp_path: Path) -> None:
    state_path = begun(tmp_path, 30, rotate_bytes=8 * 1024)
    damage_line(state_path.with_name("journal-000001.jsonl"), 3)
    assert diagnose(state_path).action is Action.REBUILD


def test_a_file_without_permissions_is_not_taken_for_damage(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root reads everything")
    state_path = begun(tmp_path, 2)
    state_path.chmod(0)
    with pytest.raises(CorruptState, match="Permission"):
        diagnose(state_path)


def test_a_folder_that_may_not_be_looked_at_is_no_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What attempts left behind shows tokens; without a look one could be granted again."""
    state_path = begun(tmp_path, 1)
    results = state_path.with_name("results")
    results.mkdir()
    real = folders.names

    def refuse(path: Path) -> list[str]:
        if path == results:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(folders, "names", refuse)
    with pytest.raises(CorruptState, match="can't be looked at: Permission denied") as caught:
        diagnose(state_path)
    assert caught.value.where == str(results)
    for name in ("state.json", "journal.jsonl"):
        state_path.with_name(name).unlink()
    with pytest.raises(CorruptState, match="had begun"):
        FileStore(state_path).view()
