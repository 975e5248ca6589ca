"""What a clone concludes from where the branch is, in the corners that races seldom reach."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sequencer.errors import RemoteUnreachable
from sequencer.git.own_settings import EVERYTHING
from sequencer.git.remote import Pushed, PushVerdict, RefMove
from sequencer.git.store import GitOptions, GitStore, open_git_store
from sequencer.model import by_hand as decisions
from sequencer.model.head import Head
from sequencer.model.transitions import Transition
from tests.clones import Shared
from tests.contract import store_cases as cases
from tests.unit.git import remotes


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Shared]:
    made = Shared(tmp_path)
    yield made
    made.close()


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
        monkeypatch.setattr(remote, "tips", lambda _: (_ for _ in ()).throw(failure))
        return Pushed(PushVerdict.UNKNOWN, "dead", failure)

    monkeypatch.setattr(remote, "push", lost)


@pytest.mark.parametrize("most", [1, 2, 3, 2000])
@pytest.mark.parametrize("others", [0, 1, 3])
def test_a_lost_answer_is_found_out_however_short_the_history(
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
    one.bring()
    head = one.view().head
    assert head is not None
    assert head.step_index == 1 + others, "what was accepted once is not done twice"


def test_two_that_decide_the_same_are_two(shared: Shared) -> None:
    one, two = shared.store("a"), shared.store("b")
    cases.begin(one)
    two.bring()
    assert one.update(stamp).step_index == 1
    assert two.update(stamp).step_index == 2
    lines = (shared.clone("b") / "sync" / "journal.jsonl").read_bytes().splitlines()
    assert len(set(lines)) == 3
    assert "writing" not in next(iter(two.history())), "it is nothing that has happened"


def test_code_that_somebody_pushed_on_the_way_is_passed(shared: Shared, tmp_path: Path) -> None:
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
    store.branch.cargo = RefMove("refs/heads/main", commits[0], commits[3])

    def with_work(head: Head | None) -> Transition:
        made = stamp(head)
        work = {"branch": "main", "commit": commits[3]}
        return Transition(Head.model_validate({**made.head.model_dump(), "work": work}), made.facts)

    store.update(with_work)
    assert remotes.tip(shared.bare, "refs/heads/main") == commits[3]
    assert store.branch.cargo is None


def test_what_another_clone_has_migrated_is_replaced_here_too(shared: Shared) -> None:
    """Both have the same file of another program; only one of them changes the run."""
    stores = []
    for name in ("a", "b"):
        clone = shared.clone(name)
        path = clone / "sync" / "state.json"
        path.parent.mkdir()
        path.write_text('{"iteration": 7, "expected_actor": "galph", "status": "waiting-galph"}\n')
        stores.append(
            open_git_store(
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
    assert two.bring()
    there = [(shared.clone(name) / "sync" / "state.json").read_bytes() for name in ("a", "b")]
    assert there[0] == there[1]
    assert two.view().head == one.view().head
    for store in stores:
        store.close()
