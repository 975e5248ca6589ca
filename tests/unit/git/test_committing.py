"""Commits that are written beside the user: the index, HEAD and the files stay theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from sequencer.errors import WorkTreeRefused
from sequencer.git.commit import CHANGED, Committer, RefMoved
from tests.unit.git.clones import (
    commit,
    everything,
    git,
    porcelain,
    repository,
    said,
    tree_at,
    tree_of,
    write,
)
from tests.unit.git.committed import MAIN, chosen, committed


def test_a_commit_of_every_kind_of_change(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r", {"changed": "1", "gone": "1", "script": "1", "same": "1"})
    write(folder, {"changed": "2", "deep/new": "3"})
    (folder / "gone").unlink()
    (folder / "script").chmod(0o755)
    (folder / "link").symlink_to("same")
    before = said(folder, "rev-parse", "HEAD")
    written = committed(folder)
    assert said(folder, "rev-parse", "HEAD", "HEAD^").split() == [written.commit, before]
    assert tree_of(folder) == {
        ".gitignore": "100644 *.tmp\nignored/\n",
        "README.md": "100644 read me\n",
        "changed": "100644 2",
        "deep/new": "100644 3",
        "link": "120000 same",
        "same": "100644 1",
        "script": "100755 1",
    }
    assert porcelain(folder) == []
    assert said(folder, "fsck", "--strict", "--no-dangling") == ""


def test_a_file_in_a_folders_place_and_the_other_way_round(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r", {"d/a": "1", "d/b": "1", "f": "1"})
    for name in ("d/a", "d/b", "f"):
        (folder / name).unlink()
    (folder / "d").rmdir()
    write(folder, {"d": "x", "f/a": "x"})
    committed(folder)
    assert {name: text for name, text in tree_of(folder).items() if name[0] in "df"} == {
        "d": "100644 x",
        "f/a": "100644 x",
    }
    assert porcelain(folder) == []


def test_gits_filters_hold(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r", {".gitattributes": "*.txt text eol=lf\n*.up filter=up\n"})
    git(folder, "config", "filter.up.clean", "tr a-z A-Z")
    (folder / "a.txt").write_bytes(b"one\r\ntwo\r\n")
    (folder / "a.up").write_text("loud")
    committed(folder)
    assert tree_of(folder)["a.txt"] == "100644 one\ntwo\n"
    assert tree_of(folder)["a.up"] == "100644 LOUD"
    assert porcelain(folder) == []


def test_a_filter_that_fails_is_told(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r", {".gitattributes": "*.x filter=broken\n"})
    git(folder, "config", "filter.broken.clean", "false")
    git(folder, "config", "filter.broken.required", "true")
    write(folder, {"a.x": "1"})
    before = everything(folder)
    with pytest.raises(WorkTreeRefused, match="can't be committed"):
        committed(folder)
    assert everything(folder) == before


def test_the_message_and_the_people(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r")
    write(folder, {"a": "1"})
    committed(folder, message="main: ä\n\nRun: x\nToken: 3\n")
    told = said(folder, "log", "-1", "--format=%an <%ae>|%cn <%ce>|%s|%(trailers:key=Token)")
    who = "Sequencer <sequencer@localhost>"
    assert told == f"{who}|{who}|main: ä|Token: 3"
    git(folder, "config", "user.name", "Ä. Person")
    git(folder, "config", "user.email", "p@example.org")
    write(folder, {"a": "2"})
    committed(folder)
    assert said(folder, "log", "-1", "--format=%an <%ae>") == "Ä. Person <p@example.org>"


def test_no_hook_and_no_editor_and_no_signature(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r")
    hooks = folder / ".git" / "hooks"
    for name in ("pre-commit", "commit-msg", "post-commit", "reference-transaction"):
        (hooks / name).write_text(f"#!/bin/sh\ntouch '{tmp_path}/ran'\nexit 1\n")
        (hooks / name).chmod(0o755)
    git(folder, "config", "core.hooksPath", str(hooks))
    git(folder, "config", "commit.gpgSign", "true")
    git(folder, "config", "core.editor", f"touch {tmp_path}/ran;")
    write(folder, {"a": "1"})
    committed(folder)
    assert not (tmp_path / "ran").exists()
    assert said(folder, "log", "-1", "--format=%G?") == "N"


def test_three_processes_and_one_for_the_identity(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r")
    tree = tree_at(folder)
    committer = Committer(tree)
    counts = []
    for number in range(3):
        write(folder, {name: str(number) for name in ("a", "b", "deep/c")})
        selection = chosen(tree)
        started = tree.git.started
        committer.commit(selection, said(folder, "rev-parse", "HEAD"), MAIN, "x\n")
        counts.append(tree.git.started - started)
    assert counts == [4, 3, 3]


def test_a_branch_that_somebody_has_moved(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r")
    tree = tree_at(folder)
    write(folder, {"a": "1"})
    selection, parent = chosen(tree, "a"), said(folder, "rev-parse", "HEAD")
    theirs = commit(folder, {"b": "1"})
    before = everything(folder)
    with pytest.raises(RefMoved):
        Committer(tree).commit(selection, parent, MAIN, "x\n")
    assert everything(folder) == before
    assert said(folder, "rev-parse", "HEAD") == theirs


def test_a_file_that_was_changed_in_between_is_left_out(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r", {"back": "1"})
    tree = tree_at(folder)
    write(folder, {"a": "1", "b": "1", "c": "1"})
    (folder / "back").unlink()
    selection = chosen(tree)
    write(folder, {"a": "22", "back": "1"})
    (folder / "c").unlink()
    written = Committer(tree).commit(selection, said(folder, "rev-parse", "HEAD"), MAIN, "x\n")
    assert [one.path for one in written.selection.chosen] == ["b"]
    assert {one.path: one.reason for one in written.selection.skipped} == dict.fromkeys(
        ("a", "back", "c"), CHANGED
    )
    assert set(tree_of(folder)) == {".gitignore", "README.md", "b", "back"}


def test_a_snapshot_touches_nothing(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r", {"a": "1", "gone": "1"})
    write(folder, {"a": "2", "new": "2", "staged": "1"})
    (folder / "gone").unlink()
    git(folder, "add", "staged")
    before, parent = everything(folder), said(folder, "rev-parse", "HEAD")
    tree = tree_at(folder)
    ref = "refs/heads/kept/x"
    written = Committer(tree).snapshot(chosen(tree), parent, ref, "x\n")
    after = everything(folder)
    assert {name for name in after if before.get(name) != after[name]} == {
        *(".git/refs/heads/kept/x", ".git/logs/refs/heads/kept/x"),
    }
    assert said(folder, "rev-parse", "kept/x") == written.commit
    assert set(tree_of(folder, "kept/x")) == {".gitignore", "README.md", "a", "new"}
    with pytest.raises(RefMoved):
        Committer(tree).snapshot(chosen(tree), parent, ref, "another\n")
