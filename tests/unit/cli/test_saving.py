from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from sequencer.cli.options import save
from sequencer.errors import StorageFailed


def save_numbers(path: Path, data: bytes, mode: int | None = None) -> None:
    save(path, data, is_ours=lambda head: head[:1].isdigit(), what="numbers", mode=mode)


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


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StorageFailed, match="can't be written") as caught:
        save_numbers(tmp_path / "no" / "n.txt", b"1")
    assert str(tmp_path / "no" / "n.txt") in str(caught.value)
