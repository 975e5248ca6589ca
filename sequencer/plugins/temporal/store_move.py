"""Moves a run to a Temporal server, or back into files.

The run is closed in its old store before it starts in the new one, so it is never in two stores.
If the command is interrupted, the same command continues. If the new store refuses the run
permanently, the run is opened again in the old one.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct
from temporalio.service import RPCError, RPCStatusCode

from sequencer.errors import RemoteUnreachable, SequencerError, TransitionRefused, UsageRefused
from sequencer.model.head import Head
from sequencer.model.limits import format_utc_s
from sequencer.model.store_move import (
    close_run,
    confirm_arrival,
    ensure_here,
    has_arrived,
    reopen_run,
)
from sequencer.model.transitions import Transition
from sequencer.plugins.temporal.client import FleetStore
from sequencer.plugins.temporal.export import export_run, read_documents
from sequencer.plugins.temporal.wire import (
    ANSWER_BYTES,
    BEFORE,
    ensure_documents_fit,
    measure_documents,
)
from sequencer.store import results
from sequencer.store.file import FileStore
from sequencer.store.folder import list_names, read_regular
from sequencer.store.protocol import Store
from sequencer.store.run_import import RunImport

PAST_BYTES = 512 * 1024
"""Limit of the history that travels, and of a graph's outputs; the newest come first."""


class Side(Struct, frozen=True):
    """One of the two stores that a run moves between."""

    store: Store
    kind: str

    @property
    def words(self) -> str:
        """Return where the run is in this store."""
        if isinstance(self.store, FleetStore):
            return f"{self.kind}: {self.store.id} at {self.store.options.address}"
        return f"{self.kind}: {self.store.state_path.parent.absolute()} on {socket.gethostname()}"


def move(source: Side, target: Side) -> Head:
    """Bring the run in *source* to *target*; return the head that it has there.

    Raises:
        ClaimHeld: a process works on it.
        TransitionRefused: it was never started, has moved elsewhere, or *target* has another run.
        StorageFailed: it is too large.
        RemoteUnreachable: the server does not answer; calling this again continues.
    """
    bring = _choose_mover(source, target)
    head = source.store.view().head
    if head is None:
        raise TransitionRefused("the run was never started, so there is nothing to move")
    if head.moved_to is not None and (head.moved_to != target.words or has_arrived(head)):
        ensure_here(head)
    target_head = _read_arrived_head(target, head)
    if target_head is not None:
        is_same = target_head.run_id == head.run_id
        if is_same and head.moved_to is not None and target_head.moved_to is None:
            return _note_arrival(source, target_head)
        _ensure_left(target_head, head, target)
    if isinstance(target.store, FleetStore):
        documents = read_documents(source.store, head)
        ensure_documents_fit(
            measure_documents({name: data.decode() for name, data in documents.items()})
        )
    if head.moved_to is None:
        head = source.store.update(partial(_make_closing, where=target.words))
    # A run in git has its commits on the remote; a run in files has nothing there.
    work = head.work if isinstance(target.store, FleetStore) else None
    opening = reopen_run(head, f"moved here from {source.words}", work, at=_now())
    return _note_arrival(source, bring(head, opening))


def _choose_mover(source: Side, target: Side) -> Callable[[Head, Transition], Head]:
    """Return the function that brings a closed run from *source* to *target*.

    Raises:
        UsageRefused: these stores can't exchange runs.
    """
    if isinstance(target.store, FleetStore) and not isinstance(source.store, FleetStore):
        return partial(_move_to_server, source.store, target.store)
    if isinstance(source.store, FleetStore) and isinstance(target.store, FileStore):
        return partial(_move_to_files, source.store, target.store)
    raise UsageRefused(
        f"you can't move a run from a {source.kind} store to a {target.kind} store",
        hint="runs in files or git move to Temporal, and from there into files",
    )


def _read_arrived_head(target: Side, head: Head) -> Head | None:
    """Return the head in *target*; None: there is no run, or this one has partly arrived."""
    if isinstance(target.store, FileStore) and RunImport(target.store, head.run_id).is_free():
        return None
    return target.store.view().head


def _ensure_left(target_head: Head, head: Head, target: Side) -> None:
    """Check that *target_head* is the closed copy that the run of *head* left in *target*.

    Raises:
        TransitionRefused: it is another run, or the run has continued from that copy.
    """
    if target_head.run_id == head.run_id and target_head.moved_to is not None:
        # If *head* is not closed yet, closing it will add one revision.
        if target_head.revision < head.revision + (head.moved_to is None):
            return
        ensure_here(target_head)
    raise TransitionRefused(
        f"a run is already there, at revision {target_head.revision}",
        where=target.words,
        hint="give one of them another name, or move that one away",
    )


