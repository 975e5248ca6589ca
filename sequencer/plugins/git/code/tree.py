"""One work tree: its folders, its uncommitted changes, operations under way, and its history.

Only `fast_forward` changes anything. Files that the run itself writes (its folder, the logs) never
count as changes. Not promised: that nothing changes after a read; code that writes makes git
compare again.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from filelock import FileLock, Timeout
from msgspec import Struct

from sequencer.errors import CorruptState, WorkTreeRefused
from sequencer.frozen.base import Frozen
from sequencer.frozen.fields import ValidationError
from sequencer.plugins.git.own_settings import find_common_dir
from sequencer.plugins.git.process import Git, GitFailed
from sequencer.plugins.git.state.locks import find_named_lock
from sequencer.plugins.git.state.objects import Objects
from sequencer.store.folder import read_regular

_ANY = None
"""Stands for ``**``."""
_WILD = re.compile(r"[*?\[]")


class Patterns:
    """Path patterns of one project: ``*`` and ``?`` within a name, ``**`` for any folders.

    A pattern is relative to the project's folder, or with ``/`` in front to the repository's. A
    pattern that ends in ``/`` matches everything below a folder. A pattern whose last name has no
    ``*`` or ``?`` matches a file of that name, or everything below such a folder. Patterns match
    from the start: ``*.md`` is a file in the folder itself, ``**/*.md`` is one anywhere below it.

    >>> patterns = Patterns(["plans/**/*.md", "out/", "work"], "app")
    >>> paths = ("app/plans/a.md", "app/out/x/y", "app/work/x", "plans/a")
    >>> [patterns.match(path) for path in paths]
    ['plans/**/*.md', 'out/', 'work', None]
    """

    def __init__(self, patterns: Iterable[str], prefix: str = "") -> None:
        """Read *patterns*; *prefix* is the project's folder, relative to the repository's."""
        self._patterns: list[tuple[str, list[re.Pattern[str] | None]]] = []
        for pattern in patterns:
            regexes = _compile_pattern(pattern, prefix)
            self._patterns.append((pattern, regexes))
            if _WILD.search(pattern.rpartition("/")[2] or "*") is None:
                self._patterns.append((pattern, [*regexes, _ANY]))

    def __bool__(self) -> bool:
        """Return whether there is any pattern."""
        return bool(self._patterns)

    def match(self, path: str) -> str | None:
        """Return the first pattern that matches *path*, relative to the repository's folder."""
        parts = path.rstrip("/").split("/")
        return next((text for text, regexes in self._patterns if _is_match(regexes, parts)), None)


def _compile_pattern(pattern: str, prefix: str) -> list[re.Pattern[str] | None]:
    if pattern.startswith("/"):
        prefix = ""
    parts = pattern.removeprefix("./").strip("/").split("/")
    if pattern.endswith("/"):
        parts.append("**")
    literal = [re.compile(re.escape(part)) for part in prefix.split("/") if part]
    return [
        *literal,
        *(
            _ANY if part == "**" else re.compile(fnmatch.translate(part))
            for part in parts
            if part not in ("", ".")
        ),
    ]


def _is_match(pattern: Sequence[re.Pattern[str] | None], parts: Sequence[str]) -> bool:
    """Match part by part, with a set of reached positions, so ``**/**/**`` is not slower."""
    positions = _with_skipped(pattern, {0})
    for part in parts:
        next_positions: set[int] = set()
        for position in positions - {len(pattern)}:
            regex = pattern[position]
            if regex is None:
                # At the end, ``**`` needs at least one name: `out/**` does not match `out`.
                next_positions |= {position, position + 1}
            elif regex.fullmatch(part):
                next_positions.add(position + 1)
        positions = _with_skipped(pattern, next_positions)
    return len(pattern) in positions


def _with_skipped(pattern: Sequence[re.Pattern[str] | None], positions: set[int]) -> set[int]:
    """Add the positions after each ``**``, which may match no folder; return *positions*."""
    for position, regex in enumerate(pattern[:-1]):
        if regex is None and position in positions:
            positions.add(position + 1)
    return positions


