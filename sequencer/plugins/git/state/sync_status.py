"""Sync status of a run: how this clone's folder relates to the branch on the remote.

Looks at the remote, follows the branch if nothing is lost by that, and reports how the two relate.
If the branch can't be followed, the files stay as they are and a person decides. `take_theirs`
takes the branch's files: it first moves the files of the folder into a new folder inside it, which
stays until a person removes it. After a crash some files are set aside already; calling it again
continues from there.
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
from sequencer.plugins.git.state.remote import unreachable_error
from sequencer.plugins.git.state.replica import JOURNAL, REMOTE, LastSeenCommit, read_tree
from sequencer.plugins.git.state.store import LOCAL, GitOptions, GitStore, get_refs
from sequencer.store import folder as folders
from sequencer.store import results
from sequencer.store.diagnosis import diagnose
from sequencer.store.file import FileStore
from sequencer.store.folder import sync_folder
from sequencer.store.head import parse_head, signature
from sequencer.store.highwater import HighWaterMark
from sequencer.store.journal import decode

MAX_OTHERS = 50
"""Maximum number of runs that are only on the remote to list with more than their name."""
_HEADS = "refs/heads/"


class Relation(StrEnum):
    """How this clone's folder relates to the branch."""

    NOWHERE = "nowhere"
    """The run was never started, neither here nor on the remote."""
    UNPUBLISHED = "unpublished"
    """The run exists only here and was never on the branch; the next change puts it there."""
    NEW = "new"
    """The run was only on the branch; this look brought it here."""
    BEHIND = "behind"
    """The folder had an earlier state of the branch, and was brought up to date."""
    EQUAL = "equal"
    GONE = "gone"
    """The branch no longer exists."""
    DIVERGED = "diverged"
    """The branch does not continue from the files here: someone has reset it."""
    ANOTHER_RUN = "another-run"
    UNREADABLE = "unreadable"
    """The branch holds no run."""
    DAMAGED = "damaged"
    """The files here can't be used, but the branch can."""
    UNKNOWN = "unknown"
    """The remote did not answer."""

    @property
    def is_sound(self) -> bool:
        """Return whether work can continue without a decision by a person."""
        return self in _SOUND

    @property
    def allows_taking(self) -> bool:
        """Return whether there is a reason to take the branch's files, and there are files."""
        return self in (Relation.DIVERGED, Relation.ANOTHER_RUN, Relation.DAMAGED)


_SOUND = frozenset(
    {Relation.NOWHERE, Relation.UNPUBLISHED, Relation.NEW, Relation.BEHIND, Relation.EQUAL}
)


class SyncStatus(Struct, frozen=True):
    """The result of one look at the folder and the branch."""

    relation: Relation
    known: LastSeenCommit | None
    """The branch as this clone knew it before the look."""
    local_head: Head | None
    """The head of the folder's newest record, before the look brought anything."""
    tip: str | None
    """The commit that the branch is at; None: there is no branch, or its commit is not known."""
    remote_head: Head | None
    """The head of the branch's newest record."""
    problem: SequencerError | None = None
    """What a person has to decide or fix."""
    is_asked: bool = True
    """Whether the remote was asked; otherwise the branch is as this clone last saw it."""


class OtherRun(Struct, frozen=True):
    """A run that is on the remote but not in this clone."""

    branch: str
    name: str | None
    """Its name as ``--run`` takes it; None: its branch can't be read."""
    head: Head | None


def compare_with_remote(store: GitStore) -> SyncStatus:
    """Look at the remote, bring its changes into the folder of *store*, and return both states.

    Raises:
        StorageFailed: the files of this clone can't be read or written.
    """
    branch = store.branch
    known_state, journal = branch.known.read(), branch.replica.read_journal()
    local_head = parse_newest_head(journal)
    was_started = bool(journal) or signature(store.state_path) is not None
    try:
        if not was_started and known_state is None and branch.refs.state not in branch.fetch_tips():
            # A look must not create a folder for a run that does not exist.
            return SyncStatus(Relation.NOWHERE, known_state, local_head, None, None)
        store.pull()
    except RemoteUnreachable as error:
        return SyncStatus(Relation.UNKNOWN, known_state, local_head, None, None, error)
    except CorruptState as error:
        return _diagnose_branch(branch, known_state, local_head, error)
    new_state = branch.known.read()
    if new_state is None or new_state.branch != branch.refs.branch:
        return SyncStatus(Relation.UNPUBLISHED, known_state, local_head, None, None)
    remote_journal = read_journal(branch, new_state.tip) or b""
    damage = _find_damage(store, remote_journal)
    if damage is not None:
        return SyncStatus(
            Relation.DAMAGED,
            known_state,
            local_head,
            new_state.tip,
            parse_newest_head(remote_journal),
            damage,
        )
    relation = Relation.EQUAL if branch.replica.read_journal() == journal else Relation.BEHIND
    return SyncStatus(
        relation if journal else Relation.NEW,
        known_state,
        local_head,
        new_state.tip,
        parse_newest_head(remote_journal),
    )


