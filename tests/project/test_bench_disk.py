"""Where the bench puts what it measures."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench import disk

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the floor is Linux's")


def test_the_long_run_is_in_memory_where_there_is_room(tmp_path: Path) -> None:
    made = Path()
    with disk.in_memory(tmp_path, 1_000) as (folder, is_memory):
        made = folder
        assert folder.is_dir()
        assert is_memory == (folder != tmp_path)
    assert made.exists() == (made == tmp_path), "it is removed, but never the setting's own"
    with disk.in_memory(tmp_path, 2**60) as (folder, is_memory):
        assert (folder, is_memory) == (tmp_path, False)


def test_each_side_gets_its_own_empty_folder(tmp_path: Path) -> None:
    spread = disk.spread(tmp_path)
    one, two = disk.undisturbed(spread, "one"), disk.undisturbed(spread, "two")
    assert (one, two) == (tmp_path / "one", tmp_path / "two")
    assert sorted(tmp_path.iterdir()) == [one, two], "the other candidates are gone"
    assert list(one.iterdir()) == list(two.iterdir()) == []
