"""Looks for keys in what an agent has committed itself, before that is merged.

In every commit and not only in the last one: what a later commit takes away again stays in
the history that a merge brings. A key is told by its shape, or by its value where that is
known; what the checkout has already is not looked at. Not promised: to find a key that looks
like none, or one in a file above the cap.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from sequencer.errors import SequencerError
from sequencer.git.checkout import PATIENCE_S, QUIET, Checkout
from sequencer.git.process import Git, GitFailed
from sequencer.git.selection import (
    Content,
    IsSecret,
    Unfit,
    ensure_fit_name,
    is_unchanged,
    read_content,
)
from sequencer.git.tree import STATUS, Change, StatusEntry, TreeStatus, parse_status, under_way_in
from sequencer.git.worktrees import Phase, PlacedGit, Worktree, Worktrees, git_dirs, remove
from sequencer.settings.git import MIB

BATCH_BYTES = 16 * 1024 * 1024
"""Of contents that are read at once."""
IN_FILE = "holds what looks like a key"
IN_NAME = "has a name that looks like a key"
IN_MESSAGE = "has what looks like a key in its message"


@dataclass(frozen=True, slots=True)
class _Object:
    """Something that is new."""

    oid: str
    kind: str
    size: int
    path: str


def with_keys(
    git: Git,
    tip: str,
    known: list[str],
    *,
    is_secret: IsSecret,
    is_new: Callable[[str, bytes], bool],
    max_bytes: int,
) -> Iterator[tuple[str, str]]:
    """Yield what holds a key in *tip* and the commits before it that none of *known* has.

    Each is a path, or ``commit …``, and a reason. *is_new* says of a path and a content that
    holds a key whether the key is one that was not there. Files above *max_bytes* are not read.

    Raises:
        GitFailed: git can't.
    """
    found = [one for one in _new(git, tip, known) if one.kind in ("blob", "commit")]
    for one in found:
        # A name that is cut at a line end is looked at as far as it goes.
        if one.path and is_secret(os.fsencode(one.path)):
            yield _without_keys(one.path, is_secret), IN_NAME
    for one, data in _read(git, [one for one in found if one.size <= max_bytes]):
        if one.kind == "commit":
            if is_secret(data.partition(b"\n\n")[2]):
                yield f"commit {one.oid[:12]}", IN_MESSAGE
        elif is_secret(data) and is_new(one.path, data):
            yield one.path, IN_FILE


def _without_keys(path: str, is_secret: IsSecret) -> str:
    """Return *path* with nothing in it that looks like a key."""
    parts = ["…" if is_secret(os.fsencode(part)) else part for part in path.split("/")]
    shown = "/".join(parts)
    return "…" if is_secret(os.fsencode(shown)) else shown


def _new(git: Git, tip: str, known: list[str]) -> Iterator[_Object]:
    """Yield the objects that *tip* has and none of *known*, each once."""
    told = git.run("rev-list", "--objects", tip, "--not", *known).stdout
    named = [line.partition(b" ") for line in told.splitlines()]
    asked = b"".join(oid + b"\n" for oid, _, _ in named)
    form = "--batch-check=%(objecttype) %(objectsize)"
    answers = git.run("cat-file", form, stdin=asked).stdout.splitlines()
    for (oid, _, path), answer in zip(named, answers, strict=True):
        kind, _, size = answer.decode().partition(" ")
        yield _Object(oid.decode(), kind, int(size), os.fsdecode(path))


def _read(git: Git, objects: list[_Object]) -> Iterator[tuple[_Object, bytes]]:
    """Yield the contents of *objects*, a few at a time."""
    batch: list[_Object] = []
    for place, one in enumerate(objects, 1):
        batch.append(one)
        if place == len(objects) or sum(other.size for other in batch) >= BATCH_BYTES:
            yield from _batch(git, batch)
            batch = []


def _batch(git: Git, objects: list[_Object]) -> Iterator[tuple[_Object, bytes]]:
    asked = "".join(f"{one.oid}\n" for one in objects).encode()
    data = git.run("cat-file", "--batch", stdin=asked).stdout
    place = 0
    for one in objects:
        place = data.index(b"\n", place) + 1
        yield one, data[place : place + one.size]
        place += one.size + 1


MAX_FILE_BYTES, MAX_TOTAL_BYTES = 32 * MIB, 128 * MIB
"""As large as a tracked output and a commit may be elsewhere."""
_KEY_BLOCK = b"PRIVATE KEY"


@dataclass(frozen=True, slots=True)
class RefusedPath:
    """A path that is not committed, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Gathered:
    """What became of a worktree's files."""

    tip: str
    """The commit that holds all of it."""
    refused: tuple[RefusedPath, ...] = ()
    """Not empty: nothing was committed."""
    others: tuple[str, ...] = ()
    """Repositories in the worktree, which no commit of it holds."""
    notices: tuple[str, ...] = ()
    has_own: bool = False
    """The agent has committed itself."""


