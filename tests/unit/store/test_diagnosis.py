from __future__ import annotations

import os
from pathlib import Path

import pytest

from sequencer.errors import CorruptState, NewerSchema
from sequencer.store import folder as folders
from sequencer.store.diagnosis import (
    Action,
    Gap,
    diagnose,
    is_journal_sound,
    look_at_journal,
)
from sequencer.store.file import FileStore
from sequencer.store.recovery import MAX_LOST_TOKENS
from tests.unit.store.broken_runs import begun, damage_line, edit, journal_of, lines_of


def test_a_sound_run_needs_nothing(tmp_path: Path) -> None:
    found = diagnose(begun(tmp_path, 3))
    assert found.action is Action.NOTHING
    assert found.refusal is None
    assert found.pending is None
    assert [record.revision for record in found.chain] == [1, 2, 3, 4]
    assert found.journals[0].bad_lines == ()


def test_a_folder_without_a_run_needs_nothing(tmp_path: Path) -> None:
    assert diagnose(tmp_path / "sync" / "state.json").action is Action.NOTHING
    (tmp_path / "sync").mkdir()
    found = diagnose(tmp_path / "sync" / "state.json")
    assert (found.action, found.chain, found.journals) == (Action.NOTHING, (), ())
    assert found.state.problem == "is missing"


def test_a_gap_is_named_with_revisions_and_offset(tmp_path: Path) -> None:
    state_path = begun(tmp_path, 6)
    journal = journal_of(state_path)
    bad = damage_line(journal, 3)
    behind = bad + len(lines_of(journal)[3])
    # The head's own record is found by its offset, so the gap shows only in the history.
    found = diagnose(state_path)
    assert found.action is Action.REBUILD
    assert found.journals[0].gaps == (Gap(behind, 4, 4),)
    assert found.journals[0].bad_lines == ((bad, "damaged: the checksum does not match"),)
    assert [record.revision for record in found.chain] == [5, 6, 7]


def test_several_missing_revisions_are_one_gap(tmp_path: Path) -> None:
    state_path = begun(tmp_path, 6)
    journal = journal_of(state_path)
    lines = lines_of(journal)
    journal.write_bytes(b"".join(lines[:2] + lines[5:]))
    assert diagnose(state_path).journals[0].gaps == (Gap(len(b"".join(lines[:2])), 3, 5),)


def test_a_torn_end_and_a_lost_race_do_not_count(tmp_path: Path) -> None:
    state_path = begun(tmp_path, 2)
    journal = journal_of(state_path)
    lines = lines_of(journal)
    size = journal.stat().st_size
    journal.write_bytes(b"".join(lines) + lines[1] + lines[2][:40])
    report = look_at_journal(journal)
    assert report is not None
    assert report.bad_lines == (
        (size, "revision 2 was already taken"),
        (size + len(lines[1]), "torn: no end of line"),
    )
    assert diagnose(state_path).action is Action.NOTHING


def test_an_unreadable_head_beside_a_sound_journal_is_restored(tmp_path: Path) -> None:
    state_path = begun(tmp_path, 2)
    state_path.write_bytes(state_path.read_bytes()[:100])
    found = diagnose(state_path)
    assert found.action is Action.RESTORE
    assert found.state.problem is not None
    assert found.state.problem.startswith("can't be read")
    assert is_journal_sound(found)


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
    assert not found.state.is_plain


def test_a_head_that_the_journal_does_not_reach_is_a_choice(tmp_path: Path) -> None:
    state_path = begun(tmp_path, 5)
    journal = journal_of(state_path)
    journal.write_bytes(b"".join(lines_of(journal)[:-2]))
    found = diagnose(state_path)
    assert found.action is Action.CHOOSE
    assert found.is_head_ahead
    assert found.last is not None
    assert found.last.revision == 4


def test_a_head_without_a_journal_is_a_choice(tmp_path: Path) -> None:
    state_path = begun(tmp_path, 5)
    journal_of(state_path).unlink()
    assert diagnose(state_path).action is Action.CHOOSE


def test_a_journal_whose_newest_file_is_gone_is_a_choice(tmp_path: Path) -> None:
    state_path = begun(tmp_path, 30, rotate_bytes=8 * 1024)
    journal_of(state_path).unlink()
    state_path.unlink()
    found = diagnose(state_path)
    assert found.action is Action.CHOOSE
    assert found.chain


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


def test_the_highest_token_is_taken_from_whatever_shows_one(tmp_path: Path) -> None:
    state_path = begun(tmp_path, 2)
    folder = state_path.parent
    assert diagnose(state_path).highest_token == 0
    (folder / "beats").mkdir()
    (folder / "beats" / "7").write_text("{}")
    assert diagnose(state_path).highest_token == 7
    (folder / "results" / "3-9").mkdir(parents=True)
    assert diagnose(state_path).highest_token == 9
    state_path.write_text('{"token": 12, "half": ')
    assert diagnose(state_path).highest_token == 12
    with journal_of(state_path).open("ab") as file:
        file.write(b'{"token":15,"torn')
    assert diagnose(state_path).highest_token == 15


def test_a_token_out_of_all_proportion_is_noise(tmp_path: Path) -> None:
    state_path = begun(tmp_path, 2)
    state_path.write_text(f'{{"token": {MAX_LOST_TOKENS + 1}, ')
    assert diagnose(state_path).highest_token == 0


def test_the_chain_goes_through_rotated_files(tmp_path: Path) -> None:
    state_path = begun(tmp_path, 30, rotate_bytes=8 * 1024)
    found = diagnose(state_path)
    assert len(found.journals) > 2
    assert [record.revision for record in found.chain] == list(range(1, 32))


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


def test_looking_changes_nothing(tmp_path: Path) -> None:
    state_path = begun(tmp_path, 4)
    damage_line(journal_of(state_path), 2)
    state_path.write_text("<<<<<<< ours\n")

    def content() -> dict[str, bytes]:
        return {p.name: p.read_bytes() for p in state_path.parent.iterdir() if p.is_file()}

    before = content()
    diagnose(state_path)
    assert content() == before


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
