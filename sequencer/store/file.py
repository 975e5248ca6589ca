"""A run in files on this machine, under a kernel lock.

The journal is the commit point: a transition is accepted when its line is durable and is the
first with its revision. state.json is a readable copy, written afterwards. The lock keeps writers
apart for the milliseconds of a transition. If someone deletes the lock file, the journal's
compare-and-swap still lets only one of two writers win.

Not promised: safety on a network file system, where locks and renames may not reach other
machines.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from sequencer.errors import (
    CorruptState,
    EditRefused,
    RecordRefused,
    StateRefused,
    StorageFailed,
)
from sequencer.frozen.base import encode_json
from sequencer.history.facts import list_facts
from sequencer.model.edits import accept_file
from sequencer.model.head import Claim, Head, Owner
from sequencer.model.transitions import Transition, initialize
from sequencer.store import documents, results
from sequencer.store import folder as folders
from sequencer.store import head as headfile
from sequencer.store.highwater import HighWaterMark
from sequencer.store.identity import this_process, utc_now
from sequencer.store.journal import (
    CLOSING,
    JournalFile,
    JournalMoved,
    Record,
    encode,
    ensure_readable,
    fact_fields,
)
from sequencer.store.leases import Leases
from sequencer.store.lock import RunLock
from sequencer.store.ownership import explain_refusal
from sequencer.store.protocol import Agreement, Change, Draft, Liveness, Peer, View
from sequencer.store.queue import WaitQueue, queue_file_name
from sequencer.store.reading import (
    READ_ATTEMPTS,
    ProgressEvidence,
    RunFiles,
    no_progress_evidence,
    unstable_files_error,
)
from sequencer.store.recovery import Recovered, digest, ensure_no_older_copy, follow, recover
from sequencer.store.watch import Watch, wait_for_other_revision, watch

MAX_LOST_RACES = 1_000
_HINT = "free disk space or fix the permissions, then start again"

Migrate = Callable[[dict[str, Any]], Head]
"""From another program's state to a head at revision 0."""
_Mark = tuple[int, int, int]
_Signature = tuple[_Mark | None, _Mark | None]
"""Of state.json (inode, mtime, size) and of the journal (device, inode, size)."""


def _record_nothing(head: Head) -> tuple[str, ...]:
    """Record nothing: the store has no high-water mark."""
    del head
    return ()


NOT_RECORDED = -1
"""The revision of an unrecorded edit by hand: a process that waits for a change must wake."""


