"""state.json and the journal, damaged: restored or refused, never a default.

Every byte and every bit of them is tried in tests/storage.
"""

from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path

import pytest

from sequencer.errors import CorruptState, EditRefused
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


def test_a_garbage_journal_without_a_head_is_not_a_fresh_run(state: Path) -> None:
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
def test_an_edited_offset_is_restored(state: Path, offset: object) -> None:
    before = head_of(state)
    cases.edit(state, journal_offset=offset)
    assert head_of(state) == before
    FileStore(state).update(lambda _: None)
    assert json.loads(state.read_text())["journal_offset"] == before.journal_offset


def test_a_token_that_was_never_granted_shows_that_steps_are_missing(state: Path) -> None:
    head = head_of(state)
    cases.edit(state, token=head.token + 1)
    with pytest.raises(CorruptState, match="accepted steps may be missing"):
        FileStore(state).view()


def test_an_old_copy_that_was_edited_is_refused(state: Path) -> None:
    old = json.loads(state.read_text())
    cases.commit(FileStore(state), 2)
    state.write_text(json.dumps({**old, "step_index": 0}))
    with pytest.raises(EditRefused, match="was edited at revision 3, but the run is now at 4"):
        FileStore(state).view()


@pytest.mark.parametrize("left", ["results/2-3", "beats/3", "results", "beats"])
def test_a_run_that_lost_its_files_does_not_start_over(tmp_path: Path, left: str) -> None:
    """An agent that cleans the folder must not send the run back to step 0."""
    # The first attempt makes the folder, also where it leaves nothing in it.
    (tmp_path / left).mkdir(parents=True)
    store = FileStore(tmp_path / "state.json")
    with pytest.raises(CorruptState, match="had started"):
        store.view()
    with pytest.raises(CorruptState, match="had started"):
        store.update(lambda _: None)
    assert not (tmp_path / "state.json").exists()
