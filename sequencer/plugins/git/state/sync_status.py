"""A run's two sides: the folder of this clone, and the branch of the remote.

Looks, follows the branch where that loses nothing, and says how the two stand to each other. What
can't be followed is left as it is, for a person to decide. `take_theirs` takes the branch's files:
what stood in the folder is moved into one of its own beside it, and stays there until a person
removes it; a crash on the way leaves some files aside, and doing it again continues from there.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Collection, Iterator
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from msgspec import Struct

from sequencer.errors import (
    CorruptState,
    RemoteUnreachable,
    SequencerError,
    StateRefused,
    StorageFailed,
    UsageRefused,
)
from sequencer.model.head import Head
from sequencer.plugins.git.process import GitFailed
from sequencer.plugins.git.state.branch import Branch
from sequencer.plugins.git.state.objects import Missing
from sequencer.plugins.git.state.remote import unreachable
from sequencer.plugins.git.state.replica import JOURNAL, REMOTE, Known, read_tree
from sequencer.plugins.git.state.store import LOCAL, GitOptions, GitStore, refs_of
from sequencer.store import folder as folders
from sequencer.store import results
from sequencer.store.diagnosis import diagnose
from sequencer.store.file import FileStore
from sequencer.store.folder import sync_folder
from sequencer.store.head import parse_head, signature
from sequencer.store.highwater import HighWaterMark
from sequencer.store.journal import decode

MAX_OTHERS = 50
"""Runs that are only on the remote, of which more than the name is told."""
_HEADS = "refs/heads/"


class Relation(StrEnum):
    """How this clone's folder stands to the branch."""

    NOWHERE = "nowhere"
    """The run was never begun, on either side."""
    UNPUBLISHED = "unpublished"
    """It is here only, and has never been on the branch; the next change puts it there."""
    NEW = "new"
    """It was on the branch only, and is here as well now."""
    BEHIND = "behind"
    """The folder was the beginning of the branch, and was brought up to it."""
    EQUAL = "equal"
    GONE = "gone"
    """The branch is not there any more."""
    DIVERGED = "diverged"
    """The branch does not go on from what is here: somebody has put it back."""
    ANOTHER_RUN = "another-run"
    UNREADABLE = "unreadable"
    """What is on the branch is no run."""
    DAMAGED = "damaged"
    """The files here can't be used, and the branch can."""
    UNKNOWN = "unknown"
    """The remote did not answer."""

    @property
    def is_sound(self) -> bool:
        """Return whether work can go on without a person's decision."""
        return self in _SOUND

    @property
    def allows_taking(self) -> bool:
        """Return whether there is a reason to take the branch's files, and files to take."""
        return self in (Relation.DIVERGED, Relation.ANOTHER_RUN, Relation.DAMAGED)


_SOUND = frozenset(
    {Relation.NOWHERE, Relation.UNPUBLISHED, Relation.NEW, Relation.BEHIND, Relation.EQUAL}
)


class SyncStatus(Struct, frozen=True):
    """What one look has found."""

    relation: Relation
    known: Known | None
    """What this clone knew of the branch before."""
    here: Head | None
    """The newest record of this folder, before anything was brought."""
    tip: str | None
    """Where the branch is; None: nowhere, or that is not known."""
    there: Head | None
    """The newest record of the branch."""
    problem: SequencerError | None = None
    """What a person has to decide or mend."""
    is_asked: bool = True
    """Whether the remote was asked; else the branch is as this clone saw it last."""


class OtherRun(Struct, frozen=True):
    """A run that is on the remote and not in this clone."""

    branch: str
    name: str | None
    """As ``--run`` takes it; None: its branch can't be read."""
    head: Head | None


