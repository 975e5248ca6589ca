"""The folder of a run and its branch: commits, what is known, and the store over both."""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NoReturn

import pytest

from sequencer.errors import RemoteUnreachable, StorageFailed, UnsafeFolder, WorkTreeRefused
from sequencer.model import command_rules as decisions
from sequencer.model import transitions
from sequencer.model.head import Head
from sequencer.model.transitions import Transition
from sequencer.plugins.git import process as command
from sequencer.plugins.git.state import replica as module
from sequencer.plugins.git.state.branch import Branch, PendingPush
from sequencer.plugins.git.state.remote import Pushed, PushVerdict, RefMove
from sequencer.plugins.git.state.replica import KnownFile, LastSeenCommit, Replica
from sequencer.plugins.git.state.store import GitOptions, GitStore
from sequencer.project.store_requests import EVERYTHING
from sequencer.store import results
from sequencer.store.leases import Leases
from sequencer.store.protocol import Liveness, ReportsWaiting
from tests.clones import Shared, git
from tests.contract import store_cases as cases
from tests.unit.git import remotes

BRANCH, AT = "sequencer/default", "2026-01-01T00:00:00Z"
KNOWN = LastSeenCommit(remote="origin", branch=BRANCH, tip="a" * 40, revision=3, at=AT)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "{}",
        json.dumps({"remote": "o", "branch": "b", "tip": "../x", "revision": 1, "at": ""}),
        json.dumps({"remote": "o", "branch": "b", "tip": "a" * 40, "revision": "1", "at": ""}),
        json.dumps({"remote": "o", "branch": "b", "tip": 7, "revision": 1, "at": ""}),
        json.dumps({"remote": "o" * 9000, "branch": "b", "tip": "a" * 40, "revision": 1, "at": ""}),
    ],
)
def test_an_unreadable_file_means_nothing_is_known(tmp_path: Path, content: str) -> None:
    path = tmp_path / "remote.json"
    path.write_text(content)
    assert KnownFile(path).read() is None


def test_a_file_that_cannot_be_written_is_not_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    KnownFile(tmp_path / "file" / "remote.json").write(KNOWN)


BRANCH_DRAFTING = "sequencer/default"


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Shared]:
    made = Shared(tmp_path)
    yield made
    made.close()


def files(shared: Shared) -> dict[str, str]:
    """Return what the branch holds: paths and git's names for their contents."""
    listed = git(shared.bare, "ls-tree", "-r", BRANCH_DRAFTING).splitlines()
    return {line.split("\t")[1]: line.split()[2] for line in listed}


def step(store: GitStore, note: str = "") -> Head:
    return cases.commit(store, cases.claim(store).token, note)


def test_documents_are_pushed_when_they_change_and_dropped_when_forgotten(
    shared: Shared,
) -> None:
    store, other = shared.store("a"), shared.store("b")

    def begin(head: Head | None) -> Transition | None:
        store.keep_document("definition.json", b"{}")
        store.keep_document("marking-0a.json", b"[]")
        return None if head else transitions.initialize(cases.new_head())

    store.update(begin)
    names = {"state.json", "journal.jsonl", "definition.json", "marking-0a.json"}
    assert set(files(shared)) == names
    before = files(shared)["definition.json"]
    step(store)
    assert files(shared)["definition.json"] == before
    assert other.view().head is not None
    assert other.read_document("marking-0a.json") == b"[]"

    def forget(head: Head | None) -> Transition:
        store.forget_documents("marking-", ())
        store.keep_document("definition.json", b'{"a": 1}')
        assert head is not None
        return cases.claiming(store, head)

    store.update(forget)
    assert set(files(shared)) == names - {"marking-0a.json"}
    assert other.pull()
    assert other.read_document("marking-0a.json") is None
    assert other.read_document("definition.json") == b'{"a": 1}'


