"""state.json and the journal, damaged: restored or refused, never a default.

Every byte and every bit of them is tried in tests/storage.
"""

from __future__ import annotations

import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from sequencer.errors import CorruptState, EditRefused, NewerSchema
from sequencer.model.head import Head
from sequencer.store.file import FileStore
from tests.contract import store_cases as cases

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """The head of a run with one accepted step and a claim on the second."""
    path = tmp_path / "sync" / "state.json"
    store = FileStore(path)
    cases.begin(store)
    cases.commit_and_claim(store, cases.claim(store).token)
    store.close()
    return path


def head_of(path: Path) -> Head:
    head = FileStore(path).view().head
    assert head is not None
    return head


def go_on(path: Path) -> int:
    """Let a fresh worker accept the step that is claimed; return the step_index after it."""
    store = FileStore(path)
    token = head_of(path).claims[0].token
    cases.commit(store, token)
    cases.check_files(path.parent)
    return head_of(path).step_index


def test_what_was_unreadable_is_kept_when_a_worker_goes_on(state: Path) -> None:
    state.write_bytes(b'{"step_index": 7, "my note')
    assert go_on(state) == 2
    kept = state.with_name("state.json.unreadable")
    assert kept.read_bytes() == b'{"step_index": 7, "my note'


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 4096,
        b"{}" + b"\0" * 100,
        b"<<<<<<< HEAD\n{}\n=======\n{}\n>>>>>>> other\n",
        b"[1, 2]",
        b"null",
        b'{"a": 1, "a": 2}',
        b'{"step_index": NaN}',
        b'{"step_index": 1' + b"0" * 5000 + b"}",
        b'{"a":' * 100_000,
        b"\xff\xfe{}",
        b" " * (1024 * 1024 + 1),
    ],
    ids=lambda content: repr(content[:12]),
)
def test_rubbish_is_replaced_by_what_was_accepted(state: Path, content: bytes) -> None:
    accepted = head_of(state)
    state.write_bytes(content)
    view = FileStore(state).view()
    assert view.head == accepted
    assert view.notices
    assert go_on(state) == 2


def test_a_head_that_is_gone_is_restored(state: Path) -> None:
    accepted = head_of(state)
    state.unlink()
    view = FileStore(state).view()
    assert view.head == accepted
    assert "was missing" in view.notices[0]
    store = FileStore(state)
    store.update(lambda _: None)
    assert json.loads(state.read_text())["step_index"] == 1
    assert "was missing" in store.take_notices()[0]
    assert not list(state.parent.glob("*.unreadable*"))


SPECIAL: dict[str, Callable[[Path], object]] = {
    "folder": lambda path: path.mkdir(),
    "fifo": os.mkfifo,
    "link": lambda path: path.symlink_to("/etc/passwd"),
    "dangling": lambda path: path.symlink_to("nowhere"),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "loop": lambda path: path.symlink_to(path.name),
}


@pytest.mark.timeout(10)
@pytest.mark.parametrize("name", ["state.json", "journal.jsonl"])
@pytest.mark.parametrize("kind", SPECIAL)
def test_what_is_no_plain_file_is_refused(state: Path, kind: str, name: str) -> None:
    path = state.with_name(name)
    path.unlink()
    SPECIAL[kind](path)
    before = os.lstat(path)
    store = FileStore(state)
    with pytest.raises(CorruptState, match=r"plain file|can't be read") as caught:
        store.view()
    assert str(path) in str(caught.value)
    with pytest.raises(CorruptState):
        cases.claim(store)
    assert os.lstat(path).st_ino == before.st_ino


@pytest.mark.parametrize("name", ["state.json", "journal.jsonl"])
def test_a_file_of_any_size_does_not_fill_the_memory(state: Path, name: str) -> None:
    os.truncate(state.with_name(name), 1 << 40)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptState):
            cases.claim(FileStore(state))
        assert tracemalloc.get_traced_memory()[1] < 16 * 1024 * 1024
    finally:
        tracemalloc.stop()


