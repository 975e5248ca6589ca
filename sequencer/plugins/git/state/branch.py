"""The state branch, as a file store's peer: polls it, follows it, moves it by compare-and-swap.

Safety: the remote's ref is moved only by a push that names its old value, so one of two writers
wins. A push without an answer was accepted if and only if the branch holds its record; the same
commit is pushed again until that is known. Such a push may still land as long as every ref that it
moves has its old value, and until that changes, the refusal of a later push is not final.
"""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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
from sequencer.plugins.git.state.locks import find_named_lock
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
    BranchPosition,
    KnownFile,
    LastSeenCommit,
    Replica,
    RunTree,
    has_record,
    read_depth,
    read_tree,
)
from sequencer.store.highwater import HighWaterMark
from sequencer.store.identity import utc_now
from sequencer.store.protocol import Agreement, Draft
from sequencer.store.recovery import ensure_shared_is_newest

REBUILDS = 5
"""How many times one call of `Branch.propose` pushes its transition."""
WHO_MAY_PUSH = "use a key or token that may push there"
MOVED_MEANWHILE = "was moved on the remote by someone else while the step ran"
_PASSING = ("lock", "failed to update ref", "unable to", "cannot update", "atomic transaction")
"""Words in a refusal that a retry may avoid, because two pushes met on the server."""


class PendingPush(Struct, frozen=True):
    """A transition that was pushed."""

    commit: str
    line: bytes
    """Its record, including the newline."""
    moves: tuple[RefMove, ...] = ()
    is_of_change: bool = True
    """Whether it is the change that was asked for, and not one that had to come before it."""

    def may_land(self, tips: Mapping[str, str], looked_at: Iterable[str]) -> bool:
        """Return whether it may still be accepted while the refs *looked_at* are at *tips*."""
        refs = set(looked_at)
        return all(tips.get(move.ref) == move.old for move in self.moves if move.ref in refs)


def doubt_error(refusal: StateRefused) -> RemoteUnreachable:
    """Return the error for a *refusal* while an earlier push of the same change may still land."""
    return RemoteUnreachable(
        "can't tell whether the change was accepted: an earlier push of it got no answer and "
        f"may still arrive, and now it is refused: {refusal.message}",
        where=refusal.where,
        hint=f"it will be checked again; {refusal.hint}",
        is_denied=isinstance(refusal, RemoteUnreachable) and refusal.is_denied,
    )


PAUSE_S = 0.05
"""First pause after a push that was not accepted although no other push was faster."""
MAX_ROTATED = 4
"""How many of the newest rotated journals are searched for a record."""


