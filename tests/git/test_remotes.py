"""Every way to reach a remote, and every way in which one says no."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from sequencer.errors import RemoteRefused, RemoteUnreachable, StorageFailed
from tests.clones import Shared, SharedStore, git
from tests.concurrency import children
from tests.contract import store_cases as cases
from tests.git.servers import SECRET, daemon, http, silent
from tests.git.tables import table
from tests.git.turns import accepted_in, run_files, turns, unsound
from tests.loopback import free_ports


def reach(shared: Shared, address: str, *names: str) -> None:
    """Let the clones *names* reach the repository by *address*."""
    for name in names:
        git(shared.clone(name), "remote", "set-url", "origin", f"{address}/{shared.bare.name}")


@contextlib.contextmanager
def as_path(folder: Path) -> Iterator[str]:
    yield str(folder)


@contextlib.contextmanager
def as_file(folder: Path) -> Iterator[str]:
    yield f"file://{folder}"


def with_password(folder: Path) -> AbstractContextManager[str]:
    @contextlib.contextmanager
    def served() -> Iterator[str]:
        with http(folder, is_open=False) as address:
            yield address.replace("://", f"://{SECRET}@")

    return served()


SERVERS: dict[str, Callable[[Path], AbstractContextManager[str]]] = {
    "a path": as_path,
    "file://": as_file,
    "git daemon": daemon,
    "http": lambda folder: http(folder, is_open=True),
    "http with a password": with_password,
}


@pytest.mark.parametrize("kind", table(SERVERS, "git daemon"))
def test_a_run_goes_over_every_transport(kind: str, shared: Shared) -> None:
    with SERVERS[kind](shared.folder) as address:
        reach(shared, address, "ours", "theirs")
        turns(shared.store("ours"), shared.store("theirs"))
        assert len(accepted_in(shared.store("theirs"))) == 3
        shared.close()
    folders = [shared.clone(name) / "sync" for name in ("ours", "theirs")]
    assert run_files(folders[0]) == run_files(folders[1])


FORMATS = ("--object-format=sha256", "--shared=group")


@pytest.mark.slow
@pytest.mark.parametrize("option", FORMATS)
def test_a_run_works_in_every_kind_of_repository(option: str, tmp_path: Path) -> None:
    shared = Shared(tmp_path, options=[option])
    turns(shared.store("ours"), shared.store("theirs"))
    assert len(accepted_in(shared.store("theirs"))) == 3
    assert len(shared.tip()) == (64 if "sha256" in option else 40)
    assert unsound(shared, ["ours", "theirs"]) == []
    shared.close()


# --- out of reach -----------------------------------------------------------------------


@contextlib.contextmanager
def nowhere(folder: Path) -> Iterator[str]:
    yield str(folder / "nowhere")


@contextlib.contextmanager
def nobody_listens(folder: Path) -> Iterator[str]:
    del folder
    yield f"git://127.0.0.1:{free_ports(1)[0]}"


@contextlib.contextmanager
def never_answers(folder: Path) -> Iterator[str]:
    del folder
    with silent() as address:
        yield address


@contextlib.contextmanager
def asks_for_a_password(folder: Path) -> Iterator[str]:
    with http(folder, is_open=False) as address:
        yield address


AWAY: dict[str, Callable[[Path], AbstractContextManager[str]]] = {
    made.__name__: made for made in (nowhere, nobody_listens, never_answers, asks_for_a_password)
}


def failures(store: SharedStore, token: int) -> list[RemoteUnreachable]:
    """Return what each thing that one may ask of *store* ends with, when it can't be reached."""
    found = []
    for act in (lambda: cases.claim(store), lambda: cases.commit(store, token), store.pull):
        with pytest.raises(RemoteUnreachable) as told:
            act()
        found.append(told.value)
    return found


