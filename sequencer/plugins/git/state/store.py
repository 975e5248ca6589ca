"""A run that machines share through a git remote.

The run's folder is a replica of a branch: the file store keeps the same files. A transition is
accepted only when a push has moved the remote's branch; the push names the commit that the
transition was decided on. Only then is it written to the folder.

Not promised: that a read returns the newest state. `update` and `wait` ask the remote.
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
from sequencer.plugins.git.process import Git, GitFailed, is_never_stopped
from sequencer.plugins.git.state.branch import Branch, PendingPush
from sequencer.plugins.git.state.heartbeats import Heartbeats, confirm_expiry
from sequencer.plugins.git.state.remote import Refs, RefWatch, Remote, remote_folder
from sequencer.plugins.git.state.waiting import PollPace, SharedPollTime, SharedWait
from sequencer.project.store_requests import StoreRequest
from sequencer.store.file import FileStore
from sequencer.store.head import parse_head
from sequencer.store.highwater import HighWaterMark
from sequencer.store.journal import decode
from sequencer.store.ownership import explain_refusal
from sequencer.store.protocol import Change, Liveness, View

LOOKED = "remote.looked"
"""File in the run's folder whose mtime says when a process of this clone last polled the remote."""


DEFAULT_RUN = "default"
LOCAL = "refs/worktree/sequencer/"
"""Prefix of the local refs. Like a run, they belong to one work tree: git keeps a separate set
for each work tree of a repository (`git worktree`)."""
_OWN = "sequencer/"
_OF = "of"
"""The ref folder for heartbeats of branches whose name is not ``sequencer/NAME``."""
LOOKING_S = 1.0
"""How long a waiting thread lets another thread finish its poll of the remote."""
LOCK_TIMEOUTS = 4
"""How many of git's time limits a process waits for another process of this clone."""


class GitOptions(Struct, frozen=True):
    """The options of a git store; see ``store:`` in docs/reference/configuration.md."""

    remote: str = "origin"
    branch: str = "sequencer/{run}"
    """``{run}`` is the run's name or ``default``; without it, a named run appends ``-NAME``."""
    timeout_s: float = 60.0
    """Time limit of one git process that contacts the remote."""
    max_commits: int = 2000
    fast_s: float = 0.5
    """Time between two polls of the remote, right after a change."""
    slow_s: float = 15.0
    """Time between two polls when nothing has changed for a long time."""
    retry_for_s: float = 1800.0
    """How long a worker waits for a remote that does not answer."""
    ttl_s: float = 900.0
    rotate_bytes: int = 64 * 1024
    keep: int = 64


def get_refs(options: GitOptions, run: str | None) -> Refs:
    """Return the refs of the run whose folder is called *run*; None: the default run.

    >>> get_refs(GitOptions(), None).state
    'refs/heads/sequencer/default'
    """
    part = DEFAULT_RUN if run is None else ref_part(run)
    if run is not None and part == DEFAULT_RUN:
        part = slug(f"{run}\0")
    branch = options.branch.replace("{run}", part)
    if branch == options.branch and run is not None:
        branch = f"{branch}-{part}"
    # The heartbeats can't be below the branch: in git, a ref can't also be a folder.
    return Refs(
        f"refs/heads/{branch}",
        f"refs/heads/sequencer-beats/{_beats_name(branch)}",
        f"{LOCAL}{branch}",
    )


def _beats_name(branch: str) -> str:
    """Return the name for the heartbeats of *branch*; no other branch gets the same one.

    >>> _beats_name("sequencer/x"), _beats_name("x"), _beats_name("sequencer/of")
    ('x', 'of/x', 'of/sequencer/of')
    """
    name = branch.removeprefix(_OWN)
    is_usual = branch.startswith(_OWN) and "/" not in name and name != _OF
    return name if is_usual else f"{_OF}/{branch}"


