"""Requests to a git remote: list refs, fetch them, and move them unless another push was faster.

A push names the old value of every ref that it moves, so it is a compare-and-swap. It has
three results: accepted, refused, and unknown (the connection was lost). A refusal does not say who
moved the ref, so the caller reads where it is. If the remote is a folder on this machine, its refs
are watched instead of polled: git moves a ref by renaming a file over it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from urllib.parse import unquote

from msgspec import Struct, field

from sequencer.errors import CorruptState, RemoteUnreachable, StorageFailed, format_other_command
from sequencer.files.textfile import expand_home
from sequencer.plugins.git.own_settings import find_common_dir, read_pointer
from sequencer.plugins.git.process import (
    DENIED,
    INCOMPLETE,
    NOWHERE,
    UNWRITABLE,
    Git,
    GitFailed,
    drop_remote_text,
)
from sequencer.plugins.git.state.locks import Lock, find_named_lock
from sequencer.store.folder import read_regular
from sequencer.store.lock import filesystem_type, is_network
from sequencer.store.watch import Notifier, start_notifier

_REASONS = ("error: GH", "GitLab:", "error: cannot lock ref")
"""Beginnings of server lines that explain a verdict."""
NO_ATOMIC = "does not support --atomic"
"""Git's message for a remote that can't move several refs at once."""
LOOK_S = 15.0
"""Time limit of a poll if git's own limit is longer: a person can't interrupt a poll."""
DEEPER = 500
"""Commits to fetch if a shallow clone does not reach back far enough."""
SAID_CHARS = 500
"""Longest text from a server's hooks that is shown."""
_CONTROLS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_EMPTY_OBJECT = re.compile(r"object file (?:.*/)?([0-9a-f]{2}/[0-9a-f]{38,62}) is empty")
_OID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


class Refs(Struct, frozen=True):
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


class PushVerdict(StrEnum):
    """How a push ended, as far as this clone can know."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    """The remote said no: another push was faster, or its rules forbid it."""
    UNKNOWN = "unknown"
    """No answer; it may have been accepted."""


class RefMove(Struct, frozen=True):
    """One ref that a push moves."""

    ref: str
    old: str | None
    """The commit that it must be at before; None: it must not exist."""
    new: str | None
    """The commit to move it to; None removes it."""


class Pushed(Struct, frozen=True):
    """The result of a push."""

    verdict: PushVerdict
    reason: str = ""
    """What the remote or git said."""
    failure: RemoteUnreachable | None = None
    """The error to report if the verdict is unknown."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Ref -> reason, for each ref that was itself refused, not only because another one was."""
    hook_output: str = ""
    """Other output of the remote's hooks; for people only."""
    is_denied: bool = False
    """Whether it was refused before anything was sent: these credentials may not push."""


class NoAtomicPush(Exception):
    """The remote can't move several refs at once; never leaves this package."""


def unreachable_error(remote: str, failed: GitFailed) -> RemoteUnreachable:
    """Return the error, with its hint, for a *remote* that could not be reached."""
    if failed.has_message(DENIED):
        command = format_other_command("git", "ls-remote", remote)
        hint = f"{command} has to work without a prompt: fix the credentials"
    elif failed.has_message(NOWHERE):
        hint = f"check that {format_other_command('git', 'remote', 'get-url', remote)} is right"
    else:
        hint = "nothing is lost; it is tried again, or start again when the remote is back"
    return RemoteUnreachable(
        f"remote {remote!r} can't be reached: {failed.reason}",
        hint=hint,
        is_denied=failed.has_message(DENIED),
    )