@pytest.mark.parametrize("how", table(AWAY, "never_answers", "asks_for_a_password"))
def test_an_unreachable_remote_is_soon_an_error(how: str, shared: Shared) -> None:
    ours = shared.store("ours")
    cases.begin(ours)
    token = cases.claim(ours).token
    clone = shared.clone("ours")
    before = run_files(clone / "sync")
    with AWAY[how](shared.folder) as address:
        reach(shared, address, "ours")
        away, began = shared.store("ours", timeout_s=1.5), time.monotonic()
        for error in failures(away, token):
            assert error.exit_code == 3
            assert error.hint
            assert error.is_denied == (how == "asks_for_a_password")
        # What is known can be looked at all the same, and it is said how old that is.
        assert time.monotonic() - began < 20
        away.close()
        later = shared.store("ours", timeout_s=1.5)
        seen = later.view()
        assert seen.head is not None
        assert any("this is what this clone knows" in text for text in seen.notices)
        later.close()
    assert run_files(clone / "sync") == before
    reach(shared, str(shared.folder), "ours")
    cases.commit(ours, token)
    assert accepted_in(ours) == [(0, token)]


def test_git_never_asks_for_a_password_on_a_terminal(shared: Shared) -> None:
    ours, errors = shared.store("ours"), shared.folder / "errors"
    with http(shared.folder, is_open=False) as address:
        reach(shared, address, "ours")
        pid, terminal = os.forkpty()
        if not pid:
            code = 1
            try:
                cases.begin(ours)
            except RemoteUnreachable as error:
                code = 7 if error.is_denied else 8
            except BaseException as error:  # noqa: BLE001 - the parent has to hear of it
                children.append(errors, repr(error))
            os._exit(code)
        printed = b""
        with contextlib.suppress(OSError):
            while piece := os.read(terminal, 1000):
                printed += piece
        _, status = os.waitpid(pid, 0)
        os.close(terminal)
    assert children.wrong(errors) == ()
    assert os.waitstatus_to_exitcode(status) == 7
    assert printed == b""


# --- remotes with rules -----------------------------------------------------------------


def forbid(bare: Path, hook: str, script: str) -> Path:
    """Give the repository a hook, and return it."""
    path = bare / "hooks" / hook
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


RULES = {
    "pre-receive": "cat >/dev/null; echo 'error: GH006: Protected branch' >&2; exit 1",
    "update": 'case "$1" in refs/heads/sequencer/*) echo no >&2; exit 1;; esac',
}


@pytest.mark.parametrize("hook", RULES)
def test_a_protected_branch_is_reported_and_nothing_is_done(hook: str, shared: Shared) -> None:
    ours = shared.store("ours")
    cases.begin(ours)
    token = cases.claim(ours).token
    before, tip = run_files(shared.clone("ours") / "sync"), shared.tip()
    made = forbid(shared.bare, hook, RULES[hook])
    for _ in range(2):
        with pytest.raises(RemoteRefused, match="hook declined") as told:
            cases.commit(ours, token)
    error = told.value
    assert error.exit_code == 3
    assert "store.branch" in str(error.hint)
    assert ("GH006" in error.message) == (hook == "pre-receive")
    assert (run_files(shared.clone("ours") / "sync"), shared.tip()) == (before, tip)
    made.unlink()
    cases.commit(ours, token)
    assert accepted_in(ours) == [(0, token)]


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("key", ["receive.denyNonFastForwards", "receive.denyDeletes"])
def test_a_remote_that_forbids_a_new_history_gets_a_longer_one(key: str, shared: Shared) -> None:
    git(shared.bare, "config", key, "true")
    ours = shared.store("ours", max_commits=3)
    cases.begin(ours)
    for _ in range(5):
        cases.commit(ours, cases.claim(ours).token)
    assert len(accepted_in(shared.store("theirs"))) == 5
    length = int(git(shared.bare, "rev-list", "--count", "refs/heads/sequencer/default"))
    assert length == (11 if key.endswith("Forwards") else 2)