class Branch:
    """See the module. Each method but `fetch_tips` is called under the lock of the run's folder."""

    def __init__(
        self,
        git: Git,
        remote: Remote,
        refs: Refs,
        state_path: Path,
        *,
        max_commits: int,
        mark: HighWaterMark | None = None,
    ) -> None:
        """Start without a position; it is read from remote.json when needed.

        After *max_commits* commits the history starts again with the same files; 0: never. *mark*
        has the newest revision of the run that this user has seen.
        """
        self.git, self.remote, self.refs, self.state_path = git, remote, refs, state_path
        self.max_commits, self.mark = max_commits, mark
        self.objects = Objects(git)
        self.carried: dict[str, str] = {}
        """Refs of the remote that are fetched with the state -> the local ref for each."""
        self.code_refs: Callable[[], Collection[str]] = tuple
        """Returns the refs of the remote that the run's code will move, before any is carried."""
        self.code_move: RefMove | None = None
        """A move of code; it is pushed with the transition whose head names its commit as the
        work."""
        self.unsettled: PendingPush | None = None
        """A push whose result is not known."""
        self.deciding: Transition | None = None
        """The latest decision of the change that was asked for."""
        self.doubts: list[PendingPush] = []
        """Its pushes that got no answer."""
        self.is_first_look = True
        self.looks = 0
        """How many times the folder was brought up to date with an answer from the remote."""
        self.has_beats = False
        """Whether the remote had the heartbeats' ref at the last poll."""
        self.contact_at = -math.inf
        """When the folder last matched the remote, on the monotonic clock."""
        self.replica = Replica(state_path, self.objects, f"{refs.local}/draft", max_commits)
        self.known = KnownFile(self.replica.folder / REMOTE)
        self._cached_position: BranchPosition | None = None
        self._ahead: BranchPosition | None = None
        """The accepted position whose journal line is not written here yet."""

    # --- looking -------------------------------------------------------------------

    def fetch_tips(self) -> dict[str, str]:
        """Return the remote's commits of the branch, the heartbeats and the carried refs.

        Raises:
            RemoteUnreachable: there was no answer.
        """
        tips = self.remote.list_tips([self.refs.state, self.refs.beats, *self.carried])
        self.has_beats = self.refs.beats in tips
        self.is_first_look = False
        return tips

    def read_local_tips(self, refs: RefWatch) -> dict[str, str] | None:
        """Return the refs' commits on a remote of this machine, or None if only git can find them.

        The heartbeats' ref is not included; `fetch_tips` returns it.
        """
        tips = {ref: refs.read_tip(ref) for ref in (self.refs.state, *self.carried)}
        known_tips = {ref: tip for ref, tip in tips.items() if tip is not None}
        if len(known_tips) < len(tips):
            return None
        return known_tips

    def _position(self) -> BranchPosition | None:
        """Return the branch as this clone knows it; another process may have moved it since."""
        known_state = self.known.read()
        if known_state is None or known_state.branch != self.refs.branch:
            self._cached_position = None
        elif self._cached_position is None or self._cached_position.commit != known_state.tip:
            tree, depth = None, 0
            with contextlib.suppress(Missing):
                tree = self._read_tree(known_state.tip)
                depth = read_depth(self.objects, known_state.tip) if tree is not None else 0
            self._cached_position = BranchPosition(
                known_state.tip, tree, known_state.revision, depth
            )
        return self._cached_position

    def tip(self) -> str | None:
        """Return the commit of the branch, as far as this clone knows."""
        position = self._position()
        return None if position is None else position.commit

    def catch_up(self) -> None:
        if self.is_first_look or self.unsettled is not None:
            self.follow(self.fetch_tips())
            self.unsettled = None

    def follow(self, tips: Mapping[str, str]) -> bool:
        """Bring the folder up to the branch at *tips*; return whether anything was new.

        Raises:
            RemoteUnreachable: the branch could not be fetched.
            CorruptState: the branch does not continue from the folder's files.
            WorkTreeRefused: the code would be on the same branch.
        """
        self._ensure_apart(self.carried)
        position, tip = self._position(), tips.get(self.refs.state)
        if tip is None:
            if position is not None:
                raise self._lost_branch_error()
            return self._note_look(is_new=False)
        commit_and_revision = (tip, self.replica.revision())
        if position is not None and commit_and_revision == (position.commit, position.revision):
            self._fetch_carried(tips)
            return self._note_look(is_new=False)
        return self._note_look(is_new=self._follow_to(tips, tip))

    def _ensure_apart(self, code: Collection[str]) -> None:
        for ref in (self.refs.state, self.refs.beats):
            if ref in code:
                raise WorkTreeRefused(
                    f"branch {ref.removeprefix('refs/heads/')!r} holds the run's state; code needs "
                    "another branch",
                    hint="'git switch BRANCH', or set store.branch",
                )

    def _note_look(self, *, is_new: bool) -> bool:
        self.contact_at, self.looks = time.monotonic(), self.looks + 1
        return is_new

    def _fetch_carried(self, tips: Mapping[str, str]) -> None:
        """Fetch the carried refs whose commits on the remote are not here yet."""
        wanted_refs = {
            ref: local_ref
            for ref, local_ref in self.carried.items()
            if ref in tips and not self._is_at(tips[ref], local_ref, ref)
        }
        if wanted_refs:
            self.remote.fetch(wanted_refs)

    def _fetch(self, tips: Mapping[str, str], tip: str) -> str:
        """Fetch the commit *tip* if it is not here; return it, or a newer one that came instead."""
        wanted_refs = {ref: local_ref for ref, local_ref in self.carried.items() if ref in tips}
        if not wanted_refs and self._is_complete(tip):
            return tip
        if not self.remote.fetch({self.refs.state: f"{self.refs.local}/state", **wanted_refs}):
            raise self._lost_branch_error()
        fetched_tip = self.objects.resolve(f"{self.refs.local}/state")
        if fetched_tip is None:
            raise self._lost_branch_error()
        return fetched_tip

    def _is_complete(self, commit: str) -> bool:
        """Return whether *commit* is here with all its files.

        A git process that is killed during a fetch may leave a commit without its files, but it
        moves refs last: a ref at the commit proves that all of it came.
        """
        names = (f"{self.refs.local}/state", f"{self.refs.local}/draft")
        return self._is_at(commit, *names) and (
            self.objects.resolve(f"{commit}^{{tree}}") is not None
        )

    def _is_at(self, commit: str, *refs: str) -> bool:
        """Return whether one of the local *refs* is at *commit*."""
        return any(self.objects.resolve(ref) == commit for ref in refs)

    def _follow_to(self, tips: Mapping[str, str], tip: str) -> bool:
        """Fetch *tip*, or a newer commit, and bring the folder up to it; see `follow`.

        If objects are missing, everything is fetched again: git trusts its refs, so a plain fetch
        does not bring what is missing from their commits.
        """
        try:
            return self._follow_once(self._fetch(tips, tip))
        except Missing:
            self.objects.close()
            self._cached_position = None
            if not self.remote.refetch({self.refs.state: f"{self.refs.local}/state"}):
                raise self._lost_branch_error() from None
        try:
            return self._follow_once(self._fetch(tips, tip))
        except Missing as missing:
            raise CorruptState(
                f"can't be fetched completely: {missing.reason}",
                where=self._where,
                hint="look at both repositories with 'git fsck'; a fresh clone shows whether "
                "the remote has it",
            ) from missing

    def _follow_once(self, tip: str) -> bool:
        tree, position = self._read_tree(tip), self._position()
        if tree is None:
            raise Missing(tip)
        is_new = self.replica.follow(tree, position.tree if position else None, self.refs.branch)
        depth = read_depth(self.objects, tip)
        self._set_position(BranchPosition(tip, tree, self.replica.revision(), depth))
        return is_new

    def _set_position(self, position: BranchPosition) -> None:
        self._cached_position = position
        self.known.write(
            LastSeenCommit(
                remote=self.remote.name,
                branch=self.refs.branch,
                tip=position.commit,
                revision=position.revision,
                at=utc_now(),
            )
        )

    def _is_readable(self, commit: str) -> bool:
        self.objects.close()
        with contextlib.suppress(Missing):
            return self._read_tree(commit) is not None
        return False

    def _read_tree(self, commit: str) -> RunTree | None:
        return read_tree(self.objects, commit, self.state_path.name)

    def _lost_branch_error(self) -> CorruptState:
        known_state = self.known.read()
        source = f"{self.refs.local}/state" if known_state is None else known_state.tip
        return CorruptState(
            "is gone from the remote, but this clone has seen it there",
            where=self._where,
            hint="push it again from the clone that is furthest ahead "
            f"('git push {quote(self.remote.name)} {source}:{quote(self.refs.state)}'), or "
            f"remove {self.known.path} to create it again from the files here",
        )

    def _catch_up_if_older(self, draft: Draft) -> bool:
        """Return whether *draft* was based on files that were older than the branch's.

        If so, the branch's files are here now.

        Raises:
            CorruptState: the branch itself is older than what this user has seen.
        """
        position = self._position()
        if position is not None and (
            position.tree is None or position.revision >= draft.head.revision
        ):
            # Git has pruned the commit, or someone has removed the journal's last records here.
            self._follow_to(self.fetch_tips(), position.commit)
            return True
        later_mark = None
        if self.mark is not None and draft.before is not None:
            later_mark = self.mark.find_later_mark(draft.before)
        if later_mark is not None and draft.before is not None:
            if self.follow(self.fetch_tips()):
                return True
            ensure_shared_is_newest(draft.before, later_mark, self._where)
        return False

    # --- moving --------------------------------------------------------------------

    def propose(self, draft: Draft) -> Agreement:
        if self._catch_up_if_older(draft):
            return Agreement.LOST
        position = self._position()
        new_position = self._write_commit(draft, position)
        if new_position is None:
            return Agreement.LOST
        old_commit = None if position is None else position.commit
        work = draft.head.work
        move = self.code_move
        code_moves = [move] if move is not None and work and work.commit == move.new else []
        moves = [RefMove(self.refs.state, old_commit, new_position.commit), *code_moves]
        pause, is_of_change = PAUSE_S, draft.transition is self.deciding
        for _ in range(REBUILDS):
            push = self._push(moves)
            if push.verdict is PushVerdict.ACCEPTED:
                return self._record_accepted(new_position)
            self.unsettled = PendingPush(
                new_position.commit, draft.line, tuple(moves), is_of_change
            )
            if push.verdict is PushVerdict.UNKNOWN and self.unsettled not in self.doubts:
                self.doubts.append(self.unsettled)
            tips = self.fetch_tips()
            tip = tips.get(self.refs.state)
            if tip == new_position.commit:
                return self._record_accepted(new_position)
            if tip != old_commit:
                return self._follow_faster_push(tips, self.unsettled)
            if push.verdict is PushVerdict.REFUSED:
                is_new = old_commit is not None and not new_position.depth and not push.is_denied
                if is_new and self.replica.max_commits:
                    # The remote does not let the history start again, so it gets longer.
                    self.replica.max_commits, self.unsettled = 0, None
                    return Agreement.LOST
                self.ensure_may_pass(push, moves, tips)
            time.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - keeps two pushes apart
            pause *= 2
        raise self.push_error(push, tips)

    def _write_commit(self, draft: Draft, position: BranchPosition | None) -> BranchPosition | None:
        """Write the commit of *draft*; None: its base was damaged and had to be fetched again."""
        if position is None:
            self._ensure_apart(self.code_refs())
        try:
            return self.replica.write(draft, position)
        except GitFailed:
            if position is None or self._is_readable(position.commit):
                raise
        self._follow_to(self.fetch_tips(), position.commit)
        return None

    def confirm_append(self) -> None:
        if self._ahead is not None:
            self._set_position(self._ahead)
            self._ahead = None

    def _push(self, moves: Sequence[RefMove]) -> Pushed:
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
        """Check that another push of *moves* (the state's first) may be accepted, else raise.

        If an agent has pushed some of its commits itself, the move in *moves* then starts there.

        Raises:
            WorkTreeRefused: the remote refused the code.
            RemoteRefused: the remote refused the state.
            RemoteUnreachable: these credentials may not push, or an earlier push may still land.
        """
        refusal = self._find_refusal(pushed, moves, tips)
        if refusal is None:
            return
        if self._has_doubts(tips):
            raise doubt_error(refusal) from refusal
        self.unsettled = None
        raise refusal

    def _find_refusal(
        self, push: Pushed, moves: list[RefMove], tips: Mapping[str, str]
    ) -> StateRefused | None:
        remote = f"remote {self.remote.name!r}"
        if push.is_denied:
            message = f"does not accept pushes: {push.reason}"
            return RemoteUnreachable(message, where=remote, hint=WHO_MAY_PUSH, is_denied=True)
        details = f" ({push.hook_output})" if push.hook_output else ""
        for index, move in enumerate(moves[1:], 1):
            tip, name = tips.get(move.ref), move.ref.removeprefix("refs/heads/")
            if tip != move.old and self._is_between(move, tip):
                moves[index] = RefMove(move.ref, tip, move.new)
                return None
            reason = push.refused.get(move.ref, "")
            if tip != move.old:
                hint = "bring both together, then run the step again"
                return WorkTreeRefused(f"{name} {MOVED_MEANWHILE}", where=remote, hint=hint)
            if reason and not any(word in reason for word in _PASSING):
                rules = "look at the remote's rules for it, or set store.work.branch to another one"
                message = f"{name} does not accept pushes: {reason}{details}"
                return WorkTreeRefused(message, where=remote, hint=rules)
        if any(word in push.reason for word in _PASSING):
            return None
        return RemoteRefused(
            f"does not accept the state of the run: {push.reason}{details}",
            where=self._where,
            hint="you must be able to push there: look at the rules for branches "
            "(protected names, hooks), or choose another name with store.branch",
        )

    def _is_between(self, move: RefMove, tip: str | None) -> bool:
        """Return whether *tip* is a commit between the old and the new value of *move*."""
        if tip is None or move.new is None:
            return False
        return all(
            not self.git.run("merge-base", "--is-ancestor", *pair, accepts=(0, 1, 128)).code
            for pair in ((move.old or tip, tip), (tip, move.new))
        )

    def push_error(self, pushed: Pushed, tips: Mapping[str, str]) -> Exception:
        """Return the error for a push if no try was accepted and no refusal was final."""
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
            if folder is not None and (lock := find_named_lock(pushed.reason, folder)) is not None:
                message, hint = f"{message}: {lock.description}", lock.hint
        hint = f"nothing was accepted; {hint}"
        error = StorageFailed(message, where=self._where, hint=hint)
        return doubt_error(error) if self._has_doubts(tips) else error

    @property
    def _where(self) -> str:
        return f"branch {self.refs.branch} of {self.remote.name!r}"

    def _has_doubts(self, tips: Mapping[str, str]) -> bool:
        """Return whether a push that got no answer may still be accepted."""
        refs = (self.refs.state, *self.carried)
        return any(push.may_land(tips, refs) for push in self.doubts)

    def _record_accepted(self, position: BranchPosition) -> Agreement:
        self.unsettled, self.code_move, self._ahead = None, None, position
        self.doubts.clear()
        self.contact_at = time.monotonic()
        return Agreement.ACCEPTED

    def _follow_faster_push(self, tips: Mapping[str, str], push: PendingPush) -> Agreement:
        """Follow the push that was faster; this transition may still be in its history."""
        self.follow(tips)
        self.unsettled = None
        if not self.contains(push):
            return Agreement.LOST
        self.code_move = None
        return Agreement.OVERTAKEN

    def contains(self, pending: PendingPush) -> bool:
        """Return whether *pending* is in the branch, as far as it was followed.

        The record decides, because no two records are equal. A commit would not: the history may
        have started again.
        """
        if has_record(self.replica.read_journal(), pending.line):
            return True
        for name in sorted(self.replica.rotated_journals(), reverse=True)[:MAX_ROTATED]:
            if has_record(self.replica.read(name, MAX_JOURNAL_BYTES) or b"", pending.line):
                return True
        return False