def compare(store: GitStore) -> SyncStatus:
    """Look at the remote, bring what is new into the folder of *store*, and tell both sides.

    Raises:
        StorageFailed: the files can't be read or written here.
    """
    branch = store.branch
    known, journal = branch.known.read(), branch.replica.journal()
    here = newest(journal)
    was_begun = bool(journal) or signature(store.state_path) is not None
    try:
        if not was_begun and known is None and branch.refs.state not in branch.look():
            # A look at what is nowhere makes no folder for it.
            return SyncStatus(Relation.NOWHERE, known, here, None, None)
        store.bring()
    except RemoteUnreachable as error:
        return SyncStatus(Relation.UNKNOWN, known, here, None, None, error)
    except CorruptState as error:
        return _apart(branch, known, here, error)
    now = branch.known.read()
    if now is None or now.branch != branch.refs.branch:
        return SyncStatus(Relation.UNPUBLISHED, known, here, None, None)
    theirs = journal_of(branch, now.tip) or b""
    damage = _damage(store, theirs)
    if damage is not None:
        return SyncStatus(Relation.DAMAGED, known, here, now.tip, newest(theirs), damage)
    relation = Relation.EQUAL if branch.replica.journal() == journal else Relation.BEHIND
    return SyncStatus(relation if journal else Relation.NEW, known, here, now.tip, newest(theirs))


def as_known(store: GitStore) -> SyncStatus:
    """Tell both sides of the run in *store* as this clone knows them, and change nothing."""
    branch = store.branch
    known, journal = branch.known.read(), branch.replica.journal()
    here = newest(journal)
    if known is None or known.branch != branch.refs.branch:
        was_begun = bool(journal) or signature(store.state_path) is not None
        relation = Relation.UNPUBLISHED if was_begun else Relation.NOWHERE
        return SyncStatus(relation, None, here, None, None, is_asked=False)
    theirs = journal_of(branch, known.tip)
    if theirs is None:
        return SyncStatus(Relation.UNKNOWN, known, here, known.tip, None, is_asked=False)
    relation, damage = Relation.EQUAL, None
    if not journal.startswith(theirs) and theirs.startswith(journal):
        # The next change brings it up.
        relation = Relation.BEHIND
    elif (damage := _damage(store, theirs)) is not None:
        relation = Relation.DAMAGED
    return SyncStatus(relation, known, here, known.tip, newest(theirs), damage, is_asked=False)


def _apart(
    branch: Branch, known: Known | None, here: Head | None, problem: CorruptState
) -> SyncStatus:
    """Return why the branch could not be followed."""
    try:
        tip = branch.look().get(branch.refs.state)
    except RemoteUnreachable as error:
        return SyncStatus(Relation.UNKNOWN, known, here, None, None, error)
    if tip is None:
        return SyncStatus(Relation.GONE, known, here, None, None, problem)
    there = newest(journal_of(branch, tip) or b"")
    if there is None:
        relation = Relation.UNREADABLE
    elif here is not None and here.run_id != there.run_id:
        relation = Relation.ANOTHER_RUN
    else:
        relation = Relation.DIVERGED
    return SyncStatus(relation, known, here, tip, there, problem)


def _damage(store: GitStore, theirs: bytes) -> SequencerError | None:
    """Return why the files here can't be used, though the branch they follow can."""
    if (refusal := diagnose(store.state_path).refusal) is not None:
        return refusal
    # Another process of this clone may have gone on from it meanwhile.
    if store.branch.replica.journal().startswith(theirs):
        return None
    return CorruptState(
        "differs from the branch's journal at the same revision",
        where=str(store.branch.replica.folder / JOURNAL),
        hint="'sequencer sync --take-theirs' sets the files here aside and takes the branch's",
    )


def journal_of(branch: Branch, commit: str) -> bytes | None:
    """Return the journal that *commit* holds, or None if it holds none or is not here."""
    with contextlib.suppress(Missing):
        tree = read_tree(branch.objects, commit, branch.state_path.name)
        oid = None if tree is None else tree.entries.get(JOURNAL)
        return None if oid is None else branch.objects.read(oid, "blob")
    return None


