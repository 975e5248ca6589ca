"""Commits chosen paths without the user's index, and then updates the index for these paths.

Git hashes the files (so its filters apply), the commit is written on top of a given parent, and
the ref is moved only if it is still at that parent. In the index only the entries of these paths
change, under git's own lock. The lock file names its owner: if a process is killed between the ref
and the index, the next process completes the commit.
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
from sequencer.plugins.git.state.locks import read_lock
from sequencer.plugins.git.state.objects import blob_name, commit_stream, format_change, quote_path
from sequencer.store.folder import read_regular
from sequencer.store.identity import is_proven_dead, this_process
from sequencer.store.strictjson import parse_object

_IDENTITY = b"Sequencer <sequencer@localhost>"
_ZONE = b"+0000"
DRAFT = "sequencer-index"
"""Name of the copy of the index, in git's own folder."""
LOCK_WAIT_S = 5.0
"""How long to wait for another process that has locked the index."""
_PAUSE_S = 0.05
ENDED_S = 2.0
"""This long after the last sign of a killed process, its git has ended too."""
_MAX_NOTE_BYTES = 65536
CHANGED = "was changed while it was read"


class RefMoved(Exception):
    """Another process moved the branch meanwhile; nothing was committed."""


class WrittenCommit(Struct, frozen=True):
    """A commit, and the selection that it really contains."""

    commit: str
    selection: Selection


