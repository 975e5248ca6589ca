"""What every store promises, whatever keeps its run."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from sequencer import Change, Event, Fact, FileStore, Head, Liveness, Store, Transition
from sequencer.errors import ClaimHeld, RecordRefused, StaleClaim
from tests import clones
from tests.contract import store_cases as cases

Peers = Callable[..., Store]


@pytest.fixture(params=["file", "git", "git-one-clone"])
def peer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Peers]:
    """A function that gives one more worker's store of one and the same run."""
    made: list[Store] = []
    shared = None

    def make(ttl_s: float = 60.0) -> Store:
        nonlocal shared
        if request.param == "file":
            made.append(FileStore(tmp_path / "sync" / "state.json", ttl_s=ttl_s))
        else:
            shared = shared or clones.Shared(tmp_path)
            name = f"clone-{len(made)}" if request.param == "git" else "clone"
            made.append(shared.store(name, ttl_s=ttl_s))
        return made[-1]

    yield make
    for store in made:
        store.close()


@pytest.fixture
def slowness(request: pytest.FixtureRequest) -> float:
    """How many times as long a lease has to be, for beats to be in time beside other work."""
    return 10.0 if "git" in request.node.callspec.params["peer"] else 1.0


def with_note(value: Any) -> Change:
    """Return the change that gives the head a field of somebody else's, called "note"."""

    def change(head: Head) -> Transition:
        edited = Head.model_validate({**head.model_dump(), "note": value})
        fact = Fact(Event.EDITED, head.expected_step, head.step_index, head.token, head.attempt)
        return Transition(edited, (fact,))

    return cases.on_run(change)


def change_nothing(_: Head | None) -> None:
    return None


def refuse(_: Head | None) -> Transition:
    raise StaleClaim("no")


def test_it_is_a_store(peer: Peers) -> None:
    assert isinstance(peer(), Store)


def test_a_run_that_never_started_has_no_head_and_no_history(peer: Peers) -> None:
    store = peer()
    assert store.view().head is None
    assert list(store.history()) == []
    with pytest.raises(ValueError, match="never started"):
        store.update(change_nothing)
    assert store.view().head is None


def test_every_worker_sees_what_one_has_changed(peer: Peers) -> None:
    one, two = peer(), peer()
    begun = cases.begin(one)
    assert begun.revision == 1
    assert two.view().head == begun == one.view().head
    granted = cases.claim(two)
    accepted = cases.commit(two, granted.token)
    seen = one.view().head
    assert seen == accepted
    assert (accepted.step_index, accepted.revision) == (1, 3)


def test_a_change_that_raises_or_returns_nothing_changes_nothing(peer: Peers) -> None:
    store = peer()
    begun = cases.begin(store)

    with pytest.raises(StaleClaim):
        store.update(refuse)
    assert store.update(change_nothing) == begun
    assert peer().view().head == begun
    assert len(list(store.history())) == 1


UNREADABLE: dict[str, Any] = {
    "half of a surrogate pair": "\ud800",
    "a head of a megabyte": "x" * 2**20,
    "a number of 20 digits": 10**19,
    "70 lists": reduce(lambda inner, _: [inner], range(70), list[Any]()),
}


@pytest.mark.parametrize("value", UNREADABLE.values(), ids=UNREADABLE)
def test_a_head_that_no_process_could_read_back_is_refused(peer: Peers, value: Any) -> None:
    store = peer()
    begun = cases.begin(store)
    with pytest.raises(RecordRefused, match="could not be read back"):
        store.update(with_note(value))
    assert peer().view().head == begun


@pytest.mark.parametrize("value", ["x" * 2**22, 10**19, float("nan")])
def test_a_fact_that_no_process_could_read_back_is_refused(peer: Peers, value: Any) -> None:
    store = peer()
    begun = cases.begin(store)
    fact = Fact(Event.EDITED, "supervisor", 0, outcome={"note": value})
    with pytest.raises(RecordRefused, match="could not be read back"):
        store.update(cases.on_run(lambda head: Transition(head, (fact,))))
    assert peer().view().head == begun
    cases.claim(store)


