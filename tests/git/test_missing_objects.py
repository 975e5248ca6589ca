"""What a killed fetch or a power cut leaves of a commit is not believed; it is brought again."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from sequencer import Claim
from sequencer.errors import CorruptState
from tests.clones import Shared, SharedStore, git
from tests.contract import store_cases as cases
from tests.git.servers import daemon
from tests.git.snapshots import snapshot
from tests.git.tables import table
from tests.git.turns import accepted_in, run_files

STATE = "refs/heads/sequencer/default"
LOCAL = "refs/worktree/sequencer/sequencer/default"
BEATS = "refs/heads/sequencer-beats/default"
PARTS = ("", "^{tree}", ":journal.jsonl", ":state.json")


def object_path(repository: Path, oid: str) -> Path:
    objects = repository if (repository / "objects").is_dir() else repository / ".git"
    return objects / "objects" / oid[:2] / oid[2:]


def loose(repository: Path) -> None:
    """Have every object of *repository* in a file of its own."""
    for pack in sorted((object_path(repository, "xxyy").parents[1] / "pack").glob("*.pack")):
        moved = repository / pack.name
        pack.rename(moved)
        git(repository, "config", "core.looseCompression", "1")
        with moved.open("rb") as data:
            subprocess.run(["git", "unpack-objects", "-q"], cwd=repository, stdin=data, check=True)
        moved.unlink()


def writable(repository: Path, name: str) -> Path:
    """Return the file of the object *name* in *repository*, which may be changed now."""
    oid = git(repository, "rev-parse", name)
    loose(repository)
    path = object_path(repository, oid)
    path.chmod(0o644)
    return path


def lose(repository: Path, name: str) -> None:
    """Remove the object *name* from *repository*, as if it had never been written through."""
    writable(repository, name).unlink()


def damage(repository: Path, name: str) -> None:
    """Leave a file without content where the object was."""
    writable(repository, name).write_bytes(b"")


def copy_objects(shared: Shared, clone: Path, *names: str) -> None:
    """Bring single objects, as a git does that is killed while it unpacks what it has fetched."""
    loose(shared.bare)
    for name in names:
        oid = git(shared.bare, "rev-parse", name)
        to = object_path(clone, oid)
        to.parent.mkdir(exist_ok=True)
        shutil.copy(object_path(shared.bare, oid), to)


def two_sides(shared: Shared) -> tuple[SharedStore, SharedStore]:
    """Return two stores of one run; the first knows the second's first turn."""
    ours, theirs = shared.store("ours"), shared.store("theirs")
    cases.begin(theirs)
    cases.commit(theirs, cases.claim(theirs).token)
    ours.pull()
    return ours, theirs


# --- the state -------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [lose, pytest.param(damage, marks=pytest.mark.slow)])
@pytest.mark.parametrize("part", table(PARTS, "^{tree}"))
def test_objects_missing_behind_a_ref_are_fetched_again(
    part: str, how: object, shared: Shared
) -> None:
    ours, theirs = two_sides(shared)
    ours.close()
    clone = shared.clone("ours")
    before = snapshot(clone)
    assert callable(how)
    how(clone, f"{LOCAL}/state{part}")
    # Whoever comes next has nothing in memory, and less in the folder.
    shutil.rmtree(clone / "sync")
    again = shared.store("ours")
    again.pull()
    assert accepted_in(again) == [(0, 1)]
    cases.commit(again, cases.claim(again).token)
    theirs.pull()
    assert accepted_in(theirs) == [(0, 1), (1, 2)]
    assert run_files(clone / "sync") == run_files(shared.clone("theirs") / "sync")
    assert snapshot(clone) == before


def test_a_missing_document_is_fetched_again(shared: Shared) -> None:
    ours, theirs = two_sides(shared)
    theirs.keep_document("flow.json", b'{"a document": 1}')
    cases.commit(theirs, cases.claim(theirs).token)
    ours.pull()
    ours.close()
    clone = shared.clone("ours")
    lose(clone, f"{LOCAL}/state:flow.json")
    shutil.rmtree(clone / "sync")
    again = shared.store("ours")
    again.pull()
    assert (clone / "sync" / "flow.json").read_bytes() == b'{"a document": 1}'


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("folder", ["results", "results/ATTEMPT"])
def test_a_missing_results_folder_is_fetched_again(folder: str, shared: Shared) -> None:
    ours, theirs = shared.store("ours"), shared.store("theirs")
    cases.begin(theirs)
    token = cases.claim(theirs).token
    place = theirs.result_folder(0, token)
    place.mkdir(parents=True, exist_ok=True)
    (place / "output.txt").write_text("what it said\n")
    folder = folder.replace("ATTEMPT", place.name)
    cases.commit(theirs, token)
    ours.pull()
    ours.close()
    clone = shared.clone("ours")
    lose(clone, f"{LOCAL}/state:{folder}")
    shutil.rmtree(clone / "sync")
    again = shared.store("ours")
    again.pull()
    assert (clone / "sync" / "results" / place.name / "output.txt").read_text() == "what it said\n"