class Committer:
    """Writes commits in one work tree."""

    def __init__(self, tree: WorkTree) -> None:
        """Write commits in *tree*."""
        self._tree = tree
        self._author: tuple[bytes, bytes] | None = None

    def commit(self, selection: Selection, parent: str, ref: str, message: str) -> WrittenCommit:
        """Commit *selection* on top of *parent*, move *ref* there, and update the index.

        Raises:
            RefMoved: *ref* is no longer at *parent*.
            WorkTreeRefused: git can't write it, or another process keeps the index locked.
        """
        selection, oids = self._hash(selection)
        if not selection.chosen:
            return WrittenCommit(parent, selection)
        with _Index(self._tree, {"ref": ref, "parent": parent, "message": message}) as index:
            index.update(selection, oids, len(parent))
            commit = self._write(selection, oids, parent, ref, message)
            index.accept()
        return WrittenCommit(commit, selection)

    def snapshot(self, selection: Selection, parent: str, ref: str, message: str) -> WrittenCommit:
        """Commit *selection* on top of *parent* on the new *ref*; change nothing else.

        Raises:
            RefMoved: *ref* exists already, at another commit.
            WorkTreeRefused: git can't write it.
        """
        selection, oids = self._hash(selection)
        return WrittenCommit(self._write(selection, oids, parent, ref, message), selection)

    def write_merge_commit(self, tree: str, parents: tuple[str, ...], message: str) -> str:
        """Write a commit of *tree* on top of *parents* and return it; no ref is moved.

        Raises:
            GitFailed: git can't write it.
        """
        author, zone = self._identity()
        person = b"%s %d %s" % (author, int(time.time()), zone)
        lines = [f"tree {tree}".encode(), *(f"parent {oid}".encode() for oid in parents)]
        lines += [b"author " + person, b"committer " + person, b"", message.encode()]
        argv = ("hash-object", "-t", "commit", "-w", "--stdin")
        return self._tree.git.run(*argv, stdin=b"\n".join(lines)).stdout.decode("ascii").strip()

    def has_abandoned_lock(self) -> bool:
        """Return whether a killed process of this program has left its lock on the index."""
        return is_abandoned_lock(self._tree.git_dir / "index.lock")

    def finish_interrupted_commit(self) -> None:
        """Complete the commit of a killed process: if the ref has it, update the index too.

        Only one process may call this at a time.

        Raises:
            WorkTreeRefused: the index can't be written.
        """
        lock = self._tree.git_dir / "index.lock"
        note = _dead_owner_note(lock)
        if note is None:
            return
        draft = self._tree.git_dir / DRAFT
        try:
            while 0.0 <= (left_s := lock.stat().st_mtime + ENDED_S - time.time()) <= ENDED_S:
                time.sleep(left_s)
            if draft.exists() and self._has_moved(note):
                draft.replace(self._tree.git_dir / "index")
            _remove(self._tree.git_dir)
        except OSError as error:
            raise self._tree.make_refusal(f"can't be written: {error.strerror}") from error

    def _has_moved(self, note: Mapping[str, Any]) -> bool:
        """Return whether the ref in *note* has the commit that *note* describes."""
        argv = ("cat-file", "commit", str(note.get("ref")))
        head, _, message = self._tree.git.run(*argv, accepts=(0, 128)).stdout.partition(b"\n\n")
        text = str(note.get("message")).encode("utf-8", "replace")
        return message == text and b"parent %s" % str(note.get("parent")).encode() in head.split(
            b"\n"
        )

    # --- files ---------------------------------------------------------------------

    def _hash(self, selection: Selection) -> tuple[Selection, dict[str, str]]:
        """Write the files to git's objects; return the unchanged ones, and path -> object id."""
        paths = [
            choice.path
            for choice in selection.chosen
            if choice.content and choice.content.target is None
        ]
        if not paths:
            return selection, {}
        try:
            result = self._tree.git.run(
                "hash-object",
                "-w",
                "--stdin-paths",
                stdin=b"".join(quote_path(path) + b"\n" for path in paths),
            )
        except GitFailed as failed:
            # One file that disappeared must not prevent the whole commit.
            changed_paths = _find_changed(self._tree.top, selection.chosen)
            if not changed_paths:
                raise self._tree.make_refusal(f"can't be committed: {failed.reason}") from failed
            return self._hash(selection.with_skipped(changed_paths, CHANGED))
        oids = dict(zip(paths, result.stdout.decode("ascii").split(), strict=True))
        return selection.with_skipped(
            _find_changed(self._tree.top, selection.chosen), CHANGED
        ), oids

    # --- the commit ----------------------------------------------------------------

    def _write(
        self, selection: Selection, oids: dict[str, str], parent: str, ref: str, message: str
    ) -> str:
        if selection.chosen:
            author, zone = self._identity()
            person = b"%s %d %s" % (author, int(time.time()), zone)
            people = b"author %s\ncommitter %s\n" % (person, person)
            start = b"from %s\n" % parent.encode()
            changes = (_change_command(choice, oids) for choice in _sort_removed_first(selection))
            stream = commit_stream(ref, people, message, start, changes)
        else:
            stream = b"reset %s\nfrom %s\n\ndone\n" % (os.fsencode(ref), parent.encode())
        try:
            result = self._tree.git.run(
                "fast-import", "--quiet", "--done", "--cat-blob-fd=1", stdin=stream
            )
        except GitFailed as failed:
            text = failed.local_stderr
            if "Not updating" in text or "does not contain" in text:
                raise RefMoved from failed
            raise self._tree.make_refusal(f"can't be committed: {failed.reason}") from failed
        return result.stdout.decode("ascii").strip() or parent

    def _identity(self) -> tuple[bytes, bytes]:
        """Return the author (name and address) and time zone of the user, or the program's."""
        if self._author is None:
            try:
                output = self._tree.git.run(
                    "var", "GIT_AUTHOR_IDENT", settings=("user.useConfigOnly=true",)
                ).stdout
                author, _, zone = output.strip().rsplit(b" ", 2)
                self._author = author, zone
            except (GitFailed, ValueError):
                self._author = _IDENTITY, _ZONE
        return self._author