class Remote:
    """A remote of a repository, known by its name or its address."""

    def __init__(self, git: Git, name: str) -> None:
        """Reach the remote *name* with *git*."""
        self.git = git
        self.name = name
        self.is_atomic = True
        """Whether it can move several refs at once; True until a push shows that it can't."""

    def list_tips(self, refs: Sequence[str]) -> dict[str, str]:
        """Return the commit of each of *refs* that exists; ``x/*`` means all directly below x.

        Raises:
            RemoteUnreachable: there was no answer.
        """
        try:
            argv = ("ls-remote", "--refs", "--", self.name, *refs)
            result = self.git.run(*argv, timeout_s=LOOK_S)
        except GitFailed as failed:
            raise unreachable_error(self.name, failed) from failed
        output = result.stdout.decode("utf-8", "surrogateescape")
        pairs = (line.split("\t", 1) for line in output.splitlines() if "\t" in line)
        # A pattern of ls-remote also matches refs that only end with it.
        wanted_refs = {*refs}
        return {
            ref: oid
            for oid, ref in pairs
            if (ref in wanted_refs or f"{ref.rpartition('/')[0]}/*" in wanted_refs)
            and _OID.fullmatch(oid)
        }

    def fetch(self, refs: Mapping[str, str], *flags: str) -> bool:
        """Fetch each ref of *refs* into the local ref that it maps to, and overwrite that.

        Returns False if one of them does not exist (then none was fetched).

        Raises:
            RemoteUnreachable: there was no answer.
            StorageFailed: the objects can't be stored in this repository.
        """
        try:
            # Without refs, git would fetch what its configuration says.
            return bool(refs) and self._fetch(refs, flags)
        except GitFailed as failed:
            if failed.has_local_message(INCOMPLETE):
                return self.refetch(refs)
            raise self._fetch_error(failed) from failed

    def refetch(self, refs: Mapping[str, str]) -> bool:
        """Fetch *refs* again with all their objects, even those that seem to be here; see `fetch`.

        They come in one pack, which git reads before loose objects. Empty object files are
        removed, because git would take them for the objects.
        """
        settings = ("fetch.unpackLimit=1",)
        flags: tuple[str, ...] = ("--refetch",)
        while True:
            try:
                return self._fetch(refs, flags, settings)
            except GitFailed as failed:
                if flags and "unknown option" in failed.local_stderr:
                    flags = ()  # before git 2.36
                elif not self._remove_empty_object(failed.local_stderr):
                    raise self._fetch_error(failed) from failed

    def _fetch(
        self, refs: Mapping[str, str], extra_flags: Sequence[str] = (), settings: Sequence[str] = ()
    ) -> bool:
        pairs = [f"+{remote_ref}:{local_ref}" for remote_ref, local_ref in refs.items()]
        # A partial clone would leave the files on the remote, but a run's are read at once.
        flags = ("--quiet", "--no-tags", "--no-write-fetch-head", "--no-filter", *extra_flags)
        # An empty refmap keeps the user's refspecs for this remote out of it.
        argv = ("fetch", *flags, "--refmap=", "--", self.name, *pairs)
        try:
            self.git.run(*argv, settings=settings)
        except GitFailed as failed:
            if "find remote ref" in failed.local_stderr:
                return False
            raise
        return True

    def _remove_empty_object(self, stderr: str) -> bool:
        """Remove the empty object file that *stderr* names, if any; a power cut leaves those.

        Only the object's name is read from *stderr*: a remote may have written the path.
        """
        match = _EMPTY_OBJECT.search(stderr)
        if match is None:
            return False
        with contextlib.suppress(OSError, GitFailed):
            objects = self.git.folder / self.git.read_output("rev-parse", "--git-path", "objects")
            path = objects / match[1]
            # Git itself never writes empty ones.
            if not path.stat(follow_symlinks=False).st_size:
                path.unlink()
                return True
        return False

    def _fetch_error(self, failure: GitFailed) -> StorageFailed:
        folder, objects = str(self.git.folder), f"what was fetched from {self.name!r}"
        if failure.has_local_message(INCOMPLETE):
            hint = "look at the repository with 'git fsck'; a fresh clone has what is missing"
            return StorageFailed(
                f"can't keep {objects}, because objects are missing here: {failure.reason}",
                where=folder,
                hint=hint,
            )
        if failure.has_local_message(UNWRITABLE):
            lock, hint = (
                self._find_lock(failure.local_stderr),
                "free disk space or fix the permissions",
            )
            detail, hint = ("", hint) if lock is None else (f": {lock.description}", lock.hint)
            message = f"can't keep {objects}: {failure.reason}{detail}"
            return StorageFailed(message, where=folder, hint=hint)
        return unreachable_error(self.name, failure)

    def _find_lock(self, stderr: str) -> Lock | None:
        """Return the lock of this repository that *stderr* names, if any."""
        with contextlib.suppress(GitFailed):
            git_dir = self.git.read_output("rev-parse", "--git-common-dir")
            return find_named_lock(stderr, self.git.folder / git_dir)
        return None

    def push(self, moves: Sequence[RefMove]) -> Pushed:
        """Move all of *moves*, or none of them.

        Raises:
            NoAtomicPush: the remote can't move several refs at once; none was moved.
        """
        flags = ["--porcelain", "--no-verify", "--no-signed"]
        if self.is_atomic:
            flags.append("--atomic")
        elif len(moves) > 1:
            raise NoAtomicPush
        flags += [f"--force-with-lease={move.ref}:{move.old or ''}" for move in moves]
        pairs = [f"{move.new or ''}:{move.ref}" for move in moves]
        argv = ("push", *flags, "--", self.name, *pairs)
        try:
            result = self.git.run(*argv, settings=push_settings(self.name), accepts=(0, 1))
        except GitFailed as failed:
            if NO_ATOMIC in failed.local_stderr:
                self.is_atomic = False
                return self.push(moves)
            reason = failed.reason
            if failed.is_turned_away:
                return Pushed(PushVerdict.REFUSED, reason, is_denied=True)
            return Pushed(PushVerdict.UNKNOWN, reason, failure=unreachable_error(self.name, failed))
        if NO_ATOMIC in drop_remote_text(result.stderr):
            self.is_atomic = False
            return self.push(moves)
        return self._push_result(result.stdout.decode("utf-8", "replace"), result.stderr, moves)

    def _push_result(self, output: str, stderr: str, moves: Sequence[RefMove]) -> Pushed:
        lines = {ref: (flag, text) for flag, ref, text in _parse_reports(output)}
        reports = [lines.get(move.ref) for move in moves]
        refusals = [text for flag, text in filter(None, reports) if flag == "!"]
        if any("[remote failure]" in text for text in refusals) or None in reports:
            error = GitFailed(("push",), 1, stderr)
            failure = unreachable_error(self.name, error)
            return Pushed(PushVerdict.UNKNOWN, error.reason, failure=failure)
        if not refusals:
            return Pushed(PushVerdict.ACCEPTED)
        # With an atomic push all but one line only say that another one was refused.
        reasons = [text for text in refusals if "atomic" not in text] or refusals
        server_lines = [line.removeprefix("remote:").strip() for line in stderr.splitlines()]
        explanations = [line for line in server_lines if line.startswith(_REASONS)]
        reason_by_ref = {
            move.ref: text
            for move, (flag, text) in zip(moves, filter(None, reports), strict=True)
            if flag == "!" and text in reasons
        }
        return Pushed(
            PushVerdict.REFUSED,
            "; ".join((*reasons, *explanations)),
            hook_output=_hook_output(stderr),
            refused=reason_by_ref,
        )


