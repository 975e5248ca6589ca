from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import pytest
from filelock import FileLock

from sequencer.errors import (
    ClaimHeld,
    CorruptState,
    NetworkFileSystem,
    NewerSchema,
    StorageFailed,
    UsageRefused,
)
from sequencer.model.head import Status
from sequencer.store import folder as folders
from sequencer.store import repair as repairing
from sequencer.store.diagnosis import Action, diagnose
from sequencer.store.file import FileStore
from sequencer.store.journal import checksum
from sequencer.store.repair import Choice, repair
from tests.unit.store.broken_runs import (
    begun,
    damage_line,
    edit,
    go_on,
    hold,
    journal_of,
    lines_of,
    read_run,
)

CONFLICT = """\
<<<<<<< HEAD
{"revision": 3, "token": 21}
=======
{"revision": 4, "token": 22}
>>>>>>> theirs
"""


def holds(state_path: Path, *, step_index: int, revision: int) -> None:
    """Assert that the run can be read and used, and stands where it should."""
    head, history = read_run(state_path)
    assert (head.step_index, head.revision) == (step_index, revision)
    assert json.loads(state_path.read_text())["revision"] == revision
    assert history[-1]["event"] == "edited"
    assert history[-1]["outcome"]["note"].startswith("repair from ")
    again = repair(state_path)
    assert again.head is None
    assert go_on(state_path).step_index == step_index + 1
    assert diagnose(state_path).action is Action.NOTHING
    revisions = [fact["revision"] for fact in read_run(state_path)[1]]
    assert revisions == sorted(revisions)


def test_a_missing_folder_is_not_created(tmp_path: Path) -> None:
    assert repair(tmp_path / "sync" / "state.json").head is None
    assert not (tmp_path / "sync").exists()


def test_a_torn_head_shows_that_the_torn_record_was_accepted(tmp_path: Path) -> None:
    state_path = begun(tmp_path, 5)
    journal = journal_of(state_path)
    journal.write_bytes(journal.read_bytes()[:-30])
    state_path.write_bytes(state_path.read_bytes()[:200])
    before = (state_path.read_bytes(), journal.read_bytes())
    with pytest.raises(CorruptState, match="shows revision 6"):
        go_on(state_path)
    with pytest.raises(CorruptState, match="choose") as refused:
        repair(state_path)
    assert refused.value.hint is not None
    assert "although" in refused.value.hint
    assert (state_path.read_bytes(), journal.read_bytes()) == before
    repair(state_path, Choice.JOURNAL)
    holds(state_path, step_index=4, revision=6)


def test_conflict_markers_in_both_files(tmp_path: Path) -> None:
    state_path = begun(tmp_path, 4)
    journal = journal_of(state_path)
    lines = lines_of(journal)
    ours, theirs = lines[3:], lines[3:4]
    parts = [*lines[:3], b"<<<<<<< HEAD\n", *ours, b"=======\n", *theirs, b">>>>>>> b\n"]
    journal.write_bytes(b"".join(parts))
    state_path.write_text(CONFLICT)
    repair(state_path)
    holds(state_path, step_index=4, revision=6)


@pytest.mark.parametrize("kind", ["folder", "link", "pipe"])
def test_a_head_that_is_not_a_regular_file_is_moved_aside(tmp_path: Path, kind: str) -> None:
    state_path = begun(tmp_path, 2)
    elsewhere = tmp_path / "elsewhere.json"
    state_path.rename(elsewhere)
    if kind == "folder":
        state_path.mkdir()
        (state_path / "note.txt").write_text("mine")
    elif kind == "link":
        state_path.symlink_to(elsewhere)
    else:
        os.mkfifo(state_path)
    content = elsewhere.read_bytes()
    done = repair(state_path)
    assert done.kept is not None
    assert os.path.lexists(done.kept / "state.json")
    if kind == "folder":
        assert (done.kept / "state.json" / "note.txt").read_text() == "mine"
    assert elsewhere.read_bytes() == content
    holds(state_path, step_index=2, revision=4)


def test_a_journal_that_is_a_folder(tmp_path: Path) -> None:
    state_path = begun(tmp_path, 2)
    journal_of(state_path).unlink()
    journal_of(state_path).mkdir()
    repair(state_path, Choice.HEAD)
    holds(state_path, step_index=2, revision=4)


def test_a_missing_journal_needs_a_choice(tmp_path: Path) -> None:
    state_path = begun(tmp_path, 6)
    journal_of(state_path).unlink()
    before = state_path.read_bytes()
    with pytest.raises(CorruptState, match="choose") as refused:
        repair(state_path)
    assert refused.value.hint is not None
    assert "--accept-head" in refused.value.hint
    assert "--accept-journal" not in refused.value.hint
    assert state_path.read_bytes() == before
    assert not list(state_path.parent.glob("damaged-*"))
    repair(state_path, Choice.HEAD)
    holds(state_path, step_index=6, revision=8)