def test_history_has_each_fact_of_a_fused_transition(peer: Peers) -> None:
    store = peer()
    cases.begin(store)
    first = cases.claim(store)
    second = cases.commit_and_claim(store, first.token)
    facts = list(peer().history())
    told = [(f["event"], f["step"], f["step_index"], f["token"], f["attempt"]) for f in facts]
    assert told == [
        ("initialised", "supervisor", 0, 0, 0),
        ("claimed", "supervisor", 0, 1, 1),
        ("succeeded", "supervisor", 0, 1, 1),
        ("claimed", "main", 1, 2, 1),
    ]
    assert [f["revision"] for f in facts] == [1, 2, 3, 3]
    assert all(f["at"].endswith("Z") for f in facts)
    assert second.step_index == 1


@pytest.mark.parametrize("after", range(5))
def test_history_after_a_revision_has_only_later_facts(peer: Peers, after: int) -> None:
    store = peer()
    cases.begin(store)
    cases.commit_and_claim(store, cases.claim(store).token)
    whole = list(peer().history())
    assert list(peer().history(after)) == [f for f in whole if f["revision"] > after]


def test_unknown_fields_of_the_head_are_preserved(peer: Peers) -> None:
    store = peer()
    cases.begin(store)
    store.update(with_note({"a": [1]}))
    granted = cases.claim(store)
    head = cases.commit(store, granted.token)
    assert head.model_dump()["note"] == {"a": [1]}
    seen = peer().view().head
    assert seen is not None
    assert seen.model_dump()["note"] == {"a": [1]}


def test_a_stale_token_is_refused_for_every_verb(peer: Peers) -> None:
    store = peer()
    cases.begin(store)
    granted = cases.claim(store)
    head = cases.release(store, granted.token)
    for verb in (cases.commit, cases.fail, cases.release):
        with pytest.raises(StaleClaim):
            verb(store, granted.token)
    assert store.view().head == head


def test_a_live_holder_keeps_its_claim(peer: Peers) -> None:
    one, two = peer(), peer()
    cases.begin(one)
    granted = cases.claim(one)
    assert two.liveness(granted) is Liveness.ALIVE
    with pytest.raises(ClaimHeld):
        cases.claim(two)


def test_a_lease_expires_only_without_heartbeats(peer: Peers, slowness: float) -> None:
    one, two = peer(ttl_s=0.3 * slowness), peer()
    cases.begin(one)
    granted = cases.claim(one)
    assert two.view().head is not None
    for number in range(1, 4):
        time.sleep(0.15 * slowness)
        one.beat(granted, number)
        assert two.liveness(granted) is Liveness.ALIVE
    time.sleep(0.4 * slowness)
    assert two.liveness(granted) is Liveness.EXPIRED
    taken = cases.claim(two)
    assert (taken.token, taken.attempt) == (granted.token + 1, 2)
    with pytest.raises(StaleClaim):
        cases.commit(one, granted.token)
    events = [f["event"] for f in two.history()]
    assert events == ["initialised", "claimed", "taken-over", "claimed"]


def test_waiting_ends_with_a_change(peer: Peers) -> None:
    one, two = peer(), peer()
    begun, changed = cases.begin(one), list[float]()

    def change() -> None:
        cases.claim(two)
        changed.append(time.monotonic())

    timer = threading.Timer(0.1, change)
    started = time.monotonic()
    timer.start()
    assert one.wait(begun.revision, 10.0)
    ended = time.monotonic()
    timer.join()
    assert ended - started > 0.05
    # What it takes to make the change is not its sleep.
    assert ended - changed[0] < 1.0
    assert one.wait(begun.revision, None)


