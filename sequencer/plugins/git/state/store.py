"""A run that machines share through a git remote.

The run's folder is a replica of a branch: the same files, kept by the file store. What is
new here is that a transition counts when the remote's branch was moved from the commit that
it was decided on, by a push that names that commit; only then it is written down here.

Not promised: that what is read here is the newest. `update` finds out, `wait` looks.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from msgspec import Struct

from sequencer.errors import (
    ClaimHeld,
    RemoteUnreachable,
    SequencerError,
    StateRefused,
    StorageFailed,
)
from sequencer.files.textfile import ref_part, slug
from sequencer.model.head import Claim, Head, Status
from sequencer.model.transitions import Transition
from sequencer.plugins.git.process import Git, GitFailed
from sequencer.plugins.git.state.branch import Branch, PendingPush
from sequencer.plugins.git.state.heartbeats import Heartbeats, confirmed
from sequencer.plugins.git.state.objects import Objects
from sequencer.plugins.git.state.remote import Refs, RefWatch, Remote, remote_folder
from sequencer.plugins.git.state.waiting import PollPace, SharedLook, SharedWait
from sequencer.project.store_requests import StoreRequest
from sequencer.store.file import FileStore
from sequencer.store.head import parse_head
from sequencer.store.highwater import HighWaterMark
from sequencer.store.journal import decode
from sequencer.store.ownership import refused
from sequencer.store.protocol import Change, Liveness, View

LOOKED = "remote.looked"
"""In the run's folder: when a process of this clone has looked at the remote."""


DEFAULT_RUN = "default"
LOCAL = "refs/worktree/sequencer/"
"""Where refs are kept here. A run belongs to one work tree, and so do these: git gives each
that hangs on the same repository its own (`git worktree`)."""
_OWN = "sequencer/"
_OF = "of"
"""The folder with the heartbeats of branches that are not called as usual."""
LOOKING_S = 1.0
"""For so long who is to wait for the remote leaves it to another thread to end its look."""
LOCK_LEASES = 4
"""How many time limits of git somebody waits for another process of this clone."""


class GitOptions(Struct, frozen=True):
    """What a git store may be told; see ``store:`` in docs/reference/configuration.md."""

    remote: str = "origin"
    branch: str = "sequencer/{run}"
    """``{run}`` is the run's name, or ``default``; without it, named runs get theirs behind it."""
    timeout_s: float = 60.0
    """Of one git process that reaches the remote."""
    max_commits: int = 2000
    fast_s: float = 0.5
    """Between two looks at the remote, after something has happened."""
    slow_s: float = 15.0
    """The same when nothing happens for long."""
    retry_for_s: float = 1800.0
    """How long who works waits for a remote that does not answer."""
    ttl_s: float = 900.0
    rotate_bytes: int = 64 * 1024
    keep: int = 64


def refs_of(options: GitOptions, run: str | None) -> Refs:
    """Return the refs of the run whose folder is called *run*; None: the default run.

    >>> refs_of(GitOptions(), None).state
    'refs/heads/sequencer/default'
    """
    part = DEFAULT_RUN if run is None else ref_part(run)
    if run is not None and part == DEFAULT_RUN:
        part = slug(f"{run}\0")
    branch = options.branch.replace("{run}", part)
    if branch == options.branch and run is not None:
        branch = f"{branch}-{part}"
    # Not below the branch: git has no ref that is a folder as well.
    return Refs(
        f"refs/heads/{branch}",
        f"refs/heads/sequencer-beats/{_beats_name(branch)}",
        f"{LOCAL}{branch}",
    )


def _beats_name(branch: str) -> str:
    """Return how the heartbeats of *branch* are called; those of no other one are.

    >>> _beats_name("sequencer/x"), _beats_name("x"), _beats_name("sequencer/of")
    ('x', 'of/x', 'of/sequencer/of')
    """
    below = branch.removeprefix(_OWN)
    is_usual = branch.startswith(_OWN) and "/" not in below and below != _OF
    return below if is_usual else f"{_OF}/{branch}"


class _Held(Exception):
    """What is asked for again has been accepted already; inside this module only."""

    def __init__(self, pending: PendingPush) -> None:
        super().__init__()
        self.pending = pending


