"""The files of a run in a folder, and the same files in the tree of its branch.

The folder is a replica: its journal is that of the branch, or the beginning of it. What
comes from a branch was written by whoever may push, so names are checked here, and the
content by whoever reads the files as those of any run. A commit holds what a transition changes.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from msgspec import Struct

from sequencer.errors import CorruptState
from sequencer.frozen.base import Frozen
from sequencer.frozen.fields import Field
from sequencer.plugins.git.code.tree import read_note
from sequencer.plugins.git.state.objects import CommitDraft, Missing, Objects, TreeEntry, blob_name
from sequencer.store import folder as folders
from sequencer.store import journal as journal_file
from sequencer.store import results
from sequencer.store.documents import MAX_BYTES
from sequencer.store.folder import read_regular
from sequencer.store.head import signature
from sequencer.store.journal import decode, scan
from sequencer.store.protocol import Draft
from sequencer.store.strictjson import MAX_BYTES as MAX_HEAD_BYTES
from sequencer.store.strictjson import parse_object

HEAD = "state.json"
JOURNAL = journal_file.NAME
REMOTE = "remote.json"
_ASIDE = re.compile(r"journal-\d{6,9}\.jsonl")
_DOCUMENT = re.compile(r"(definition|flow|marking-[0-9a-f]{1,64})\.json")
"""Of all that lies in the folder; a cursor is this clone's own."""
MAX_JOURNAL_BYTES = 2**30
MAX_OUTPUT_BYTES = 8 * 1024 * 1024
"""An output that is larger stays where it was made."""


class RunTree(Struct, frozen=True):
    """What a commit of the state branch holds, by path, as git's object names."""

    entries: dict[str, str]

    def aside(self) -> set[str]:
        """Return the names of the journals that were put aside."""
        return {name for name in self.entries if _ASIDE.fullmatch(name)}

    def documents(self) -> set[str]:
        """Return the names of the run's documents."""
        return {name for name in self.entries if is_document(name, HEAD)}

    def outputs(self) -> set[str]:
        """Return the paths of outputs."""
        return {name for name in self.entries if name.startswith(f"{results.NAME}/")}


def is_document(name: str, state_name: str) -> bool:
    """Return whether a file of this *name* in a run's folder is a document of the run.

    *state_name* is what state.json is called there.
    """
    return _DOCUMENT.fullmatch(name) is not None and name not in (HEAD, REMOTE, state_name)


def read_tree(objects: Objects, commit: str, state_name: str) -> RunTree | None:
    """Return what *commit* holds of a run, or None if there is no such commit here.

    What a run does not have is left out, and so is what is no plain file; what state.json is
    called in the folder, *state_name*, is nothing that a branch may bring.

    Raises:
        Missing: a folder of it is not here.
    """
    top = objects.tree(f"{commit}^{{tree}}")
    if top is None:
        return None
    entries = {
        entry.name: entry.oid
        for entry in top
        if entry.is_plain
        and (
            entry.name in (HEAD, JOURNAL)
            or _ASIDE.fullmatch(entry.name)
            or is_document(entry.name, state_name)
        )
    }
    below = next((e for e in top if e.is_folder and e.name == results.NAME), None)
    for attempt in _folder(objects, below.oid) if below else ():
        if attempt.is_folder and results.attempt_of(attempt.name):
            for entry in _folder(objects, attempt.oid):
                if entry.is_plain and entry.name == results.OUTPUT:
                    entries[f"{results.NAME}/{attempt.name}/{entry.name}"] = entry.oid
    return RunTree(entries)


def _folder(objects: Objects, oid: str) -> list[TreeEntry]:
    found = objects.tree(oid)
    if found is None:
        raise Missing(oid)
    return found


_DEPTH = "Depth: "


class Stand(Struct, frozen=True):
    """A commit of the branch, and what it holds."""

    commit: str
    tree: RunTree | None
    """None: it is not in this repository any more."""
    revision: int
    depth: int
    """Commits since the history began."""


