"""The file store's own promises: folders, permissions, left-overs, migration, waiting."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sequencer.errors import (
    CorruptState,
    EditRefused,
    StateRefused,
    StorageFailed,
    TransitionRefused,
)
from sequencer.model.head import Head
from sequencer.model.transitions import Transition, ensure_claimable
from sequencer.store import watch as module
from sequencer.store.file import FileStore
from sequencer.store.watch import InotifyWatch, SleepingWatch, Watch, WatchdogWatch, watch
from tests.contract import store_cases as cases

LEGACY = {"step_index": 4, "status": "waiting-next", "commit": "abc"}


def migrate(raw: dict[str, Any]) -> Head:
    return cases.new_head(step_index=raw["step_index"], iteration=raw["step_index"] + 1)


def test_a_write_that_fails_is_refused_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "sync").write_text("a file")
    with pytest.raises(StorageFailed, match=r"can't be"):
        cases.begin(FileStore(tmp_path / "sync" / "state.json"))
    with pytest.raises(StorageFailed, match="can't be read"):
        FileStore(tmp_path / "sync" / "state.json").view()
    with pytest.raises(StorageFailed):
        cases.begin(FileStore(tmp_path / "sync" / "deeper" / "state.json"))


def test_a_head_that_cannot_be_replaced_follows_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileStore(tmp_path / "state.json")
    cases.begin(store)
    real = os.replace

    def refuse(source: str, target: str, **folders: int) -> None:
        if str(target).endswith("state.json"):
            raise OSError(28, "No space left on device")
        real(source, target, **folders)

    monkeypatch.setattr(os, "replace", refuse)
    granted = cases.claim(store)
    assert "could not be replaced: No space left" in store.take_notices()[0]
    assert json.loads((tmp_path / "state.json").read_text())["revision"] == 1
    assert FileStore(tmp_path / "state.json").view().head == store.view().head
    monkeypatch.undo()
    cases.commit(store, granted.token)
    store.close()
    assert cases.check_files(tmp_path) == 1


def test_state_of_another_program_without_a_migration_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    state.write_text(json.dumps(LEGACY))
    store = FileStore(state)
    for verb in (store.view, lambda: cases.begin(store)):
        with pytest.raises(CorruptState, match="another program"):
            verb()
    assert json.loads(state.read_text()) == LEGACY


def test_the_error_for_a_failed_migration_names_the_file(tmp_path: Path) -> None:
    def refuse(raw: dict[str, Any]) -> Head:
        raise CorruptState(f"can't carry {raw['old']} over")

    state = tmp_path / "state.json"
    state.write_text(json.dumps({"old": 1}))
    store = FileStore(state, migrate=refuse)
    for verb in (store.view, lambda: cases.begin(store)):
        with pytest.raises(CorruptState, match="can't carry 1 over") as caught:
            verb()
        assert caught.value.where == str(state)


@pytest.mark.parametrize("rotate_bytes", [1_000_000, 1_000])
def test_a_migrated_state_that_could_not_be_replaced_for_long(
    tmp_path: Path, rotate_bytes: int
) -> None:
    """A full disk may let the journal grow, and leave the old file in its place."""
    state = tmp_path / "state.json"
    state.write_text(json.dumps(LEGACY))
    store = FileStore(state, migrate=migrate, rotate_bytes=rotate_bytes)
    for _ in range(3):
        cases.commit(store, cases.claim(store).token)
    accepted = store.view().head
    state.write_text(json.dumps(LEGACY))
    view = FileStore(state, migrate=migrate).view()
    assert view.head == accepted
    later = FileStore(state, migrate=migrate)
    later.update(lambda _: None)
    assert later.take_notices() == [f"{state} was migrated but not replaced; it is replaced now"]
    assert json.loads(state.read_text())["step_index"] == int(str(LEGACY["step_index"])) + 3


def test_one_copy_of_the_original_is_enough(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    state.write_text(json.dumps(LEGACY))
    state.with_name("state.json.before-migration").write_text("another one")
    for _ in range(3):
        # A writer that is stopped before its append leaves the copy.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FileStore, "_accept", lambda *_: (_ for _ in ()).throw(OSError("stop")))
            with pytest.raises(StorageFailed):
                cases.begin(FileStore(state, migrate=migrate))
    cases.claim(FileStore(state, migrate=migrate))
    copies = sorted(path.name for path in tmp_path.glob("*before-migration*"))
    assert copies == ["state.json.before-migration", "state.json.before-migration-2"]


def test_waiting_for_a_dead_holder_ends_at_once(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "state.json")
    cases.begin(store)
    cases.claim(store)
    gone = store.owner().replace(pid_start=1)
    started = time.monotonic()
    assert not store.wait(2, 10.0, claim=cases.make_claim(owner=gone))
    assert time.monotonic() - started < 0.5
    store.close()


# --- both watches, and the sleep that stands in, wake a process that waits within a second ----

KINDS: dict[str, Callable[[Path, str], Watch]] = {
    "inotify": InotifyWatch,
    "watchdog": WatchdogWatch,
}


def replace(path: Path) -> None:
    temporary = path.with_name(".new.tmp")
    temporary.write_text("x")
    temporary.replace(path)


CHANGES: dict[str, Callable[[Path], object]] = {
    "replaced": replace,
    "written": lambda path: path.write_text("new"),
    "removed": lambda path: path.unlink(),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_change_before_the_wait_is_not_missed(kind: str, tmp_path: Path) -> None:
    watching = KINDS[kind](tmp_path, "state.json")
    try:
        (tmp_path / "state.json").write_text("x")
        started = time.monotonic()
        watching.wait(10.0, [])
        assert time.monotonic() - started < 1.0
    finally:
        watching.close()


@pytest.mark.parametrize("kind", KINDS)
def test_other_files_do_not_wake(kind: str, tmp_path: Path) -> None:
    watching = KINDS[kind](tmp_path, "state.json")
    try:
        (tmp_path / "journal.jsonl").write_text("x")
        (tmp_path / ".state.json.7.tmp").write_text("x")
        started = time.monotonic()
        assert not watching.wait(0.4, [])
        assert time.monotonic() - started > 0.35
    finally:
        watching.close()


def test_a_system_without_notifications_left_sleeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing:
        def __init__(self, folder: Path, name: str) -> None:
            raise OSError(24, "inotify instance limit reached", str(folder / name))

    monkeypatch.setattr(module, "InotifyWatch", Refusing)
    assert isinstance(watch(tmp_path, "state.json"), SleepingWatch)
    store = FileStore(tmp_path / "state.json")
    begun = cases.begin(store)
    timer = threading.Timer(0.1, cases.claim, (FileStore(tmp_path / "state.json"),))
    timer.start()
    started = time.monotonic()
    assert store.wait(begun.revision, 10.0)
    assert time.monotonic() - started < 1.0
    timer.join()
    store.close()


# --- what people and agents may write into state.json, and what follows -----------------------


@pytest.fixture
def state(tmp_path: Path) -> Path:
    path = tmp_path / "state.json"
    cases.begin(FileStore(path))
    return path


def test_an_agent_may_write_exit_while_its_step_runs(state: Path) -> None:
    store = FileStore(state)
    granted = cases.claim(store)
    cases.edit(state, exit=True, exit_reason="nothing left to do")
    head = cases.commit(store, granted.token)
    assert (head.step_index, head.exit, head.exit_reason) == (1, True, "nothing left to do")
    assert "edited by hand" in store.take_notices()[0]
    events = [f["event"] for f in store.history()]
    assert events == ["initialised", "claimed", "edited", "succeeded"]
    assert "by hand: exit, exit_reason" in str(list(store.history())[2]["outcome"])
    with pytest.raises(TransitionRefused, match="stopped: nothing left"):
        ensure_claimable(head)


@pytest.mark.parametrize(
    "update",
    [
        {"step_index": 6},
        {"token": 0},
        {"token": 2**63 - 1},
        {"step_index": -1},
        {"step_index": 1.5},
        {"step_index": "1"},
        {"step_index": True},
        {"step_index": 2**63},
        {"failures_in_row": -1},
        {"claims": []},
        {"status": "working"},
        {"exit": "yes"},
        {"exit": 1},
        {"usage": {"steps": -1}},
        {"usage": {}},
        {"usage": None},
        {"last_update": None},
        {"last_update": "2020-01-01T00:00:00Z"},
        {"workflow_name": 7},
        {"run_name": "another"},
        {"revision": "2"},
        {"revision": None},
        {"revision": -1},
        {"schema_version": 0},
        {"schema_version": "1"},
        {"exit_reason": "w" * 501},
        {"told": [{"to": "main"}]},
    ],
    ids=str,
)
def test_any_other_edit_is_saved_aside_and_the_head_restored(
    state: Path, update: dict[str, Any]
) -> None:
    store = FileStore(state)
    granted, (name,) = cases.claim(store), update
    own = state.read_bytes()
    cases.edit(state, **update)
    edited = state.read_bytes()
    view = FileStore(state).view()
    assert state.read_bytes() == edited, "looking changes nothing"
    assert view.head == Head.model_validate_json(own)
    said = " ".join(view.notices)
    assert f"was edited by hand, but {name} can't be changed there" in said
    # Who runs the step does not lose it for that.
    head = cases.commit(store, granted.token)
    assert head.step_index == 1
    said = " ".join(store.take_notices())
    assert f"{name} can't be changed there" in said
    assert "was kept as state.json.edited" in said
    assert state.with_name("state.json.edited").read_bytes() == edited
    events = [fact["event"] for fact in store.history()]
    assert events == ["initialised", "claimed", "succeeded"]
    assert cases.check_files(state.parent) == 1


@pytest.mark.parametrize(
    "update",
    [
        {"run_id": "another"},
        {"revision": 1},
        {"revision": 3},
        {"schema_version": 2},
    ],
    ids=str,
)
def test_edits_that_are_refused_and_leave_everything(state: Path, update: dict[str, Any]) -> None:
    cases.claim(FileStore(state))
    own = state.read_bytes()
    cases.edit(state, **update)
    before = {path.name: path.read_bytes() for path in state.parent.glob("*.json*")}
    store = FileStore(state)
    for verb in (store.view, lambda: cases.commit(store, 1), lambda: cases.begin(store)):
        with pytest.raises(StateRefused) as caught:
            verb()
        assert str(state) in str(caught.value)
        assert caught.value.hint
    assert {path.name: path.read_bytes() for path in state.parent.glob("*.json*")} == before
    state.write_bytes(own)
    cases.commit(FileStore(state), 1)
    assert cases.check_files(state.parent) == 1


@pytest.mark.parametrize("field", ["step_index", "token", "claims", "status", "usage", "exit"])
def test_a_field_lost_in_an_edit_is_not_set_to_its_default(state: Path, field: str) -> None:
    """A flipped bit in a key, or a bad merge, would put step_index back to its default."""
    store = FileStore(state)
    before = cases.commit(store, cases.claim(store).token)
    content = json.loads(state.read_text())
    del content[field]
    state.write_text(json.dumps(content))
    assert FileStore(state).view().head == before
    assert store.update(lambda _: None) == before
    assert json.loads(state.read_text()) == before.model_dump(mode="json")
    assert f"{field} can't be changed there" in store.take_notices()[0]


def test_a_second_edit_while_the_first_is_not_recorded(state: Path) -> None:
    cases.edit(state, ticket="A")
    FileStore(state).view()
    cases.edit(state, ticket="B")
    store = FileStore(state)
    assert store.update(lambda _: None).model_dump()["ticket"] == "B"


def test_an_edit_recorded_by_a_stopped_writer_is_not_recorded_twice(state: Path) -> None:
    cases.edit(state, exit=True, note="x")
    content = state.read_bytes()
    store = FileStore(state)
    assert store.update(lambda _: None).exit
    # As if the writer had been killed between its append and its rename.
    state.write_bytes(content)
    fresh = FileStore(state)
    assert fresh.view().head == store.view().head
    fresh.update(lambda _: None)
    assert [f["event"] for f in fresh.history()] == ["initialised", "edited"]
    # One that differs from what was recorded is still refused.
    state.write_bytes(content.replace(b'"exit": true', b'"exit": false'))
    with pytest.raises(EditRefused, match="the run is now at"):
        FileStore(state).view()


def opened_states() -> list[str]:
    """Return what this process has open of state.json; a link's target, if it was replaced."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(str(entry.readlink()))
    return [target for target in found if "state.json" in target and ".lock" not in target]


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="looks into /proc")
def test_the_published_file_is_freed_outside_the_lock_once_it_is_replaced(
    tmp_path: Path,
) -> None:
    path, freed_with = tmp_path / "state.json", list[bool]()
    store, other = FileStore(path), FileStore(path)
    free = store._close_replaced

    def watched(left: int = 1) -> None:
        freed_with.append(store._lock._threads.locked())
        free(left)

    store._close_replaced = watched  # type: ignore[method-assign]
    before = opened_states()
    cases.begin(store)
    for _ in range(3):
        cases.commit(store, cases.claim(store).token)
        assert len(opened_states()) == len(before) + 1
    head = store.view().head
    assert head is not None
    store.wait(head.revision, 0.0)
    assert len(opened_states()) == len(before) + 1, "it still stands there"
    cases.claim(other)
    store.wait(head.revision, 0.0)
    assert len(opened_states()) == len(before) + 1, "the other's"
    other.close()
    store.close()
    assert opened_states() == before
    assert not any(freed_with)


def test_a_writer_that_lost_the_lock_while_deciding_writes_no_stale_line(
    tmp_path: Path,
) -> None:
    path = tmp_path / "state.json"
    store, other = FileStore(path), FileStore(path)
    cases.begin(store)
    seen: list[int] = []

    def overtaken(head: Head) -> Transition:
        seen.append(head.revision)
        if len(seen) == 1:
            path.with_name("state.json.lock").unlink()
            cases.claim(other)
            cases.release(other, 1)
        return cases.claiming(store, head)

    assert store.update(cases.on_run(overtaken)).token == 2
    assert seen == [1, 3]
    lines = (tmp_path / "journal.jsonl").read_text().splitlines()
    assert [json.loads(line)["revision"] for line in lines] == [1, 2, 3, 4]