class Gatherer:
    """Commits in the worktrees of one checkout."""

    def __init__(
        self,
        checkout: Checkout,
        is_secret: IsSecret,
        *,
        max_file_bytes: int = MAX_FILE_BYTES,
        max_total_bytes: int = MAX_TOTAL_BYTES,
    ) -> None:
        """Commit nothing that *is_secret* knows, and no more than the caps allow."""
        self._checkout = checkout
        self._is_secret = is_secret
        self._max_file_bytes = max_file_bytes
        self._max_total_bytes = max_total_bytes

    def gather(self, worktree: Worktree, git: PlacedGit, message: str) -> Gathered:
        """Commit what is in *worktree*, and point its branch at everything that was done.

        Raises:
            GitFailed: git can't; what was there is there still.
        """
        status = parse_status(git.run(*STATUS).stdout)
        if status.commit is None:
            return Gathered(worktree.base, (RefusedPath(".", "is on a branch without a commit"),))
        if begun := under_way_in(git.git_dir):
            return Gathered(status.commit, (RefusedPath(".", f"is in the middle of {begun}"),))
        own = {e.path for e in status.entries if not e.is_tracked and self._is_own(e.path)}
        others = {e.path for e in status.entries if e.is_submodule or e.path.endswith("/")} - own
        entries = [e for e in status.entries if e.path not in own | others]
        read_before: dict[str, Content] = {}
        refused = tuple(self._refused(git, entries, read_before))
        if refused:
            return Gathered(status.commit, refused, tuple(sorted(others)))
        tip = status.commit
        if entries:
            _stage(git, own | others)
            refused = tuple(
                RefusedPath(path, "was changed while it was read")
                for path, content in read_before.items()
                if not is_unchanged(git.folder, path, content)
            )
            if refused:
                return Gathered(status.commit, refused, tuple(sorted(others)))
            tip = self._committed(git, tip, message)
        notices = [f"left out, being files of a run: {', '.join(sorted(own))}"] if own else []
        notices += self._moved_branch(worktree, git, status, tip)
        has_own = status.commit != worktree.base
        return Gathered(tip, (), tuple(sorted(others)), tuple(notices), has_own)

    def with_keys(self, worktree: Worktree, git: PlacedGit, tip: str) -> tuple[RefusedPath, ...]:
        """Return what must not be merged of *tip*, because a commit of it adds a key.

        Raises:
            GitFailed: git can't.
        """

        def is_new(path: str, data: bytes) -> bool:
            return self._is_new(git, path, data, worktree.base)

        known = [worktree.base, *filter(None, [self._checkout.commit()])]
        found = with_keys(
            git,
            tip,
            known,
            is_secret=self._is_secret,
            is_new=is_new,
            max_bytes=self._max_file_bytes,
        )
        return tuple(RefusedPath(path, reason) for path, reason in dict(found).items())

    def _is_own(self, path: str) -> bool:
        return self._checkout.tree.is_own(path)

    # --- what may be committed -----------------------------------------------------

    def _refused(
        self, git: PlacedGit, entries: list[StatusEntry], found: dict[str, Content]
    ) -> Iterator[RefusedPath]:
        """Yield what of *entries* may not be committed; keep in *found* how the others were."""
        left = self._max_total_bytes
        for entry in entries:
            try:
                content = self._content(git, entry)
                if content is None:
                    continue
            except Unfit as unfit:
                yield RefusedPath(entry.path, str(unfit))
                continue
            left -= content.size
            if left < 0:
                reason = f"does not fit into the {self._max_total_bytes} bytes of a commit"
                yield RefusedPath(entry.path, reason)
            found[entry.path] = content

    def _content(self, git: PlacedGit, entry: StatusEntry) -> Content | None:
        if entry.is_unmerged:
            raise Unfit("has conflicts of a merge")
        try:
            ensure_fit_name(entry.path, self._is_secret)
        except Unfit:
            # What is committed under such a name already is an example, or no secret any more.
            if not entry.is_tracked or _old_content(git, entry.path) is None:
                raise
        if entry.change is Change.DELETED:
            return None

        def is_new_secret(data: bytes) -> bool:
            return self._is_secret(data) and self._is_new(git, entry.path, data)

        return read_content(git.folder, entry.path, self._max_file_bytes, is_new_secret)

    def _is_new(self, git: PlacedGit, path: str, data: bytes, commit: str = "HEAD") -> bool:
        """Return whether *data*, which holds a key, has one that *commit* has not."""
        old = _old_content(git, path, commit)
        if old is None or _KEY_BLOCK in data:
            return True
        known = frozenset(old.split(b"\n"))
        added = [line for line in data.split(b"\n") if line not in known]
        return self._is_secret(b"\n".join(added))

    # --- the commit ----------------------------------------------------------------

    def _committed(self, git: PlacedGit, parent: str, message: str) -> str:
        """Commit what is staged on top of *parent*; return the new commit, or *parent*.

        Raises:
            GitFailed: git can't.
        """
        flags = ("--quiet", "--no-verify", "--no-gpg-sign", "--cleanup=verbatim", "--file=-")
        git.run(
            *("commit", *flags),
            stdin=message.encode("utf-8", "replace"),
            extra=self._checkout.identity,
            settings=QUIET,
            # 1: there is nothing to commit after all, a line end that git makes the same.
            accepts=(0, 1),
        )
        commit = git.text("rev-parse", "HEAD")
        if commit == parent:
            git.run("diff", "--cached", "--quiet")
        return commit

    def _moved_branch(
        self, worktree: Worktree, git: PlacedGit, status: TreeStatus, tip: str
    ) -> list[str]:
        """Point the branch of *worktree* at *tip*, wherever its agent has committed that."""
        if status.branch == worktree.branch:
            return []
        ref = f"refs/heads/{worktree.branch}"
        old = git.text("rev-parse", "--verify", "--quiet", ref, accepts=(0, 1))
        notices = []
        if old and not self._checkout.contains(tip, old):
            left = f"{worktree.branch}.left"
            git.run("update-ref", f"refs/heads/{left}", old)
            notices.append(f"the agent went on from another commit: what it left is on {left}")
        git.run("update-ref", ref, tip)
        return notices


