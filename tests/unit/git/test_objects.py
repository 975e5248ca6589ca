"""Commits that are written by fast-import and read by cat-file, in real repositories."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sequencer.git import objects as module
from sequencer.git.objects import CommitDraft, Objects, blob_name
from sequencer.git.process import Git, GitFailed
from tests.unit.git import remotes

REF = "refs/sequencer/x/draft"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return remotes.new_remote(tmp_path / "r.git")


@pytest.fixture
def objects(folder: Path) -> Iterator[Objects]:
    made = Objects(Git(folder, git_dir=folder))
    yield made
    made.close()


def draft(files: dict[str, bytes | None], parent: str | None = None, **more: object) -> CommitDraft:
    return CommitDraft(f"ä: {len(files)}\n", parent, files, 1_700_000_000, **more)  # type: ignore[arg-type]


def test_what_was_written_is_read(folder: Path, objects: Objects) -> None:
    names = ["state.json", 'a "quoted"\\ name', "results/0-1/output.txt", "new\nline", "-rf", "ä"]
    commit = objects.write(draft({name: name.encode() for name in names}), REF)
    assert objects.resolve(REF) == commit == remotes.git(folder, "rev-parse", REF)
    listed = remotes.git(folder, "ls-tree", "-r", "-z", "--name-only", commit).split("\0")
    assert sorted(listed[:-1]) == sorted(names)
    for name in names:
        if "\n" not in name:
            assert objects.read(f"{commit}:{name}", "blob") == name.encode()
    assert remotes.git(folder, "log", "-1", "--format=%an %ae %at %s", commit) == (
        "Sequencer sequencer@localhost 1700000000 ä: 6"
    )


def test_a_commit_goes_on_from_its_parent(folder: Path, objects: Objects) -> None:
    first = objects.write(draft({"a": b"1", "b/c": b"2", "b/d": b"3"}), REF)
    second = objects.write(draft({"a": b"\0\n", "b/c": None}, first), REF)
    assert remotes.git(folder, "rev-parse", f"{second}^") == first
    assert objects.read(f"{second}:a", "blob") == b"\0\n"
    assert objects.read(f"{second}:b/c", "blob") is None
    assert objects.read(f"{second}:b/d", "blob") == b"3"


def test_a_history_begins_anew_with_the_files_of_another(folder: Path, objects: Objects) -> None:
    first = objects.write(draft({"a": b"1", "b": b"2"}), REF)
    anew = objects.write(draft({"a": b"3"}, None, base=first), REF)
    assert remotes.git(folder, "rev-list", "--count", anew) == "1"
    assert objects.read(f"{anew}:a", "blob") == b"3"
    assert objects.read(f"{anew}:b", "blob") == b"2"
    assert objects.resolve(REF) == anew, "though that is no fast-forward"


def test_entries_say_what_they_are(folder: Path, objects: Objects) -> None:
    blob = remotes.git(folder, "hash-object", "-w", "--stdin", stdin=b"x")
    commit = objects.write(draft({"a": b"1", "run.sh": b"2", "f/g": b"3"}), REF)
    lines = f"120000 blob {blob}\tlink\n160000 commit {commit}\tsub\n100755 blob {blob}\tx\n"
    tree = remotes.git(folder, "mktree", stdin=lines.encode())
    found = {entry.name: entry for entry in objects.tree(tree) or ()}
    assert {name: (one.is_folder, one.is_plain) for name, one in found.items()} == {
        "link": (False, False),
        "sub": (False, False),
        "x": (False, True),
    }
    top = {entry.name: entry.is_folder for entry in objects.tree(f"{commit}^{{tree}}") or ()}
    assert top == {"a": False, "run.sh": False, "f": True}
    assert found["x"].oid == blob


def test_what_is_not_there_is_none(objects: Objects) -> None:
    assert objects.resolve("refs/heads/none") is None
    assert objects.read("0" * 40, "blob") is None
    assert objects.tree("f" * 40 + "^{tree}") is None


def test_another_kind_is_refused(objects: Objects) -> None:
    commit = objects.write(draft({"a": b"1"}), REF)
    with pytest.raises(GitFailed, match="is a commit, not a blob"):
        objects.read(commit, "blob")
    with pytest.raises(GitFailed, match="is a commit, not a tree"):
        objects.tree(commit)
    assert objects.read(f"{commit}:a", "blob") == b"1", "and the next answer is its own"


def test_a_name_cannot_smuggle_another_question(objects: Objects) -> None:
    commit = objects.write(draft({"a": b"1"}), REF)
    with pytest.raises(GitFailed, match="one line"):
        objects.resolve(f"HEAD\n{commit}")
    assert objects.resolve(commit) == commit


def test_what_is_too_large_is_not_read(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = objects.write(draft({"a": b"x" * 101, "b": b"2"}), REF)
    monkeypatch.setattr(module, "MAX_OBJECT_BYTES", 100)
    with pytest.raises(GitFailed, match="101 bytes"):
        objects.read(f"{commit}:a", "blob")
    assert objects.read(f"{commit}:b", "blob") == b"2", "by a reader of its own"


def test_a_reader_that_was_killed_is_started_again(objects: Objects) -> None:
    commit = objects.write(draft({"a": b"1"}), REF)
    reader = objects._reader
    assert objects.resolve(commit) == commit
    reader = objects._reader
    assert reader is not None
    os.kill(reader.pid, signal.SIGKILL)
    reader.wait()
    assert objects.read(f"{commit}:a", "blob") == b"1"
    assert objects._reader is not reader


def test_a_repository_that_is_none_says_so(tmp_path: Path) -> None:
    made = Objects(Git(tmp_path, {"PATH": os.environ["PATH"], "GIT_CEILING_DIRECTORIES": "/"}))
    with pytest.raises(GitFailed):
        made.write(draft({"a": b"1"}), REF)
    with pytest.raises(GitFailed):
        made.resolve("HEAD")
    made.close()


@pytest.mark.parametrize("data", [b"", b"x", b"a\0b\n" * 1000])
def test_a_blob_is_named_as_git_names_it(folder: Path, data: bytes) -> None:
    assert blob_name(data, 40) == remotes.git(folder, "hash-object", "--stdin", stdin=data)
    assert len(blob_name(data, 64)) == 64


def test_nobody_has_to_read_what_the_reader_complains_of(
    folder: Path, objects: Objects, tmp_path: Path
) -> None:
    """A pipe that nobody reads is full one day, and then git waits for ever."""
    commit = objects.write(draft({"a": b"1"}), REF)
    fake = tmp_path / "bin" / "git"
    fake.parent.mkdir()
    real = shutil.which("git")
    fake.write_text(
        "#!/bin/bash\n"
        'case " $* " in *" --batch "*) head -c 1000000 /dev/zero >&2; '
        f'env | grep LAZY > {tmp_path}/lazy;; esac\nexec {real} "$@"\n'
    )
    fake.chmod(0o755)
    reader = Objects(Git(folder, {"PATH": f"{fake.parent}:{os.environ['PATH']}"}, git_dir=folder))
    found: list[str | None] = []
    # In a thread, so that it is a failure and no test without an end.
    thread = threading.Thread(target=lambda: found.append(reader.resolve(REF)), daemon=True)
    thread.start()
    thread.join(10)
    assert found == [commit]
    assert (tmp_path / "lazy").read_text() == "GIT_NO_LAZY_FETCH=1\n"
    reader.close()


def test_why_the_reader_ends_at_once_is_told(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    reader = Objects(Git(tmp_path / "plain", {**os.environ, "GIT_CEILING_DIRECTORIES": "/"}))
    with pytest.raises(GitFailed, match="not a git repository"):
        reader.resolve("HEAD")
