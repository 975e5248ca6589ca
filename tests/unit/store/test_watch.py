from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sequencer.store.watch import InotifyWatch, wait_readable

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")
MANY = 1500
"""More files than there are events in one read."""


@pytest.mark.parametrize("at", [0, MANY])
def test_all_events_are_read_at_once_however_many_there_are(tmp_path: Path, at: int) -> None:
    watch = InotifyWatch(tmp_path, "state.json")
    for number in range(MANY + 1):
        name = "state.json" if number == at else f"{number}.json"
        (tmp_path / name).write_bytes(b"x")
    try:
        assert watch.has_changed(), "the watched file was written"
        assert not watch.has_changed(), "its event was read"
        assert not wait_readable([watch.fileno()], 0), "no event is left that would wake anyone"
    finally:
        watch.close()


def test_other_files_are_read_and_count_as_no_change(tmp_path: Path) -> None:
    watch = InotifyWatch(tmp_path, "state.json")
    for number in range(MANY):
        (tmp_path / f"{number}.json").write_bytes(b"x")
    try:
        assert not watch.has_changed()
        assert not wait_readable([watch.fileno()], 0)
    finally:
        watch.close()