class FileStore:
    """One run's folder; see `protocol.Store`."""

    def __init__(
        self,
        state_path: Path,
        *,
        ttl_s: float = 60.0,
        allow_network_fs: bool = False,
        rotate_bytes: int = 4 * 1024 * 1024,
        keep: int = 8,
        migrate: Migrate | None = None,
        peer: Peer | None = None,
        lock_timeout_s: float | None = None,
        progress: ProgressEvidence = no_progress_evidence,
        mark: HighWaterMark | None = None,
        redact: Callable[[str], str] = str,
    ) -> None:
        """Use the folder of *state_path*; nothing is created before the first transition.

        A *peer* has to agree to every transition. *progress* gives the evidence in the step logs;
        it is called only when all files have to be read. The *mark* records outside of the folder
        how far the run has come; a peer compares it itself, once it knows the newest state.
        *redact* removes secrets from an edit by hand.
        """
        self.ttl_s, self.retry_for_s = ttl_s, 0.0
        self.folder = state_path.parent
        self._state_path = state_path
        self._state_name = str(self._state_path)
        self._pending: _Signature | None = None
        """Signature of the files when an unrecorded edit was last found."""
        self._migrate, self._redact = migrate, redact
        self._peer, self._mark = peer, mark
        self._evidence = progress if mark is None or peer is not None else mark.prepend_to(progress)
        self._note = _record_nothing if mark is None else mark.record_head
        self._journal = JournalFile(self.folder, rotate_bytes, keep)
        self.leases = Leases(self.folder / "beats")
        self._results = self.folder / results.NAME
        self._lock = RunLock(
            state_path.with_name(f"{state_path.name}.lock"),
            allow_network_fs=allow_network_fs,
            timeout_s=lock_timeout_s,
        )
        self._watch: Watch | None = None
        self._cached: tuple[_Signature, Recovered] | None = None
        self._is_swept = False
        self._notices: list[str] = []
        self._published: list[int] = []
        """Descriptors of the versions of state.json that this process wrote, oldest first.

        Replacing a file that no process has open frees its blocks. That takes half a millisecond
        under the lock, and another process is already waiting for the lock.
        """

    def __repr__(self) -> str:
        """Return the class and the path of the head."""
        return f"<{type(self).__name__} {self._state_name}>"

    @property
    def state_path(self) -> Path:
        return self._state_path

    def close(self) -> None:
        """Free descriptors; the store may be used again."""
        self._journal.close()
        self._lock.close()
        self.leases.close()
        if self._mark is not None:
            self._mark.close()
        self._close_replaced(0)
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def take_notices(self) -> list[str]:
        """Return the notices since the last call: what was restored or edited by hand."""
        notices, self._notices = self._notices, []
        return notices

    def __del__(self) -> None:
        """Close the descriptors if `close` was not called."""
        with contextlib.suppress(OSError, AttributeError):
            self._close_replaced(0)

    def _close_replaced(self, left: int = 1) -> None:
        """Close the published versions, except the newest *left*; not under the lock."""
        replaced_fds = self._published[: -left or None]
        del self._published[: -left or None]
        for fd in replaced_fds:
            os.close(fd)

    # --- reading -------------------------------------------------------------------

    def view(self) -> View:
        try:
            view = self._read_view()
        except OSError as error:
            raise self._storage_failed("read", error) from error
        self._pending = self._signature() if view.has_edit else None
        return view

    def _read_view(self) -> View:
        for _ in range(READ_ATTEMPTS):
            signature = self._signature()
            if self._cached is not None and self._cached[0] == signature:
                return View(self._cached[1].head)
            try:
                recovery = self._follow_cached(signature) or recover(self._new_run_files())
                return self._build_view(recovery, signature)
            except (CorruptState, EditRefused):
                # A writer may have rotated or published between two of our reads.
                if self._signature() == signature:
                    raise
        raise unstable_files_error(self._state_path)

    def _new_run_files(self) -> RunFiles:
        return RunFiles(self._state_path, self._journal, self._evidence, self._redact)

    def _follow_cached(self, signature: _Signature) -> Recovered | None:
        """Return the state after simple changes since the last reading; None: see `follow`."""
        if self._cached is None:
            return None
        (_, old_signature), known_recovery = self._cached
        new_signature = signature[1]
        # The same journal file, and it has only grown.
        if (
            old_signature is None
            or new_signature is None
            or old_signature[:2] != new_signature[:2]
            or new_signature[2] < known_recovery.size
        ):
            return None
        return follow(self._state_path, self._journal, known_recovery)

    def _build_view(self, recovery: Recovered, signature: _Signature) -> View:
        head, notices = recovery.head, () if recovery.is_behind else recovery.notices
        if recovery.legacy is not None:
            head = self._migrate_legacy(recovery.legacy)
        elif recovery.edited is not None and head is not None:
            head = accept_file(head, recovery.edited, at=head.last_update).head
            notices = (f"{self._state_path} was edited by hand", *notices)
        elif not recovery.needs_publishing:
            self._cached = (signature, recovery)
        has_edit = recovery.edited is not None or recovery.keep_as == "edited"
        return View(head, notices, has_edit=has_edit)

    def history(self, after: int = 0) -> Iterator[dict[str, Any]]:
        for record in self._journal.read_records(after):
            yield from list_facts(record.data)

    def read_document(self, name: str) -> bytes | None:
        return documents.read(self.folder, name)

    def keep_document(self, name: str, data: bytes) -> None:
        documents.keep(self.folder, name, data)

    def forget_documents(self, prefix: str, keep: Collection[str]) -> None:
        documents.forget(self.folder, prefix, keep)

    def _signature(self) -> _Signature:
        return (headfile.signature(self._state_name), self._journal.signature())

    # --- writing -------------------------------------------------------------------

    def update(self, change: Change) -> Head:
        try:
            return self._update(change)
        except OSError as error:
            raise self._storage_failed("written", error) from error
        finally:
            self._close_replaced()

    def hold_lock(self) -> AbstractContextManager[None]:
        """Hold the lock of the run's folder for a block; not reentrant, see `RunLock`."""
        return self._lock

    def _storage_failed(self, verb: str, error: OSError) -> StorageFailed:
        location = str(error.filename or self.folder)
        reason, hint = explain_refusal(error, location, _HINT)
        return StorageFailed(f"can't be {verb}: {reason}", where=location, hint=hint)

    def _update(self, change: Change) -> Head:
        for _ in range(MAX_LOST_RACES):
            with self._lock:
                if self._peer is not None:
                    self._peer.catch_up()
                recovery = self.load()
                # Rotate before calling *change*: a second call reads a graph's marking again.
                is_large, last_record = recovery.size >= self._journal.rotate_bytes, recovery.last
                if is_large and last_record is not None and self._rotate(recovery, last_record):
                    continue
                transition = self._find_prior_transition(recovery) or change(recovery.head)
                if transition is None:
                    return self._require(recovery.head)
                accepted_head = self._accept(recovery, transition)
                if (
                    accepted_head is not None
                    and recovery.edited is None
                    and recovery.legacy is None
                ):
                    return accepted_head
        raise StorageFailed(
            f"lost {MAX_LOST_RACES} races for the journal in a row",
            where=str(self.folder),
            hint="something keeps removing state.json.lock; stop it, then start again",
        )

    @staticmethod
    def _require(head: Head | None) -> Head:
        if head is None:
            message = "the run was never started, so its first change has to create it"
            raise ValueError(message)
        return head

    def _find_prior_transition(self, recovery: Recovered) -> Transition | None:
        """Return the transition that must come first: an edit by hand, or a migration."""
        if recovery.edited is not None and recovery.head is not None:
            self._notices.append(f"{self._state_path} was edited by hand; the edit is recorded")
            return accept_file(recovery.head, recovery.edited, at=utc_now())
        return None if recovery.legacy is None else self._build_migration(recovery.legacy)

    def _migrate_legacy(self, legacy: dict[str, Any]) -> Head:
        """Return the head for the state of another program."""
        if self._migrate is None:
            raise CorruptState("is the state of another program", where=str(self._state_path))
        try:
            return self._migrate(legacy)
        except StateRefused as refusal:
            refusal.where = refusal.where or str(self._state_path)
            raise

    def _build_migration(self, legacy: dict[str, Any]) -> Transition:
        """Return the transition that starts a run from *legacy*; a copy of the file is kept."""
        head = self._migrate_legacy(legacy)
        copy = headfile.keep_copy(self._state_path, "before-migration")
        self._notices.append(f"{self._state_path} was migrated; the original is {copy.name}")
        fact = initialize(head).facts[0]
        # A crash before state.json is replaced must not look like an edit by hand.
        origin = {"note": f"the original is {copy.name}", "migrated_from": digest(legacy)}
        return Transition(head, (replace(fact, outcome=origin),))

    def load(self) -> Recovered:
        """Return the current state and bring state.json up to date; only under `hold_lock`."""
        signature = self._signature()
        if self._cached is not None and self._cached[0] == signature and self._is_swept:
            return self._cached[1]
        recovery = self._follow_cached(signature) if self._is_swept else None
        if recovery is not None and not recovery.needs_publishing:
            self._cached = (signature, recovery)
            return recovery
        recovery = self._recover_newest()
        if self._peer is None or recovery.keep_as:  # otherwise it follows the peer's state
            self._notices.extend(recovery.notices)
        if self._mark is not None and recovery.head is not None:
            self._notices.extend(self._mark.reconcile(recovery.head.run_id))
        self._sweep(recovery.head)
        self._is_swept = True
        if recovery.needs_publishing and recovery.head is not None:
            if recovery.keep_as:
                copy = headfile.keep_copy(self._state_path, recovery.keep_as)
                self._notices.append(f"the old {self._state_path} was kept as {copy.name}")
            # After a power loss no head may be ahead of the journal.
            self._journal.sync()
            self._publish(recovery.head)
            if recovery.keep_as == "edited":
                # Otherwise a power loss after the next append could bring the edit back, and it
                # would look like an edit of an older copy.
                folders.sync_folder(self.folder)
        elif recovery.edited is None and recovery.legacy is None:
            self._cached = (signature, recovery)
        return recovery

    def _recover_newest(self) -> Recovered:
        """Return the state from all files, including step logs."""
        for _ in range(READ_ATTEMPTS):
            signature = self._signature()
            try:
                recovery = recover(files := self._new_run_files())
                ensure_no_older_copy(files, recovery)
            except CorruptState:
                # If someone deleted the lock file, another process may write between two reads.
                if self._signature() == signature:
                    raise
            else:
                return recovery
        raise unstable_files_error(self._state_path)

    def _encode(self, head: Head, transition: Transition) -> tuple[bytes, bytes]:
        """Return the bytes of state.json for *head*, and the journal's line for *transition* to it.

        Raises:
            RecordRefused: no process could read one of them back.
        """
        facts = [fact_fields(fact) for fact in transition.facts]
        writing_id = None if self._peer is None else uuid.uuid4().hex
        try:
            head_json = encode_json(head)
            content = headfile.format_head(head_json)
            line = encode(head.revision, head.last_update, facts, head_json, writing_id)
            ensure_readable(line)
        except (ValueError, TypeError, RecursionError) as error:
            raise RecordRefused(
                f"the record of this change could not be read back: {error}",
                where=str(self._state_path),
                hint="nothing was changed; a value in it is too large, or is not text",
            ) from error
        return content, line

    def _accept(self, recovery: Recovered, transition: Transition) -> Head | None:
        """Append and publish; return None if another writer was first."""
        base = recovery.last.revision if recovery.last else 0
        offset = recovery.size + (len(CLOSING) if recovery.is_torn else 0)
        head = transition.head.replace(revision=base + 1, journal_offset=offset)
        content, line = self._encode(head, transition)
        if recovery.last is not None and not recovery.last.offset:
            self._journal.sync_names()
        if not self._lock.is_current():
            return None
        if self._peer is not None:
            closing_bytes = CLOSING if recovery.is_torn else b""
            draft = Draft(recovery.head, head, transition, content, line, closing_bytes)
            is_agreed = self._peer.propose(draft)
            if is_agreed is Agreement.LOST:
                return None
            if is_agreed is Agreement.OVERTAKEN or not self._append_agreed(line, offset, recovery):
                return head
            self._peer.confirm_append()
        elif not self._append(line, offset, is_torn=recovery.is_torn):
            return None
        self._notices += self._note(head)
        published_signature, size = self._publish(head, content), offset + len(line)
        record = Record(base + 1, offset, line[:-1], {"head": None})
        signature = (published_signature, self._journal.signature_at(size))
        self._cached = (signature, Recovered(head, record, size)) if published_signature else None
        if recovery.head is not None:
            for claim in recovery.head.claims:
                if head.find_claim(claim.token) is None:
                    self.leases.remove_files(claim)
        return head

    def _rotate(self, recovery: Recovered, last_record: Record) -> bool:
        try:
            has_rotated = self._journal.rotate_if_large(last_record, recovery.size)
        except OSError as error:
            # A journal that grows is better than a run that stops.
            self._notices.append(f"{self._journal.path} can't be rotated: {error.strerror}")
            return False
        if has_rotated and not (recovery.head and recovery.head.needs_every_output):
            results.prune(self._results, self._oldest_token())
        return has_rotated

    def _append_agreed(self, line: bytes, offset: int, recovery: Recovered) -> bool:
        """Append what the peer accepted; if that fails, the peer delivers it next time."""
        try:
            return self._append(line, offset, is_torn=recovery.is_torn)
        except StorageFailed as error:
            self._notices.append(f"accepted, but not yet written here: {error.message}")
            return False

    def _append(self, line: bytes, offset: int, *, is_torn: bool) -> bool:
        # A torn line is closed in the same write.
        data, start = (CLOSING + line, offset - len(CLOSING)) if is_torn else (line, offset)
        try:
            if not start and self._journal.signature() is None:
                return self._journal.create(line)
            # If only a line that does not count came before ours, ours may have won anyway.
            return self._journal.append(data, start) or self._journal.has_line(line)
        except JournalMoved:
            return False
        except OSError as error:
            return self._resolve_failed_write(line, error)

    def _resolve_failed_write(self, line: bytes, error: OSError) -> bool:
        """Find out whether a write that failed was accepted after all."""
        self._journal.close()
        self._cached, verdict = None, "nothing was accepted"
        try:
            if self._journal.has_line(line):
                verdict = "can't tell whether the change was accepted"
                self._journal.sync()
                return True
        except CorruptState as problem:
            verdict = f"can't tell whether the change was accepted ({problem.message})"
        except OSError:
            pass
        location = str(self._journal.path)
        reason, hint = explain_refusal(error, location, _HINT)
        raise StorageFailed(f"{verdict}: {reason}", where=location, hint=hint) from error

    def _publish(self, head: Head, content: bytes | None = None) -> _Mark | None:
        """Replace state.json and return its signature; None: it could not be replaced."""
        try:
            path, parent_folder = self._state_path, self._lock.folder
            return headfile.write_head(path, head, content, parent_folder, self._published)
        except OSError as error:
            # The journal has accepted the transition; the head file follows at the next one.
            self._notices.append(f"{self._state_path} could not be replaced: {error.strerror}")
            return None

    def _sweep(self, head: Head | None) -> None:
        """Remove the temporary files and heartbeats of killed processes; only under the lock."""
        self.leases.sweep({claim.token for claim in head.claims} if head else set())
        folders.sweep(self.folder, headfile.make_leftover_filter(self._state_path.name))

    def _oldest_token(self) -> int:
        oldest_record = self._journal.read_oldest()
        # One record may accept a step and grant the token of the next.
        return (
            min((fact["token"] for fact in list_facts(oldest_record)), default=0)
            if oldest_record
            else 0
        )

    # --- claims and waiting --------------------------------------------------------

    def owner(self) -> Owner:
        return this_process()

    def liveness(self, claim: Claim) -> Liveness:
        return self.leases.liveness(claim)

    def beat(self, claim: Claim, number: int) -> None:
        self.leases.beat(claim, number)

    def find_result_folder(self, name: str) -> Path:
        return results.find_attempt_folder(self._results, name)

    def result_folder(self, step_index: int, token: int) -> Path:
        return results.attempt_folder(self._results, step_index, token)

    def wait(
        self,
        revision: int,
        timeout_s: float | None,
        *,
        wake_fd: int | None = None,
        claim: Claim | None = None,
        fds: Sequence[int] = (),
    ) -> bool:
        """Sleep until the head's revision differs from *revision*; return whether it does.

        False: *timeout_s* passed, *wake_fd* or one of *fds* became readable, or the holder of
        *claim* may have ended.
        """
        if self._watch is None:
            folders.make_folder(self.folder)
            self._watch = watch(self.folder, self._state_path.name)
        if self._published and not os.fstat(self._published[-1]).st_nlink:
            self._close_replaced(0)  # another process replaced it
        wakers = (*fds, *(() if wake_fd is None else (wake_fd,)))
        holder = None if claim is None else self.leases.open_holder(claim)
        return wait_for_other_revision(
            revision,
            self._read_revision,
            self._watch,
            timeout_s,
            fds=wakers,
            claim=claim,
            holder=holder,
        )

    def _read_revision(self) -> int:
        pending_revision, head = self._pending, self.view().head
        if self._pending not in (None, pending_revision):
            return NOT_RECORDED
        return head.revision if head else 0

    def wait_queue(self, positions: Collection[str]) -> WaitQueue:
        return WaitQueue(self.folder / queue_file_name(positions))
