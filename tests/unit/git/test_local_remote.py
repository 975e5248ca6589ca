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


def test_a_remote_that_was_taken_away_watches_nothing(bare: Path, tmp_path: Path) -> None:
    watching = RefWatch(bare, STATE)
    watching.arm()
    bare.rename(tmp_path / "away")
    watching.arm()
    assert not watching.fds
