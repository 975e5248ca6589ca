"""Code and state move together on the remote, or neither of them does."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from sequencer import Head, Transition
from sequencer.errors import RemoteRefused, StateRefused
from sequencer.plugins.git.state.remote import RefMove
from sequencer.plugins.git.state.store import GitStore
from tests.clones import Shared, git
from tests.contract import store_cases as cases
from tests.git.tables import table
from tests.git.transports import Deed, Server
from tests.git.turns import accepted_in

MAIN = "refs/heads/main"


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


def declining(bare: Path, ref: str) -> Path:
    """Let the repository decline pushes to *ref*, one by one."""
    hook = bare / "hooks" / "update"
    hook.write_text(f'#!/bin/sh\ntest "$1" != {ref}\n')
    hook.chmod(0o755)
    return hook


@pytest.mark.parametrize("ref", [MAIN, "refs/heads/sequencer/default"])
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