@pytest.mark.slow
def test_the_history_is_bounded(shared: Shared) -> None:
    ours, theirs = shared.store("ours", max_commits=3), shared.store("theirs", max_commits=5)
    cases.begin(ours)
    for _ in range(4):
        for store in (ours, theirs):
            cases.commit(store, cases.claim(store).token)
            commits = git(shared.bare, "rev-list", "--count", "refs/heads/sequencer/default")
            assert int(commits) <= 5
    ours.pull()
    assert len(accepted_in(ours)) == 8
    assert run_files(shared.clone("ours") / "sync") == run_files(shared.clone("theirs") / "sync")


# --- locks that a dead git has left behind --------------------------------------------------


LOCAL = "refs/worktree/sequencer/sequencer/default"
"""Where a clone has what it knows of the branch."""
LOCKS = (
    *(
        f"worktree/sequencer/sequencer/default/{name}"
        for name in ("draft", "state", "beats", "beats-draft")
    ),
    *("remotes/origin/sequencer/default", "remotes/origin/sequencer-beats/default"),
)


@pytest.mark.parametrize("ref", table(LOCKS, LOCKS[0]))
def test_a_lock_left_by_a_killed_git_does_not_stop_a_run(ref: str, shared: Shared) -> None:
    ours, theirs = shared.store("ours"), shared.store("theirs")
    cases.begin(theirs)
    cases.commit(ours, cases.claim(ours).token)
    cases.commit(theirs, cases.claim(theirs).token)
    lock = shared.clone("ours") / ".git" / "refs" / f"{ref}.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    lock.touch()
    os.utime(lock, (0, time.time() - 2.5))
    held = cases.claim(theirs)
    theirs.beat(held, 1)
    cases.commit(theirs, held.token)
    held = cases.claim(ours)
    ours.beat(held, 1)
    cases.commit(ours, held.token)
    assert len(accepted_in(ours)) == 4


def test_a_lock_that_may_still_be_held_is_waited_for(shared: Shared) -> None:
    ours = shared.store("ours")
    cases.begin(ours)
    lock = shared.clone("ours") / ".git" / LOCAL / "draft.lock"
    lock.touch()
    began = time.monotonic()
    threading.Timer(0.3, lock.unlink).start()
    cases.commit(ours, cases.claim(ours).token)
    assert 0.2 < time.monotonic() - began < 2.5


def test_a_fetch_of_a_killed_process_may_move_the_same_ref(shared: Shared) -> None:
    ours, theirs = shared.store("ours"), shared.store("theirs")
    cases.begin(theirs)
    ours.pull()
    cases.commit(theirs, cases.claim(theirs).token)
    clone, marks = shared.clone("ours"), shared.folder / "marks"
    meddler = shared.folder / "upload-pack"
    moves = f"git -C '{clone}' update-ref {LOCAL}/state HEAD"
    # First comes a look, then a fetch, which has read by then where the ref was.
    meddler.write_text(
        f"#!/bin/sh\necho >> '{marks}'\ngit-upload-pack \"$@\"\n"
        f"test $(wc -l < '{marks}') != 2 || {moves}\n"
    )
    meddler.chmod(0o755)
    git(clone, "config", "remote.origin.uploadpack", str(meddler))
    cases.commit(ours, cases.claim(ours).token)
    assert len(marks.read_text()) > 2
    assert len(accepted_in(ours)) == 2


def test_a_lock_left_by_a_killed_server_is_named(shared: Shared) -> None:
    ours = shared.store("ours")
    cases.begin(ours)
    lock = shared.bare / "refs" / "heads" / "sequencer" / "default.lock"
    lock.touch()
    with pytest.raises(StorageFailed) as told:
        cases.claim(ours)
    assert str(lock.name) in told.value.message
    assert f"rm {lock}" in str(told.value.hint)
    lock.unlink()
    cases.commit(ours, cases.claim(ours).token)
    assert accepted_in(ours) == [(0, 1)]
