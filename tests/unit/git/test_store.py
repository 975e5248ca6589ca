"""A store on a remote where something is in the way: a full disk, a remote that hangs."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from sequencer.errors import RemoteUnreachable, StorageFailed
from sequencer.git import process as command
from sequencer.git.replica import Replica
from sequencer.git.store import GitStore
from sequencer.store.leases import Leases
from sequencer.store.protocol import Liveness, Telling
from tests.clones import Shared, git
from tests.contract import store_cases as cases


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Shared]:
    made = Shared(tmp_path)
    yield made
    made.close()


def full(*_args: Any, **_more: Any) -> NoReturn:
    raise OSError(errno.ENOSPC, "No space left on device", "/full/journal.jsonl")


def behind(shared: Shared) -> GitStore:
    """Return a store of a clone that has one transition still to follow."""
    cases.begin(shared.store("a"))
    store = shared.store("b")
    assert store.bring()
    cases.claim(shared.store("a"))
    return store


def over_ssh(shared: Shared, name: str) -> None:
    """Let the clone *name* reach its remote as if that were another machine's."""
    clone = shared.clone(name)
    git(clone, "remote", "set-url", "origin", f"ssh://host{shared.bare}")
    git(clone, "config", "core.sshCommand", "sh -c 'eval \"$2\"' -")
    git(clone, "config", "ssh.variant", "simple")


# --- a full disk -----------------------------------------------------------------------


def test_a_full_disk_is_told_as_one(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    store = behind(shared)
    with monkeypatch.context() as broken:
        broken.setattr(Replica, "follow", full)
        for act in (store.bring, lambda: store.wait(1, 5.0)):
            with pytest.raises(StorageFailed, match="can't be written: No space") as failed:
                act()
            assert failed.value.where == "/full/journal.jsonl"
            assert "make room" in (failed.value.hint or "")
            assert not isinstance(failed.value, RemoteUnreachable)
    assert store.bring(), "and goes on when there is room"


def test_what_is_here_can_be_read_with_a_full_disk(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    behind(shared)
    store = shared.store("b")
    monkeypatch.setattr(Replica, "follow", full)
    view = store.view()
    assert view.head is not None
    assert view.head.revision == 1
    (notice,) = view.notices
    assert notice.startswith("/full/journal.jsonl: can't be written: No space left on device; ")
    assert [fact["event"] for fact in store.history()] == ["initialised"]


def test_beats_that_cannot_be_written_here_are_no_bug(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = shared.store("a")
    cases.begin(holder)
    held = cases.claim(holder)
    holder.beat(held, 1)
    over_ssh(shared, "b")
    waiting = shared.store("b")
    waiting.bring()
    monkeypatch.setattr(Leases, "keep", full)
    with pytest.raises(StorageFailed, match="No space left"):
        waiting.wait(2, 2.0)


# --- what has been followed ------------------------------------------------------------


def test_a_look_for_beats_alone_does_not_make_the_folder_fresh(shared: Shared) -> None:
    """The folder of a remote that can't be watched, as over the network."""
    holder = shared.store("a")
    cases.begin(holder)
    held = cases.claim(holder)
    over_ssh(shared, "b")
    observer = shared.store("b", slow_s=2.0)
    assert observer.bring()
    cases.commit(holder, held.token)
    time.sleep(2.1)
    assert observer.branch.look()
    head = observer.view().head
    assert head is not None
    assert head.revision == 3, "it was looked at, but had not been followed"


def test_looks_are_counted_with_what_they_brought(shared: Shared) -> None:
    store = behind(shared)
    looks, contact = store.branch.looks, store.branch.contact_at
    tips = store.branch.look()
    assert (store.branch.looks, store.branch.contact_at) == (looks, contact)
    assert not store.branch.is_first_look
    assert store.branch.follow(tips)
    assert store.branch.looks == looks + 1
    assert store.branch.contact_at > contact
    assert not store.branch.follow(tips), "nothing new is an answer as well"
    assert store.branch.looks == looks + 2


def test_what_could_not_be_followed_is_not_counted(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = behind(shared)
    looks, contact = store.branch.looks, store.branch.contact_at
    monkeypatch.setattr(Replica, "follow", full)
    with pytest.raises(StorageFailed):
        store.bring()
    assert (store.branch.looks, store.branch.contact_at) == (looks, contact)


# --- being told to stop ----------------------------------------------------------------


def hang(shared: Shared, name: str) -> None:
    """Let the remote of the clone *name* not answer."""
    clone = shared.clone(name)
    git(clone, "remote", "set-url", "origin", "ssh://host/nowhere")
    git(clone, "config", "core.sshCommand", "sleep 60 #")
    git(clone, "config", "ssh.variant", "simple")


def test_who_is_told_to_stop_does_not_wait_for_a_remote_that_hangs(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = shared.store("a")
    assert isinstance(store, Telling)
    cases.begin(store)
    held = cases.claim(store)
    hang(shared, "a")
    monkeypatch.setattr(command, "STOPPED_S", 0.3)
    store.stopped = lambda: True
    began = time.monotonic()
    with pytest.raises(RemoteUnreachable, match="no answer in time"):
        cases.commit(store, held.token)
    with pytest.raises(OSError, match="no answer in time"):
        store.beat(held, 1)
    assert store.liveness(held) is not Liveness.EXPIRED
    assert time.monotonic() - began < 10