def push_settings(remote: str) -> tuple[str, ...]:
    """Return the settings for a push of single refs to *remote*.

    Without them git would push every ref, or none, to a mirror. An address has no settings.
    """
    return () if {":", "="} & set(remote) else (f"remote.{remote}.mirror=false",)


def _hook_output(stderr: str) -> str:
    """Return the output of the server's hooks in one line, without the lines in the reason."""
    parts = []
    for line in stderr.splitlines():
        if line.startswith("remote:"):
            bare = _CONTROLS.sub("", line.removeprefix("remote:"))
            words = " ".join(
                "".join(character if character.isprintable() else " " for character in bare).split()
            )
            if words and not words.startswith((*_REASONS, "error: hook declined")):
                parts.append(words)
    text = " / ".join(parts)
    return text if len(text) <= SAID_CHARS else f"{text[: SAID_CHARS - 1]}…"


def _parse_reports(output: str) -> list[tuple[str, str, str]]:
    """Return (flag, ref, text) for each ref in the ``--porcelain`` *output* of a push."""
    reports = []
    for line in output.splitlines():
        parts = line.split("\t", 2)
        if len(parts) == 3 and len(parts[0]) == 1:  # noqa: PLR2004 - flag, from:to, summary
            reports.append((parts[0], parts[1].rpartition(":")[2], parts[2]))
    return reports