STATUS = ("status", "--porcelain=v2", "--branch", "-z", "--untracked-files=all", "--no-renames")
"""No rename detection: a rename is a deleted and a new file, which are declared separately."""
_SUBMODULE_MODE = 0o160000


class Change(StrEnum):
    """How a path of the work tree differs from the commit."""

    ADDED = "added"
    MODIFIED = "modified"
    DELETED = "deleted"


class StatusEntry(Struct, frozen=True):
    """One path that differs from the commit."""

    path: str
    """A ``/`` at its end marks another repository, which git does not look into."""
    change: Change
    is_staged: bool = False
    """Whether the index differs from the commit, because the user has staged something."""
    is_submodule: bool = False
    is_unmerged: bool = False
    mode: int | None = None
    """The mode in the work tree, as git sees it; None: git does not track the path."""

    @property
    def is_tracked(self) -> bool:
        """Return whether git tracks the path."""
        return self.mode is not None


class TreeStatus(Struct, frozen=True):
    """The state of a work tree."""

    commit: str | None
    """None: the branch has no commit yet."""
    branch: str | None
    """None: HEAD is detached."""
    entries: tuple[StatusEntry, ...] = ()


def read_status(git: Git) -> TreeStatus:
    """Return the state of the work tree that *git* runs in.

    Raises:
        GitFailed: git failed.
    """
    return parse_status(git.run(*STATUS).stdout)


def parse_status(data: bytes) -> TreeStatus:
    """Return the status in *data*, the output of `git status` with the flags in `STATUS`."""
    commit = branch = None
    entries = []
    fields = iter(data.decode("utf-8", "surrogateescape").split("\0"))
    for field in fields:
        kind, _, rest = field.partition(" ")
        if kind == "#":
            name, _, value = rest.partition(" ")
            if name == "branch.oid":
                commit = None if value == "(initial)" else value
            elif name == "branch.head":
                branch = None if value == "(detached)" else value
        elif kind == "?":
            entries.append(StatusEntry(rest, Change.ADDED))
        elif kind == "1":
            entries.append(_parse_changed(rest))
        elif kind == "2":
            # Some versions of git report renames anyway: both paths are staged.
            old_path = next(fields, "")
            entries += [
                _parse_changed(rest, 8),
                StatusEntry(old_path, Change.DELETED, is_staged=True, mode=0),
            ]
        elif kind == "u":
            path = rest.split(" ", 9)[9]
            entries.append(StatusEntry(path, Change.MODIFIED, is_unmerged=True, mode=0))
    return TreeStatus(commit, branch, tuple(entries))


def _parse_changed(rest: str, before_path: int = 7) -> StatusEntry:
    parts = rest.split(" ", before_path)
    index, tree = parts[0][0], parts[0][1]
    mode = int(parts[4], 8)
    is_submodule = parts[1].startswith("S") or _SUBMODULE_MODE in (mode, int(parts[2], 8))
    # A path that was added with `git add -N` counts as staged by the user.
    is_staged = index != "." or tree == "A"
    change = Change.DELETED if "D" in (index, tree) and not mode else Change.MODIFIED
    return StatusEntry(parts[before_path], change, is_staged, is_submodule, mode=mode)


_UNDER_WAY = {
    "MERGE_HEAD": "a merge",
    "rebase-merge": "a rebase",
    "rebase-apply": "a rebase",
    "CHERRY_PICK_HEAD": "a cherry-pick",
    "REVERT_HEAD": "a revert",
    "BISECT_LOG": "a bisection",
}
RUN_FILES = (
    *("state.json", "state.json.*", "journal*.jsonl", "journal.jsonl.*", "*.tmp"),
    *("flow.json", "flow-*.json", "definition.json", "remote.json", "turnstile*.lock"),
    *("beats/", "results/", "runs/", "activity/", "activity.jsonl"),
)
"""The run's files, for a run whose folder is the project's own folder."""
SHOWN_PATHS = 10
LOCK_MODE, LOCK_POLL_S = 0o644, 0.02
LONG_TIMEOUT_S = 7 * 24 * 3600.0
_WALKED = 256
"""How many commits are searched before git is asked."""
_PARENT = re.compile(rb"^parent ([0-9a-f]+)$", re.MULTILINE)


