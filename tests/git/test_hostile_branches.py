"""What somebody else may do to a state branch: refused with a reason, or harmless, never more."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from sequencer import FileStore, Store
from sequencer.errors import CorruptState, EditRefused, StateRefused
from tests.clones import Shared, git
from tests.contract import store_cases as cases
from tests.git.hostile import FILE, FOLDER, LINK, STATE, SUBMODULE, Forge
from tests.git.snapshots import snapshot
from tests.git.tables import table
from tests.git.turns import accepted_in, run_files

ACCEPTED = [(0, 1), (1, 2)]
OUTPUT = "output.txt"
"""In the folder of an attempt: what its agent said."""


@pytest.fixture
def shared(after_two_steps: Shared) -> Shared:
    """A run with two accepted steps, which two of three clones know."""
    return after_two_steps


# --- refs that were moved by hand -------------------------------------------------------


def test_a_deleted_branch_is_an_error_and_its_hint_restores_it(shared: Shared) -> None:
    ours = shared.store("ours")
    before = run_files(shared.clone("ours") / "sync")
    git(shared.bare, "update-ref", "-d", STATE)
    for act in (lambda: cases.claim(ours), lambda: cases.claim(shared.store("ours")), ours.pull):
        with pytest.raises(CorruptState, match="is gone from the remote") as told:
            act()
    assert told.value.exit_code == 3
    assert run_files(shared.clone("ours") / "sync") == before
    assert told.value.hint is not None
    command = told.value.hint.split("'")[1]
    git(shared.clone("ours"), *shlex.split(command)[1:])
    again = shared.store("ours")
    cases.commit(again, cases.claim(again).token)
    assert accepted_in(again)[:2] == ACCEPTED


def test_the_hint_works_in_the_clone_that_moved_it_last(shared: Shared) -> None:
    ours = shared.store("ours")
    token = cases.claim(ours).token
    git(shared.bare, "update-ref", "-d", STATE)
    with pytest.raises(CorruptState, match="is gone") as told:
        cases.commit(ours, token)
    assert told.value.hint is not None
    git(shared.clone("ours"), *shlex.split(told.value.hint.split("'")[1])[1:])
    cases.commit(ours, token)
    assert accepted_in(ours) == [*ACCEPTED, (2, token)]


def test_a_deleted_branch_can_be_recreated_from_the_files(shared: Shared) -> None:
    ours = shared.store("ours")
    git(shared.bare, "update-ref", "-d", STATE)
    with pytest.raises(CorruptState) as told:
        cases.claim(ours)
    path = shared.clone("ours") / "sync" / "remote.json"
    assert str(path) in str(told.value.hint)
    path.unlink()
    again = shared.store("ours")
    cases.commit(again, cases.claim(again).token)
    assert accepted_in(shared.store("fresh")) == [*ACCEPTED, (2, 3)]


def test_a_branch_set_back_is_refused_by_a_clone_with_newer_state(shared: Shared) -> None:
    ours, forge = shared.store("ours"), Forge(shared.bare)
    before, newest = run_files(shared.clone("ours") / "sync"), forge.tip()
    forge.move(git(shared.bare, "rev-parse", f"{STATE}~2"))
    for act in (lambda: cases.claim(ours), lambda: cases.claim(shared.store("ours")), ours.pull):
        with pytest.raises(CorruptState, match="does not continue from revision") as told:
            act()
    assert "--take-theirs" in str(told.value.hint)
    assert run_files(shared.clone("ours") / "sync") == before
    forge.move(newest)
    cases.commit(ours, cases.claim(ours).token)
    assert accepted_in(ours)[:2] == ACCEPTED


@pytest.mark.parametrize("kind", table(("blob", "tree", "tag", "nothing at all"), "tree"))
def test_a_branch_that_is_not_a_commit_is_refused(kind: str, shared: Shared) -> None:
    ours, forge = shared.store("ours"), Forge(shared.bare)
    oid = {
        "blob": lambda: forge.blob(b"x"),
        "tree": lambda: forge.tree((FILE, "x", forge.blob(b"x"))),
        "tag": lambda: forge.put(
            "tag", b"object %s\ntype blob\ntag t\n\nx" % forge.blob(b"x").encode()
        ),
        "nothing at all": lambda: "0123456789" * 4,
    }[kind]()
    before = run_files(shared.clone("ours") / "sync")
    forge.move(oid)
    for store in (ours, shared.store("ours"), shared.store("fresh")):
        with pytest.raises(StateRefused):
            cases.begin(store)
    assert run_files(shared.clone("ours") / "sync") == before


# --- trees that nobody should have made ---------------------------------------------------

Garbage = Callable[[Forge, Path], object]


def journal_of(forge: Forge) -> list[bytes]:
    """Return the lines of the branch's journal."""
    oid = next(oid for _, name, oid in forge.entries() if name == "journal.jsonl")
    lines = git(forge.bare, "cat-file", "blob", oid).splitlines()
    return [f"{line}\n".encode() for line in lines]


