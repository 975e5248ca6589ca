"""Heartbeats on a ref of the remote of their own, so that they are no part of the history.

The ref's tree has a file for each standing claim, with the bytes of its local beat file. A
holder lays its own over what is there and moves the ref by compare-and-swap; observers
bring the files of others into their folder ``beats/``, where `Leases` decides as it always
does. What lies on the ref is anybody's, and is checked before it is believed.

Not promised: that a worker without its remote looks gone to observers of its own clone. Its
local beats go on until it gives up, and they are true: it is alive. Only others may take
its step over meanwhile, and this clone learns that with its next look.
"""

from __future__ import annotations

import math
import random
import re
import time
from collections.abc import Callable, Collection
from copy import copy
from itertools import count
from typing import Any

from sequencer.errors import StorageFailed
from sequencer.model.head import MAX_COUNTER, Claim
from sequencer.plugins.git.process import GitFailed
from sequencer.plugins.git.state.objects import CommitDraft, Missing, Objects
from sequencer.plugins.git.state.remote import PushVerdict, RefMove, Refs, Remote
from sequencer.store.folder import read_regular
from sequencer.store.identity import boottime, is_same_boot
from sequencer.store.leases import Leases
from sequencer.store.protocol import Liveness
from sequencer.store.strictjson import parse_object

MAX_DEPTH = 500
"""Commits after which the ref is given a new beginning, where the remote allows that."""
ATTEMPTS = 5
"""Pushes that may be refused though nobody was faster; lost races end with the time."""
TIME_SHARE = 0.2
"""Of the lease, for one beat: with more, a worker that is cut off would notice too late."""
SHORTEST_LIMIT_S = 1.0
"""However short the lease is: no push is faster on a machine that has other things to do."""
_MAX_BYTES = 4096
_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
_SLACK_S = 1.0
_TOKEN = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)
_DEPTH = re.compile(rb"^Depth: ([0-9]{1,9})$", re.MULTILINE)


