"""The state branch: looked at, followed, and moved by compare-and-swap; a file store's peer.

Safety: the remote's ref is moved only by a push that names its old value, so of two
writers one wins. A push without an answer has been accepted if and only if the branch holds
its record; it is pushed again, as the very same commit, until that is known.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from sequencer.errors import (
    CorruptState,
    RemoteRefused,
    RemoteUnreachable,
    StorageFailed,
    WorkTreeRefused,
)
from sequencer.model.head import Head
from sequencer.store import results
from sequencer.store.clock import utc_now
from sequencer.store.git import objects as git_objects
from sequencer.store.git.command import Git
from sequencer.store.git.known import Known, KnownFile
from sequencer.store.git.objects import Objects, blob_name
from sequencer.store.git.remote import Move, NoAtomicPush, Pushed, Remote, Verdict
from sequencer.store.git.replica import (
    HEAD,
    JOURNAL,
    MAX_JOURNAL_BYTES,
    MAX_OUTPUT_BYTES,
    REMOTE,
    Replica,
    Tree,
    holds,
    read_tree,
    revision_of,
)
from sequencer.store.headfile import signature
from sequencer.store.peer import Agreed, Draft

REBUILDS = 5
"""How often one transition is pushed, or built anew on a newer tip, in one go."""
PAUSE_S = 0.05
"""The first pause after a push that the remote did not take though nobody was faster."""
_PASSING = ("lock", "failed to update ref", "unable to", "cannot update")
"""Words of a refusal that another try may not get: two pushes met on the server."""
_DEPTH = "Depth: "


@dataclass(frozen=True, slots=True)
class Refs:
    """The names of a run's refs."""

    state: str
    """``refs/heads/…`` on the remote."""
    beats: str
    local: str
    """``refs/sequencer/…`` here, with ``/state``, ``/draft``, … below it."""

    @property
    def branch(self) -> str:
        """Return the name of the state branch, as people write it."""
        return self.state.removeprefix("refs/heads/")


@dataclass(frozen=True, slots=True)
class _Stand:
    """A commit of the branch, and what it holds."""

    commit: str
    tree: Tree | None
    """None: it is not in this repository any more."""
    revision: int
    depth: int
    """Commits since the history began."""


