"""Writes a commit of chosen paths without the user's index, and then tells the index of them.

The files are hashed by git (so that its filters hold), the commit is written on top of a
given one and the ref is moved only if it still is where that was. Of the index only the
entries of these paths change, under git's own lock; everything else in it stays as it is.
The lock says whose it is: what a kill has cut off between ref and index is ended by who comes next.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from msgspec import Struct

from sequencer.errors import CorruptState
from sequencer.frozen.fields import ValidationError
from sequencer.model.head import Owner
from sequencer.plugins.git.code.selection import Chosen, Selection, is_unchanged
from sequencer.plugins.git.code.tree import WorkTree
from sequencer.plugins.git.process import GitFailed
from sequencer.plugins.git.state.locks import look
from sequencer.plugins.git.state.objects import blob_name, change, commit_stream, quoted
from sequencer.store.folder import read_regular
from sequencer.store.identity import is_proven_dead, this_process
from sequencer.store.strictjson import parse_object

_IDENTITY = b"Sequencer <sequencer@localhost>"
_ZONE = b"+0000"
DRAFT = "sequencer-index"
"""The copy of the index, in git's own folder."""
LOCK_WAIT_S = 5.0
"""How long somebody else's work on the index is waited for."""
_PAUSE_S = 0.05
ENDED_S = 2.0
"""So long after the last sign of a process that was killed its git has ended, too."""
_MAX_NOTE_BYTES = 65536
CHANGED = "was changed while it was read"


class RefMoved(Exception):
    """Somebody has moved the branch in between; nothing was committed."""


class WrittenCommit(Struct, frozen=True):
    """A commit, and what it holds after all."""

    commit: str
    selection: Selection