def compare_with_known(store: GitStore) -> SyncStatus:
    """Return the sync status of the run in *store* from local knowledge alone; change nothing."""
    branch = store.branch
    known_state, journal = branch.known.read(), branch.replica.read_journal()
    local_head = parse_newest_head(journal)
    if known_state is None or known_state.branch != branch.refs.branch:
        was_started = bool(journal) or signature(store.state_path) is not None
        relation = Relation.UNPUBLISHED if was_started else Relation.NOWHERE
        return SyncStatus(relation, None, local_head, None, None, is_asked=False)
    remote_journal = read_journal(branch, known_state.tip)
    if remote_journal is None:
        return SyncStatus(
            Relation.UNKNOWN, known_state, local_head, known_state.tip, None, is_asked=False
        )
    relation, damage = Relation.EQUAL, None
    if not journal.startswith(remote_journal) and remote_journal.startswith(journal):
        # The next change brings the folder up to date.
        relation = Relation.BEHIND
    elif (damage := _find_damage(store, remote_journal)) is not None:
        relation = Relation.DAMAGED
    return SyncStatus(
        relation,
        known_state,
        local_head,
        known_state.tip,
        parse_newest_head(remote_journal),
        damage,
        is_asked=False,
    )


def _diagnose_branch(
    branch: Branch,
    known_state: LastSeenCommit | None,
    local_head: Head | None,
    problem: CorruptState,
) -> SyncStatus:
    """Return the status of a branch that could not be followed because of *problem*."""
    try:
        tip = branch.fetch_tips().get(branch.refs.state)
    except RemoteUnreachable as error:
        return SyncStatus(Relation.UNKNOWN, known_state, local_head, None, None, error)
    if tip is None:
        return SyncStatus(Relation.GONE, known_state, local_head, None, None, problem)
    remote_head = parse_newest_head(read_journal(branch, tip) or b"")
    if remote_head is None:
        relation = Relation.UNREADABLE
    elif local_head is not None and local_head.run_id != remote_head.run_id:
        relation = Relation.ANOTHER_RUN
    else:
        relation = Relation.DIVERGED
    return SyncStatus(relation, known_state, local_head, tip, remote_head, problem)


def _find_damage(store: GitStore, remote_journal: bytes) -> SequencerError | None:
    """Return why the files here can't be used although the branch can, or None if they can."""
    if (refusal := diagnose(store.state_path).refusal) is not None:
        return refusal
    # Another process of this clone may have appended records to it since.
    if store.branch.replica.read_journal().startswith(remote_journal):
        return None
    return CorruptState(
        "differs from the branch's journal at the same revision",
        where=str(store.branch.replica.folder / JOURNAL),
        hint="'sequencer sync --take-theirs' sets the files here aside and takes the branch's",
    )


def read_journal(branch: Branch, commit: str) -> bytes | None:
    """Return the journal in *commit*, or None if it has none or is not in this repository."""
    with contextlib.suppress(Missing):
        tree = read_tree(branch.objects, commit, branch.state_path.name)
        oid = None if tree is None else tree.entries.get(JOURNAL)
        return None if oid is None else branch.objects.read(oid, "blob")
    return None


def parse_newest_head(journal: bytes) -> Head | None:
    """Return the head of the last record of *journal* that can be read."""
    for line in reversed(journal.split(b"\n")):
        with contextlib.suppress(ValueError, StateRefused):
            return parse_head(decode(line)["head"], JOURNAL)
    return None


# --- other runs ------------------------------------------------------------------------


