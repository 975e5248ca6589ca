"""The state branch: looked at, followed, and moved by compare-and-swap; a file store's peer.

Safety: the remote's ref is moved only by a push that names its old value, so of two writers one
wins. A push without an answer has been accepted if and only if the branch holds its record; it is
pushed again, as the very same commit, until that is known. It may land as long as every ref that
it moves is where it found it, and until then no refusal of a later one is the last word.
"""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote

from msgspec import Struct

from sequencer.errors import (
    CorruptState,
    RemoteRefused,
    RemoteUnreachable,
    StateRefused,
    StorageFailed,
    WorkTreeRefused,
)
from sequencer.model.transitions import Transition
from sequencer.plugins.git.process import Git, GitFailed
from sequencer.plugins.git.state.locks import in_the_way
from sequencer.plugins.git.state.objects import Missing, Objects
from sequencer.plugins.git.state.remote import (
    NoAtomicPush,
    Pushed,
    PushVerdict,
    RefMove,
    Refs,
    RefWatch,
    Remote,
    remote_folder,
)
from sequencer.plugins.git.state.replica import (
    MAX_JOURNAL_BYTES,
    REMOTE,
    Known,
    KnownFile,
    Replica,
    RunTree,
    Stand,
    depth_of,
    holds,
    read_tree,
)
from sequencer.store.highwater import HighWaterMark
from sequencer.store.identity import utc_now
from sequencer.store.protocol import Agreed, Draft
from sequencer.store.recovery import ensure_shared_is_newest

REBUILDS = 5
"""How often one transition is pushed, or built anew on a newer tip, in one go."""
WHO_MAY_PUSH = "use a key or token that may push there"
MOVED_MEANWHILE = "was moved on the remote by someone else while the step ran"
_PASSING = ("lock", "failed to update ref", "unable to", "cannot update", "atomic transaction")
"""Words of a refusal that another try may not get: two pushes met on the server."""


class PendingPush(Struct, frozen=True):
    """A transition that was pushed."""

    commit: str
    line: bytes
    """Its record, newline included."""
    moves: tuple[RefMove, ...] = ()
    is_of_change: bool = True
    """Whether it is what was asked for, and not what had to come before."""

    def may_land(self, tips: Mapping[str, str], looked_at: Iterable[str]) -> bool:
        """Return whether it may still be accepted, the refs *looked_at* being at *tips*."""
        refs = set(looked_at)
        return all(tips.get(move.ref) == move.old for move in self.moves if move.ref in refs)


def in_doubt(refusal: StateRefused) -> RemoteUnreachable:
    """Return what is told of a *refusal* while an earlier push of the same may still land."""
    return RemoteUnreachable(
        "can't tell whether the change was accepted: an earlier push of it got no answer and "
        f"may still arrive, and now it is refused: {refusal.message}",
        where=refusal.where,
        hint=f"it will be checked again; {refusal.hint}",
        is_denied=isinstance(refusal, RemoteUnreachable) and refusal.is_denied,
    )


