"""Folders that are reached without a link, and stay what they were."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from sequencer.errors import StorageFailed, UnsafeFolder
from sequencer.store import folder as folders


@pytest.fixture(params=["as here", "without O_PATH"], autouse=True)
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run each test as on macOS, too: a folder that is passed is opened for reading there."""
    if request.param != "as here":
        monkeypatch.setattr(folders, "_PASS", os.O_DIRECTORY | os.O_CLOEXEC | os.O_RDONLY)
    folders._cache.clear()
    yield
    folders._cache.clear()


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    (tmp_path / "outside" / "below").mkdir(parents=True)
    (tmp_path / "outside" / "1").write_text("a stranger's")
    return tmp_path / "outside"


def listed(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("link", ["a", "a/b", "a/b/c"])
def test_a_link_anywhere_in_the_path_is_refused(tmp_path: Path, outside: Path, link: str) -> None:
    (tmp_path / link).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / link).symlink_to(outside)
    path = tmp_path / "a/b/c"
    for reach in (folders.open_folder, folders.make_folder, folders.list_names):
        with pytest.raises(UnsafeFolder) as refused:
            reach(path)
        assert refused.value.where == str(tmp_path / link)
        assert refused.value.exit_code == 3
    with pytest.raises(UnsafeFolder):
        folders.sweep(path, lambda _: True)
    with pytest.raises(UnsafeFolder):
        folders.remove_tree(path / "below")
    with pytest.raises(UnsafeFolder):
        folders.open_file(path / "1", os.O_RDONLY)
    assert listed(outside) == ["1", "below"]


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.EMFILE])
def test_a_folder_that_cant_be_read_is_no_empty_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Who believes that there are no runs or worktrees starts what must not be started."""

    def refuse(path: str, *, is_made: bool) -> int:
        del is_made
        raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr(folders, "_open_without_links", refuse)
    for read in (folders.list_names, folders.list_names_if_safe):
        with pytest.raises(StorageFailed, match="can't be read") as refused:
            read(tmp_path / "runs")
        assert refused.value.where == str(tmp_path / "runs")
        assert refused.value.hint


@pytest.mark.parametrize("link", ["gone", "a"])
def test_a_dangling_or_circular_link_is_refused(tmp_path: Path, link: str) -> None:
    (tmp_path / "a").symlink_to(link)
    with pytest.raises(UnsafeFolder, match="is a link"):
        folders.make_folder(tmp_path / "a")


def test_a_new_file_never_overwrites_an_existing_one(tmp_path: Path, outside: Path) -> None:
    """A name that somebody has given to another file as well is taken from it, not written."""
    os.link(outside / "1", tmp_path / "x.tmp")
    with folders.open_new_file(tmp_path / "x.tmp") as file:
        file.write(b"ours")
    (tmp_path / "y.tmp").symlink_to(outside / "1")
    folders.open_new_file(tmp_path / "y.tmp").close()
    assert (outside / "1").read_text() == "a stranger's"
    assert (tmp_path / "x.tmp").read_text() == "ours"


def test_a_tree_is_removed_but_not_what_it_links_to(tmp_path: Path, outside: Path) -> None:
    attempt = tmp_path / "attempt"
    (attempt / "below").mkdir(parents=True)
    (attempt / "below" / "link").symlink_to(outside)
    (attempt / "other").symlink_to(outside / "below")
    folders.remove_tree(attempt)
    folders.remove_tree(attempt)
    assert not attempt.exists()
    attempt.symlink_to(outside)
    folders.remove_tree(attempt)
    assert listed(outside) == ["1", "below"]


@pytest.mark.parametrize(
    ("mode", "file", "folder"),
    [(0o600, 0o600, 0o700), (0o640, 0o640, 0o750), (0o666, 0o666, 0o777), (0o644, 0o644, 0o755)],
)
def test_modes_follow_the_setting_and_the_umask(
    tmp_path: Path, mode: int, file: int, folder: int
) -> None:
    umask = os.umask(0o002)
    try:
        folders.open_to_others(mode)
        os.close(folders.make_folder(tmp_path / "run").create("x"))
    finally:
        folders.open_to_others(folders.FILE_MODE)
        os.umask(umask)
    found = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("run/x", "run")]
    assert found == [file & ~0o002, folder & ~0o002]
