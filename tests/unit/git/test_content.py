"""Which files may be committed, by what stands in them and behind their names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sequencer.executors.redaction import Redaction
from sequencer.git.selection import (
    Content,
    Unfit,
    ensure_fit_name,
    is_unchanged,
    read_content,
    secrets_by,
)
from tests.unit.git.clones import SECRET

IS_SECRET = secrets_by(Redaction(["hunter2-hunter2"]))


def looked_at(folder: Path, name: str = "file", cap: int = 1000) -> Content:
    return read_content(folder, name, cap, IS_SECRET)


def why(folder: Path, name: str = "file", cap: int = 1000) -> str:
    with pytest.raises(Unfit) as unfit:
        looked_at(folder, name, cap)
    return str(unfit.value)


@pytest.mark.parametrize(
    "text",
    [
        f"key = {SECRET}",
        "ghp_" + "a" * 36,
        "AKIA" + "ABCDEFGH12345678",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----",
        "password: hunter2-hunter2",
        "Authorization: Bearer abc123def456",
        "x" * 900 + "\n" + SECRET,
    ],
)
def test_what_looks_like_a_key(tmp_path: Path, text: str) -> None:
    (tmp_path / "file").write_text(text)
    assert why(tmp_path, cap=10_000) == "holds what looks like a key"


def test_what_only_talks_about_keys(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("an sk- key; the task-force of 2024; a bearer of news\n")
    assert looked_at(tmp_path).size > 0


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    assert why(tmp_path, "fifo") == "is no plain file"
    assert why(tmp_path, "folder") == "is no plain file"
    assert "No such file" in why(tmp_path, "missing")


@pytest.mark.parametrize("target", ["other", "./other", "sub/../other", "dangling", "sub"])
def test_a_link_within_the_repository(tmp_path: Path, target: str) -> None:
    (tmp_path / "other").write_text(SECRET)
    (tmp_path / "sub").mkdir()
    (tmp_path / "file").symlink_to(target)
    found = looked_at(tmp_path)
    assert (found.mode, found.target) == (0o120000, target.encode())


@pytest.mark.parametrize("target", ["/etc/passwd", "../x", "sub/../../x", "up/x", "{top}/other"])
def test_a_link_that_leads_out(tmp_path: Path, target: str) -> None:
    top = tmp_path / "top"
    (top / "sub").mkdir(parents=True)
    (top / "other").write_text("x")
    (top / "up").symlink_to("..")
    (top / "file").symlink_to(target.format(top=top))
    assert why(top) == "is a link that leads out of the repository"


def test_a_link_into_gits_own_folder(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "file").symlink_to(".git/config")
    assert why(tmp_path) == "is a link into .git"


def test_a_file_behind_a_link(tmp_path: Path) -> None:
    outside, top = tmp_path / "outside", tmp_path / "top"
    outside.mkdir()
    top.mkdir()
    (outside / "file").write_text("not of this repository")
    (top / "sub").symlink_to(outside)
    assert why(top, "sub/file") == "is behind a link"


@pytest.mark.parametrize(
    "path",
    [".env", ".env.local", ".envrc", "sub/.env", ".ENV", ".env/x", ".netrc", "a/.pgpass"],
)
def test_names_under_which_secrets_are_kept(path: str) -> None:
    with pytest.raises(Unfit, match="under which secrets are kept"):
        ensure_fit_name(path, IS_SECRET)


@pytest.mark.parametrize("path", [".git/config", "sub/.git", "sub/.GIT/x"])
def test_names_below_git(path: str) -> None:
    with pytest.raises(Unfit, match=r"below \.git"):
        ensure_fit_name(path, IS_SECRET)


@pytest.mark.parametrize("path", ["env", "my.env", ".gitignore", "x.git/y", "environment.md"])
def test_names_that_only_look_alike(path: str) -> None:
    ensure_fit_name(path, IS_SECRET)


def test_a_file_is_known_again_until_somebody_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("one")
    found = looked_at(tmp_path)
    assert is_unchanged(tmp_path, "file", found)
    path.write_text("two")
    assert not is_unchanged(tmp_path, "file", found)
