"""Remotes: pushes as compare-and-swap, fetches, and folders that are watched."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sequencer.plugins.git.process import Git, GitFailed
from sequencer.plugins.git.state import remote as module
from sequencer.plugins.git.state.objects import CommitDraft, Objects
from sequencer.plugins.git.state.remote import (
    NoAtomicPush,
    Pushed,
    PushVerdict,
    RefMove,
    RefWatch,
    Remote,
    remote_folder,
    unreachable_error,
)
from sequencer.project.store_requests import EVERYTHING
from sequencer.store.watch import Notifier, start_notifier, wait_readable
from tests.unit.git import remotes
from tests.unit.git.remotes import STATE

OTHER = "refs/heads/other"


class Lab:
    """A bare repository and a clone with commits to push."""

    def __init__(self, folder: Path) -> None:
        self.bare = remotes.new_remote(folder / "r.git")
        self.clone = remotes.new_clone(self.bare, folder / "clone")
        self.remote = Remote(Git(self.clone, allowed=EVERYTHING), "origin")

    def commit(self, text: str = "x", parent: str | None = None) -> str:
        objects = Objects(self.remote.git)
        made = objects.write(CommitDraft(text, parent, {"a": text.encode()}, 0), "refs/draft")
        objects.close()
        return made

    def push(self, *moves: tuple[str, str | None, str | None]) -> Pushed:
        return self.remote.push([RefMove(*move) for move in moves])

    def tip(self, ref: str = STATE) -> str | None:
        return remotes.tip(self.bare, ref)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


@pytest.mark.parametrize("old", [None, "stale", "f" * 40])
def test_a_ref_that_has_moved_is_not_overwritten(lab: Lab, old: str | None) -> None:
    first = lab.commit("1")
    second = lab.commit("2", first)
    lab.push((STATE, None, first))
    lab.push((STATE, first, second))
    found = lab.push((STATE, first if old == "stale" else old, lab.commit("3", second)))
    assert found.verdict is PushVerdict.REFUSED
    assert lab.tip() == second


def test_without_atomic_pushes_one_ref_moves_and_two_do_not(lab: Lab) -> None:
    remotes.git(lab.bare, "config", "receive.advertiseAtomic", "false")
    commit = lab.commit()
    assert lab.push((STATE, None, commit)).verdict is PushVerdict.ACCEPTED
    assert not lab.remote.is_atomic
    with pytest.raises(NoAtomicPush):
        lab.push((STATE, commit, lab.commit("2", commit)), (OTHER, None, commit))
    assert (lab.tip(), lab.tip(OTHER)) == (commit, None)


@pytest.mark.parametrize(
    ("stderr", "is_denied"),
    [
        ("fatal: Authentication failed for 'https://example.invalid/x'", True),
        ("fatal: could not read Username for 'https://x': terminal prompts disabled", True),
        ("git@example.invalid: Permission denied (publickey).", True),
        ("fatal: unable to access 'https://x/': The requested URL returned error: 403", True),
        ("ERROR: Permission to o/r.git denied to deploy key", True),
        ("ERROR: The key you use has been marked as read only.", True),
        ("remote: ERROR: You are not allowed to push code to this project.", True),
        ("Gitea: User permission denied for writing.", True),
        ("fatal: unable to access 'https://x/': Could not resolve host: x", False),
        ("ssh: connect to host x port 22: Connection refused", False),
        ("fatal: the remote end hung up unexpectedly", False),
    ],
)
def test_denied_access_differs_from_an_unreachable_remote(stderr: str, *, is_denied: bool) -> None:
    error = unreachable_error("origin", GitFailed(("fetch",), 128, stderr))
    assert error.is_denied is is_denied
    assert error.exit_code == 3
    assert "\n" not in error.message


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
def test_a_remote_that_is_not_a_local_folder_is_polled(url: str, clone: Path) -> None:
    assert found(clone, url) is None


def test_a_remote_that_is_not_configured_is_polled(clone: Path, tmp_path: Path) -> None:
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
    return bool(wait_readable(refs.fds, timeout_s)) and refs.has_moved()


def test_a_folder_created_while_the_watch_starts_is_noticed(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []

    def late(folder: Path, name: str | None) -> Notifier:
        asked.append(folder)
        made = start_notifier(folder, name)
        if len(asked) == 1:
            # Made after it was looked for and, worse, in a folder that no watch is in yet.
            (bare / STATE).parent.mkdir(parents=True)
        return made

    monkeypatch.setattr(module, "start_notifier", late)
    watching = RefWatch(bare, STATE)
    watching.arm()
    (bare / STATE).write_text("x")
    assert wakes(watching)
    assert asked == [bare / "refs/heads", (bare / STATE).parent]
    watching.close()


def test_a_removed_remote_is_no_longer_watched(bare: Path, tmp_path: Path) -> None:
    watching = RefWatch(bare, STATE)
    watching.arm()
    bare.rename(tmp_path / "away")
    watching.arm()
    assert not watching.fds