def _make_closing(head: Head | None, *, where: str) -> Transition | None:
    if head is None:
        raise TransitionRefused("the run was never started, so there is nothing to move")
    return None if head.moved_to == where else close_run(head, where, at=_now())


def _note_arrival(source: Side, new_head: Head) -> Head:
    """Note in the copy in *source* that the run has arrived as *new_head*; return *new_head*."""
    if not isinstance(source.store, FleetStore):
        # On the server, closing ended the run, and it accepts no more changes.
        source.store.update(_make_confirmation)
    return new_head


def _make_confirmation(head: Head | None) -> Transition | None:
    is_closed = head is not None and head.moved_to is not None
    return confirm_arrival(head, at=_now()) if head is not None and is_closed else None


# --- to the server -----------------------------------------------------------------


def _move_to_server(source: Store, server: FleetStore, head: Head, opening: Transition) -> Head:
    new_head = opening.head.replace(revision=head.revision + 1, journal_offset=0)
    folder = source.state_path.parent
    state: dict[str, Any] = {BEFORE: _collect_history(source, folder)}
    if head.needs_every_output:
        state["outputs"] = _outputs(folder)
    documents = read_documents(source, head)
    try:
        is_new = server.receive_run(Transition(new_head, opening.facts), documents, state)
    except RemoteUnreachable as error:
        cause = error.__cause__
        if isinstance(cause, RPCError) and cause.status is RPCStatusCode.INVALID_ARGUMENT:
            source.update(partial(_make_opening, note="not moved: the server does not take it"))
            raise UsageRefused(f"the server does not accept the run: {cause}") from error
        raise
    if not is_new:
        server_head = server.view().head
        if server_head is not None and server_head.run_id == head.run_id:
            # Another process ran the same command.
            ensure_here(server_head)
            return server_head
        source.update(partial(_make_opening, note="not moved: another run was started there"))
        raise TransitionRefused("another run was started there in the meantime", where=server.id)
    return new_head


def _make_opening(head: Head | None, *, note: str) -> Transition | None:
    is_closed = head is not None and head.moved_to is not None
    return reopen_run(head, note, head.work, at=_now()) if head is not None and is_closed else None


def _collect_history(store: Store, folder: Path) -> list[dict[str, Any]]:
    """Return the newest facts of the run in *store* with their outputs, up to `PAST_BYTES`."""
    facts: list[dict[str, Any]] = []
    room = PAST_BYTES
    for record in reversed(list(store.history())):
        fact = _with_output(record, folder)
        room -= _size(fact)
        if room < 0:
            break
        facts.insert(0, fact)
    else:
        return facts
    # Leave out the oldest revision: some of its facts may be missing.
    first_revision = facts[0]["revision"] if facts else 0
    return [fact for fact in facts if fact["revision"] > first_revision]


def _size(value: object) -> int:
    """Return the size of *value* in bytes when it is sent to the server."""
    return len(json.dumps(value))


def _with_output(fact: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return *fact* with its output instead of the file's name, if the output is small enough."""
    outcome = fact["outcome"] or {}
    name = results.extract_attempt_name(outcome.get("output_file"))
    output = None if name is None else _output(folder / results.NAME / name)
    if output is None:
        return fact
    file_keys = ("output_file", "output_bytes")
    rest = {key: value for key, value in outcome.items() if key not in file_keys}
    return {**fact, "outcome": {**rest, "output": output}}


def _output(folder: Path) -> str | None:
    """Return the output in the *folder* of an attempt; None if there is none or it is too large."""
    with contextlib.suppress(OSError, SequencerError):
        data = read_regular(folder / results.OUTPUT, max_bytes=ANSWER_BYTES)
        if len(data) <= ANSWER_BYTES and results.is_intact(folder / results.OUTPUT, data):
            return data.decode("utf-8", "replace")
    return None


def _outputs(folder: Path) -> dict[str, str]:
    """Return the newest outputs in the *folder* of a graph's run, which may need any of them."""
    attempts = [
        (results.parse_attempt_name(name), name) for name in list_names(folder / results.NAME)
    ]
    outputs: dict[str, str] = {}
    room = PAST_BYTES
    by_token = ((attempt[1], name) for attempt, name in attempts if attempt)
    for _, name in sorted(by_token, reverse=True):
        output = _output(folder / results.NAME / name) or ""
        room -= _size(output)
        if output and room >= 0:
            outputs[name] = output
    return outputs


# --- into files --------------------------------------------------------------------


def _move_to_files(server: FleetStore, files: FileStore, head: Head, opening: Transition) -> Head:
    run = export_run(server)
    run_import = RunImport(files, head.run_id)
    return run_import.write(run.journal_lines, head, opening, run.documents, run.outputs)


def _now() -> str:
    return format_utc_s(datetime.now(UTC))
