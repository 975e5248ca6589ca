"""From transitions to commits, and what a branch holds after each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sequencer.errors import UnsafeFolder
from sequencer.git import replica as module
from sequencer.git.store import GitStore
from sequencer.model import transitions
from sequencer.model.head import Head
from sequencer.model.transitions import Transition
from sequencer.store import results
from tests.clones import Shared, git
from tests.contract import store_cases as cases

BRANCH = "sequencer/default"


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Shared]:
    made = Shared(tmp_path)
    yield made
    made.close()


def files(shared: Shared) -> dict[str, str]:
    """Return what the branch holds: paths and git's names for their contents."""
    listed = git(shared.bare, "ls-tree", "-r", BRANCH).splitlines()
    return {line.split("\t")[1]: line.split()[2] for line in listed}


def step(store: GitStore, note: str = "") -> Head:
    return cases.commit(store, cases.claim(store).token, note)


def test_one_commit_a_transition_that_says_what_it_is(shared: Shared) -> None:
    store = shared.store("a")
    cases.begin(store)
    held = cases.claim(store)
    cases.commit_and_claim(store, held.token)
    told = git(shared.bare, "log", "--format=%s", BRANCH).splitlines()
    assert told == [
        "succeeded, claimed: supervisor (step_index 0, token 1)",
        "claimed: supervisor (step_index 0, token 1)",
        "initialised: supervisor (step_index 0, token 0)",
    ]
    message = git(shared.bare, "log", "-1", "--format=%B", BRANCH).splitlines()
    assert {"Run: default run", "Revision: 3", "Depth: 2"} <= set(message)


def test_a_document_is_pushed_when_it_changes_and_dropped_when_it_is_forgotten(
    shared: Shared,
) -> None:
    store, other = shared.store("a"), shared.store("b")

    def begin(head: Head | None) -> Transition | None:
        store.keep_document("definition.json", b"{}")
        store.keep_document("marking-0a.json", b"[]")
        return None if head else transitions.initialise(cases.new_head())

    store.update(begin)
    names = {"state.json", "journal.jsonl", "definition.json", "marking-0a.json"}
    assert set(files(shared)) == names
    before = files(shared)["definition.json"]
    step(store)
    assert files(shared)["definition.json"] == before
    assert other.view().head is not None
    assert other.document("marking-0a.json") == b"[]"

    def forget(head: Head | None) -> Transition:
        store.forget_documents("marking-", ())
        store.keep_document("definition.json", b'{"a": 1}')
        assert head is not None
        return cases.claiming(store, head)

    store.update(forget)
    assert set(files(shared)) == names - {"marking-0a.json"}
    assert other.bring()
    assert other.document("marking-0a.json") is None
    assert other.document("definition.json") == b'{"a": 1}'


def test_files_that_are_this_clones_own_stay_here(shared: Shared) -> None:
    store = shared.store("a")
    cases.begin(store)
    folder = shared.clone("a") / "sync"
    for name in ("idle.json", "cursor.json", "state.json.before-migration", "notes.txt", "x.tmp"):
        (folder / name).write_text("mine")
    (folder / "beats").mkdir()
    step(store)
    assert set(files(shared)) == {"state.json", "journal.jsonl"}


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
    other.bring()
    assert (other.kept_result(kept) / "output.txt").read_bytes() == b"x" * 5000
    monkeypatch.setattr(module, "MAX_OUTPUT_BYTES", 100)
    held = cases.claim(store)
    large = store.result_folder(1, held.token) / "output.txt"
    large.parent.mkdir(parents=True)
    large.write_bytes(b"x" * 101)
    cases.commit(store, held.token)
    assert f"results/{large.parent.name}/output.txt" not in files(shared)
    assert "more than 100 bytes: other machines do not get it" in store.take_notices()[0]
    assert store.take_notices() == []


def test_the_journal_is_put_aside_on_both_sides(shared: Shared) -> None:
    store = shared.store("a", rotate_bytes=3_000, keep=2)
    other = shared.store("b")
    cases.begin(store)
    for _ in range(6):
        step(store, "n" * 400)
        assert other.bring()
    aside = {name for name in files(shared) if name.startswith("journal-")}
    assert len(aside) == 2
    folders = [shared.clone(name) / "sync" for name in "ab"]
    there = [{p.name: p.read_bytes() for p in f.glob("journal*")} for f in folders]
    assert there[0] == there[1]
    assert set(there[1]) == aside | {"journal.jsonl"}
    assert step(other, "and on").step_index == 7
    assert store.bring()
    assert store.view().head == other.view().head


def test_the_history_begins_anew_with_the_same_files(shared: Shared) -> None:
    store, other = shared.store("a", max_commits=5), shared.store("b", max_commits=5)
    cases.begin(store)
    depths = []
    for number in range(8):
        step((store, other)[number % 2])
        depths.append(int(git(shared.bare, "rev-list", "--count", BRANCH)))
    assert max(depths) == 5
    assert depths == [3, 5, 2, 4, 1, 3, 5, 2]
    assert len([f for f in store.history() if f["event"] == "succeeded"]) == 8
    store.bring()
    assert list(store.history()) == list(other.history())


def test_nothing_is_brought_through_a_link(shared: Shared, tmp_path: Path) -> None:
    store, other = shared.store("a"), shared.store("b")
    cases.begin(store)
    other.bring()
    held, outside = cases.claim(store), tmp_path / "outside"
    results.keep(store.result_folder(0, held.token), b"x" * 5000)
    cases.commit(store, held.token)
    outside.mkdir()
    place = shared.clone("b") / "sync" / "results"
    place.symlink_to(outside)
    with pytest.raises(UnsafeFolder, match="results: is a link"):
        other.bring()
    assert not list(outside.iterdir())
    place.unlink()
    place.parent.rename(tmp_path / "aside")
    place.parent.symlink_to(tmp_path / "aside")
    with pytest.raises(UnsafeFolder, match="sync: is a link"):
        shared.store("b").bring()
