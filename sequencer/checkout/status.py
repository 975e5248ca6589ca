"""What `git status --porcelain=v2 --branch -z` says, read into facts.

Pure: it starts nothing and looks at no file. Paths are from the repository's folder on,
with bytes that are no UTF-8 kept as surrogates.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

ARGUMENTS = (
    "status",
    "--porcelain=v2",
    "--branch",
    "-z",
    "--untracked-files=all",
    # A rename is a file that is gone and a new one; both may be declared, or neither.
    "--no-renames",
)
_SUBMODULE_MODE = 0o160000


class Change(StrEnum):
    """How a path of the work tree differs from the commit."""

    ADDED = "added"
    MODIFIED = "modified"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class Entry:
    """One path that is not as in the commit."""

    path: str
    """With ``/`` at its end: another repository, which git does not look into."""
    change: Change
    is_staged: bool = False
    """The index has something else than the commit; that is the user's."""
    is_submodule: bool = False
    is_unmerged: bool = False
    mode: int | None = None
    """Of the work tree, as git sees it; None if git does not know the path."""

    @property
    def is_tracked(self) -> bool:
        """Return whether git knows the path."""
        return self.mode is not None


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a work tree."""

    commit: str | None
    """None: the branch has none yet."""
    branch: str | None
    """None: HEAD is detached."""
    entries: tuple[Entry, ...] = ()


def parse(data: bytes) -> Status:
    """Return what *data* says."""
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
            entries.append(Entry(rest, Change.ADDED))
        elif kind == "1":
            entries.append(_changed(rest))
        elif kind == "2":
            # Only where somebody's git finds renames all the same: both are staged.
            gone = next(fields, "")
            entries += [_changed(rest, 8), Entry(gone, Change.DELETED, is_staged=True, mode=0)]
        elif kind == "u":
            path = rest.split(" ", 9)[9]
            entries.append(Entry(path, Change.MODIFIED, is_unmerged=True, mode=0))
    return Status(commit, branch, tuple(entries))


def _changed(rest: str, before_path: int = 7) -> Entry:
    parts = rest.split(" ", before_path)
    index, tree = parts[0][0], parts[0][1]
    mode = int(parts[4], 8)
    is_submodule = parts[1].startswith("S") or _SUBMODULE_MODE in (mode, int(parts[2], 8))
    # A path that was announced with `git add -N` is the user's to add.
    is_staged = index != "." or tree == "A"
    change = Change.DELETED if "D" in (index, tree) and not mode else Change.MODIFIED
    return Entry(parts[before_path], change, is_staged, is_submodule, mode=mode)
