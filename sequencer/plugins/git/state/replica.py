"""The files of a run in a folder, and the same files in the tree of its branch.

The folder is a replica: its journal equals the branch's, or is the first part of it. Anyone who
may push can have written the branch, so this module checks its file names; the content is checked
when the files are read, as for any run. A commit holds the changes of one transition.
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
from sequencer.model.whole_numbers import parse_whole_number
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
_ROTATED = re.compile(r"journal-\d{6,9}\.jsonl")
_DOCUMENT = re.compile(r"(definition|flow|marking-[0-9a-f]{1,64})\.json")
"""The files of the folder that are shared; a cursor, for example, belongs to this clone."""
MAX_JOURNAL_BYTES = 2**30
MAX_OUTPUT_BYTES = 8 * 1024 * 1024
"""A larger output stays on the machine that made it."""


class RunTree(Struct, frozen=True):
    """The files in a commit of the state branch."""

    entries: dict[str, str]
    """Path -> git's object id."""

    def rotated_journals(self) -> set[str]:
        """Return the names of the rotated journals."""
        return {name for name in self.entries if _ROTATED.fullmatch(name)}

    def documents(self) -> set[str]:
        """Return the names of the run's documents."""
        return {name for name in self.entries if is_document(name, HEAD)}

    def outputs(self) -> set[str]:
        """Return the paths of all files of attempts: ``results/ATTEMPT/NAME``."""
        return {name for name in self.entries if name.startswith(f"{results.NAME}/")}


def is_document(name: str, state_name: str) -> bool:
    """Return whether a file called *name* in a run's folder is a document of the run.

    *state_name* is the name of state.json in that folder.
    """
    return _DOCUMENT.fullmatch(name) is not None and name not in (HEAD, REMOTE, state_name)


def read_tree(objects: Objects, commit: str, state_name: str) -> RunTree | None:
    """Return the files of a run in *commit*, or None if that commit is not in this repository.

    Leaves out files that do not belong to a run, and entries that are not plain files. A file
    called *state_name*, the name of state.json in the folder, may not come from the branch.

    Raises:
        Missing: a folder of the commit is not in this repository.
    """
    top = objects.list_tree(f"{commit}^{{tree}}")
    if top is None:
        return None
    entries = {
        entry.name: entry.oid
        for entry in top
        if entry.is_plain
        and (
            entry.name in (HEAD, JOURNAL)
            or _ROTATED.fullmatch(entry.name)
            or is_document(entry.name, state_name)
        )
    }
    outputs = next((entry for entry in top if entry.is_folder and entry.name == results.NAME), None)
    for attempt in _read_folder(objects, outputs.oid) if outputs else ():
        if attempt.is_folder and results.parse_attempt_name(attempt.name):
            for entry in _read_folder(objects, attempt.oid):
                if entry.is_plain and entry.name == results.OUTPUT:
                    entries[f"{results.NAME}/{attempt.name}/{entry.name}"] = entry.oid
    return RunTree(entries)


def _read_folder(objects: Objects, oid: str) -> list[TreeEntry]:
    entries = objects.list_tree(oid)
    if entries is None:
        raise Missing(oid)
    return entries


_DEPTH = "Depth: "


class BranchPosition(Struct, frozen=True):
    """A commit of the branch, and the run's files in it."""

    commit: str
    tree: RunTree | None
    """None: the commit is no longer in this repository."""
    revision: int
    depth: int
    """Number of commits since the history started."""


