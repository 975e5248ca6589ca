"""Decides which changed files of a work tree may be committed, and gives a reason for the others.

Left out: files that are not declared, files that the user has staged, files of the run, secrets
that can be recognized, and files above the caps. A file is read completely, never through a link,
and identified by its inode and times: if it changes before git hashes it, it is left out. The
commits that an agent has made itself are all searched for secrets, since a merge brings all of
them. Not promised: to find a secret that does not look like one, or one in a file above the cap.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
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
"""Says whether some bytes contain a key."""

LINK, PLAIN, EXECUTABLE = 0o120000, 0o100644, 0o100755
"""Modes, as git writes them."""
_SECRET_NAMES = frozenset({".netrc", ".pgpass", ".git-credentials", ".pypirc"})


class Content(Struct, frozen=True):
    """The file or link at a path."""

    mode: int
    """As git writes it."""
    size: int
    stamp: tuple[int, ...]
    """Changes when the file is written or replaced; see `stamp`."""
    target: bytes | None = None
    """The target of a link; None: a file."""


class FileNotCommitted(Exception):
    """The reason, for people, why a file is not committed; never leaves this package."""


def make_secret_check(redaction: Redaction) -> IsSecret:
    """Return a function that finds the secrets that *redaction* would hide."""
    return lambda data: redaction.hide(data) != data


def ensure_fit_name(path: str, is_secret: IsSecret) -> None:
    """Refuse names that are never committed, whatever their content.

    Raises:
        FileNotCommitted: with the reason.
    """
    for part in path.split("/"):
        if part.lower() == ".git":
            raise FileNotCommitted("is below .git")
        if part.lower().startswith(".env") or part.lower() in _SECRET_NAMES:
            raise FileNotCommitted("has a name that is used for secrets")
    if is_secret(os.fsencode(path)):
        raise FileNotCommitted("has a name that looks like a key")


def read_content(top: Path, path: str, max_bytes: int, is_secret: IsSecret) -> Content:
    """Return the file or link at *path* below *top*, if it may be committed.

    Raises:
        FileNotCommitted: with the reason.
    """
    full_path = top / path
    # Git lists nothing inside a linked folder, so a link here was made after its listing.
    if os.path.realpath(full_path.parent) != os.path.normpath(
        os.path.realpath(top) / Path(path).parent
    ):
        raise FileNotCommitted("is in a linked folder")
    try:
        info = os.lstat(full_path)
    except OSError as error:
        raise FileNotCommitted(f"can't be read: {error.strerror}") from error
    if stat.S_ISLNK(info.st_mode):
        return _read_link(top, full_path, info)
    if not stat.S_ISREG(info.st_mode):
        raise FileNotCommitted("is not a regular file")
    if info.st_size > max_bytes:
        raise FileNotCommitted(f"has {info.st_size} bytes, more than {max_bytes}")
    try:
        data, read_info = _read(full_path, max_bytes)
    except OSError as error:
        raise FileNotCommitted(f"can't be read: {error.strerror}") from error
    if stamp(read_info) != stamp(info) or len(data) != info.st_size:
        raise FileNotCommitted("is being written")
    if is_secret(data):
        raise FileNotCommitted("contains what looks like a key")
    mode = EXECUTABLE if info.st_mode & stat.S_IXUSR else PLAIN
    return Content(mode, info.st_size, stamp(info))


def _read(path: Path, max_bytes: int) -> tuple[bytes, os.stat_result]:
    # O_NONBLOCK: opening a fifo that has replaced the file would block forever.
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        data = file.read(max_bytes + 1)
        return data, os.fstat(file.fileno())


def _read_link(top: Path, path: Path, info: os.stat_result) -> Content:
    try:
        # Not Path.readlink, which would normalize the target.
        target = os.readlink(os.fsencode(path))  # noqa: PTH115
    except OSError as error:
        raise FileNotCommitted(f"can't be read: {error.strerror}") from error
    root = os.path.realpath(top)
    end = os.path.realpath(path)
    is_inside = end == root or end.startswith(f"{root}{os.sep}")
    if target.startswith(b"/") or not is_inside:
        raise FileNotCommitted("is a link that leads out of the repository")
    if ".git" in (part.lower() for part in Path(end).relative_to(root).parts):
        raise FileNotCommitted("is a link into .git")
    return Content(LINK, len(target), stamp(info), target)


def stamp(info: os.stat_result) -> tuple[int, ...]:
    """Return the facts that identify an unchanged file."""
    return (
        *(info.st_dev, info.st_ino, info.st_mode, info.st_size),
        *(info.st_mtime_ns, info.st_ctime_ns),
    )


def is_unchanged(top: Path, path: str, content: Content) -> bool:
    """Return whether *path* is still the file that *content* was read from."""
    with contextlib.suppress(OSError):
        return stamp(os.lstat(top / path)) == content.stamp
    return False


class Chosen(Struct, frozen=True):
    """A path to commit."""

    path: str
    change: Change
    key: str
    """The configuration key that declares it."""
    content: Content | None
    """None: the path is removed."""

    @property
    def size(self) -> int:
        """Return how many bytes it adds to the history."""
        return 0 if self.content is None else self.content.size


class Skipped(Struct, frozen=True):
    """A dirty path that is not committed."""

    path: str
    reason: str
    """Continues a sentence that starts with the path."""
    is_declared: bool = True
    """Whether the configuration declares it, so that a person may expect it to be committed."""


class Selection(Struct, frozen=True):
    """The decision about one state of the work tree."""

    chosen: tuple[Chosen, ...] = ()
    skipped: tuple[Skipped, ...] = ()

    def with_skipped(self, paths: Sequence[str], reason: str) -> Selection:
        """Return the same with *paths* skipped for *reason*."""
        removed_paths = frozenset(paths)
        return Selection(
            tuple(choice for choice in self.chosen if choice.path not in removed_paths),
            (*self.skipped, *(Skipped(path, reason) for path in paths)),
        )


class _Group(Struct):
    """The paths that one group of configuration keys declares, and their caps."""

    key: str
    patterns: Patterns
    extensions: tuple[str, ...]
    max_file_bytes: int
    max_total_bytes: int
    only_tracked: bool = False
    with_removed: bool = False
    used_bytes: int = 0

    def declares(self, entry: StatusEntry) -> bool:
        """Return whether the group declares *entry*; settings that are empty do not restrict it."""
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
    """Selects files by the options of one project."""

    def __init__(self, tree: WorkTree, options: CommitOptions, is_secret: IsSecret) -> None:
        """Select files of *tree*; *is_secret* finds keys by their form or their value."""
        self._tree = tree
        self._options = options
        self._is_secret = is_secret
        self._excluded = tree.make_patterns(options.exclude)

    def select(self, status: TreeStatus) -> Selection:
        """Return which entries of *status* are committed; files are read, nothing is written."""
        groups = self._build_groups()
        staged_paths = {entry.path for entry in status.entries if entry.is_staged}
        choices, exclusions, left_bytes = [], [], self._options.max_total_bytes
        for entry in sorted(status.entries, key=lambda entry: entry.path):
            group = next((group for group in groups if group.declares(entry)), None)
            reason = self._find_exclusion(entry.path, staged_paths)
            if group is None or reason is not None:
                reason = reason or "is not declared in 'commit'"
                exclusions.append(Skipped(entry.path, reason, is_declared=group is not None))
                continue
            try:
                choice = self._choose(entry, group, left_bytes)
            except FileNotCommitted as unfit:
                exclusions.append(Skipped(entry.path, str(unfit)))
                continue
            group.used_bytes += choice.size
            left_bytes -= choice.size
            choices.append(choice)
        selection = Selection(tuple(choices), tuple(exclusions))
        reason = (
            "can't be committed: a tracked file that stays is where its folder would be, or in it"
        )
        while clashing_paths := list(_find_clashes(selection, status)):
            selection = selection.with_skipped(clashing_paths, reason)
        return selection

    def _find_exclusion(self, path: str, staged_paths: Collection[str]) -> str | None:
        """Return why *path* is never committed here, whatever its content; None: it may be."""
        if self._tree.is_own(path):
            return "is a file of the run"
        if pattern := self._excluded.match(path):
            return f"is excluded by {pattern!r}"
        return "has staged changes" if path in staged_paths else None

    def _choose(self, entry: StatusEntry, group: _Group, left_bytes: int) -> Chosen:
        if entry.is_unmerged:
            raise FileNotCommitted("has conflicts of a merge")
        if entry.is_submodule:
            raise FileNotCommitted("is a submodule")
        if entry.path.endswith("/"):
            raise FileNotCommitted("is another repository")
        ensure_fit_name(entry.path, self._is_secret)
        if entry.change is Change.DELETED:
            return Chosen(entry.path, entry.change, group.key, None)
        content = read_content(self._tree.top, entry.path, group.max_file_bytes, self._is_secret)
        if content.size > group.max_total_bytes - group.used_bytes:
            raise FileNotCommitted(
                f"does not fit into the {group.max_total_bytes} bytes of {group.key}"
            )
        if content.size > left_bytes:
            raise FileNotCommitted(
                f"does not fit into the {self._options.max_total_bytes} bytes of a commit"
            )
        if entry.mode in (PLAIN, EXECUTABLE) and content.target is None:
            # Use git's mode: git knows whether the file system has an executable bit.
            content = replace(content, mode=entry.mode)
        return Chosen(entry.path, entry.change, group.key, content)

    def _build_groups(self) -> list[_Group]:
        groups: list[_Group] = []

        def add(key: str, globs: Sequence[str], *more: Any, **flags: Any) -> None:
            groups.append(_Group(key, self._tree.make_patterns(globs), *more, **flags))

        options = self._options
        caps = (options.max_file_bytes, options.max_total_bytes)
        add("paths", options.paths, (), *caps, with_removed=True)
        whitelist = options.doc_whitelist if options.docs else ()
        add("doc_whitelist", whitelist, (), *caps, with_removed=True)
        if options.reports:
            extensions, globs = options.report_extensions, options.report_path_globs
            key = "report_extensions" if extensions else "report_path_globs"
            caps = (options.max_report_file_bytes, options.max_report_total_bytes)
            add(key, globs, extensions, *caps)
        if options.tracked_outputs:
            extensions, globs = options.tracked_output_extensions, options.tracked_output_globs
            key = "tracked_output_extensions" if extensions else "tracked_output_globs"
            caps = (options.max_tracked_output_file_bytes, options.max_tracked_output_total_bytes)
            add(key, globs, extensions, *caps, only_tracked=True)
        return groups


def _find_clashes(selection: Selection, status: TreeStatus) -> Iterator[str]:
    """Yield chosen files that would replace tracked paths which are not chosen.

    A tree can't have a file and a folder of the same name: writing one removes the other.
    """
    paths = {choice.path for choice in selection.chosen}
    unchosen_paths = {entry.path for entry in status.entries if entry.is_tracked} - paths
    folders = {parent for path in unchosen_paths for parent in _parents(path)}
    for choice in selection.chosen:
        if choice.content is None:
            continue
        if choice.path in folders or any(
            parent in unchosen_paths for parent in _parents(choice.path)
        ):
            yield choice.path


def _parents(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


# --- commits that exist already ---------------------------------------------------------

IN_FILE = "contains what looks like a key"
IN_NAME = "has a name that looks like a key"
IN_MESSAGE = "has what looks like a key in its message"


class _Object(Struct, frozen=True):
    """An object that is new in the history."""

    oid: str
    kind: str
    size: int
    path: str


def find_new_secrets(
    git: Git,
    tip: str,
    known: list[str],
    *,
    is_secret: IsSecret,
    is_new: Callable[[str, bytes], bool],
    max_bytes: int,
) -> Iterator[tuple[str, str]]:
    """Yield (path, reason) for each new secret in the commits from *known* to *tip*.

    For a commit message, the path is ``commit …``. *is_new* gets a path and a content with a key
    and says whether the key is new there. Files above *max_bytes* are not read.

    Raises:
        GitFailed: git failed.
    """
    candidates = [
        new_object
        for new_object in _list_new_objects(git, tip, known)
        if new_object.kind in ("blob", "commit")
    ]
    for candidate in candidates:
        # Git prints a name with a newline only up to there; that part is checked.
        if candidate.path and is_secret(os.fsencode(candidate.path)):
            yield _mask_keys(candidate.path, is_secret), IN_NAME
    with contextlib.closing(Objects(git)) as objects:
        for candidate in candidates:
            if candidate.size > max_bytes:
                continue
            data = objects.read_required(candidate.oid, candidate.kind)
            if candidate.kind == "commit":
                if is_secret(data.partition(b"\n\n")[2]):
                    yield f"commit {candidate.oid[:12]}", IN_MESSAGE
            elif is_secret(data) and is_new(candidate.path, data):
                yield candidate.path, IN_FILE


def _mask_keys(path: str, is_secret: IsSecret) -> str:
    """Return *path* with parts that look like a key replaced by ``…``."""
    parts = ["…" if is_secret(os.fsencode(part)) else part for part in path.split("/")]
    masked_path = "/".join(parts)
    return "…" if is_secret(os.fsencode(masked_path)) else masked_path


def _list_new_objects(git: Git, tip: str, known_tips: list[str]) -> Iterator[_Object]:
    """Yield each object in the history of *tip* but of none of *known_tips*, once."""
    output = git.run("rev-list", "--objects", tip, "--not", *known_tips).stdout
    lines = [line.partition(b" ") for line in output.splitlines()]
    oids = b"".join(oid + b"\n" for oid, _, _ in lines)
    form = "--batch-check=%(objecttype) %(objectsize)"
    answers = git.run("cat-file", form, stdin=oids).stdout.splitlines()
    for (oid, _, path), answer in zip(lines, answers, strict=True):
        kind, _, size = answer.decode().partition(" ")
        yield _Object(oid.decode(), kind, int(size), os.fsdecode(path))


def format_reasons(refused: Sequence[Skipped]) -> str:
    """Return a text that lists the *refused* paths with their reasons."""
    reasons = [f"{exclusion.path!r} {exclusion.reason}" for exclusion in refused[:SHOWN_PATHS]]
    rest_count = len(refused) - len(reasons)
    return ", ".join(reasons) + (f" and {rest_count} more" if rest_count else "")
