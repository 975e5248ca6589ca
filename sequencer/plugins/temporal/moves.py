"""A run that goes to a Temporal server, or comes back into files.

First it is closed where it was, then it begins where it goes: so it is nowhere twice. Whoever
is stopped in between does the same again, which continues. What the other side refuses for good
opens the run again.
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
from sequencer.model.limits import utc
from sequencer.model.moving import closed, confirmed, ensure_here, has_arrived, opened
from sequencer.model.transitions import Transition
from sequencer.plugins.temporal.client import FleetStore
from sequencer.plugins.temporal.export import documents_of, exported
from sequencer.plugins.temporal.wire import ANSWER_BYTES, BEFORE, ensure_fitting, sizes_of
from sequencer.store import results
from sequencer.store.arrival import Arrival
from sequencer.store.file import FileStore
from sequencer.store.folder import names, read_regular
from sequencer.store.protocol import Store

PAST_BYTES = 512 * 1024
"""Of the history that travels, and the same of a graph's outputs; the newest go first."""


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
        ClaimHeld: somebody works on it.
        TransitionRefused: it was never begun, is elsewhere, or a run is there.
        StorageFailed: it is too large.
        RemoteUnreachable: the server does not answer; the same again continues.
    """
    bring = _way(source, target)
    head = source.store.view().head
    if head is None:
        raise TransitionRefused("the run was never started, so there is nothing to move")
    if head.moved_to is not None and (head.moved_to != target.words or has_arrived(head)):
        ensure_here(head)
    there = _head_of(target, head)
    if there is not None:
        is_same = there.run_id == head.run_id
        if is_same and head.moved_to is not None and there.moved_to is None:
            return _noted(source, there)
        _ensure_left(there, head, target)
    if isinstance(target.store, FleetStore):
        documents = documents_of(source.store, head)
        ensure_fitting(sizes_of({name: data.decode() for name, data in documents.items()}))
    if head.moved_to is None:
        head = source.store.update(partial(_closing, where=target.words))
    # What a run in git has committed is on the remote; a run in files has nothing there.
    work = head.work if isinstance(target.store, FleetStore) else None
    told = opened(head, f"moved here from {source.words}", work, at=_now())
    return _noted(source, bring(head, told))


def _way(source: Side, target: Side) -> Callable[[Head, Transition], Head]:
    """Return what brings a closed run from one to the other.

    Raises:
        UsageRefused: nothing does.
    """
    if isinstance(target.store, FleetStore) and not isinstance(source.store, FleetStore):
        return partial(_onto_server, source.store, target.store)
    if isinstance(source.store, FleetStore) and isinstance(target.store, FileStore):
        return partial(_into_files, source.store, target.store)
    raise UsageRefused(
        f"you can't move a run from a {source.kind} store to a {target.kind} store",
        hint="runs in files or git move to Temporal, and from there into files",
    )


def _head_of(target: Side, head: Head) -> Head | None:
    """Return the head that *target* has; None: no run, or what was begun of this one's arrival."""
    if isinstance(target.store, FileStore) and Arrival(target.store, head.run_id).is_free():
        return None
    return target.store.view().head


def _ensure_left(there: Head, head: Head, target: Side) -> None:
    """Return if *there* is the copy that the run of *head* has left when it went away.

    Raises:
        TransitionRefused: it is another run, or this one has continued from there.
    """
    if there.run_id == head.run_id and there.moved_to is not None:
        # Of an open run the closing is still to come.
        if there.revision < head.revision + (head.moved_to is None):
            return
        ensure_here(there)
    raise TransitionRefused(
        f"a run is already there, at revision {there.revision}",
        where=target.words,
        hint="give one of them another name, or move that one away",
    )


def _closing(head: Head | None, *, where: str) -> Transition | None:
    if head is None:
        raise TransitionRefused("the run was never started, so there is nothing to move")
    return None if head.moved_to == where else closed(head, where, at=_now())


def _noted(source: Side, new: Head) -> Head:
    """Note in the copy in *source* that the run has arrived as *new*; return that."""
    if not isinstance(source.store, FleetStore):
        # On the server it has ended with its closing, and no more is accepted.
        source.store.update(_confirming)
    return new


