"""A push without an answer, and then refusals: what was accepted is looked at, not guessed."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

import pytest

from sequencer import Head, Transition
from sequencer.errors import RemoteRefused, RemoteUnreachable, StaleClaim, WorkTreeRefused
from sequencer.plugins.git.state.branch import REBUILDS, PendingPush
from sequencer.plugins.git.state.remote import RefMove
from sequencer.plugins.git.state.store import GitStore
from tests.clones import Shared, git
from tests.contract import store_cases as cases
from tests.git.test_code_and_state import MAIN, declining, worked
from tests.git.transports import Deed, Server
from tests.git.turns import accepted_in

STATE = "refs/heads/sequencer/default"
ATOMIC = "receive.advertiseAtomic"


def ending() -> Callable[[Head | None], Transition]:
    return cases.on_run(partial(cases.succeeding, token=1))


def test_a_refusal_is_not_final_while_an_earlier_push_may_land(
    held: tuple[Shared, GitStore, Server],
) -> None:
    shared, ours, server = held
    before = shared.tip()
    # The first one is past the rules and waits; the second one meets them.
    hook, change = declining(shared.bare, STATE), ending()
    with pytest.raises(
        RemoteUnreachable, match="can't tell whether the change was accepted: an earlier push"
    ) as told:
        ours.update(change)
    assert "hook declined" in told.value.message
    assert "store.branch" in str(told.value.hint)
    assert shared.tip() == before
    with pytest.raises(RemoteUnreachable, match="may still arrive"):
        ours.update(change)
    hook.unlink()
    server.release()
    assert ours.update(change).step_index == 1
    assert accepted_in(ours) == [(0, 1)]


def test_the_same_push_is_repeated_once_the_rules_allow_it(
    held: tuple[Shared, GitStore, Server],
) -> None:
    shared, ours, server = held
    hook, change = declining(shared.bare, STATE), ending()
    with pytest.raises(RemoteUnreachable, match="an earlier push"):
        ours.update(change)
    hook.unlink()
    assert ours.update(change).step_index == 1
    tip = shared.tip()
    server.release()
    assert (shared.tip(), accepted_in(ours)) == (tip, [(0, 1)])


def test_a_refusal_without_an_earlier_push_is_final(shared: Shared) -> None:
    ours = shared.store("ours")
    cases.begin(ours)
    cases.claim(ours)
    declining(shared.bare, STATE)
    with pytest.raises(RemoteRefused, match="does not accept the state"):
        ours.update(ending())


def test_a_push_that_landed_is_found_despite_a_later_refusal(
    held: tuple[Shared, GitStore, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, ours, server = held
    push, pushes = ours.branch.remote.push, list[int]()

    def landing(*moves: object) -> object:
        pushes.append(1)
        if len(pushes) == 2:
            declining(shared.bare, STATE)
        found = push(*moves)  # type: ignore[arg-type]
        if len(pushes) == 2:
            (shared.bare / "hooks" / "update").unlink()
            server.release()
        return found

    monkeypatch.setattr(ours.branch.remote, "push", landing)
    assert ours.update(ending()).step_index == 1
    assert (len(pushes), accepted_in(ours)) == (2, [(0, 1)])


def test_another_clones_turn_ends_the_doubt(held: tuple[Shared, GitStore, Server]) -> None:
    shared, ours, server = held
    hook, change = declining(shared.bare, STATE), ending()
    with pytest.raises(RemoteUnreachable, match="an earlier push"):
        ours.update(change)
    hook.unlink()
    theirs = shared.store("theirs")
    cases.release(theirs, 1)
    token = cases.claim(theirs).token
    declining(shared.bare, STATE)
    # Its lease names a commit at which the branch is no more.
    server.release()
    with pytest.raises(StaleClaim):
        ours.update(change)
    (shared.bare / "hooks" / "update").unlink()
    cases.commit(theirs, token)
    assert accepted_in(theirs) == [(0, token)]


def held_with_code(shared: Shared) -> tuple[GitStore, Callable[[Head | None], Transition], Server]:
    store, change, _ = worked(shared, "ours")
    store.branch.carried[MAIN] = "refs/worktree/sequencer-work/main"
    server = Server(shared.folder.parent / "server", [Deed.HELD])
    server.install(shared.clone("ours"))
    return store, change, server


def test_a_refusal_of_code_is_not_final_while_an_earlier_push_may_land(shared: Shared) -> None:
    store, change, server = held_with_code(shared)
    hook = declining(shared.bare, MAIN)
    with pytest.raises(RemoteUnreachable, match="an earlier push of it got no answer"):
        store.update(change)
    hook.unlink()
    server.release()
    assert store.update(change).step_index == 1
    assert shared.tip("main") == git(shared.clone("ours"), "rev-parse", "HEAD")
    assert accepted_in(store) == [(0, 1)]


def test_code_moved_on_the_remote_ends_the_doubt(shared: Shared) -> None:
    store, change, server = held_with_code(shared)
    first = shared.clone("first")
    git(first, "commit", "-q", "--allow-empty", "-m", "somebody else's")
    git(first, "push", "-q", "origin", "main")
    theirs = shared.tip("main")
    with pytest.raises(WorkTreeRefused, match="was moved on the remote"):
        store.update(change)
    server.release()
    assert (shared.tip("main"), accepted_in(store)) == (theirs, [])


def test_a_remote_that_lost_atomic_push_leaves_the_doubt(shared: Shared) -> None:
    store, change, server = held_with_code(shared)
    push, pushes = store.branch.remote.push, list[int]()

    def without_atomic(*moves: object) -> object:
        pushes.append(1)
        if len(pushes) == 2:
            git(shared.bare, "config", ATOMIC, "false")
        return push(*moves)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store.branch.remote, "push", without_atomic)
        with pytest.raises(RemoteUnreachable, match="can't move several branches at once"):
            store.update(change)
    git(shared.bare, "config", ATOMIC, "true")
    store.branch.remote.is_atomic = True
    server.release()
    assert store.update(change).step_index == 1
    assert accepted_in(store) == [(0, 1)]


def test_an_earlier_edit_is_not_mistaken_for_the_change_after_it(
    held: tuple[Shared, GitStore, Server],
) -> None:
    shared, ours, server = held
    path = shared.clone("ours") / "sync" / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "exit": True}))
    deeds = [Deed.HELD, *[Deed.CUT_BEFORE] * (REBUILDS - 1)]
    Server(server.folder, deeds).install(shared.clone("ours"))
    change = ending()
    with pytest.raises(RemoteUnreachable, match="can't tell whether"):
        ours.update(change)
    assert [pending.is_of_change for pending in ours.branch.doubts] == [False]
    server.release()
    head = ours.update(change)
    assert (head.step_index, head.claims, accepted_in(ours)) == (1, (), [(0, 1)])


def test_a_push_may_land_only_while_all_its_refs_are_unchanged() -> None:
    moves = (RefMove(STATE, "a", "b"), RefMove(MAIN, None, "c"))
    pending = PendingPush("b", b"", moves)
    assert pending.may_land({STATE: "a"}, (STATE, MAIN))
    assert not pending.may_land({STATE: "a", MAIN: "d"}, (STATE, MAIN))
    assert not pending.may_land({}, (STATE,))
    # What nobody has looked at says nothing.
    assert pending.may_land({STATE: "a", MAIN: "d"}, (STATE,))
