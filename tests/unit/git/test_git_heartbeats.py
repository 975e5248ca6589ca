"""Heartbeats through a remote, from both sides."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sequencer.errors import RemoteUnreachable, StorageFailed
from sequencer.plugins.git.process import GitFailed
from sequencer.plugins.git.state import heartbeats as module
from sequencer.plugins.git.state.heartbeats import confirm_expiry
from sequencer.plugins.git.state.objects import CommitDraft, Objects
from sequencer.plugins.git.state.remote import Pushed, PushVerdict, RefMove, Remote
from sequencer.store import identity, leases
from sequencer.store.protocol import Liveness
from tests.contract.store_cases import make_claim
from tests.unit.git import remotes
from tests.unit.git.beating import Lab, here

ALIVE, UNKNOWN, EXPIRED, DEAD = Liveness


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path)
    yield made
    made.close()


# --- beating ---------------------------------------------------------------------------


def test_a_beat_reaches_another_clone_byte_for_byte(lab: Lab) -> None:
    one, two, claim = lab.worker("one"), lab.worker("two"), make_claim(7)
    one.beat(claim, 3, {7})
    own = lab.clone("one") / "sync/beats/7"
    assert json.loads(own.read_text())["beat"] == 3
    assert two.fetch_beats(lab.tip(), [claim])
    assert (lab.clone("two") / "sync/beats/7").read_bytes() == own.read_bytes()
    assert not two.fetch_beats(lab.tip(), [claim])


def test_outdated_beats_are_dropped_and_newer_ones_stay(lab: Lab) -> None:
    clone = lab.clone("one")
    names = {"3": b"{}", "9": b"{}", "04": b"{}", "x\n\"y\\'": b"", "a\xff": b"", "\u0663": b""}
    remotes.push(clone, remotes.commit(clone, names), remotes.BEATS)
    # The holder of 9 has claimed after this worker looked at the head for the last time.
    lab.worker("one").beat(make_claim(5), 1, {2, 5})
    assert sorted(remotes.files(lab.remote, remotes.BEATS)) == ["5", "9"]


def test_the_history_is_bounded(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_DEPTH", 3)
    one, two = lab.worker("one"), lab.worker("two")
    two.beat(make_claim(2), 1, {1, 2})
    depths = []
    for number in range(1, 8):
        one.beat(make_claim(1), number, {1, 2})
        depths.append(lab.depth())
    assert depths == [2, 3, 1, 2, 3, 1, 2]
    assert lab.there() == {"1": 7, "2": 1}
    two.beat(make_claim(2), 2, {1, 2})
    assert lab.there() == {"1": 7, "2": 2}


def test_a_ref_that_is_not_a_commit_is_replaced(lab: Lab) -> None:
    clone = lab.clone("one")
    blob = remotes.git(clone, "hash-object", "-w", "--stdin", stdin=b"x")
    # Git itself refuses that for a branch; whoever writes files there needs no leave.
    git_dir = lab.remote
    assert remotes.git(git_dir, "hash-object", "-w", "--stdin", stdin=b"x") == blob
    (git_dir / "refs/heads/sequencer-beats").mkdir()
    (git_dir / "refs/heads/sequencer-beats/default").write_text(f"{blob}\n")
    one = lab.worker("one")
    assert not one.fetch_beats(blob, [make_claim(1)])
    one.beat(make_claim(1), 1, {1})
    assert lab.there() == {"1": 1}


# --- a remote that fails ---------------------------------------------------------------


def test_a_lost_acknowledgment_is_detected(lab: Lab) -> None:
    remotes.lose_acknowledgements(lab.remote)
    one = lab.worker("one")
    lost = one._pushing.push(
        [RefMove("refs/heads/probe", None, remotes.commit(lab.clone("one"), {}))]
    )
    assert lost.verdict is PushVerdict.UNKNOWN
    for number in range(1, 4):
        one.beat(make_claim(1), number, {1})
    assert lab.there() == {"1": 3}
    assert lab.depth() == 3


def test_an_accepted_beat_under_another_one_is_not_sent_again(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, pushes = lab.worker("one"), lab.worker("two"), []
    real = Remote.push

    def lose(remote: Remote, moves: list[RefMove]) -> Pushed:
        pushed = real(remote, moves)
        if remote is not one._pushing:
            return pushed
        pushes.append(pushed)
        two.beat(make_claim(2), 1, {1, 2})
        return Pushed(PushVerdict.UNKNOWN, "the line is dead")

    monkeypatch.setattr(Remote, "push", lose)
    one.beat(make_claim(1), 1, {1, 2})
    assert len(pushes) == 1
    assert lab.there() == {"1": 1, "2": 1}


def test_a_refused_push_is_reported_with_its_reason(lab: Lab) -> None:
    remotes.add_hook(lab.remote, "pre-receive", "exit 1")
    with pytest.raises(OSError, match=r"5 pushes were refused.*pre-receive hook declined"):
        lab.worker("one").beat(make_claim(1), 1, {1})
    assert lab.tip() is None


@pytest.mark.parametrize(("ttl_s", "limit_s"), [(7.5, 1.5), (0.5, 1.0)])
def test_a_beat_takes_a_share_of_its_lease_at_most(ttl_s: float, limit_s: float, lab: Lab) -> None:
    remotes.add_hook(lab.remote, "pre-receive", "sleep 30")
    one, started = lab.worker("one"), time.monotonic()
    with pytest.raises(OSError, match=r"in time|no time"):
        one.beat(make_claim(1, ttl_s=ttl_s), 1, {1})
    assert limit_s - 0.1 < time.monotonic() - started < limit_s + 5.0
    assert one._remote.git.timeout_s == 20.0


def test_a_beat_that_cannot_be_written_here_is_not_sent(lab: Lab) -> None:
    one = lab.worker("one")
    (lab.clone("one") / "sync").write_text("no folder")
    with pytest.raises(OSError, match=r"exists|Not a directory"):
        one.beat(make_claim(1), 1, {1})
    assert lab.tip() is None


def test_a_finished_run_leaves_no_ref(lab: Lab) -> None:
    one, two = lab.worker("one"), lab.worker("two")
    assert one.retire()
    one.beat(make_claim(1), 1, {1})
    two.beat(make_claim(2), 1, {1, 2})
    assert one.retire()
    assert lab.tip() is None
    assert not one.fetch_beats(None, [make_claim(2)])
    # A run that goes on after all begins again, also where the old ref is still known.
    two.beat(make_claim(2), 2, {2})
    assert lab.there() == {"2": 2}
    remotes.git(lab.remote, "config", "receive.denyDeletes", "true")
    assert not one.retire()
    shutil.rmtree(lab.remote)
    assert not one.retire()


def test_a_beat_in_flight_does_not_restore_a_removed_ref(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, claim = lab.worker("one"), make_claim(1)
    one.beat(claim, 1, {1})
    push, retired = one._pushing.push, list[bool]()

    def overtaken(*moves: object) -> object:
        if not retired:
            retired.append(one.retire())
        return push(*moves)  # type: ignore[arg-type]

    monkeypatch.setattr(one._pushing, "push", overtaken)
    with pytest.raises(OSError, match="the run has ended"):
        one.beat(claim, 2, {1})
    assert retired == [True]
    assert lab.tip() is None
    # What is begun in its place may beat.
    one.beat(claim, 3, {1})
    assert lab.there() == {"1": 3}


# --- bringing --------------------------------------------------------------------------


def test_a_newer_beat_of_the_same_clone_is_not_overwritten(lab: Lab) -> None:
    one, claim = lab.worker("one"), here()
    one.beat(claim, 1, {1})
    sent = lab.tip()
    one._leases.beat(claim, 2)
    newer = (lab.clone("one") / "sync/beats/1").read_bytes()
    # Another process of the same clone brings what the remote has, which is older.
    assert not lab.worker("one").fetch_beats(sent, [claim])
    assert (lab.clone("one") / "sync/beats/1").read_bytes() == newer


def test_a_token_granted_again_is_judged_by_its_new_beat(lab: Lab) -> None:
    """A lost run that was begun anew counts its tokens, and its beats, from the start."""
    two, claim = lab.worker("two"), make_claim(1)
    two._leases.beat(claim, 70)
    lab.worker("one").beat(claim, 1, {1})
    assert two.fetch_beats(lab.tip(), [claim])
    assert two._leases.read(1)["beat"] == 1


GOOD = b'{"beat": 1, "deadline_boottime": 5.0}'
HOSTILE: dict[str, bytes] = {
    "empty": b"",
    "not JSON": b"{",
    "no object": b"[1]",
    "too large": GOOD + b" " * 4096,
    "not a number": b'{"beat": 1, "deadline_boottime": NaN}',
    "beyond numbers": b'{"beat": 1, "deadline_boottime": 1e999}',
    "negative": b'{"beat": 1, "deadline_boottime": -1}',
    "text": b'{"beat": 1, "deadline_boottime": "5"}',
    "truth": b'{"beat": true, "deadline_boottime": 5}',
    "true deadline": b'{"beat": 1, "deadline_boottime": true}',
    "negative beat": b'{"beat": -1, "deadline_boottime": 5}',
    "huge beat": b'{"beat": 9223372036854775808, "deadline_boottime": 5}',
    "twice": b'{"beat": 1, "beat": 2, "deadline_boottime": 5}',
    "half": b'{"beat": 1}',
    "not UTF-8": b'{"beat": 1, "deadline_boottime": 5, "x": "\xff"}',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_invalid_beats_are_not_fetched(name: str, lab: Lab) -> None:
    clone, claim = lab.clone("one"), make_claim(1)
    remotes.push(clone, remotes.commit(clone, {"1": HOSTILE[name]}), remotes.BEATS)
    assert not lab.worker("two").fetch_beats(lab.tip(), [claim])
    assert not (lab.clone("two") / "sync").exists()


@pytest.mark.parametrize("mode", ["120000 blob", "040000 tree", "160000 commit"])
def test_links_folders_and_submodules_are_not_beats(mode: str, lab: Lab) -> None:
    clone, claim = lab.clone("one"), make_claim(1)
    commit = remotes.commit(clone, {"x": GOOD})
    blob = remotes.git(clone, "rev-parse", f"{commit}:x")
    oid = {"blob": blob, "tree": f"{commit}^{{tree}}", "commit": commit}[mode.split()[1]]
    oid = remotes.git(clone, "rev-parse", oid)
    tree = remotes.git(clone, "mktree", stdin=f"{mode} {oid}\t1\n".encode())
    remotes.push(clone, remotes.git(clone, "commit-tree", tree, "-m", "x"), remotes.BEATS)
    assert not lab.worker("two").fetch_beats(lab.tip(), [claim])
    lab.worker("one").beat(claim, 4, {1})
    assert lab.there() == {"1": 4}


def test_a_deadline_beyond_the_lease_is_not_believed(lab: Lab) -> None:
    clone, claim, two = lab.clone("one"), here(), lab.worker("two")
    for ahead, is_believed in ((claim.ttl_s + 30, False), (claim.ttl_s - 1, True)):
        data = b'{"beat": 1, "deadline_boottime": %f}' % (identity.boottime() + ahead)
        remotes.push(clone, remotes.commit(clone, {"1": data}), remotes.BEATS)
        assert two.fetch_beats(lab.tip(), [claim]) is is_believed


def test_fetching_beats_without_the_remote_is_an_error(lab: Lab) -> None:
    one, two, claim = lab.worker("one"), lab.worker("two"), make_claim(1)
    one.beat(claim, 1, {1})
    tip = lab.tip()
    lab.remote.rename(lab.folder / "away.git")
    with pytest.raises(RemoteUnreachable):
        two.fetch_beats(tip, [claim])


def test_a_beat_that_is_too_large_to_read_concludes_nothing(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone, claim = lab.clone("one"), make_claim(1)
    remotes.push(clone, remotes.commit(clone, {"1": b" " * 5000}), remotes.BEATS)
    monkeypatch.setattr("sequencer.plugins.git.state.objects.MAX_OBJECT_BYTES", 4500)
    with pytest.raises(StorageFailed, match=r"heartbeats can't be read: .* has 5000 bytes"):
        lab.worker("two").fetch_beats(lab.tip(), [claim])


# --- what an observer may conclude -----------------------------------------------------


def raising(error: Exception) -> Callable[[], bool]:
    def look() -> bool:
        raise error

    return look


@pytest.mark.parametrize(
    "error", [RemoteUnreachable("away"), StorageFailed("broken"), OSError(28, "no space")]
)
def test_a_failed_fetch_makes_liveness_unknown(error: Exception) -> None:
    assert confirm_expiry(EXPIRED, raising(error), lambda: EXPIRED) is UNKNOWN


def test_an_observer_that_was_cut_off_does_not_steal(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_000.0
    monkeypatch.setattr(leases, "boottime", lambda: now)
    holder, observer, claim = lab.worker("one"), lab.worker("two"), make_claim(1)

    def look() -> bool:
        return observer.fetch_beats(
            observer._remote.list_tips([remotes.BEATS]).get(remotes.BEATS), [claim]
        )

    def judge() -> Liveness:
        first = observer._leases.liveness(claim)
        return confirm_expiry(first, look, lambda: observer._leases.liveness(claim))

    holder.beat(claim, 1, {1})
    look()
    assert judge() is UNKNOWN
    away = lab.folder / "away.git"
    lab.remote.rename(away)
    now += 1.3 * claim.ttl_s
    assert observer._leases.liveness(claim) is EXPIRED
    assert judge() is UNKNOWN
    away.rename(lab.remote)
    # The holder has gone on beating; the observer only could not see it.
    holder.beat(claim, 2, {1})
    assert judge() is UNKNOWN
    now += 1.3 * claim.ttl_s
    assert judge() is EXPIRED


def test_a_commit_that_cannot_be_written_fails_the_beat(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def fail(objects: Objects, draft: CommitDraft, ref: str) -> str:
        tried.append((objects, draft, ref))
        raise GitFailed(("fast-import",), 1, "fatal: broken")

    monkeypatch.setattr(Objects, "write", fail)
    with pytest.raises(OSError, match="did not reach 'origin': git fast-import ended with 1"):
        lab.worker("one").beat(make_claim(1), 1, {1})
    assert len(tried) == 1
