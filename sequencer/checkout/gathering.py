"""Commits what an agent has left in its worktree, on the branch of its task.

All of it or nothing: where one file can't be committed (a key, too large, conflicts of a
merge), none is, and the worktree is left to a person. What the agent has committed itself is
looked at before it is merged, see `vetting`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sequencer.checkout.content import (
    Content,
    IsSecret,
    Unfit,
    ensure_fit_name,
    is_unchanged,
    read,
)
from sequencer.checkout.options import MIB
from sequencer.checkout.shared import QUIET, Checkout
from sequencer.checkout.status import ARGUMENTS, Change, Entry, Status, parse
from sequencer.checkout.tree import under_way_in
from sequencer.checkout.vetting import with_keys
from sequencer.checkout.worktree import PlacedGit, Worktree
from sequencer.store.git.command import GitFailed

MAX_FILE_BYTES, MAX_TOTAL_BYTES = 32 * MIB, 128 * MIB
"""As large as a tracked output and a commit may be elsewhere."""
_KEY_BLOCK = b"PRIVATE KEY"


@dataclass(frozen=True, slots=True)
class Refused:
    """A path that is not committed, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Gathered:
    """What became of a worktree's files."""

    tip: str
    """The commit that holds all of it."""
    refused: tuple[Refused, ...] = ()
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
        status = parse(git.run(*ARGUMENTS).stdout)
        if status.commit is None:
            return Gathered(worktree.base, (Refused(".", "is on a branch without a commit"),))
        if begun := under_way_in(git.git_dir):
            return Gathered(status.commit, (Refused(".", f"is in the middle of {begun}"),))
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
                Refused(path, "was changed while it was read")
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

    def with_keys(self, worktree: Worktree, git: PlacedGit, tip: str) -> tuple[Refused, ...]:
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
        return tuple(Refused(path, reason) for path, reason in dict(found).items())

    def _is_own(self, path: str) -> bool:
        return self._checkout.tree.is_own(path)

    # --- what may be committed -----------------------------------------------------

    def _refused(
        self, git: PlacedGit, entries: list[Entry], found: dict[str, Content]
    ) -> Iterator[Refused]:
        """Yield what of *entries* may not be committed; keep in *found* how the others were."""
        left = self._max_total_bytes
        for entry in entries:
            try:
                content = self._content(git, entry)
                if content is None:
                    continue
            except Unfit as unfit:
                yield Refused(entry.path, str(unfit))
                continue
            left -= content.size
            if left < 0:
                reason = f"does not fit into the {self._max_total_bytes} bytes of a commit"
                yield Refused(entry.path, reason)
            found[entry.path] = content

    def _content(self, git: PlacedGit, entry: Entry) -> Content | None:
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

        return read(git.folder, entry.path, self._max_file_bytes, is_new_secret)

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
        self, worktree: Worktree, git: PlacedGit, status: Status, tip: str
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