class GitStore:
    """One run's branch and its replica; see `protocol.Store`."""

    def __init__(
        self,
        state_path: Path,
        project_dir: Path,
        run: str | None,
        options: GitOptions,
        migrate: Callable[[dict[str, Any]], Head] | None = None,
        *,
        allowed: Mapping[str, str] | None = None,
        mark: HighWaterMark | None = None,
        redact: Callable[[str], str] = str,
    ) -> None:
        """Keep *run* there; neither folder nor remote are touched before they are needed.

        *allowed*: see `Git`. None: the run is only looked at. *mark*, *redact*: see `FileStore`.
        """
        git = Git(project_dir, timeout_s=options.timeout_s, allowed=allowed)
        remote, refs = Remote(git, options.remote), refs_of(options, run)
        branch = Branch(git, remote, Objects(git), refs, state_path, options.max_commits, mark)
        self._files = files = FileStore(
            state_path,
            ttl_s=options.ttl_s,
            rotate_bytes=options.rotate_bytes,
            keep=options.keep,
            migrate=migrate,
            peer=branch,
            mark=mark,
            lock_timeout_s=LOCK_LEASES * options.timeout_s,
            redact=redact,
        )
        self.ttl_s, self.retry_for_s, self.branch = options.ttl_s, options.retry_for_s, branch
        # What needs no remote.
        self.owner, self.wait_queue = files.owner, files.wait_queue
        self.kept_result, self.result_folder = files.kept_result, files.result_folder
        self.keep_document, self.forget_documents = files.keep_document, files.forget_documents
        self._told: list[str] = []
        self.notify: Callable[[str], None] = self._told.append
        """Receives messages about the remote while a process waits for it."""
        self.is_stopped: Callable[[], bool] = lambda: False
        git.stopped = lambda: self.is_stopped()  # noqa: PLW0108 - set later
        self._beats = Heartbeats(remote, branch.objects, files.leases, refs)
        self._pace = PollPace(remote.name, fast_s=options.fast_s, slow_s=options.slow_s)
        self._slow_s, self._asked_at = options.slow_s, -math.inf
        self._is_changing = False
        # A look makes what is watched again: one thread looks at the remote, or waits for it.
        self._looking = threading.Lock()
        # No remote may be asked then: what this clone knows is all there is.
        self._only_looks = allowed is None
        # A change that may have been accepted, though nobody could tell.
        self._asked: Change | None = None

    @property
    def state_path(self) -> Path:
        return self._files.state_path

    def __repr__(self) -> str:
        """Return where its replica is kept."""
        return f"<GitStore {self.state_path}>"

    def close(self) -> None:
        if (refs := self.__dict__.get("_refs")) is not None:
            refs.close()
        self.branch.objects.close()
        self._files.close()

    def take_notices(self) -> list[str]:
        told = [*self.branch.replica.notices, *self._told]
        self.branch.replica.notices.clear()
        self._told.clear()
        return told + self._files.take_notices()

    # --- reading -------------------------------------------------------------------

    def view(self) -> View:
        """Return the newest head, after asking the remote if the last contact was some time ago."""
        notices = self._freshen()
        seen = self._files.view()
        return View(seen.head, (*notices, *seen.notices), has_edit=seen.has_edit)

    def history(self, after: int = 0) -> Iterator[dict[str, Any]]:
        self._freshen()
        yield from self._files.history(after)

    def document(self, name: str) -> bytes | None:
        self._freshen()
        return self._files.document(name)

    def _freshen(self) -> tuple[str, ...]:
        """Look at the remote if that was not done lately; return what to tell about it."""
        if self._only_looks:
            return self._since()
        # A heartbeat asks while another thread pushes or waits, which looks for both.
        if self._is_changing or not self._looking.acquire(blocking=False):
            return ()
        try:
            return self._freshened()
        finally:
            self._looking.release()

    def _freshened(self) -> tuple[str, ...]:
        now, refs = time.monotonic(), self._refs
        is_watched = refs is not None and bool(refs.fds)
        has_moved = refs is not None and refs.has_moved()
        is_young = now - max(self._asked_at, self.branch.contact_at) < self._slow_s
        if is_young and not has_moved and (is_watched or refs is None):
            return ()
        self._asked_at = now
        if refs is not None:
            refs.arm()
        try:
            self.bring()
        except RemoteUnreachable as error:
            return (f"{error.message}; this is what this clone knows",)
        except StorageFailed as error:
            # A disk that is full: what is here can be read all the same.
            where = f"{error.where}: " if error.where else ""
            return (f"{where}{error.message}; this is what this clone knows",)
        except ClaimHeld:
            pass  # another process of this clone is pushing, and writes down what it finds
        return ()

    def _since(self) -> tuple[str, ...]:
        """Return what to tell about how old it is what this clone knows; once."""
        if self._asked_at > -math.inf:
            return ()
        self._asked_at = time.monotonic()
        known = self.branch.known.read()
        since = "is not known here" if known is None else f"was last seen at {known.at}"
        name = self.branch.remote.name
        return (f"the run on remote {name!r} {since}; 'sequencer sync --fetch' looks there",)

    # --- writing -------------------------------------------------------------------

    def update(self, change: Change) -> Head:
        """Run *change* on the newest head, and let the remote accept its transition.

        Raises:
            RemoteUnreachable: no answer. If the message says that no one knows the result, calling
                this again with the very same *change* finds out, and does nothing twice.
            RemoteRefused: the remote's rules are against it.
        """
        self._is_changing = True
        try:
            head = self._accepted(change)
        finally:
            self._is_changing = False
        if head.status is Status.COMPLETE and not head.claims and self.branch.has_beats:
            self._beats.retire()
            self.branch.has_beats = False
        return head

    def _accepted(self, change: Change) -> Head:
        if self._asked is not change:
            # What was pushed for another one is somebody else's now.
            self.branch.doubts.clear()
        self._asked = None
        with self._git_told():
            try:
                return self._update(change)
            except _Held as held:
                self.branch.cargo = None
                return parse_head(decode(held.pending.line[:-1])["head"], "what was pushed")
            except RemoteUnreachable:
                self._asked = change
                raise

    def _update(self, change: Change) -> Head:
        looks, is_refused = self.branch.looks, False

        def noting(head: Head | None) -> Transition | None:
            nonlocal is_refused
            for pending in self.branch.doubts:
                # It may arrive long after the answer to it was given up.
                if pending.is_of_change and self.branch.holds(pending):
                    raise _Held(pending)
            is_refused = True
            self.branch.deciding = transition = change(head)
            is_refused = transition is None
            return transition

        try:
            head = self._files.update(noting)
        except RemoteUnreachable:
            raise
        except (SequencerError, ValueError):
            # It may have been refused for what is long over.
            if not is_refused or self.branch.looks != looks or not self.bring():
                raise
            return self._files.update(noting)
        if is_refused and self.branch.looks == looks and self.bring():
            return self._files.update(noting)
        return head

    def bring(self) -> bool:
        """Look at the remote and make the folder what the branch is; return whether it moved.

        Raises:
            RemoteUnreachable: there was no answer.
            CorruptState: the branch is no continuation of what is here.
        """
        try:
            with self._git_told():
                tips = self._tips()
                if self._is_nowhere(tips):
                    return False
                with self._files.locked():
                    return self._followed(tips)
        finally:
            # Who reads next need not wait for the same remote once more.
            self._asked_at = time.monotonic()

    def _followed(self, tips: Mapping[str, str]) -> bool:
        """Make the folder what the branch is, state.json with it; return whether it moved."""
        has_moved = self.branch.follow(tips)
        if has_moved:
            # What somebody has edited is told by who reads or changes the run.
            with contextlib.suppress(StateRefused):
                self._files.load()
        return has_moved

    def _is_nowhere(self, tips: Mapping[str, str]) -> bool:
        """Return whether the run was begun nowhere; whoever only looks makes no folder for it."""
        return self.branch.refs.state not in tips and self.branch.tip() is None

    def _tips(self) -> dict[str, str]:
        """Return where the branch is, with no process where a file says it."""
        refs = None if self.branch.is_first_look else self._refs
        found = None if refs is None else self.branch.peek(refs)
        return self.branch.look() if found is None else found

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
        except OSError as error:
            where = str(error.filename or self.state_path.parent)
            hint = "free disk space or fix the permissions, then start again"
            why, hint = refused(error, where, hint)
            raise StorageFailed(f"can't be written: {why}", where=where, hint=hint) from error

    # --- claims and waiting --------------------------------------------------------

    def liveness(self, claim: Claim) -> Liveness:
        first = self._files.liveness(claim)
        if self._only_looks:
            return first

        def look() -> None:
            head = self._files.view().head
            if head is None or head.claim_with(claim.token) is None:
                raise StorageFailed(f"token {claim.token} is not in the run as it is known here")
            with self._git_told():
                self._beats.bring(self.branch.look().get(self.branch.refs.beats), head.claims)

        return confirmed(first, look, lambda: self._files.liveness(claim))

    def beat(self, claim: Claim, number: int) -> None:
        head = self._files.view().head
        standing = {one.token for one in head.claims} if head else set()
        self._beats.beat(claim, number, standing)

    def wait(
        self,
        revision: int,
        timeout_s: float | None,
        *,
        wake_fd: int | None = None,
        claim: Claim | None = None,
    ) -> bool:
        if self._only_looks:
            return self._files.wait(revision, timeout_s, wake_fd=wake_fd, claim=claim)
        if not self._looking.acquire(timeout=LOOKING_S):
            # A heartbeat's look hangs; its end is waited for here, where a person can end it.
            left = LOOKING_S if timeout_s is None else min(timeout_s, LOOKING_S)
            return self._files.wait(revision, left, wake_fd=wake_fd, claim=claim)
        try:
            return self._wait.wait(revision, timeout_s, wake_fd=wake_fd, claim=claim)
        finally:
            self._looking.release()

    @cached_property
    def _wait(self) -> SharedWait:
        return SharedWait(
            self._files,
            self._look,
            self._pace,
            shared=SharedLook(self.state_path.parent / LOOKED),
            refs=self._refs,
            tell=lambda text: self.notify(text),  # noqa: PLW0108 - set later
        )

    @cached_property
    def _refs(self) -> RefWatch | None:
        """Return the watch of a remote that is a folder of this machine, if it may be read."""
        if self._only_looks:
            return None
        folder = remote_folder(self.branch.git, self.branch.remote.name)
        return None if folder is None else RefWatch(folder, self.branch.refs.state)

    def _look(self) -> bool:
        """Look at the remote for who waits; return whether the run has moved."""
        with self._git_told():
            tips = self._tips()
            if self._is_nowhere(tips):
                self._asked_at = time.monotonic()
                return False
            with self._files.locked():
                has_moved = self._followed(tips)
                head = self._files.view().head
                if has_moved and head is not None:
                    self._files.leases.sweep({claim.token for claim in head.claims})
            self._beats.bring(tips.get(self.branch.refs.beats), head.claims if head else ())
            return has_moved