class Divergence(Struct, frozen=True):
    """How many commits each of two histories has that the other does not."""

    ahead: int
    behind: int


class Obstacle(Struct, frozen=True):
    """Why a work tree can't be fast-forwarded, and what a person can do about it."""

    reason: str
    hint: str


class Folders(Struct, frozen=True):
    """The folders and files of a project that the program itself writes."""

    project: Path
    state_file: Path
    logs: Path
    others: tuple[Path, ...] = ()
    """More of the program's own files and folders, for example sinks of activities."""


class WorkTree:
    """The work tree that contains a project."""

    def __init__(self, folders: Folders, objects: Objects) -> None:
        """Use the work tree around ``folders.project``; *objects* reads from its repository."""
        self.folders = folders
        self._objects = objects
        self._known: set[tuple[str, str]] = set()

    # --- folders -------------------------------------------------------------------

    @cached_property
    def top(self) -> Path:
        """Return the top folder of the work tree; paths are relative to it.

        Raises:
            WorkTreeRefused: the project is in no work tree.
        """
        return self._rev_parse("--show-toplevel")

    @cached_property
    def git_dir(self) -> Path:
        """Return the folder with this work tree's HEAD and index."""
        default_dir = self.top / ".git"
        return default_dir if default_dir.is_dir() else self._rev_parse("--absolute-git-dir")

    def _rev_parse(self, option: str) -> Path:
        try:
            output = (
                self._objects.git.with_folder(self.folders.project).run("rev-parse", option).stdout
            )
        except GitFailed as failed:
            raise WorkTreeRefused(
                f"is not in a git work tree: {failed.reason}",
                where=str(self.folders.project),
                hint="clone the repository that the run is shared through, and work there",
            ) from failed
        return Path(os.fsdecode(output.removesuffix(b"\n")))

    @cached_property
    def git(self) -> Git:
        """Return a `Git` that runs in the top folder, so relative paths need no prefix."""
        return self._objects.git.with_folder(self.top)

    @cached_property
    def prefix(self) -> str:
        """Return the project's folder relative to the top; empty if it is the top."""
        return self._relative_to_top(self.folders.project) or ""

    def _relative_to_top(self, path: Path) -> str | None:
        """Return *path* relative to the top, or None if it is outside."""
        relative_path = os.path.relpath(os.path.realpath(path), os.path.realpath(self.top))
        if relative_path == ".":
            return ""
        return None if Path(relative_path).parts[0] == ".." else relative_path

    def make_patterns(self, patterns: Iterable[str]) -> Patterns:
        """Return *patterns* of the project as patterns of this tree."""
        return Patterns(patterns, self.prefix)

    @cached_property
    def branch(self) -> str | None:
        """Return the branch that was checked out at the first call; None: HEAD was detached."""
        try:
            name = self.git.read_output("symbolic-ref", "--quiet", "HEAD")
        except GitFailed:
            return None
        return name.removeprefix("refs/heads/") if name.startswith("refs/heads/") else None

    # --- files of the run ----------------------------------------------------------

    def is_own(self, path: str) -> bool:
        """Return whether *path* is a file of the run, not of its code."""
        return self._run_files.match(path) is not None

    @cached_property
    def _run_files(self) -> Patterns:
        folders = self.folders
        project, patterns = self._relative_to_top(folders.project) or "", []
        state = self._relative_to_top(folders.state_file.parent)
        if state is not None and _is_inside(state, project):
            name = folders.state_file.name
            patterns += [_join_pattern(state, name) for name in (*RUN_FILES, _escape_pattern(name))]
            patterns.append(_join_pattern(state, f"{_escape_pattern(name)}.*"))
        elif state is not None:
            patterns.append(f"/{_escape_pattern(state)}/")
        logs_path = self._relative_to_top(folders.logs)
        if logs_path is not None and not _is_inside(logs_path, project):
            patterns.append(f"/{_escape_pattern(logs_path)}/")
        for path in folders.others:
            other_path = self._relative_to_top(path)
            if other_path:
                patterns += [f"/{_escape_pattern(other_path)}", f"/{_escape_pattern(other_path)}/"]
        return Patterns(patterns)

    # --- changes -------------------------------------------------------------------

    def read_status(self) -> TreeStatus:
        """Return the differences from the commit; runs one git process.

        Raises:
            WorkTreeRefused: git failed.
        """
        try:
            return read_status(self.git)
        except GitFailed as failed:
            raise self.make_refusal(f"can't be inspected: {failed.reason}") from failed

    def find_dirty(self, status: TreeStatus, tolerated: Patterns) -> list[StatusEntry]:
        """Return the entries of *status* that are neither the run's nor *tolerated*."""
        return [
            entry
            for entry in status.entries
            if not self.is_own(entry.path) and tolerated.match(entry.path) is None
        ]

    def find_operation(self) -> str | None:
        """Return the git operation that was started here and not finished: "a merge", … or None."""
        return find_git_operation(self.git_dir)

    def resolve(self, name: str) -> str | None:
        """Return the object that *name* means, or None; starts no extra process.

        Raises:
            WorkTreeRefused: the repository can't be read.
        """
        try:
            return self._objects.resolve(name)
        except GitFailed as failed:
            raise self.make_refusal(f"can't be read: {failed.reason}") from failed

    # --- history -------------------------------------------------------------------

    def contains(self, commit: str, ancestor: str) -> bool:
        """Return whether *ancestor* is *commit* or one of its ancestors; mostly without git."""
        if commit == ancestor or (commit, ancestor) in self._known:
            return True
        is_ancestor = self._walk(commit, ancestor)
        if is_ancestor is None:
            try:
                result = self.git.run(
                    "merge-base", "--is-ancestor", ancestor, commit, accepts=(0, 1, 128)
                )
            except GitFailed:
                return False
            is_ancestor = result.code == 0
        if is_ancestor:
            self._known.add((commit, ancestor))
        return is_ancestor

    def _walk(self, commit: str, ancestor: str) -> bool | None:
        """Search the newest commits for *ancestor*; None: they do not decide it."""
        waiting, seen_oids = deque([commit]), {commit}
        for _ in range(_WALKED):
            if not waiting:
                return False
            try:
                data = self._objects.read(waiting.popleft(), "commit")
            except GitFailed:
                return None
            if data is None:
                return None
            head = data.split(b"\n\n", 1)[0]
            parents = [oid.decode("ascii") for oid in _PARENT.findall(head)]
            if ancestor in parents:
                return True
            waiting += [oid for oid in parents if oid not in seen_oids]
            seen_oids.update(parents)
        return None

    def read_commit(self, commit: str) -> str:
        """Return the headers and message of *commit*; empty if it is not in the repository."""
        try:
            data = self._objects.read(commit, "commit")
        except GitFailed as failed:
            raise self.make_refusal(f"can't be read: {failed.reason}") from failed
        return (data or b"").decode("utf-8", "replace")

    @property
    def is_shallow(self) -> bool:
        """Return whether this clone has only the newest part of the history."""
        return (self.common_dir / "shallow").exists()

    def divergence(self, commit: str, other: str) -> Divergence:
        """Return how far *commit* is from *other*."""
        try:
            counts = self.git.read_output(
                "rev-list", "--left-right", "--count", f"{commit}...{other}"
            )
            ahead_count, behind_count = map(int, counts.split())
        except (GitFailed, ValueError) as failed:
            raise self.make_refusal(f"histories can't be compared: {failed}") from failed
        return Divergence(ahead_count, behind_count)

    def has_all_objects(self, commit: str) -> bool:
        """Return whether all objects of *commit* that HEAD does not have are in the repository.

        Git checks the same after a fetch. Objects that a partial clone left on its remote do not
        count as missing.
        """
        flags = ("--quiet", "--objects", "--exclude-promisor-objects")
        try:
            self.slow_git.run("rev-list", *flags, commit, "--not", "HEAD")
        except GitFailed:
            return False
        return True

    @cached_property
    def slow_git(self) -> Git:
        """Return a `Git` that runs in the top folder with a very long time limit.

        If git were killed while it writes files, it would leave half of them and a locked index.
        """
        return self._objects.git.with_folder(self.top, timeout_s=LONG_TIMEOUT_S)

    def fast_forward(self, commit: str) -> Obstacle | None:
        """Fast-forward to *commit*; return the obstacle if that is not possible.

        In that case nothing has changed except git's ORIG_HEAD, because git checks first.
        """
        settings = ("merge.autoStash=false", "merge.verifySignatures=false", "merge.ff=only")
        try:
            flags = ("--ff-only", "--quiet", "--no-stat")
            self.slow_git.run("merge", *flags, commit, settings=settings)
        except GitFailed as failed:
            return self._to_obstacle(failed, commit)
        return None

    @cached_property
    def common_dir(self) -> Path:
        """Return the folder of the repository, which all its work trees share."""
        return find_common_dir(self.git_dir)

    def _to_obstacle(self, failure: GitFailed, commit: str) -> Obstacle:
        text = failure.local_stderr
        files = [line.strip() for line in text.splitlines() if line.startswith("\t")]
        hint = f"see what 'git merge --ff-only {commit[:12]}' says"
        folders = (self.git_dir, self.common_dir)
        lock = next(filter(None, (find_named_lock(text, path) for path in folders)), None)
        if lock is not None:
            return Obstacle(f"{failure.reason}: {lock.description}", lock.hint)
        if "index.lock" in text:
            hint = "wait for the git process that works there"
        elif files:
            hint = "move these files out of the way"
        return Obstacle(f"{failure.reason} {', '.join(files[:10])}".strip(), hint)

    @contextlib.contextmanager
    def hold_lock(self, path: Path, wait_s: float, hint: str) -> Iterator[None]:
        """Hold the lock *path* while the block runs; *hint* is for a person if that fails.

        Raises:
            WorkTreeRefused: another process has held it for *wait_s*.
        """
        # A new object each time: the same object would let its own thread in twice.
        lock = FileLock(path, timeout=wait_s, mode=LOCK_MODE, fallback_to_soft=False)
        try:
            lock.acquire(poll_interval=LOCK_POLL_S)
        except Timeout:
            raise self.make_refusal(f"is locked by {path}", hint) from None
        try:
            yield
        finally:
            lock.release()

    def make_refusal(self, message: str, hint: str | None = None) -> WorkTreeRefused:
        """Return a refusal about this work tree."""
        return WorkTreeRefused(message, where=f"work tree {self.top}", hint=hint)


