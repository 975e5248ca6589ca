from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import pytest

from sequencer.errors import CorruptState, NewerSchema, StorageFailed, UsageRefused
from sequencer.model.head import Status
from sequencer.store import repair as repairing
from sequencer.store.diagnosis import Action, diagnose
from sequencer.store.file import FileStore
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


def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    assert repair(tmp_path / "sync" / "state.json").head is None
    assert not (tmp_path / "sync").exists()


def test_both_torn_but_the_head_shows_that_the_record_was_accepted(tmp_path: Path) -> None:
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
def test_a_head_that_is_no_plain_file_is_moved_aside(tmp_path: Path, kind: str) -> None:
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
    with pytest.raises(UsageRefused, match="no head to accept"):
        repair(state_path, Choice.HEAD)
    state_path = begun(tmp_path / "other", 2)
    journal_of(state_path).unlink()
    with pytest.raises(UsageRefused, match="no good record"):
        repair(state_path, Choice.JOURNAL)


def test_going_back_drops_claims_and_keeps_tokens(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("stopped_at", ["_write", "write_head", "sync_folder"])
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


def test_a_process_that_had_the_run_open_goes_on(tmp_path: Path) -> None:
    state_path = begun(tmp_path, 4)
    store = FileStore(state_path)
    assert store.view().head is not None
    damage_line(journal_of(state_path), 2)
    repair(state_path)
    head = store.view().head
    assert head is not None
    assert head.revision == 6
    store.close()