def test_waiting_with_a_claim_reports_a_changed_head(peer: Peers) -> None:
    one, two = peer(), peer()
    cases.begin(one)
    granted = cases.claim(two)
    revision = 2
    timer = threading.Timer(0.1, cases.commit, (two, granted.token))
    timer.start()
    assert one.wait(revision, 10.0, claim=granted)
    timer.join()


def test_waiting_ends_at_the_timeout(peer: Peers) -> None:
    store = peer()
    begun = cases.begin(store)
    started = time.monotonic()
    assert not store.wait(begun.revision, 0.15)
    assert 0.1 < time.monotonic() - started < 1.0
    assert not store.wait(begun.revision, 0.0)


def test_waiting_ends_when_the_descriptor_wakes(peer: Peers) -> None:
    store = peer()
    begun = cases.begin(store)
    read_fd, write_fd = os.pipe()
    try:
        threading.Timer(0.1, os.write, (write_fd, b"x")).start()
        started = time.monotonic()
        assert not store.wait(begun.revision, 10.0, wake_fd=read_fd)
        assert time.monotonic() - started < 1.0
    finally:
        os.close(read_fd)
        os.close(write_fd)


def test_a_run_that_starts_wakes_a_waiting_process(peer: Peers) -> None:
    one, two = peer(), peer()
    timer = threading.Timer(0.1, cases.begin, (two,))
    timer.start()
    assert one.wait(0, 10.0)
    timer.join()


def test_each_attempt_has_its_own_folder(peer: Peers) -> None:
    store = peer()
    folders = {store.result_folder(0, 1), store.result_folder(0, 2), store.result_folder(1, 2)}
    assert len(folders) == 3
    assert not any(folder.exists() for folder in folders), "whoever writes there makes it"
    assert store.result_folder(0, 1) in folders


def test_a_document_is_saved_with_the_change_and_visible_to_all(peer: Peers) -> None:
    ours, other = peer(), peer()
    assert ours.read_document("definition.json") is None

    def change(head: Head | None) -> Transition:
        assert head is None
        ours.keep_document("definition.json", b'{"a": 1}')
        return cases.initializing()

    ours.update(change)
    assert other.read_document("definition.json") == b'{"a": 1}'
    assert other.read_document("other.json") is None


@pytest.mark.slow(sample=1)
def test_racing_changes_are_all_accepted_one_after_the_other(peer: Peers, slowness: float) -> None:
    cases.begin(peer())
    rounds, workers = 15 if slowness == 1 else 6, 4
    seen: list[int] = []

    def stamp(store: Store) -> None:
        def change(head: Head) -> Transition:
            fact = Fact(Event.STAMPED, head.expected_step, head.step_index)
            following = cases.place_at(head.step_index + 1)
            return Transition(
                head.replace(
                    step_index=following.step_index,
                    iteration=following.step_index + 1,
                    expected_step=following.step,
                ),
                (fact,),
            )

        seen.extend(store.update(cases.on_run(change)).step_index for _ in range(rounds))

    stores = [peer() for _ in range(workers)]
    threads = [threading.Thread(target=stamp, args=(store,), daemon=True) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == list(range(1, rounds * workers + 1))
    facts: list[dict[str, Any]] = list(peer().history())
    assert [f["revision"] for f in facts] == list(range(1, rounds * workers + 2))


def test_a_store_without_trouble_has_no_notices(peer: Peers) -> None:
    store = peer()
    cases.begin(store)
    granted = cases.claim(store)
    cases.commit(store, granted.token)
    assert store.view().notices == ()
    assert store.take_notices() == []


def test_a_head_is_read_back_as_it_was_written(peer: Peers) -> None:
    store = peer()
    given = cases.new_head(params={"n": 3, "x": 0.5, "s": "t", "b": True}, exit_reason="ä\n")
    begun = store.update(lambda _: cases.initializing(given))
    expected = given.replace(revision=1, journal_offset=begun.journal_offset)
    seen = peer().view().head
    assert seen == begun == expected