def laid(name: str, data: bytes, mode: str = FILE) -> Garbage:
    """Return what puts a file of this *name* on the branch."""
    return lambda forge, _: forge.lay_over((mode, name, forge.blob(data)))


def with_journal(change: Callable[[list[bytes]], list[bytes]]) -> Garbage:
    """Return what puts a changed journal on the branch."""

    def lay(forge: Forge, _: Path) -> object:
        content = b"".join(change(journal_of(forge)))
        return forge.lay_over((FILE, "journal.jsonl", forge.blob(content)))

    return lay


def of_another_run(lines: list[bytes]) -> list[bytes]:
    """Return a journal of the same form, whose run is another one."""
    with TemporaryDirectory() as folder:
        store = FileStore(Path(folder) / "state.json")
        store.update(lambda _: cases.initializing(cases.new_head(run_id="other")))
        for _ in ACCEPTED:
            cases.commit(store, cases.claim(store).token)
        store.close()
        others = (Path(folder) / "journal.jsonl").read_bytes().splitlines(keepends=True)
    assert len(others) == len(lines)
    return others


def linked(name: str, target: str) -> Garbage:
    return laid(name, target.encode(), LINK)


def in_results(*names: str, mode: str = FILE) -> Garbage:
    """Return what nests folders of these *names* below results/, a file at the end."""

    def lay(forge: Forge, canary: Path) -> object:
        oid, kind = forge.blob(str(canary).encode()), mode
        for name in reversed(names):
            oid, kind = forge.tree((kind, name, oid)), FOLDER
        return forge.lay_over((FOLDER, "results", oid))

    return lay


def folder_called(name: str, inner: str) -> Garbage:
    return lambda forge, _: forge.lay_over(
        (FOLDER, name, forge.tree((FILE, inner, forge.blob(b"evil"))))
    )


def submodule(name: str) -> Garbage:
    return lambda forge, _: forge.lay_over((SUBMODULE, name, forge.tip()))


def missing(*names: str) -> Garbage:
    """Return what removes files from the branch."""

    def lay(forge: Forge, _: Path) -> None:
        kept = [entry for entry in forge.entries() if entry[1] not in names]
        forge.move(forge.commit(forge.tree(*kept), forge.tip()))

    return lay


def very_many(forge: Forge, _: Path) -> object:
    blob = forge.blob(b"{}")
    return forge.lay_over(*((FILE, f"x{number}", blob) for number in range(10_000)))


HUGE = b"\0" * (65 * 1024 * 1024)
GARBAGE: dict[str, Garbage] = {
    "no journal": missing("journal.jsonl"),
    "no state.json": missing("state.json"),
    "an empty tree": missing("journal.jsonl", "state.json"),
    "an empty journal": laid("journal.jsonl", b""),
    "a journal of noise": laid("journal.jsonl", bytes(range(256)) * 40),
    "a journal of another run": with_journal(of_another_run),
    "a journal without its middle": with_journal(lambda lines: lines[:2] + lines[3:]),
    "a journal with a damaged line": with_journal(
        lambda lines: [*lines[:2], lines[2].replace(b"succeeded", b"succeedeD"), *lines[3:]]
    ),
    "a journal with a torn end": with_journal(lambda lines: [*lines, lines[-1][:40]]),
    "a journal with its last line changed": with_journal(
        lambda lines: [*lines[:-1], lines[-1].replace(b'"ok"', b'"OK"')]
    ),
    "a journal with twice its last line": with_journal(lambda lines: [*lines, lines[-1]]),
    "a journal with its lines reversed": with_journal(lambda lines: lines[::-1]),
    "a journal that is a link": linked("journal.jsonl", "/etc/passwd"),
    "a journal that is a submodule": submodule("journal.jsonl"),
    "a journal that is a folder": folder_called("journal.jsonl", "x"),
    "a journal too large": laid("journal.jsonl", HUGE),
    "a state.json that is a link": linked("state.json", "../../canary"),
    "a state.json that is a submodule": submodule("state.json"),
    "a state.json of noise": laid("state.json", b"\xff\0{"),
    "a document that is a link": linked("flow.json", "../../canary"),
    "a document too large": laid("definition.json", HUGE),
    "an old journal that is a link": linked("journal-000001.jsonl", "../../canary"),
    "a name that goes up": laid("../canary", b"evil"),
    "a name that goes up far": laid("../../../canary", b"evil"),
    "a name from the root": lambda forge, canary: laid(str(canary), b"evil")(forge, canary),
    "a folder that is ..": folder_called("..", "canary"),
    "a folder that is .git": folder_called(".git", "config"),
    "a link that is .git": linked(".git", "../../canary"),
    "the lock": laid("state.json.lock", b"evil"),
    "what is known of the remote": laid("remote.json", b'{"tip": "evil"}'),
    "beats of nobody": folder_called("beats", "1"),
    "results that go up": in_results("..", "..", "canary"),
    "an attempt that goes up": in_results("..", OUTPUT),
    "an output that goes up": in_results("1-1", "..", "..", "canary"),
    "an attempt with a slash": in_results("1-1/../../..", OUTPUT),
    "an output with a slash": in_results("1-1", "../../../../canary"),
    "an output that is a link": in_results("1-1", OUTPUT, mode=LINK),
    "results that are a link": linked("results", "../.."),
    "a name with a newline": laid("definition.json\nx", b"evil"),
    "ten thousand names": very_many,
}
MAY_STAND = {"state.json", "state.json.lock", "remote.json", "remote.looked", "results", "beats"}


