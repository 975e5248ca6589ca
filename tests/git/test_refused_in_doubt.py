"""A push without an answer, and then refusals: what was accepted is looked at, not guessed."""

from __future__ import annotations

from functools import partial

import pytest

from sequencer import Change, Store
from sequencer.errors import RemoteRefused, RemoteUnreachable, StaleClaim
from tests.clones import Shared
from tests.contract import store_cases as cases
from tests.git.servers import declining
from tests.git.transports import Server
from tests.git.turns import accepted_in

STATE = "refs/heads/sequencer/default"


def ending() -> Change:
    return cases.on_run(partial(cases.succeeding, token=1))


def test_a_refusal_is_not_final_while_an_earlier_push_may_land(
    held: tuple[Shared, Store, Server],
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
    held: tuple[Shared, Store, Server],
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
    held: tuple[Shared, Store, Server],
) -> None:
    shared, ours, server = held
    refused, before = server.folder / "refused", server.pushes()
    hook = declining(shared.bare, STATE)
    # Only once: then the first push lands, before anybody looks at what has become of it.
    hook.write_text(f"{hook.read_text().rstrip()} || test -e {refused} || ! touch {refused}\n")
    server.release_in("upload-pack", shared.clone("ours"), refused)
    assert ours.update(ending()).step_index == 1
    assert refused.exists()
    assert (server.pushes() - before, accepted_in(ours)) == (2, [(0, 1)])


def test_another_clones_turn_ends_the_doubt(held: tuple[Shared, Store, Server]) -> None:
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
