"""Heartbeats through a real remote: who sees which, and what is lost."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sequencer.git import beats as module
from sequencer.git.remote import Pushed, PushVerdict, RefMove, Remote
from sequencer.store.protocol import Liveness
from tests.contract.store_cases import make_claim
from tests.unit.git import remotes
from tests.unit.git.beating import Lab

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
    assert two.bring(lab.tip(), [claim])
    assert (lab.clone("two") / "sync/beats/7").read_bytes() == own.read_bytes()
    assert not two.bring(lab.tip(), [claim])


def test_workers_that_beat_at_once_all_get_through(lab: Lab) -> None:
    failed: list[OSError] = []
    workers = {token: lab.worker(f"clone-{token % 3}") for token in range(1, 6)}

    def work(token: int) -> None:
        for number in range(1, 4):
            try:
                workers[token].beat(make_claim(token), number, set(workers))
            except OSError as error:
                failed.append(error)

    threads = [threading.Thread(target=work, args=(token,)) for token in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert lab.there() == {str(token): 3 for token in workers}
    assert lab.depth() == 15


def test_what_stands_no_more_is_dropped_and_what_is_newer_stays(lab: Lab) -> None:
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


def test_what_is_no_commit_is_replaced(lab: Lab) -> None:
    clone = lab.clone("one")
    blob = remotes.git(clone, "hash-object", "-w", "--stdin", stdin=b"x")
    # Git itself refuses that for a branch; whoever writes files there needs no leave.
    git_dir = lab.remote
    assert remotes.git(git_dir, "hash-object", "-w", "--stdin", stdin=b"x") == blob
    (git_dir / "refs/heads/sequencer-beats").mkdir()
    (git_dir / "refs/heads/sequencer-beats/default").write_text(f"{blob}\n")
    one = lab.worker("one")
    assert not one.bring(blob, [make_claim(1)])
    one.beat(make_claim(1), 1, {1})
    assert lab.there() == {"1": 1}


# --- a remote that fails ---------------------------------------------------------------


def test_an_acknowledgement_that_is_lost_is_found_out(lab: Lab) -> None:
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


def test_a_remote_that_refuses_says_why(lab: Lab) -> None:
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


def test_a_run_that_is_over_leaves_no_ref(lab: Lab) -> None:
    one, two = lab.worker("one"), lab.worker("two")
    assert one.retire()
    one.beat(make_claim(1), 1, {1})
    two.beat(make_claim(2), 1, {1, 2})
    assert one.retire()
    assert lab.tip() is None
    assert not one.bring(None, [make_claim(2)])
    # A run that goes on after all begins again, also where the old ref is still known.
    two.beat(make_claim(2), 2, {2})
    assert lab.there() == {"2": 2}
    remotes.git(lab.remote, "config", "receive.denyDeletes", "true")
    assert not one.retire()
    shutil.rmtree(lab.remote)
    assert not one.retire()


def test_a_beat_that_is_under_way_when_the_ref_is_removed_does_not_bring_it_back(
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
    with pytest.raises(OSError, match="the run is over"):
        one.beat(claim, 2, {1})
    assert retired == [True]
    assert lab.tip() is None
    # What is begun in its place may beat.
    one.beat(claim, 3, {1})
    assert lab.there() == {"1": 3}
