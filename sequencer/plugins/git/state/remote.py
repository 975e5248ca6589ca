"""What is asked of a remote: where refs are, bring them here, and move them if nobody else has.

A push names the old value of every ref that it moves, so it is a compare-and-swap. It has
three ends: accepted, refused, and unknown (the connection was lost on the way). Refused
does not say by whom; who asked looks where the ref is now. The refs of a remote that is a folder
of this machine are watched instead of polled: git moves one by renaming a file over it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from urllib.parse import unquote

from msgspec import Struct, field

from sequencer.errors import CorruptState, RemoteUnreachable, StorageFailed, typed_command
from sequencer.files.textfile import expand_home
from sequencer.plugins.git.own_settings import common_of, named
from sequencer.plugins.git.process import DENIED, INCOMPLETE, NOWHERE, UNWRITABLE, Git, GitFailed
from sequencer.plugins.git.state.locks import Lock, in_the_way
from sequencer.store.folder import read_regular
from sequencer.store.lock import is_network, type_of
from sequencer.store.watch import Notifier, notifier

_TELLING = ("error: GH", "GitLab:", "error: cannot lock ref")
"""How those lines of a server begin that say more than its verdict."""
NO_ATOMIC = "does not support --atomic"
"""What git says of a remote that moves one ref after the other."""
LOOK_S = 15.0
"""Time limit of a look, if that of git is longer: nobody can interrupt it."""
DEEPER = 500
"""Commits that are fetched where a shallow clone does not reach back far enough."""
SAID_CHARS = 500
"""Of what a server's hooks have said."""
_CONTROLS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_EMPTY_OBJECT = re.compile(r"object file (\S.*/[0-9a-f]{2}/[0-9a-f]{38,62}) is empty")
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
    """How a push ended, as far as this side can tell."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    """The remote said no: somebody was faster, or its rules are against it."""
    UNKNOWN = "unknown"
    """No answer; it may have been accepted."""


class RefMove(Struct, frozen=True):
    """One ref that a push moves."""

    ref: str
    old: str | None
    """Where it has to be; None: it must not exist yet."""
    new: str | None
    """Where it is to be; None removes it."""


class Pushed(Struct, frozen=True):
    """The end of a push."""

    verdict: PushVerdict
    reason: str = ""
    """What the remote or git said."""
    failure: RemoteUnreachable | None = None
    """If the verdict is unknown: what to tell a person."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """What was said of each ref that was refused for itself, not because of another one."""
    said: str = ""
    """What its hooks said besides; nothing is concluded from it."""
    is_denied: bool = False
    """Whether it was refused before anything was sent: nobody may push with these credentials."""


class NoAtomicPush(Exception):
    """The remote can't move several refs at once; inside this package only."""


def unreachable(remote: str, failed: GitFailed) -> RemoteUnreachable:
    """Return what a person is told about a *remote* that could not be reached."""
    if failed.says(DENIED):
        asked = typed_command("git", "ls-remote", remote)
        hint = f"{asked} has to work without a prompt: fix the credentials"
    elif failed.says(NOWHERE):
        hint = f"check that {typed_command('git', 'remote', 'get-url', remote)} is right"
    else:
        hint = "nothing is lost; it is tried again, or start again when the remote is back"
    return RemoteUnreachable(
        f"remote {remote!r} can't be reached: {failed.reason}",
        hint=hint,
        is_denied=failed.says(DENIED),
    )


