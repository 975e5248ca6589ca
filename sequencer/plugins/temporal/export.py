"""A run on Temporal as the files that a run in files has: to read, or to continue there.

Not promised: what was before the run came to the server, where that was more than travels; it
stands where the run came from.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from msgspec import Struct

from sequencer.errors import TransitionRefused, UsageRefused
from sequencer.model.head import FLOW_DOCUMENT, Head
from sequencer.model.request import DEFINITION_FILE
from sequencer.plugins.temporal.client import FleetStore
from sequencer.plugins.temporal.events import EventReader
from sequencer.plugins.temporal.wire import head_of
from sequencer.store import folder as folders
from sequencer.store import results
from sequencer.store.arrival import PastRecord, journal_of, keep_outputs
from sequencer.store.head import content_of
from sequencer.store.journal import NAME
from sequencer.store.protocol import Store
from sequencer.store.strictjson import parse_object


class Exported(Struct, frozen=True):
    """What a run on Temporal has left."""

    head: Head
    lines: list[bytes]
    """Of its journal."""
    outputs: dict[str, str]
    """Of its attempts, as far as they have travelled, by the names of their folders."""
    documents: dict[str, bytes]


def exported(store: FleetStore) -> Exported:
    """Return all that the server knows of the run in *store*.

    Raises:
        TransitionRefused: it was never begun.
        RemoteUnreachable: the server does not answer.
    """
    found: list[PastRecord] = []

    def hear(reader: EventReader, facts: list[dict[str, Any]]) -> None:
        found.extend(_records(facts, head_of(reader.memo)))

    reader = store.connection.call(store.read(hear))
    if not found:
        raise TransitionRefused("the run was never started on the server", where=store.id)
    head = head_of(reader.memo)
    outputs = {**reader.outputs, **dict(_outputs(reader, found))}
    return Exported(head, journal_of(found, head.run_id), outputs, documents_of(store, head))


def _records(facts: list[dict[str, Any]], head: Head) -> Iterator[PastRecord]:
    for revision, group in groupby(facts, key=itemgetter("revision")):
        told = list(group)
        newest = head if revision == head.revision else None
        yield PastRecord(revision, told[0]["at"], told, newest)


def _outputs(reader: EventReader, found: list[PastRecord]) -> Iterator[tuple[str, str]]:
    for fact in (fact for record in found for fact in record.facts):
        report, outcome = reader.reports.get(fact["token"]), fact["outcome"] or {}
        if report is not None and (output := report.get("output")):
            name = results.name_in(outcome.get("output_file"))
            yield name or f"{fact['step_index']}-{fact['token']}", output


def documents_of(store: Store, head: Head) -> dict[str, bytes]:
    """Return the documents of the run in *store*, which is at *head*, by their names."""
    names, found = [DEFINITION_FILE, FLOW_DOCUMENT, head.base], dict[str, bytes]()
    while names:
        name = names.pop(0)
        data = None if name is None else store.document(name)
        if name is not None and data is not None:
            found[name] = data
            if name not in (DEFINITION_FILE, FLOW_DOCUMENT):
                # A marking begins with another one.
                names.append(parse_object(data).get("base"))
    return found


def write_copy(store: FleetStore, folder: Path) -> Head:
    """Write the files of the run in *store* to the new *folder*; return the head that they have.

    Raises:
        UsageRefused: there is such a folder.
    """
    whole = exported(store)
    try:
        folders.make_fresh(folder)
    except FileExistsError:
        raise UsageRefused("this folder already exists", where=str(folder)) from None
    keep_outputs(folder, whole.outputs)
    files = {**whole.documents, NAME: b"".join(whole.lines)}
    for name, data in {**files, store.state_path.name: content_of(whole.head)}.items():
        folders.put(folder / name, data)
        (folder / name).chmod(0o400)
    return whole.head