_Note = TypeVar("_Note", bound=Frozen)


def read_note(path: Path, kind: type[_Note], max_bytes: int) -> _Note | None:
    """Return the note at *path*; None: it does not exist or can't be read."""
    with contextlib.suppress(OSError, CorruptState, ValidationError):
        return kind.model_validate_json(read_regular(path, 0, max_bytes))
    return None


def write_note(path: Path, note: Frozen, mode: int) -> None:
    """Write *note* to *path* atomically."""
    temporary_path = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    with open(os.open(temporary_path, flags, mode), "wb") as file:  # noqa: PTH123 - a descriptor
        file.write(note.model_dump_json().encode())
        file.flush()
        os.fsync(file.fileno())
    temporary_path.replace(path)


def find_git_operation(git_dir: Path) -> str | None:
    """Return the git operation under way in *git_dir*, if any; see `WorkTree.find_operation`."""
    return next((text for name, text in _UNDER_WAY.items() if (git_dir / name).exists()), None)


def format_paths(paths: Collection[str], hide: Callable[[str], str] = str) -> str:
    """Return the first few of *paths* for a message, and how many more there are."""
    listing = ", ".join(repr(hide(path)) for path in list(paths)[:SHOWN_PATHS])
    rest_count = len(paths) - SHOWN_PATHS
    return listing + (f" and {rest_count} more" if rest_count > 0 else "")


def _is_inside(folder: str, path: str) -> bool:
    return folder in ("", path) or path.startswith(f"{folder}/")


def _join_pattern(folder: str, pattern: str) -> str:
    return f"/{_escape_pattern(folder)}/{pattern}" if folder else f"/{pattern}"


def _escape_pattern(path: str) -> str:
    """Return the pattern that matches only *path*."""
    return re.sub(r"([*?\[])", r"[\1]", path)