class Committer:
    """Writes commits in one work tree."""

    def __init__(self, tree: WorkTree) -> None:
        """Write with the git of *tree*."""
        self._tree = tree
        self._who: tuple[bytes, bytes] | None = None

    def commit(self, selection: Selection, parent: str, ref: str, message: str) -> WrittenCommit:
        """Commit *selection* on top of *parent*, move *ref* there, and tell the index.

        Raises:
            RefMoved: *ref* is not at *parent* any more.
            WorkTreeRefused: git can't write it, or somebody keeps the index locked.
        """
        selection, oids = self._hashed(selection)
        if not selection.chosen:
            return WrittenCommit(parent, selection)
        with _Index(self._tree, {"ref": ref, "parent": parent, "message": message}) as index:
            index.tell(selection, oids, len(parent))
            commit = self._write(selection, oids, parent, ref, message)
            index.accept()
        return WrittenCommit(commit, selection)

    def snapshot(self, selection: Selection, parent: str, ref: str, message: str) -> WrittenCommit:
        """Commit *selection* on top of *parent* on *ref*, which is new; touch nothing else.

        Raises:
            RefMoved: there is such a ref, and it is somewhere else.
            WorkTreeRefused: git can't write it.
        """
        selection, oids = self._hashed(selection)
        return WrittenCommit(self._write(selection, oids, parent, ref, message), selection)

    def merge(self, tree: str, parents: tuple[str, ...], message: str) -> str:
        """Write a commit of *tree* on top of *parents*, which no ref has yet; return it.

        Raises:
            GitFailed: git can't write it.
        """
        who, zone = self._identity()
        person = b"%s %d %s" % (who, int(time.time()), zone)
        lines = [f"tree {tree}".encode(), *(f"parent {one}".encode() for one in parents)]
        lines += [b"author " + person, b"committer " + person, b"", message.encode()]
        argv = ("hash-object", "-t", "commit", "-w", "--stdin")
        return self._tree.git.run(*argv, stdin=b"\n".join(lines)).stdout.decode("ascii").strip()

    def is_cut_off(self) -> bool:
        """Return whether a process that was killed has left its lock on the index."""
        return is_cut_off(self._tree.git_dir / "index.lock")

    def settle(self) -> None:
        """End the commit that such a process has begun: the index gets it if the ref has it.

        For one process at a time.

        Raises:
            WorkTreeRefused: the index can't be written.
        """
        lock = self._tree.git_dir / "index.lock"
        note = _left_note(lock)
        if note is None:
            return
        draft = self._tree.git_dir / DRAFT
        try:
            while 0.0 <= (left := lock.stat().st_mtime + ENDED_S - time.time()) <= ENDED_S:
                time.sleep(left)
            if draft.exists() and self._has_moved(note):
                draft.replace(self._tree.git_dir / "index")
            _remove(self._tree.git_dir)
        except OSError as error:
            raise self._tree.refused(f"can't be written: {error.strerror}") from error

    def _has_moved(self, note: Mapping[str, Any]) -> bool:
        """Return whether the commit of *note* is where it was to be."""
        argv = ("cat-file", "commit", str(note.get("ref")))
        head, _, message = self._tree.git.run(*argv, accepts=(0, 128)).stdout.partition(b"\n\n")
        wanted = str(note.get("message")).encode("utf-8", "replace")
        return message == wanted and b"parent %s" % str(note.get("parent")).encode() in head.split(
            b"\n"
        )

    # --- files ---------------------------------------------------------------------

    def _hashed(self, selection: Selection) -> tuple[Selection, dict[str, str]]:
        """Write the files into git; return what is still as it was chosen, and the names."""
        paths = [one.path for one in selection.chosen if one.content and one.content.target is None]
        if not paths:
            return selection, {}
        try:
            done = self._tree.git.run(
                "hash-object",
                "-w",
                "--stdin-paths",
                stdin=b"".join(quoted(path) + b"\n" for path in paths),
            )
        except GitFailed as failed:
            # A file that is gone is the step's business, and not worth the whole commit.
            gone = _changed(self._tree.top, selection.chosen)
            if not gone:
                raise self._tree.refused(f"can't be committed: {failed.reason}") from failed
            return self._hashed(selection.without(gone, CHANGED))
        oids = dict(zip(paths, done.stdout.decode("ascii").split(), strict=True))
        return selection.without(_changed(self._tree.top, selection.chosen), CHANGED), oids

    # --- the commit ----------------------------------------------------------------

    def _write(
        self, selection: Selection, oids: dict[str, str], parent: str, ref: str, message: str
    ) -> str:
        if selection.chosen:
            who, zone = self._identity()
            person = b"%s %d %s" % (who, int(time.time()), zone)
            people = b"author %s\ncommitter %s\n" % (person, person)
            start = b"from %s\n" % parent.encode()
            changes = (_written(one, oids) for one in _removed_first(selection))
            stream = commit_stream(ref, people, message, start, changes)
        else:
            stream = b"reset %s\nfrom %s\n\ndone\n" % (os.fsencode(ref), parent.encode())
        try:
            done = self._tree.git.run(
                "fast-import", "--quiet", "--done", "--cat-blob-fd=1", stdin=stream
            )
        except GitFailed as failed:
            if "Not updating" in failed.stderr or "does not contain" in failed.stderr:
                raise RefMoved from failed
            raise self._tree.refused(f"can't be committed: {failed.reason}") from failed
        return done.stdout.decode("ascii").strip() or parent

    def _identity(self) -> tuple[bytes, bytes]:
        """Return the user's name and address and time zone, or the program's own."""
        if self._who is None:
            try:
                told = self._tree.git.run(
                    "var", "GIT_AUTHOR_IDENT", settings=("user.useConfigOnly=true",)
                ).stdout
                who, _, zone = told.strip().rsplit(b" ", 2)
                self._who = who, zone
            except (GitFailed, ValueError):
                self._who = _IDENTITY, _ZONE
        return self._who


