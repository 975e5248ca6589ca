"""Both watches, and the sleep that stands in, wake a process that waits within a second."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sequencer.store import watch as module
from sequencer.store.file import FileStore
from sequencer.store.watch import InotifyWatch, SleepingWatch, Watch, WatchdogWatch, watch
from tests.contract import store_cases as cases

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
