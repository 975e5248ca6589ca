"""What of a dirty work tree is committed after a step, and what is not, and why.

Nothing that is not declared, nothing of the user's index, nothing of the run, no secrets
that can be recognised, and no more than the caps allow. Not promised: to recognise a
secret that looks like none.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from sequencer.checkout.content import (
    EXECUTABLE,
    PLAIN,
    Content,
    IsSecret,
    Unfit,
    ensure_fit_name,
    read,
)
from sequencer.checkout.options import CommitOptions
from sequencer.checkout.patterns import Patterns
from sequencer.checkout.status import Change, Entry, Status
from sequencer.checkout.tree import WorkTree


@dataclass(frozen=True, slots=True)
class Chosen:
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


@dataclass(frozen=True, slots=True)
class Skipped:
    """A dirty path that is not committed."""

    path: str
    reason: str
    """In words that go behind the path."""
    is_declared: bool
    """Whether somebody may have expected it to be committed."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The answer about one state of the work tree."""

    chosen: tuple[Chosen, ...] = ()
    skipped: tuple[Skipped, ...] = ()

    def without(self, paths: Sequence[str], reason: str) -> Selection:
        """Return the same with *paths* skipped for *reason*."""
        gone = frozenset(paths)
        return Selection(
            tuple(one for one in self.chosen if one.path not in gone),
            (*self.skipped, *(Skipped(path, reason, is_declared=True) for path in paths)),
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

    def declares(self, entry: Entry) -> bool:
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

    def select(self, status: Status) -> Selection:
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
                skipped.append(Skipped(entry.path, str(unfit), is_declared=True))
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
        return "has changes that somebody has staged" if path in staged else None

    def _chosen(self, entry: Entry, group: _Group, left_bytes: int) -> Chosen:
        if entry.is_unmerged:
            raise Unfit("has conflicts of a merge")
        if entry.is_submodule:
            raise Unfit("is a submodule")
        if entry.path.endswith("/"):
            raise Unfit("is another repository")
        ensure_fit_name(entry.path, self._is_secret)
        if entry.change is Change.DELETED:
            return Chosen(entry.path, entry.change, group.key, None)
        content = read(self._tree.top, entry.path, group.max_file_bytes, self._is_secret)
        if content.size > group.max_total_bytes - group.used_bytes:
            raise Unfit(f"does not fit into the {group.max_total_bytes} bytes of {group.key}")
        if content.size > left_bytes:
            raise Unfit(f"does not fit into the {self._options.max_total_bytes} bytes of a commit")
        if entry.mode in (PLAIN, EXECUTABLE) and content.target is None:
            # git's word, which knows where a file system has no such bits.
            content = replace(content, mode=entry.mode)
        return Chosen(entry.path, entry.change, group.key, content)

    def _groups(self) -> list[_Group]:
        options, patterns = self._options, self._tree.patterns
        whitelist = options.doc_whitelist if options.docs else ()
        found = [
            _Group(
                key,
                patterns(declared),
                (),
                options.max_file_bytes,
                options.max_total_bytes,
                with_removed=True,
            )
            for key, declared in (("paths", options.paths), ("doc_whitelist", whitelist))
        ]
        if options.reports:
            found.append(
                _Group(
                    "report_extensions" if options.report_extensions else "report_path_globs",
                    patterns(options.report_path_globs),
                    options.report_extensions,
                    options.max_report_file_bytes,
                    options.max_report_total_bytes,
                )
            )
        if options.tracked_outputs:
            by_name = options.tracked_output_extensions
            found.append(
                _Group(
                    "tracked_output_extensions" if by_name else "tracked_output_globs",
                    patterns(options.tracked_output_globs),
                    by_name,
                    options.max_tracked_output_file_bytes,
                    options.max_tracked_output_total_bytes,
                    only_tracked=True,
                )
            )
        return found


def _clashing(selection: Selection, status: Status) -> Iterator[str]:
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