def _stage(git: PlacedGit, without: set[str]) -> None:
    """Bring the index to what is in the worktree, but for the paths *without*."""
    specs = [":/", *(f":(top,exclude,literal){path.rstrip('/')}" for path in sorted(without))]
    told = "".join(f"{spec}\0" for spec in specs).encode("utf-8", "surrogateescape")
    flags = ("--all", "--pathspec-from-file=-", "--pathspec-file-nul")
    git.run("add", *flags, stdin=told, settings=QUIET)


def _old_content(git: PlacedGit, path: str, commit: str = "HEAD") -> bytes | None:
    """Return what *commit* has at *path*; None: nothing, or nothing that is a file."""
    try:
        return git.run("cat-file", "blob", f"{commit}:{path}").stdout
    except GitFailed:
        return None


CLEANING_S = 60.0
"""After this no further worktree is begun with; the next one who cleans goes on."""
_SHOWN = 10
_OF_ATTEMPT = re.compile(r"(?P<name>[^/]+-[0-9]+(-again[0-9]+)?)(\.left)?")
"""The last part of a branch's name: that of the worktree, or of what its agent went away from."""


@dataclass(frozen=True, slots=True)
class Cleared:
    """What is left of a worktree."""

    branch: str | None
    """The branch with its work; None: the checkout has all of it, or there was none."""
    notices: tuple[str, ...] = ()