class Heartbeats:
    """The heartbeats of one run, on the remote and in the run's folder."""

    def __init__(self, remote: Remote, objects: Objects, leases: Leases, refs: Refs) -> None:
        """Keep them on ``refs.beats``, and what is known of it here below ``refs.local``."""
        self._remote = remote
        # Each beat has a time limit of its own, while others wait as long as they always do.
        self._pushing = Remote(copy(remote.git), remote.name)
        self._objects = objects
        self._leases = leases
        self._ref = refs.beats
        self._local_ref, self._draft_ref = f"{refs.local}/beats", f"{refs.local}/beats-draft"
        self._tip: str | None = None
        """Where this process left the ref; another one may have moved it since."""
        self._is_chained_only = False
        self._retired = 0
        """How often the ref was removed."""
        self._own: set[int] = set()
        """Tokens that beat from here, and are not to be brought."""

    # --- the claims of this process ------------------------------------------------

    def beat(self, claim: Claim, number: int, standing: Collection[int]) -> None:
        """Renew the lease of *claim* here and on the remote; *number* counts up from 0.

        Beats of tokens that are not *standing* any more are dropped on the way.

        Raises:
            OSError: the remote does not have it, so that others see the lease run out.
        """
        self._own.add(claim.token)
        self._leases.beat(claim, number)
        data = read_regular(self._leases.folder / str(claim.token))
        share_s = max(TIME_SHARE * claim.ttl_s, SHORTEST_LIMIT_S)
        limit_s = min(self._remote.git.timeout_s, share_s)
        try:
            self._send(claim.token, data, {claim.token, *standing}, time.monotonic() + limit_s)
        except (StorageFailed, GitFailed) as failed:
            raise OSError(f"the beat did not reach {self._remote.name!r}: {failed}") from failed

    def _send(self, token: int, data: bytes, standing: set[int], until: float) -> None:
        tip, why, refusals = self._tip or self._objects.resolve(self._local_ref), "", 0
        retired = self._retired
        for attempt in count():
            if self._retired != retired:
                raise StorageFailed("the run is over")
            commit, is_beginning = self._write(tip, token, data, standing)
            self._limit(until, why)
            pushed = self._pushing.push([RefMove(self._ref, tip, commit)])
            if pushed.verdict is PushVerdict.ACCEPTED:
                self._tip = commit
                return
            why = pushed.reason
            self._limit(until, why)
            found = self._fetched(self._pushing)
            if found is not None and self._files(found, {token}).get(str(token)) == data:
                # Accepted after all, and perhaps somebody has laid another beat over it.
                self._tip = found
                return
            if found == tip:
                refusals += 1
                self._is_chained_only |= is_beginning and tip is not None
            if refusals == ATTEMPTS:
                raise StorageFailed(f"{ATTEMPTS} pushes were refused, the last with: {why}")
            # So many that beat at once must not collide again.
            pause_s = min(_PAUSE_S * 2**attempt, _LONGEST_PAUSE_S)
            time.sleep(random.uniform(0, pause_s))  # noqa: S311 - no secret
            self._tip = tip = found

    def _limit(self, until: float, why: str) -> None:
        """Let the next process take what is left until then."""
        left = until - time.monotonic()
        if left <= 0:
            raise StorageFailed(f"no time is left for the push: {why}")
        self._pushing.git.timeout_s = left

    def _write(
        self, tip: str | None, token: int, data: bytes, standing: set[int]
    ) -> tuple[str, bool]:
        """Return a commit with *data* over the files of *tip*, and whether it has no parent."""
        entries = None if tip is None else self._objects.tree(f"{tip}^{{tree}}")
        files: dict[str, bytes | None] = {}
        for entry in entries or ():
            number = int(entry.name) if _TOKEN.fullmatch(entry.name) else -1
            # A token above those known here is newer than they.
            if not entry.is_plain or not (number in standing or number > max(standing)):
                files[entry.name] = None
        files[str(token)] = data
        # What is no commit has no files either.
        depth = 0 if tip is None or entries is None else self._depth(tip) + 1
        is_beginning = entries is None or (depth >= MAX_DEPTH and not self._is_chained_only)
        message = f"Beats\n\nDepth: {0 if is_beginning else depth}\n"
        parent, base = (None, tip if entries else None) if is_beginning else (tip, None)
        draft = CommitDraft(message, parent, files, int(time.time()), base)
        return self._objects.write(draft, self._draft_ref), is_beginning

    def _depth(self, tip: str) -> int:
        found = _DEPTH.findall(self._objects.read(f"{tip}^{{commit}}", "commit") or b"")
        return int(found[-1]) if found else 0

    def retire(self) -> bool:
        """Remove the ref, the run being over; return whether it is gone.

        What another thread is about to push there is given up.
        """
        self._tip = None
        self._retired += 1
        try:
            tip = self._remote.tips([self._ref]).get(self._ref)
            if tip is None:
                return True
            pushed = self._remote.push([RefMove(self._ref, tip, None)])
        except (StorageFailed, GitFailed):
            return False
        return pushed.verdict is PushVerdict.ACCEPTED

    # --- the claims of others ------------------------------------------------------

    def bring(self, tip: str | None, claims: Collection[Claim]) -> bool:
        """Bring the beats of others among the standing *claims* here; return whether any is new.

        *tip* is where the remote has the ref (None: nowhere). It is fetched only if it is
        not known yet.

        Raises:
            RemoteUnreachable: there was no answer.
            StorageFailed: what was fetched can't be read.
            OSError: a beat can't be written down here; nobody may conclude anything.
        """
        others = [claim for claim in claims if claim.token not in self._own]
        if tip is None or not others:
            return False
        tokens = {claim.token for claim in others}
        try:
            if not self._is_here(tip):
                tip = self._fetched(self._remote)
            files = {} if tip is None else self._mended(tip, tokens)
        except GitFailed as failed:
            raise StorageFailed(f"heartbeats can't be read: {failed.reason}") from failed
        taken = [self._take(claim, files.get(str(claim.token))) for claim in others]
        return any(taken)

    def _take(self, claim: Claim, data: bytes | None) -> bool:
        beat = None if data is None else _checked(data)
        if beat is None:
            return False
        known = self._leases.read(claim.token)
        if is_same_boot(claim.owner):
            deadline, kept = beat["deadline_boottime"], known.get("deadline_boottime")
            if deadline > boottime() + claim.ttl_s + _SLACK_S:
                return False
            # A process of this clone writes its own file first: what is here may be newer.
            if isinstance(kept, (int, float)) and kept >= deadline:
                return False
        elif known == beat:
            return False
        self._leases.keep(claim.token, beat)
        return True

    def _files(self, tip: str, tokens: Collection[int]) -> dict[str, bytes]:
        names, found = {str(token) for token in tokens}, {}
        for entry in self._objects.tree(f"{tip}^{{tree}}") or ():
            if entry.is_plain and entry.name in names:
                found[entry.name] = self._objects.needed(entry.oid, "blob")
        return found

    def _is_here(self, tip: str) -> bool:
        """Return whether *tip* was fetched to its end, or made here; its tree alone says neither.

        A beat that is not seen because a killed git has left half of it lets a lease run out.
        """
        return tip == self._tip or any(
            self._objects.resolve(ref) == tip for ref in (self._local_ref, self._draft_ref)
        )

    def _mended(self, tip: str, tokens: Collection[int]) -> dict[str, bytes]:
        """Return the beats of *tokens* in *tip*; what is missing of it is brought again."""
        try:
            if self._objects.resolve(f"{tip}^{{tree}}") is not None:
                return self._files(tip, tokens)
        except Missing:
            pass
        self._objects.close()
        if not self._remote.refetch({self._ref: self._local_ref}):
            return {}
        newest = self._objects.resolve(self._local_ref)
        return {} if newest is None else self._files(newest, tokens)

    def _fetched(self, remote: Remote) -> str | None:
        """Return where the remote's ref is, its objects being here, or None if it has none."""
        is_there = remote.fetch({self._ref: self._local_ref})
        return self._objects.resolve(self._local_ref) if is_there else None


def confirmed(
    first: Liveness, look: Callable[[], object], again: Callable[[], Liveness]
) -> Liveness:
    """Return *first*, or if that is EXPIRED what *again* says after a successful *look*.

    An observer that was cut off sees every lease run out; *look* brings the beats that it
    has missed. Where it raises, nothing is known.
    """
    if first is not Liveness.EXPIRED:
        return first
    try:
        look()
    except (StorageFailed, OSError):
        return Liveness.UNKNOWN
    return again()


def _checked(data: bytes) -> dict[str, Any] | None:
    """Return the beat that *data* is, or None if it is none."""
    try:
        found = parse_object(data, _MAX_BYTES)
    except ValueError:
        return None
    beat, deadline = found.get("beat"), found.get("deadline_boottime")
    if not isinstance(beat, int) or isinstance(beat, bool) or not 0 <= beat <= MAX_COUNTER:
        return None
    if not isinstance(deadline, (int, float)) or isinstance(deadline, bool):
        return None
    if not 0 <= deadline < math.inf:
        return None
    return {"beat": beat, "deadline_boottime": deadline}
