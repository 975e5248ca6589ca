"""Take the branch's files where the folder of this clone is no beginning of them.

Nothing is lost: what stood in the folder is moved into a folder of its own beside it, and
stays there until a person removes it. A crash on the way leaves some files aside and the
rest in place; doing it again goes on from there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from sequencer.errors import StateRefused, UsageRefused
from sequencer.store import folder as folders
from sequencer.store import results
from sequencer.store.file import FileStore
from sequencer.store.git.replica import JOURNAL, REMOTE
from sequencer.store.git.sides import Relation, Sides, compare
from sequencer.store.git.store import GitStore
from sequencer.store.journal_file import sync_folder

_BESIDE = (results.NAME, "beats", "activity", "idle.json")
"""What belongs to the history that the folder had: outputs, heartbeats, who was told of it."""


def take_theirs(
    store: GitStore, sides: Sides, now: Callable[[], float] = time.time
) -> tuple[Path, Sides]:
    """Put the run's files here aside and bring the branch's; return where they are, and both sides.

    *sides* is what `compare` has just found.

    Raises:
        UsageRefused: there is no need; the folder is the branch, or its beginning.
        StateRefused: there is nothing to take.
    """
    if sides.relation.is_sound:
        raise UsageRefused(
            "nothing has to be taken: the files here and the branch are one history",
            hint="'sequencer sync --fetch' shows both sides",
        )
    if sides.problem is not None and not sides.relation.allows_taking:
        raise sides.problem
    folder = store.state_path.parent
    with FileStore(store.state_path).locked():
        aside = _new_folder(folder, now())
        for path in _of_the_run(store):
            folders.move(path, aside / path.name)
        sync_folder(aside)
        sync_folder(folder)
    after = compare(store)
    if after.relation is not Relation.NEW:
        raise after.problem or StateRefused(
            f"the branch could not be taken; the files that were here are in {aside}"
        )
    return aside, after


def _new_folder(folder: Path, now: float) -> Path:
    name = f"set-aside-{datetime.fromtimestamp(now, UTC):%Y%m%dT%H%M%SZ}"
    number, path = 1, folder / name
    while True:
        try:
            folders.make_fresh(path)
        except FileExistsError:
            number += 1
            path = folder / f"{name}-{number}"
        else:
            return path


def _of_the_run(store: GitStore) -> Iterator[Path]:
    """Yield what is to move: the journal last but one, since it alone tells what was accepted."""
    replica, folder = store.branch.replica, store.state_path.parent
    names = (
        store.state_path.name,
        *sorted(replica.documents()),
        *_BESIDE,
        *sorted(replica.aside()),
        JOURNAL,
        REMOTE,
    )
    for name in names:
        path = folder / name
        if path.is_symlink() or path.exists():
            yield path