class Clearing:
    """Removes the worktrees of one run."""

    def __init__(
        self,
        checkout: Checkout,
        worktrees: Worktrees,
        gatherer: Gatherer,
        message: Callable[[Worktree], str],
        prefix: str,
    ) -> None:
        """Remove those of *worktrees*; *message* is that of a commit of what was left.

        The names of their branches begin with *prefix*.
        """
        self._checkout = checkout
        self._worktrees = worktrees
        self._gatherer = gatherer
        self._message = message
        self._prefix = f"refs/heads/{prefix}"

    def git_of(self, worktree: Worktree) -> PlacedGit:
        """Return what runs git in *worktree*."""
        folder = self._worktrees.folder(worktree)
        environment = self._checkout.environment
        allowed = self._checkout.allowed
        return PlacedGit(folder, worktree.place, environment, timeout_s=PATIENCE_S, allowed=allowed)

    def gather(self, worktree: Worktree) -> Gathered:
        """Commit what is in *worktree*; see `Gatherer.gather`."""
        return self._gatherer.gather(worktree, self.git_of(worktree), self._message(worktree))

    def with_keys(self, worktree: Worktree, gathered: Gathered) -> tuple[RefusedPath, ...]:
        """Return what must not be merged of what the agent has committed itself."""
        if not gathered.has_own:
            return ()
        return self._gatherer.with_keys(worktree, self.git_of(worktree), gathered.tip)

    def remove(self, worktree: Worktree, merged: str | None) -> Cleared:
        """Remove the folder of *worktree*, and its branch if that ends in *merged*.

        Raises:
            GitFailed: git can't.
        """
        with self._checkout.repository_lock():
            return self._removed(worktree, lambda: self._without_branch(worktree, merged))

    def discard(self, worktree: Worktree) -> Cleared:
        """Remove the folder of *worktree*, and its branch if the checkout has all of it.

        For who has locked the repository.
        """
        return self._removed(worktree, lambda: self._settled(worktree))

    def _removed(self, worktree: Worktree, settle: Callable[[], str | None]) -> Cleared:
        folder = self._worktrees.folder(worktree)
        if not remove(folder):
            return Cleared(settle(), (f"can't be removed: {folder}",))
        for path in git_dirs(self._checkout.common_dir, folder):
            remove(path)
        branch = settle()
        self._worktrees.forget(worktree)
        return Cleared(branch)

    def _without_branch(self, worktree: Worktree, merged: str | None) -> str | None:
        """Remove the branch of *worktree* if it is at *merged*; else return its name."""
        if merged is None:
            return worktree.branch
        self._checkout.git.run("update-ref", "-d", f"refs/heads/{worktree.branch}", merged)
        return None

    def _settled(self, worktree: Worktree) -> str | None:
        """Remove the branch of *worktree* if it has nothing of its own; else return its name."""
        ref = f"refs/heads/{worktree.branch}"
        git = self._checkout.git
        tip = git.text("rev-parse", "--verify", "--quiet", ref, accepts=(0, 1))
        if not tip:
            return None
        head = self._checkout.commit()
        if tip != worktree.base and (head is None or not self._checkout.contains(head, tip)):
            return worktree.branch
        git.run("update-ref", "-d", ref, tip)
        return None

    def keep(self, worktree: Worktree) -> tuple[str, ...]:
        """Let *worktree* stay for a person, on its branch if that has what was merged."""
        if worktree.phase is Phase.MERGING:
            with contextlib.suppress(GitFailed, SequencerError):
                flags = ("--quiet", "--force")
                self.git_of(worktree).run("checkout", *flags, worktree.branch, settings=QUIET)
        with contextlib.suppress(OSError):
            self._worktrees.write(worktree.replace(phase=Phase.KEPT))
        return (f"stays until somebody has looked: {self._worktrees.folder(worktree)}",)

    def others_in(self, worktree: Worktree, gathered: Gathered) -> tuple[str, ...]:
        """Return the repositories in *worktree* that would be lost with it."""
        own = self._worktrees.folder(worktree) / ".git"
        found = [*gathered.others, *([".git"] if own.is_dir() and not own.is_symlink() else [])]
        if (worktree.place / "modules").exists() and not gathered.others:
            found.append("the submodules")
        return tuple(found)

    # --- branches that nobody needs ------------------------------------------------

    def remove_merged_branches(self) -> None:
        """Remove branches of attempts that have nothing which the checkout has not.

        Those stay that a worktree holds, of whomever, or a note. Once more, where git fails
        or somebody has begun something, is next time.
        """
        ends = time.monotonic() + CLEANING_S
        with contextlib.suppress(GitFailed, SequencerError, OSError):
            if not self._merged_branches() or self._checkout.tree.under_way():
                return
            with self._checkout.repository_lock():
                # Nobody adds a worktree, nor its note, from here on.
                for ref, tip in self._merged_branches().items():
                    if time.monotonic() > ends:
                        return
                    with contextlib.suppress(GitFailed):
                        self._checkout.git.run("update-ref", "--no-deref", "-d", ref, tip)

    def _merged_branches(self) -> dict[str, str]:
        """Return the branches that are behind the commit that is checked out, with their tips."""
        form = "--format=%(refname)%00%(objectname)%00%(symref)%00%(worktreepath)"
        told = self._checkout.git.text("for-each-ref", "--merged=HEAD", form, self._prefix)
        held = set(self._worktrees.names())
        found = {}
        for line in told.splitlines():
            ref, tip, *bound = line.split("\0")
            named = _OF_ATTEMPT.fullmatch(ref.removeprefix(self._prefix))
            if named is not None and named["name"] not in held and not any(bound):
                found[ref] = tip
        return found

    # --- after a kill --------------------------------------------------------------

    def clean(self, live: Collection[int]) -> tuple[str, ...]:
        """Remove the worktrees that nobody works in: those without a token in *live*."""
        notices: list[str] = []
        ends = time.monotonic() + CLEANING_S
        for name in self._worktrees.names():
            if time.monotonic() > ends:
                notices.append("more worktrees are to be removed than there was time for")
                break
            worktree = self._worktrees.read(name)
            if worktree is None or worktree.token in live:
                continue
            if not self._worktrees.is_abandoned(worktree):
                continue
            try:
                with self._checkout.repository_lock():
                    # Somebody else may have been faster.
                    present = self._worktrees.read(name)
                    found = () if present is None else self._cleaned(present)
            except (GitFailed, SequencerError, OSError) as error:
                found = (f"can't be cleaned up: {error}",)
            notices += [f"worktree of task {worktree.task!r}: {text}" for text in found]
        return tuple(notices)

    def _cleaned(self, worktree: Worktree) -> tuple[str, ...]:
        is_there = self._worktrees.folder(worktree).is_dir()
        if worktree.phase is Phase.KEPT and is_there:
            return ()
        notices: tuple[str, ...] = ()
        if worktree.phase is Phase.WORKING and is_there:
            self._unlock(worktree)
            try:
                gathered = self.gather(worktree)
            except GitFailed as failed:
                return (f"can't be committed: {failed.reason}", *self.keep(worktree))
            if gathered.refused:
                return (told(gathered), *self.keep(worktree))
            if others := self.others_in(worktree, gathered):
                return (in_others(others), *gathered.notices, *self.keep(worktree))
            notices = gathered.notices
        cleared = self.discard(worktree)
        kept = () if cleared.branch is None else (f"its work is on branch {cleared.branch}",)
        return (*notices, *kept, *cleared.notices)

    def _unlock(self, worktree: Worktree) -> None:
        """Remove the locks of a git that was killed in *worktree*, where nobody works any more."""
        branch = self._checkout.common_dir / "refs" / "heads" / f"{worktree.branch}.lock"
        for path in (worktree.place / "index.lock", worktree.place / "HEAD.lock", branch):
            path.unlink(missing_ok=True)


def told(gathered: Gathered) -> str:
    """Return in words what of a worktree can't be committed."""
    return f"nothing was committed: {reasons(gathered.refused)}"


def reasons(refused: Sequence[RefusedPath]) -> str:
    """Return in words what is *refused*, and why."""
    shown = [f"{one.path!r} {one.reason}" for one in refused[:_SHOWN]]
    more = len(refused) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def in_others(paths: Collection[str]) -> str:
    """Return in words that *paths* are repositories of their own."""
    return f"no commit holds the repositories in it: {listed(paths)}"


def listed(paths: Collection[str]) -> str:
    """Return *paths* for a message."""
    shown = ", ".join(map(repr, list(paths)[:_SHOWN]))
    return shown + (f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else "")