class _Index:
    """The index under git's own lock, and a copy of it that replaces it at the end."""

    def __init__(self, tree: WorkTree, note: Mapping[str, str]) -> None:
        self._tree = tree
        self._note = note
        self._path = tree.git_dir / "index"
        self._lock = tree.git_dir / "index.lock"
        self._draft = tree.git_dir / DRAFT
        self._is_accepted = False

    def __enter__(self) -> Self:
        self._acquire_lock()
        try:
            # Keep its time: git compares it with the times of files, and reads files again that
            # were written right after they were staged.
            shutil.copy2(self._path, self._draft)
        except OSError as error:
            _remove(self._tree.git_dir)
            raise self._tree.make_refusal(f"has no index: {error.strerror}") from error
        return self

    def __exit__(self, *_: object) -> None:
        # After `accept`, an existing lock belongs to another process.
        if not self._is_accepted:
            _remove(self._tree.git_dir)

    def accept(self) -> None:
        """Replace the index by the copy, and unlock it."""
        self._draft.replace(self._path)
        self._lock.unlink()
        self._is_accepted = True

    def _acquire_lock(self) -> None:
        deadline = time.monotonic() + LOCK_WAIT_S
        while True:
            try:
                fd = os.open(self._lock, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            except FileExistsError:
                if time.monotonic() < deadline:
                    time.sleep(_PAUSE_S)
                    continue
                lock = read_lock(self._lock, self._tree.git_dir)
                detail, hint = (f": {lock.description}", lock.hint) if lock else ("", "start again")
                message = f"is locked by another git process{detail}"
                raise self._tree.make_refusal(message, hint) from None
            except OSError as error:
                raise self._tree.make_refusal(f"can't be written: {error.strerror}") from error
            else:
                break
        try:
            with os.fdopen(fd, "w", encoding="ascii") as file:
                json.dump({"owner": this_process().model_dump(), **self._note}, file)
        except OSError as error:
            self._lock.unlink()
            raise self._tree.make_refusal(f"can't be written: {error.strerror}") from error

    def update(self, selection: Selection, oids: Mapping[str, str], oid_chars: int) -> None:
        """Write only the entries of *selection* into the copy.

        Raises:
            WorkTreeRefused: git failed.
        """
        chosen_paths = _sort_removed_first(selection)
        names = b"".join(os.fsencode(choice.path) + b"\0" for choice in chosen_paths)
        with contextlib.suppress(GitFailed):
            # From the files if possible, because then the index has their times too.
            self._update_index("--add", "--remove", "-z", "--stdin", stdin=names)
            if not _find_changed(self._tree.top, chosen_paths):
                return
        lines = []
        for choice in chosen_paths:
            if choice.content is None:
                entry = b"0 " + b"0" * oid_chars
            else:
                link = choice.content.target
                oid = oids[choice.path] if link is None else blob_name(link, oid_chars)
                entry = b"%o %s" % (choice.content.mode, oid.encode())
            lines.append(b"%s\t%s\0" % (entry, os.fsencode(choice.path)))
        try:
            self._update_index("-z", "--index-info", stdin=b"".join(lines))
        except GitFailed as failed:
            raise self._tree.make_refusal(f"can't be committed: {failed.reason}") from failed

    def _update_index(self, *flags: str, stdin: bytes) -> None:
        variables = {"GIT_INDEX_FILE": str(self._draft)}
        self._tree.git.run("update-index", *flags, stdin=stdin, extra=variables)


def is_abandoned_lock(lock: Path) -> bool:
    """Return whether *lock* is from a dead process of this program: the next one removes it."""
    return _dead_owner_note(lock) is not None


def _dead_owner_note(lock: Path) -> dict[str, Any] | None:
    """Return the content of *lock* if its owner is a dead process of this program, else None."""
    with contextlib.suppress(OSError, CorruptState, ValueError, ValidationError):
        note = parse_object(read_regular(lock, max_bytes=_MAX_NOTE_BYTES), _MAX_NOTE_BYTES)
        if is_proven_dead(Owner.model_validate(note.get("owner"))):
            return note
    return None


def _remove(git_dir: Path) -> None:
    """Remove the copy of the index, and then unlock the index."""
    for name in (DRAFT, f"{DRAFT}.lock", "index.lock"):
        with contextlib.suppress(FileNotFoundError):
            (git_dir / name).unlink()


def _change_command(choice: Chosen, oids: Mapping[str, str]) -> bytes:
    """Return the `git fast-import` command for *choice*; *oids* has the object id of each file."""
    path, content = choice.path, choice.content
    if content is None or content.target is not None:
        return format_change(path, None if content is None else content.target, b"120000")
    return b"M %o %s %s\n" % (content.mode, oids[path].encode(), quote_path(path))


def _sort_removed_first(selection: Selection) -> list[Chosen]:
    """Return the chosen paths, removed ones first, so that a file can replace a folder."""
    return sorted(selection.chosen, key=lambda choice: choice.content is not None)


def _find_changed(top: Path, chosen_paths: Iterable[Chosen]) -> list[str]:
    """Return the paths that have changed since they were chosen."""
    return [
        choice.path
        for choice in chosen_paths
        if (
            _is_back(top / choice.path)
            if choice.content is None
            else not is_unchanged(top, choice.path, choice.content)
        )
    ]


def _is_back(path: Path) -> bool:
    """Return whether a removed file exists again; a folder there is not the file."""
    return os.path.lexists(path) and (path.is_symlink() or not path.is_dir())
