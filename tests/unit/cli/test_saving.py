from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from sequencer.cli.options import save
from sequencer.errors import StorageFailed, UsageRefused


def save_numbers(path: Path, data: bytes, mode: int | None = None) -> None:
    save(path, data, is_ours=lambda head: head[:1].isdigit(), what="numbers", mode=mode)


def test_a_new_file_and_one_in_its_place(tmp_path: Path) -> None:
    path = tmp_path / "n.txt"
    save_numbers(path, b"1 2 3")
    inode = path.stat().st_ino
    save_numbers(path, b"4")
    assert path.read_bytes() == b"4"
    # Replaced, not written over: whoever reads the old one reads it to its end.
    assert path.stat().st_ino != inode
    assert [found.name for found in tmp_path.iterdir()] == ["n.txt"]


def test_something_else_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("Dear reader")
    with pytest.raises(UsageRefused, match="something else than numbers") as caught:
        save_numbers(path, b"1")
    assert str(path) in str(caught.value)
    assert path.read_text() == "Dear reader"
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageRefused):
        save_numbers(tmp_path / "folder", b"1")


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_a_mode_of_its_own_or_that_of_new_files(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        save_numbers(tmp_path / "usual", b"1")
        save_numbers(tmp_path / "shared", b"1", mode=0o644)
        assert os.umask(umask) == umask
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "usual").stat().st_mode) == 0o666 & ~umask
    assert stat.S_IMODE((tmp_path / "shared").stat().st_mode) == 0o644


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there" / "n.txt")
    save_numbers(tmp_path / "link", b"5")
    assert (tmp_path / "there" / "n.txt").read_bytes() == b"5"
    assert (tmp_path / "link").is_symlink()


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StorageFailed, match="can't be written") as caught:
        save_numbers(tmp_path / "no" / "n.txt", b"1")
    assert str(tmp_path / "no" / "n.txt") in str(caught.value)