def test_outputs_travel_with_the_step_that_made_them(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = shared.store("a"), shared.store("b")
    cases.begin(store)
    held = cases.claim(store)
    output = store.result_folder(0, held.token) / "output.txt"
    output.parent.mkdir(parents=True)
    output.write_bytes(b"x" * 5000)
    (output.parent / "session.json").write_text("this machine's")
    cases.commit(store, held.token)
    kept = output.parent.name
    assert {f"results/{kept}/output.txt"} == set(files(shared)) - {"state.json", "journal.jsonl"}
    other.pull()
    assert (other.find_result_folder(kept) / "output.txt").read_bytes() == b"x" * 5000
    monkeypatch.setattr(module, "MAX_OUTPUT_BYTES", 100)
    held = cases.claim(store)
    large = store.result_folder(1, held.token) / "output.txt"
    large.parent.mkdir(parents=True)
    large.write_bytes(b"x" * 101)
    cases.commit(store, held.token)
    assert f"results/{large.parent.name}/output.txt" not in files(shared)
    assert "more than 100 bytes: other machines do not get it" in store.take_notices()[0]
    assert store.take_notices() == []


def test_the_journal_is_rotated_on_both_sides(shared: Shared) -> None:
    store = shared.store("a", rotate_bytes=3_000, keep=2)
    other = shared.store("b")
    cases.begin(store)
    for _ in range(6):
        step(store, "n" * 400)
        assert other.pull()
    aside = {name for name in files(shared) if name.startswith("journal-")}
    assert len(aside) == 2
    folders = [shared.clone(name) / "sync" for name in "ab"]
    there = [{p.name: p.read_bytes() for p in f.glob("journal*")} for f in folders]
    assert there[0] == there[1]
    assert set(there[1]) == aside | {"journal.jsonl"}
    assert step(other, "and on").step_index == 7
    assert store.pull()
    assert store.view().head == other.view().head


def test_nothing_is_pulled_through_a_link(shared: Shared, tmp_path: Path) -> None:
    store, other = shared.store("a"), shared.store("b")
    cases.begin(store)
    other.pull()
    held, outside = cases.claim(store), tmp_path / "outside"
    results.write_output(store.result_folder(0, held.token), b"x" * 5000)
    cases.commit(store, held.token)
    outside.mkdir()
    place = shared.clone("b") / "sync" / "results"
    place.symlink_to(outside)
    with pytest.raises(UnsafeFolder, match="results: is a link"):
        other.pull()
    assert not list(outside.iterdir())
    place.unlink()
    place.parent.rename(tmp_path / "aside")
    place.parent.symlink_to(tmp_path / "aside")
    with pytest.raises(UnsafeFolder, match="sync: is a link"):
        shared.store("b").pull()


def stamp(head: Head | None) -> Transition:
    assert head is not None
    following = cases.place_at(head.step_index + 1)
    return decisions.stamp_ok(head, following, None, at=cases.now())


def lose_one_answer(store: GitStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the next push be accepted without an answer, and the remote be away for a while."""
    remote = store.branch.remote
    push = remote.push

    def lost(moves: list[RefMove]) -> Pushed:
        monkeypatch.undo()
        assert push(moves).verdict is PushVerdict.ACCEPTED
        failure = RemoteUnreachable("the line is dead")
        monkeypatch.setattr(remote, "list_tips", lambda _: (_ for _ in ()).throw(failure))
        return Pushed(PushVerdict.UNKNOWN, "dead", failure)

    monkeypatch.setattr(remote, "push", lost)


@pytest.mark.parametrize(("most", "others"), [(1, 0), (1, 3), (2, 1), (3, 3), (2000, 1)])
def test_a_lost_answer_is_resolved_however_short_the_history_is(
    shared: Shared, monkeypatch: pytest.MonkeyPatch, most: int, others: int
) -> None:
    one, two = shared.store("a", max_commits=most), shared.store("b", max_commits=most)
    cases.begin(one)
    lose_one_answer(one, monkeypatch)
    with pytest.raises(RemoteUnreachable, match="the line is dead"):
        one.update(stamp)
    monkeypatch.undo()
    for _ in range(others):
        two.update(stamp)
    one.update(stamp)
    one.pull()
    head = one.view().head
    assert head is not None
    assert head.step_index == 1 + others, "what was accepted once is not done twice"


def test_code_that_was_pushed_part_of_the_way_is_fast_forwarded(
    shared: Shared, tmp_path: Path
) -> None:
    del tmp_path
    store = shared.store("a")
    clone = shared.clone("a")
    cases.begin(store)
    commits = [remotes.git(clone, "rev-parse", "HEAD")]
    for number in range(3):
        remotes.git(clone, "commit", "-q", "--allow-empty", "-m", str(number))
        commits.append(remotes.git(clone, "rev-parse", "HEAD"))
    remotes.git(clone, "push", "-q", "origin", f"{commits[2]}:refs/heads/main")
    store.branch.carried = {"refs/heads/main": "refs/x"}
    store.branch.code_move = RefMove("refs/heads/main", commits[0], commits[3])

    def with_work(head: Head | None) -> Transition:
        made = stamp(head)
        work = {"branch": "main", "commit": commits[3]}
        return Transition(Head.model_validate({**made.head.model_dump(), "work": work}), made.facts)

    store.update(with_work)
    assert remotes.tip(shared.bare, "refs/heads/main") == commits[3]
    assert store.branch.code_move is None


def test_state_migrated_by_another_clone_is_replaced_here_too(shared: Shared) -> None:
    """Both have the same file of another program; only one of them changes the run."""
    stores = []
    for name in ("a", "b"):
        clone = shared.clone(name)
        path = clone / "sync" / "state.json"
        path.parent.mkdir()
        path.write_text('{"iteration": 7, "expected_actor": "galph", "status": "waiting-galph"}\n')
        stores.append(
            GitStore(
                path,
                clone,
                None,
                GitOptions(),
                lambda _: cases.new_head(step_index=12),
                allowed=EVERYTHING,
            )
        )
    one, two = stores
    assert one.update(stamp).step_index == 13
    assert two.pull()
    there = [(shared.clone(name) / "sync" / "state.json").read_bytes() for name in ("a", "b")]
    assert there[0] == there[1]
    assert two.view().head == one.view().head
    for store in stores:
        store.close()


def full(*_args: Any, **_more: Any) -> NoReturn:
    raise OSError(errno.ENOSPC, "No space left on device", "/full/journal.jsonl")


def behind(shared: Shared) -> GitStore:
    """Return a store of a clone that has one transition still to follow."""
    cases.begin(shared.store("a"))
    store = shared.store("b")
    assert store.pull()
    cases.claim(shared.store("a"))
    return store


def over_ssh(shared: Shared, name: str) -> None:
    """Let the clone *name* reach its remote as if that were another machine's."""
    clone = shared.clone(name)
    git(clone, "remote", "set-url", "origin", f"ssh://host{shared.bare}")
    git(clone, "config", "core.sshCommand", "sh -c 'eval \"$2\"' -")
    git(clone, "config", "ssh.variant", "simple")


# --- a full disk -----------------------------------------------------------------------


def test_a_full_disk_is_reported_as_such(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    store = behind(shared)
    with monkeypatch.context() as broken:
        broken.setattr(Replica, "follow", full)
        for act in (store.pull, lambda: store.wait(1, 5.0)):
            with pytest.raises(StorageFailed, match="can't be written: No space") as failed:
                act()
            assert failed.value.where == "/full/journal.jsonl"
            assert "free some" in (failed.value.hint or "")
            assert not isinstance(failed.value, RemoteUnreachable)
    assert store.pull(), "and goes on when there is room"


def test_local_state_can_be_read_with_a_full_disk(
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


def test_beats_that_cannot_be_written_locally_are_reported(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = shared.store("a")
    cases.begin(holder)
    held = cases.claim(holder)
    holder.beat(held, 1)
    over_ssh(shared, "b")
    waiting = shared.store("b")
    waiting.pull()
    monkeypatch.setattr(Leases, "write_beat", full)
    with pytest.raises(StorageFailed, match="No space left"):
        waiting.wait(2, 2.0)


# --- what has been followed ------------------------------------------------------------


def test_a_look_that_could_not_be_followed_is_not_counted(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = behind(shared)
    looks, contact = store.branch.looks, store.branch.contact_at
    monkeypatch.setattr(Replica, "follow", full)
    with pytest.raises(StorageFailed):
        store.pull()
    assert (store.branch.looks, store.branch.contact_at) == (looks, contact)


# --- being told to stop ----------------------------------------------------------------


def hang(shared: Shared, name: str) -> None:
    """Let the remote of the clone *name* not answer."""
    clone = shared.clone(name)
    git(clone, "remote", "set-url", "origin", "ssh://host/nowhere")
    git(clone, "config", "core.sshCommand", "sleep 60 #")
    git(clone, "config", "ssh.variant", "simple")


def test_a_stopping_process_does_not_wait_for_a_hanging_remote(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = shared.store("a")
    assert isinstance(store, ReportsWaiting)
    cases.begin(store)
    held = cases.claim(store)
    hang(shared, "a")
    monkeypatch.setattr(command, "STOPPED_S", 0.3)
    store.report_waiting(lambda _: None, lambda: True)
    began = time.monotonic()
    with pytest.raises(RemoteUnreachable, match="no answer in time"):
        cases.commit(store, held.token)
    with pytest.raises(OSError, match="no answer in time"):
        store.beat(held, 1)
    assert store.liveness(held) is not Liveness.EXPIRED
    assert time.monotonic() - began < 10


STATE, CODE = (
    RefMove(f"refs/heads/{name}", old * 40, new * 40) for name, old, new in ("sab", "mcd")
)
TIPS = {move.ref: str(move.old) for move in (STATE, CODE)}


def unasked(tmp_path: Path) -> Branch:
    """Return the branch of a run that asks no remote."""
    return GitStore(tmp_path / "sync" / "state.json", tmp_path, None, GitOptions()).branch


@pytest.mark.parametrize(("told", "is_last"), [("cannot lock ref", False), ("no Mondays", True)])
def test_a_refusal_of_code_is_either_temporary_or_final(
    tmp_path: Path, told: str, is_last: bool
) -> None:
    pushed = Pushed(PushVerdict.REFUSED, told, refused={CODE.ref: told})
    refusal = pytest.raises(WorkTreeRefused, match="does not accept pushes: no Mondays")
    with refusal if is_last else nullcontext():
        unasked(tmp_path).ensure_may_pass(pushed, [STATE, CODE], TIPS)


def test_a_refused_push_may_still_be_in_doubt(tmp_path: Path) -> None:
    branch, pushed = unasked(tmp_path), Pushed(PushVerdict.REFUSED, "cannot lock ref")
    assert isinstance(branch.push_error(pushed, TIPS), StorageFailed)
    branch.doubts.append(PendingPush("b" * 40, b"line\n", (STATE,)))
    found = branch.push_error(pushed, TIPS | {branch.refs.state: "a" * 40})
    assert isinstance(found, RemoteUnreachable)


class Messages:
    """Objects whose only commit has the message *text*."""

    def __init__(self, text: str) -> None:
        self._text = text

    def read(self, name: str, kind: str) -> bytes:
        del name, kind
        return f"tree 0\n\n{self._text}\n".encode()


@pytest.mark.parametrize(
    ("text", "depth"),
    [("Depth: 7", 7), ("Depth: " + "9" * 5000, 0), ("Depth: x\nDepth: 3", 3), ("nothing", 0)],
)
def test_a_depth_that_no_history_has_counts_as_none(text: str, depth: int) -> None:
    objects: Any = Messages(text)
    assert module.read_depth(objects, "tip") == depth