class Remote:
    """A remote of a repository, by its name or its address."""

    def __init__(self, git: Git, name: str) -> None:
        """Reach the remote *name* with *git*."""
        self.git = git
        self.name = name
        self.is_atomic = True
        """Whether several refs can be moved at once, as far as is known."""

    def tips(self, refs: Sequence[str]) -> dict[str, str]:
        """Return where those of *refs* are that exist there; ``x/*`` are all directly below x.

        Raises:
            RemoteUnreachable: there was no answer.
        """
        try:
            argv = ("ls-remote", "--refs", "--", self.name, *refs)
            done = self.git.run(*argv, timeout_s=LOOK_S)
        except GitFailed as failed:
            raise unreachable(self.name, failed) from failed
        told = done.stdout.decode("utf-8", "surrogateescape")
        found = (line.split("\t", 1) for line in told.splitlines() if "\t" in line)
        # A pattern of ls-remote also means refs that only end so.
        wanted = {*refs}
        return {
            ref: oid
            for oid, ref in found
            if (ref in wanted or f"{ref.rpartition('/')[0]}/*" in wanted) and _OID.fullmatch(oid)
        }

    def fetch(self, refs: Mapping[str, str], *flags: str) -> bool:
        """Bring each ref of *refs* here, to the local ref that it maps to, wherever that was.

        Returns False if one of them is not there (none was brought).

        Raises:
            RemoteUnreachable: there was no answer.
            StorageFailed: what came can't be kept in this repository.
        """
        try:
            # Without any git would fetch what it is configured to.
            return bool(refs) and self._fetched(refs, flags)
        except GitFailed as failed:
            if failed.says(INCOMPLETE):
                return self.refetch(refs)
            raise self._not_fetched(failed) from failed

    def refetch(self, refs: Mapping[str, str]) -> bool:
        """Bring all of *refs* once more, also what seems to be here; see `fetch`.

        In one pack, which git reads before what lies about singly. Files of objects that have
        no content are removed: git would believe in them.
        """
        settings = ("fetch.unpackLimit=1",)
        flags: tuple[str, ...] = ("--refetch",)
        while True:
            try:
                return self._fetched(refs, flags, settings)
            except GitFailed as failed:
                if flags and "unknown option" in failed.stderr:
                    flags = ()  # before git 2.36
                elif not self._has_removed_empty(failed.stderr):
                    raise self._not_fetched(failed) from failed

    def _fetched(
        self, refs: Mapping[str, str], more: Sequence[str] = (), settings: Sequence[str] = ()
    ) -> bool:
        pairs = [f"+{theirs}:{ours}" for theirs, ours in refs.items()]
        # A partial clone leaves files with the remote; those of a run are read at once.
        flags = ("--quiet", "--no-tags", "--no-write-fetch-head", "--no-filter", *more)
        # The user's own refspecs for this remote are not meant.
        argv = ("fetch", *flags, "--refmap=", "--", self.name, *pairs)
        try:
            self.git.run(*argv, settings=settings)
        except GitFailed as failed:
            if "find remote ref" in failed.stderr:
                return False
            raise
        return True

    def _has_removed_empty(self, stderr: str) -> bool:
        """Remove the file of an object that a power cut has left empty, if git names one."""
        found = _EMPTY_OBJECT.search(stderr)
        if found is None:
            return False
        with contextlib.suppress(OSError, GitFailed):
            # Git names it from the top of the work tree on, and never writes such a file itself.
            top = Path(self.git.text("rev-parse", "--show-toplevel"))
            if not (top / found[1]).stat().st_size:
                (top / found[1]).unlink()
                return True
        return False

    def _not_fetched(self, failed: GitFailed) -> StorageFailed:
        where, whose = str(self.git.folder), f"what was fetched from {self.name!r}"
        if failed.says(INCOMPLETE):
            hint = "look at the repository with 'git fsck'; a fresh clone has what is missing"
            return StorageFailed(
                f"can't keep {whose}, because objects are missing here: {failed.reason}",
                where=where,
                hint=hint,
            )
        if failed.says(UNWRITABLE):
            lock, hint = self._lock(failed.stderr), "free disk space or fix the permissions"
            told, hint = ("", hint) if lock is None else (f": {lock.words}", lock.hint)
            message = f"can't keep {whose}: {failed.reason}{told}"
            return StorageFailed(message, where=where, hint=hint)
        return unreachable(self.name, failed)

    def _lock(self, stderr: str) -> Lock | None:
        """Return the lock of this repository that is in git's way."""
        with contextlib.suppress(GitFailed):
            told = self.git.text("rev-parse", "--git-common-dir")
            return in_the_way(stderr, self.git.folder / told)
        return None

    def push(self, moves: Sequence[RefMove]) -> Pushed:
        """Move all of *moves*, or none of them.

        Raises:
            NoAtomicPush: there are several, and the remote can't do that; none was moved.
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
            done = self.git.run(*argv, settings=for_pushes(self.name), accepts=(0, 1))
        except GitFailed as failed:
            if NO_ATOMIC in failed.stderr:
                self.is_atomic = False
                return self.push(moves)
            reason = failed.reason
            if failed.is_turned_away:
                return Pushed(PushVerdict.REFUSED, reason, is_denied=True)
            return Pushed(PushVerdict.UNKNOWN, reason, failure=unreachable(self.name, failed))
        if NO_ATOMIC in done.stderr:
            self.is_atomic = False
            return self.push(moves)
        return self._judged(done.stdout.decode("utf-8", "replace"), done.stderr, moves)

    def _judged(self, told: str, stderr: str, moves: Sequence[RefMove]) -> Pushed:
        lines = {ref: (flag, text) for flag, ref, text in _reports(told)}
        found = [lines.get(move.ref) for move in moves]
        refused = [text for flag, text in filter(None, found) if flag == "!"]
        if any("[remote failure]" in text for text in refused) or None in found:
            failed = GitFailed(("push",), 1, stderr)
            failure = unreachable(self.name, failed)
            return Pushed(PushVerdict.UNKNOWN, failed.reason, failure=failure)
        if not refused:
            return Pushed(PushVerdict.ACCEPTED)
        # With an atomic push all but one line only say that another one was refused.
        told_why = [text for text in refused if "atomic" not in text] or refused
        words = [line.removeprefix("remote:").strip() for line in stderr.splitlines()]
        said = [line for line in words if line.startswith(_TELLING)]
        why = {
            move.ref: text
            for move, (flag, text) in zip(moves, filter(None, found), strict=True)
            if flag == "!" and text in told_why
        }
        reason = "; ".join((*told_why, *said))
        return Pushed(PushVerdict.REFUSED, reason, said=_said(stderr), refused=why)


def for_pushes(remote: str) -> tuple[str, ...]:
    """Return settings without which git pushes all to a mirror, or nothing; an address is none."""
    return () if {":", "="} & set(remote) else (f"remote.{remote}.mirror=false",)


def _said(stderr: str) -> str:
    """Return in one line for people what the server's hooks said, and no reason has yet."""
    found = []
    for line in stderr.splitlines():
        if line.startswith("remote:"):
            bare = _CONTROLS.sub("", line.removeprefix("remote:"))
            words = " ".join("".join(c if c.isprintable() else " " for c in bare).split())
            if words and not words.startswith((*_TELLING, "error: hook declined")):
                found.append(words)
    text = " / ".join(found)
    return text if len(text) <= SAID_CHARS else f"{text[: SAID_CHARS - 1]}…"


