"""Commits of a run's files: written by one `git fast-import`, read by a `git cat-file`.

Neither knows an index or a work tree. The commit that was written last hangs on a ref of
its own (`refs/worktree/sequencer/…/draft`), so that no `git gc` takes it away before it is pushed.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Mapping
from hashlib import sha1, sha256
from subprocess import DEVNULL, Popen
from typing import NamedTuple

from msgspec import Struct

from sequencer.plugins.git.process import Git, GitFailed, end

_IDENTITY = b"Sequencer <sequencer@localhost>"
_SHA1_CHARS = 40
MAX_OBJECT_BYTES = 64 * 1024 * 1024
"""A branch is somebody else's to write: what is larger is not read into memory."""


class CommitDraft(Struct, frozen=True):
    """A commit that is to be written."""

    message: str
    parent: str | None
    """None: the first of its branch, or one that starts the history anew."""
    files: Mapping[str, bytes | None]
    """Path in the tree -> what it holds from now on; None removes it."""
    at: int
    """Seconds since 1970, for people who read the log."""
    base: str | None = None
    """A commit whose files it begins with, though that is not its parent."""


class TreeEntry(NamedTuple):
    """A file or a folder in a tree."""

    name: str
    oid: str
    is_folder: bool
    is_plain: bool
    """Neither link nor submodule."""


class Missing(GitFailed):
    """What a commit names is not in this repository, or can't be read in it any more.

    A git that is killed while it fetches leaves commits without their files, and a power cut
    files without content.
    """

    def __init__(self, name: str) -> None:
        """Say that the object *name* is what is missing."""
        super().__init__(("cat-file", name), 1, f"fatal: {name} is not whole here")