def test_a_working_process_continues_when_its_base_commit_is_lost(shared: Shared) -> None:
    ours, _ = two_sides(shared)
    granted = cases.claim(ours)
    clone = shared.clone("ours")
    for name in (f"{LOCAL}/draft^{{tree}}", f"{LOCAL}/draft"):
        lose(clone, name)
    cases.commit(ours, granted.token)
    assert accepted_in(ours) == [(0, 1), (1, 2)]
    again = shared.store("ours")
    again.pull()
    assert accepted_in(again) == [(0, 1), (1, 2)]


def test_objects_lost_on_the_remote_are_a_clear_error(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, _ = two_sides(shared)
    ours.close()
    clone = shared.clone("ours")
    lose(clone, f"{LOCAL}/state:journal.jsonl")
    shutil.rmtree(clone / "sync")
    # The remote says where the branch is, and sends nothing.
    again = shared.store("ours")
    monkeypatch.setattr(again.branch.remote, "refetch", lambda _: True)
    with pytest.raises(CorruptState, match="can't be fetched completely") as told:
        again.pull()
    assert "git fsck" in str(told.value.hint)


def test_a_shallow_clone_repairs_itself_too(shared: Shared) -> None:
    _, theirs = two_sides(shared)
    git(shared.folder, "clone", "-q", "--depth", "1", f"file://{shared.bare}", "shallow")
    clone = shared.folder / "shallow"
    store = shared.store("shallow")
    store.pull()
    store.close()
    boundary = (clone / ".git" / "shallow").read_bytes()
    lose(clone, f"{LOCAL}/state:journal.jsonl")
    shutil.rmtree(clone / "sync")
    cases.commit(theirs, cases.claim(theirs).token)
    again = shared.store("shallow")
    again.pull()
    assert accepted_in(again) == [(0, 1), (1, 2)]
    assert (clone / ".git" / "shallow").read_bytes() == boundary


# --- heartbeats ------------------------------------------------------------------------------


def beat_of(clone: Path, claim: Claim) -> int | None:
    """Return the number of the newest heartbeat of *claim* that *clone* has."""
    path = clone / "sync" / "beats" / str(claim.token)
    return int(json.loads(path.read_text())["beat"]) if path.exists() else None


def look_for_beats(shared: Shared) -> None:
    """Wait in "ours" for a change that does not come, and look at the remote meanwhile.

    The remote is a server: of one in a folder a wait sees only the state's branch.
    """
    clone = shared.clone("ours")
    with daemon(shared.folder) as address:
        git(clone, "remote", "set-url", "origin", f"{address}/{shared.bare.name}")
        store = shared.store("ours", fast_s=0.05, slow_s=0.05)
        head = store.view().head
        assert head is not None
        assert not store.wait(head.revision, 1.0)
        store.close()
    git(clone, "remote", "set-url", "origin", str(shared.bare))


def test_a_partial_heartbeat_is_fetched_again(shared: Shared) -> None:
    ours, theirs = two_sides(shared)
    claim = cases.claim(theirs)
    ours.pull()
    theirs.beat(claim, 1)
    tip, clone = git(shared.bare, "rev-parse", BEATS), shared.clone("ours")
    copy_objects(shared, clone, tip, f"{tip}^{{tree}}")
    assert beat_of(clone, claim) is None
    look_for_beats(shared)
    assert beat_of(clone, claim) == 1


def test_a_heartbeat_missing_behind_its_ref_is_fetched_again(shared: Shared) -> None:
    ours, theirs = two_sides(shared)
    claim = cases.claim(theirs)
    ours.pull()
    theirs.beat(claim, 1)
    tip, clone = git(shared.bare, "rev-parse", BEATS), shared.clone("ours")
    look_for_beats(shared)
    lose(clone, f"{tip}:{claim.token}")
    (clone / "sync" / "beats" / str(claim.token)).unlink()
    ours.close()
    look_for_beats(shared)
    assert beat_of(clone, claim) == 1
