"""One reading of a run's files: how often each is opened, and what a live writer does to it."""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from sequencer.errors import CorruptState, EditRefused
from sequencer.store import folder as folders
from sequencer.store import reading, recovery
from sequencer.store.diagnosis import Action, diagnose
from sequencer.store.file import FileStore
from sequencer.store.journal import checksum
from sequencer.store.reading import READ_ATTEMPTS, ProgressMark
from tests.unit.store.broken_runs import begun, damage_line, edit, go_on, hold, journal_of
from tests.unit.store.test_evidence import GONE, _owner


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count how often files are opened, by name."""
    found: Counter[str] = Counter()
    real = folders.open_file

    def count(path: Path, *arguments: int) -> int:
        found[path.name] += 1
        return real(path, *arguments)

    monkeypatch.setattr(folders, "open_file", count)
    return found


def rotated(folder: Path) -> Path:
    return begun(folder, 30, rotate_bytes=8 * 1024)


def sound(state_path: Path) -> None:
    del state_path


def without_head(state_path: Path) -> None:
    state_path.unlink()


def half_a_head(state_path: Path) -> None:
    state_path.write_bytes(state_path.read_bytes()[:200])


def older_head(state_path: Path) -> None:
    edit(state_path, revision=3, note="mine")


def of_another_program(state_path: Path) -> None:
    state_path.write_text('{"step_index": 3, "status": "complete"}')


def damaged_line(state_path: Path) -> None:
    damage_line(journal_of(state_path), 1)


def without_journal(state_path: Path) -> None:
    journal_of(state_path).unlink()


DAMAGES = [
    sound, without_head, half_a_head, older_head, of_another_program, damaged_line, without_journal
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("make", [rotated, lambda folder: begun(folder, 6)])
def test_a_diagnosis_opens_each_file_once(
    tmp_path: Path,
    opened: Counter[str],
    make: Callable[[Path], Path],
    damage: Callable[[Path], None],
) -> None:
    state_path = make(tmp_path)
    damage(state_path)
    opened.clear()
    found = diagnose(state_path)
    assert found.action in Action
    there = [state_path, *state_path.parent.glob("journal*.jsonl"), journal_of(state_path)]
    assert opened == {path.name: 1 for path in there}


def test_an_open_reads_the_head_and_its_own_record(
    tmp_path: Path, opened: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    state_path = rotated(tmp_path)
    reads: list[tuple[str, int]] = []
    real = folders.read_regular

    def read(path: Path, offset: int = 0, max_bytes: int | None = None) -> bytes:
        reads.append((path.name, offset))
        return real(path, offset, max_bytes)

    monkeypatch.setattr(reading, "read_regular", read)
    opened.clear()
    head = FileStore(state_path).view().head
    assert head is not None
    assert reads == [("state.json", 0), ("journal.jsonl", head.journal_offset)]
    assert head.journal_offset > 0
    assert opened.total() == 2


def test_a_writer_reads_each_file_once_too(tmp_path: Path, opened: Counter[str]) -> None:
    state_path = rotated(tmp_path)
    opened.clear()
    FileStore(state_path).update(lambda _: None)
    assert (opened["state.json"], opened["journal.jsonl"]) == (1, 1)


def test_an_edited_offset_does_not_make_a_losing_line_count(tmp_path: Path) -> None:
    state_path = begun(tmp_path, 3)
    journal = journal_of(state_path)
    accepted, size = FileStore(state_path).view().head, journal.stat().st_size
    second = json.loads(journal.read_bytes().splitlines()[-1])
    second["head"]["step_index"] = 0
    del second["checksum"]
    body = json.dumps(second).encode()[:-1]
    with journal.open("ab") as file:
        file.write(body + b',"checksum":"%s"}\n' % checksum(body).encode())
    edit(state_path, journal_offset=size - 1)
    assert FileStore(state_path).view().head == accepted


@pytest.mark.parametrize("damage", [without_head, half_a_head, of_another_program])
def test_opening_with_damage_still_opens_each_file_once(
    tmp_path: Path, opened: Counter[str], damage: Callable[[Path], None]
) -> None:
    state_path = begun(tmp_path, 6)
    damage(state_path)
    opened.clear()
    with contextlib.suppress(EditRefused, CorruptState):
        FileStore(state_path).view()
    assert opened == {"state.json": 1, "journal.jsonl": 1}


class Goes:
    """A worker that goes on while the step logs are read, and what they show then."""

    def __init__(self, state_path: Path, times: int, token: int = 0) -> None:
        self.state_path, self.times, self.token = state_path, times, token
        self.asked = 0

    def __call__(self, run_id: str) -> Iterable[ProgressMark]:
        assert run_id
        self.asked += 1
        if self.asked <= self.times:
            go_on(self.state_path)
        return self.traces()

    def traces(self) -> Iterator[ProgressMark]:
        yield ProgressMark(Path("a.log"), self.token)


def test_a_log_newer_than_the_files_read_is_not_damage(tmp_path: Path) -> None:
    state_path = begun(tmp_path, 3)

    def claims(run_id: str) -> Iterable[ProgressMark]:
        assert run_id
        looks.append(run_id)
        if len(looks) == 1:
            store = FileStore(state_path)
            hold(store)
            store.close()
        return (ProgressMark(Path("a.log"), token=1),)

    looks: list[str] = []
    found = diagnose(state_path, claims)
    assert (found.refusal, found.action, len(looks)) == (None, Action.NOTHING, 2)


def test_damage_is_still_damage_while_a_writer_is_live(tmp_path: Path) -> None:
    state_path = rotated(tmp_path)
    damage_line(state_path.with_name("journal-000001.jsonl"), 1)
    worker = Goes(state_path, times=1_000)
    found = diagnose(state_path, worker)
    assert found.refusal is not None
    assert "missing before byte" in found.refusal.message
    assert (found.action, worker.asked) == (Action.REBUILD, 2)


def test_files_that_change_at_each_look_are_not_reported_as_damaged(tmp_path: Path) -> None:
    state_path = begun(tmp_path, 1)
    worker = Goes(state_path, times=1_000, token=9)
    with pytest.raises(CorruptState, match="changes faster than it can be read"):
        diagnose(state_path, worker)
    assert worker.asked == READ_ATTEMPTS


def test_files_are_diagnosed_once_the_writer_is_idle_again(tmp_path: Path) -> None:
    state_path = begun(tmp_path, 1)
    worker = Goes(state_path, times=3, token=9)
    found = diagnose(state_path, worker)
    assert (found.action, worker.asked) == (Action.CHOOSE, 4)


def test_the_proposed_action_does_not_change_after_the_diagnosis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state_path = begun(tmp_path, 1)
    store = FileStore(state_path)
    hold(store, _owner(GONE))
    store.close()
    state_path.write_text("{")
    with journal_of(state_path).open("ab") as file:
        file.write(b'{"revision":4')

    def ended(run_id: str) -> Iterable[ProgressMark]:
        assert run_id
        return (ProgressMark(Path("a.log"), 1, has_ended=True),)

    found = diagnose(state_path, ended)
    monkeypatch.setattr(recovery, "is_proven_dead", lambda _: False)
    assert found.action is Action.CHOOSE
    assert found.lost_mark is not None
    assert diagnose(state_path, ended).action is Action.RESTORE


def test_a_link_in_place_of_a_closed_journal_is_named_for_an_old_state(
    tmp_path: Path,
) -> None:
    state_path = rotated(tmp_path)
    of_another_program(state_path)
    closed = state_path.with_name("journal-000001.jsonl")
    closed.rename(tmp_path / "elsewhere")
    closed.symlink_to(tmp_path / "elsewhere")
    found = diagnose(state_path)
    assert found.journals[0].problem == "can't be read: Too many levels of symbolic links"


@pytest.mark.parametrize("name", ["state.json", "journal.jsonl"])
@pytest.mark.parametrize("kind", ["folder", "link", "pipe"])
def test_a_path_that_is_not_a_regular_file_does_not_count_as_missing(
    tmp_path: Path, name: str, kind: str
) -> None:
    state_path = begun(tmp_path, 2)
    path = state_path.with_name(name)
    path.rename(tmp_path / "elsewhere")
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(tmp_path / "elsewhere")
    else:
        os.mkfifo(path)
    with pytest.raises(CorruptState, match=r"can't be read|not a regular file") as refused:
        FileStore(state_path).view()
    assert refused.value.where == str(path)
    refusal = diagnose(state_path).refusal
    assert refusal is not None
    assert refusal.message == refused.value.message