_OTHER_TRANSPORT = re.compile(r"[^/]*:")
"""host:path, scheme://…, helper::…; a local path with a colon has a slash before the colon."""
_SUFFIXES = ("/.git", "", ".git/.git", ".git")
"""Where git looks for the repository of a path, in git's order."""
_MAX_OID = 65
_REF_FILE = re.compile(r"([0-9a-f]{40}(?:[0-9a-f]{24})?)\n")


def remote_folder(git: Git, remote: str) -> Path | None:
    """Return the folder with the refs of *remote*, or None if this machine can't watch it."""
    try:
        path = _local_path(git.read_output("ls-remote", "--get-url", "--", remote))
        if path is None:
            return None
        if not path.is_absolute():
            is_bare = git.read_output("rev-parse", "--is-bare-repository") == "true"
            option = "--absolute-git-dir" if is_bare else "--show-toplevel"
            path = Path(git.read_output("rev-parse", option)) / path
    except GitFailed:
        return None
    try:
        folder = _find_git_dir(path)
        if folder is None or (folder / "reftable").exists() or is_network(filesystem_type(folder)):
            return None
    except (OSError, ValueError):
        return None
    return folder


def _local_path(url: str) -> Path | None:
    if url.startswith("file:///"):
        return Path(unquote(url.removeprefix("file://")))
    return None if not url or _OTHER_TRANSPORT.match(url) else Path(expand_home(url))


def _find_git_dir(path: Path) -> Path | None:
    for suffix in _SUFFIXES:
        folder = Path(f"{path}{suffix}")
        if folder.is_file():
            with contextlib.suppress(OSError):
                folder = read_pointer(folder, "gitdir: ")
        if (folder / "HEAD").is_file():
            folder = find_common_dir(
                folder
            )  # a linked work tree has its branches in the common folder
            return folder.resolve() if (folder / "objects").is_dir() else None
    return None


class RefWatch:
    """Wakes the process when a ref of a repository on this machine may have moved."""

    def __init__(self, git_dir: Path, ref: str) -> None:
        """Prepare to watch *ref* in the repository *git_dir*; `arm` starts the watch."""
        self._git_dir = git_dir
        self._path = git_dir / ref
        self._watch: Notifier | None = None

    @property
    def fds(self) -> tuple[int, ...]:
        """Return the descriptors that become readable; empty if the system can't watch the ref."""
        return () if self._watch is None else (self._watch.fileno(),)

    def arm(self) -> None:
        """Start the watch, or start it again; a poll after this call misses nothing."""
        old_watch, self._watch = self._watch, None
        try:
            folder = self._nearest_folder()
            while self._watch is None:
                # Until the ref's own folder exists, any change in the folder above counts.
                name = self._path.name if folder == self._path.parent else None
                self._watch = start_notifier(folder, name)
                if (nearest_folder := self._nearest_folder()) != folder:
                    # The folder was created just now; the watch above it can't see the ref.
                    self._watch.close()
                    folder, self._watch = nearest_folder, None
        except OSError:
            self._watch = None
        finally:
            if old_watch is not None:
                old_watch.close()

    def _nearest_folder(self) -> Path:
        """Return the ref's folder, or its nearest parent that exists: git removes empty ones."""
        folder = self._path.parent
        while not folder.is_dir() and folder != self._git_dir:
            folder = folder.parent
        return folder

    def read_tip(self, ref: str) -> str | None:
        """Return the commit of *ref* as its file says; None: only git can find it.

        If a ref has a file, the file takes precedence over packed-refs.
        """
        try:
            data = read_regular(self._git_dir / ref, 0, _MAX_OID)
        except (OSError, CorruptState):
            return None
        match = _REF_FILE.fullmatch(data.decode("ascii", "replace"))
        return None if match is None else match[1]

    def has_moved(self) -> bool:
        """Return whether anything has changed since the last call or `arm`."""
        return self._watch is not None and self._watch.has_changed()

    def close(self) -> None:
        """Release the watch; `arm` starts it again."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None
