"""What of a dirty work tree may be committed, and what not, and why.

Nothing that is not declared, nothing of the user's index, nothing of the run, no secrets that can
be recognised, and no more than the caps allow. A file is read whole, never through a link, and
remembered by its inode and times: what is hashed later is what was looked at here, or is left out.
What an agent has committed itself is looked at in every commit, since a merge brings all of them.
Not promised: to recognise a secret that looks like none, or one in a file above the cap.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from sequencer.executors.redaction import Redaction
from sequencer.plugins.git.code.tree import (
    SHOWN_PATHS,
    Change,
    Patterns,
    StatusEntry,
    TreeStatus,
    WorkTree,
)
from sequencer.plugins.git.process import Git
from sequencer.plugins.git.state.objects import Objects
from sequencer.project.schema import CommitOptions

IsSecret = Callable[[bytes], bool]
"""Whether some bytes hold a key."""

LINK, PLAIN, EXECUTABLE = 0o120000, 0o100644, 0o100755
"""Modes, as git writes them."""
_SECRET_NAMES = frozenset({".netrc", ".pgpass", ".git-credentials", ".pypirc"})


class Content(Struct, frozen=True):
    """What stands behind a path."""

    mode: int
    """As git writes it."""
    size: int
    stamp: tuple[int, ...]
    """Differs when anybody has written the file or put another in its place."""
    target: bytes | None = None
    """Of a link."""


class Unfit(Exception):
    """Why a file is not committed, in words for people; inside this package only."""


def secrets_by(redaction: Redaction) -> IsSecret:
    """Return what finds the secrets that *redaction* would hide."""
    return lambda data: redaction.hide(data) != data


def ensure_fit_name(path: str, is_secret: IsSecret) -> None:
    """Refuse names under which nothing is committed, whatever stands there.

    Raises:
        Unfit: with the reason.
    """
    for part in path.split("/"):
        if part.lower() == ".git":
            raise Unfit("is below .git")
        if part.lower().startswith(".env") or part.lower() in _SECRET_NAMES:
            raise Unfit("has a name that is used for secrets")
    if is_secret(os.fsencode(path)):
        raise Unfit("has a name that looks like a key")


def read_content(top: Path, path: str, max_bytes: int, is_secret: IsSecret) -> Content:
    """Return what stands at *path* below *top*, if it may be committed.

    Raises:
        Unfit: with the reason.
    """
    whole = top / path
    # git lists nothing behind a link; one that was put there since leads somewhere else.
    if os.path.realpath(whole.parent) != os.path.normpath(
        os.path.realpath(top) / Path(path).parent
    ):
        raise Unfit("is in a linked folder")
    try:
        found = os.lstat(whole)
    except OSError as error:
        raise Unfit(f"can't be read: {error.strerror}") from error
    if stat.S_ISLNK(found.st_mode):
        return _link(top, whole, found)
    if not stat.S_ISREG(found.st_mode):
        raise Unfit("is not a regular file")
    if found.st_size > max_bytes:
        raise Unfit(f"has {found.st_size} bytes, more than {max_bytes}")
    try:
        data, read_stat = _read(whole, max_bytes)
    except OSError as error:
        raise Unfit(f"can't be read: {error.strerror}") from error
    if stamp(read_stat) != stamp(found) or len(data) != found.st_size:
        raise Unfit("is being written")
    if is_secret(data):
        raise Unfit("contains what looks like a key")
    mode = EXECUTABLE if found.st_mode & stat.S_IXUSR else PLAIN
    return Content(mode, found.st_size, stamp(found))


def _read(path: Path, max_bytes: int) -> tuple[bytes, os.stat_result]:
    # O_NONBLOCK: a fifo that took the file's place would wait for ever.
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        data = file.read(max_bytes + 1)
        return data, os.fstat(file.fileno())


def _link(top: Path, whole: Path, found: os.stat_result) -> Content:
    try:
        # Not a Path's: that would tidy up what stands in the link.
        target = os.readlink(os.fsencode(whole))  # noqa: PTH115
    except OSError as error:
        raise Unfit(f"can't be read: {error.strerror}") from error
    root = os.path.realpath(top)
    end = os.path.realpath(whole)
    is_inside = end == root or end.startswith(f"{root}{os.sep}")
    if target.startswith(b"/") or not is_inside:
        raise Unfit("is a link that leads out of the repository")
    if ".git" in (part.lower() for part in Path(end).relative_to(root).parts):
        raise Unfit("is a link into .git")
    return Content(LINK, len(target), stamp(found), target)


def stamp(found: os.stat_result) -> tuple[int, ...]:
    """Return by what a file is known again."""
    return (
        *(found.st_dev, found.st_ino, found.st_mode, found.st_size),
        *(found.st_mtime_ns, found.st_ctime_ns),
    )


def is_unchanged(top: Path, path: str, content: Content) -> bool:
    """Return whether *path* is still the file that *content* was read from."""
    with contextlib.suppress(OSError):
        return stamp(os.lstat(top / path)) == content.stamp
    return False


class Chosen(Struct, frozen=True):
    """A path that is to be committed."""

    path: str
    change: Change
    key: str
    """Which key of the configuration declares it."""
    content: Content | None
    """None: the path is removed."""

    @property
    def size(self) -> int:
        """Return how many bytes are added to the history."""
        return 0 if self.content is None else self.content.size


class Skipped(Struct, frozen=True):
    """A dirty path that is not committed."""

    path: str
    reason: str
    """In words that go behind the path."""
    is_declared: bool = True
    """Whether somebody may have expected it to be committed."""


class Selection(Struct, frozen=True):
    """The answer about one state of the work tree."""

    chosen: tuple[Chosen, ...] = ()
    skipped: tuple[Skipped, ...] = ()

    def without(self, paths: Sequence[str], reason: str) -> Selection:
        """Return the same with *paths* skipped for *reason*."""
        gone = frozenset(paths)
        return Selection(
            tuple(one for one in self.chosen if one.path not in gone),
            (*self.skipped, *(Skipped(path, reason) for path in paths)),
        )


@dataclass
class _Group:
    """The paths that one family of keys declares, and how much of them."""

    key: str
    patterns: Patterns
    extensions: tuple[str, ...]
    max_file_bytes: int
    max_total_bytes: int
    only_tracked: bool = False
    with_removed: bool = False
    used_bytes: int = field(default=0, init=False)

    def declares(self, entry: StatusEntry) -> bool:
        """Return whether *entry* is one of the group's; of what is not set nothing is asked."""
        if not self.patterns and not self.extensions:
            return False
        if self.only_tracked and not entry.is_tracked:
            return False
        if entry.change is Change.DELETED and not self.with_removed:
            return False
        extension = posixpath.splitext(entry.path)[1].lower()
        has_extension = not self.extensions or extension in self.extensions
        return has_extension and (not self.patterns or bool(self.patterns.match(entry.path)))