@dataclass
class Branch:
    """See the module; every method but `look` is called under the lock of the run's folder."""

    git: Git
    remote: Remote
    objects: Objects
    refs: Refs
    state_path: Path
    max_commits: int
    """After so many the history begins anew, with the same files; 0: never."""
    carried: dict[str, str] = field(default_factory=dict)
    """Refs of the remote that are fetched with the state, and where they go here."""
    cargo: Move | None = None
    """What moves with the transition whose head names its new commit as its work."""
    unsettled: tuple[str, bytes] | None = None
    """Commit and record of a push that nobody knows the end of."""
    is_first_look: bool = True
    looks: int = 0
    """How often the remote has said where it is."""
    contact_at: float = -math.inf
    """When that was last known for sure, on the monotonic clock."""

    def __post_init__(self) -> None:
        """Begin knowing what remote.json says."""
        self.replica = Replica(self.state_path, self.objects)
        self.known = KnownFile(self.replica.folder / REMOTE)
        self._at: _Stand | None = None
        self._ahead: _Stand | None = None
        """Where the branch is, when the line that it holds is still to be written here."""
        self._hashed: dict[str, tuple[object, str]] = {}
        self._may_rewrite = self.max_commits > 0

    # --- looking -------------------------------------------------------------------

    def look(self) -> dict[str, str]:
        """Return where the branch, the heartbeats and what is carried are on the remote.

        Raises:
            RemoteUnreachable: there was no answer.
        """
        tips = self.remote.tips([self.refs.state, self.refs.beats, *self.carried])
        self.is_first_look, self.looks = False, self.looks + 1
        self.contact_at = time.monotonic()
        return tips

    def _stand(self) -> _Stand | None:
        """Return where this clone knows the branch to be; another process may have moved it."""
        known = self.known.read()
        if known is None or known.branch != self.refs.branch:
            self._at = None
        elif self._at is None or self._at.commit != known.tip:
            tree = self._tree_of(known.tip)
            depth = self._depth_of(known.tip) if tree is not None else 0
            self._at = _Stand(known.tip, tree, known.revision, depth)
        return self._at

    def tip(self) -> str | None:
        """Return the commit that the branch is at, as far as this clone knows."""
        stand = self._stand()
        return None if stand is None else stand.commit

    def before(self) -> None:
        """See `Peer.before`."""
        if self.is_first_look or self.unsettled is not None:
            self.follow(self.look())
            self.unsettled = None

    def follow(self, tips: Mapping[str, str]) -> bool:
        """Make the folder what the branch is at *tips*; return whether anything was new.

        Raises:
            RemoteUnreachable: it could not be fetched.
            CorruptState: the branch is no continuation of what is here.
        """
        stand, there = self._stand(), tips.get(self.refs.state)
        if there is None:
            if stand is not None:
                raise self._gone()
            return False
        here = revision_of(self.replica.journal())
        if stand is not None and (there, here) == (stand.commit, stand.revision):
            return False
        return self._follow_to(self._fetched(tips, there))

    def _fetched(self, tips: Mapping[str, str], there: str) -> str:
        """Have the commit *there* in this repository, or a newer one; return which."""
        wanted = {ref: ours for ref, ours in self.carried.items() if ref in tips}
        if not wanted and self.objects.resolve(f"{there}^{{tree}}") is not None:
            return there
        if not self.remote.fetch({self.refs.state: f"{self.refs.local}/state", **wanted}):
            raise self._gone()
        tip = self.objects.resolve(f"{self.refs.local}/state")
        if tip is None:
            raise self._gone()
        return tip

    def _follow_to(self, tip: str) -> bool:
        tree, stand = self._tree_of(tip), self._stand()
        if tree is None:
            raise self._gone()
        is_new = self.replica.follow(tree, stand.tree if stand else None, self.refs.branch)
        revision = revision_of(self.replica.journal())
        self._stand_at(_Stand(tip, tree, revision, self._depth_of(tip)))
        return is_new

    def _stand_at(self, stand: _Stand) -> None:
        self._at = stand
        self.known.write(
            Known(self.remote.name, self.refs.branch, stand.commit, stand.revision, utc_now())
        )

    def _tree_of(self, commit: str) -> Tree | None:
        return read_tree(self.objects, commit, self.state_path.name)

    def _depth_of(self, commit: str) -> int:
        data = self.objects.read(commit, "commit") or b""
        for line in data.decode("utf-8", "replace").splitlines():
            if line.startswith(_DEPTH) and line[len(_DEPTH) :].isdecimal():
                return int(line[len(_DEPTH) :])
        return 0

    def _gone(self) -> CorruptState:
        return CorruptState(
            "is gone from the remote, and this clone has seen it there",
            where=f"branch {self.refs.branch} of {self.remote.name!r}",
            hint="push it again from the clone that is furthest "
            f"('git push {self.remote.name} {self.refs.local}/state:{self.refs.state}'), or "
            f"remove {self.known.path} to begin it anew from the files here",
        )

    # --- moving --------------------------------------------------------------------

    def agree(self, draft: Draft) -> Agreed:
        """See `Peer.agree`."""
        stand = self._stand()
        if stand is not None and (stand.tree is None or stand.revision >= draft.head.revision):
            # Git has thrown the commit away, or somebody the last records of the journal here.
            self._follow_to(self._fetched(self.look(), stand.commit))
            return Agreed.LOST
        written = self._written(draft, stand)
        old = None if stand is None else stand.commit
        moves = [Move(self.refs.state, old, written.commit), *self._cargo_of(draft.head)]
        pause = PAUSE_S
        for _ in range(REBUILDS):
            pushed = self._pushed(moves)
            if pushed.verdict is Verdict.ACCEPTED:
                return self._accepted(written)
            self.unsettled = (written.commit, draft.line)
            tips = self.look()
            there = tips.get(self.refs.state)
            if there == written.commit:
                return self._accepted(written)
            if there != old:
                return self._overtaken(tips, draft.line)
            if pushed.verdict is Verdict.REFUSED:
                if old is not None and not written.depth and self._may_rewrite:
                    # Its history may not begin anew there; then it gets longer.
                    self._may_rewrite, self.unsettled = False, None
                    return Agreed.LOST
                self._ensure_passing(pushed, moves, tips)
            time.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - to keep two apart
            pause *= 2
        raise self._not_taken(pushed)

    def appended(self) -> None:
        """See `Peer.appended`."""
        if self._ahead is not None:
            self._stand_at(self._ahead)
            self._ahead = None

    def _pushed(self, moves: Sequence[Move]) -> Pushed:
        try:
            return self.remote.push(moves)
        except NoAtomicPush:
            self.unsettled = None
            raise RemoteRefused(
                "can't move several branches at once, and code was to move with the state",
                where=f"remote {self.remote.name!r}",
                hint="store.work.branch: null leaves code alone; or use a remote with atomic push",
            ) from None

    def _accepted(self, written: _Stand) -> Agreed:
        self.unsettled, self.cargo, self._ahead = None, None, written
        self.contact_at = time.monotonic()
        return Agreed.ACCEPTED

    def _overtaken(self, tips: Mapping[str, str], line: bytes) -> Agreed:
        """Follow who was faster; the transition may be below theirs all the same."""
        self.follow(tips)
        self.unsettled = None
        if not self.has(line):
            return Agreed.LOST
        self.cargo = None
        return Agreed.OVERTAKEN

    def has(self, line: bytes) -> bool:
        """Return whether the record *line* is among those of the folder."""
        if holds(self.replica.journal(), line):
            return True
        newest = max(self.replica.aside(), default=None)
        aside = self.replica.read(newest, MAX_JOURNAL_BYTES) if newest is not None else None
        return holds(aside or b"", line)

    def _ensure_passing(
        self, pushed: Pushed, moves: Sequence[Move], tips: Mapping[str, str]
    ) -> None:
        """Raise if the remote's refusal will not be another one the next time."""
        for move in moves[1:]:
            if tips.get(move.ref) != move.old:
                self.unsettled = None
                raise WorkTreeRefused(
                    f"{move.ref.removeprefix('refs/heads/')} was moved on the remote by somebody "
                    "else while the step ran",
                    where=f"remote {self.remote.name!r}",
                    hint="bring both together, then run the step again",
                )
        if any(word in pushed.reason for word in _PASSING):
            return
        self.unsettled = None
        raise RemoteRefused(
            f"does not take the state of the run: {pushed.reason}",
            where=f"branch {self.refs.branch} of {self.remote.name!r}",
            hint="whoever runs this needs to push there: look at the rules for branches "
            "(protected names, hooks), or choose another name with store.branch",
        )

    def _not_taken(self, pushed: Pushed) -> StorageFailed:
        if pushed.failure is not None:
            return RemoteUnreachable(
                f"whether the change was accepted can't be told: {pushed.failure.message}",
                hint=pushed.failure.hint,
                is_denied=pushed.failure.is_denied,
            )
        return StorageFailed(
            f"the remote did not take a push {REBUILDS} times: {pushed.reason}",
            where=f"branch {self.refs.branch} of {self.remote.name!r}",
            hint="nothing was accepted; start again",
        )

    # --- writing -------------------------------------------------------------------

    def _cargo_of(self, head: Head) -> list[Move]:
        cargo, work = self.cargo, head.work
        return [cargo] if cargo is not None and work and work.commit == cargo.new else []

    def _written(self, draft: Draft, stand: _Stand | None) -> _Stand:
        """Write the commit of *draft* on top of *stand*; return where it is."""
        before = stand.tree if stand is not None and stand.tree is not None else Tree({})
        files = self._files(draft, before, stand)
        depth = 0 if stand is None else stand.depth + 1
        if stand is not None and self._may_rewrite and depth >= self.max_commits:
            depth = 0
        old = None if stand is None else stand.commit
        commit = self.objects.write(
            git_objects.Draft(
                _message(draft, depth),
                parent=old if depth else None,
                base=None if depth else old,
                files=files,
                at=_epoch(draft.head.last_update),
            ),
            f"{self.refs.local}/draft",
        )
        entries = {name: oid for name, oid in before.entries.items() if name not in files}
        chars = len(commit)
        entries |= {n: blob_name(data, chars) for n, data in files.items() if data is not None}
        return _Stand(commit, Tree(entries), draft.head.revision, depth)

    def _files(self, draft: Draft, before: Tree, stand: _Stand | None) -> dict[str, bytes | None]:
        """Return what differs from the commit *before*: paths and contents, None for removed."""
        replica = self.replica
        journal = replica.journal() + draft.closing + draft.line
        files: dict[str, bytes | None] = {HEAD: draft.content, JOURNAL: journal}
        aside, here = replica.aside(), replica.documents()
        for name in sorted(aside - before.aside()):
            files[name] = replica.read(name, MAX_JOURNAL_BYTES)
        for name in sorted(here):
            if stand is None or self._differs(name, before, len(stand.commit)):
                files[name] = replica.read(name)
        for fact in draft.transition.facts:
            name = f"{results.NAME}/{fact.step_index}-{fact.token}/{results.OUTPUT}"
            if name not in before.entries and (data := replica.read(name, MAX_OUTPUT_BYTES)):
                files[name] = data
        removed = (before.aside() - aside) | (before.documents() - here)
        if aside - before.aside():
            # With the records of a journal that was put aside long ago, outputs go as well.
            removed |= before.outputs() - replica.outputs()
        return files | dict.fromkeys(sorted(removed))

    def _differs(self, name: str, before: Tree, chars: int) -> bool:
        """Return whether the document *name* is another one here than in *before*."""
        mark = signature(self.replica.folder / name)
        known = self._hashed.get(name)
        if known is None or known[0] != mark:
            data = self.replica.read(name)
            known = (mark, "" if data is None else blob_name(data, chars))
            self._hashed[name] = known
        return bool(known[1]) and known[1] != before.entries.get(name)


def _message(draft: Draft, depth: int) -> str:
    told = ", ".join(str(fact.event) for fact in draft.transition.facts)
    fact, head = draft.transition.facts[0], draft.head
    lines = [
        f"{told}: {fact.step} (step_index {fact.step_index}, token {fact.token})",
        "",
        f"Run: {head.run_name or 'default'} {head.run_id}",
        f"Revision: {head.revision}",
        f"{_DEPTH}{depth}",
    ]
    return "\n".join(lines) + "\n"


def _epoch(at: str) -> int:
    try:
        return max(0, int(datetime.fromisoformat(at).timestamp()))
    except ValueError:
        return 0