def _confirming(head: Head | None) -> Transition | None:
    is_closed = head is not None and head.moved_to is not None
    return confirmed(head, at=_now()) if head is not None and is_closed else None


# --- to the server -----------------------------------------------------------------


def _onto_server(source: Store, server: FleetStore, head: Head, told: Transition) -> Head:
    new = told.head.replace(revision=head.revision + 1, journal_offset=0)
    folder = source.state_path.parent
    state: dict[str, Any] = {BEFORE: _past(source, folder)}
    if head.needs_every_output:
        state["outputs"] = _outputs(folder)
    documents = documents_of(source, head)
    try:
        is_new = server.arrive(Transition(new, told.facts), documents, state)
    except RemoteUnreachable as error:
        cause = error.__cause__
        if isinstance(cause, RPCError) and cause.status is RPCStatusCode.INVALID_ARGUMENT:
            source.update(partial(_opening, note="not moved: the server does not take it"))
            raise UsageRefused(f"the server does not accept the run: {cause}") from error
        raise
    if not is_new:
        there = server.view().head
        if there is not None and there.run_id == head.run_id:
            # Somebody else has typed the same.
            ensure_here(there)
            return there
        source.update(partial(_opening, note="not moved: another run was started there"))
        raise TransitionRefused("another run was started there in the meantime", where=server.id)
    return new


def _opening(head: Head | None, *, note: str) -> Transition | None:
    is_closed = head is not None and head.moved_to is not None
    return opened(head, note, head.work, at=_now()) if head is not None and is_closed else None


def _past(store: Store, folder: Path) -> list[dict[str, Any]]:
    """Return the newest facts of the run in *store*, with their outputs, as many as travel."""
    found: list[dict[str, Any]] = []
    left = PAST_BYTES
    for fact in reversed(list(store.history())):
        whole = _with_output(fact, folder)
        left -= _size(whole)
        if left < 0:
            break
        found.insert(0, whole)
    else:
        return found
    # A revision has all its facts or none.
    cut = found[0]["revision"] if found else 0
    return [fact for fact in found if fact["revision"] > cut]


def _size(value: object) -> int:
    """Return how many bytes *value* has on its way to the server."""
    return len(json.dumps(value))


def _with_output(fact: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return *fact* with its output in place of the file's name, if that is small enough."""
    outcome = fact["outcome"] or {}
    name = results.name_in(outcome.get("output_file"))
    output = None if name is None else _output(folder / results.NAME / name)
    if output is None:
        return fact
    rest = {key: one for key, one in outcome.items() if key not in ("output_file", "output_bytes")}
    return {**fact, "outcome": {**rest, "output": output}}


def _output(folder: Path) -> str | None:
    """Return what an attempt has left in its *folder*; None: nothing that could travel."""
    with contextlib.suppress(OSError, SequencerError):
        data = read_regular(folder / results.OUTPUT, max_bytes=ANSWER_BYTES)
        if len(data) <= ANSWER_BYTES and results.is_whole(folder / results.OUTPUT, data):
            return data.decode("utf-8", "replace")
    return None


def _outputs(folder: Path) -> dict[str, str]:
    """Return the newest outputs in the *folder* of a graph's run, which may ask for any."""
    attempts = [(results.attempt_of(name), name) for name in names(folder / results.NAME)]
    found: dict[str, str] = {}
    left = PAST_BYTES
    for _, name in sorted(((one[1], name) for one, name in attempts if one), reverse=True):
        output = _output(folder / results.NAME / name) or ""
        left -= _size(output)
        if output and left >= 0:
            found[name] = output
    return found


# --- into files --------------------------------------------------------------------


def _into_files(server: FleetStore, files: FileStore, head: Head, told: Transition) -> Head:
    whole = exported(server)
    arrival = Arrival(files, head.run_id)
    return arrival.bring(whole.lines, head, told, whole.documents, whole.outputs)


def _now() -> str:
    return utc(datetime.now(UTC))
