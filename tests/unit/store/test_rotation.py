"""The journal put aside: what readers and crashed writers find, and what is pruned."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sequencer.errors import CorruptState, StorageFailed
from sequencer.model import command_rules as decisions
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


def test_history_after_a_revision_does_not_read_older_files(tmp_path: Path) -> None:
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


def test_old_rotated_files_are_removed_with_their_outputs(tmp_path: Path) -> None:
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
    left = {results.parse_attempt_name(path.name) for path in (tmp_path / "results").iterdir()}
    assert mentioned <= left
    assert len(left) < 20


def test_the_output_of_a_step_accepted_together_with_a_claim_stays(tmp_path: Path) -> None:
    store = small_store(tmp_path, keep=1)
    cases.begin(store)
    token = cases.claim(store).token
    for _ in range(30):
        keep_output(store, token - 1, token)
        token = cases.commit_and_claim(store, token).token
        facts = [f for f in store.history() if f["event"] == "succeeded"]
        for fact in facts:
            assert store.result_folder(fact["step_index"], fact["token"]).is_dir()


def test_a_link_that_a_crash_left_is_used_again(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    go_on(store, 1)
    os.link(tmp_path / "journal.jsonl", tmp_path / "journal-000001.jsonl")
    go_on(store, 10)
    assert cases.check_files(tmp_path) == 11
    names = rotated(tmp_path)
    assert names == [f"journal-{n:06d}.jsonl" for n in range(1, len(names) + 1)]


def test_the_journal_grows_on_a_file_system_without_hard_links(
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


def test_a_removed_rotated_file_is_a_gap(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    go_on(store, 20)
    (tmp_path / "journal-000003.jsonl").unlink()
    with pytest.raises(CorruptState, match="revision 6 is missing"):
        list(store.history())
    assert small_store(tmp_path).view().head == store.view().head


def test_a_journal_missing_after_rotation_is_not_started_over(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    go_on(store, 10)
    (tmp_path / "journal.jsonl").unlink()
    (tmp_path / "state.json").unlink()
    with pytest.raises(CorruptState, match="missing or empty"):
        cases.begin(small_store(tmp_path))


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
