"""Commits of a run's files: `git fast-import` writes them, `git cat-file` reads them.

Neither needs an index or a work tree. A ref (`refs/worktree/sequencer/…/draft`) holds the last
commit that was written, so that no `git gc` removes it before it is pushed.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Mapping
from hashlib import sha1, sha256
from subprocess import DEVNULL, Popen

from msgspec import Struct

from sequencer.plugins.git.process import Git, GitFailed, kill_process

_IDENTITY = b"Sequencer <sequencer@localhost>"
_SHA1_CHARS = 40
MAX_OBJECT_BYTES = 64 * 1024 * 1024
"""Others may write to the branch too: larger objects are not read into memory."""


class CommitDraft(Struct, frozen=True):
    """A commit to write."""

    message: str
    parent: str | None
    """None: the first commit of its branch, or one that starts the history again."""
    files: Mapping[str, bytes | None]
    """Path in the tree -> its new content; None removes the file."""
    at: int
    """Seconds since 1970, for people who read the log."""
    base: str | None = None
    """A commit whose files it starts with, although that is not its parent."""


class TreeEntry(Struct, frozen=True):
    """A file or a folder in a tree."""

    name: str
    oid: str
    is_folder: bool
    is_plain: bool
    """Neither a link nor a submodule."""


class Missing(GitFailed):
    """An object that a commit names is not in this repository, or can no longer be read.

    A git process that is killed during a fetch leaves commits without their files; a power cut
    leaves files without content.
    """

    def __init__(self, name: str) -> None:
        """Report that the object *name* is missing."""
        super().__init__(("cat-file", name), 1, f"fatal: {name} is not whole here")


class Objects:
    """The object store of a repository."""

    def __init__(self, git: Git) -> None:
        """Read and write with *git*; no process is started before it is needed."""
        self.git = git
        self._reader: Popen[bytes] | None = None
        self._guard = threading.Lock()

    def close(self) -> None:
        """End the reading process; it is started again when needed."""
        with self._guard:
            self._close()

    def _close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            kill_process(reader)

    # --- writing -------------------------------------------------------------------

    def write(self, draft: CommitDraft, ref: str) -> str:
        """Write *draft* and return the name of its commit; *ref* points to it afterwards.

        Raises:
            GitFailed: git can't write to this repository.
        """
        start = b"" if draft.parent is None else b"from %s\n" % draft.parent.encode()
        if draft.parent is None and draft.base is not None:
            tree = self.resolve(f"{draft.base}^{{tree}}")
            start = b"" if tree is None else b'M 040000 %s ""\n' % tree.encode()
        people = b"committer %s %d +0000\n" % (_IDENTITY, draft.at)
        changes = (format_change(path, data) for path, data in draft.files.items())
        stream = commit_stream(ref, people, draft.message, start, changes)
        result = self.git.run("fast-import", "--quiet", "--force", "--cat-blob-fd=1", stdin=stream)
        return result.stdout.decode("ascii").strip()

    # --- reading -------------------------------------------------------------------

    # Each of these raises Missing if an object is damaged.

    def resolve(self, name: str) -> str | None:
        """Return the id of the object that *name* means (a ref, ``oid^{tree}``), or None."""
        answer = self._ask(name)
        return None if answer is None else answer[0]

    def read(self, name: str, kind: str) -> bytes | None:
        """Return the object *name* of *kind* ("blob", "tree", "commit"), or None.

        Raises:
            GitFailed: it is of another kind, or larger than `MAX_OBJECT_BYTES`.
        """
        answer = self._ask(name)
        return None if answer is None else _ensure_kind(name, kind, answer)

    def read_required(self, name: str, kind: str) -> bytes:
        """Return the object *name* of *kind*, to which another object in this repository refers.

        Raises:
            Missing: it is not in this repository.
            GitFailed: see `read`.
        """
        data = self.read(name, kind)
        if data is None:
            raise Missing(name)
        return data

    def list_tree(self, name: str) -> list[TreeEntry] | None:
        """Return the entries of the tree that *name* means (not of its folders), or None."""
        answer = self._ask(name)
        if answer is None:
            return None
        return list(_entries(_ensure_kind(name, "tree", answer), len(answer[0]) // 2))

    def _ask(self, name: str) -> tuple[str, str, bytes] | None:
        if "\n" in name:
            raise GitFailed(("cat-file", name), 1, "fatal: a name of an object has one line")
        with self._guard:
            try:
                return self._query(name)
            except (OSError, ValueError) as error:
                self._close()
                # If the reader ended because git can't work here, this call raises the reason.
                self.git.run("cat-file", "--batch-check")
                raise Missing(name) from error
            except BaseException:
                # The rest of this answer must not be read as the next one.
                self._close()
                raise

    def _query(self, name: str) -> tuple[str, str, bytes] | None:
        if self._reader is None or self._reader.poll() is not None:
            self._close()
            # A missing object must not be fetched, and no one reads what git prints about it.
            argv, variables = ("cat-file", "--batch"), {"GIT_NO_LAZY_FETCH": "1"}
            self._reader = self.git.start(*argv, extra=variables, stderr=DEVNULL)
            # For callers that forget to close; git ends by itself when this process ends.
            weakref.finalize(self, kill_process, self._reader).atexit = False
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
    # Git chose the digest; it is a name, not a secret.
    digest = sha1 if chars == _SHA1_CHARS else sha256
    return digest(b"blob %d\0%s" % (len(data), data), usedforsecurity=False).hexdigest()


def _ensure_kind(name: str, kind: str, answer: tuple[str, str, bytes]) -> bytes:
    if answer[1] != kind:
        raise GitFailed(("cat-file", name), 1, f"fatal: {name} is a {answer[1]}, not a {kind}")
    return answer[2]


def commit_stream(
    ref: str, people: bytes, message: str, start: bytes, changes: Iterable[bytes]
) -> bytes:
    """Return the input with which `git fast-import` writes a commit on *ref* and prints its id."""
    text, name = message.encode("utf-8", "replace"), ref.encode("utf-8", "surrogateescape")
    head = b"commit %s\nmark :1\n%sdata %d\n%s\n%s" % (name, people, len(text), text, start)
    return b"".join((head, *changes, b"\nget-mark :1\ndone\n"))


def format_change(path: str, data: bytes | None, mode: bytes = b"100644") -> bytes:
    """Return the command in such a stream that sets *path* to *data*; None removes it."""
    if data is None:
        return b"D %s\n" % quote_path(path)
    return b"M %s inline %s\ndata %d\n%s\n" % (mode, quote_path(path), len(data), data)


def quote_path(path: str) -> bytes:
    """Return *path* quoted as git expects it in a line of its input."""
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