class Objects:
    """The object store of a repository."""

    def __init__(self, git: Git) -> None:
        """Read and write with *git*; nothing is started before it is needed."""
        self.git = git
        self._reader: Popen[bytes] | None = None
        self._guard = threading.Lock()

    def close(self) -> None:
        """End the process that reads; it is started again when it is needed."""
        with self._guard:
            self._close()

    def _close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            end(reader)

    # --- writing -------------------------------------------------------------------

    def write(self, draft: CommitDraft, ref: str) -> str:
        """Write *draft* and return the name of its commit; *ref* points to it afterwards.

        Raises:
            GitFailed: nothing can be written here.
        """
        start = b"" if draft.parent is None else b"from %s\n" % draft.parent.encode()
        if draft.parent is None and draft.base is not None:
            tree = self.resolve(f"{draft.base}^{{tree}}")
            start = b"" if tree is None else b'M 040000 %s ""\n' % tree.encode()
        people = b"committer %s %d +0000\n" % (_IDENTITY, draft.at)
        changes = (change(path, data) for path, data in draft.files.items())
        stream = commit_stream(ref, people, draft.message, start, changes)
        done = self.git.run("fast-import", "--quiet", "--force", "--cat-blob-fd=1", stdin=stream)
        return done.stdout.decode("ascii").strip()

    # --- reading -------------------------------------------------------------------

    # Each of these raises Missing where an object is damaged.

    def resolve(self, name: str) -> str | None:
        """Return the object that *name* means (a ref, ``oid^{tree}``), or None."""
        found = self._ask(name)
        return None if found is None else found[0]

    def read(self, name: str, kind: str) -> bytes | None:
        """Return the object *name* of *kind* ("blob", "tree", "commit"), or None.

        Raises:
            GitFailed: it is of another kind, or larger than anything here may be.
        """
        found = self._ask(name)
        return None if found is None else _of_kind(name, kind, found)

    def needed(self, name: str, kind: str) -> bytes:
        """Return the object *name* of *kind*, which something that is here names.

        Raises:
            Missing: it is not here.
            GitFailed: see `read`.
        """
        found = self.read(name, kind)
        if found is None:
            raise Missing(name)
        return found

    def tree(self, name: str) -> list[TreeEntry] | None:
        """Return what is in the tree that *name* means (not below its folders), or None."""
        found = self._ask(name)
        if found is None:
            return None
        return list(_entries(_of_kind(name, "tree", found), len(found[0]) // 2))

    def _ask(self, name: str) -> tuple[str, str, bytes] | None:
        if "\n" in name:
            raise GitFailed(("cat-file", name), 1, "fatal: a name of an object has one line")
        with self._guard:
            try:
                return self._asked(name)
            except (OSError, ValueError) as error:
                self._close()
                # If it has ended because it can't work here, this one says why.
                self.git.run("cat-file", "--batch-check")
                raise Missing(name) from error
            except BaseException:
                # Half an answer must not be taken for the next one's.
                self._close()
                raise

    def _asked(self, name: str) -> tuple[str, str, bytes] | None:
        if self._reader is None or self._reader.poll() is not None:
            self._close()
            # What is not here is asked of no remote, and nobody would read its words.
            argv, extra = ("cat-file", "--batch"), {"GIT_NO_LAZY_FETCH": "1"}
            self._reader = self.git.start(*argv, extra=extra, stderr=DEVNULL)
            # For who forgets to close; at the end of this process git ends by itself.
            weakref.finalize(self, end, self._reader).atexit = False
        stdin, stdout = self._reader.stdin, self._reader.stdout
        if stdin is None or stdout is None:  # for the type checker
            raise ValueError("no pipes")
        stdin.write(f"{name}\n".encode("utf-8", "surrogateescape"))
        stdin.flush()
        header = stdout.readline()
        if not header:
            raise ValueError("git cat-file has ended")
        if header.endswith((b" missing\n", b" ambiguous\n")):
            return None
        oid, kind, size = header.decode("ascii").split()
        if int(size) > MAX_OBJECT_BYTES:
            raise GitFailed(("cat-file", name), 1, f"fatal: {name} has {size} bytes")
        data = stdout.read(int(size) + 1)
        if len(data) != int(size) + 1:
            raise ValueError("git cat-file has ended")
        return oid, kind, data[:-1]


def blob_name(data: bytes, chars: int) -> str:
    """Return git's name for *data* as a file, in a repository whose names have *chars*."""
    # Git's own choice of digest, as a name and no secret.
    make = sha1 if chars == _SHA1_CHARS else sha256
    return make(b"blob %d\0%s" % (len(data), data), usedforsecurity=False).hexdigest()


def _of_kind(name: str, kind: str, found: tuple[str, str, bytes]) -> bytes:
    if found[1] != kind:
        raise GitFailed(("cat-file", name), 1, f"fatal: {name} is a {found[1]}, not a {kind}")
    return found[2]


def commit_stream(
    ref: str, people: bytes, message: str, start: bytes, changes: Iterable[bytes]
) -> bytes:
    """Return what has `git fast-import` write one commit on *ref*, and say its name."""
    text, name = message.encode("utf-8", "replace"), ref.encode("utf-8", "surrogateescape")
    head = b"commit %s\nmark :1\n%sdata %d\n%s\n%s" % (name, people, len(text), text, start)
    return b"".join((head, *changes, b"\nget-mark :1\ndone\n"))


def change(path: str, data: bytes | None, mode: bytes = b"100644") -> bytes:
    """Return the line of such a stream by which *path* holds *data* from now on; None: nothing."""
    if data is None:
        return b"D %s\n" % quoted(path)
    return b"M %s inline %s\ndata %d\n%s\n" % (mode, quoted(path), len(data), data)


def quoted(path: str) -> bytes:
    """Return *path* as git reads it from a line of its input."""
    escaped = path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'.encode("utf-8", "surrogateescape")


def _entries(data: bytes, digest_bytes: int) -> Iterable[TreeEntry]:
    position = 0
    while position < len(data):
        end_of_name = data.index(b"\0", position)
        mode, _, name = data[position:end_of_name].partition(b" ")
        position = end_of_name + 1 + digest_bytes
        yield TreeEntry(
            name.decode("utf-8", "surrogateescape"),
            data[end_of_name + 1 : position].hex(),
            is_folder=mode == b"40000",
            is_plain=mode in (b"100644", b"100755"),
        )