def newest(journal: bytes) -> Head | None:
    """Return the head of the last record of *journal* that can be read."""
    for line in reversed(journal.split(b"\n")):
        with contextlib.suppress(ValueError, StateRefused):
            return parse_head(decode(line)["head"], JOURNAL)
    return None


# --- other runs ------------------------------------------------------------------------


def runs_elsewhere(branch: Branch, template: str, here: Collection[str]) -> list[OtherRun]:
    """Return the runs that are on the remote and, by the names of their folders, not *here*.

    *template* is ``store.branch``.

    Raises:
        RemoteUnreachable: there was no answer.
    """
    options = GitOptions(branch=template)
    ours = {refs_of(options, name).state for name in (None, *here)}
    found = {ref for ref in _listed(branch, template) if ref not in ours}
    shown = [ref for ref in sorted(found) if is_of_a_run(template, ref.removeprefix(_HEADS))]
    del shown[MAX_OTHERS:]
    if not shown:
        return []
    local = {ref: f"{LOCAL}{ref.removeprefix(_HEADS)}/state" for ref in shown}
    branch.remote.fetch(local)
    return list(_described(branch, local))


def _listed(branch: Branch, template: str) -> list[str]:
    pattern = template.replace("{run}", "*") if "{run}" in template else f"{template}-*"
    name = branch.remote.name
    try:
        told = branch.git.text("ls-remote", "--refs", "--", name, f"{_HEADS}{pattern}")
    except GitFailed as failed:
        raise unreachable(name, failed) from failed
    return [line.partition("\t")[2] for line in told.splitlines()]


def _described(branch: Branch, local: dict[str, str]) -> Iterator[OtherRun]:
    for ref, ours in local.items():
        name, head = ref.removeprefix(_HEADS), None
        with contextlib.suppress(GitFailed, StorageFailed):
            commit = branch.objects.resolve(ours)
            head = newest(journal_of(branch, commit) or b"") if commit is not None else None
        yield OtherRun(name, None if head is None else head.run_name, head)


def is_of_a_run(template: str, branch: str) -> bool:
    """Return whether *branch* is one that *template* gives a named run, or the default one.

    >>> is_of_a_run("sequencer/{run}", "sequencer/nightly"), is_of_a_run("state", "state-nightly")
    (True, True)
    >>> is_of_a_run("sequencer/{run}", "main"), is_of_a_run("state", "state")
    (False, False)
    """
    first, *rest = template.split("{run}") if "{run}" in template else (f"{template}-", "")
    pattern = re.escape(first) + "(?P<run>[^/]+)" + "(?P=run)".join(map(re.escape, rest))
    return re.fullmatch(pattern, branch) is not None


_BESIDE = (results.NAME, "beats", "activity")
"""What belongs to the history that the folder had: outputs, heartbeats, who was told of it."""


def take_theirs(
    store: GitStore, sync_status: SyncStatus, now: Callable[[], float] = time.time
) -> tuple[Path, SyncStatus]:
    """Put the run's files here aside and bring the branch's; return where they are, and both sides.

    *sync_status* is what `compare` has just found.

    Raises:
        UsageRefused: there is no need; the folder is the branch, or its beginning.
        StateRefused: there is nothing to take.
    """
    if sync_status.relation.is_sound:
        raise UsageRefused(
            "there is nothing to take: the files here and the branch are one history",
            hint="'sequencer sync --fetch' shows both sides",
        )
    if sync_status.problem is not None and not sync_status.relation.allows_taking:
        raise sync_status.problem
    folder = store.state_path.parent
    with FileStore(store.state_path).locked():
        for head in (sync_status.here, sync_status.there):
            if head is not None:
                # First: whoever is stopped after this has decided for the branch all the same.
                HighWaterMark(store.state_path).forget(head.run_id)
        when = datetime.fromtimestamp(now(), UTC)
        aside = folders.make_another(folder / f"set-aside-{when:%Y%m%dT%H%M%SZ}")
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