def test_a_newer_schema_is_left_alone(state: Path) -> None:
    cases.edit(state, schema_version=2)
    before = state.read_bytes()
    with pytest.raises(NewerSchema, match="schema_version 2 is newer than 1"):
        FileStore(state).view()
    with pytest.raises(NewerSchema):
        FileStore(state).update(lambda _: None)
    assert state.read_bytes() == before


def test_a_head_without_any_journal_is_refused(state: Path) -> None:
    state.with_name("journal.jsonl").unlink()
    before = state.read_bytes()
    with pytest.raises(CorruptState, match=r"revision 3.*no record"):
        FileStore(state).view()
    with pytest.raises(CorruptState):
        cases.begin(FileStore(state))
    assert state.read_bytes() == before
    state.write_bytes(b"")
    with pytest.raises(CorruptState, match="no journal to restore it from"):
        cases.begin(FileStore(state))


def test_a_gap_in_the_middle_is_refused_with_its_place(state: Path) -> None:
    journal = state.with_name("journal.jsonl")
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(lines[0] + lines[2])
    state.unlink()
    for verb in (FileStore(state).view, lambda: cases.begin(FileStore(state))):
        with pytest.raises(CorruptState, match=rf"revision 2 missing before byte {len(lines[0])}"):
            verb()
    assert not state.exists()


def test_a_damaged_record_that_the_head_does_not_need_is_found_by_history(state: Path) -> None:
    journal = state.with_name("journal.jsonl")
    data = bytearray(journal.read_bytes())
    data[data.index(b"\n") + 30] ^= 1
    journal.write_bytes(data)
    assert head_of(state).step_index == 1
    with pytest.raises(CorruptState, match="revision 2 missing"):
        list(FileStore(state).history())


def test_a_journal_of_rubbish_without_a_head_is_no_fresh_run(state: Path) -> None:
    state.unlink()
    journal = state.with_name("journal.jsonl")
    for content in (b"rubbish\n", b'{"revision":7,', b"\0" * 100):
        journal.write_bytes(content)
        with pytest.raises(CorruptState):
            cases.begin(FileStore(state))
    # Only the torn first line of a run that never began is one.
    journal.write_bytes(b'{"revision":1,"at":"20')
    assert cases.begin(FileStore(state)).revision == 1


@pytest.mark.parametrize("offset", [-1, 1, 2**62, 2**63 - 1, 2**63, 1.5, None, "x", True])
def test_an_offset_that_somebody_edited_is_refused(state: Path, offset: object) -> None:
    before = head_of(state)
    cases.edit(state, journal_offset=offset)
    with pytest.raises(EditRefused, match="journal_offset"):
        FileStore(state).view()
    cases.edit(state, journal_offset=before.journal_offset)
    assert head_of(state) == before


def test_an_old_copy_of_the_head_rolls_forward(state: Path) -> None:
    old = state.read_bytes()
    cases.commit(FileStore(state), 2)
    accepted = head_of(state)
    state.write_bytes(old)
    assert head_of(state) == accepted
    store = FileStore(state)
    store.update(lambda _: None)
    assert "rolled forward to 4" in store.take_notices()[0]
    assert json.loads(state.read_text())["revision"] == 4


def test_an_old_copy_that_was_edited_is_refused(state: Path) -> None:
    old = json.loads(state.read_text())
    cases.commit(FileStore(state), 2)
    state.write_text(json.dumps({**old, "step_index": 0}))
    with pytest.raises(EditRefused, match="was edited at revision 3, but the run has gone on to 4"):
        FileStore(state).view()


@pytest.mark.parametrize("left", ["results/2-3", "beats/3", "results", "beats"])
def test_a_run_that_lost_its_files_does_not_begin_again(tmp_path: Path, left: str) -> None:
    """An agent that cleans the folder must not send the run back to step 0."""
    # The first attempt makes the folder, also where it leaves nothing in it.
    (tmp_path / left).mkdir(parents=True)
    store = FileStore(tmp_path / "state.json")
    with pytest.raises(CorruptState, match="had begun"):
        store.view()
    with pytest.raises(CorruptState, match="had begun"):
        store.update(lambda _: None)
    assert not (tmp_path / "state.json").exists()
