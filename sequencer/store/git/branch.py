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
from pathlib import Path

from sequencer.errors import (
    CorruptState,
    RemoteRefused,
    RemoteUnreachable,
    StorageFailed,
    WorkTreeRefused,
)
from sequencer.model.head import Head
from sequencer.store.clock import utc_now
from sequencer.store.git.command import Git
from sequencer.store.git.drafting import Drafting, Stand, depth_of
from sequencer.store.git.known import Known, KnownFile
from sequencer.store.git.local_remote import RefWatch
from sequencer.store.git.objects import Objects
from sequencer.store.git.remote import Move, NoAtomicPush, Pushed, Remote, Verdict
from sequencer.store.git.replica import (
    MAX_JOURNAL_BYTES,
    REMOTE,
    Replica,
    Tree,
    holds,
    read_tree,
    revision_of,
)
from sequencer.store.peer import Agreed, Draft

REBUILDS = 5
"""How often one transition is pushed, or built anew on a newer tip, in one go."""
PAUSE_S = 0.05
"""The first pause after a push that the remote did not take though nobody was faster."""
_MOVED = "was moved on the remote by somebody else while the step ran"
ASIDE = 4
"""Journals that were put aside in which a record is looked for."""
_PASSING = ("lock", "failed to update ref", "unable to", "cannot update", "atomic transaction")
"""Words of a refusal that another try may not get: two pushes met on the server."""


@dataclass(frozen=True, slots=True)
class Refs:
    """The names of a run's refs."""

    state: str
    """``refs/heads/…`` on the remote."""
    beats: str
    local: str
    """``refs/worktree/sequencer/…`` here, with ``/state``, ``/draft``, … below it."""

    @property
    def branch(self) -> str:
        """Return the name of the state branch, as people write it."""
        return self.state.removeprefix("refs/heads/")