class Replica:
    """The folder of one run, as a copy of its branch; every write is under the run's lock."""

    def __init__(self, state_path: Path, objects: Objects, ref: str, max_commits: int) -> None:
        """Keep the folder of *state_path* as the branch has it, with what *objects* has.

        What is committed is written there, and *ref* keeps the last commit. After *max_commits*
        the history starts again, with the same files; 0: never.
        """
        self.folder = state_path.parent
        self._state_name = state_path.name
        self._objects = objects
        self._ref = ref
        self.max_commits = max_commits
        self.notices: list[str] = []
        """What a person should know, until somebody takes it."""
        self._hashed: dict[str, tuple[object, str]] = {}

    # --- what is here --------------------------------------------------------------

    def journal(self) -> bytes:
        """Return the journal as it is here; empty if there is none."""
        return self._bytes(JOURNAL) or b""

    def revision(self) -> int:
        """Return the revision of the last record here that can be read; 0: none."""
        last = _last(self.journal())
        return last["revision"] if last else 0

    def aside(self) -> set[str]:
        """Return the names of the journals that were put aside here."""
        return {name for name in self._names() if _ASIDE.fullmatch(name)}

    def documents(self) -> set[str]:
        """Return the names of the documents that are here."""
        return {name for name in self._names() if is_document(name, self._state_name)}

    def outputs(self) -> set[str]:
        """Return the paths of the outputs that are here."""
        folder = self.folder / results.NAME
        return {
            f"{results.NAME}/{name}/{results.OUTPUT}"
            for name in folders.names(folder)
            if results.attempt_of(name) and signature(folder / name / results.OUTPUT)
        }

    def read(self, name: str, max_bytes: int = MAX_BYTES) -> bytes | None:
        """Return the file *name*, or None if it is missing, no plain file or too large."""
        with contextlib.suppress(CorruptState, NotADirectoryError):
            data = self._bytes(name, max_bytes)
            return data if data is None or len(data) <= max_bytes else None
        return None

    def _bytes(self, name: str, max_bytes: int | None = None) -> bytes | None:
        try:
            return read_regular(self.folder / name, 0, max_bytes)
        except FileNotFoundError:
            return None

    def _names(self) -> Iterator[str]:
        yield from folders.names(self.folder)

    # --- what the branch has -------------------------------------------------------

    def follow(self, tree: RunTree, known: RunTree | None, branch: str) -> bool:
        """Make the files here those of *tree*; return whether the journal was changed.

        *known* is the tree that the folder was a copy of, None if it never was. A state.json
        that somebody has edited is left alone: the file store judges it by the journal.

        Raises:
            CorruptState: the branch holds no run, or another one than the folder.
            Missing: a file of it is not in this repository; once more when it is.
        """
        theirs = self._content(tree, JOURNAL)
        if theirs is None or _last(theirs) is None:
            raise CorruptState(
                "has no run: its journal is missing or can't be read",
                where=f"branch {branch}",
                hint="set store.branch to another branch, or remove this one if nothing is on it",
            )
        ours = self.journal()
        is_new = theirs != ours
        if is_new:
            self._ensure_contained(ours, theirs, tree, known, branch)
        state, is_edited = self._content(tree, HEAD), self._is_edited(ours)
        folders.made(self.folder)
        # The journal last: what it speaks of is there before anybody can read of it.
        for name in sorted(tree.entries.keys() - {HEAD, JOURNAL}):
            self._bring(tree, known, name)
        if is_new:
            self._write_journal(ours, theirs)
            if state is not None and not is_edited:
                folders.put(self.folder / self._state_name, state, durably=False)
        for name in (self.aside() - tree.aside()) | self._dropped(tree, known):
            with contextlib.suppress(OSError):
                folders.remove(self.folder / name)
        return is_new

    def _is_edited(self, journal: bytes) -> bool:
        """Return whether state.json is something else than *journal* says, or said before.

        It is behind where a process was killed before it replaced the file.
        """
        there = self.read(self._state_name, MAX_HEAD_BYTES)
        if there is None:
            return (self.folder / self._state_name).exists()
        with contextlib.suppress(ValueError):
            head = parse_object(there)
            return not any(record["head"] == head for record in _records(journal))
        return True

    def _dropped(self, tree: RunTree, known: RunTree | None) -> set[str]:
        """Return the documents that the branch had and has no more."""
        return known.documents() - tree.documents() if known is not None else set()

    def _ensure_contained(
        self, ours: bytes, theirs: bytes, tree: RunTree, known: RunTree | None, branch: str
    ) -> None:
        """Return if the run here is the beginning of the branch's, and that has no holes."""
        where, last = f"branch {branch}", _last(ours)
        # What is here already was looked at when it came.
        goes_on = last is not None and ours.endswith(b"\n") and theirs.startswith(ours)
        start, expected = (len(ours), last["revision"] + 1) if goes_on and last else (0, None)
        try:
            there = scan(theirs[start:], start, expected, where).winners
        except CorruptState as damage:
            raise _broken(f"has a damaged journal: {damage.message}", where) from damage
        if last is None or not there:
            return
        run_id, newest = self._run_id(ours), there[-1].data["head"].get("run_id")
        if run_id != newest:
            raise CorruptState(
                "has a different run than this folder (their run_id differs)",
                where=where,
                hint=f"to take the branch's, move {self.folder} away; to keep this one, "
                "set store.branch to a branch of its own",
            )
        here = {} if goes_on else _lines(ours)
        rewritten = {
            name
            for name in (tree.aside() & known.aside() if known is not None else ())
            if known is not None and tree.entries[name] != known.entries[name]
        }
        lines, newest_here = {record.revision: record.line for record in there}, last["revision"]
        is_far = not goes_on and newest_here < min(lines)
        for name in sorted(tree.aside(), reverse=True) if is_far else ():
            lines |= _lines(self._content(tree, name) or b"")
            if min(lines) <= newest_here:
                break
        # What is older than all that the branch keeps can't be compared, if it keeps any.
        oldest = min(lines) if tree.aside() else 0
        is_same = all(lines.get(n) == line for n, line in here.items() if n >= oldest)
        if rewritten or not is_same:
            raise _broken(
                f"does not continue from revision {newest_here} of this clone: someone has "
                "reset it or overwritten it",
                where,
            )

    @staticmethod
    def _run_id(journal: bytes) -> object:
        last = _last(journal)
        return last["head"].get("run_id") if last is not None else None

    def _bring(self, tree: RunTree, known: RunTree | None, name: str) -> None:
        path = self.folder / name
        is_same = known is not None and known.entries.get(name) == tree.entries[name]
        if is_same and path.is_file():
            return
        data = self._content(tree, name)
        if data is None or self.read(name, len(data)) == data:
            return
        folders.made(path.parent)
        folders.put(path, data)

    def _write_journal(self, ours: bytes, theirs: bytes) -> None:
        """Make the journal *theirs*; what a power loss takes of it comes from the branch again."""
        path = self.folder / JOURNAL
        if ours and theirs.startswith(ours):
            fd = folders.open_file(path, os.O_WRONLY | os.O_APPEND)
            try:
                os.write(fd, theirs[len(ours) :])
            finally:
                os.close(fd)
        else:
            folders.put(path, theirs, durably=False)

    def _content(self, tree: RunTree, name: str) -> bytes | None:
        oid = tree.entries.get(name)
        return None if oid is None else self._objects.needed(oid, "blob")

    # --- commits -------------------------------------------------------------------

    def write(self, draft: Draft, stand: Stand | None) -> Stand:
        """Write the commit of *draft* on top of *stand*; return where it is.

        Raises:
            GitFailed: nothing can be written here.
        """
        before = stand.tree if stand is not None and stand.tree is not None else RunTree({})
        files = self._files(draft, before, stand)
        depth = 0 if stand is None else stand.depth + 1
        if stand is not None and self.max_commits and depth >= self.max_commits:
            depth = 0
        old = None if stand is None else stand.commit
        commit = self._objects.write(
            CommitDraft(
                _message(draft, depth),
                parent=old if depth else None,
                base=None if depth else old,
                files=files,
                at=_epoch(draft.head.last_update),
            ),
            self._ref,
        )
        entries = {name: oid for name, oid in before.entries.items() if name not in files}
        chars = len(commit)
        entries |= {n: blob_name(data, chars) for n, data in files.items() if data is not None}
        return Stand(commit, RunTree(entries), draft.head.revision, depth)

    def _files(self, draft: Draft, before: RunTree, stand: Stand | None) -> dict[str, bytes | None]:
        """Return what differs from the commit *before*: paths and contents, None for removed."""
        journal = self.journal() + draft.closing + draft.line
        files: dict[str, bytes | None] = {HEAD: draft.content, JOURNAL: journal}
        aside, here = self.aside(), self.documents()
        for name in sorted(aside - before.aside()):
            files[name] = self.read(name, MAX_JOURNAL_BYTES)
        for name in sorted(here):
            if stand is None or self._differs(name, before, len(stand.commit)):
                files[name] = self.read(name)
        here_results = self.folder / results.NAME
        for fact in draft.transition.facts:
            attempt = results.folder(here_results, fact.step_index, fact.token).name
            name = f"{results.NAME}/{attempt}/{results.OUTPUT}"
            if name not in before.entries and (data := self._output(name)):
                files[name] = data
        removed = (before.aside() - aside) | (before.documents() - here)
        if aside - before.aside():
            # With the records of a journal that was put aside long ago, outputs go as well.
            removed |= before.outputs() - self.outputs()
        return files | dict.fromkeys(sorted(removed))

    def _output(self, name: str) -> bytes | None:
        data = self.read(name, MAX_OUTPUT_BYTES)
        if data is None and signature(self.folder / name):
            self.notices.append(
                f"{self.folder / name} has more than {MAX_OUTPUT_BYTES} bytes: other "
                "machines do not get it"
            )
        return data

    def _differs(self, name: str, before: RunTree, chars: int) -> bool:
        """Return whether the document *name* is another one here than in *before*."""
        mark = signature(self.folder / name)
        known = self._hashed.get(name)
        if known is None or known[0] != mark:
            data = self.read(name)
            known = (mark, "" if data is None else blob_name(data, chars))
            self._hashed[name] = known
        return bool(known[1]) and known[1] != before.entries.get(name)