def _reports(told: str) -> list[tuple[str, str, str]]:
    """Return flag, ref and text of each line of a push's ``--porcelain`` about a ref."""
    found = []
    for line in told.splitlines():
        parts = line.split("\t", 2)
        if len(parts) == 3 and len(parts[0]) == 1:  # noqa: PLR2004 - flag, from:to, summary
            found.append((parts[0], parts[1].rpartition(":")[2], parts[2]))
    return found


_OTHER_TRANSPORT = re.compile(r"[^/]*:")
"""host:path, scheme://…, helper::…; a path with a colon has a slash before it."""
_SUFFIXES = ("/.git", "", ".git/.git", ".git")
"""Where git looks for the repository of a path, in its order."""
_MAX_OID = 65
_REF_FILE = re.compile(r"([0-9a-f]{40}(?:[0-9a-f]{24})?)\n")


def remote_folder(git: Git, remote: str) -> Path | None:
    """Return the folder with the refs of *remote*, or None if it can't be watched here."""
    try:
        path = _local_path(git.text("ls-remote", "--get-url", "--", remote))
        if path is None:
            return None
        if not path.is_absolute():
            is_bare = git.text("rev-parse", "--is-bare-repository") == "true"
            ask = "--absolute-git-dir" if is_bare else "--show-toplevel"
            path = Path(git.text("rev-parse", ask)) / path
    except GitFailed:
        return None
    try:
        folder = _git_dir(path)
        if folder is None or (folder / "reftable").exists() or is_network(type_of(folder)):
            return None
    except (OSError, ValueError):
        return None
    return folder


def _local_path(url: str) -> Path | None:
    if url.startswith("file:///"):
        return Path(unquote(url.removeprefix("file://")))
    return None if not url or _OTHER_TRANSPORT.match(url) else Path(expand_home(url))


def _git_dir(path: Path) -> Path | None:
    for suffix in _SUFFIXES:
        found = Path(f"{path}{suffix}")
        if found.is_file():
            with contextlib.suppress(OSError):
                found = named(found, "gitdir: ")
        if (found / "HEAD").is_file():
            found = common_of(found)  # of a linked work tree the branches are with the others
            return found.resolve() if (found / "objects").is_dir() else None
    return None


class RefWatch:
    """Wakes when a ref of a repository on this machine may have moved."""

    def __init__(self, git_dir: Path, ref: str) -> None:
        """Watch *ref* in the repository *git_dir* from the first `arm` on."""
        self._git_dir = git_dir
        self._path = git_dir / ref
        self._watch: Notifier | None = None

    @property
    def fds(self) -> tuple[int, ...]:
        """Return what becomes readable then; nothing if the system has no watch to give."""
        return () if self._watch is None else (self._watch.fileno(),)

    def arm(self) -> None:
        """Watch anew; whoever looks after this misses nothing."""
        before, self._watch = self._watch, None
        try:
            folder = self._nearest()
            while self._watch is None:
                # Until there is a ref of this name, everything in its folder counts.
                name = self._path.name if folder == self._path.parent else None
                self._watch = notifier(folder, name)
                if (nearest := self._nearest()) != folder:
                    # Made in this moment: its maker is not seen from the folder above.
                    self._watch.close()
                    folder, self._watch = nearest, None
        except OSError:
            self._watch = None
        finally:
            if before is not None:
                before.close()

    def _nearest(self) -> Path:
        """Return the folder of the ref, or the nearest above it that exists; git removes others."""
        folder = self._path.parent
        while not folder.is_dir() and folder != self._git_dir:
            folder = folder.parent
        return folder

    def tip_of(self, ref: str) -> str | None:
        """Return where *ref* is, read from its file; None: only git can tell.

        A ref that has a file is where the file says, whatever packed-refs has.
        """
        try:
            data = read_regular(self._git_dir / ref, 0, _MAX_OID)
        except (OSError, CorruptState):
            return None
        found = _REF_FILE.fullmatch(data.decode("ascii", "replace"))
        return None if found is None else found[1]

    def has_moved(self) -> bool:
        """Return whether something has happened since the last call or `arm`."""
        return self._watch is not None and self._watch.has_changed()

    def close(self) -> None:
        """Free what the watch holds; `arm` begins again."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None
