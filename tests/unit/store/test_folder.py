"""Folders that are reached without a link, and stay what they were."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sequencer.errors import UnsafeFolder
from sequencer.store import folder as folders


@pytest.fixture(params=["as here", "without O_PATH"], autouse=True)
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run each test as on macOS, too: a folder that is passed is opened for reading there."""
    if request.param != "as here":
        monkeypatch.setattr(folders, "_THROUGH", os.O_DIRECTORY | os.O_CLOEXEC | os.O_RDONLY)
    folders._held.clear()
    yield
    folders._held.clear()


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    (tmp_path / "outside" / "below").mkdir(parents=True)
    (tmp_path / "outside" / "1").write_text("a stranger's")
    return tmp_path / "outside"


def listed(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("link", ["a", "a/b", "a/b/c"])
def test_a_link_anywhere_on_the_way_is_refused(tmp_path: Path, outside: Path, link: str) -> None:
    (tmp_path / link).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / link).symlink_to(outside)
    path = tmp_path / "a/b/c"
    for reach in (folders.opened, folders.made, folders.names):
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


@pytest.mark.parametrize("link", ["gone", "a"])
def test_a_link_that_leads_nowhere_or_round_is_one(tmp_path: Path, link: str) -> None:
    (tmp_path / "a").symlink_to(link)
    with pytest.raises(UnsafeFolder, match="is a link"):
        folders.made(tmp_path / "a")


def test_a_folder_that_is_swapped_is_used_no_more(tmp_path: Path, outside: Path) -> None:
    path = tmp_path / "run"
    first = folders.made(path)
    assert folders.opened(path) is first
    path.rename(tmp_path / "aside")
    path.symlink_to(outside)
    with pytest.raises(UnsafeFolder):
        folders.opened(path)
    # Whoever holds the old one is still in it.
    os.close(first.create("x"))
    assert (tmp_path / "aside" / "x").exists()
    path.unlink()
    assert folders.made(path) is not first
    assert path.is_dir()


def test_what_is_no_folder_is_said_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError) as refused:
        folders.made(tmp_path / "file" / "below")
    assert refused.value.filename == str(tmp_path / "file")
    assert folders.names(tmp_path / "file") == folders.names(tmp_path / "gone") == []


def test_a_new_file_is_never_an_old_one(tmp_path: Path, outside: Path) -> None:
    """A name that somebody has given to another file as well is taken from it, not written."""
    os.link(outside / "1", tmp_path / "x.tmp")
    with folders.open_new(tmp_path / "x.tmp") as file:
        file.write(b"ours")
    (tmp_path / "y.tmp").symlink_to(outside / "1")
    folders.open_new(tmp_path / "y.tmp").close()
    assert (outside / "1").read_text() == "a stranger's"
    assert (tmp_path / "x.tmp").read_text() == "ours"


def test_only_plain_files_of_those_names_are_swept(tmp_path: Path, outside: Path) -> None:
    (tmp_path / "a.tmp").write_text("")
    (tmp_path / "b.tmp").mkdir()
    (tmp_path / "c.tmp").symlink_to(outside / "1")
    (tmp_path / "d").write_text("")
    folders.sweep(tmp_path, lambda name: name.endswith(".tmp"))
    assert listed(tmp_path) == ["b.tmp", "c.tmp", "d", "outside"]


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
        os.close(folders.made(tmp_path / "run").create("x"))
    finally:
        folders.open_to_others(folders.FILE_MODE)
        os.umask(umask)
    found = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("run/x", "run")]
    assert found == [file & ~0o002, folder & ~0o002]


def test_a_thousand_folders_leave_few_open(tmp_path: Path) -> None:
    before = len(listed(Path("/dev/fd")))
    for number in range(100):
        folders.made(tmp_path / str(number))
    assert len(listed(Path("/dev/fd"))) <= before + 40


def test_a_folder_in_use_stays_open_when_another_thread_opens_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "a").write_text("a")
    for name in ("mkdir", "link"):
        real = getattr(os, name)

        def forgets(*arguments: Any, real: Any = real, **named: Any) -> None:
            # As another thread does that opens the same path, or one folder too many.
            folders._held.clear()
            real(*arguments, **named)

        monkeypatch.setattr(os, name, forgets)
    folders.make_fresh(tmp_path / "fresh")
    folders.link(tmp_path / "a", tmp_path / "b")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "fresh"]