def store_of(request: StoreRequest) -> GitStore:
    """Return the store of a run that machines share through a git remote."""
    settings, chosen, plain = request.settings, request.settings.store, GitOptions()

    def own(value: Any, unset: Any, *path: str) -> Any:
        """Return *value*, or the default of this kind if it is not set."""
        return unset if settings.source_of("store", *path).kind == "default" else value

    options = GitOptions(
        remote=chosen.remote,
        branch=chosen.branch,
        timeout_s=chosen.timeout_s,
        max_commits=chosen.max_commits,
        fast_s=chosen.poll.fast_s,
        slow_s=chosen.poll.slow_s,
        retry_for_s=chosen.retry_for_s,
        ttl_s=own(chosen.ttl_s, plain.ttl_s, "ttl_s"),
        rotate_bytes=own(
            chosen.journal.rotate_bytes, plain.rotate_bytes, "journal", "rotate_bytes"
        ),
        keep=own(chosen.journal.keep, plain.keep, "journal", "keep"),
    )
    is_default = request.state_path == settings.state_file
    return GitStore(
        request.state_path,
        settings.project_dir,
        None if is_default else request.state_path.parent.name,
        options,
        request.to_head,
        allowed=request.allowed(),
        # Each clone has a folder of its own with the same run.
        mark=HighWaterMark(request.state_path, is_shared=True),
        redact=request.redact,
    )