def test_a_journal_that_lost_its_end_leaves_two_choices(tmp_path: Path) -> None:
    for choice, step_index, revision in ((Choice.HEAD, 6, 8), (Choice.JOURNAL, 4, 6)):
        state_path = begun(tmp_path / choice, 6)
        journal = journal_of(state_path)
        journal.write_bytes(b"".join(lines_of(journal)[:-2]))
        with pytest.raises(CorruptState, match="choose"):
            repair(state_path)
        repair(state_path, choice)
        holds(state_path, step_index=step_index, revision=revision)


def test_a_choice_that_is_not_there_is_refused(tmp_path: Path) -> None:
    state_path = begun(tmp_path, 2)
    state_path.write_text("{")
    with pytest.raises(UsageRefused, match="no head that is newer than the journal"):
        repair(state_path, Choice.HEAD)
    state_path = begun(tmp_path / "other", 2)
    journal_of(state_path).unlink()
    with pytest.raises(UsageRefused, match="no good record"):
        repair(state_path, Choice.JOURNAL)


def test_going_back_drops_claims_but_not_tokens(tmp_path: Path) -> None:
    state_path = begun(tmp_path, 1)
    store = FileStore(state_path)
    hold(store)
    store.close()
    good = journal_of(state_path).read_bytes()
    go_on_by = FileStore(state_path)
    head = go_on_by.view().head
    assert head is not None
    assert head.token == 1
    # Somebody else went on to token 5, and the journal lost it.
    edit(state_path, revision=head.revision + 4, token=5, claims=[], step_index=3)
    assert journal_of(state_path).read_bytes() == good
    done = repair(state_path, Choice.JOURNAL)
    assert done.head is not None
    assert (done.head.token, done.head.claims) == (5, ())
    assert done.head.status is Status.WAITING_NEXT


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    state_path = begun(tmp_path, 2)
    edit(state_path, schema_version=2)
    with pytest.raises(NewerSchema):
        repair(state_path)


@pytest.mark.parametrize("cut", [0, 1, 17, 300])
def test_a_journal_cut_anywhere_in_its_last_line(tmp_path: Path, cut: int) -> None:
    state_path = begun(tmp_path, 5)
    journal = journal_of(state_path)
    lines = lines_of(journal)
    journal.write_bytes(b"".join(lines[:-1]) + lines[-1][:cut])
    state_path.unlink()
    repair(state_path)
    holds(state_path, step_index=4, revision=6)