@dataclass(frozen=True, slots=True)
class Pending:
    """A transition that was pushed."""

    commit: str
    line: bytes
    """Its record, newline included."""


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
    unsettled: Pending | None = None
    """A push that nobody knows the end of."""
    is_first_look: bool = True
    looks: int = 0
    """How often the remote has said where it is, and the folder was made that."""
    has_beats: bool = False
    """Whether the ref of the heartbeats was there then."""
    contact_at: float = -math.inf
    """When the folder was last what the remote had, on the monotonic clock."""

    def __post_init__(self) -> None:
        """Begin knowing what remote.json says."""
        self.replica = Replica(self.state_path, self.objects)
        self.known = KnownFile(self.replica.folder / REMOTE)
        self._at: Stand | None = None
        self._ahead: Stand | None = None
        """Where the branch is, when the line that it holds is still to be written here."""
        self.drafting = Drafting(
            self.replica, self.objects, f"{self.refs.local}/draft", self.max_commits
        )

    # --- looking -------------------------------------------------------------------

    def look(self) -> dict[str, str]:
        """Return where the branch, the heartbeats and what is carried are on the remote.

        Raises:
            RemoteUnreachable: there was no answer.
        """
        tips = self.remote.tips([self.refs.state, self.refs.beats, *self.carried])
        self.has_beats = self.refs.beats in tips
        self.is_first_look = False
        return tips

    def peek(self, refs: RefWatch) -> dict[str, str] | None:
        """Return where the refs are on a remote of this machine, or None if *refs* can't tell.

        Not those of the heartbeats: who needs them asks with `look`.
        """
        tips = {ref: refs.tip_of(ref) for ref in (self.refs.state, *self.carried)}
        found = {ref: tip for ref, tip in tips.items() if tip is not None}
        if len(found) < len(tips):
            return None
        return found

    def _stand(self) -> Stand | None:
        """Return where this clone knows the branch to be; another process may have moved it."""
        known = self.known.read()
        if known is None or known.branch != self.refs.branch:
            self._at = None
        elif self._at is None or self._at.commit != known.tip:
            tree = self._tree_of(known.tip)
            depth = depth_of(self.objects, known.tip) if tree is not None else 0
            self._at = Stand(known.tip, tree, known.revision, depth)
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
            return self._followed(is_new=False)
        here = revision_of(self.replica.journal())
        if stand is not None and (there, here) == (stand.commit, stand.revision):
            self._fetch_carried(tips)
            return self._followed(is_new=False)
        return self._followed(is_new=self._follow_to(self._fetched(tips, there)))

    def _followed(self, *, is_new: bool) -> bool:
        self.contact_at, self.looks = time.monotonic(), self.looks + 1
        return is_new

    def _fetch_carried(self, tips: Mapping[str, str]) -> None:
        """Bring what somebody has moved besides the state, and is not here yet."""
        wanted = {
            ref: ours
            for ref, ours in self.carried.items()
            if ref in tips and self.objects.resolve(f"{tips[ref]}^{{tree}}") is None
        }
        if wanted:
            self.remote.fetch(wanted)

    def _fetched(self, tips: Mapping[str, str], there: str) -> str:
        """Have the commit *there* in this repository, or a newer one; return which."""
        wanted = {ref: ours for ref, ours in self.carried.items() if ref in tips}
        if not wanted and self._is_whole(there):
            return there
        if not self.remote.fetch({self.refs.state: f"{self.refs.local}/state", **wanted}):
            raise self._gone()
        tip = self.objects.resolve(f"{self.refs.local}/state")
        if tip is None:
            raise self._gone()
        return tip

    def _is_whole(self, commit: str) -> bool:
        """Return whether *commit* is here with all that it holds.

        A git that is killed while it fetches may leave a commit without its files; refs are
        moved last.
        """
        names = (f"{self.refs.local}/state", f"{self.refs.local}/draft")
        return commit in {self.objects.resolve(name) for name in names} and (
            self.objects.resolve(f"{commit}^{{tree}}") is not None
        )

    def _follow_to(self, tip: str) -> bool:
        tree, stand = self._tree_of(tip), self._stand()
        if tree is None:
            raise self._gone()
        is_new = self.replica.follow(tree, stand.tree if stand else None, self.refs.branch)
        revision = revision_of(self.replica.journal())
        self._stand_at(Stand(tip, tree, revision, depth_of(self.objects, tip)))
        return is_new

    def _stand_at(self, stand: Stand) -> None:
        self._at = stand
        self.known.write(
            Known(self.remote.name, self.refs.branch, stand.commit, stand.revision, utc_now())
        )

    def _tree_of(self, commit: str) -> Tree | None:
        return read_tree(self.objects, commit, self.state_path.name)

    def _gone(self) -> CorruptState:
        known = self.known.read()
        newest = f"{self.refs.local}/state" if known is None else known.tip
        return CorruptState(
            "is gone from the remote, and this clone has seen it there",
            where=f"branch {self.refs.branch} of {self.remote.name!r}",
            hint="push it again from the clone that is furthest "
            f"('git push {self.remote.name} {newest}:{self.refs.state}'), or "
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
        written = self.drafting.write(draft, stand)
        old = None if stand is None else stand.commit
        moves = [Move(self.refs.state, old, written.commit), *self._cargo_of(draft.head)]
        pause = PAUSE_S
        for _ in range(REBUILDS):
            pushed = self._pushed(moves)
            if pushed.verdict is Verdict.ACCEPTED:
                return self._accepted(written)
            self.unsettled = Pending(written.commit, draft.line)
            tips = self.look()
            there = tips.get(self.refs.state)
            if there == written.commit:
                return self._accepted(written)
            if there != old:
                return self._overtaken(tips, self.unsettled)
            if pushed.verdict is Verdict.REFUSED:
                if old is not None and not written.depth and self.drafting.max_commits:
                    # Its history may not begin anew there; then it gets longer.
                    self.drafting.max_commits, self.unsettled = 0, None
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
                hint="store.work.branch: none leaves code alone; or use a remote with atomic push",
            ) from None

    def _accepted(self, written: Stand) -> Agreed:
        self.unsettled, self.cargo, self._ahead = None, None, written
        self.contact_at = time.monotonic()
        return Agreed.ACCEPTED

    def _overtaken(self, tips: Mapping[str, str], pending: Pending) -> Agreed:
        """Follow who was faster; the transition may be below theirs all the same."""
        self.follow(tips)
        self.unsettled = None
        if not self.holds(pending):
            return Agreed.LOST
        self.cargo = None
        return Agreed.OVERTAKEN

    def holds(self, pending: Pending) -> bool:
        """Return whether what was pushed is in the branch, as far as it was followed.

        Its record tells, also where the history has begun anew: no two records are alike.
        """
        if holds(self.replica.journal(), pending.line):
            return True
        for name in sorted(self.replica.aside(), reverse=True)[:ASIDE]:
            if holds(self.replica.read(name, MAX_JOURNAL_BYTES) or b"", pending.line):
                return True
        return False

    def _ensure_passing(self, pushed: Pushed, moves: list[Move], tips: Mapping[str, str]) -> None:
        """Raise if the remote's refusal will not be another one the next time."""
        for place, move in enumerate(moves[1:], 1):
            there, name = tips.get(move.ref), move.ref.removeprefix("refs/heads/")
            if there != move.old and self._is_between(move, there):
                # The agent has pushed some of it itself.
                moves[place] = Move(move.ref, there, move.new)
                return
            told = pushed.refused.get(move.ref, "")
            is_passing = any(word in told for word in _PASSING)
            if there == move.old and (not told or is_passing):
                continue
            self.unsettled = None
            what = f"takes no push: {told}" if there == move.old else _MOVED
            raise WorkTreeRefused(
                f"{name} {what}",
                where=f"remote {self.remote.name!r}",
                hint="bring both together, then run the step again"
                if what is _MOVED
                else "look at the remote's rules for it, or set store.work.branch to another one",
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

    def _is_between(self, move: Move, there: str | None) -> bool:
        """Return whether *there* is on the way that *move* goes."""
        if there is None or move.new is None:
            return False
        return all(
            not self.git.run("merge-base", "--is-ancestor", *pair, accepts=(0, 1, 128)).code
            for pair in ((move.old or there, there), (there, move.new))
        )

    def _not_taken(self, pushed: Pushed) -> StorageFailed:
        if pushed.failure is not None:
            return RemoteUnreachable(
                f"whether the change was accepted can't be told: {pushed.failure.message}",
                hint=pushed.failure.hint,
                is_denied=pushed.failure.is_denied,
            )
        hint = "nothing was accepted; start again"
        if "File exists" in pushed.reason:
            hint = "nothing was accepted; where no git is at work there, remove that lock by hand"
        return StorageFailed(
            f"the remote did not take a push {REBUILDS} times: {pushed.reason}",
            where=f"branch {self.refs.branch} of {self.remote.name!r}",
            hint=hint,
        )

    def _cargo_of(self, head: Head) -> list[Move]:
        cargo, work = self.cargo, head.work
        return [cargo] if cargo is not None and work and work.commit == cargo.new else []
