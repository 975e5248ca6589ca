"""Heartbeats on a separate ref of the remote, so that they are not part of the run's history.

The ref's tree has a file for each active claim, with the bytes of its local beat file. The holder
of a claim replaces its own file and moves the ref by compare-and-swap. Observers copy the files
of other holders into their folder ``beats/``, where `Leases` decides as usual. Anyone may have
written to the ref, so its files are checked before they are used.

Not promised: that observers in the same clone see the lease of a worker without a remote expire.
Its local beats continue until it gives up, and they are right: it is alive. Only other clones may
take over its step in that time, and this clone learns of it at its next poll.
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
from sequencer.model.head import Claim
from sequencer.model.whole_numbers import MAX_COUNTER
from sequencer.plugins.git.process import GitFailed
from sequencer.plugins.git.state.objects import CommitDraft, Missing, Objects
from sequencer.plugins.git.state.remote import PushVerdict, RefMove, Refs, Remote
from sequencer.store.folder import read_regular
from sequencer.store.identity import boottime, is_same_boot
from sequencer.store.leases import Leases
from sequencer.store.protocol import Liveness
from sequencer.store.strictjson import parse_object

MAX_DEPTH = 500
"""Commits after which the ref's history starts again, if the remote allows that."""
ATTEMPTS = 5
"""Maximum refusals without a competing push; lost races have only the time limit."""
TIME_SHARE = 0.2
"""Share of the lease for one beat. With more, a worker that is cut off would notice too late."""
SHORTEST_LIMIT_S = 1.0
"""Minimum time for a push, even if the lease is short: a busy machine needs that long."""
_MAX_BYTES = 4096
_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
_SLACK_S = 1.0
_TOKEN = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)
_DEPTH = re.compile(rb"^Depth: ([0-9]{1,9})$", re.MULTILINE)