def holds(journal: bytes, line: bytes) -> bool:
    """Return whether the record *line*, newline included, is in *journal*."""
    return line[:-1] in journal.split(b"\n")


def _records(journal: bytes) -> Iterator[dict[str, Any]]:
    """Yield the records of *journal* that can be read, the newest first."""
    for line in reversed(journal.split(b"\n")):
        with contextlib.suppress(ValueError):
            yield decode(line)


def _last(journal: bytes) -> dict[str, Any] | None:
    return next(_records(journal), None)


def _lines(journal: bytes) -> dict[int, bytes]:
    """Return the lines of the records in *journal* that can be read, by revision."""
    found: dict[int, bytes] = {}
    for line in journal.split(b"\n"):
        with contextlib.suppress(ValueError):
            # Of two with the same revision the first counts.
            found.setdefault(decode(line)["revision"], line)
    return found


def _broken(problem: str, where: str) -> CorruptState:
    return CorruptState(
        problem,
        where=where,
        hint="'sequencer sync --fetch' shows both sides; 'sequencer sync --take-theirs' sets the "
        "files here aside and takes the branch's",
    )


class Known(Frozen):
    """The last commit of the branch that was seen, and whose run it holds."""

    remote: str
    branch: str
    tip: Annotated[str, Field(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?$")]
    revision: Annotated[int, Field(strict=True)]
    at: str
    """When that was, for people."""


class KnownFile:
    """The file with what is known; replaced at once, under the lock of the run's folder."""

    def __init__(self, path: Path) -> None:
        """Keep it at *path*."""
        self.path = path
        self._seen: tuple[tuple[int, int, int], Known | None] | None = None

    def read(self) -> Known | None:
        """Return what is known; None: nothing, or nothing that can be read."""
        mark = signature(self.path)
        if mark is None:
            return None
        if self._seen is None or self._seen[0] != mark:
            self._seen = (mark, read_note(self.path, Known, 4096))
        return self._seen[1]

    def write(self, known: Known) -> None:
        """Remember *known*; what can't be written is found out again from the remote."""
        with contextlib.suppress(OSError):
            folders.made(self.path.parent)
            data = known.model_dump_json(indent=2).encode() + b"\n"
            folders.put(self.path, data, durably=False)


def depth_of(objects: Objects, commit: str) -> int:
    """Return how many commits of a run's history are behind *commit*, as its message says."""
    data = objects.read(commit, "commit") or b""
    for line in data.decode("utf-8", "replace").splitlines():
        if line.startswith(_DEPTH) and line[len(_DEPTH) :].isdecimal():
            return int(line[len(_DEPTH) :])
    return 0


def _message(draft: Draft, depth: int) -> str:
    told = ", ".join(str(fact.event) for fact in draft.transition.facts)
    fact, head = draft.transition.facts[0], draft.head
    lines = [
        f"{told}: {fact.step} (step_index {fact.step_index}, token {fact.token})",
        "",
        f"Run: {head.run_name or 'default'} {head.run_id}",
        f"Revision: {head.revision}",
        f"{_DEPTH}{depth}",
    ]
    return "\n".join(lines) + "\n"


def _epoch(at: str) -> int:
    try:
        return max(0, int(datetime.fromisoformat(at).timestamp()))
    except ValueError:
        return 0