HARMLESS = {
    *("no state.json", "a journal with a torn end", "a state.json of noise"),
    *("a name that goes up", "a folder that is ..", "a folder that is .git", "the lock"),
    *("ten thousand names", "results that go up", "an output that is a link"),
    *("a document that is a link", "a state.json that is a link", "what is known of the remote"),
}
"""What stops nobody."""


@pytest.mark.parametrize("what", table(GARBAGE, "no journal", "a state.json that is a link"))
def test_garbage_is_refused_or_harmless(what: str, shared: Shared) -> None:
    ours, canary = shared.store("ours"), shared.folder / "canary"
    canary.write_text("alive")
    clone, before = shared.clone("ours"), run_files(shared.clone("ours") / "sync")
    kept, fresh = snapshot(clone), shared.clone("fresh")
    fresh_kept = snapshot(fresh)
    GARBAGE[what](Forge(shared.bare), canary)
    outcomes = [outcome(store) for store in (ours, shared.store("fresh"))]
    assert all(told == "goes on" or told.startswith("3: ") for told in outcomes), outcomes
    assert not any(told == "3: None" for told in outcomes)
    assert canary.read_text() == "alive"
    assert (snapshot(clone), snapshot(fresh)) == (kept, fresh_kept)
    assert {path.name for path in shared.folder.iterdir()} <= {
        *("canary", "remote.git", "first", "ours", "theirs", "fresh")
    }
    for folder in (clone / "sync", fresh / "sync"):
        names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
        names -= {name for name in names if name.startswith("journal")}
        assert names <= MAY_STAND | {"definition.json", "flow.json"}, names
        assert not any(path.is_symlink() for path in folder.rglob("*"))
        # What the forged outputs would hold.
        assert not any(path.read_text() == str(canary) for path in folder.rglob(OUTPUT))
    now = run_files(clone / "sync")
    if what in HARMLESS:
        assert set(outcomes) == {"goes on"}
    if outcomes[0] == "goes on":
        # Whatever was on top of it, what had been accepted still is.
        assert accepted_in(ours)[:2] == ACCEPTED
        head = ours.view().head
        assert head is not None
        assert head.run_id == cases.new_head().run_id
    else:
        assert {**now, "state.json": b""} == {**before, "state.json": b""}


def outcome(store: Store) -> str:
    """Return how a turn ends on such a branch: with a reason, or well."""
    try:
        cases.commit(store, cases.claim(store).token)
    except StateRefused as refusal:
        return f"{refusal.exit_code}: {refusal.hint}"
    return "goes on"


# --- edits by hand ------------------------------------------------------------------------


def test_an_edit_by_hand_is_recorded_and_reaches_the_other_clone(shared: Shared) -> None:
    ours, path = shared.store("ours"), shared.clone("ours") / "sync" / "state.json"
    cases.edit(path, ticket="by hand")
    granted = cases.claim(ours)
    cases.commit(ours, granted.token)
    theirs = shared.store("theirs")
    theirs.pull()
    facts = list(theirs.history())
    assert [fact["event"] for fact in facts[-3:]] == ["edited", "claimed", "succeeded"]


@pytest.mark.parametrize("act", table(("claims", "brings", "views"), "claims", "brings"))
def test_an_edit_by_hand_is_refused_when_the_run_has_moved_on(act: str, shared: Shared) -> None:
    ours, theirs = shared.store("ours"), shared.store("theirs")
    path = shared.clone("ours") / "sync" / "state.json"
    cases.edit(path, ticket="by hand")
    edited = path.read_bytes()
    cases.commit(theirs, cases.claim(theirs).token)
    acts: dict[str, Callable[[], Any]] = {
        "claims": lambda: cases.claim(ours),
        "brings": ours.pull,
        "views": ours.view,
    }
    if act == "brings":
        acts[act]()
    else:
        with pytest.raises(EditRefused, match="was edited at revision 5") as told:
            acts[act]()
        assert "make the edit again" in str(told.value)
    assert path.read_bytes() == edited
    theirs.pull()
    assert len(accepted_in(theirs)) == 3