class Heartbeats:
    """The heartbeats of one run, on the remote and in the run's folder."""

    def __init__(self, remote: Remote, objects: Objects, leases: Leases, refs: Refs) -> None:
        """Keep them on ``refs.beats`` of *remote*, with local copies below ``refs.local``."""
        self._remote = remote
        # A copy: each beat sets its own time limit, and other git calls keep theirs.
        self._pushing = Remote(copy(remote.git), remote.name)
        self._objects = objects
        self._leases = leases
        self._ref = refs.beats
        self._local_ref, self._draft_ref = f"{refs.local}/beats", f"{refs.local}/beats-draft"
        self._tip: str | None = None
        """Where this process last put the ref; another process may have moved it since."""
        self._is_chained_only = False
        self._retired = 0
        """How many times the ref was removed."""
        self._own_tokens: set[int] = set()
        """Tokens whose beats this process sends, so `fetch_beats` skips them."""

    # --- the claims of this process ------------------------------------------------

    def beat(self, claim: Claim, number: int, active: Collection[int]) -> None:
        """Renew the lease of *claim* here and on the remote; *number* counts up from 0.

        Also removes the beats of tokens that are no longer *active*.

        Raises:
            OSError: the beat did not reach the remote, so others see the lease expire.
        """
        self._own_tokens.add(claim.token)
        self._leases.beat(claim, number)
        data = read_regular(self._leases.folder / str(claim.token))
        share_s = max(TIME_SHARE * claim.ttl_s, SHORTEST_LIMIT_S)
        limit_s = min(self._remote.git.timeout_s, share_s)
        try:
            self._send(claim.token, data, {claim.token, *active}, time.monotonic() + limit_s)
        except (StorageFailed, GitFailed) as failed:
            raise OSError(f"the beat did not reach {self._remote.name!r}: {failed}") from failed

    def _send(self, token: int, data: bytes, active: set[int], until: float) -> None:
        tip, reason, refusals = self._tip or self._objects.resolve(self._local_ref), "", 0
        retired_count = self._retired
        for attempt in count():
            if self._retired != retired_count:
                raise StorageFailed("the run has ended")
            commit, is_beginning = self._write(tip, token, data, active)
            self._set_time_limit(until, reason)
            push = self._pushing.push([RefMove(self._ref, tip, commit)])
            if push.verdict is PushVerdict.ACCEPTED:
                self._tip = commit
                return
            reason = push.reason
            self._set_time_limit(until, reason)
            remote_tip = self._fetch_tip(self._pushing)
            if (
                remote_tip is not None
                and self._read_beats(remote_tip, {token}).get(str(token)) == data
            ):
                # Accepted after all; another process may have pushed its beat on top of it.
                self._tip = remote_tip
                return
            if remote_tip == tip:
                refusals += 1
                self._is_chained_only |= is_beginning and tip is not None
            if refusals == ATTEMPTS:
                raise StorageFailed(f"{ATTEMPTS} pushes were refused, the last with: {reason}")
            # Random, so that workers that push at the same time do not collide again.
            pause_s = min(_PAUSE_S * 2**attempt, _LONGEST_PAUSE_S)
            time.sleep(random.uniform(0, pause_s))  # noqa: S311 - no secret
            self._tip = tip = remote_tip

    def _set_time_limit(self, until: float, reason: str) -> None:
        """Set the time limit of the next git process to the time left before *until*."""
        left_s = until - time.monotonic()
        if left_s <= 0:
            raise StorageFailed(f"no time is left for the push: {reason}")
        self._pushing.git.timeout_s = left_s

    def _write(
        self, tip: str | None, token: int, data: bytes, active: set[int]
    ) -> tuple[str, bool]:
        """Write a commit of *tip* with *data* for *token*; return it and whether it has no parent.

        Files of tokens that are not *active* are left out.
        """
        entries = None if tip is None else self._objects.list_tree(f"{tip}^{{tree}}")
        files: dict[str, bytes | None] = {}
        for entry in entries or ():
            number = int(entry.name) if _TOKEN.fullmatch(entry.name) else -1
            # A higher token is newer than any claim that is known here: keep its beat.
            if not entry.is_plain or not (number in active or number > max(active)):
                files[entry.name] = None
        files[str(token)] = data
        # If *tip* is not a commit, there are no files to continue from either.
        depth = 0 if tip is None or entries is None else self._depth(tip) + 1
        is_beginning = entries is None or (depth >= MAX_DEPTH and not self._is_chained_only)
        message = f"Beats\n\nDepth: {0 if is_beginning else depth}\n"
        parent, base = (None, tip if entries else None) if is_beginning else (tip, None)
        draft = CommitDraft(message, parent, files, int(time.time()), base)
        return self._objects.write(draft, self._draft_ref), is_beginning

    def _depth(self, tip: str) -> int:
        depths = _DEPTH.findall(self._objects.read(f"{tip}^{{commit}}", "commit") or b"")
        return int(depths[-1]) if depths else 0

    def retire(self) -> bool:
        """Remove the ref after the end of the run; return whether it is removed.

        A push that another thread is preparing is abandoned.
        """
        self._tip = None
        self._retired += 1
        try:
            tip = self._remote.list_tips([self._ref]).get(self._ref)
            if tip is None:
                return True
            push = self._remote.push([RefMove(self._ref, tip, None)])
        except (StorageFailed, GitFailed):
            return False
        return push.verdict is PushVerdict.ACCEPTED

    # --- the claims of others ------------------------------------------------------

    def fetch_beats(self, tip: str | None, claims: Collection[Claim]) -> bool:
        """Bring the beats of other workers' active *claims* here; return whether any is new.

        *tip* is the commit of the ref on the remote (None: there is no ref). It is fetched only
        if it is not here yet.

        Raises:
            RemoteUnreachable: there was no answer.
            StorageFailed: what was fetched can't be read.
            OSError: a beat can't be written here; the caller must not conclude anything.
        """
        other_claims = [claim for claim in claims if claim.token not in self._own_tokens]
        if tip is None or not other_claims:
            return False
        tokens = {claim.token for claim in other_claims}
        try:
            if not self._is_here(tip):
                tip = self._fetch_tip(self._remote)
            files = {} if tip is None else self._read_or_refetch_beats(tip, tokens)
        except GitFailed as failed:
            raise StorageFailed(f"heartbeats can't be read: {failed.reason}") from failed
        # A list: `any` of a generator would stop at the first new beat.
        changes = [self._accept_beat(claim, files.get(str(claim.token))) for claim in other_claims]
        return any(changes)

    def _accept_beat(self, claim: Claim, data: bytes | None) -> bool:
        beat = None if data is None else _parse_beat(data)
        if beat is None:
            return False
        lease = self._leases.read(claim.token)
        if is_same_boot(claim.owner):
            deadline, last_deadline = beat["deadline_boottime"], lease.get("deadline_boottime")
            if deadline > boottime() + claim.ttl_s + _SLACK_S:
                return False
            # A process of this clone writes its local file first, so that may be newer.
            if isinstance(last_deadline, (int, float)) and last_deadline >= deadline:
                return False
        elif lease == beat:
            return False
        self._leases.write_beat(claim.token, beat)
        return True

    def _read_beats(self, tip: str, tokens: Collection[int]) -> dict[str, bytes]:
        names, files = {str(token) for token in tokens}, {}
        for entry in self._objects.list_tree(f"{tip}^{{tree}}") or ():
            if entry.is_plain and entry.name in names:
                files[entry.name] = self._objects.read_required(entry.oid, "blob")
        return files

    def _is_here(self, tip: str) -> bool:
        """Return whether *tip* was fetched completely or made here.

        That its commit exists proves neither: a git process that was killed may have left half of
        it, and a beat that is missed for that lets a lease expire.
        """
        return tip == self._tip or any(
            self._objects.resolve(ref) == tip for ref in (self._local_ref, self._draft_ref)
        )

    def _read_or_refetch_beats(self, tip: str, tokens: Collection[int]) -> dict[str, bytes]:
        """Return the beats of *tokens* in *tip*; if objects of it are missing, fetch it again."""
        try:
            if self._objects.resolve(f"{tip}^{{tree}}") is not None:
                return self._read_beats(tip, tokens)
        except Missing:
            pass
        self._objects.close()
        if not self._remote.refetch({self._ref: self._local_ref}):
            return {}
        newest_tip = self._objects.resolve(self._local_ref)
        return {} if newest_tip is None else self._read_beats(newest_tip, tokens)

    def _fetch_tip(self, remote: Remote) -> str | None:
        """Fetch the ref; return its commit, or None if the remote does not have the ref."""
        has_ref = remote.fetch({self._ref: self._local_ref})
        return self._objects.resolve(self._local_ref) if has_ref else None


def confirm_expiry(
    first: Liveness, look: Callable[[], object], again: Callable[[], Liveness]
) -> Liveness:
    """Return *first*; if it is EXPIRED, call *look* and return the answer of *again*.

    An observer that was cut off sees every lease expire; *look* brings the beats that it has
    missed. If *look* raises, the result is UNKNOWN.
    """
    if first is not Liveness.EXPIRED:
        return first
    try:
        look()
    except (StorageFailed, OSError):
        return Liveness.UNKNOWN
    return again()


def _parse_beat(data: bytes) -> dict[str, Any] | None:
    """Return the beat in *data*, or None if it is not a valid one."""
    try:
        fields = parse_object(data, _MAX_BYTES)
    except ValueError:
        return None
    beat, deadline = fields.get("beat"), fields.get("deadline_boottime")
    if not isinstance(beat, int) or isinstance(beat, bool) or not 0 <= beat <= MAX_COUNTER:
        return None
    if not isinstance(deadline, (int, float)) or isinstance(deadline, bool):
        return None
    if not 0 <= deadline < math.inf:
        return None
    return {"beat": beat, "deadline_boottime": deadline}