def find_runs_elsewhere(
    branch: Branch, template: str, local_names: Collection[str]
) -> list[OtherRun]:
    """Return the runs on the remote that have no folder in this clone.

    *template* is ``store.branch``; *local_names* are the folder names of this clone's runs.

    Raises:
        RemoteUnreachable: there was no answer.
    """
    options = GitOptions(branch=template)
    own_refs = {get_refs(options, name).state for name in (None, *local_names)}
    other_refs = {ref for ref in _list_remote_refs(branch, template) if ref not in own_refs}
    shown_refs = [
        ref for ref in sorted(other_refs) if is_run_branch(template, ref.removeprefix(_HEADS))
    ]
    del shown_refs[MAX_OTHERS:]
    if not shown_refs:
        return []
    local_refs = {ref: f"{LOCAL}{ref.removeprefix(_HEADS)}/state" for ref in shown_refs}
    branch.remote.fetch(local_refs)
    return list(_read_other_runs(branch, local_refs))


def _list_remote_refs(branch: Branch, template: str) -> list[str]:
    pattern = template.replace("{run}", "*") if "{run}" in template else f"{template}-*"
    name = branch.remote.name
    try:
        output = branch.git.read_output("ls-remote", "--refs", "--", name, f"{_HEADS}{pattern}")
    except GitFailed as failed:
        raise unreachable_error(name, failed) from failed
    return [line.partition("\t")[2] for line in output.splitlines()]


def _read_other_runs(branch: Branch, local_refs: dict[str, str]) -> Iterator[OtherRun]:
    for ref, local_ref in local_refs.items():
        name, head = ref.removeprefix(_HEADS), None
        with contextlib.suppress(GitFailed, StorageFailed):
            commit = branch.objects.resolve(local_ref)
            head = (
                parse_newest_head(read_journal(branch, commit) or b"")
                if commit is not None
                else None
            )
        yield OtherRun(name, None if head is None else head.run_name, head)


def is_run_branch(template: str, branch: str) -> bool:
    """Return whether *template* can give *branch* to a run, named or default.

    >>> is_run_branch("sequencer/{run}", "sequencer/a"), is_run_branch("state", "state-a")
    (True, True)
    >>> is_run_branch("sequencer/{run}", "main"), is_run_branch("state", "state")
    (False, False)
    """
    prefix, *parts = template.split("{run}") if "{run}" in template else (f"{template}-", "")
    pattern = re.escape(prefix) + "(?P<run>[^/]+)" + "(?P=run)".join(map(re.escape, parts))
    return re.fullmatch(pattern, branch) is not None


_LOCAL_FILES = (results.NAME, "beats", "activity")
"""Files that belong to the folder's old history: outputs, heartbeats, and which were reported."""


def take_theirs(
    store: GitStore, sync_status: SyncStatus, now: Callable[[], float] = time.time
) -> tuple[Path, SyncStatus]:
    """Set the run's files aside and bring the branch's; return the new folder and the new status.

    *sync_status* is the result of a `compare_with_remote` that was made just before.

    Raises:
        UsageRefused: there is no need, because the branch continues from the folder's files.
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
    with FileStore(store.state_path).hold_lock():
        for head in (sync_status.local_head, sync_status.remote_head):
            if head is not None:
                # First, because the decision for the branch stands even if the rest fails.
                HighWaterMark(store.state_path).remove_record(head.run_id)
        timestamp = datetime.fromtimestamp(now(), UTC)
        aside_folder = folders.make_numbered_folder(
            folder / f"set-aside-{timestamp:%Y%m%dT%H%M%SZ}"
        )
        for path in _list_run_files(store):
            folders.move(path, aside_folder / path.name)
        sync_folder(aside_folder)
        sync_folder(folder)
    after = compare_with_remote(store)
    if after.relation is not Relation.NEW:
        raise after.problem or StateRefused(
            f"the branch could not be taken; the files that were here are in {aside_folder}"
        )
    return aside_folder, after


def _list_run_files(store: GitStore) -> Iterator[Path]:
    """Yield the files to set aside.

    The journal comes second to last: it is the only record of the changes that were accepted.
    """
    replica, folder = store.branch.replica, store.state_path.parent
    names = (
        store.state_path.name,
        *sorted(replica.documents()),
        *_LOCAL_FILES,
        *sorted(replica.rotated_journals()),
        JOURNAL,
        REMOTE,
    )
    for name in names:
        path = folder / name
        if path.is_symlink() or path.exists():
            yield path
