"""Code and state move together on the remote, or neither of them does; so do doubts about both."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from sequencer.errors import RemoteRefused, RemoteUnreachable, StateRefused, WorkTreeRefused
from sequencer.model.head import Head
from sequencer.model.transitions import Transition
from sequencer.plugins.git.state.branch import REBUILDS, PendingPush
from sequencer.plugins.git.state.remote import RefMove
from sequencer.plugins.git.state.store import GitStore
from tests.clones import Shared, git
from tests.contract import store_cases as cases
from tests.git.servers import declining
from tests.git.tables import table
from tests.git.transports import Deed, Server
from tests.git.turns import accepted_in

MAIN = "refs/heads/main"
STATE = "refs/heads/sequencer/default"
ATOMIC = "receive.advertiseAtomic"


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Shared]:
    """A repository with clones, whose stores are closed in the end."""
    made = Shared(tmp_path / "shared")
    yield made
    made.close()


def ending_with(head: Head, token: int, commit: str) -> Transition:
    """Accept the step of *token*, which has made *commit*."""
    made = cases.succeeding(head, token)
    work = {"branch": "main", "commit": commit}
    return Transition(Head.model_validate({**made.head.model_dump(), "work": work}), made.facts)


def worked(shared: Shared, name: str) -> tuple[GitStore, Callable[[Head | None], Transition], str]:
    """Claim a step in the clone *name* and commit something; return how it is to be accepted."""
    store, clone = shared.store(name), shared.clone(name)
    if store.view().head is None:
        cases.begin(store)
    token, before = cases.claim(store).token, git(clone, "rev-parse", "HEAD")
    (clone / f"made by {name}").write_text("code\n")
    git(clone, "add", ".")
    git(clone, "commit", "-q", "-m", name)
    commit = git(clone, "rev-parse", "HEAD")
    store.branch.code_move = RefMove(MAIN, before, commit)
    return store, cases.on_run(partial(ending_with, token=token, commit=commit)), commit


@pytest.mark.parametrize("ref", [MAIN, STATE])
def test_neither_moves_when_one_is_declined(ref: str, shared: Shared) -> None:
    store, change, commit = worked(shared, "ours")
    before, state = shared.tip("main"), shared.tip()
    hook = declining(shared.bare, ref)
    with pytest.raises(StateRefused):
        store.update(change)
    assert (shared.tip("main"), shared.tip()) == (before, state)
    assert git(shared.clone("ours"), "rev-parse", "HEAD") == commit
    hook.unlink()
    store.branch.code_move = RefMove(MAIN, before, commit)
    store.update(change)
    assert shared.tip("main") == commit
    assert accepted_in(store) == [(0, 1)]


@pytest.mark.parametrize(
    "deed", table((Deed.CUT_AFTER, Deed.CUT_BEFORE, Deed.HELD), Deed.CUT_AFTER, Deed.HELD)
)
def test_a_lost_answer_is_resolved_for_both(deed: Deed, shared: Shared) -> None:
    store, change, commit = worked(shared, "ours")
    server = Server(shared.folder.parent / "server", [Deed(deed)])
    server.install(shared.clone("ours"))
    assert store.update(change).step_index == 1
    server.release()
    assert shared.tip("main") == commit
    assert store.branch.code_move is None
    assert accepted_in(store) == [(0, 1)]


def test_a_remote_without_atomic_push_takes_no_code(shared: Shared) -> None:
    git(shared.bare, "config", "receive.advertiseAtomic", "false")
    store, change, _ = worked(shared, "ours")
    before, state = shared.tip("main"), shared.tip()
    with pytest.raises(RemoteRefused, match="can't move several branches at once") as told:
        store.update(change)
    assert "store.work" in str(told.value.hint)
    assert (shared.tip("main"), shared.tip()) == (before, state)


# --- a push without an answer, and then a refusal -----------------------------------------


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


def test_an_earlier_edit_is_not_mistaken_for_the_change_after_it(shared: Shared) -> None:
    ours, server = shared.store("ours"), Server(shared.folder.parent / "server")
    cases.begin(ours)
    token = cases.claim(ours).token
    path = shared.clone("ours") / "sync" / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "exit": True}))
    deeds = [Deed.HELD, *[Deed.CUT_BEFORE] * (REBUILDS - 1)]
    Server(server.folder, deeds).install(shared.clone("ours"))
    change = cases.on_run(partial(cases.succeeding, token=token))
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
