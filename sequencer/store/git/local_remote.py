"""A remote that is a folder of this machine, whose refs can be watched instead of polled.

Git moves a ref by renaming a file over that of its name, so a watch of the folder sees it;
in packed-refs it only tidies up. Not watched, but polled: a repository on a network file
system, which tells nobody, and one that keeps its refs otherwise (reftable).
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

from sequencer.errors import CorruptState
from sequencer.store.filesystem import is_network, type_of
from sequencer.store.git.command import Git, GitFailed
from sequencer.store.journal_file import read_regular
from sequencer.store.watch import Notifier, notifier

_OTHER_TRANSPORT = re.compile(r"[^/]*:")
"""host:path, scheme://…, helper::…; a path with a colon has a slash before it."""
_SUFFIXES = ("/.git", "", ".git/.git", ".git")
"""Where git looks for the repository of a path, in its order."""
_MAX_LINE = 4096
_MAX_OID = 65
_OID = re.compile(r"([0-9a-f]{40}(?:[0-9a-f]{24})?)\n")


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
    return None if not url or _OTHER_TRANSPORT.match(url) else Path(url).expanduser()


def _git_dir(path: Path) -> Path | None:
    for suffix in _SUFFIXES:
        found = Path(f"{path}{suffix}")
        if found.is_file():
            found = _named(found, "gitdir: ") or found
        if (found / "HEAD").is_file():
            # Of a linked work tree the branches are with the others.
            common = found / "commondir"
            found = (_named(common, "") if common.is_file() else None) or found
            return found.resolve() if (found / "objects").is_dir() else None
    return None


def _named(pointer: Path, prefix: str) -> Path | None:
    """Return the folder that a file with one line names, relative to its own."""
    with pointer.open(encoding="utf-8", errors="surrogateescape") as file:
        line = file.read(_MAX_LINE).rstrip("\n")
    return pointer.parent / line.removeprefix(prefix) if line.startswith(prefix) else None


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
        found = _OID.fullmatch(data.decode("ascii", "replace"))
        return None if found is None else found[1]

    def has_moved(self) -> bool:
        """Return whether something has happened since the last call or `arm`."""
        return self._watch is not None and self._watch.has_changed()

    def close(self) -> None:
        """Free what the watch holds; `arm` begins again."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None
