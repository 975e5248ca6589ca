"""The sleep of a store: what ends it, and that nothing is missed before it."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from sequencer.store.file import FileStore
from sequencer.store.watch import wait_for_another, watch
from tests.contract import store_cases as cases


def test_each_of_several_descriptors_ends_it(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "state.json")
    revision = cases.begin(store).revision
    pipes = [os.pipe() for _ in range(3)]
    readers = [read_fd for read_fd, _ in pipes]
    try:
        for read_fd, write_fd in pipes:
            timer = threading.Timer(0.1, os.write, (write_fd, b"x"))
            started = time.monotonic()
            timer.start()
            assert not store.wait(revision, 10.0, wake_fd=readers[0], fds=readers[1:])
            assert 0.05 < time.monotonic() - started < 2.0
            timer.join()
            os.read(read_fd, 1)
    finally:
        store.close()
        for fd in (fd for pair in pipes for fd in pair):
            os.close(fd)


def test_another_revision_is_seen_before_any_sleep(tmp_path: Path) -> None:
    watching = watch(tmp_path, "state.json")
    try:
        started = time.monotonic()
        assert wait_for_another(1, lambda: 2, watching, None)
        assert not wait_for_another(1, lambda: 1, watching, 0.0)
        assert not wait_for_another(1, lambda: 1, watching, -1.0)
        assert time.monotonic() - started < 0.5
    finally:
        watching.close()


def test_a_change_that_no_watch_has_told_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sequencer.store.watch.RECHECK_S", 0.1)
    revisions = iter([1, 1, 1, 2])
    watching = watch(tmp_path, "state.json")
    try:
        started = time.monotonic()
        assert wait_for_another(1, lambda: next(revisions), watching, 10.0)
        assert 0.25 < time.monotonic() - started < 1.5
    finally:
        watching.close()