class Replica:
    """The folder of one run, as a copy of its branch; every write is under the run's lock."""

    def __init__(self, state_path: Path, objects: Objects, ref: str, max_commits: int) -> None:
        """Keep the folder of *state_path* equal to the branch, whose commits are in *objects*.

        New commits are written to *objects*, and *ref* points to the last one. After *max_commits*
        the history starts again with the same files; 0: never.
        """
        self.folder = state_path.parent
        self._state_name = state_path.name
        self._objects = objects
        self._ref = ref
        self.max_commits = max_commits
        self.notices: list[str] = []
        """Messages for a person; the caller that shows them clears the list."""
        self._hashed: dict[str, tuple[object, str]] = {}

    # --- the folder ----------------------------------------------------------------

    def read_journal(self) -> bytes:
        """Return the folder's journal; empty if there is none."""
        return self._read_bytes(JOURNAL) or b""

    def revision(self) -> int:
        """Return the revision of the folder's last readable record; 0: there is none."""
        last_record = _last_record(self.read_journal())
        return last_record["revision"] if last_record else 0

    def rotated_journals(self) -> set[str]:
        """Return the names of the folder's rotated journals."""
        return {name for name in self._names() if _ROTATED.fullmatch(name)}

    def documents(self) -> set[str]:
        """Return the names of the folder's documents."""
        return {name for name in self._names() if is_document(name, self._state_name)}

    def outputs(self) -> set[str]:
        """Return the outputs that exist in the folder: ``results/ATTEMPT/output.txt``."""
        folder = self.folder / results.NAME
        return {
            f"{results.NAME}/{name}/{results.OUTPUT}"
            for name in folders.list_names(folder)
            if results.parse_attempt_name(name) and signature(folder / name / results.OUTPUT)
        }

    def read(self, name: str, max_bytes: int = MAX_BYTES) -> bytes | None:
        """Return the content of *name*; None: it is missing, too large, or not a plain file."""
        with contextlib.suppress(CorruptState, NotADirectoryError):
            data = self._read_bytes(name, max_bytes)
            return data if data is None or len(data) <= max_bytes else None
        return None

    def _read_bytes(self, name: str, max_bytes: int | None = None) -> bytes | None:
        try:
            return read_regular(self.folder / name, 0, max_bytes)
        except FileNotFoundError:
            return None

    def _names(self) -> Iterator[str]:
        yield from folders.list_names(self.folder)

    # --- the branch ----------------------------------------------------------------

    def follow(self, tree: RunTree, known: RunTree | None, branch: str) -> bool:
        """Make the folder's files equal to *tree*; return whether the journal was changed.

        *known* is the tree that the folder was a copy of, None if it never was one. An edited
        state.json is left alone: the file store compares it with the journal.

        Raises:
            CorruptState: the branch holds no run, or not the folder's run.
            Missing: a file of *tree* is not in this repository; call again after a fetch.
        """
        remote_journal = self._read_blob(tree, JOURNAL)
        if remote_journal is None or _last_record(remote_journal) is None:
            raise CorruptState(
                "has no run: its journal is missing or can't be read",
                where=f"branch {branch}",
                hint="set store.branch to another branch, or remove this one if nothing is on it",
            )
        local_journal = self.read_journal()
        is_new = remote_journal != local_journal
        if is_new:
            self._ensure_contained(local_journal, remote_journal, tree, known, branch)
        state, is_edited = self._read_blob(tree, HEAD), self._is_edited(local_journal)
        folders.make_folder(self.folder)
        # The journal comes last, so that every file that it mentions exists by then.
        for name in sorted(tree.entries.keys() - {HEAD, JOURNAL}):
            self._copy_file(tree, known, name)
        if is_new:
            self._write_journal(local_journal, remote_journal)
            if state is not None and not is_edited:
                folders.write_atomically(self.folder / self._state_name, state, durably=False)
        for name in (self.rotated_journals() - tree.rotated_journals()) | self._find_dropped(
            tree, known
        ):
            with contextlib.suppress(OSError):
                folders.remove(self.folder / name)
        return is_new

    def _is_edited(self, journal: bytes) -> bool:
        """Return whether state.json equals the head of no record in *journal*.

        An older head counts as unedited: a process may be killed before it replaces the file.
        """
        content = self.read(self._state_name, MAX_HEAD_BYTES)
        if content is None:
            return (self.folder / self._state_name).exists()
        with contextlib.suppress(ValueError):
            head = parse_object(content)
            return not any(record["head"] == head for record in _parse_records(journal))
        return True

    def _find_dropped(self, tree: RunTree, known_tree: RunTree | None) -> set[str]:
        """Return the documents that the branch had and no longer has."""
        return known_tree.documents() - tree.documents() if known_tree is not None else set()

    def _ensure_contained(
        self, journal: bytes, data: bytes, tree: RunTree, base: RunTree | None, branch: str
    ) -> None:
        """Raise CorruptState unless *data*, of the branch, continues *journal* without gaps."""
        place, tail = f"branch {branch}", _last_record(journal)
        # The records that are here already were checked when they came.
        is_continuation = tail is not None and journal.endswith(b"\n") and data.startswith(journal)
        start, revision = (
            (len(journal), tail["revision"] + 1) if is_continuation and tail else (0, None)
        )
        try:
            records = scan(data[start:], start, revision, place).winners
        except CorruptState as damage:
            raise _broken_journal_error(
                f"has a damaged journal: {damage.message}", place
            ) from damage
        if tail is None or not records:
            return
        if self._parse_run_id(journal) != records[-1].data["head"].get("run_id"):
            raise CorruptState(
                "has a different run than this folder (their run_id differs)",
                where=place,
                hint=f"to take the branch's, move {self.folder} away; to keep this one, "
                "set store.branch to a branch of its own",
            )
        own_lines = {} if is_continuation else _lines_by_revision(journal)
        names = {
            name
            for name in (
                tree.rotated_journals() & base.rotated_journals() if base is not None else ()
            )
            if base is not None and tree.entries[name] != base.entries[name]
        }
        lines = {record.revision: record.line for record in records}
        own_revision = tail["revision"]
        is_far_behind = not is_continuation and own_revision < min(lines)
        for name in sorted(tree.rotated_journals(), reverse=True) if is_far_behind else ():
            lines |= _lines_by_revision(self._read_blob(tree, name) or b"")
            if min(lines) <= own_revision:
                break
        # If the branch rotates its journal, records older than all that it keeps can't be compared.
        limit = min(lines) if tree.rotated_journals() else 0
        is_same = all(lines.get(n) == line for n, line in own_lines.items() if n >= limit)
        if names or not is_same:
            raise _broken_journal_error(
                f"does not continue from revision {own_revision} of this clone: someone has "
                "reset it or overwritten it",
                place,
            )

    @staticmethod
    def _parse_run_id(journal: bytes) -> object:
        last_record = _last_record(journal)
        return last_record["head"].get("run_id") if last_record is not None else None

    def _copy_file(self, tree: RunTree, known_tree: RunTree | None, name: str) -> None:
        path = self.folder / name
        is_same = known_tree is not None and known_tree.entries.get(name) == tree.entries[name]
        if is_same and path.is_file():
            return
        data = self._read_blob(tree, name)
        if data is None or self.read(name, len(data)) == data:
            return
        folders.make_folder(path.parent)
        folders.write_atomically(path, data)

    def _write_journal(self, local_journal: bytes, remote_journal: bytes) -> None:
        """Replace the journal, not durably: after a power loss the branch restores it."""
        path = self.folder / JOURNAL
        if local_journal and remote_journal.startswith(local_journal):
            fd = folders.open_file(path, os.O_WRONLY | os.O_APPEND)
            try:
                os.write(fd, remote_journal[len(local_journal) :])
            finally:
                os.close(fd)
        else:
            folders.write_atomically(path, remote_journal, durably=False)

    def _read_blob(self, tree: RunTree, name: str) -> bytes | None:
        oid = tree.entries.get(name)
        return None if oid is None else self._objects.read_required(oid, "blob")

    # --- commits -------------------------------------------------------------------

    def write(self, draft: Draft, position: BranchPosition | None) -> BranchPosition:
        """Write the commit of *draft* on top of *position*; return its position.

        Raises:
            GitFailed: git can't write to this repository.
        """
        old_tree = (
            position.tree if position is not None and position.tree is not None else RunTree({})
        )
        files = self._collect_changes(draft, old_tree, position)
        depth = 0 if position is None else position.depth + 1
        if position is not None and self.max_commits and depth >= self.max_commits:
            depth = 0
        old_commit = None if position is None else position.commit
        commit = self._objects.write(
            CommitDraft(
                _commit_message(draft, depth),
                parent=old_commit if depth else None,
                base=None if depth else old_commit,
                files=files,
                at=_parse_epoch(draft.head.last_update),
            ),
            self._ref,
        )
        entries = {name: oid for name, oid in old_tree.entries.items() if name not in files}
        chars = len(commit)
        entries |= {n: blob_name(data, chars) for n, data in files.items() if data is not None}
        return BranchPosition(commit, RunTree(entries), draft.head.revision, depth)

    def _collect_changes(
        self, draft: Draft, old_tree: RunTree, position: BranchPosition | None
    ) -> dict[str, bytes | None]:
        """Return the files that differ from *old_tree*: path -> content, None if it is removed."""
        journal = self.read_journal() + draft.closing + draft.line
        files: dict[str, bytes | None] = {HEAD: draft.content, JOURNAL: journal}
        rotated_names, documents = self.rotated_journals(), self.documents()
        for name in sorted(rotated_names - old_tree.rotated_journals()):
            files[name] = self.read(name, MAX_JOURNAL_BYTES)
        for name in sorted(documents):
            if position is None or self._is_changed(name, old_tree, len(position.commit)):
                files[name] = self.read(name)
        results_folder = self.folder / results.NAME
        for fact in draft.transition.facts:
            attempt = results.attempt_folder(results_folder, fact.step_index, fact.token).name
            name = f"{results.NAME}/{attempt}/{results.OUTPUT}"
            if name not in old_tree.entries and (data := self._read_output(name)):
                files[name] = data
        removed_names = (old_tree.rotated_journals() - rotated_names) | (
            old_tree.documents() - documents
        )
        if rotated_names - old_tree.rotated_journals():
            # Removing old rotated journals also removes the outputs of their records.
            removed_names |= old_tree.outputs() - self.outputs()
        return files | dict.fromkeys(sorted(removed_names))

    def _read_output(self, name: str) -> bytes | None:
        data = self.read(name, MAX_OUTPUT_BYTES)
        if data is None and signature(self.folder / name):
            self.notices.append(
                f"{self.folder / name} has more than {MAX_OUTPUT_BYTES} bytes: other "
                "machines do not get it"
            )
        return data

    def _is_changed(self, name: str, old_tree: RunTree, chars: int) -> bool:
        """Return whether the folder's document *name* differs from the one in *old_tree*."""
        mark = signature(self.folder / name)
        record = self._hashed.get(name)
        if record is None or record[0] != mark:
            data = self.read(name)
            record = (mark, "" if data is None else blob_name(data, chars))
            self._hashed[name] = record
        return bool(record[1]) and record[1] != old_tree.entries.get(name)