@pytest.mark.parametrize("stopped_at", ["write_atomically", "write_head", "sync_folder"])
def test_an_interrupted_repair_can_be_repeated(
    tmp_path: Path, stopped_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for call in range(1, 4):
        state_path = begun(tmp_path / str(call), 8)
        damage_line(journal_of(state_path), 4)
        state_path.write_text(CONFLICT)
        real, calls = getattr(repairing, stopped_at), [0]

        def stop(
            *arguments: object, call: int = call, real: object = real, calls: list[int] = calls
        ) -> object:
            calls[0] += 1
            if calls[0] == call:
                raise OSError(28, "No space left on device")
            return real(*arguments)  # type: ignore[operator]

        with monkeypatch.context() as patch:
            patch.setattr(repairing, stopped_at, stop)
            with contextlib.suppress(StorageFailed):
                repair(state_path)
        repair(state_path)
        head, _ = read_run(state_path)
        assert head.step_index == 8
        kept = next(iter(sorted(state_path.parent.glob("damaged-*"))))
        assert (kept / "state.json").read_text() == CONFLICT


def test_two_repairs_in_one_second_keep_both_originals(tmp_path: Path) -> None:
    state_path = begun(tmp_path, 2)
    for text in ("one", "two", "three"):
        state_path.write_text(text)
        repair(state_path)
    kept = sorted((p / "state.json").read_text() for p in state_path.parent.glob("damaged-*"))
    assert kept == ["one", "three", "two"]


def test_a_process_that_had_the_run_open_continues(tmp_path: Path) -> None:
    state_path = begun(tmp_path, 4)
    store = FileStore(state_path)
    assert store.view().head is not None
    damage_line(journal_of(state_path), 2)
    repair(state_path)
    head = store.view().head
    assert head is not None
    assert head.revision == 6
    store.close()


# --- repair takes the run's lock like every other writer --------------------------------------


def test_a_lock_that_stays_held_refuses_the_repair(
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
    monkeypatch.setattr("sequencer.store.lock.filesystem_type", lambda _: "nfs4")
    with pytest.raises(NetworkFileSystem):
        repair(state_path)
    assert repair(state_path, allow_network_fs=True).head is not None


@pytest.mark.parametrize("kind", ["folder", "link", "pipe"])
def test_restoring_is_proposed_for_a_head_that_is_not_a_regular_file(
    tmp_path: Path, kind: str
) -> None:
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


def test_json_that_is_not_a_state_is_hopeless_and_not_a_migration(tmp_path: Path) -> None:
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


def test_an_edit_that_will_be_accepted_is_not_damage(tmp_path: Path) -> None:
    state_path = begun(tmp_path, 2)
    edit(state_path, exit=True)
    found = diagnose(state_path)
    assert found.action is Action.NOTHING
    assert found.pending is not None
    assert "accepts the edit" in found.pending


def test_an_edit_that_will_be_restored_needs_no_repair(tmp_path: Path) -> None:
    state_path = begun(tmp_path, 2)
    edit(state_path, step_index=0, status="paused")
    found = diagnose(state_path)
    assert found.action is Action.NOTHING
    assert found.pending is not None
    assert "step_index, status can't be changed there" in found.pending
    assert "the next step keeps the file" in found.pending


@pytest.mark.parametrize(
    "changes",
    [{"run_id": "another"}, {"revision": 2}],
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


def test_an_unreadable_folder_does_not_count_as_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What attempts left behind shows tokens; without a look one could be granted again."""
    state_path = begun(tmp_path, 1)
    results = state_path.with_name("results")
    results.mkdir()
    real = folders.open_folder

    def refuse(path: Path) -> folders.Folder:
        if path == results:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(folders, "open_folder", refuse)
    with pytest.raises(CorruptState, match="can't be read: Permission denied") as caught:
        diagnose(state_path)
    assert caught.value.where == str(results)
    for name in ("state.json", "journal.jsonl"):
        state_path.with_name(name).unlink()
    with pytest.raises(CorruptState, match="had started"):
        FileStore(state_path).view()


def test_without_the_current_journal_and_the_head_a_person_chooses(tmp_path: Path) -> None:
    state_path = begun(tmp_path, 4)
    journal_of(state_path).rename(state_path.with_name("journal-000001.jsonl"))
    state_path.write_text("{")
    assert diagnose(state_path).action is Action.CHOOSE
    with pytest.raises(CorruptState, match="you have to choose"):
        repair(state_path)


def test_a_head_that_outlives_its_journal_is_continued_in_a_new_one(tmp_path: Path) -> None:
    state_path = begun(tmp_path, 4)
    journal_of(state_path).rename(state_path.with_name("journal-000001.jsonl"))
    assert diagnose(state_path).action is Action.REBUILD
    repair(state_path)
    holds(state_path, step_index=4, revision=6)


@pytest.mark.parametrize("is_head_there", [True, False])
def test_a_journal_without_its_beginning_is_damaged(tmp_path: Path, is_head_there: bool) -> None:
    state_path = begun(tmp_path, 5)
    journal = journal_of(state_path)
    journal.write_bytes(b"".join(lines_of(journal)[2:]))
    if not is_head_there:
        state_path.unlink()
    with pytest.raises(CorruptState, match="revisions 1 to 2 are missing before byte 0"):
        go_on(state_path)
    assert diagnose(state_path).action is Action.REBUILD
    repair(state_path)
    holds(state_path, step_index=5, revision=7)


def test_a_closed_journal_that_is_lost_between_two_others_is_named(tmp_path: Path) -> None:
    state_path = begun(tmp_path, 30, rotate_bytes=8 * 1024)
    state_path.with_name("journal-000002.jsonl").unlink()
    found = diagnose(state_path)
    assert found.refusal is not None
    assert found.refusal.where == str(state_path.with_name("journal-000003.jsonl"))
    assert "are missing" in found.refusal.message
    assert found.action is Action.REBUILD
    repair(state_path)
    holds(state_path, step_index=30, revision=32)


def test_a_newer_record_in_a_closed_journal_is_not_dropped_as_damaged(tmp_path: Path) -> None:
    state_path = begun(tmp_path, 3)
    journal = journal_of(state_path)
    *lines, last = lines_of(journal)
    record = json.loads(last)
    record["head"]["status"] = "levitating"
    del record["checksum"]
    body = json.dumps(record).encode()[:-1]
    sealed = body + b',"checksum":"%s"}\n' % checksum(body).encode()
    state_path.with_name("journal-000001.jsonl").write_bytes(b"".join(lines) + sealed)
    journal.unlink()
    with pytest.raises(NewerSchema, match="not known to this version"):
        diagnose(state_path)


@pytest.mark.parametrize("name", ["state.json", "journal.jsonl"])
def test_a_file_that_may_not_be_read_is_not_moved_away(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    state_path = begun(tmp_path, 2)
    real = folders.open_file

    def refuse(path: Path, *arguments: int) -> int:
        if path.name == name:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *arguments)

    monkeypatch.setattr(folders, "open_file", refuse)
    with pytest.raises(CorruptState, match="Permission denied") as refused:
        repair(state_path)
    assert refused.value.where == str(state_path.with_name(name))
    assert not list(state_path.parent.glob("damaged-*"))
