"""Whose the files of a run are: root in somebody's folder, and links that the owner has made."""

from __future__ import annotations

import errno
import os
import pwd
from pathlib import Path

import pytest

from sequencer.store import folder as folders
from sequencer.store.ownership import explain_refusal, set_project_folders, user_name

SOMEBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files for others")


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    path = tmp_path / "theirs"
    path.mkdir()
    os.chown(path, SOMEBODY, SOMEBODY)
    return path


def owner(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_uid, found.st_gid


@as_root
def test_new_files_and_folders_belong_to_the_folder_owner(theirs: Path) -> None:
    below = theirs / "sync" / "runs"
    folders.make_folder(below)
    folders.write_atomically(below / "state.json", b"1")
    os.close(folders.open_file(below / "lock", os.O_RDWR | os.O_CREAT))
    folders.open_folder(below).mkdir("beats")
    folders.make_new_folder(below / "results" / "1")
    made = list(theirs.rglob("*"))
    assert len(made) == 7
    assert {owner(path) for path in made} == {(SOMEBODY, SOMEBODY)}


@as_root
def test_existing_files_keep_their_owner(theirs: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("root's own")
    os.link(secret, theirs / "state.json.lock")
    fd = folders.open_file(theirs / "state.json.lock", os.O_RDWR | os.O_CREAT)
    os.close(fd)
    with pytest.raises(FileExistsError):
        folders.open_file(theirs / "state.json.lock", os.O_RDWR | os.O_CREAT | os.O_EXCL)
    (theirs / "link").symlink_to(secret)
    with pytest.raises(OSError, match="symbolic links"):
        folders.open_file(theirs / "link", os.O_RDWR | os.O_CREAT)
    (theirs / "dangling").symlink_to(tmp_path / "new")
    with pytest.raises(OSError, match="symbolic links"):
        folders.open_file(theirs / "dangling", os.O_RDWR | os.O_CREAT)
    assert owner(secret) == (0, 0)
    assert not (tmp_path / "new").exists()


@as_root
def test_a_folder_swapped_in_keeps_its_owner(theirs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (theirs / "roots").mkdir()
    (theirs / "roots" / "secret").write_text("root's own")
    make = os.mkdir

    def made_and_swapped(name: str, mode: int, *, dir_fd: int) -> None:
        make(name, mode, dir_fd=dir_fd)
        (theirs / name).rmdir()
        (theirs / "roots").rename(theirs / name)

    monkeypatch.setattr(os, "mkdir", made_and_swapped)
    folders.open_folder(theirs).mkdir("sync")
    assert owner(theirs / "sync") == (0, 0)


@as_root
def test_files_in_a_folder_of_root_belong_to_root(tmp_path: Path) -> None:
    folders.make_folder(tmp_path / "sync")
    folders.write_atomically(tmp_path / "sync" / "state.json", b"1")
    assert owner(tmp_path / "sync" / "state.json") == (0, 0)


def test_a_refusal_names_the_owner_and_how_to_regain_access(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sync").mkdir()
    (tmp_path / "logs").mkdir()
    state = tmp_path / "sync" / "state.json"
    state.write_text("{}")
    denied = OSError(errno.EACCES, "Permission denied")
    # It is this user's own: the mode is the reason.
    assert explain_refusal(denied, state, "fix it") == ("Permission denied", "fix it")
    owner, me = user_name(os.geteuid()), 4_000_000_001
    monkeypatch.setattr(os, "geteuid", lambda: me)
    set_project_folders(tmp_path / "sync", tmp_path / "logs", tmp_path / "missing")
    try:
        why, hint = explain_refusal(denied, state, "fix it")
        assert why == f"Permission denied: it belongs to {owner}, and you are {me}"
        folders_shown = f"{tmp_path}/sync {tmp_path}/logs"
        assert hint == f"give it back to you: 'sudo chown -R {me} {folders_shown}'"
        # A file that is still to be made: its folder is the reason.
        why, _ = explain_refusal(denied, tmp_path / "sync" / "new", "fix it")
        assert why == f"Permission denied: its folder belongs to {owner}, and you are {me}"
        _, hint = explain_refusal(denied, tmp_path / "elsewhere", "fix it")
        assert hint == f"give it back to you: 'sudo chown -R {me} {tmp_path}/elsewhere'"
    finally:
        set_project_folders()


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (errno.ENOSPC, "free some; 'df -h' and 'df -i' show where there is none"),
        (errno.EDQUOT, "free some; 'df -h' and 'df -i' show where there is none"),
        (errno.EROFS, "its file system is read-only; mount it for writing, then start again"),
        (errno.EIO, "look at it"),
    ],
)
def test_the_hint_follows_the_reason(tmp_path: Path, number: int, hint: str) -> None:
    error = OSError(number, os.strerror(number))
    assert explain_refusal(error, tmp_path, "look at it") == (os.strerror(number), hint)


def test_a_user_without_a_name_is_a_number() -> None:
    assert user_name(4_000_000_001) == "4000000001"
    assert user_name(0) == pwd.getpwuid(0).pw_name