def has_record(journal: bytes, line: bytes) -> bool:
    """Return whether the record *line*, with its newline, is in *journal*."""
    return line[:-1] in journal.split(b"\n")


def _parse_records(journal: bytes) -> Iterator[dict[str, Any]]:
    """Yield the readable records of *journal*, the newest first."""
    for line in reversed(journal.split(b"\n")):
        with contextlib.suppress(ValueError):
            yield decode(line)


def _last_record(journal: bytes) -> dict[str, Any] | None:
    return next(_parse_records(journal), None)


def _lines_by_revision(journal: bytes) -> dict[int, bytes]:
    """Return the lines of the readable records in *journal*, by revision."""
    lines: dict[int, bytes] = {}
    for line in journal.split(b"\n"):
        with contextlib.suppress(ValueError):
            # If two records have the same revision, the first one wins.
            lines.setdefault(decode(line)["revision"], line)
    return lines


def _broken_journal_error(problem: str, place: str) -> CorruptState:
    return CorruptState(
        problem,
        where=place,
        hint="'sequencer sync --fetch' shows both sides; 'sequencer sync --take-theirs' sets the "
        "files here aside and takes the branch's",
    )


class LastSeenCommit(Frozen):
    """The last commit of the branch that this clone has seen."""

    remote: str
    branch: str
    tip: Annotated[str, Field(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?$")]
    revision: Annotated[int, Field(strict=True)]
    at: str
    """When it was seen, for people."""


class KnownFile:
    """The file with a `LastSeenCommit`; replaced atomically, under the lock of the run's folder."""

    def __init__(self, path: Path) -> None:
        """Use the file at *path*."""
        self.path = path
        self._seen: tuple[tuple[int, int, int], LastSeenCommit | None] | None = None

    def read(self) -> LastSeenCommit | None:
        """Return the content, or None if the file does not exist or can't be read."""
        mark = signature(self.path)
        if mark is None:
            return None
        if self._seen is None or self._seen[0] != mark:
            self._seen = (mark, read_note(self.path, LastSeenCommit, 4096))
        return self._seen[1]

    def write(self, known: LastSeenCommit) -> None:
        """Write *known*. A failed write does no harm: the remote has the same facts."""
        with contextlib.suppress(OSError):
            folders.make_folder(self.path.parent)
            data = known.model_dump_json(indent=2).encode() + b"\n"
            folders.write_atomically(self.path, data, durably=False)


def read_depth(objects: Objects, commit: str) -> int:
    """Return the number of commits before *commit* in its history, from its message."""
    data = objects.read(commit, "commit") or b""
    for line in data.decode("utf-8", "replace").splitlines():
        if line.startswith(_DEPTH):
            depth = parse_whole_number(line.removeprefix(_DEPTH))
            if depth is not None:
                return depth
    return 0


def _commit_message(draft: Draft, depth: int) -> str:
    events = ", ".join(str(fact.event) for fact in draft.transition.facts)
    fact, head = draft.transition.facts[0], draft.head
    lines = [
        f"{events}: {fact.step} (step_index {fact.step_index}, token {fact.token})",
        "",
        f"Run: {head.run_name or 'default'} {head.run_id}",
        f"Revision: {head.revision}",
        f"{_DEPTH}{depth}",
    ]
    return "\n".join(lines) + "\n"


def _parse_epoch(time_text: str) -> int:
    try:
        return max(0, int(datetime.fromisoformat(time_text).timestamp()))
    except ValueError:
        return 0