class _Index:
    """The index under git's own lock, and a copy of it that takes its place in the end."""

    def __init__(self, tree: WorkTree, note: Mapping[str, str]) -> None:
        self._tree = tree
        self._note = note
        self._path = tree.git_dir / "index"
        self._lock = tree.git_dir / "index.lock"
        self._draft = tree.git_dir / DRAFT
        self._is_accepted = False

    def __enter__(self) -> Self:
        self._take()
        try:
            # With its time: by that git knows files that were written right after they were
            # staged, and looks into them.
            shutil.copy2(self._path, self._draft)
        except OSError as error:
            _remove(self._tree.git_dir)
            raise self._tree.refused(f"has no index: {error.strerror}") from error
        return self

    def __exit__(self, *_: object) -> None:
        # Once it is accepted, a lock that is there is somebody else's.
        if not self._is_accepted:
            _remove(self._tree.git_dir)

    def accept(self) -> None:
        """Put the copy in the index's place, and unlock it."""
        self._draft.replace(self._path)
        self._lock.unlink()
        self._is_accepted = True

    def _take(self) -> None:
        deadline = time.monotonic() + LOCK_WAIT_S
        while True:
            try:
                fd = os.open(self._lock, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            except FileExistsError:
                if time.monotonic() < deadline:
                    time.sleep(_PAUSE_S)
                    continue
                lock = look(self._lock, self._tree.git_dir)
                told, hint = (f": {lock.description}", lock.hint) if lock else ("", "start again")
                raise self._tree.refused(f"is locked by another git process{told}", hint) from None
            except OSError as error:
                raise self._tree.refused(f"can't be written: {error.strerror}") from error
            else:
                break
        try:
            with os.fdopen(fd, "w", encoding="ascii") as file:
                json.dump({"owner": this_process().model_dump(), **self._note}, file)
        except OSError as error:
            self._lock.unlink()
            raise self._tree.refused(f"can't be written: {error.strerror}") from error

    def tell(self, selection: Selection, oids: Mapping[str, str], oid_chars: int) -> None:
        """Write the entries of *selection*, and no others, into the copy.

        Raises:
            WorkTreeRefused: git can't.
        """
        chosen = _removed_first(selection)
        paths = b"".join(os.fsencode(one.path) + b"\0" for one in chosen)
        with contextlib.suppress(GitFailed):
            # From the files, because then the index knows their times, too.
            self._update("--add", "--remove", "-z", "--stdin", stdin=paths)
            if not _changed(self._tree.top, chosen):
                return
        lines = []
        for one in chosen:
            if one.content is None:
                told = b"0 " + b"0" * oid_chars
            else:
                link = one.content.target
                oid = oids[one.path] if link is None else blob_name(link, oid_chars)
                told = b"%o %s" % (one.content.mode, oid.encode())
            lines.append(b"%s\t%s\0" % (told, os.fsencode(one.path)))
        try:
            self._update("-z", "--index-info", stdin=b"".join(lines))
        except GitFailed as failed:
            raise self._tree.refused(f"can't be committed: {failed.reason}") from failed

    def _update(self, *flags: str, stdin: bytes) -> None:
        extra = {"GIT_INDEX_FILE": str(self._draft)}
        self._tree.git.run("update-index", *flags, stdin=stdin, extra=extra)


def is_cut_off(lock: Path) -> bool:
    """Return whether *lock* goes by itself, as one of a process of this program that is gone."""
    return _left_note(lock) is not None


def _left_note(lock: Path) -> dict[str, Any] | None:
    """Return what the lock of a process of ours says that is gone; None: it is not one of those."""
    with contextlib.suppress(OSError, CorruptState, ValueError, ValidationError):
        note = parse_object(read_regular(lock, max_bytes=_MAX_NOTE_BYTES), _MAX_NOTE_BYTES)
        if is_proven_dead(Owner.model_validate(note.get("owner"))):
            return note
    return None


def _remove(git_dir: Path) -> None:
    """Unlock the index, the copy of it being gone before."""
    for name in (DRAFT, f"{DRAFT}.lock", "index.lock"):
        with contextlib.suppress(FileNotFoundError):
            (git_dir / name).unlink()


def _written(one: Chosen, oids: Mapping[str, str]) -> bytes:
    """Return how a commit gets *one*: a file by the name that git has given its content."""
    content = one.content
    if content is None or content.target is not None:
        return change(one.path, None if content is None else content.target, b"120000")
    return b"M %o %s %s\n" % (content.mode, oids[one.path].encode(), quoted(one.path))


def _removed_first(selection: Selection) -> list[Chosen]:
    """Return what is chosen so that a file may take a folder's place, or the other way round."""
    return sorted(selection.chosen, key=lambda one: one.content is not None)


def _changed(top: Path, chosen: Iterable[Chosen]) -> list[str]:
    """Return the paths that are not as they were chosen any more."""
    return [
        one.path
        for one in chosen
        if (
            _is_back(top / one.path)
            if one.content is None
            else not is_unchanged(top, one.path, one.content)
        )
    ]


def _is_back(path: Path) -> bool:
    """Return whether a file that was removed is there again; a folder is no file."""
    return os.path.lexists(path) and (path.is_symlink() or not path.is_dir())