class _AlreadyAccepted(Exception):
    """A repeated change was already accepted; never leaves this module."""

    def __init__(self, push: PendingPush) -> None:
        super().__init__()
        self.pending = push


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
        """Prepare the store; neither the folder nor the remote is touched before it is needed.

        *allowed*: see `Git`; None: only read, and never ask the remote. Others: see `FileStore`.
        """
        self._is_stopped: Callable[[], bool] = is_never_stopped
        git = Git(
            project_dir, timeout_s=options.timeout_s, allowed=allowed, is_stopped=self._must_stop
        )
        remote, refs = Remote(git, options.remote), get_refs(options, run)
        branch = Branch(git, remote, refs, state_path, max_commits=options.max_commits, mark=mark)
        self._files = files = FileStore(
            state_path,
            ttl_s=options.ttl_s,
            rotate_bytes=options.rotate_bytes,
            keep=options.keep,
            migrate=migrate,
            peer=branch,
            mark=mark,
            lock_timeout_s=LOCK_TIMEOUTS * options.timeout_s,
            redact=redact,
        )
        self.ttl_s, self.retry_for_s, self.branch = options.ttl_s, options.retry_for_s, branch
        # These need no remote.
        self.owner, self.wait_queue = files.owner, files.wait_queue
        self.find_result_folder, self.result_folder = files.find_result_folder, files.result_folder
        self.keep_document, self.forget_documents = files.keep_document, files.forget_documents
        self._notices: list[str] = []
        self._notify: Callable[[str], None] = self._notices.append
        self._beats = Heartbeats(remote, branch.objects, files.leases, refs)
        self._pace = PollPace(remote.name, fast_s=options.fast_s, slow_s=options.slow_s)
        self._slow_s, self._asked_at = options.slow_s, -math.inf
        self._is_changing = False
        # A poll arms the watch again, so only one thread polls the remote or waits for it.
        self._looking = threading.Lock()
        # Without allowed settings, git must not contact a remote: local knowledge is all there is.
        self._is_read_only = allowed is None
        # A change that may have been accepted, but whose push got no answer.
        self._doubtful_change: Change | None = None

    @property
    def state_path(self) -> Path:
        return self._files.state_path

    def __repr__(self) -> str:
        """Return a short form with the path of the replica."""
        return f"<GitStore {self.state_path}>"

    def close(self) -> None:
        if (refs := self.__dict__.get("_refs")) is not None:
            refs.close()
        self.branch.objects.close()
        self._files.close()

    def report_waiting(self, notify: Callable[[str], None], is_stopped: Callable[[], bool]) -> None:
        self._notify, self._is_stopped = notify, is_stopped

    def _must_stop(self) -> bool:
        return self._is_stopped()

    def take_notices(self) -> list[str]:
        notices = [*self.branch.replica.notices, *self._notices]
        self.branch.replica.notices.clear()
        self._notices.clear()
        return notices + self._files.take_notices()

    # --- reading -------------------------------------------------------------------

    def view(self) -> View:
        """Return the newest head, after asking the remote if the last contact was some time ago."""
        notices = self._freshen()
        view = self._files.view()
        return View(view.head, (*notices, *view.notices), has_edit=view.has_edit)

    def history(self, after: int = 0) -> Iterator[dict[str, Any]]:
        self._freshen()
        yield from self._files.history(after)

    def read_document(self, name: str) -> bytes | None:
        self._freshen()
        return self._files.read_document(name)

    def _freshen(self) -> tuple[str, ...]:
        """Poll the remote if the last poll is not recent; return notices for people."""
        if self._is_read_only:
            return self._age_notice()
        # The thread that pushes or waits polls the remote for the heartbeat thread too.
        if self._is_changing or not self._looking.acquire(blocking=False):
            return ()
        try:
            return self._look_if_due()
        finally:
            self._looking.release()

    def _look_if_due(self) -> tuple[str, ...]:
        moment, refs = time.monotonic(), self._refs
        is_watched = refs is not None and bool(refs.fds)
        has_moved = refs is not None and refs.has_moved()
        is_recent = moment - max(self._asked_at, self.branch.contact_at) < self._slow_s
        if is_recent and not has_moved and (is_watched or refs is None):
            return ()
        self._asked_at = moment
        if refs is not None:
            refs.arm()
        try:
            self.pull()
        except RemoteUnreachable as error:
            return (f"{error.message}; this is what this clone knows",)
        except StorageFailed as error:
            # For example a full disk: the files here can still be read.
            place = f"{error.where}: " if error.where else ""
            return (f"{place}{error.message}; this is what this clone knows",)
        except ClaimHeld:
            pass  # another process of this clone is pushing, and writes what it finds
        return ()

    def _age_notice(self) -> tuple[str, ...]:
        """Return a notice that says how old the local knowledge is; only on the first call."""
        if self._asked_at > -math.inf:
            return ()
        self._asked_at = time.monotonic()
        known_state = self.branch.known.read()
        age_text = (
            "is not known here" if known_state is None else f"was last seen at {known_state.at}"
        )
        name = self.branch.remote.name
        return (f"the run on remote {name!r} {age_text}; 'sequencer sync --fetch' looks there",)

    # --- writing -------------------------------------------------------------------

    def update(self, change: Change) -> Head:
        """Run *change* on the newest head and push its transition to the remote.

        Raises:
            RemoteUnreachable: no answer. If the message says that the result is not known, another
                call with the same *change* object finds out and does nothing twice.
            RemoteRefused: the remote's rules forbid the push.
        """
        self._is_changing = True
        try:
            head = self._update_resolving_doubts(change)
        finally:
            self._is_changing = False
        if head.status is Status.COMPLETE and not head.claims and self.branch.has_beats:
            self._beats.retire()
            self.branch.has_beats = False
        return head

    def _update_resolving_doubts(self, change: Change) -> Head:
        if self._doubtful_change is not change:
            # Pushes for an earlier change say nothing about this one.
            self.branch.doubts.clear()
        self._doubtful_change = None
        with self._convert_git_errors():
            try:
                return self._update(change)
            except _AlreadyAccepted as held:
                self.branch.code_move = None
                return parse_head(decode(held.pending.line[:-1])["head"], "what was pushed")
            except RemoteUnreachable:
                self._doubtful_change = change
                raise

    def _update(self, change: Change) -> Head:
        looks, is_refused = self.branch.looks, False

        def decide(head: Head | None) -> Transition | None:
            nonlocal is_refused
            for push in self.branch.doubts:
                # A push may land long after this process stopped waiting for its answer.
                if push.is_of_change and self.branch.contains(push):
                    raise _AlreadyAccepted(push)
            is_refused = True
            self.branch.deciding = transition = change(head)
            is_refused = transition is None
            return transition

        try:
            head = self._files.update(decide)
        except RemoteUnreachable:
            raise
        except (SequencerError, ValueError):
            # The refusal may come from an outdated head.
            if not is_refused or self.branch.looks != looks or not self.pull():
                raise
            return self._files.update(decide)
        if is_refused and self.branch.looks == looks and self.pull():
            return self._files.update(decide)
        return head

    def pull(self) -> bool:
        """Poll the remote and bring the folder up to date; return whether the branch moved.

        Raises:
            RemoteUnreachable: there was no answer.
            CorruptState: the branch does not continue from the folder's files.
        """
        try:
            with self._convert_git_errors():
                tips = self._read_tips()
                if self._is_unstarted(tips):
                    return False
                with self._files.hold_lock():
                    return self._follow(tips)
        finally:
            # The next read need not wait for the same remote again.
            self._asked_at = time.monotonic()

    def _follow(self, tips: Mapping[str, str]) -> bool:
        """Bring the folder, with state.json, up to the branch; return whether it moved."""
        has_moved = self.branch.follow(tips)
        if has_moved:
            # An edited state.json is reported when the run is read or changed, not here.
            with contextlib.suppress(StateRefused):
                self._files.load()
        return has_moved

    def _is_unstarted(self, tips: Mapping[str, str]) -> bool:
        """Return whether the run was never started: then a poll must not create its folder."""
        return self.branch.refs.state not in tips and self.branch.tip() is None

    def _read_tips(self) -> dict[str, str]:
        """Return the commits of the refs, from their files if possible, else from git."""
        refs = None if self.branch.is_first_look else self._refs
        tips = None if refs is None else self.branch.read_local_tips(refs)
        return self.branch.fetch_tips() if tips is None else tips

    @contextlib.contextmanager
    def _convert_git_errors(self) -> Iterator[None]:
        try:
            yield
        except GitFailed as failed:
            raise StorageFailed(
                f"git can't do what the run needs: {failed}",
                where=str(self.branch.git.folder),
                hint="look at the repository with 'git fsck'",
            ) from failed
        except OSError as error:
            folder = str(error.filename or self.state_path.parent)
            hint = "free disk space or fix the permissions, then start again"
            reason, hint = explain_refusal(error, folder, hint)
            raise StorageFailed(f"can't be written: {reason}", where=folder, hint=hint) from error

    # --- claims and waiting --------------------------------------------------------

    def liveness(self, claim: Claim) -> Liveness:
        liveness = self._files.liveness(claim)
        if self._is_read_only:
            return liveness

        def look() -> None:
            head = self._files.view().head
            if head is None or head.find_claim(claim.token) is None:
                raise StorageFailed(f"token {claim.token} is not in the run as it is known here")
            with self._convert_git_errors():
                self._beats.fetch_beats(
                    self.branch.fetch_tips().get(self.branch.refs.beats), head.claims
                )

        return confirm_expiry(liveness, look, lambda: self._files.liveness(claim))

    def beat(self, claim: Claim, number: int) -> None:
        head = self._files.view().head
        active = {claim.token for claim in head.claims} if head else set()
        self._beats.beat(claim, number, active)

    def wait(
        self,
        revision: int,
        timeout_s: float | None,
        *,
        wake_fd: int | None = None,
        claim: Claim | None = None,
    ) -> bool:
        if self._is_read_only:
            return self._files.wait(revision, timeout_s, wake_fd=wake_fd, claim=claim)
        if not self._looking.acquire(timeout=LOOKING_S):
            # The heartbeat thread's poll hangs. Wait here instead, where a person can interrupt.
            left_s = LOOKING_S if timeout_s is None else min(timeout_s, LOOKING_S)
            return self._files.wait(revision, left_s, wake_fd=wake_fd, claim=claim)
        try:
            return self._wait.wait(revision, timeout_s, wake_fd=wake_fd, claim=claim)
        finally:
            self._looking.release()

    @cached_property
    def _wait(self) -> SharedWait:
        return SharedWait(
            self._files,
            self._poll,
            self._pace,
            shared=SharedPollTime(self.state_path.parent / LOOKED),
            refs=self._refs,
            notify=lambda text: self._notify(text),  # noqa: PLW0108 - the worker comes later
        )

    @cached_property
    def _refs(self) -> RefWatch | None:
        """Return a watch if the remote is a folder on this machine and may be read."""
        if self._is_read_only:
            return None
        folder = remote_folder(self.branch.git, self.branch.remote.name)
        return None if folder is None else RefWatch(folder, self.branch.refs.state)

    def _poll(self) -> bool:
        """Look at the remote during a wait; return whether the run has moved."""
        with self._convert_git_errors():
            tips = self._read_tips()
            if self._is_unstarted(tips):
                self._asked_at = time.monotonic()
                return False
            with self._files.hold_lock():
                has_moved = self._follow(tips)
                head = self._files.view().head
                if has_moved and head is not None:
                    self._files.leases.sweep({claim.token for claim in head.claims})
            self._beats.fetch_beats(tips.get(self.branch.refs.beats), head.claims if head else ())
            return has_moved