class Selector:
    """Decides by the options of one project."""

    def __init__(self, tree: WorkTree, options: CommitOptions, is_secret: IsSecret) -> None:
        """Decide about *tree*; *is_secret* knows keys by their shape, or by their value."""
        self._tree = tree
        self._options = options
        self._is_secret = is_secret
        self._excluded = tree.patterns(options.exclude)

    def select(self, status: TreeStatus) -> Selection:
        """Return what of *status* is committed; files are read, nothing is written."""
        groups = self._groups()
        staged = {entry.path for entry in status.entries if entry.is_staged}
        chosen, skipped, left = [], [], self._options.max_total_bytes
        for entry in sorted(status.entries, key=lambda one: one.path):
            group = next((group for group in groups if group.declares(entry)), None)
            reason = self._outside(entry.path, staged)
            if group is None or reason is not None:
                reason = reason or "is not declared in 'commit'"
                skipped.append(Skipped(entry.path, reason, is_declared=group is not None))
                continue
            try:
                one = self._chosen(entry, group, left)
            except Unfit as unfit:
                skipped.append(Skipped(entry.path, str(unfit)))
                continue
            group.used_bytes += one.size
            left -= one.size
            chosen.append(one)
        selection = Selection(tuple(chosen), tuple(skipped))
        reason = "can't be committed beside a file that would be where its folder is, or in it"
        while clashing := list(_clashing(selection, status)):
            selection = selection.without(clashing, reason)
        return selection

    def _outside(self, path: str, staged: Collection[str]) -> str | None:
        """Return why *path* is nobody's to commit here, whatever stands there."""
        if self._tree.is_own(path):
            return "is a file of the run"
        if pattern := self._excluded.match(path):
            return f"is excluded by {pattern!r}"
        return "has staged changes" if path in staged else None

    def _chosen(self, entry: StatusEntry, group: _Group, left_bytes: int) -> Chosen:
        if entry.is_unmerged:
            raise Unfit("has conflicts of a merge")
        if entry.is_submodule:
            raise Unfit("is a submodule")
        if entry.path.endswith("/"):
            raise Unfit("is another repository")
        ensure_fit_name(entry.path, self._is_secret)
        if entry.change is Change.DELETED:
            return Chosen(entry.path, entry.change, group.key, None)
        content = read_content(self._tree.top, entry.path, group.max_file_bytes, self._is_secret)
        if content.size > group.max_total_bytes - group.used_bytes:
            raise Unfit(f"does not fit into the {group.max_total_bytes} bytes of {group.key}")
        if content.size > left_bytes:
            raise Unfit(f"does not fit into the {self._options.max_total_bytes} bytes of a commit")
        if entry.mode in (PLAIN, EXECUTABLE) and content.target is None:
            # git's word, which knows where a file system has no such bits.
            content = replace(content, mode=entry.mode)
        return Chosen(entry.path, entry.change, group.key, content)

    def _groups(self) -> list[_Group]:
        made: list[_Group] = []

        def add(key: str, globs: Sequence[str], *more: Any, **flags: Any) -> None:
            made.append(_Group(key, self._tree.patterns(globs), *more, **flags))

        options = self._options
        caps = (options.max_file_bytes, options.max_total_bytes)
        add("paths", options.paths, (), *caps, with_removed=True)
        whitelist = options.doc_whitelist if options.docs else ()
        add("doc_whitelist", whitelist, (), *caps, with_removed=True)
        if options.reports:
            by_name, globs = options.report_extensions, options.report_path_globs
            key = "report_extensions" if by_name else "report_path_globs"
            caps = (options.max_report_file_bytes, options.max_report_total_bytes)
            add(key, globs, by_name, *caps)
        if options.tracked_outputs:
            by_name, globs = options.tracked_output_extensions, options.tracked_output_globs
            key = "tracked_output_extensions" if by_name else "tracked_output_globs"
            caps = (options.max_tracked_output_file_bytes, options.max_tracked_output_total_bytes)
            add(key, globs, by_name, *caps, only_tracked=True)
        return made


def _clashing(selection: Selection, status: TreeStatus) -> Iterator[str]:
    """Yield chosen files that would take the place of tracked paths which are not chosen.

    A tree has no file beside a folder of the same name: to write the one removes the other.
    """
    chosen = {one.path for one in selection.chosen}
    stays = {entry.path for entry in status.entries if entry.is_tracked} - chosen
    folders = {parent for path in stays for parent in _parents(path)}
    for one in selection.chosen:
        if one.content is None:
            continue
        if one.path in folders or any(parent in stays for parent in _parents(one.path)):
            yield one.path


def _parents(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


# --- what was committed already --------------------------------------------------------

IN_FILE = "contains what looks like a key"
IN_NAME = "has a name that looks like a key"
IN_MESSAGE = "has what looks like a key in its message"


class _Object(Struct, frozen=True):
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
    with contextlib.closing(Objects(git)) as objects:
        for one in (one for one in found if one.size <= max_bytes):
            data = objects.needed(one.oid, one.kind)
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


def reasons(refused: Sequence[Skipped]) -> str:
    """Return in words what is *refused*, and why."""
    shown = [f"{one.path!r} {one.reason}" for one in refused[:SHOWN_PATHS]]
    more = len(refused) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
