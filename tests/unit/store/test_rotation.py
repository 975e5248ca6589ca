"""The journal put aside: what readers and crashed writers find, and what is pruned."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sequencer.errors import CorruptState, StorageFailed
from sequencer.model import by_hand as decisions
from sequencer.model.head import Head
from sequencer.model.transitions import Event, Fact, Transition
from sequencer.store import folder as folders
from sequencer.store import journal as journal_file
from sequencer.store import results
from sequencer.store.file import FileStore
from sequencer.store.journal import JournalFile
from tests.contract import store_cases as cases

SMALL = 3_000


def small_store(folder: Path, keep: int = 100) -> FileStore:
    return FileStore(folder / "state.json", rotate_bytes=SMALL, keep=keep)


def go_on(store: FileStore, steps: int) -> None:
    cases.begin(store)
    for _ in range(steps):
        cases.commit(store, cases.claim(store).token)


def rotated(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("journal-*.jsonl"))


def test_every_fact_is_kept_over_all_files(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    go_on(store, 20)
    assert len(rotated(tmp_path)) > 5
    assert rotated(tmp_path)[0] == "journal-000001.jsonl"
    assert cases.check_files(tmp_path) == 20
    assert (tmp_path / "journal.jsonl").stat().st_size < SMALL + 2_000
    assert small_store(tmp_path).view().head == store.view().head


def test_what_came_after_a_revision_is_told_without_the_files_before(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    go_on(store, 20)
    whole = list(store.history())
    newest = whole[-1]["revision"]
    for after in range(newest + 2):
        assert list(store.history(after)) == [f for f in whole if f["revision"] > after]
    for name in rotated(tmp_path)[:-1]:
        (tmp_path / name).write_text("not a line that was written by anybody")
    assert list(store.history(newest - 1)) == [f for f in whole if f["revision"] == newest]


def keep_output(store: FileStore, step_index: int, token: int) -> None:
    folder = store.result_folder(step_index, token)
    folder.mkdir(parents=True)
    (folder / "output.txt").write_text("x")


def test_only_so_many_are_kept_and_outputs_go_with_them(tmp_path: Path) -> None:
    store = small_store(tmp_path, keep=2)
    cases.begin(store)
    for _ in range(20):
        granted = cases.claim(store)
        keep_output(store, granted.step_index, granted.token)
        cases.commit(store, granted.token)
    assert len(rotated(tmp_path)) == 2
    facts = list(store.history())
    oldest = facts[0]["revision"]
    assert oldest > 1
    assert [f["revision"] for f in facts] == list(range(oldest, oldest + len(facts)))
    mentioned = {(f["step_index"], f["token"]) for f in facts if f["event"] == "succeeded"}
    left = {results.attempt_of(path.name) for path in (tmp_path / "results").iterdir()}
    assert mentioned <= left
    assert len(left) < 20


def test_the_output_of_a_step_that_was_accepted_with_a_claim_is_kept(tmp_path: Path) -> None:
    store = small_store(tmp_path, keep=1)
    cases.begin(store)
    token = cases.claim(store).token
    for _ in range(30):
        keep_output(store, token - 1, token)
        token = cases.commit_and_claim(store, token).token
        facts = [f for f in store.history() if f["event"] == "succeeded"]
        for fact in facts:
            assert store.result_folder(fact["step_index"], fact["token"]).is_dir()


def test_a_record_that_is_larger_than_the_limit_does_not_rotate_for_ever(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "state.json", rotate_bytes=10, keep=100)
    go_on(store, 3)
    assert cases.check_files(tmp_path) == 3
    assert len(rotated(tmp_path)) == 5


def test_a_head_of_before_the_rotation_is_still_found(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    cases.begin(store)
    state = tmp_path / "state.json"
    while not rotated(tmp_path):
        before, old = store.view().head, state.read_bytes()
        cases.release(store, cases.claim(store).token)
    state.write_bytes(old)
    view = small_store(tmp_path).view()
    assert view.head == store.view().head
    assert before is not None
    assert view.head is not None
    assert view.head.revision > before.revision


def test_a_link_that_a_crash_left_is_used_again(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    go_on(store, 1)
    os.link(tmp_path / "journal.jsonl", tmp_path / "journal-000001.jsonl")
    go_on(store, 10)
    assert cases.check_files(tmp_path) == 11
    names = rotated(tmp_path)
    assert names == [f"journal-{n:06d}.jsonl" for n in range(1, len(names) + 1)]


def test_a_file_system_that_cannot_link_lets_the_journal_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    store = small_store(tmp_path)
    go_on(store, 10)
    assert cases.check_files(tmp_path) == 10
    assert rotated(tmp_path) == []
    assert any("can't be rotated: Operation not permitted" in text for text in store.take_notices())


def test_history_goes_on_while_a_writer_rotates(tmp_path: Path) -> None:
    store, reader = small_store(tmp_path), small_store(tmp_path)
    go_on(store, 1)
    facts: Iterator[dict[str, Any]] = reader.history()
    seen = [next(facts)["revision"]]
    go_on(store, 20)
    seen += [fact["revision"] for fact in facts]
    assert seen == list(range(1, len(seen) + 1))
    assert len(seen) > 2


def test_history_goes_on_while_old_files_are_removed(tmp_path: Path) -> None:
    store, reader = small_store(tmp_path, keep=3), small_store(tmp_path, keep=3)
    go_on(store, 12)
    facts = reader.history()
    next(facts)
    go_on(store, 12)
    revisions = [fact["revision"] for fact in facts]
    assert revisions == sorted(set(revisions))
    head = store.view().head
    assert head is not None
    assert revisions[-1] == head.revision


def test_a_rotated_file_that_somebody_removed_is_a_gap(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    go_on(store, 20)
    (tmp_path / "journal-000003.jsonl").unlink()
    with pytest.raises(CorruptState, match=r"revisions \d+ to \d+ are missing"):
        list(store.history())
    assert small_store(tmp_path).view().head == store.view().head


def test_a_journal_that_is_gone_after_rotation_is_not_begun_again(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    go_on(store, 10)
    (tmp_path / "journal.jsonl").unlink()
    (tmp_path / "state.json").unlink()
    with pytest.raises(CorruptState, match="missing or empty"):
        cases.begin(small_store(tmp_path))


def test_an_append_that_landed_elsewhere_is_looked_up(tmp_path: Path) -> None:
    """A line that does not count, by a writer without the lock, came between."""
    store = small_store(tmp_path)
    go_on(store, 1)
    journal = tmp_path / "journal.jsonl"
    real = JournalFile.append

    def late(self: JournalFile, line: bytes, offset: int) -> bool:
        with journal.open("ab") as file:
            file.write(b'{"revision":1}\n')
        return real(self, line, offset)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JournalFile, "append", late)
        granted = cases.claim(store)
    assert granted.token == 2
    cases.commit(store, granted.token)
    events = [f["event"] for f in store.history()]
    assert events == ["initialised", "claimed", "succeeded", "claimed", "succeeded"]


def test_the_second_of_two_appends_loses_and_decides_again(tmp_path: Path) -> None:
    store, quicker = small_store(tmp_path), small_store(tmp_path)
    cases.begin(store)
    real = JournalFile.append
    seen: list[int] = []

    def late(self: JournalFile, line: bytes, offset: int) -> bool:
        if not seen:
            seen.append(1)
            (tmp_path / "state.json.lock").unlink()
            quicker.update(
                cases.on_run(
                    lambda head: decisions.skip(head, cases.place_at(1), None, at=cases.now())
                )
            )
        return real(self, line, offset)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JournalFile, "append", late)
        granted = cases.claim(store)
    assert (granted.token, granted.step_index) == (1, 1)
    assert store.view().head == quicker.view().head
    assert [(f["event"], f["token"]) for f in store.history()] == [
        ("initialised", 0),
        ("skipped", 0),
        ("claimed", 1),
    ]


def test_a_write_of_unknown_outcome_is_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = small_store(tmp_path)
    cases.begin(store)
    real, calls = journal_file._fdatasync, []

    def fails(fd: int) -> None:
        real(fd)
        calls.append(fd)
        if len(calls) != 2:
            raise OSError(5, "Input/output error")

    # The line counts, because it is there and a second try makes it durable.
    monkeypatch.setattr(journal_file, "_fdatasync", fails)
    assert cases.claim(store).token == 1
    monkeypatch.setattr(os, "write", lambda *_: fails(os.open("/dev/null", os.O_RDONLY)))
    with pytest.raises(StorageFailed) as caught:
        cases.commit(store, 1)
    assert caught.value.exit_code == 3
    monkeypatch.undo()
    cases.commit(store, 1)
    assert cases.check_files(tmp_path) == 1


def test_who_loses_a_race_right_after_a_rotation_does_not_sync_the_folders_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Syncing takes longer than a lock file may last that somebody keeps deleting."""
    store = small_store(tmp_path)
    cases.begin(store)
    while (tmp_path / "journal.jsonl").stat().st_size < SMALL:
        store.update(
            cases.on_run(lambda head: decisions.edit_field(head, "note", "x", at=cases.now()))
        )
    synced: list[Path] = []
    sync, answers = folders.sync_folder, iter([False] * 5)

    def noted(folder: Path) -> None:
        synced.append(folder)
        sync(folder)

    monkeypatch.setattr(journal_file, "sync_folder", noted)
    monkeypatch.setattr(store._lock, "is_current", lambda: next(answers, True))
    cases.claim(store)
    assert len(rotated(tmp_path)) == 1
    # Twice by the rotation, once so that the new journal's name is sure to be there.
    assert synced.count(tmp_path) == 3


def test_a_change_is_asked_for_once_also_where_the_journal_is_put_aside(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    asked: dict[int, int] = {}
    cases.begin(store)
    for _ in range(12):

        def change(head: Head | None) -> Transition:
            assert head is not None
            asked[head.revision] = asked.get(head.revision, 0) + 1
            return Transition(head, (Fact(Event.RESUMED, "", head.step_index),))

        store.update(change)
    assert len(rotated(tmp_path)) > 1
    assert asked == dict.fromkeys(range(1, 13), 1)
