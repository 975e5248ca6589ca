"""A run that comes into files from elsewhere, also where its process is killed on the way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sequencer.errors import SequencerError, TransitionRefused
from sequencer.history.facts import list_facts
from sequencer.model.head import Head
from sequencer.model.store_move import close_run, confirm_arrival, reopen_run
from sequencer.model.transitions import Transition, initialize
from sequencer.store import folder as folders
from sequencer.store.file import FileStore
from sequencer.store.head import write_head
from sequencer.store.journal import JournalFile
from sequencer.store.run_import import PastRecord, RunImport, encode_journal
from tests.contract import store_cases as cases

AT = "2026-01-02T03:04:05Z"
HERE = "file: here"


def store_in(folder: Path) -> FileStore:
    return FileStore(folder / "state.json")


def steps(store: FileStore, number: int) -> None:
    for _ in range(number):
        cases.commit(store, cases.claim(store).token)


def closing(where: str) -> Callable[[Head | None], Transition]:
    def change(head: Head | None) -> Transition:
        assert head is not None
        return close_run(head, where, at=AT)

    return change


def confirming(head: Head | None) -> Transition | None:
    assert head is not None
    return confirm_arrival(head, at=AT)


def lines_in(folder: Path) -> list[bytes]:
    return [one.line + b"\n" for one in JournalFile(folder, 0, 0).read_records()]


def arrived(head: Head) -> Transition:
    return reopen_run(head, "moved here from there", None, at=AT)


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """Return the folder of a run that has made three steps and is closed, as on a server."""
    store = store_in(tmp_path / "there")
    cases.begin(store)
    steps(store, 3)
    store.update(closing(HERE))
    return tmp_path / "there"


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """Return the folder of a run that has made two steps here and has gone away."""
    store = store_in(tmp_path / "here")
    cases.begin(store)
    steps(store, 2)
    store.update(closing("elsewhere"))
    store.update(confirming)
    return tmp_path / "here"


def continued(left: Path, folder: Path) -> Path:
    """Return *folder* with the run that was in *left*, as it has continued elsewhere."""
    before = store_in(left).view().head
    assert before is not None
    past = list(JournalFile(left, 0, 0).read_records())[-1]
    head = before.replace(revision=past.revision)
    lines = encode_journal(
        [PastRecord(past.revision, past.data["at"], list_facts(past.data), head)], head.run_id
    )
    store = store_in(folder)
    RunImport(store, head.run_id).write(lines, head, arrived(head), {}, {})
    steps(store, 3)
    store.update(closing(HERE))
    return folder


def bring(there: Path, here: Path) -> Head:
    head = store_in(there).view().head
    assert head is not None
    target = store_in(here)
    return RunImport(target, head.run_id).write(lines_in(there), head, arrived(head), {}, {})


def ensure_whole(here: Path, head: Head, first: int) -> None:
    store = store_in(here)
    assert store.view().head == head
    revisions = [one["revision"] for one in store.history()]
    assert sorted(set(revisions)) == list(range(first, head.revision + 1))
    steps(store, 2)
    (here / "state.json").unlink()
    restored = store_in(here).view().head
    assert restored is not None
    assert restored.revision == head.revision + 4


def test_a_run_arrives_in_an_empty_place(there: Path, tmp_path: Path) -> None:
    head = bring(there, tmp_path / "new")
    assert (head.step_index, head.exit, head.moved_to, head.exit_reason) == (3, False, None, None)
    ensure_whole(tmp_path / "new", head, 1)


def test_a_run_that_returns_continues_its_old_journal(left: Path, tmp_path: Path) -> None:
    head = bring(continued(left, tmp_path / "there"), left)
    assert head.step_index == 5
    ensure_whole(left, head, 1)


def test_leftover_results_of_attempts_are_not_a_run(there: Path, tmp_path: Path) -> None:
    (tmp_path / "new" / "results" / "2-3").mkdir(parents=True)
    ensure_whole(tmp_path / "new", bring(there, tmp_path / "new"), 1)


def test_another_run_is_not_replaced(there: Path, tmp_path: Path) -> None:
    other = store_in(tmp_path / "other")
    other.update(lambda _: initialize(cases.new_head(run_id="another")))
    other.update(closing("elsewhere"))
    with pytest.raises(TransitionRefused, match="already"):
        bring(there, tmp_path / "other")
    cases.begin(store_in(tmp_path / "open"))
    with pytest.raises(TransitionRefused, match="already"):
        bring(there, tmp_path / "open")


class Killed(BaseException):
    """Stands for a kill: nothing below it is to catch it."""


def dying(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Let whoever changes files in `arrival` die in place of its *after*-th change."""
    left = [after]

    def guarded(act: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*given: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return act(*given)

        return wrapped

    for name in ("write_atomically", "link", "move", "remove"):
        monkeypatch.setattr(folders, name, guarded(getattr(folders, name)))
    monkeypatch.setattr("sequencer.store.run_import.write_head", guarded(write_head))


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize("after", range(4))
def test_a_killed_import_leaves_the_old_or_the_new_state(
    left: Path, tmp_path: Path, after: int, is_new: bool
) -> None:
    source = continued(left, tmp_path / "there")
    here = tmp_path / "new" if is_new else left
    with pytest.MonkeyPatch.context() as patched:
        dying(patched, after)
        try:
            bring(source, here)
        except Killed:
            is_killed = True
        else:
            is_killed = False
    assert is_killed or (is_new and after == 3)
    try:
        found = store_in(here).view().head
    except SequencerError:
        assert is_new
        found = None
    if found is None or found.moved_to is not None:
        found = bring(source, here)
    assert (found.step_index, found.moved_to) == (5, None)
    first = next(JournalFile(source, 0, 0).read_records()).revision
    ensure_whole(here, found, first if is_new else 1)


def test_the_copy_is_set_aside_when_records_between_are_missing(left: Path, tmp_path: Path) -> None:
    source = continued(left, tmp_path / "there")
    head = store_in(source).view().head
    assert head is not None
    newest = lines_in(source)[-3:]
    done = RunImport(store_in(left), head.run_id).write(newest, head, arrived(head), {}, {})
    ensure_whole(left, done, head.revision - 2)
    aside = next(left.glob("set-aside-*"))
    assert {"state.json", "journal.jsonl"} <= {path.name for path in aside.iterdir()}