def open_git_store(request: StoreRequest) -> GitStore:
    """Return the store of a run that machines share through a git remote."""
    settings, store_settings, defaults = request.settings, request.settings.store, GitOptions()

    def value_or(value: Any, unset: Any, *path: str) -> Any:
        """Return *value*, or the default of this kind if it is not set."""
        return unset if settings.get_source("store", *path).kind == "default" else value

    options = GitOptions(
        remote=store_settings.remote,
        branch=store_settings.branch,
        timeout_s=store_settings.timeout_s,
        max_commits=store_settings.max_commits,
        fast_s=store_settings.poll.fast_s,
        slow_s=store_settings.poll.slow_s,
        retry_for_s=store_settings.retry_for_s,
        ttl_s=value_or(store_settings.ttl_s, defaults.ttl_s, "ttl_s"),
        rotate_bytes=value_or(
            store_settings.journal.rotate_bytes, defaults.rotate_bytes, "journal", "rotate_bytes"
        ),
        keep=value_or(store_settings.journal.keep, defaults.keep, "journal", "keep"),
    )
    is_default = request.state_path == settings.state_file
    return GitStore(
        request.state_path,
        settings.project_dir,
        None if is_default else request.state_path.parent.name,
        options,
        request.to_head,
        allowed=request.allowed(),
        # Other clones have the same run in their own folders.
        mark=HighWaterMark(request.state_path, is_shared=True),
        redact=request.redact,
    )
