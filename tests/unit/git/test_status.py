"""What git says about a work tree, read with git itself as the one who says it."""

from __future__ import annotations

from pathlib import Path

from sequencer.git.tree import STATUS, Change, StatusEntry, TreeStatus, parse_status
from tests.unit.git.clones import commit, git, repository, write


def seen(folder: Path) -> TreeStatus:
    return parse_status(git(folder, *STATUS))


def entries(folder: Path) -> dict[str, StatusEntry]:
    return {entry.path: entry for entry in seen(folder).entries}


def test_each_kind_of_change(tmp_path: Path) -> None:
    names = ("modified", "deleted", "staged", "staged twice", "unstaged later", "retyped")
    folder = repository(tmp_path / "r", dict.fromkeys(names, "one\n"))
    write(folder, {"modified": "two\n", "new file": "x", "ignored/x": "x", "a.tmp": "x"})
    write(folder, {"staged": "two\n", "staged twice": "two\n", "announced": "x"})
    git(folder, "add", "staged", "staged twice")
    git(folder, "add", "-N", "announced")
    git(folder, "rm", "-q", "--cached", "unstaged later")
    write(folder, {"staged twice": "three\n"})
    (folder / "deleted").unlink()
    (folder / "retyped").unlink()
    (folder / "retyped").symlink_to("modified")
    found = entries(folder)
    assert found["modified"] == StatusEntry("modified", Change.MODIFIED, mode=0o100644)
    assert found["deleted"] == StatusEntry("deleted", Change.DELETED, mode=0)
    assert found["new file"] == StatusEntry("new file", Change.ADDED)
    assert found["retyped"] == StatusEntry("retyped", Change.MODIFIED, mode=0o120000)
    assert {name for name, entry in found.items() if entry.is_staged} == {
        *("staged", "staged twice", "announced")
    }
    assert not [name for name in found if "ignored" in name or name.endswith(".tmp")]
    # Taken out of the index and still there: two lines, one of which is the user's.
    both = [entry for entry in seen(folder).entries if entry.path == "unstaged later"]
    assert {entry.is_staged for entry in both} == {True, False}


def test_a_rename_is_two_paths(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r", {"old name": "the same\n" * 20})
    git(folder, "mv", "old name", "new name")
    assert {(p, e.change, e.is_staged) for p, e in entries(folder).items()} == {
        ("old name", Change.DELETED, True),
        ("new name", Change.MODIFIED, True),
    }


def test_a_rename_in_gits_own_words() -> None:
    oid = "a" * 40
    line = f"2 R. N... 100644 100644 100644 {oid} {oid} R100 new name\0old name\0? x\0"
    found = {entry.path: entry for entry in parse_status(line.encode()).entries}
    assert list(found) == ["new name", "old name", "x"]
    assert found["new name"].is_staged
    assert found["old name"].is_staged
    assert found["old name"].change is Change.DELETED


def test_a_merge_with_conflicts(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r", {"a file": "1\n"})
    git(folder, "branch", "other")
    commit(folder, {"a file": "2\n"})
    git(folder, "switch", "-q", "other")
    commit(folder, {"a file": "3\n"})
    git(folder, "config", "merge.conflictStyle", "merge")
    # A merge with conflicts ends with 1.
    git(folder, "-c", "alias.try=!git merge -q main || true", "try")
    assert entries(folder)["a file"].is_unmerged


def test_repositories_within(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r")
    inner = repository(tmp_path / "inner")
    allowed = ("-c", "protocol.file.allow=always")
    git(folder, *allowed, "submodule", "--quiet", "add", str(inner), "sub")
    git(folder, "commit", "-qm", "with a submodule")
    commit(folder / "sub", {"x": "1"})
    repository(folder / "nested")
    found = entries(folder)
    assert found["sub"].is_submodule
    assert found["nested/"].change is Change.ADDED


def test_names_with_everything_in_them(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r", {"we\nird": "1", " a b\t": "1", '"q"': "1"})
    write(folder, {"we\nird": "2", " a b\t": "2", '"q"': "2", "1 .M N...": "new", "? x": "new"})
    (folder / "caf\udce9").write_text("latin")
    assert set(entries(folder)) == {
        *("we\nird", " a b\t", '"q"', "1 .M N...", "? x", "caf\udce9"),
    }


def test_the_users_settings_change_nothing(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r", {"a": "same\n" * 30})
    for key, value in (
        ("status.showUntrackedFiles", "no"),
        ("status.renames", "copies"),
        ("status.relativePaths", "true"),
        ("status.branch", "false"),
        ("core.quotePath", "true"),
        ("color.ui", "always"),
    ):
        git(folder, "config", key, value)
    (folder / "sub").mkdir()
    write(folder, {"sub/é": "x"})
    git(folder, "mv", "a", "b")
    assert {entry.path for entry in parse_status(git(folder / "sub", *STATUS)).entries} == {
        *("a", "b", "sub/é"),
    }