PAUSE_S = 0.05
"""The first pause after a push that the remote did not take though nobody was faster."""
ASIDE = 4
"""Journals that were put aside in which a record is looked for."""


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
    mark: HighWaterMark | None = None
    """What this user's own records know of the run."""
    carried: dict[str, str] = field(default_factory=dict)
    """Refs of the remote that are fetched with the state, and where they go here."""
    code_refs: Callable[[], Collection[str]] = tuple
    """Which refs of the remote the code of the run is to move, before any is carried."""
    cargo: RefMove | None = None
    """What moves with the transition whose head names its new commit as its work."""
    unsettled: PendingPush | None = None
    """A push that nobody knows the end of."""
    deciding: Transition | None = None
    """What was asked for, as it was decided last."""
    doubts: list[PendingPush] = field(default_factory=list)
    """The pushes for it that had no answer."""
    is_first_look: bool = True
    looks: int = 0
    """How often the remote has said where it is, and the folder was made that."""
    has_beats: bool = False
    """Whether the ref of the heartbeats was there then."""
    contact_at: float = -math.inf
    """When the folder was last what the remote had, on the monotonic clock."""

    def __post_init__(self) -> None:
        """Begin knowing what remote.json says."""
        draft = f"{self.refs.local}/draft"
        self.replica = Replica(self.state_path, self.objects, draft, self.max_commits)
        self.known = KnownFile(self.replica.folder / REMOTE)
        self._at: Stand | None = None
        self._ahead: Stand | None = None
        """Where the branch is, when the line that it holds is still to be written here."""

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
            tree, depth = None, 0
            with contextlib.suppress(Missing):
                tree = self._tree_of(known.tip)
                depth = depth_of(self.objects, known.tip) if tree is not None else 0
            self._at = Stand(known.tip, tree, known.revision, depth)
        return self._at

    def tip(self) -> str | None:
        """Return the commit that the branch is at, as far as this clone knows."""
        stand = self._stand()
        return None if stand is None else stand.commit

    def before(self) -> None:
        if self.is_first_look or self.unsettled is not None:
            self.follow(self.look())
            self.unsettled = None

    def follow(self, tips: Mapping[str, str]) -> bool:
        """Make the folder what the branch is at *tips*; return whether anything was new.

        Raises:
            RemoteUnreachable: it could not be fetched.
            CorruptState: the branch is no continuation of what is here.
            WorkTreeRefused: the code would be on the same branch.
        """
        self._ensure_apart(self.carried)
        stand, there = self._stand(), tips.get(self.refs.state)
        if there is None:
            if stand is not None:
                raise self._gone()
            return self._followed(is_new=False)
        here = (there, self.replica.revision())
        if stand is not None and here == (stand.commit, stand.revision):
            self._fetch_carried(tips)
            return self._followed(is_new=False)
        return self._followed(is_new=self._follow_to(tips, there))

    def _ensure_apart(self, code: Collection[str]) -> None:
        for ref in (self.refs.state, self.refs.beats):
            if ref in code:
                raise WorkTreeRefused(
                    f"branch {ref.removeprefix('refs/heads/')!r} holds the run's state; code needs "
                    "another branch",
                    hint="'git switch BRANCH', or set store.branch",
                )

    def _followed(self, *, is_new: bool) -> bool:
        self.contact_at, self.looks = time.monotonic(), self.looks + 1
        return is_new

    def _fetch_carried(self, tips: Mapping[str, str]) -> None:
        """Bring what somebody has moved besides the state, and is not here yet."""
        wanted = {
            ref: ours
            for ref, ours in self.carried.items()
            if ref in tips and not self._is_at(tips[ref], ours, ref)
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
        return self._is_at(commit, *names) and (
            self.objects.resolve(f"{commit}^{{tree}}") is not None
        )

    def _is_at(self, commit: str, *refs: str) -> bool:
        """Return whether one of the local *refs* is at *commit*, so that git has had it whole."""
        return any(self.objects.resolve(ref) == commit for ref in refs)

    def _follow_to(self, tips: Mapping[str, str], there: str) -> bool:
        """Bring *there*, or a newer commit, and make the folder that; see `follow`.

        What is missing behind a ref no fetch brings by itself, since git believes its refs.
        """
        try:
            return self._follow_once(self._fetched(tips, there))
        except Missing:
            self.objects.close()
            self._at = None
            if not self.remote.refetch({self.refs.state: f"{self.refs.local}/state"}):
                raise self._gone() from None
        try:
            return self._follow_once(self._fetched(tips, there))
        except Missing as missing:
            raise CorruptState(
                f"can't be fetched completely: {missing.reason}",
                where=self._where,
                hint="look at both repositories with 'git fsck'; a fresh clone shows whether "
                "the remote has it",
            ) from missing

    def _follow_once(self, tip: str) -> bool:
        tree, stand = self._tree_of(tip), self._stand()
        if tree is None:
            raise Missing(tip)
        is_new = self.replica.follow(tree, stand.tree if stand else None, self.refs.branch)
        depth = depth_of(self.objects, tip)
        self._stand_at(Stand(tip, tree, self.replica.revision(), depth))
        return is_new

    def _stand_at(self, stand: Stand) -> None:
        self._at = stand
        self.known.write(
            Known(
                remote=self.remote.name,
                branch=self.refs.branch,
                tip=stand.commit,
                revision=stand.revision,
                at=utc_now(),
            )
        )

    def _is_readable(self, commit: str) -> bool:
        self.objects.close()
        with contextlib.suppress(Missing):
            return self._tree_of(commit) is not None
        return False

    def _tree_of(self, commit: str) -> RunTree | None:
        return read_tree(self.objects, commit, self.state_path.name)

    def _gone(self) -> CorruptState:
        known = self.known.read()
        newest = f"{self.refs.local}/state" if known is None else known.tip
        return CorruptState(
            "is gone from the remote, but this clone has seen it there",
            where=self._where,
            hint="push it again from the clone that is furthest ahead "
            f"('git push {quote(self.remote.name)} {newest}:{quote(self.refs.state)}'), or "
            f"remove {self.known.path} to create it again from the files here",
        )

    def _brought_up(self, draft: Draft) -> bool:
        """Return whether *draft* was made over older files than the branch's, which are here now.

        Raises:
            CorruptState: the branch itself is behind what this user has seen.
        """
        stand = self._stand()
        if stand is not None and (stand.tree is None or stand.revision >= draft.head.revision):
            # Git has thrown the commit away, or somebody the last records of the journal here.
            self._follow_to(self.look(), stand.commit)
            return True
        shown = None
        if self.mark is not None and draft.before is not None:
            shown = self.mark.shown_beyond(draft.before)
        if shown is not None and draft.before is not None:
            if self.follow(self.look()):
                return True
            ensure_shared_is_newest(draft.before, shown, self._where)
        return False

    # --- moving --------------------------------------------------------------------

    def agree(self, draft: Draft) -> Agreed:
        if self._brought_up(draft):
            return Agreed.LOST
        stand = self._stand()
        written = self._written(draft, stand)
        if written is None:
            return Agreed.LOST
        old = None if stand is None else stand.commit
        work = draft.head.work
        cargo = [c for c in (self.cargo,) if c is not None and work and work.commit == c.new]
        moves = [RefMove(self.refs.state, old, written.commit), *cargo]
        pause, is_of_change = PAUSE_S, draft.transition is self.deciding
        for _ in range(REBUILDS):
            pushed = self._pushed(moves)
            if pushed.verdict is PushVerdict.ACCEPTED:
                return self._accepted(written)
            self.unsettled = PendingPush(written.commit, draft.line, tuple(moves), is_of_change)
            if pushed.verdict is PushVerdict.UNKNOWN and self.unsettled not in self.doubts:
                self.doubts.append(self.unsettled)
            tips = self.look()
            there = tips.get(self.refs.state)
            if there == written.commit:
                return self._accepted(written)
            if there != old:
                return self._overtaken(tips, self.unsettled)
            if pushed.verdict is PushVerdict.REFUSED:
                is_new = old is not None and not written.depth and not pushed.is_denied
                if is_new and self.replica.max_commits:
                    # Its history may not begin anew there; then it gets longer.
                    self.replica.max_commits, self.unsettled = 0, None
                    return Agreed.LOST
                self.ensure_may_pass(pushed, moves, tips)
            time.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - to keep two apart
            pause *= 2
        raise self.not_taken(pushed, tips)

    def _written(self, draft: Draft, stand: Stand | None) -> Stand | None:
        """Write the commit of *draft*; None: what it builds on had to be brought again."""
        if stand is None:
            self._ensure_apart(self.code_refs())
        try:
            return self.replica.write(draft, stand)
        except GitFailed:
            if stand is None or self._is_readable(stand.commit):
                raise
        self._follow_to(self.look(), stand.commit)
        return None

    def appended(self) -> None:
        if self._ahead is not None:
            self._stand_at(self._ahead)
            self._ahead = None

    def _pushed(self, moves: Sequence[RefMove]) -> Pushed:
        try:
            return self.remote.push(moves)
        except NoAtomicPush:
            refusal = RemoteRefused(
                "can't move several branches at once, but code has to move with the state",
                where=f"remote {self.remote.name!r}",
                hint="store.work.branch: none leaves code alone; or use a remote with atomic push",
            )
            if not self.doubts:
                raise refusal from None
            return Pushed(PushVerdict.REFUSED, refusal.message)

    def ensure_may_pass(
        self, pushed: Pushed, moves: list[RefMove], tips: Mapping[str, str]
    ) -> None:
        """Return if the refusal of *moves*, the state's first, may not come the next time.

        Where an agent has pushed some of its commits itself, *moves* begins there afterwards.

        Raises:
            WorkTreeRefused: the code is what was refused.
            RemoteRefused: the state is.
            RemoteUnreachable: nobody may push with these credentials, or it is in doubt.
        """
        refusal = self._refusal(pushed, moves, tips)
        if refusal is None:
            return
        if self._has_doubts(tips):
            raise in_doubt(refusal) from refusal
        self.unsettled = None
        raise refusal

    def _refusal(
        self, pushed: Pushed, moves: list[RefMove], tips: Mapping[str, str]
    ) -> StateRefused | None:
        remote = f"remote {self.remote.name!r}"
        if pushed.is_denied:
            message = f"does not accept pushes: {pushed.reason}"
            return RemoteUnreachable(message, where=remote, hint=WHO_MAY_PUSH, is_denied=True)
        said = f" ({pushed.said})" if pushed.said else ""
        for place, move in enumerate(moves[1:], 1):
            there, name = tips.get(move.ref), move.ref.removeprefix("refs/heads/")
            if there != move.old and self._is_between(move, there):
                moves[place] = RefMove(move.ref, there, move.new)
                return None
            told = pushed.refused.get(move.ref, "")
            if there != move.old:
                hint = "bring both together, then run the step again"
                return WorkTreeRefused(f"{name} {MOVED_MEANWHILE}", where=remote, hint=hint)
            if told and not any(word in told for word in _PASSING):
                rules = "look at the remote's rules for it, or set store.work.branch to another one"
                message = f"{name} does not accept pushes: {told}{said}"
                return WorkTreeRefused(message, where=remote, hint=rules)
        if any(word in pushed.reason for word in _PASSING):
            return None
        return RemoteRefused(
            f"does not accept the state of the run: {pushed.reason}{said}",
            where=self._where,
            hint="you must be able to push there: look at the rules for branches "
            "(protected names, hooks), or choose another name with store.branch",
        )

    def _is_between(self, move: RefMove, there: str | None) -> bool:
        """Return whether *there* is on the way that *move* goes."""
        if there is None or move.new is None:
            return False
        return all(
            not self.git.run("merge-base", "--is-ancestor", *pair, accepts=(0, 1, 128)).code
            for pair in ((move.old or there, there), (there, move.new))
        )

    def not_taken(self, pushed: Pushed, tips: Mapping[str, str]) -> Exception:
        """Return what is told when no try was accepted and none was refused for good."""
        if pushed.failure is not None:
            return RemoteUnreachable(
                f"can't tell whether the change was accepted: {pushed.failure.message}",
                hint=pushed.failure.hint,
                is_denied=pushed.failure.is_denied,
            )
        message = f"the remote did not accept a push in {REBUILDS} tries: {pushed.reason}"
        hint = "see what 'sequencer check' finds, then start again"
        if "cannot create" in pushed.reason:
            hint = "'sequencer check' shows which branch is in the way"
        elif "File exists" in pushed.reason:
            hint = "if no git is working there, remove that lock by hand"
            folder = remote_folder(self.git, self.remote.name)
            if folder is not None and (lock := in_the_way(pushed.reason, folder)) is not None:
                message, hint = f"{message}: {lock.words}", lock.hint
        hint = f"nothing was accepted; {hint}"
        failed = StorageFailed(message, where=self._where, hint=hint)
        return in_doubt(failed) if self._has_doubts(tips) else failed

    @property
    def _where(self) -> str:
        return f"branch {self.refs.branch} of {self.remote.name!r}"

    def _has_doubts(self, tips: Mapping[str, str]) -> bool:
        """Return whether a push that had no answer may still be accepted."""
        looked_at = (self.refs.state, *self.carried)
        return any(pending.may_land(tips, looked_at) for pending in self.doubts)

    def _accepted(self, written: Stand) -> Agreed:
        self.unsettled, self.cargo, self._ahead = None, None, written
        self.doubts.clear()
        self.contact_at = time.monotonic()
        return Agreed.ACCEPTED

    def _overtaken(self, tips: Mapping[str, str], pending: PendingPush) -> Agreed:
        """Follow who was faster; the transition may be below theirs all the same."""
        self.follow(tips)
        self.unsettled = None
        if not self.holds(pending):
            return Agreed.LOST
        self.cargo = None
        return Agreed.OVERTAKEN

    def holds(self, pending: PendingPush) -> bool:
        """Return whether what was pushed is in the branch, as far as it was followed.

        Its record tells, also where the history has begun anew: no two records are alike.
        """
        if holds(self.replica.journal(), pending.line):
            return True
        for name in sorted(self.replica.aside(), reverse=True)[:ASIDE]:
            if holds(self.replica.read(name, MAX_JOURNAL_BYTES) or b"", pending.line):
                return True
        return False
