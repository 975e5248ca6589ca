"""Which remotes are folders of this machine, and that a push to one wakes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sequencer.git import remote as module
from sequencer.git.process import Git
from sequencer.git.remote import RefWatch, remote_folder
from sequencer.store.watch import Notifier, notifier, readable
from tests.unit.git import remotes
from tests.unit.git.remotes import STATE


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    return remotes.new_remote(tmp_path / "a folder.git")


@pytest.fixture
def clone(tmp_path: Path, bare: Path) -> Path:
    return remotes.new_clone(bare, tmp_path / "clone")


def found(clone: Path, url: str) -> Path | None:
    remotes.git(clone, "remote", "set-url", "origin", url)
    return remote_folder(Git(clone), "origin")


# --- which folder ----------------------------------------------------------------------


def test_a_path_and_a_file_address_are_folders(clone: Path, bare: Path) -> None:
    assert found(clone, str(bare)) == bare
    assert found(clone, f"file://{bare}") == bare
    assert found(clone, f"file://{str(bare).replace(' ', '%20')}") == bare
    assert found(clone, str(bare).removesuffix(".git")) == bare


def test_a_relative_path_begins_at_the_top_of_the_work_tree(clone: Path, bare: Path) -> None:
    below = clone / "sync"
    below.mkdir()
    remotes.git(clone, "remote", "set-url", "origin", f"../{bare.name}")
    assert remote_folder(Git(below), "origin") == bare
    mirror = remotes.new_remote(clone.parent / "mirror.git")
    remotes.git(mirror, "remote", "add", "origin", f"../{bare.name}")
    assert remote_folder(Git(mirror, git_dir=mirror), "origin") == bare


def test_an_address_that_is_written_otherwise_counts_as_git_reads_it(
    clone: Path, bare: Path
) -> None:
    remotes.git(clone, "config", f"url.{bare.parent}/.insteadOf", "here:")
    assert found(clone, f"here:{bare.name}") == bare


def test_a_repository_with_a_work_tree(clone: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    remotes.git(other, "init", "--quiet")
    assert found(clone, str(other)) == other / ".git"
    remotes.git(other, "commit", "--quiet", "--allow-empty", "-m", "x")
    remotes.git(other, "worktree", "add", "--quiet", str(tmp_path / "linked"))
    assert found(clone, str(tmp_path / "linked")) == other / ".git"


@pytest.mark.parametrize(
    "url",
    [
        "ssh://host/srv/x.git",
        "host:srv/x.git",
        "git@host:x.git",
        "https://host/x.git",
        "file://host/x.git",
        "ext::sh -c true",
        "/nowhere/at/all.git",
        "/proc/self/environ",
    ],
)
def test_what_is_no_folder_here_is_polled(url: str, clone: Path) -> None:
    assert found(clone, url) is None


def test_a_remote_that_nobody_has_configured_is_polled(clone: Path, tmp_path: Path) -> None:
    assert remote_folder(Git(clone), "elsewhere") is None
    (tmp_path / "plain").mkdir()
    assert found(clone, str(tmp_path / "plain")) is None
    (tmp_path / "file").write_text("gitdir: \0")
    assert found(clone, str(tmp_path / "file")) is None


def test_refs_that_are_kept_otherwise_are_polled(clone: Path, bare: Path) -> None:
    (bare / "reftable").mkdir()
    assert found(clone, str(bare)) is None


def test_a_network_file_system_is_polled(
    clone: Path, bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []

    def kind(folder: Path) -> str:
        asked.append(folder)
        return "nfs4"

    monkeypatch.setattr(module, "type_of", kind)
    assert found(clone, str(bare)) is None
    assert asked == [bare]


# --- watching --------------------------------------------------------------------------


@pytest.fixture
def refs(bare: Path) -> Iterator[RefWatch]:
    watching = RefWatch(bare, STATE)
    watching.arm()
    yield watching
    watching.close()


def wakes(refs: RefWatch, timeout_s: float = 2.0) -> bool:
    return bool(readable(refs.fds, timeout_s)) and refs.has_moved()


def pushed(clone: Path, text: str, ref: str = STATE) -> None:
    remotes.push(clone, remotes.commit(clone, {"x": text.encode()}), ref)


def test_each_push_wakes_from_the_first_on(refs: RefWatch, clone: Path) -> None:
    assert not wakes(refs, 0.05)
    for number in range(4):
        pushed(clone, str(number))
        assert wakes(refs), number
        refs.arm()
        assert not wakes(refs, 0.05)


def test_other_refs_wake_nobody(refs: RefWatch, clone: Path) -> None:
    pushed(clone, "first")
    refs.arm()
    for ref in ("refs/heads/main", "refs/heads/sequencer/another", remotes.BEATS):
        pushed(clone, ref, ref)
    assert not wakes(refs, 0.1)
    pushed(clone, "second")
    assert wakes(refs)


def test_a_push_after_git_has_tidied_up_wakes(refs: RefWatch, clone: Path, bare: Path) -> None:
    pushed(clone, "first")
    refs.arm()
    remotes.git(bare, "pack-refs", "--all", "--prune")
    assert not (bare / STATE).exists()
    # The loose file has gone, perhaps with its folder; that wakes for nothing, once.
    assert wakes(refs)
    refs.arm()
    assert not wakes(refs, 0.05)
    pushed(clone, "second")
    assert wakes(refs)
    refs.arm()
    pushed(clone, "third")
    assert wakes(refs)


def test_a_ref_that_goes_wakes(refs: RefWatch, clone: Path) -> None:
    pushed(clone, "first")
    refs.arm()
    remotes.git(clone, "push", "--quiet", "origin", f":{STATE}")
    assert wakes(refs)
    refs.arm()
    pushed(clone, "again")
    assert wakes(refs)


def test_a_folder_made_while_the_watch_begins_is_seen(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []

    def late(folder: Path, name: str | None) -> Notifier:
        asked.append(folder)
        made = notifier(folder, name)
        if len(asked) == 1:
            # Made after it was looked for and, worse, in a folder that no watch is in yet.
            (bare / STATE).parent.mkdir(parents=True)
        return made

    monkeypatch.setattr(module, "notifier", late)
    watching = RefWatch(bare, STATE)
    watching.arm()
    (bare / STATE).write_text("x")
    assert wakes(watching)
    assert asked == [bare / "refs/heads", (bare / STATE).parent]
    watching.close()


def test_a_system_without_notifications_left_watches_nothing(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(folder: Path, name: str | None) -> Notifier:
        raise OSError(24, f"no watch for {name}", str(folder))

    watching = RefWatch(bare, STATE)
    watching.arm()
    assert len(watching.fds) == 1
    monkeypatch.setattr(module, "notifier", refuse)
    watching.arm()
    assert not watching.fds
    assert not watching.has_moved()
    monkeypatch.undo()
    watching.arm()
    assert len(watching.fds) == 1
    watching.close()
    assert not watching.fds
    watching.close()


def test_a_remote_that_was_taken_away_watches_nothing(bare: Path, tmp_path: Path) -> None:
    watching = RefWatch(bare, STATE)
    watching.arm()
    bare.rename(tmp_path / "away")
    watching.arm()
    assert not watching.fds
