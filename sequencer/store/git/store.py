"""A run that machines share through a git remote.

The run's folder is a replica of a branch: the same files, kept by the file store. What is
new here is that a transition counts when the remote's branch was moved from the commit that
it was decided on, by a push that names that commit; only then it is written down here.

Not promised: that what is read here is the newest. `update` finds out, `wait` looks.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from sequencer.errors import ClaimHeld, RemoteUnreachable, SequencerError, StorageFailed
from sequencer.model.head import Claim, Head, Owner
from sequencer.model.transitions import Transition
from sequencer.store.file import FileStore
from sequencer.store.git.branch import Branch, Pending
from sequencer.store.git.command import GitFailed
from sequencer.store.headfile import parse_head
from sequencer.store.journal import decode
from sequencer.store.protocol import Change, Liveness, View
from sequencer.store.turnstile import FileTurnstile


class GitStore:
    """One run's branch and its replica; see `protocol.Store`."""

    def __init__(
        self, branch: Branch, files: FileStore, *, view_s: float = 15.0, patience_s: float = 0.0
    ) -> None:
        """Keep the run of *branch* in *files*, whose peer it is.

        What is read is at most *view_s* old, where the remote answers.
        """
        self.ttl_s, self.patience_s = files.ttl_s, patience_s
        self.branch = branch
        self._files = files
        self._view_s, self._asked_at = view_s, -math.inf
        self._pending: tuple[Change, Pending] | None = None
        """A change whose push nobody knows the end of."""

    @property
    def state_path(self) -> Path:
        """See `Store.state_path`."""
        return self._files.state_path

    def close(self) -> None:
        """See `Store.close`."""
        self.branch.objects.close()
        self._files.close()

    def take_notices(self) -> list[str]:
        """See `Store.take_notices`."""
        told, self.branch.drafting.notices = self.branch.drafting.notices, []
        return told + self._files.take_notices()

    # --- reading -------------------------------------------------------------------

    def view(self) -> View:
        """See `Store.view`; it is as old as the last contact, and that is not long ago."""
        notices = self._freshen()
        seen = self._files.view()
        return View(seen.head, (*notices, *seen.notices))

    def history(self) -> Iterator[dict[str, Any]]:
        """See `Store.history`."""
        self._freshen()
        yield from self._files.history()

    def document(self, name: str) -> bytes | None:
        """See `Store.document`."""
        self._freshen()
        return self._files.document(name)

    def _freshen(self) -> tuple[str, ...]:
        """Look at the remote if that was not done lately; return what to tell about it."""
        now = time.monotonic()
        if now - max(self._asked_at, self.branch.contact_at) < self._view_s:
            return ()
        self._asked_at = now
        try:
            self.bring()
        except RemoteUnreachable as error:
            return (f"{error.message}; this is what was known here",)
        except ClaimHeld:
            pass  # another process of this clone is pushing, and writes down what it finds
        return ()

    def keep_document(self, name: str, data: bytes) -> None:
        """See `Store.keep_document`."""
        self._files.keep_document(name, data)

    def forget_documents(self, prefix: str, keep: Collection[str]) -> None:
        """See `Store.forget_documents`."""
        self._files.forget_documents(prefix, keep)

    # --- writing -------------------------------------------------------------------

    def update(self, change: Change) -> Head:
        """See `Store.update`.

        Raises:
            RemoteUnreachable: no answer. Where the message says that nobody can tell, calling
                this again with the very same *change* finds out, and does nothing twice.
            RemoteRefused: the remote's rules are against it.
        """
        pending, self._pending = self._pending, None
        with self._git_told():
            if pending is not None and pending[0] is change:
                try:
                    with self._files.locked():
                        self.branch.before()
                except RemoteUnreachable:
                    self._pending = pending
                    raise
                if self.branch.holds(pending[1]):
                    self.branch.cargo = None
                    return parse_head(decode(pending[1].line[:-1])["head"], "what was pushed")
            return self._update(change)

    def _update(self, change: Change) -> Head:
        looks, is_refused = self.branch.looks, False

        def noting(head: Head | None) -> Transition | None:
            nonlocal is_refused
            is_refused = True
            transition = change(head)
            is_refused = transition is None
            return transition

        try:
            head = self._files.update(noting)
        except RemoteUnreachable:
            if self.branch.unsettled is not None:
                self._pending = (change, self.branch.unsettled)
            raise
        except (SequencerError, ValueError):
            # It may have been refused for what is long over.
            if not is_refused or self.branch.looks != looks or not self.bring():
                raise
            return self._files.update(change)
        if is_refused and self.branch.looks == looks and self.bring():
            return self._files.update(change)
        return head

    def bring(self) -> bool:
        """Look at the remote and make the folder what the branch is; return whether it moved.

        Raises:
            RemoteUnreachable: there was no answer.
            CorruptState: the branch is no continuation of what is here.
        """
        with self._git_told():
            tips = self.branch.look()
            with self._files.locked():
                return self.branch.follow(tips)

    @contextlib.contextmanager
    def _git_told(self) -> Iterator[None]:
        try:
            yield
        except GitFailed as failed:
            raise StorageFailed(
                f"git can't do what the run needs: {failed}",
                where=str(self.branch.git.folder),
                hint="look at the repository with 'git fsck'",
            ) from failed

    # --- claims and waiting --------------------------------------------------------

    def owner(self) -> Owner:
        """See `Store.owner`."""
        return self._files.owner()

    def liveness(self, claim: Claim) -> Liveness:
        """See `Store.liveness`."""
        return self._files.liveness(claim)

    def beat(self, claim: Claim, number: int) -> None:
        """See `Store.beat`."""
        self._files.beat(claim, number)

    def result_folder(self, step_index: int, token: int) -> Path:
        """See `Store.result_folder`."""
        return self._files.result_folder(step_index, token)

    def wait(
        self,
        revision: int,
        timeout_s: float | None,
        *,
        wake_fd: int | None = None,
        claim: Claim | None = None,
    ) -> bool:
        """See `Store.wait`."""
        return self._files.wait(revision, timeout_s, wake_fd=wake_fd, claim=claim)

    def turnstile(self, positions: Collection[str]) -> FileTurnstile:
        """See `Store.turnstile`."""
        return self._files.turnstile(positions)
